"""A task of the daemon's own that ends by our own fault ends the daemon: systemd starts it anew."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.daemon.doors import real_doors
from nodeagent.daemon.loop import Loop
from nodeagent.daemon.notify import notifier
from nodeagent.daemon.setup import Doors, set_up
from nodeagent.daemon.source import Source
from nodeagent.model.event import Event
from nodeagent.model.status import ControllerLink
from nodeagent.rpc.spool import Spool


class Broken:
    """A link that meets a fault: while it streams, or while it stores."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.trouble: str | None = None

    def link(self) -> ControllerLink:
        return ControllerLink(
            configured=True,
            connected=True,
            address="a:1",
            reports=0,
            unacknowledged=0,
            dropped=0,
        )

    async def record(self, events: Sequence[Event]) -> tuple[Event, ...]:
        if self._where == "record":
            raise ValueError("a number that does not fit")
        return tuple(events)

    async def run(self) -> None:
        if self._where == "run":
            raise ValueError("a number that does not fit")
        await asyncio.Event().wait()

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("where", ["run", "record"])
def test_a_fault_in_a_task_is_not_silent(tmp_path: Path, where: str) -> None:
    config = tmp_path / "nodeagent.toml"
    config.write_text(
        f'[daemon]\nrun_dir = "{tmp_path}"\nstate_dir = "{tmp_path}"\ninterval_s = 1.0\n'
        "[probe]\nenabled = false\n"
    )

    def session(spool: Spool, source: Source, address: str, hostname: str) -> Broken:
        return Broken(where)

    doors: Doors = replace(real_doors(), session=session)

    async def run() -> None:
        await Loop(config, set_up(config, doors), doors, notifier()).run()

    with pytest.raises(ValueError, match="does not fit"):
        asyncio.run(run())
    assert not (tmp_path / "api.sock").exists()
