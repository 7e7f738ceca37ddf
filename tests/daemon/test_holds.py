"""Workloads held by their unit, over the turns of a daemon: set once for all processes, guarded as
pins are, adopted by the next daemon, left alone when a person undid it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from nodeagent.daemon.hoststate import JournalValue
from nodeagent.daemon.state import Consents, Done, JournalHold, Seen
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import (
    Action,
    ActionResult,
    Consent,
    Knob,
    MoveToCpuset,
    Outcome,
    ProcessState,
    SetValue,
)
from nodeagent.place.holders import Facts
from tests.daemon.test_turn import Daemon, World, changed, workload

BOTH = frozenset({Consent.THREADS, Consent.CGROUP})
UNIT = "/system.slice/db.service"
FACTS = Facts(version=2, systemd=True, controller=True)


@dataclass
class Held(World):
    """Processes of a unit, and what the actor made of it."""

    holds: dict[str, JournalHold] = field(default_factory=dict)

    def processes(self) -> tuple[ProcessState, ...]:
        found = super().processes()
        return tuple(dataclasses.replace(p, cgroup=UNIT) for p in found)

    def perform(self, action: Action) -> Done:
        if not isinstance(action, SetValue):
            return super().perform(action)
        self.acts.append(action)
        self.now += 1_000_000
        if self.fail is not None:
            return self._done(action, ActionResult(outcome=Outcome.FAILED, message=self.fail))
        cpus = CpuSet.parse(action.value)
        before = CpuSet.of(cpu for mask in self.masks.values() for cpu in mask.ids)
        self.holds[action.subject] = JournalHold(
            workload=action.workload, cpus=cpus, before=before, at_ns=self.now
        )
        for key, mask in self.masks.items():
            self.masks[key] = mask & cpus or cpus
        return self._done(action, ActionResult(outcome=Outcome.DONE, message="set", read_back=""))


@dataclass
class Holding(Daemon):
    """A daemon that knows what the host offers."""

    def see(self) -> Seen:
        seen = super().see()
        journal = seen.journal
        if journal is not None:
            assert isinstance(self.world, Held)
            journal = dataclasses.replace(journal, holds=tuple(self.world.holds.values()))
        return dataclasses.replace(seen, facts=FACTS, journal=journal)


def begun(pids: tuple[int, ...] = (100, 200)) -> tuple[Held, Holding]:
    world = Held()
    for pid in pids:
        world.start(pid, "db")
    daemon = Holding(
        world=world, workloads=(workload("db"),), consents=Consents(allow=BOTH, auto=BOTH)
    )
    return world, daemon


def held_on(world: Held) -> CpuSet:
    (hold,) = world.holds.values()
    return hold.cpus


def test_a_unit_is_set_once_for_all_its_processes() -> None:
    world, daemon = begun()
    for _ in range(4):
        daemon.turn()
    (action,) = world.acts
    assert isinstance(action, SetValue)
    assert (action.knob, action.subject, action.workload) == (Knob.UNIT_CPUS, "db.service", "db")
    decisions = daemon.turn()
    assert all(mask <= held_on(world) for mask in world.masks.values())
    assert [row.held for row in decisions.held] == [True, True]
    assert all(row.cpus_before == CpuSet.parse("0-7") for row in decisions.held)


def test_the_next_daemon_adopts_it_and_moves_nothing() -> None:
    world, daemon = begun()
    for _ in range(3):
        daemon.turn()
    later = Holding(world=world, workloads=daemon.workloads, consents=daemon.consents, fresh=True)
    for _ in range(3):
        decisions = later.turn()
    assert len(world.acts) == 1 and "pin.adopted" in later.kinds()
    assert all(row.held for row in decisions.held)


def test_what_a_person_undid_is_left_alone() -> None:
    world, daemon = begun()
    for _ in range(3):
        daemon.turn()
    world.holds.clear()
    for key in world.masks:
        world.masks[key] = CpuSet.parse("0-7")
    for _ in range(5):
        daemon.turn()
    assert len(world.acts) == 1 and "pin.undone" in daemon.kinds()


def test_a_stranger_is_corrected_once_and_a_second_time_reported() -> None:
    world, daemon = begun((100,))
    for _ in range(3):
        daemon.turn()
    for expected in (2, 2):
        world.masks[100, 100] = CpuSet.parse("0-7")
        changed(daemon, 100, unit="noisy.service")
        for _ in range(4):
            daemon.turn()
        assert len(world.acts) == expected
    assert "pin.manual" in daemon.kinds()


def test_a_failure_is_not_tried_every_turn() -> None:
    world, daemon = begun()
    world.fail = "D-Bus: /run/dbus/system_bus_socket: No such file or directory"
    for _ in range(3):
        daemon.turn()
    assert len(world.acts) == 1 and "pin.failed" in daemon.kinds()


def test_a_stranger_in_the_unit_means_thread_by_thread() -> None:
    world, daemon = begun()
    world.start(900, "sidecar")
    for _ in range(3):
        daemon.turn()
    assert world.acts and not any(isinstance(a, SetValue) for a in world.acts)


def test_of_several_acts_the_newest_is_adopted_and_guarded() -> None:
    world, daemon = begun((100,))
    for _ in range(3):
        daemon.turn()
    now = held_on(world)
    # An earlier act on the same unit is still to be undone; the journal has both, oldest first.
    older = CpuSet.parse("6")
    assert older != now
    hold = world.holds.pop("db.service")
    world.holds["earlier"] = dataclasses.replace(
        hold, cpus=older, before=CpuSet.parse("0-7"), at_ns=hold.at_ns - 10
    )
    world.holds["db.service"] = dataclasses.replace(hold, before=older)
    later = Holding(world=world, workloads=daemon.workloads, consents=daemon.consents, fresh=True)
    for _ in range(3):
        decisions = later.turn()
    (pin,) = later.state.guard.pins.values()
    assert (pin.cpus, pin.before) == (now, CpuSet.parse("0-7"))
    assert all(row.cpus_before == CpuSet.parse("0-7") for row in decisions.held)
    world.masks[100, 100] = CpuSet.parse("0-7")
    for _ in range(4):
        later.turn()
    assert "pin.drift" in later.kinds() and world.masks[100, 100] <= now


@dataclass
class Parted(Held):
    """Bare processes, and partitions that the actor makes and moves them into."""

    partitions: dict[str, CpuSet] = field(default_factory=dict)
    made: dict[str, JournalValue] = field(default_factory=dict)
    inside: set[int] = field(default_factory=set)

    def processes(self) -> tuple[ProcessState, ...]:
        return tuple(
            dataclasses.replace(p, cgroup="/nodeagent.db" if p.pid in self.inside else "/mine")
            for p in World.processes(self)
        )

    def perform(self, action: Action) -> Done:
        self.acts.append(action)
        self.now += 1_000_000
        if self.fail is not None:
            return self._done(action, ActionResult(outcome=Outcome.REVERTED, message=self.fail))
        if isinstance(action, SetValue):
            self.partitions[action.subject] = CpuSet.parse(action.value)
            self.made[action.subject] = JournalValue(
                knob=action.knob, subject=action.subject, value=action.value, at_ns=self.now
            )
            result = ActionResult(
                outcome=Outcome.DONE, message="", read_back=action.value, journal_id=1
            )
            return self._done(action, result)
        assert isinstance(action, MoveToCpuset) and self.partitions["db"] == action.cpus
        pid = action.target.pid
        self.inside.add(pid)
        for key in self.masks:
            if key[0] == pid:
                self.masks[key] = action.cpus
        return self._done(action, ActionResult(outcome=Outcome.DONE, message="", read_back=""))


@dataclass
class Parting(Daemon):
    """A daemon on a node where partitions isolate."""

    def see(self) -> Seen:
        seen, world = super().see(), self.world
        assert isinstance(world, Parted)
        journal = seen.journal
        if journal is not None:
            journal = dataclasses.replace(journal, values=tuple(world.made.values()))
        facts = dataclasses.replace(
            FACTS, isolating=frozenset({"db"}), partitions=dict(world.partitions)
        )
        return dataclasses.replace(seen, facts=facts, journal=journal)


def parted() -> tuple[Parted, Parting]:
    world = Parted()
    world.start(100, "db")
    world.start(200, "db")
    every = BOTH | {Consent.HOST}
    wanted = dataclasses.replace(workload("db"), isolated=True)
    return world, Parting(
        world=world, workloads=(wanted,), consents=Consents(allow=every, auto=every)
    )


def mine(world: Held) -> list[Action]:
    return [a for a in world.acts if a.workload == "db"]


def test_a_partition_is_made_and_then_moved_into() -> None:
    world, daemon = parted()
    for _ in range(5):
        decisions = daemon.turn()
    made, *moved = mine(world)
    assert isinstance(made, SetValue) and made.knob is Knob.PARTITION
    assert [type(a) for a in moved] == [MoveToCpuset, MoveToCpuset]
    assert world.inside == {100, 200}
    assert {row.guard for row in decisions.held} == {"isolated by partition /nodeagent.db"}


def test_a_partition_that_somebody_ended_is_not_made_again() -> None:
    world, daemon = parted()
    for _ in range(5):
        daemon.turn()
    count = len(mine(world))
    world.partitions.clear()
    for _ in range(4):
        decisions = daemon.turn()
    assert len(mine(world)) == count
    assert {row.guard for row in decisions.held} == {"not isolated: see place plan"}
    said = [e.message for e in daemon.events if e.kind == "pin.waiting"]
    assert any("isolates nothing now: it is left alone until place apply" in m for m in said), said


def test_nobody_is_moved_into_a_partition_that_could_not_be_made() -> None:
    world, daemon = parted()
    world.fail = "the kernel says 'isolated invalid (Cpu list in cpuset.cpus not exclusive)'"
    for _ in range(4):
        daemon.turn()
    acts = mine(world)
    assert all(isinstance(a, SetValue) for a in acts) and 1 <= len(acts) < 4
    assert "pin.reverted" in daemon.kinds() and not world.inside
