"""What the turn works on: what was seen, what is remembered, what was decided. Values only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nodeagent.daemon import guard as guarding
from nodeagent.daemon.authors import Kept
from nodeagent.daemon.fold import Fold
from nodeagent.daemon.guard import Guard, Memory, ProcessKey
from nodeagent.daemon.hoststate import NOTHING as NO_HOST_PLAN
from nodeagent.daemon.hoststate import JournalValue, Key, Planned, Set
from nodeagent.daemon.hoststate import memory as values_memory
from nodeagent.daemon.links import Links
from nodeagent.model.actions import JournalEntry
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.event import Event
from nodeagent.model.feed import FeedStatus, RingStatus
from nodeagent.model.finding import Finding, Verdict
from nodeagent.model.freeze import FreezeWindow
from nodeagent.model.memory import MemorySeen
from nodeagent.model.notice import Change
from nodeagent.model.placement import (
    HOLDING,
    Action,
    ActionResult,
    Consent,
    Held,
    Knob,
    MigrateMemory,
    Placement,
    ProcessState,
    SetValue,
    Target,
    Workload,
)
from nodeagent.model.probe import ProbeStatus
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.status import ControllerLink
from nodeagent.place.beforeafter import Tracks
from nodeagent.place.holders import Facts

MIN_GAP_NS = 50_000_000
"""Turns are at least this far apart: at most 20 a second, whatever asks for an early one."""

EARLY_SHARE = 10
"""An early turn comes no sooner than so many times what the last one took."""

REGULAR_SHARE = 20
"""A regular turn comes no sooner than so many times what turns took of late: a workload with ten
thousand threads costs a twentieth of one CPU, and is looked at less often."""

SLOWEST_NS = 20_000_000_000
"""It comes after this at the latest: systemd's watchdog waits for a minute."""

RETRY_NS = 5_000_000_000
"""A failed action is tried again after this time, doubled for each failure."""

MAX_TRIES = 4
"""An action that failed this often is left until its target or plan changes."""

CONNECTING = "not connected yet"
"""Why there is no actor before the first try: no news."""

NOTHING = Placement(placed=(), refused=(), housekeeping=CpuSet())


Judge = Callable[[Snapshot, int], tuple[Finding, ...]]
"""check.judge, bound to its policy: (snapshot, now in ns) -> findings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consents:
    """What the configuration allows."""

    allow: frozenset[Consent] = frozenset()
    auto: frozenset[Consent] = frozenset()
    freeze: tuple[FreezeWindow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The processes as they were at `at_ns`."""

    at_ns: int
    processes: tuple[ProcessState, ...]
    memory: MemorySeen | None = None
    """None: not looked at anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalPin:
    """A pin in force by the actor's journal: the mask after and before."""

    workload: str
    pid: int
    start_time: int
    after: CpuSet
    before: CpuSet
    at_ns: int
    """When the newest of its actions was made, CLOCK_REALTIME."""
    id: int = 0
    """Its number in the journal, which no clock sets back; 0: not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalHold:
    """A unit or container that the journal says is set, for all processes of its workload."""

    workload: str
    cpus: CpuSet
    before: CpuSet
    """Union of its threads' masks then."""
    at_ns: int
    id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """The journal as it was at `at_ns`."""

    at_ns: int
    pins: tuple[JournalPin, ...]
    values: tuple[JournalValue, ...] = ()
    """Of each value of the host the newest."""
    holds: tuple[JournalHold, ...] = ()
    """Units and containers that are set."""
    entries: tuple[JournalEntry, ...] = ()
    """All that gives CPUs to somebody, whoever's workload it is."""
    newest: int | None = None
    """Largest number of an entry in it, 0 for none; None: not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """An action and what became of it, at `at_ns`."""

    action: Action
    result: ActionResult
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything the loop saw since the last turn."""

    judge: Judge
    consents: Consents = Consents()
    workloads: tuple[Workload, ...] = ()
    housekeeping: CpuSet | None = None
    snapshot: Snapshot | None = None
    reading: Reading | None = None
    """None: no fresh reading since the last turn."""
    journal: Journal | None = None
    """None: not read since the last turn."""
    done: tuple[Done, ...] = ()
    busy: Action | None = None
    """The action the actor is at."""
    freeze_file: str | None = None
    """Its path, when it exists."""
    actor: str | None = None
    """Why there is no actor; None: there is."""
    feeds: tuple[FeedStatus, ...] = ()
    rings: tuple[RingStatus, ...] = ()
    probe: ProbeStatus | None = None
    """None: not enabled."""
    controller: ControllerLink | None = None
    changes: tuple[Change, ...] = ()
    """Who changed a mask since the last turn, where the kernel shows it."""
    lost_changes: int = 0
    """Further ones that nobody can name: more came than the kernel's side could keep."""
    troubles: Mapping[str, str | None] = field(default_factory=dict)
    """Part of ours -> why it does not work; None: it does."""
    notices: tuple[Event, ...] = ()
    """What the loop itself has to say."""
    facts: Facts | None = None
    """What the host offers to hold processes with; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An action that did not work: how often, and when it is tried again."""

    tries: int
    retry_ns: int
    message: str


Identity = tuple[int, int, str, str, str | None]
"""(pid, start time, title, parent's title, container's name): what a match looks at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the turn remembers."""

    turns: int = 0
    now_ns: int = 0
    """Of the last turn."""
    snapshot: Snapshot | None = None
    findings: tuple[Finding, ...] = ()
    verdict: Verdict = Verdict.UNKNOWN
    workloads: tuple[Workload, ...] = ()
    housekeeping: CpuSet | None = None
    processes: tuple[ProcessState, ...] = ()
    memory: MemorySeen = field(default_factory=MemorySeen)
    """Where memory lay when it was last looked at."""
    read_ns: int = 0
    claimed: Mapping[str, tuple[Target, ...]] = field(default_factory=dict)
    placement: Placement = NOTHING
    planned_for: frozenset[Identity] = frozenset()
    """(pid, start time, title) of the processes the plan was made for."""
    planned_on: Snapshot | None = None
    """The machine the plan was made on."""
    entries: tuple[JournalEntry, ...] = ()
    """What gives CPUs to somebody, as the journal last said."""
    planned_by: tuple[JournalEntry, ...] = ()
    """`entries` when it was last asked whose CPUs are another file's."""
    elsewhere: tuple[JournalEntry, ...] = ()
    """Of them, those of workloads that are not this daemon's, which the plan was made beside."""
    guard: Guard = field(default_factory=Guard)
    journal_ns: int = 0
    """When the journal was read that the guard has adopted."""
    journal_id: int | None = None
    """Largest number of an act that is known: of the journal, or of one of ours since."""
    remembered: tuple[Memory, ...] = ()
    """What an earlier daemon of this boot had written down."""
    authors: Kept = field(default_factory=dict)
    tracks: Tracks = field(default_factory=Tracks)
    failures: Mapping[tuple[ProcessKey, str], Failure] = field(default_factory=dict)
    waiting: Mapping[str, str] = field(default_factory=dict)
    """Workload -> why its actions are not performed now."""
    host: Planned = NO_HOST_PLAN
    """What the placement asks of the host."""
    values: Mapping[Key, Set] = field(default_factory=dict)
    """The host's values that we set."""
    host_waiting: Mapping[str, str] = field(default_factory=dict)
    """Class of consent -> why values of it are not set now."""
    frozen: str | None = None
    fold: Fold = field(default_factory=Fold)
    links: Links = field(default_factory=Links)
    run_base: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    """pid -> (CPU -> ns run there) when its pin was known to hold."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """An action, and the reason that goes into its audit record."""

    action: Action
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """A workload whose pins are undone, and the reason for its audit record."""

    workload: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """What the turn decided."""

    queue: tuple[Wanted, ...]
    """To be performed in this order; replaces the queue before."""
    events: tuple[Event, ...]
    sentence: str
    held: tuple[Held, ...]
    watch: frozenset[int]
    """Pids whose threads the probe should watch."""
    undo: tuple[Undo, ...]
    """To be asked of the actor once, before the queue."""
    masks: Mapping[int, CpuSet | None]
    """The same pids -> where their threads belong; None: not pinned."""
    ask_journal: bool
    """Something hangs on what the journal says now."""


def to_keep(state: State) -> tuple[Memory, ...]:
    """What to write down: the guard's memory, and what an earlier daemon wrote of processes that
    run still and are not adopted yet."""
    alive = {(p.pid, p.start_time) for p in state.processes}
    old = [
        m
        for m in state.remembered
        if (
            (m.knob, m.subject) not in state.values
            if m.knob
            else (m.pid, m.start_time) not in state.guard.pins
            and (not alive or (m.pid, m.start_time) in alive)
        )
    ]
    known = (*guarding.memory(state.guard), *values_memory(state.values), *old)
    return tuple(sorted(known, key=lambda m: (m.pid, m.start_time, m.knob, m.subject)))


def due_ns(last_ns: int, interval_ns: int, asked: bool, took_ns: int = 0, usual_ns: int = 0) -> int:
    """When the next turn is due: after the interval, or early when something asked for one.

    `took_ns`: CPU time of the last turn. Early turns take at most a tenth of one CPU, however
    often something asks for one. `usual_ns`: what turns took of late, one dear turn left out.
    """
    regular_ns = max(interval_ns, min(REGULAR_SHARE * usual_ns, SLOWEST_NS))
    early_ns = max(MIN_GAP_NS, EARLY_SHARE * took_ns)
    return last_ns + (min(early_ns, regular_ns) if asked else regular_ns)


def holds(key: tuple[ProcessKey, str]) -> bool:
    """Whether a failure's key is of a unit, container or partition that holds a workload's
    processes."""
    return key[1].partition(" ")[0] in {*HOLDING, Knob.PARTITION}


def failure_key(action: Action) -> tuple[ProcessKey, str]:
    """Under which key an action's failures are remembered."""
    if isinstance(action, SetValue):
        return (0, 0), f"{action.knob} {action.subject} {action.value}"
    if isinstance(action, MigrateMemory):
        return (action.target.pid, action.target.start_time), f"memory {action.nodes}"
    return (action.target.pid, action.target.start_time), str(action.cpus)
