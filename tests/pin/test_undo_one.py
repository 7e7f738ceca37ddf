"""One act undone by its number, and acts that were built upon one another."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Consent, Outcome, SetAffinity, Target
from nodeagent.pin.actor import Actor
from nodeagent.pin.asked import Asked
from nodeagent.pin.proc import boot_id, stat_of
from nodeagent.pin.records import Done, Header, Open, line_of

Opener = Callable[..., contextlib.AbstractContextManager[Actor]]
ME = Asked(by="test", why="a test")


class Process(Protocol):
    """conftest.Victim, as these tests use it."""

    pid: int

    @property
    def target(self) -> Target: ...
    def masks(self) -> dict[int, str]: ...


Make = Callable[..., Process]


def apart(two_cpus: tuple[CpuSet, CpuSet]) -> tuple[CpuSet, CpuSet]:
    """Two masks that have no CPU in common."""
    both, one = two_cpus
    return one, both - one


def pin(target: Target, cpus: CpuSet, workload: str) -> SetAffinity:
    return SetAffinity(workload=workload, target=target, cpus=cpus, before=CpuSet())


def test_one_entry_is_undone_by_its_number(
    open_actor: Opener, victim: Make, two_cpus: tuple[CpuSet, CpuSet], tmp_path: Path
) -> None:
    here, _ = apart(two_cpus)
    a, b = victim(), victim()
    before = a.masks(), b.masks()
    with open_actor(tmp_path) as actor:
        first = actor.perform(pin(a.target, here, "a"), ME)
        second = actor.perform(pin(b.target, here, "b"), ME)
        assert first.journal_id is not None and second.journal_id is not None
        assert actor.undo(None, ME, entry=second.journal_id + 7) == ()
        done = actor.undo(None, ME, entry=first.journal_id)
        assert [d.result.outcome for d in done] == [Outcome.DONE]
        assert a.masks() == before[0] and set(b.masks().values()) == {str(here)}
        # The number and the workload must both fit.
        assert actor.undo("a", ME, entry=second.journal_id) == ()
        actor.undo(None, ME)
    assert b.masks() == before[1]


def test_an_act_that_another_was_built_upon_waits_for_it(
    open_actor: Opener, victim: Make, two_cpus: tuple[CpuSet, CpuSet], tmp_path: Path
) -> None:
    """A process that went from one workload to another: undoing the older pin first would take
    the newer one for somebody's later change, and the way back to the start would be lost."""
    here, there = apart(two_cpus)
    process = victim()
    before = process.masks()
    with open_actor(tmp_path) as actor:
        first = actor.perform(pin(process.target, here, "first"), ME)
        second = actor.perform(pin(process.target, there, "second"), ME)
        assert second.outcome is Outcome.DONE and first.journal_id is not None
        (refused,) = actor.undo("first", ME)
        assert refused.result.outcome is Outcome.REFUSED
        assert f"undo {second.journal_id} comes first" in refused.result.message
        (again,) = actor.undo(None, ME, entry=first.journal_id)
        assert again.result.outcome is Outcome.REFUSED
        assert set(process.masks().values()) == {str(there)}
        done = actor.undo(None, ME)
        assert [d.result.outcome for d in done] == [Outcome.DONE] * 2
        assert actor.entries == ()
    assert process.masks() == before


def test_acts_on_different_threads_do_not_wait_for_one_another(
    open_actor: Opener, victim: Make, two_cpus: tuple[CpuSet, CpuSet], tmp_path: Path
) -> None:
    here, there = apart(two_cpus)
    process = victim()
    before = process.masks()
    target = process.target
    one, other = sorted(before)[:2]
    with open_actor(tmp_path) as actor:

        def of(tid: int, cpus: CpuSet) -> SetAffinity:
            return SetAffinity(workload="w", target=target, cpus=cpus, before=CpuSet(), tids=(tid,))

        first = actor.perform(of(one, here), ME)
        second = actor.perform(of(other, there), ME)
        assert (first.outcome, second.outcome) == (Outcome.DONE, Outcome.DONE)
        assert first.journal_id is not None
        (done,) = actor.undo(None, ME, entry=first.journal_id)
        assert done.result.outcome is Outcome.DONE
        assert process.masks()[one] == before[one] and process.masks()[other] == str(there)
        actor.undo(None, ME)
    assert process.masks() == before


def test_a_partition_is_not_ended_before_who_was_moved_into_it(
    open_actor: Opener, tmp_path: Path
) -> None:
    me = stat_of(os.getpid())
    assert me is not None
    both: dict[str, str | int] = {
        "boot": boot_id(),
        "at_ns": 1,
        "ticks": 1,
        "by": "test",
        "why": "",
        "workload": "w",
    }
    made: dict[str, str | int] = {
        "act": "set_value",
        "knob": "partition",
        "subject": "w",
        "value": "1",
    }
    moved: dict[str, str | int] = {
        "act": "move_to_cpuset",
        "cpus": "1",
        "cpuset": "/nodeagent.w",
        "cgroup_before": "/",
    }
    process: dict[str, str | int] = {"pid": os.getpid(), "start_time": me.start_time}
    lines = [line_of(Header(version=2))]
    for i, one in enumerate([made | {"value_before": "member"}, moved | process], 1):
        opened = msgspec.convert({"t": "open", "id": i, **both, **one}, Open)
        lines += [line_of(opened), line_of(Done(id=i, read_back="1"))]
    (tmp_path / "state/journal").mkdir(parents=True, mode=0o700)
    (tmp_path / "state/journal/undo.log").write_bytes(b"".join(lines))
    with open_actor(tmp_path, allow=frozenset(Consent), partitions=True) as actor:
        assert [e.id for e in actor.entries] == [1, 2]
        (refused,) = actor.undo(None, ME, entry=1)
        assert refused.result.outcome is Outcome.REFUSED
        assert "nodeagentctl undo 2 comes first" in refused.result.message
        assert [e.id for e in actor.entries] == [1, 2]
