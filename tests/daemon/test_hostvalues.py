"""The turn and the host's values: consent, drift by irqbalance, undo by a person, restarts."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import pytest

from nodeagent.daemon.hoststate import JournalValue
from nodeagent.daemon.state import (
    MAX_TRIES,
    RETRY_NS,
    Consents,
    Decisions,
    Done,
    Journal,
    Reading,
    Seen,
    State,
    to_keep,
)
from nodeagent.daemon.turn import turn
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.event import Event
from nodeagent.model.placement import (
    ActionResult,
    Consent,
    Knob,
    Match,
    Outcome,
    SetValue,
    Workload,
)
from nodeagent.model.snapshot import Snapshot
from tests.place.test_host import TWO_NODES, applied, host, irq, with_texts

SECOND = 1_000_000_000
IRQ = frozenset({Consent.IRQ, Consent.HOST})
AUTO = Consents(allow=IRQ, auto=IRQ)
WORK = Workload(
    name="w", kind="custom", match=Match(comm="w"), cpus=2, cpu_list=CpuSet.parse("9-10")
)


def machine() -> Snapshot:
    """An interrupt and the kernel's workers stand on CPUs that are to be exclusive."""
    return with_texts(
        host(TWO_NODES, irq(60, "ahci", "9", bdf=None), irq(61, "xhci", "0", bdf=None)),
        **{"sys/devices/virtual/workqueue/cpumask": "ffff", "run/irqbalance": "1"},
    )


@dataclass
class World:
    """A host with an actor, its journal and a clock; the daemon's memory may be lost."""

    snapshot: Snapshot = field(default_factory=machine)
    journal: dict[tuple[str, str], JournalValue] = field(default_factory=dict)
    now: int = SECOND
    state: State = field(default_factory=State)
    done: list[Done] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    acts: list[SetValue] = field(default_factory=list)
    consents: Consents = AUTO
    fresh: bool = True
    fail: str | None = None
    freeze_file: str | None = None
    gone: bool = False

    def turn(self, *, read: bool = True) -> Decisions:
        """One turn, and what it queues; `read`: with a snapshot of now."""
        self.now += 2 * SECOND
        if read:
            self.snapshot = dataclasses.replace(self.snapshot, taken_ns=self.now - SECOND)
        journal = Journal(at_ns=self.now, pins=(), values=tuple(self.journal.values()))
        seen = Seen(
            judge=lambda snapshot, now_ns: (),
            consents=self.consents,
            workloads=(WORK,),
            snapshot=self.snapshot,
            reading=Reading(at_ns=self.now, processes=()),
            journal=journal if self.fresh else None,
            done=tuple(self.done),
            freeze_file=self.freeze_file,
        )
        self.done, self.fresh = [], False
        self.state, decisions = turn(self.state, seen, self.now)
        self.fresh = decisions.ask_journal
        self.events += decisions.events
        for wanted in decisions.queue:
            assert isinstance(wanted.action, SetValue) and wanted.why
            self.perform(wanted.action)
        return decisions

    def perform(self, action: SetValue) -> None:
        self.now += 1_000_000
        self.acts.append(action)
        result = ActionResult(outcome=Outcome.DONE, message="set", read_back=action.value,
                              journal_id=len(self.acts))  # fmt: skip
        if self.fail is not None:
            outcome = Outcome.GONE if self.gone else Outcome.REVERTED
            result = ActionResult(outcome=outcome, message=self.fail)
        else:
            self.snapshot = applied(self.snapshot, (action,))
            self.journal[action.knob, action.subject] = JournalValue(
                knob=action.knob, subject=action.subject, value=action.value, at_ns=self.now
            )
        self.done.append(Done(action=action, result=result, at_ns=self.now))

    def somebody_sets(self, cpus: str, number: int = 60) -> None:
        """irqbalance, or anybody."""
        act = SetValue(workload="", knob=Knob.IRQ_AFFINITY, subject=str(number), value=cpus,
                       before="")  # fmt: skip
        self.now += SECOND
        self.snapshot = applied(self.snapshot, (act,))

    def kinds(self) -> list[str]:
        return [e.kind for e in self.events if e.kind.startswith("pin.")]

    def mask(self) -> str:
        return str(self.snapshot.irqs[0].affinity)


def acted(world: World) -> list[str]:
    return [f"{a.knob} {a.subject}" for a in world.acts]


def test_what_the_placement_asks_is_set_once_irqbalance_told_first() -> None:
    world = World()
    world.turn()
    assert acted(world) == ["irqbalance 60", "irq-affinity 60", "workqueue *"]
    assert world.mask() == "0,8"
    for read in (False, True, False, True):
        assert world.turn(read=read).queue == ()
    assert len(world.acts) == 3 and world.kinds() == ["pin.done"] * 3


@pytest.mark.parametrize(
    ("consents", "told"),
    [
        (Consents(), None),
        (Consents(allow=frozenset({Consent.THREADS}), auto=frozenset({Consent.THREADS})), None),
        (Consents(allow=IRQ), "[pin] auto does not name irq"),
    ],
)
def test_without_consent_nothing_is_set(consents: Consents, told: str | None) -> None:
    world = World(consents=consents)
    for _ in range(3):
        assert world.turn().queue == ()
    waiting = [e for e in world.events if e.kind == "pin.waiting"]
    if told is None:
        assert waiting == []
    else:
        assert [e.subject for e in waiting] == ["class irq", "class host"], "said once"
        assert told in waiting[0].message


def test_a_freeze_stops_everything_within_one_turn() -> None:
    world = World(freeze_file="/run/nodeagent/freeze")
    assert world.turn().queue == () and world.turn().queue == ()
    world.freeze_file = None
    assert len(world.turn().queue) == 3


def test_set_back_it_is_corrected_once_then_reported() -> None:
    world = World()
    world.turn()
    world.somebody_sets("10")
    world.turn()
    world.turn()
    assert world.mask() == "0,8" and acted(world)[3:] == ["irqbalance 60", "irq-affinity 60"]
    (drift,) = [e for e in world.events if e.kind == "pin.drift"]
    assert "irq-affinity 60 was set from 0,8 to 10 by an unknown author; it is put right once" in (
        drift.message
    )
    world.turn()
    (put,) = [e for e in world.events if e.kind == "pin.corrected"]
    assert put.subject == "irq-affinity 60"
    assert put.message.endswith("put right once after an unknown author")
    assert world.events.index(put) > world.events.index(drift)
    world.somebody_sets("9")
    for _ in range(4):
        world.turn()
    assert world.mask() == "9" and len(world.acts) == 5
    (manual,) = [e for e in world.events if e.kind == "pin.manual"]
    assert "second change" in manual.message and "place apply" in manual.message
    # Neither does the next daemon.
    world.state = State(remembered=to_keep(world.state))
    world.fresh = True
    for _ in range(3):
        assert world.turn().queue == ()
    # What a person applies is guarded again.
    world.perform(SetValue(workload="", knob=Knob.IRQ_AFFINITY, subject="60", value="0",
                           before="9"))  # fmt: skip
    world.done, world.fresh = [], True
    world.turn()
    assert world.mask() == "0" and "pin.applied" in world.kinds()


def test_a_change_within_the_plan_is_nobodys_concern() -> None:
    world = World()
    world.turn()
    world.somebody_sets("11")
    for _ in range(3):
        assert world.turn().queue == ()
    assert "pin.drift" not in world.kinds()


def test_put_back_by_a_person_it_stays() -> None:
    world = World()
    world.turn()
    world.turn()
    world.somebody_sets("9")
    del world.journal["irq-affinity", "60"]
    for _ in range(4):
        world.turn()
    assert world.mask() == "9" and len(world.acts) == 3
    assert world.kinds()[-1] == "pin.undone"


def test_a_restart_adopts_and_sets_nothing() -> None:
    world = World()
    world.turn()
    world.turn()
    world.state, world.fresh = State(), True
    for _ in range(3):
        assert world.turn().queue == ()
    world.somebody_sets("9")
    for _ in range(3):
        world.turn()
    assert world.mask() == "0,8" and "pin.drift" in world.kinds()


def test_what_fails_is_tried_a_few_times_and_told() -> None:
    world = World(fail="IRQ 60: CPU 8 has no interrupt vector left")
    for _ in range(20):
        world.turn()
        world.now += RETRY_NS * 2**4
    assert acted(world).count("irq-affinity 60") == MAX_TRIES
    assert acted(world).count("workqueue *") == MAX_TRIES
    last = [e for e in world.events if e.kind == "pin.reverted"][-1]
    assert "not tried again until something changes" in last.message


def test_what_is_gone_does_not_fill_the_log() -> None:
    world = World(fail="irqbalance does not run", gone=True)
    for _ in range(10):
        world.turn()
    assert len(world.acts) == 3 and world.kinds().count("pin.gone") == 3
