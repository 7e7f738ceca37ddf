"""Questions to whoever listens where a daemon or a controller should."""

from __future__ import annotations

import pathlib
import socket
import tempfile

import pytest

from nodeagent.errors import UnavailableError, UsageError
from nodeagent.rpc.client import FleetClient, NodeClient


def test_who_accepts_and_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with FleetClient(address, deadline_s=0.5) as fleet:
            with pytest.raises(UnavailableError, match="no answer within"):
                fleet.nodes()
            with pytest.raises(UnavailableError, match="no answer within"):
                next(fleet.watch())


def test_a_silent_api_sock_is_given_up() -> None:
    with tempfile.TemporaryDirectory(prefix="ndc-") as folder:
        path = pathlib.Path(folder) / "api.sock"
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(path))
            silent.listen(4)
            with (
                NodeClient(str(path), deadline_s=0.5) as node,
                pytest.raises(UnavailableError, match="did not answer"),
            ):
                next(node.watch())


@pytest.mark.parametrize(
    "address", ["", "x", ":5", "127.0.0.1:99999", "127.0.0.1:-1", "host\x1b[31m:5", "\udcff:5"]
)
def test_what_is_no_address_is_wrong_usage(address: str) -> None:
    if not address:
        with FleetClient(address) as client:
            assert client.address.endswith(":7440")
        return
    with pytest.raises(UsageError, match="HOST:PORT"):
        FleetClient(address)


def test_a_path_too_long_for_a_file_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="File name too long"):
        NodeClient("/" + "a" * 300)
