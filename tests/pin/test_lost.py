"""A journal that lost its tail while something was pinned: told, and nothing is claimed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Outcome, SetAffinity, Target
from nodeagent.pin.actor import Actor
from nodeagent.pin.asked import Asked
from nodeagent.pin.proc import tids_of
from nodeagent.pin.undo import FILE

Opener = Callable[..., contextlib.AbstractContextManager[Actor]]
Two = tuple[CpuSet, CpuSet]
ME = Asked(by="test", why="a test of lost lines")


class Process(Protocol):
    """conftest.Victim, as these tests use it."""

    pid: int

    @property
    def target(self) -> Target: ...
    def masks(self) -> dict[int, str]: ...


def pinned(folder: Path, open_actor: Opener, process: Process, cpus: CpuSet) -> list[bytes]:
    """The lines of a journal in which one act stands: header, open, former, done."""
    action = SetAffinity(workload="w", target=process.target, cpus=cpus, before=CpuSet())
    with open_actor(folder) as actor:
        assert actor.perform(action, ME).outcome is Outcome.DONE
    lines = (folder / "state/journal" / FILE).read_bytes().rstrip(b"\0").splitlines(keepends=True)
    assert [b'"t":"%s"' % t in line for t, line in zip(KINDS, lines, strict=True)] == [True] * 4
    return lines


KINDS = (b"journal", b"open", b"former", b"done")


def test_without_its_open_record_the_change_is_known_to_be_unknown(
    tmp_path: Path, open_actor: Opener, victim: Callable[..., Process], two_cpus: Two
) -> None:
    process = victim(2)
    lines = pinned(tmp_path, open_actor, process, two_cpus[1])
    (tmp_path / "state/journal" / FILE).write_bytes(lines[0])
    with open_actor(tmp_path) as actor:
        (said,) = actor.recover()
        assert "may be in force and cannot be undone from here" in said and "audit.jsonl" in said
        assert actor.entries == ()
    # The very record that the sentence names has what was before.
    assert f'"before":"{two_cpus[0]}"' in (tmp_path / "state/audit.jsonl").read_text()


def test_without_the_masks_it_is_not_said_to_be_put_back(
    tmp_path: Path, open_actor: Opener, victim: Callable[..., Process], two_cpus: Two
) -> None:
    process = victim(2)
    lines = pinned(tmp_path, open_actor, process, two_cpus[1])
    path = tmp_path / "state/journal" / FILE
    path.write_bytes(b"".join(lines[:2]))
    with open_actor(tmp_path) as actor:
        said = actor.recover()
        assert "cannot be undone from here" in said[0] and "it holds" in said[1]
        (undone,) = actor.undo(None, ME)
        assert undone.result.outcome is Outcome.FAILED
        assert "the former masks of 3 threads" in undone.result.message
        assert "3 threads of it are on" in undone.result.message
        assert f"taskset -a -p -c LIST {process.pid}" in undone.result.message
        assert set(process.masks().values()) == {str(two_cpus[1])} and len(actor.entries) == 1
    # What the sentence says: by hand, then undo again.
    for tid in tids_of(process.pid):
        os.sched_setaffinity(tid, two_cpus[0].ids)
    with open_actor(tmp_path) as actor:
        # Killed by nobody: the entry is "undoing", and the start completes it.
        said = actor.recover()
        assert any("was completed" in text for text in said) and actor.entries == ()
    assert set(process.masks().values()) == {str(two_cpus[0])}


def test_a_half_made_act_without_its_masks_is_not_said_to_be_reverted(
    tmp_path: Path, open_actor: Opener, victim: Callable[..., Process], two_cpus: Two
) -> None:
    process = victim(2)
    lines = pinned(tmp_path, open_actor, process, two_cpus[1])
    (tmp_path / "state/journal" / FILE).write_bytes(b"".join(lines[:2]))
    # One of them is off again: the act is not complete, and two are where it put them.
    os.sched_setaffinity(process.pid, two_cpus[0].ids)
    with open_actor(tmp_path) as actor:
        said = actor.recover()
        assert "could neither be completed nor put back" in said[1]
        assert "2 threads of it are on" in said[1] and len(actor.entries) == 1


@pytest.mark.parametrize("kept", [3, 4])
def test_what_is_whole_is_undone_whole(
    kept: int, tmp_path: Path, open_actor: Opener, victim: Callable[..., Process], two_cpus: Two
) -> None:
    process = victim(2)
    before = process.masks()
    lines = pinned(tmp_path, open_actor, process, two_cpus[1])
    (tmp_path / "state/journal" / FILE).write_bytes(b"".join(lines[:kept]))
    with open_actor(tmp_path) as actor:
        assert len(actor.recover()) == (2 if kept == 3 else 0)
        (undone,) = actor.undo(None, ME)
        assert undone.result.outcome is Outcome.DONE
    assert process.masks() == before
