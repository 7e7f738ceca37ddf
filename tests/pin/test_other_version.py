"""Acts of another version in the journal, as after a downgrade: left, told, and never a crash."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.pin.actor import Actor
from nodeagent.pin.asked import Asked
from nodeagent.pin.proc import boot_id, stat_of
from nodeagent.pin.records import Done, Header, Open, Undoing, line_of

Opener = Callable[..., contextlib.AbstractContextManager[Actor]]
ME = Asked(by="test", why="a test of versions")


@pytest.mark.parametrize("state", ["open", "done", "undoing"])
@pytest.mark.parametrize(
    ("act", "knob", "cpus"), [("set_value", "tick-rate", ""), ("swap_tables", "", "0")]
)
def test_an_unknown_act_is_left_and_told(
    state: str, act: str, knob: str, cpus: str, tmp_path: Path, open_actor: Opener
) -> None:
    me = stat_of(os.getpid())
    assert me is not None
    lines = [
        line_of(Header(version=2)),
        line_of(
            Open(
                id=1,
                act=act,
                boot=boot_id(),
                at_ns=1,
                ticks=1,
                by="a newer one",
                why="",
                workload="w",
                pid=os.getpid(),
                start_time=me.start_time,
                cpus=cpus,
                knob=knob,
                subject="x",
                value="1",
                value_before="0",
            )
        ),
    ]
    if state != "open":
        lines.append(line_of(Done(id=1, read_back="1")))
    if state == "undoing":
        lines.append(line_of(Undoing(id=1)))
    (tmp_path / "state/journal").mkdir(parents=True, mode=0o700)
    (tmp_path / "state/journal/undo.log").write_bytes(b"".join(lines))
    path = tmp_path / "state/journal/undo.log"
    for _ in range(2):
        with open_actor(tmp_path) as actor:
            said = actor.recover()
            assert said and all("another version is left as it is" in text for text in said)
            assert actor.undo(None, ME) == () and actor.entries == ()
        assert b"".join(lines) == path.read_bytes()[: len(b"".join(lines))]
