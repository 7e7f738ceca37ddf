"""The turn, pure: findings, plan, consent, freeze, drift, adoption, failures; interrupted anywhere.

A tiny world applies the decisions as the actor would, so that properties can be stated about what
becomes of the machine and not about calls.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.daemon.state import (
    CONNECTING,
    MAX_TRIES,
    MIN_GAP_NS,
    RETRY_NS,
    Consents,
    Decisions,
    Done,
    Journal,
    JournalPin,
    Reading,
    Seen,
    State,
    due_ns,
    to_keep,
)
from nodeagent.daemon.turn import turn
from nodeagent.model.actions import JournalEntry
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.event import Event, Severity
from nodeagent.model.feed import FeedLoss, FeedStatus
from nodeagent.model.finding import Finding, Verdict
from nodeagent.model.freeze import FreezeWindow
from nodeagent.model.histogram import BUCKETS, Histogram, bucket_of
from nodeagent.model.notice import Change, Kind
from nodeagent.model.placement import (
    Action,
    ActionResult,
    Consent,
    Knob,
    Match,
    Outcome,
    ProcessState,
    Role,
    SetAffinity,
    SetValue,
    Sharing,
    ThreadState,
    Workload,
    subject_of,
)
from nodeagent.model.probe import ProbeStatus, ThreadDelay
from nodeagent.model.snapshot import Host, Nvml, Snapshot
from nodeagent.model.status import ControllerLink
from nodeagent.model.topology import Isolation, NodeKind, NumaNode, Package, Topology

SECOND = 1_000_000_000
THREADS = frozenset({Consent.THREADS})
AUTO = Consents(allow=THREADS, auto=THREADS)


def machine(cpus: int = 8) -> Snapshot:
    """One package, one node, no SMT."""
    online = CpuSet.of(range(cpus))
    topology = Topology(
        online=online,
        possible=online,
        present=online,
        smt_siblings=tuple((i, CpuSet.of([i])) for i in range(cpus)),
        packages=(Package(id=0, cpus=online),),
        nodes=(
            NumaNode(
                id=0,
                cpus=online,
                memory_bytes=1 << 34,
                distances=((0, 10),),
                kind=NodeKind.CPU_MEMORY,
            ),
        ),
        caches=(),
        pci=(),
        relations=(),
        isolation=Isolation(),
    )
    return Snapshot(
        topology=topology,
        host=Host(hostname="n", boot_id="b", kernel="6", virtual=None),
        boot_args=(),
        irqs=(),
        nics=(),
        gpus=(),
        nvml=Nvml(available=False, reason="none"),
        unread=(),
    )


MACHINE = machine()


def workload(name: str, cpus: int = 2) -> Workload:
    return Workload(
        name=name,
        kind="custom",
        match=Match(comm=name),
        cpus=cpus,
        sharing=Sharing.EXCLUSIVE,
    )


@dataclass
class World:
    """Processes, an actor with its journal, and a clock."""

    masks: dict[tuple[int, int], CpuSet] = field(default_factory=dict)
    """(pid, tid) -> mask."""
    names: dict[int, str] = field(default_factory=dict)
    journal: dict[int, JournalPin] = field(default_factory=dict)
    now: int = SECOND
    numbered: int | None = None
    """Number of the newest act; None: an actor that tells none."""
    acts: list[Action] = field(default_factory=list)
    fail: str | None = None

    def start(self, pid: int, name: str, threads: int = 2, on: str = "0-7") -> None:
        self.names[pid] = name
        for i in range(threads):
            self.masks[pid, pid + i] = CpuSet.parse(on)

    def processes(self) -> tuple[ProcessState, ...]:
        return tuple(
            ProcessState(
                pid=pid,
                start_time=pid * 10,
                comm=name,
                title=name,
                cgroup="/",
                threads=tuple(
                    ThreadState(tid=tid, comm=name, cpus=mask)
                    for (p, tid), mask in sorted(self.masks.items())
                    if p == pid
                ),
            )
            for pid, name in sorted(self.names.items())
        )

    def perform(self, action: Action) -> Done:
        """As the actor does: journal first, then every thread that is outside."""
        self.acts.append(action)
        self.now += 1_000_000
        if self.fail is not None:
            return self._done(action, ActionResult(outcome=Outcome.FAILED, message=self.fail))
        assert isinstance(action, SetAffinity)
        pid = action.target.pid
        if pid not in self.names:
            return self._done(action, ActionResult(outcome=Outcome.GONE, message="gone"))
        tids = frozenset(
            tid for p, tid in self.masks if p == pid and (not action.tids or tid in action.tids)
        )
        old = self.journal.get(pid)
        if self.numbered is not None:
            self.numbered += 1
        self.journal[pid] = JournalPin(
            workload=action.workload,
            pid=pid,
            start_time=action.target.start_time,
            after=action.cpus,
            before=old.before if old else action.before,
            at_ns=self.now,
            id=self.numbered or 0,
        )
        for tid in tids:
            if not self.masks[pid, tid] <= action.cpus:
                self.masks[pid, tid] = action.cpus
        done = ActionResult(
            outcome=Outcome.DONE, message="", read_back="", journal_id=self.numbered
        )
        return self._done(action, done)

    def _done(self, action: Action, result: ActionResult) -> Done:
        return Done(action=action, result=result, at_ns=self.now)


def entry_of(pin: JournalPin) -> JournalEntry:
    """What the actor's journal says of it."""
    return JournalEntry(
        id=pin.pid,
        act="set_affinity",
        state="done",
        workload=pin.workload,
        pid=pin.pid,
        start_time=pin.start_time,
        before=pin.before,
        cpus=pin.after,
        cpuset="",
        at_ns=pin.at_ns,
        by="root (pid 1)",
        why="",
        exclusive=True,
    )


@dataclass
class Daemon:
    """Turns on a world; `state` is lost when the daemon is killed, the world's journal is not."""

    world: World
    workloads: tuple[Workload, ...]
    consents: Consents = AUTO
    state: State = field(default_factory=State)
    done: list[Done] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    fresh: bool = True
    freeze_file: str | None = None
    actor: str | None = None
    changes: list[Change] = field(default_factory=list)
    lost: int = 0
    probe: ProbeStatus | None = None
    busy: Action | None = None
    findings: tuple[Finding, ...] = ()
    snapshot: Snapshot = MACHINE

    def see(self) -> Seen:
        world = self.world
        journal = Journal(
            at_ns=world.now,
            pins=tuple(world.journal.values()),
            entries=tuple(map(entry_of, world.journal.values())),
            newest=None if world.numbered is None else world.numbered,
        )
        seen = Seen(
            judge=lambda snapshot, now_ns: self.findings,
            consents=self.consents,
            workloads=self.workloads,
            snapshot=self.snapshot,
            reading=Reading(at_ns=world.now, processes=world.processes()),
            journal=journal if self.fresh and self.actor is None else None,
            done=tuple(self.done),
            busy=self.busy,
            freeze_file=self.freeze_file,
            actor=self.actor,
            changes=tuple(self.changes),
            lost_changes=self.lost,
            probe=self.probe,
        )
        self.done, self.fresh, self.changes, self.lost = [], False, [], 0
        return seen

    def turn(self, acts: int | None = None) -> Decisions:
        """One turn; the actor performs at most `acts` of its queue."""
        self.world.now += 2 * SECOND
        self.state, decisions = turn(self.state, self.see(), self.world.now)
        self.events += decisions.events
        self.fresh = self.fresh or decisions.ask_journal
        for wanted in decisions.queue[:acts]:
            assert wanted.why
            self.done.append(self.world.perform(wanted.action))
        return decisions

    def killed(self) -> Daemon:
        """Another daemon on the same world, which reads what this one had written down."""
        return Daemon(
            world=self.world,
            workloads=self.workloads,
            consents=self.consents,
            state=State(remembered=to_keep(self.state)),
        )

    def kinds(self) -> list[str]:
        return [e.kind for e in self.events]


def changed(
    daemon: Daemon,
    *tids: int,
    by: str = "taskset",
    pid: int = 100,
    by_pid: int = 4711,
    unit: str = "",
    login: int | None = None,
    mask: str | None = None,
    kind: Kind = Kind.AFFINITY,
) -> None:
    """The kernel tells, just now, who changed these threads."""
    daemon.world.now += 1_000_000
    daemon.changes += [
        Change(
            kind=kind,
            at_ns=daemon.world.now,
            pid=pid,
            tid=tid,
            by_pid=by_pid,
            comm=by,
            uid=0,
            user="root",
            login=login,
            login_name="" if login is None else "ada",
            session=None if login is None else 3,
            unit=unit,
            mask=None if mask is None else CpuSet.parse(mask),
        )
        for tid in tids
    ]


def pinned_world(threads: int = 2) -> tuple[World, Daemon]:
    """One workload that is pinned and known to hold."""
    world = World()
    world.start(100, "w", threads)
    daemon = Daemon(world, (workload("w"),))
    daemon.turn()
    daemon.turn()
    assert len(world.acts) == 1
    return world, daemon


def mask(world: World, pid: int) -> str:
    return str(CpuSet.of(i for (p, _), m in world.masks.items() if p == pid for i in m))


# What is done, and what is not.


def test_pins_reads_back_and_says_so() -> None:
    world = World()
    world.start(100, "w", 3)
    daemon = Daemon(world, (workload("w"),))
    first = daemon.turn()
    assert [subject_of(w.action) for w in first.queue] == ["w pid 100"]
    assert "putting w where the plan says" in first.sentence
    second = daemon.turn()
    assert second.queue == ()
    (held,) = second.held
    assert held.held and held.pid == 100
    assert str(held.cpus_before) == "0-7" and held.cpus_planned == held.cpus_actual
    assert held.cpus_planned < CpuSet.of(range(8))
    assert second.sentence == "1 of 1 processes held; verdict OK"
    assert second.watch == {100}
    assert daemon.kinds() == ["place.planned", "pin.done"]


@pytest.mark.parametrize("cpus", [1, 2, 8])
def test_nothing_is_done_without_consent(cpus: int) -> None:
    world = World()
    world.start(100, "w")
    daemon = Daemon(world, (workload("w"),), Consents(), snapshot=machine(cpus))
    for _ in range(5):
        assert daemon.turn().queue == ()
    allowed = Daemon(world, (workload("w"),), Consents(allow=THREADS))
    decisions = allowed.turn()
    assert decisions.queue == () and world.acts == []
    waiting = next(e for e in allowed.events if e.kind == "pin.waiting")
    assert "[pin] auto does not name threads" in waiting.message
    assert "place apply" in waiting.remedy


def test_what_waits_is_said_once() -> None:
    """For minutes on end: the folding of events would say it again."""
    world = World()
    world.start(100, "w")
    waiting = Daemon(world, (workload("w"),), Consents())
    left, manual = pinned_world()
    changed(manual, 100, login=1000, mask="7")
    left.masks[100, 100] = CpuSet.of([7])
    for _ in range(70):
        waiting.turn()
        manual.turn()
    (said,) = [e for e in waiting.events if e.kind == "pin.waiting"]
    assert "times" not in said.message
    # What a person left is not waited for.
    assert manual.kinds().count("pin.manual") == 1 and "pin.waiting" not in manual.kinds()


def test_each_act_tells_the_actor_why() -> None:
    world = World()
    world.start(100, "w")
    daemon = Daemon(world, (workload("w"),))
    (wanted,) = daemon.turn(acts=0).queue
    placed = daemon.state.placement.of("w")
    assert placed is not None and wanted.why == placed.reasons[0]
    world, daemon = pinned_world()
    world.masks[100, 100] = CpuSet.of([7])
    while not (queue := daemon.turn(acts=0).queue):
        pass
    assert queue[0].why == "the guard puts right what an unknown author changed"


def test_no_workloads_nothing_to_do() -> None:
    daemon = Daemon(World(), ())
    assert daemon.turn().sentence == ("nothing to place: no workloads are configured; verdict OK")
    assert daemon.events == []


def test_freeze_file_and_windows_stop_every_act_within_one_turn() -> None:
    world = World()
    world.start(100, "w")
    daemon = Daemon(world, (workload("w"),), freeze_file="/run/x/freeze")
    decisions = daemon.turn()
    assert decisions.queue == () and "frozen: /run/x/freeze exists" in decisions.sentence
    daemon.freeze_file = None
    assert len(daemon.turn().queue) == 1
    world.masks[100, 100] = CpuSet.of([7])
    always = dataclasses.replace(AUTO, freeze=(FreezeWindow.parse("00:00-24:00 UTC"),))
    daemon.consents = always
    daemon.turn()
    assert daemon.turn().queue == ()
    daemon.consents = AUTO
    daemon.turn()
    assert mask(world, 100) != "7"
    assert daemon.kinds().count("freeze.on") == 2 or "freeze.on" in daemon.kinds()


def test_the_sentence_counts_what_it_does_not_name() -> None:
    idle = Daemon(World(), (), freeze_file="/run/x/freeze")
    assert "; frozen: /run/x/freeze exists" in idle.turn().sentence
    world = World()
    names = ("a", "b", "c")
    for pid, name in enumerate(names, 100):
        world.start(pid, name)
    daemon = Daemon(world, tuple(map(workload, names)), Consents())
    sentence = daemon.turn().sentence
    assert "left a and 2 more alone" in sentence
    absent = Daemon(World(), tuple(map(workload, names)), Consents()).turn().sentence
    assert "no process of a and 2 more runs" in absent


def test_a_queue_of_older_facts_is_never_kept() -> None:
    """What one turn decided and nobody did is not in the next one's queue when it is undone."""
    world = World()
    world.start(100, "w")
    daemon = Daemon(world, (workload("w"),))
    assert len(daemon.turn(acts=0).queue) == 1
    del world.names[100]
    assert daemon.turn(acts=0).queue == ()


def test_while_the_actor_is_looked_for_nothing_is_said_to_wait() -> None:
    world = World()
    world.start(100, "w")
    daemon = Daemon(world, (workload("w"),))
    daemon.actor = CONNECTING
    assert daemon.turn().queue == () and "pin.waiting" not in daemon.kinds()
    daemon.actor = "it ended"
    daemon.turn()
    assert "pin.waiting" in daemon.kinds()


def test_what_the_actor_is_at_is_not_asked_for_again() -> None:
    world = World()
    world.start(100, "v")
    world.start(200, "w")
    daemon = Daemon(world, (workload("v"), workload("w")))
    first, second = daemon.turn(acts=0).queue
    daemon.busy = first.action
    assert [w.action for w in daemon.turn(acts=0).queue] == [second.action]
    daemon.busy = SetValue(
        workload="", knob=Knob.IRQ_AFFINITY, subject="60", value="0", before="0-7"
    )
    assert [w.action for w in daemon.turn(acts=0).queue] == [first.action, second.action]


def test_waits_without_an_actor_and_goes_on_with_one() -> None:
    world = World()
    world.start(100, "w")
    daemon = Daemon(world, (workload("w"),), actor="nobody listens")
    decisions = daemon.turn()
    assert decisions.queue == () and "no actor: nobody listens" in decisions.sentence
    assert "actor.down" in daemon.kinds()
    daemon.actor, daemon.fresh = None, True
    assert len(daemon.turn().queue) == 1
    assert "actor.up" in daemon.kinds()


def test_new_threads_are_pinned_without_a_drift() -> None:
    world, daemon = pinned_world()
    world.masks[100, 190] = CpuSet.of(range(8))
    daemon.turn()
    daemon.turn()
    assert len(world.acts) == 2 and "pin.drift" not in daemon.kinds()


def test_a_thread_bound_to_a_part_of_its_place_is_left_alone() -> None:
    world, daemon = pinned_world()
    part = CpuSet.of([max(world.masks[100, 100].ids)])
    world.masks[100, 100] = part
    for _ in range(3):
        daemon.turn()
    assert len(world.acts) == 1 and "pin.drift" not in daemon.kinds()


# Drift.


def test_first_drift_is_corrected_second_reported() -> None:
    world, daemon = pinned_world()
    world.masks[100, 100] = CpuSet.of([7])
    assert daemon.turn().ask_journal
    daemon.turn()
    daemon.turn()
    assert mask(world, 100) != "7" and len(world.acts) == 2
    (drift,) = [e for e in daemon.events if e.kind == "pin.drift"]
    assert "1 of 2 threads of w (pid 100) were moved" in drift.message
    assert "to 7 by an unknown author; it is put right once" in drift.message
    (put,) = [e for e in daemon.events if e.kind == "pin.corrected"]
    assert put.message.endswith(": put right once after an unknown author")
    assert daemon.events.index(put) > daemon.events.index(drift)
    assert daemon.kinds().count("pin.done") == 1, "of the pin, not of the correction"
    world.masks[100, 101] = CpuSet.of([6])
    for _ in range(5):
        daemon.turn()
    assert len(world.acts) == 2 and world.masks[100, 101] == CpuSet.of([6])
    (manual,) = [e for e in daemon.events if e.kind == "pin.manual"]
    assert "second change" in manual.message
    assert not daemon.turn().held[0].held


def test_what_may_not_be_corrected_is_not_said_to_be_put_right() -> None:
    world, daemon = pinned_world()
    daemon.consents = Consents(allow=THREADS)
    world.masks[100, 100] = CpuSet.of([7])
    for _ in range(4):
        last = daemon.turn()
    assert mask(world, 100) != "7" and len(world.acts) == 1
    assert last.held[0].guard == (
        "moved by an unknown author; not corrected: [pin] auto does not name threads"
    )
    daemon.consents = AUTO
    for _ in range(3):
        last = daemon.turn()
    assert last.held[0].guard == "put right after an unknown author" and len(world.acts) == 2


def test_a_correction_is_said_although_its_effect_was_seen_before_its_result() -> None:
    world, daemon = pinned_world()
    world.masks[100, 100] = CpuSet.of([7])
    while not (queue := daemon.turn(acts=0).queue):
        pass
    daemon.busy = queue[0].action
    done = world.perform(queue[0].action)
    for _ in range(3):
        daemon.turn(acts=0)
    daemon.busy, daemon.done = None, [done]
    daemon.turn()
    (put,) = [e for e in daemon.events if e.kind == "pin.corrected"]
    assert put.message.endswith(": put right once after an unknown author")


def test_a_correction_that_meets_its_author_is_the_second_change() -> None:
    world, daemon = pinned_world()
    world.masks[100, 100] = CpuSet.of([7])
    while not (queue := daemon.turn(acts=0).queue):
        pass
    why = "somebody else sets the affinity"
    result = ActionResult(outcome=Outcome.REVERTED, message=why, contested=True)
    daemon.done = [Done(action=queue[0].action, result=result, at_ns=world.now)]
    for _ in range(5):
        assert daemon.turn().queue == ()
    (manual,) = [e for e in daemon.events if e.kind == "pin.manual"]
    assert why in manual.message and "manual until place apply" in manual.message
    assert "pin.reverted" not in daemon.kinds()
    assert daemon.turn().held[0].guard == "manual: changed again and again by an unknown author"


def test_a_correction_that_fails_is_tried_again_and_said_when_it_is_made() -> None:
    world, daemon = pinned_world()
    world.masks[100, 100] = CpuSet.of([7])
    while not (queue := daemon.turn(acts=0).queue):
        pass
    result = ActionResult(outcome=Outcome.REVERTED, message="it was too busy")
    daemon.done = [Done(action=queue[0].action, result=result, at_ns=world.now)]
    turns(daemon, 30)
    kinds = daemon.kinds()
    assert "pin.manual" not in kinds and kinds.count("pin.drift") == 1
    assert kinds.index("pin.reverted") < kinds.index("pin.corrected")
    assert world.masks[100, 100] == world.masks[100, 101]


def test_a_value_of_the_host_that_is_contested_is_a_failure() -> None:
    _, daemon = pinned_world()
    action = SetValue(workload="", knob=Knob.IRQ_AFFINITY, subject="60", value="0", before="0-7")
    result = ActionResult(outcome=Outcome.REVERTED, message="irqbalance", contested=True)
    daemon.done = [Done(action=action, result=result, at_ns=daemon.world.now)]
    daemon.turn()
    assert "pin.reverted" in daemon.kinds() and "pin.manual" not in daemon.kinds()


def test_a_first_pin_that_is_contested_is_tried_as_any_other() -> None:
    world = World()
    world.start(100, "w")
    daemon = Daemon(world, (workload("w"),))
    action = daemon.turn(acts=0).queue[0].action
    result = ActionResult(outcome=Outcome.REVERTED, message="contested", contested=True)
    daemon.done = [Done(action=action, result=result, at_ns=world.now)]
    daemon.turn(acts=0)
    assert "pin.reverted" in daemon.kinds() and "pin.manual" not in daemon.kinds()


def test_the_guard_is_not_blind_after_the_clock_was_set_back() -> None:
    """By an hour, as at the first synchronisation after a boot with a wrong clock."""
    world, daemon = pinned_world()
    daemon.turn()
    world.now -= 3600 * SECOND
    daemon.turn()
    world.masks[100, 100] = CpuSet.of([7])
    daemon.turn()
    daemon.fresh = True
    daemon.turn()
    daemon.turn()
    assert mask(world, 100) != "7" and len(world.acts) == 2
    assert daemon.kinds().count("pin.drift") == 1 and "pin.undone" not in daemon.kinds()
    (said,) = [e for e in daemon.events if e.kind == "clock.back"]
    assert "the clock was set back by 3598 s" in said.message


def test_a_persons_change_just_before_the_clock_went_back_stays() -> None:
    world, daemon = pinned_world()
    changed(daemon, 100, login=1000)
    world.masks[100, 100] = CpuSet.of([7])
    world.now -= 3600 * SECOND
    for _ in range(4):
        daemon.turn()
    assert world.masks[100, 100] == CpuSet.of([7]) and len(world.acts) == 1
    assert daemon.kinds().count("pin.manual") == 1


@pytest.mark.parametrize("restarted", [False, True])
def test_a_persons_apply_counts_although_the_clock_went_back_before_it(restarted: bool) -> None:
    world = World(numbered=0)
    world.start(100, "w")
    daemon = Daemon(world, (workload("w"),))
    for _ in range(3):
        daemon.turn()
    changed(daemon, 100, login=1000)
    world.masks[100, 100] = CpuSet.of([7])
    for _ in range(3):
        daemon.fresh = True
        daemon.turn()
    assert daemon.state.guard.pins[100, 1000].manual_id == 1
    world.now -= 3600 * SECOND
    daemon.turn()
    (act,) = world.acts
    world.perform(act)
    if restarted:
        daemon = daemon.killed()
    for _ in range(3):
        daemon.fresh = True
        daemon.turn()
    assert daemon.state.guard.pins[100, 1000].manual is None
    assert (
        isinstance(act, SetAffinity) and len(world.acts) == 2 and mask(world, 100) == str(act.cpus)
    )


@pytest.mark.parametrize("back_s", [1, 3600])
def test_what_was_done_before_the_clock_went_back_is_taken_for_done(back_s: int) -> None:
    """Result and journal come with a date of before the step."""
    world = World()
    world.start(100, "w")
    daemon = Daemon(world, (workload("w"),))
    daemon.turn()
    assert len(world.acts) == 1
    daemon.fresh = True
    world.now -= back_s * SECOND
    for _ in range(3):
        daemon.turn()
    daemon.fresh = True
    daemon.turn()
    assert len(world.acts) == 1 and "pin.undone" not in daemon.kinds()
    assert daemon.turn().held[0].held


def test_each_author_is_corrected_once() -> None:
    world, daemon = pinned_world()
    for name in ("irqbalance", "kubelet"):
        changed(daemon, 100, by=name)
        world.masks[100, 100] = CpuSet.of([7])
        daemon.turn()
        daemon.turn()
        assert mask(world, 100) != "7"
    changed(daemon, 100, by="kubelet", by_pid=4713)
    world.masks[100, 100] = CpuSet.of([7])
    daemon.turn()
    daemon.turn()
    assert world.masks[100, 100] == CpuSet.of([7])
    assert [e.kind for e in daemon.events if "moved" in e.message][-1] == "pin.manual"


def test_a_persons_change_is_never_corrected() -> None:
    world, daemon = pinned_world()
    changed(daemon, 100, login=1000)
    world.masks[100, 100] = CpuSet.of([7])
    for _ in range(4):
        daemon.turn()
    assert world.masks[100, 100] == CpuSet.of([7]) and len(world.acts) == 1
    assert daemon.kinds().count("pin.manual") == 1


def test_a_drift_during_a_freeze_is_corrected_after_it() -> None:
    world, daemon = pinned_world()
    daemon.freeze_file = "/f"
    world.masks[100, 100] = CpuSet.of([7])
    for _ in range(3):
        daemon.turn()
    assert world.masks[100, 100] == CpuSet.of([7])
    assert daemon.kinds().count("pin.drift") == 1
    daemon.freeze_file = None
    daemon.turn()
    assert world.masks[100, 100] != CpuSet.of([7])
    daemon.turn()
    world.masks[100, 100] = CpuSet.of([7])
    daemon.turn()
    daemon.turn()
    assert world.masks[100, 100] == CpuSet.of([7]) and "pin.manual" in daemon.kinds()


def test_a_reused_pid_is_another_process() -> None:
    world, daemon = pinned_world()
    process = world.processes()[0]
    reused = dataclasses.replace(process, start_time=77, comm="other")
    seen = dataclasses.replace(
        daemon.see(), reading=Reading(at_ns=world.now + SECOND, processes=(reused,))
    )
    state, decisions = turn(daemon.state, seen, world.now + SECOND)
    assert decisions.queue == () and state.guard.pins == {}


def drifted(daemon: Daemon) -> Event:
    """The newest event about a move."""
    return [e for e in daemon.events if e.kind in ("pin.drift", "pin.manual")][-1]


def turns(daemon: Daemon, count: int = 3) -> None:
    for _ in range(count):
        daemon.turn()


def test_a_person_is_named_with_login_and_session() -> None:
    world, daemon = pinned_world()
    changed(daemon, 100, login=1000, unit="session-3.scope", mask="7")
    world.masks[100, 100] = CpuSet.of([7])
    turns(daemon)
    said = drifted(daemon)
    assert said.kind == "pin.manual"
    assert "by taskset (pid 4711, login of ada in session 3); a person's change" in said.message
    assert "place apply" in said.remedy


def test_a_service_is_the_same_author_under_another_pid() -> None:
    world, daemon = pinned_world()
    changed(daemon, 100, unit="noisy.service", mask="7")
    world.masks[100, 100] = CpuSet.of([7])
    turns(daemon)
    assert mask(world, 100) != "7"
    assert "by taskset (pid 4711, noisy.service); it is put right once" in drifted(daemon).message
    changed(daemon, 100, by="python3", by_pid=4712, unit="noisy.service", mask="7")
    world.masks[100, 100] = CpuSet.of([7])
    turns(daemon)
    assert world.masks[100, 100] == CpuSet.of([7])
    assert "python3 (pid 4712, noisy.service); the second change" in drifted(daemon).message


def by_role() -> tuple[World, Daemon, CpuSet, CpuSet]:
    """A workload of three threads whose main thread has a PU of its own: its sets."""
    world = World()
    world.start(100, "w", 3)
    asked = dataclasses.replace(workload("w", 3), roles=(Role(name="loop", cpus=1, main=True),))
    daemon = Daemon(world, (asked,))
    turns(daemon, 4)
    main, rest = world.masks[100, 100], world.masks[100, 101]
    assert len(main) == 1 and len(rest) == 2 and not main & rest
    return world, daemon, main, rest


def test_a_thread_is_guarded_in_its_role() -> None:
    world, daemon, main, rest = by_role()
    assert "pin.drift" not in daemon.kinds() and daemon.turn().held[0].held
    acts = len(world.acts)
    # Inside the workload's CPUs, and not where its role is.
    changed(daemon, 101, by="tuned", mask=str(main))
    world.masks[100, 101] = main
    turns(daemon)
    assert "1 of 3 threads of w (pid 100) were moved" in drifted(daemon).message
    assert "by tuned (pid 4711, user root); it is put right once" in drifted(daemon).message
    assert world.masks[100, 101] == rest and world.masks[100, 100] == main
    assert len(world.acts) == acts + 1
    # Born where its creator is, with a role of its own: nobody moved it.
    world.masks[100, 190] = main
    turns(daemon)
    assert world.masks[100, 190] == rest and daemon.kinds().count("pin.drift") == 1


def test_roles_are_guarded_by_the_next_daemon_too() -> None:
    world, daemon, main, rest = by_role()
    later = daemon.killed()
    turns(later)
    world.masks[100, 100] = CpuSet.of([7])
    turns(later)
    assert "1 of 3 threads of w (pid 100) were moved" in drifted(later).message
    assert world.masks[100, 100] == main and world.masks[100, 101] == rest
    world.masks[100, 101] = CpuSet.of([7])
    turns(later)
    assert drifted(later).kind == "pin.manual"


def test_what_somebody_else_asked_for_is_not_blamed_on_them() -> None:
    world, daemon = pinned_world()
    planned = world.masks[100, 100]
    # One asked for what we planned, another for something else than what is.
    changed(daemon, 100, by="numactl", mask=str(planned))
    changed(daemon, 100, by="tuned", mask="6")
    world.masks[100, 100] = CpuSet.of([7])
    turns(daemon)
    assert "by an unknown author" in drifted(daemon).message


def test_an_old_change_is_not_blamed_for_a_new_one() -> None:
    world, daemon = pinned_world()
    changed(daemon, 100, by="tuned", mask="7")
    world.masks[100, 100] = CpuSet.of([7])
    turns(daemon)
    assert "by tuned" in drifted(daemon).message and mask(world, 100) != "7"
    world.masks[100, 100] = CpuSet.of([7])
    turns(daemon)
    assert "by an unknown author; it is put right once" in drifted(daemon).message


def test_a_record_that_is_there_before_its_effect_waits_for_it() -> None:
    world, daemon = pinned_world()
    changed(daemon, 100, by="tuned", mask="7")
    world.now += 1
    changed_at = daemon.changes[0].at_ns
    # The reading of this turn was made at once after the record and sees the effect only later.
    world.now = changed_at - 2 * SECOND
    daemon.turn()
    world.masks[100, 100] = CpuSet.of([7])
    turns(daemon)
    assert "by tuned (pid 4711, user root)" in drifted(daemon).message


def test_a_programs_own_change_is_no_persons() -> None:
    world, daemon = pinned_world()
    changed(daemon, 100, by="python3", by_pid=100, login=1000, mask="7")
    world.masks[100, 100] = CpuSet.of([7])
    turns(daemon)
    assert "by its own program (python3); it is put right once" in drifted(daemon).message
    assert mask(world, 100) != "7"


@pytest.mark.parametrize(
    ("kind", "says"),
    [(Kind.CGROUP, "systemd (pid 1, user root), by its cgroup"),
     (Kind.CPUSET, "systemd (pid 1, user root), by writing a cpuset")],
)  # fmt: skip
def test_a_whole_process_is_moved_by_its_cgroup(kind: Kind, says: str) -> None:
    world, daemon = pinned_world(3)
    changed(daemon, 0, by="systemd", by_pid=1, kind=kind)
    for tid in (100, 101, 102):
        world.masks[100, tid] = CpuSet.of([6])
    turns(daemon)
    assert "3 of 3 threads of w (pid 100) were moved from" in drifted(daemon).message
    assert says in drifted(daemon).message and mask(world, 100) != "6"


def test_changes_that_were_lost_are_said() -> None:
    world, daemon = pinned_world()
    daemon.lost = 17
    world.masks[100, 100] = CpuSet.of([7])
    turns(daemon)
    (lost,) = [e for e in daemon.events if e.kind == "guard.lost"]
    assert "17 changes of masks" in lost.message
    assert "by an unknown author" in drifted(daemon).message


def test_a_storm_of_changes_keeps_a_bounded_memory_and_few_events() -> None:
    world, daemon = pinned_world(threads=5000)
    for turn_ in range(6):
        for pid in range(3):
            changed(daemon, *range(100, 5100), by="storm", by_pid=5000 + 10 * turn_ + pid, mask="7")
        world.masks |= {(100, tid): CpuSet.of([7]) for tid in range(100, 5100)}
        daemon.turn()
        assert len(daemon.state.authors) <= 4096
        assert all(len(asked) <= 2 for asked in daemon.state.authors.values())
    # Corrected once, reported once, however often it is done.
    assert daemon.kinds().count("pin.drift") == 1 and daemon.kinds().count("pin.manual") == 1
    assert len(world.acts) == 2
    del world.names[100]
    daemon.turn()
    assert not daemon.state.authors


def test_a_freeze_stops_a_correction_that_an_event_asked_for() -> None:
    world, daemon = pinned_world()
    changed(daemon, 100, unit="noisy.service", mask="7")
    world.masks[100, 100] = CpuSet.of([7])
    assert daemon.turn().ask_journal
    daemon.freeze_file = "/f"
    for _ in range(3):
        assert daemon.turn().queue == ()
    assert "noisy.service); not corrected: frozen" in drifted(daemon).message
    assert world.masks[100, 100] == CpuSet.of([7])
    daemon.freeze_file = None
    daemon.turn()
    assert world.masks[100, 100] != CpuSet.of([7])


def test_the_kernels_side_knows_where_threads_belong() -> None:
    world, daemon = pinned_world()
    decisions = daemon.turn()
    assert decisions.masks == {100: world.masks[100, 100]}
    changed(daemon, 100, login=1000)
    world.masks[100, 100] = CpuSet.of([7])
    turns(daemon)
    # What is left alone is watched for its threads, not for where they go.
    assert daemon.turn().masks == {100: None}


# Restart and adoption.


def test_a_restarted_daemon_adopts_and_changes_nothing() -> None:
    world, daemon = pinned_world()
    before = dict(world.masks)
    for _ in range(20):
        daemon = daemon.killed()
        assert daemon.turn().queue == ()
        assert daemon.kinds() == ["pin.adopted"]
    assert world.masks == before
    (held,) = daemon.turn().held
    assert held.held and str(held.cpus_before) == "0-7"


def test_a_drift_while_no_daemon_ran_is_a_drift() -> None:
    world, daemon = pinned_world()
    world.masks[100, 100] = CpuSet.of([7])
    daemon = daemon.killed()
    daemon.turn()
    daemon.turn()
    assert "pin.drift" in daemon.kinds() and world.masks[100, 100] != CpuSet.of([7])


def test_a_restart_does_not_forget_who_was_corrected() -> None:
    world, daemon = pinned_world()
    for count in (1, 0):
        changed(daemon, 100, mask="7")
        world.masks[100, 100] = CpuSet.of([7])
        turns(daemon)
        assert daemon.kinds().count("pin.corrected") == count
        daemon = daemon.killed()
        turns(daemon)
    assert mask(world, 100) != mask(world, 101) and len(world.acts) == 2


def test_a_restart_does_not_forget_what_a_person_undid() -> None:
    world, daemon = pinned_world()
    world.journal.clear()
    for tid in (100, 101):
        world.masks[100, tid] = CpuSet.of(range(8))
    world.now += SECOND
    daemon.fresh = True
    turns(daemon)
    assert "pin.undone" in daemon.kinds()
    later = daemon.killed()
    turns(later)
    assert len(world.acts) == 1 and mask(world, 100) == "0-7"


def test_a_restart_does_not_forget_what_is_left_alone() -> None:
    """Neither a person's change nor a second one by the same author is corrected by a new daemon;
    place apply by a person ends it."""
    world, daemon = pinned_world()
    changed(daemon, 100, login=1000)
    world.masks[100, 100] = CpuSet.of([7])
    daemon.turn()
    daemon.turn()
    for _ in range(3):
        daemon = daemon.killed()
        # Killed again before it has an actor, whose journal it needs.
        daemon.actor = "not there"
        daemon.turn()
        daemon = daemon.killed()
        daemon.turn()
        daemon.turn()
        assert world.masks[100, 100] == CpuSet.of([7]) and len(world.acts) == 1
    action = world.acts[0]
    daemon.world.now += SECOND
    world.perform(action)
    daemon.fresh = True
    daemon.turn()
    assert "pin.applied" in daemon.kinds()
    world.masks[100, 100] = CpuSet.of([7])
    daemon.turn()
    daemon.turn()
    assert world.masks[100, 100] != CpuSet.of([7])


def test_an_undo_by_a_person_is_respected() -> None:
    world, daemon = pinned_world()
    world.journal.clear()
    for key in world.masks:
        world.masks[key] = CpuSet.of(range(8))
    for _ in range(4):
        daemon.turn()
    assert len(world.acts) == 1 and "pin.undone" in daemon.kinds()
    assert mask(world, 100) == "0-7"


def test_what_a_person_left_and_then_undid_is_said_once() -> None:
    world, daemon = pinned_world()
    changed(daemon, 100, login=1000, mask="7")
    world.masks[100, 100] = CpuSet.of([7])
    turns(daemon)
    world.journal.clear()
    daemon.fresh = True
    turns(daemon)
    assert "pin.manual" in daemon.kinds() and "pin.undone" not in daemon.kinds()
    assert daemon.turn().held[0].guard.startswith("manual: changed by a person")


@settings(deadline=None)
@given(
    steps=st.lists(st.sampled_from(["turn", "kill", "act", "new"]), min_size=1, max_size=30),
    count=st.integers(1, 3),
)
def test_interrupted_anywhere_it_ends_where_it_belongs(steps: list[str], count: int) -> None:
    """Kills, half-performed queues and new threads in any order: at the end every thread is inside
    its place, each process's first mask is known, and nobody drifted."""
    world = World()
    for i in range(count):
        world.start(100 * (i + 1), f"w{i}", 1 + i)
    daemon = Daemon(world, tuple(workload(f"w{i}") for i in range(count)))
    tid = 900
    all_events: list[Event] = []
    for step in steps:
        match step:
            case "turn":
                daemon.turn()
            case "act":
                daemon.turn(acts=1)
            case "kill":
                all_events += daemon.events
                daemon = daemon.killed()
            case "new":
                tid += 1
                # Born of a pinned or an unpinned thread: with its mask.
                world.masks[100, tid] = world.masks[100, 100]
    for _ in range(3):
        last = daemon.turn()
    all_events += daemon.events
    assert last.queue == ()
    assert all(h.held for h in last.held) and len(last.held) == count
    planned = [h.cpus_planned.ids for h in last.held]
    assert sum(map(len, planned)) == len(frozenset().union(*planned))
    assert {str(p.before) for p in world.journal.values()} == {"0-7"}
    assert not [e for e in all_events if e.kind in ("pin.drift", "pin.manual", "pin.undone")]


# Failures.


def test_a_failing_action_is_tried_a_few_times_ever_later() -> None:
    world = World(fail="EPERM")
    world.start(100, "w")
    daemon = Daemon(world, (workload("w"),))
    tried: list[int] = []
    for _ in range(60):
        before = len(world.acts)
        daemon.turn()
        if len(world.acts) > before:
            tried.append(world.now)
    assert len(tried) == MAX_TRIES
    gaps = [b - a for a, b in itertools.pairwise(tried)]
    assert gaps == sorted(gaps) and gaps[0] >= RETRY_NS
    failures = [e for e in daemon.events if e.kind == "pin.failed"]
    assert "EPERM" in failures[0].message
    world.fail = None
    daemon.workloads = (dataclasses.replace(workload("w"), cpu_list=CpuSet.of([7]), cpus=1),)
    daemon.turn()
    assert mask(world, 100) == "7"


def test_a_process_that_ends_while_it_is_pinned() -> None:
    world = World()
    world.start(100, "w")
    daemon = Daemon(world, (workload("w"),))
    decisions = daemon.turn(acts=0)
    del world.names[100]
    daemon.done = [world.perform(decisions.queue[0].action)]
    assert daemon.turn().queue == ()
    assert "pin.gone" in daemon.kinds() and daemon.state.failures == {}


def test_hundreds_that_end_before_they_are_pinned_are_one_event() -> None:
    """Of each workload, counted within a minute, with what its owner can do."""
    world = World()
    for pid in range(100, 160):
        world.start(pid, "w")
    daemon = Daemon(world, (workload("w"),))
    acts = [w.action for w in daemon.turn(acts=0).queue]
    assert len(acts) == 60
    for pid in range(100, 160):
        del world.names[pid]
    daemon.done = [world.perform(a) for a in acts]
    daemon.turn(acts=0)
    (gone,) = [e for e in daemon.events if e.kind == "pin.gone"]
    assert gone.subject == "w" and "exec --workload w" in gone.remedy
    world.now += 61 * SECOND
    daemon.turn(acts=0)
    again = [e for e in daemon.events if e.kind == "pin.gone"][1:]
    assert [e.subject for e in again] == ["w"] and "(59 times within a minute)" in again[0].message


# Events.


def finding(verdict: Verdict, check: str = "a.b") -> Finding:
    return Finding(id=check, verdict=verdict, subject="cpu 1", message="m", remedy="r")


def test_findings_are_raised_changed_and_cleared_once() -> None:
    daemon = Daemon(World(), ())
    for found in ((), (finding(Verdict.WARN),), (finding(Verdict.WARN),),
                  (finding(Verdict.FAIL),), (finding(Verdict.OK),)):  # fmt: skip
        daemon.findings = found
        daemon.snapshot = dataclasses.replace(MACHINE)
        daemon.world.now += 100 * SECOND
        daemon.turn()
    kinds = daemon.kinds()
    assert kinds == ["finding.raised", "finding.changed", "finding.cleared"]
    assert daemon.events[0].remedy == "r"
    assert daemon.state.verdict is Verdict.OK


def loss(lost: int) -> FeedStatus:
    return FeedStatus(
        feed="itch",
        source="socket",
        pid=1,
        packets=1,
        bytes=1,
        messages=1,
        duplicates=0,
        rejected=0,
        loss=FeedLoss(nic=None, kernel=lost, backend=0, decoder=0, wire_gap=0),
        last_message_age_ns=None,
    )


def test_losses_are_folded_into_one_event_a_minute() -> None:
    daemon = Daemon(World(), ())
    events: list[Event] = []
    for i in range(91):
        daemon.world.now += 2 * SECOND
        seen = dataclasses.replace(daemon.see(), feeds=(loss(i),))
        daemon.state, decisions = turn(daemon.state, seen, daemon.world.now)
        events += decisions.events
    assert [e.kind for e in events] == ["feed.loss"] * 3 + ["feed.loss"] * (len(events) - 3)
    assert 3 <= len(events) <= 4
    assert events[0].remedy == "nodeagentctl feed status"
    assert "times within a minute" in events[1].message
    restarted = dataclasses.replace(daemon.see(), feeds=(loss(0),))
    daemon.state, decisions = turn(daemon.state, restarted, daemon.world.now + 1)
    assert decisions.events == ()


def test_links_that_come_and_go() -> None:
    daemon = Daemon(World(), ())

    def with_link(connected: bool) -> list[str]:
        link = ControllerLink(
            configured=True,
            connected=connected,
            address="a:1",
            reports=0,
            unacknowledged=0,
            dropped=0,
            reason="" if connected else "refused",
        )
        probe = ProbeStatus(available=connected, reason=None, capabilities=())
        daemon.world.now += 100 * SECOND
        seen = dataclasses.replace(daemon.see(), controller=link, probe=probe)
        daemon.state, decisions = turn(daemon.state, seen, daemon.world.now)
        return [e.kind for e in decisions.events]

    assert with_link(True) == []
    assert with_link(False) == ["controller.down", "probe.down"]
    assert with_link(False) == []
    assert with_link(True) == ["controller.up", "probe.up"]


# The pace.


@given(st.integers(0, 10**11), st.integers(10**8, 10**11), st.integers(0, 10**10), st.floats(0, 1))
def test_early_turns_take_at_most_a_tenth_of_a_cpu(
    last: int, interval: int, took: int, part: float
) -> None:
    usual = int(took * part)
    due = due_ns(last, interval, True, took, usual)
    regular = due_ns(last, interval, False, took, usual)
    assert last + MIN_GAP_NS <= due <= regular
    assert due == regular or due - last >= 10 * took
    # One dear turn delays nobody; many of them take at most a twentieth of a CPU.
    assert due_ns(last, interval, False, took) == last + interval
    assert regular - last >= min(20 * usual, 20 * SECOND)
    assert regular - last in (interval, 20 * usual, 20 * SECOND)


def test_endlessly_many_authors_are_not_fought() -> None:
    world, daemon = pinned_world()
    for number in range(60):
        changed(daemon, 100, by=f"storm{number}", mask="7")
        world.masks[100, 100] = CpuSet.of([7])
        turns(daemon)
    assert len(world.acts) == 1 + 32 and world.masks[100, 100] == CpuSet.of([7])
    assert "storm32 (pid 4711, user root); 32 authors were corrected" in drifted(daemon).message
    assert daemon.kinds().count("pin.drift") == 32 and daemon.kinds().count("pin.manual") == 1


def test_early_turns_are_at_most_twenty_a_second() -> None:
    assert due_ns(0, 2 * SECOND, asked=False) == 2 * SECOND
    assert due_ns(0, 2 * SECOND, asked=True) == MIN_GAP_NS == SECOND // 20
    assert due_ns(5, 1000, asked=True) == 1005


@given(st.data())
def test_a_turn_depends_on_its_arguments_alone(data: st.DataObject) -> None:
    """The same arguments give the same answer, and the state given is not changed."""
    world = World()
    world.start(100, "w", data.draw(st.integers(0, 3)), data.draw(st.sampled_from(["0-7", "1"])))
    daemon = Daemon(world, (workload("w", data.draw(st.integers(1, 9))),))
    daemon.turn(acts=data.draw(st.integers(0, 1)))
    seen = daemon.see()
    first, second = turn(daemon.state, seen, world.now), turn(daemon.state, seen, world.now)
    assert first == second


# Before and after.


class Measured:
    """A daemon whose probe measures waits of one length, ten seconds a turn."""

    def __init__(self, rollback: bool) -> None:
        self.world = World()
        self.world.start(100, "w")
        asked = dataclasses.replace(workload("w"), rollback=rollback)
        self.daemon = Daemon(self.world, (asked,), Consents(allow=THREADS))
        self.counts = [0] * BUCKETS
        self.ran = self.last = 0
        self.undone: list[str] = []

    def go(self, minutes: int, wait_ns: int) -> None:
        self.last = wait_ns
        self.steps(minutes * 6)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.world.now += 8 * SECOND
            self.counts[bucket_of(self.last)] += 1000
            self.ran += 5 * SECOND
            delay = ThreadDelay(
                pid=100,
                runq=Histogram(counts=tuple(self.counts)),
                run_ns_by_cpu=((1, self.ran),),
            )
            self.daemon.probe = ProbeStatus(
                available=True, reason=None, capabilities=(), delays=(delay,)
            )
            decisions = self.daemon.turn()
            self.undone += [u.workload for u in decisions.undo]
            if decisions.undo:
                # As the actor does.
                self.world.journal.clear()
                for tid in (100, 101):
                    self.world.masks[100, tid] = CpuSet.of(range(8))

    def pin(self) -> None:
        """The act is at the end of a turn."""
        self.daemon.consents = AUTO
        self.steps(1)

    def said(self, kind: str) -> list[str]:
        return [e.message for e in self.daemon.events if e.kind == kind]


def test_run_time_is_counted_anew_when_the_programs_are() -> None:
    case = Measured(rollback=False)
    case.pin()
    case.steps(3)
    world, daemon = case.world, case.daemon

    def inside(*ran: tuple[int, int]) -> float | None:
        world.now += 8 * SECOND
        (delay,) = daemon.probe.delays if daemon.probe is not None else ()
        daemon.probe = ProbeStatus(
            available=True,
            reason=None,
            capabilities=(),
            delays=(dataclasses.replace(delay, run_ns_by_cpu=ran),),
        )
        return daemon.turn().held[0].ran_inside

    case.ran = 0
    assert inside((0, 5 * SECOND)) is None, "less than before on CPU 1: they were attached anew"
    assert inside((0, 6 * SECOND), (1, 3 * SECOND)) == 0.75


def test_a_pin_that_hurts_is_reported_and_kept() -> None:
    case = Measured(rollback=False)
    case.go(6, 20_000)
    case.pin()
    case.go(7, 900_000)
    (said,) = case.said("pin.compared")
    assert "w (pid 100) before and after its pin: worse: run-queue delay p99 was 18 us" in said
    assert {e.severity for e in case.daemon.events if e.kind == "pin.compared"} == {
        Severity.WARNING
    }
    assert case.undone == [] and case.said("pin.rollback") == []
    (held,) = case.daemon.turn().held
    assert held.held and held.compared.startswith("worse: ")


def test_a_roll_back_that_was_asked_for_is_done_once_and_stays() -> None:
    case = Measured(rollback=True)
    case.go(6, 20_000)
    case.pin()
    case.go(8, 900_000)
    assert case.undone == ["w"] and len(case.world.acts) == 1
    # Before the act: it is not claimed to be made.
    assert (
        "w is to be put back where it was, as it asked for (rollback)"
        in (case.said("pin.rollback")[0])
    )
    case.go(20, 20_000)
    assert case.undone == ["w"] and len(case.world.acts) == 1
    assert case.said("pin.undone") == [] and case.said("pin.drift") == []
    (held,) = case.daemon.turn().held
    assert not held.held and held.guard.startswith("manual: rolled back: run-queue delay")
    later = case.daemon.killed()
    for _ in range(3):
        assert later.turn().queue == ()


@pytest.mark.parametrize("why", ["frozen", "no consent", "by a person"])
def test_a_roll_back_needs_what_every_act_needs(why: str) -> None:
    case = Measured(rollback=True)
    case.go(6, 20_000)
    case.pin()
    case.go(4, 900_000)
    if why == "frozen":
        case.daemon.freeze_file = "/f"
    elif why == "no consent":
        case.daemon.consents = Consents(allow=THREADS)
    else:
        changed(case.daemon, 100, login=1000)
        case.world.masks[100, 100] = CpuSet.of([7])
    case.go(4, 900_000)
    assert case.undone == []
    assert "is worse off and is not put back" in case.said("pin.rollback")[0]
    # Later the figures are old: nothing is done on them.
    case.daemon.freeze_file, case.daemon.consents = None, AUTO
    case.go(10, 900_000)
    assert case.undone == []


def test_a_pin_that_helps_is_never_rolled_back() -> None:
    case = Measured(rollback=True)
    case.go(6, 900_000)
    case.pin()
    case.go(8, 20_000)
    assert case.undone == [] and "better" in case.said("pin.compared")[0]
    assert case.said("pin.rollback") == []


def test_a_pin_that_changes_nothing_is_never_rolled_back() -> None:
    case = Measured(rollback=True)
    case.go(6, 20_000)
    case.pin()
    case.go(8, 20_000)
    assert case.undone == [] and ": same: " in case.said("pin.compared")[0]
    assert case.said("pin.rollback") == []
    assert {e.severity for e in case.daemon.events if e.kind == "pin.compared"} == {Severity.INFO}


@pytest.mark.parametrize("name", ["theirs", "rank"], ids=["another name", "the same name"])
def test_pus_of_another_file_are_not_given_again(name: str) -> None:
    """A person pinned a process by a file that the daemon does not have."""
    world = World()
    world.start(100, "rank")
    world.start(200, "stranger")
    daemon = Daemon(world, (workload("rank"),))
    daemon.turn(0)
    (mine,) = daemon.state.placement.placed
    world.masks[200, 200] = world.masks[200, 201] = mine.cpus
    world.journal[200] = JournalPin(
        workload=name, pid=200, start_time=2000, after=mine.cpus, before=CpuSet.parse("0-7"),
        at_ns=world.now,
    )  # fmt: skip
    daemon.fresh = True
    decisions = daemon.turn()
    assert decisions.queue == () and daemon.state.placement.placed == ()
    (refused,) = daemon.state.placement.refused
    assert "process 200 of exclusive workload" in refused.reason
    assert "place.refused" in daemon.kinds()
    # Its process ended: they are free again.
    del world.names[200], world.journal[200]
    for tid in (200, 201):
        del world.masks[200, tid]
    daemon.turn()
    assert daemon.state.placement.of("rank") is not None
    assert {str(m) for m in world.masks.values()} == {str(mine.cpus)}
