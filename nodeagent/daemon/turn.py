"""The turn: (state, what was seen, now) -> (state, decisions). Pure; time is an argument.

Each turn looks at everything anew and says what should be done now: the queue it returns replaces
the one before, so nothing that was decided on older facts is ever carried out. The actor performs
one action at a time; its results are part of what the next turn sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from nodeagent.daemon import guard as guarding
from nodeagent.daemon.fold import Fold, fold
from nodeagent.daemon.guard import Answer, Author, Drift, Guard, Memory, Pin, ProcessKey
from nodeagent.daemon.links import Links, event, feed_events, finding_events, state_events
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.event import Event, Severity
from nodeagent.model.feed import FeedStatus, RingStatus
from nodeagent.model.finding import Finding, Verdict, worst
from nodeagent.model.freeze import FreezeWindow, frozen
from nodeagent.model.placement import (
    Action,
    ActionResult,
    Consent,
    Held,
    MoveToCpuset,
    Outcome,
    Placed,
    Placement,
    ProcessState,
    SetAffinity,
    Target,
    Workload,
)
from nodeagent.model.probe import ProbeStatus
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.status import ControllerLink
from nodeagent.place.diff import THREADS_ONLY, actions
from nodeagent.place.held import held as held_rows
from nodeagent.place.held import observed
from nodeagent.place.match import claims
from nodeagent.place.planner import plan
from nodeagent.place.workloads import resolve

MIN_GAP_NS = 50_000_000
"""Turns are at least this far apart: at most 20 a second, whatever asks for an early one."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """The journal as it was at `at_ns`."""

    at_ns: int
    pins: tuple[JournalPin, ...]


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
    authors: Mapping[int, Author] = field(default_factory=dict)
    """tid -> who changed its mask, where the kernel shows it."""
    troubles: Mapping[str, str | None] = field(default_factory=dict)
    """Part of ours -> why it does not work; None: it does."""
    notices: tuple[Event, ...] = ()
    """What the loop itself has to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An action that did not work: how often, and when it is tried again."""

    tries: int
    retry_ns: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the turn remembers."""

    turns: int = 0
    snapshot: Snapshot | None = None
    findings: tuple[Finding, ...] = ()
    verdict: Verdict = Verdict.UNKNOWN
    workloads: tuple[Workload, ...] = ()
    housekeeping: CpuSet | None = None
    processes: tuple[ProcessState, ...] = ()
    read_ns: int = 0
    claimed: Mapping[str, tuple[Target, ...]] = field(default_factory=dict)
    placement: Placement = NOTHING
    planned_for: frozenset[tuple[int, int, str]] = frozenset()
    """(pid, start time, title) of the processes the plan was made for."""
    planned_on: Snapshot | None = None
    """The machine the plan was made on."""
    guard: Guard = field(default_factory=Guard)
    journal_ns: int = 0
    """When the journal was read that the guard has adopted."""
    remembered: tuple[Memory, ...] = ()
    """What an earlier daemon of this boot had written down."""
    failures: Mapping[tuple[ProcessKey, str], Failure] = field(default_factory=dict)
    waiting: Mapping[str, str] = field(default_factory=dict)
    """Workload -> why its actions are not performed now."""
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
class Decisions:
    """What the turn decided."""

    queue: tuple[Wanted, ...]
    """To be performed in this order; replaces the queue before."""
    events: tuple[Event, ...]
    sentence: str
    held: tuple[Held, ...]
    watch: frozenset[int]
    """Pids whose threads the probe should watch."""
    ask_journal: bool
    """Something hangs on what the journal says now."""


def to_keep(state: State) -> tuple[Memory, ...]:
    """What to write down: the guard's memory, and what an earlier daemon wrote of processes that
    run still and are not adopted yet."""
    alive = {(p.pid, p.start_time) for p in state.processes}
    old = [
        m
        for m in state.remembered
        if (m.pid, m.start_time) not in state.guard.pins
        and (not alive or (m.pid, m.start_time) in alive)
    ]
    return tuple(sorted((*guarding.memory(state.guard), *old), key=lambda m: (m.pid, m.start_time)))


def due_ns(last_ns: int, interval_ns: int, asked: bool) -> int:
    """When the next turn is due: after the interval, or early when something asked for one."""
    return last_ns + (min(MIN_GAP_NS, interval_ns) if asked else interval_ns)


def consent_of(action: Action) -> Consent:
    """The class of an action."""
    match action:
        case SetAffinity():
            return Consent.THREADS
        case MoveToCpuset():
            return Consent.CGROUP
        case _:
            assert_never(action)


def turn(state: State, seen: Seen, now_ns: int) -> tuple[State, Decisions]:
    """One turn."""
    events: list[Event] = list(seen.notices)
    state = replace(state, turns=state.turns + 1)
    state = _freeze(state, seen, now_ns, events)
    state = _judge(state, seen, now_ns, events)
    state = _results(state, seen, events)
    state = _read(state, seen)
    state = _adopt(state, seen, now_ns, events)
    state = _plan(state, seen, now_ns, events)
    state = _guard(state, seen, now_ns, events)
    state, queue = _queue(state, seen, now_ns, events)
    state = _links(state, seen, now_ns, events)
    state, held = _held(state, seen)
    folded, said = fold(state.fold, events, now_ns)
    state = replace(state, fold=folded)
    watch = frozenset(t.pid for targets in state.claimed.values() for t in targets)
    return state, Decisions(
        queue=queue,
        events=said,
        sentence=_sentence(state, seen, queue, held),
        held=held,
        watch=watch,
        ask_journal=any(p.suspect_ns for p in state.guard.pins.values()),
    )


def _freeze(state: State, seen: Seen, now_ns: int, events: list[Event]) -> State:
    why = frozen(seen.consents.freeze, seen.freeze_file, now_ns)
    if why is not None and state.frozen is None:
        events.append(
            event("freeze.on", "freeze", Severity.INFO, f"nothing is changed: {why}", now_ns)
        )
    if why is None and state.frozen is not None:
        events.append(event("freeze.off", "freeze", Severity.INFO, f"over: {state.frozen}", now_ns))
    return replace(state, frozen=why)


def _judge(state: State, seen: Seen, now_ns: int, events: list[Event]) -> State:
    if seen.snapshot is None or seen.snapshot is state.snapshot:
        return state
    findings = seen.judge(seen.snapshot, now_ns)
    events += finding_events(state.findings, findings, now_ns)
    return replace(state, snapshot=seen.snapshot, findings=findings, verdict=worst(findings))


def _results(state: State, seen: Seen, events: list[Event]) -> State:
    failures = dict(state.failures)
    by_key = {(p.pid, p.start_time): p for p in state.processes}
    for done in seen.done:
        action, result, at_ns = done.action, done.result, done.at_ns
        key = action.target.pid, action.target.start_time
        subject = f"{action.workload} pid {action.target.pid}"
        match result.outcome:
            case Outcome.DONE:
                failures.pop((key, str(action.cpus)), None)
                process = by_key.get(key)
                before = _before(action, process)
                if process is not None:
                    state = replace(
                        state,
                        guard=guarding.pinned(
                            state.guard, process, action.workload, action.cpus, before, at_ns
                        ),
                        run_base={
                            **state.run_base,
                            key[0]: _ran(seen.probe, key[0]),
                        },
                    )
                events.append(
                    event(
                        "pin.done",
                        subject,
                        Severity.INFO,
                        f"{action.workload} (pid {key[0]}) is on {action.cpus}, was on {before}",
                        at_ns,
                    )
                )
            case Outcome.GONE:
                events.append(event("pin.gone", subject, Severity.INFO, result.message, at_ns))
            case Outcome.REFUSED | Outcome.FAILED | Outcome.REVERTED:
                old = failures.get((key, str(action.cpus)))
                tries = 1 if old is None else old.tries + 1
                failures[key, str(action.cpus)] = Failure(
                    tries=tries,
                    retry_ns=at_ns + RETRY_NS * 2 ** min(tries - 1, 10),
                    message=result.message,
                )
                last = tries >= MAX_TRIES
                events.append(
                    event(
                        f"pin.{result.outcome}",
                        subject,
                        Severity.ERROR if last else Severity.WARNING,
                        f"{action.workload} (pid {key[0]}) could not be put on {action.cpus}: "
                        f"{result.message}"
                        + ("; it is not tried again until something changes" if last else ""),
                        at_ns,
                        "nodeagentctl place status",
                    )
                )
            case _:
                assert_never(result.outcome)
    return replace(state, failures=failures)


def _before(action: Action, process: ProcessState | None) -> CpuSet:
    if isinstance(action, SetAffinity):
        return action.before
    return _actual(process) if process is not None else CpuSet()


def _actual(process: ProcessState) -> CpuSet:
    ids: set[int] = set()
    for thread in process.threads:
        ids |= thread.cpus.ids
    return CpuSet(frozenset(ids))


def _read(state: State, seen: Seen) -> State:
    if seen.reading is None:
        return state
    alive = {(p.pid, p.start_time) for p in seen.reading.processes}
    pids = {pid for pid, _ in alive}
    return replace(
        state,
        processes=seen.reading.processes,
        read_ns=seen.reading.at_ns,
        guard=guarding.ended(state.guard, alive),
        failures={k: f for k, f in state.failures.items() if k[0] in alive},
        run_base={k: b for k, b in state.run_base.items() if k in pids},
    )


def _adopt(state: State, seen: Seen, now_ns: int, events: list[Event]) -> State:
    """Takes over what the journal says is pinned; leaves alone what a person undid."""
    if seen.journal is None:
        return state
    by_key = {(p.pid, p.start_time): p for p in state.processes}
    guard = state.guard
    listed: set[ProcessKey] = set()
    remembered = {(m.pid, m.start_time): m for m in state.remembered}
    for entry in seen.journal.pins:
        key = entry.pid, entry.start_time
        listed.add(key)
        pin = guard.pins.get(key)
        applied = pin is not None and pin.manual is not None and entry.at_ns > pin.manual_ns
        ours = pin is not None and pin.before is not None
        newer = pin is not None and pin.at_ns > seen.journal.at_ns
        if key not in by_key or (ours and not applied) or newer:
            continue
        # What an earlier daemon knew of it; nothing of that stands after a person's place apply.
        old = None if applied else remembered.get(key)
        left = old is not None and old.manual is not None and entry.at_ns <= old.manual_ns
        guard = guard.with_pin(
            key,
            Pin(
                workload=entry.workload,
                cpus=entry.after,
                before=entry.before,
                at_ns=0 if pin is None else pin.at_ns,
                # Every thread had been pinned, or was born of one that was.
                inside=frozenset(t.tid for t in by_key[key].threads),
                corrected=old.corrected if old is not None else (),
                manual=old.manual if old is not None and left else None,
                manual_ns=old.manual_ns if old is not None and left else 0,
            ),
        )
        events.append(
            event(
                "pin.applied" if applied else "pin.adopted",
                f"{entry.workload} pid {entry.pid}",
                Severity.INFO,
                f"{entry.workload} (pid {entry.pid}) was pinned to {entry.after} by a person; it "
                "is guarded again"
                if applied
                else f"{entry.workload} (pid {entry.pid}) is pinned to {entry.after} by the "
                "journal; it is kept",
                now_ns,
            )
        )
    for key, pin in guard.pins.items():
        undone = pin.before is not None and key not in listed and pin.at_ns < seen.journal.at_ns
        if undone and pin.manual is None and seen.actor is None:
            guard = guarding.left_alone(guard, key, "its pin was undone by a person", now_ns)
            events.append(
                event(
                    "pin.undone",
                    f"{pin.workload} pid {key[0]}",
                    Severity.INFO,
                    f"the pin of {pin.workload} (pid {key[0]}) was undone; it is left alone until "
                    "place apply",
                    now_ns,
                    "nodeagentctl place apply --yes",
                )
            )
    return replace(state, guard=guard, journal_ns=seen.journal.at_ns)


def _plan(state: State, seen: Seen, now_ns: int, events: list[Event]) -> State:
    if state.snapshot is None:
        return state
    identities = frozenset((p.pid, p.start_time, p.title) for p in state.processes)
    fixed = state.workloads == seen.workloads and state.housekeeping == seen.housekeeping
    planned = state.planned_on is state.snapshot and fixed
    if planned and state.planned_for == identities:
        return state
    workloads = resolve(seen.workloads, state.snapshot)
    claimed, _ = claims(workloads, state.processes)
    if planned and claimed == state.claimed:
        return replace(state, planned_for=identities)
    topology = state.snapshot.topology
    # A first plan keeps what it finds: a restart moves nobody.
    current = (
        state.placement if state.planned_on else observed(topology, workloads, state.processes)
    )
    placement = plan(topology, workloads, state.processes, current, seen.housekeeping)
    was = {r.workload: r.reason for r in state.placement.refused}
    for refused in placement.refused:
        if was.get(refused.workload) != refused.reason:
            events.append(
                event(
                    "place.refused",
                    refused.workload,
                    Severity.WARNING,
                    f"{refused.workload} has no place: {refused.reason}",
                    now_ns,
                    refused.would_fit_if,
                )
            )
    places = {p.workload: p.cpus for p in state.placement.placed}
    for placed in placement.placed:
        if places.get(placed.workload) != placed.cpus:
            because = f": {placed.reasons[0]}" if placed.reasons else ""
            events.append(
                event(
                    "place.planned",
                    placed.workload,
                    Severity.INFO,
                    f"{placed.workload} belongs on {placed.cpus}{because}",
                    now_ns,
                )
            )
    return replace(
        state,
        workloads=seen.workloads,
        housekeeping=seen.housekeeping,
        claimed=claimed,
        placement=placement,
        planned_for=identities,
        planned_on=state.snapshot,
    )


def _mine(state: State) -> list[tuple[Placed, ProcessState]]:
    """Each placed workload's processes."""
    by_key = {(p.pid, p.start_time): p for p in state.processes}
    out: list[tuple[Placed, ProcessState]] = []
    for placed in state.placement.placed:
        for target in state.claimed.get(placed.workload, ()):
            process = by_key.get((target.pid, target.start_time))
            if process is not None:
                out.append((placed, process))
    return out


def _guard(state: State, seen: Seen, now_ns: int, events: list[Event]) -> State:
    if seen.reading is None:
        return state
    guard = state.guard
    # Without an actor nothing can be undone either, so there is nothing to wait for.
    journal_ns = state.journal_ns if seen.actor is None else now_ns + 1
    for placed, process in _mine(state):
        guard, drift = guarding.observe(
            guard, placed.workload, placed.cpus, process, state.read_ns, seen.authors, journal_ns
        )
        if drift is not None:
            events.append(_drift_event(drift, process, state, seen, now_ns))
    return replace(state, guard=guard)


def _drift_event(
    drift: Drift, process: ProcessState, state: State, seen: Seen, now_ns: int
) -> Event:
    now_on = CpuSet.of(cpu for t in drift.threads for cpu in t.cpus.ids)
    what = (
        f"{len(drift.threads)} of {len(process.threads)} threads of {drift.pin.workload} "
        f"(pid {process.pid}) were moved from {drift.pin.cpus} to {now_on} by {drift.author.name}"
    )
    subject = f"{drift.pin.workload} pid {process.pid}"
    match drift.answer:
        case Answer.CORRECT:
            blocked = _blocked(Consent.THREADS, state, seen)
            then = f"not corrected: {blocked}" if blocked else "corrected once"
            return event("pin.drift", subject, Severity.WARNING, f"{what}; {then}", now_ns)
        case Answer.REPORT:
            then = "the second change by that author is not corrected, the workload is manual"
        case Answer.PERSON:
            then = "a person's change is kept, the workload is manual"
        case _:
            assert_never(drift.answer)
    return event(
        "pin.manual",
        subject,
        Severity.WARNING,
        f"{what}; {then} until place apply",
        now_ns,
        "find what moves the threads, then: nodeagentctl place apply --yes",
    )


def _blocked(consent: Consent, state: State, seen: Seen) -> str | None:
    """Why an act of that class may not be made by the daemon now; None: it may."""
    if consent not in seen.consents.allow:
        return f"[pin] allow does not name {consent}"
    if consent not in seen.consents.auto:
        return f"[pin] auto does not name {consent}"
    if state.frozen is not None:
        return f"frozen: {state.frozen}"
    if seen.actor is not None:
        return f"no actor: {seen.actor}"
    return None


def _queue(
    state: State, seen: Seen, now_ns: int, events: list[Event]
) -> tuple[State, tuple[Wanted, ...]]:
    queue: list[Wanted] = []
    waiting: dict[str, str] = {}
    acting = seen.consents.auto or seen.consents.allow or THREADS_ONLY
    for action in actions(state.placement, state.processes, acting):
        key = action.target.pid, action.target.start_time
        pin = state.guard.pins.get(key)
        if pin is not None and pin.at_ns >= state.read_ns:
            # The reading is older than what was last done to this process.
            continue
        if pin is not None and pin.suspect_ns:
            # Perhaps a person undid it: the journal is asked first.
            continue
        if pin is not None and pin.manual is not None:
            waiting[action.workload] = f"manual: {pin.manual}"
            continue
        if seen.busy is not None and seen.busy.target.pid == action.target.pid:
            continue
        blocked = _blocked(consent_of(action), state, seen)
        if blocked is not None:
            waiting[action.workload] = blocked
            continue
        failure = state.failures.get((key, str(action.cpus)))
        if failure is not None and (failure.tries >= MAX_TRIES or now_ns < failure.retry_ns):
            waiting[action.workload] = failure.message
            continue
        queue.append(Wanted(action, _why(state, pin, action)))
    for name, why in waiting.items():
        if state.waiting.get(name) != why and not why.startswith("manual"):
            remedy = "nodeagentctl place plan shows what would be done"
            if why.startswith("[pin]"):
                remedy = "nodeagentctl place apply --yes, or change [pin] in the configuration"
            events.append(
                event(
                    "pin.waiting",
                    name,
                    Severity.INFO,
                    f"{name} is not where it belongs and is left there: {why}",
                    now_ns,
                    remedy,
                )
            )
    return replace(state, waiting=waiting), tuple(queue)


def _why(state: State, pin: Pin | None, action: Action) -> str:
    if pin is not None and pin.correcting:
        return f"the guard puts right what {pin.corrected[-1]} changed"
    placed = state.placement.of(action.workload)
    return placed.reasons[0] if placed is not None and placed.reasons else "as planned"


def _links(state: State, seen: Seen, now_ns: int, events: list[Event]) -> State:
    links, more = feed_events(state.links, seen.feeds, seen.rings, now_ns)
    events += more
    states: dict[str, str | None] = dict(seen.troubles)
    if seen.actor != CONNECTING:
        states["actor"] = seen.actor
    if seen.controller is not None and seen.controller.configured:
        link = seen.controller
        states["controller"] = None if link.connected else link.reason or "not connected"
    if seen.probe is not None:
        states["probe"] = None if seen.probe.available else seen.probe.reason or "not attached"
    links, more = state_events(links, states, now_ns)
    events += more
    return replace(state, links=links)


def _ran(probe: ProbeStatus | None, pid: int) -> Mapping[int, int]:
    delays = probe.delays if probe is not None else ()
    return next((dict(d.run_ns_by_cpu) for d in delays if d.pid == pid), {})


def _held(state: State, seen: Seen) -> tuple[State, tuple[Held, ...]]:
    """The placed workloads as they are; run time counts from when the pin was known to hold."""
    before: dict[int, CpuSet] = {}
    since: dict[int, list[tuple[int, int]]] = {}
    bases = dict(state.run_base)
    for placed, process in _mine(state):
        pin = state.guard.pins.get((process.pid, process.start_time))
        if pin is None or pin.cpus != placed.cpus:
            continue
        before[process.pid] = pin.before or pin.cpus
        ran = _ran(seen.probe, process.pid)
        base = bases.setdefault(process.pid, ran)
        since[process.pid] = [(cpu, ns - base.get(cpu, 0)) for cpu, ns in ran.items()]
    rows = held_rows(state.placement, state.processes, before, since)
    return replace(state, run_base=bases), rows


def _sentence(state: State, seen: Seen, queue: tuple[Wanted, ...], held: tuple[Held, ...]) -> str:
    """What was decided and why."""
    if state.snapshot is None:
        return "nothing decided: the first reading of the machine is not there yet"
    parts: list[str] = []
    if queue:
        names = ", ".join(dict.fromkeys(w.action.workload for w in queue))
        parts.append(f"putting {names} where the plan says ({len(queue)} actions)")
    if state.waiting:
        name, why = next(iter(state.waiting.items()))
        more = f" and {len(state.waiting) - 1} more" if len(state.waiting) > 1 else ""
        parts.append(f"left {name}{more} alone ({why})")
    if held:
        parts.append(f"{sum(h.held for h in held)} of {len(held)} processes held")
    elif not seen.workloads:
        parts.append("nothing to place: no workloads are configured")
    if state.placement.refused:
        parts.append(f"{len(state.placement.refused)} workloads have no place")
    if state.frozen is not None:
        parts.append(f"frozen: {state.frozen}")
    if seen.actor is not None and seen.consents.allow:
        parts.append(f"no actor: {seen.actor}")
    bad = [f for f in state.findings if f.counts and f.verdict is not Verdict.OK]
    parts.append(f"verdict {state.verdict}" + (f" by {len(bad)} findings" if bad else ""))
    return "; ".join(parts)
