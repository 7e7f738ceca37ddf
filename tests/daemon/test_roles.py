"""Roles over the turns of a daemon: pinned in one turn, born later, moved, restarted."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from nodeagent.daemon.state import Done, JournalPin
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import (
    Action,
    ActionResult,
    Match,
    Outcome,
    ProcessState,
    Role,
    SetAffinity,
    ThreadState,
    Workload,
)
from tests.daemon.test_turn import Daemon, World, changed

RANK = Workload(
    name="w",
    kind="llm",
    match=Match(comm="w"),
    cpus=4,
    roles=(Role(name="helpers", cpus=1, comm="cuda*"), Role(name="main", cpus=1, main=True)),
)


@dataclass
class Named(World):
    """A world whose threads have names, and whose actor does as it is told by number."""

    comms: dict[int, str] = field(default_factory=dict)

    def thread(self, tid: int, comm: str, on: str = "0-7") -> None:
        self.masks[100, tid] = CpuSet.parse(on)
        self.comms[tid] = comm

    def processes(self) -> tuple[ProcessState, ...]:
        return tuple(
            dataclasses.replace(
                p,
                threads=tuple(
                    ThreadState(tid=t.tid, comm=self.comms[t.tid], cpus=t.cpus) for t in p.threads
                ),
            )
            for p in super().processes()
        )

    def perform(self, action: Action) -> Done:
        assert isinstance(action, SetAffinity) and action.tids
        self.acts.append(action)
        self.now += 1_000_000
        old = self.journal.get(100)
        self.journal[100] = JournalPin(
            workload=action.workload,
            pid=100,
            start_time=1000,
            after=action.cpus,
            before=old.before if old else action.before,
            at_ns=self.now,
        )
        for tid in action.tids:
            self.masks[100, tid] = action.cpus
        return self._done(action, ActionResult(outcome=Outcome.DONE, message="", read_back=""))

    def on(self, tid: int) -> str:
        return str(self.masks[100, tid])


def rank() -> tuple[Named, Daemon]:
    """A main thread, a pool of two, a helper: pinned and known to hold."""
    world = Named()
    world.names[100] = "w"
    for tid, comm in ((100, "w"), (101, "w"), (102, "w"), (103, "cuda-EvtHandlr")):
        world.thread(tid, comm)
    daemon = Daemon(world, (RANK,))
    first = daemon.turn()
    assert len(first.queue) == 3, "one action a role, in one turn"
    (row,) = daemon.turn().held
    assert row.held
    return world, daemon


def test_all_roles_are_pinned_in_one_turn_and_nothing_is_done_again() -> None:
    world, daemon = rank()
    helper, main, pool = world.on(103), world.on(100), world.on(101)
    assert world.on(102) == pool
    sets = [CpuSet.parse(text) for text in (helper, main, pool)]
    assert [len(s) for s in sets] == [1, 1, 2]
    assert len(CpuSet.of(i for s in sets for i in s)) == 4, "apart"
    for _ in range(3):
        assert daemon.turn().queue == ()
    assert "pin.drift" not in daemon.kinds()


def test_a_thread_born_or_named_later_is_put_in_its_place() -> None:
    world, daemon = rank()
    world.thread(104, "w", on=world.on(100))
    (wanted,) = daemon.turn().queue
    assert isinstance(wanted.action, SetAffinity) and wanted.action.tids == (104,)
    daemon.turn()
    assert world.on(104) == world.on(101)
    world.comms[104] = "cuda00001400006"
    daemon.turn()
    assert world.on(104) == world.on(103)
    daemon.turn()
    assert "pin.drift" not in daemon.kinds(), "nobody moved it"


def test_a_stranger_who_moves_a_thread_beside_its_role_is_corrected_once_and_named() -> None:
    world, daemon = rank()
    home = world.on(103)
    for expected in ("pin.drift", "pin.manual"):
        # Within the workload's CPUs all the same: the main thread's.
        world.masks[100, 103] = CpuSet.parse(world.on(100))
        changed(daemon, 103, by="taskset")
        for _ in range(3):
            daemon.turn()
        assert daemon.kinds().count(expected) == 1
        assert any("taskset" in e.message for e in daemon.events if e.kind == expected)
        assert (world.on(103) == home) is (expected == "pin.drift")


def test_another_daemon_moves_nothing() -> None:
    world, daemon = rank()
    before = dict(world.masks)
    after = daemon.killed()
    acts = len(world.acts)
    for _ in range(4):
        assert after.turn().queue == ()
    assert world.masks == before and len(world.acts) == acts
    assert "pin.drift" not in after.kinds()
    # And it guards what it found.
    world.masks[100, 103] = CpuSet.parse("0-7")
    changed(after, 103, by="taskset")
    for _ in range(3):
        after.turn()
    assert world.masks == before and after.kinds().count("pin.drift") == 1
