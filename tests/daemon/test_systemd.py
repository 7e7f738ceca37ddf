"""What the daemon tells its service manager: over a real notification socket."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.daemon.conftest import Node


class Manager:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, path: pathlib.Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(30)
        self.path = path
        self.said: list[str] = []
        self.heard = 0

    def until(self, word: str) -> str:
        """The next line that begins so."""
        while True:
            while self.heard < len(self.said):
                self.heard += 1
                if self.said[self.heard - 1].startswith(word):
                    return self.said[self.heard - 1]
            self.said += self.socket.recv(4096).decode().splitlines()


@pytest.fixture
def manager() -> Iterator[Manager]:
    with tempfile.TemporaryDirectory(prefix="ndn-") as folder:
        made = Manager(pathlib.Path(folder) / "n")
        yield made
        made.socket.close()


def test_ready_status_watchdog_reload_and_stop(node: Node, manager: Manager) -> None:
    node.configure("")
    environment = {
        **os.environ,
        "NOTIFY_SOCKET": str(manager.path),
        "WATCHDOG_USEC": "60000000",
    }
    node.running.append(subprocess.Popen(node.command, env=environment))
    manager.until("READY=1")
    assert "WATCHDOG=1" not in manager.said
    manager.until("WATCHDOG=1")
    while "verdict" not in manager.until("STATUS="):
        pass
    node.process.send_signal(signal.SIGHUP)
    manager.until("RELOADING=1")
    assert int(manager.until("MONOTONIC_USEC=").partition("=")[2]) > 0
    manager.until("READY=1")
    node.process.terminate()
    manager.until("STOPPING=1")
    assert node.process.wait(30) == 0


def test_a_manager_that_went_away_costs_nothing(node: Node, manager: Manager) -> None:
    node.configure("")
    manager.socket.close()
    manager.path.unlink()
    environment = {**os.environ, "NOTIFY_SOCKET": str(manager.path)}
    node.running.append(subprocess.Popen(node.command, env=environment))
    node.status_when(lambda s: s.turns > 2)
    assert node.stop() == 0


def test_a_full_disk_costs_no_event_and_no_turn(node: Node, as_root: None) -> None:
    """The spool's file system fills up and is emptied again: events wait in memory meanwhile."""
    state = node.folder / "state"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "nd", state], check=True)
    try:
        node.configure("")
        node.start()
        node.event("daemon.started")
        filler = state / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError):
            while True:
                file.write(b"x" * 4096)
        for _ in range(3):
            # The spool may have room left in the pages it holds already.
            node.process.send_signal(signal.SIGHUP)
            before = node.status().turns
            node.status_when(lambda s: s.turns > before + 1)  # noqa: B023  # used at once
        assert [e.kind for e in node.events()].count("config.reloaded") < 3
        filler.unlink()
        node.event("spool.up")
        assert [e.kind for e in node.events()].count("config.reloaded") == 3
        assert "full" in node.event("spool.down").message
        seqs = [e.seq for e in node.events()]
        assert seqs == list(range(1, len(seqs) + 1))
        assert node.stop() == 0
    finally:
        node.close()
        subprocess.run(["umount", "-l", state], check=True)
