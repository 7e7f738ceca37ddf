"""The turn's part about pins: what has drifted, and what is to be done now. Pure."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import assert_never

from nodeagent.daemon import authors as authorship
from nodeagent.daemon import guard as guarding
from nodeagent.daemon.guard import Answer, Drift, Pin, ProcessKey
from nodeagent.daemon.links import event
from nodeagent.daemon.owned import keys_of, mine
from nodeagent.daemon.state import (
    CONNECTING,
    MAX_TRIES,
    Seen,
    State,
    Wanted,
    failure_key,
    holds,
)
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.event import Event, Severity
from nodeagent.model.placement import (
    HOLDING,
    Action,
    Consent,
    Knob,
    MigrateMemory,
    ProcessState,
    SetValue,
    consent_of,
    subject_of,
)
from nodeagent.place import isolate
from nodeagent.place.diff import THREADS_ONLY, PinAction, actions
from nodeagent.place.roles import seats


def watch_over(state: State, seen: Seen, now_ns: int, events: list[Event]) -> State:
    """Compares every placed process with its pin, and says what has drifted and by whom."""
    if seen.reading is None:
        return state
    guard = state.guard
    # Without an actor nothing can be undone either, so there is nothing to wait for.
    journal_ns = state.journal_ns if seen.actor is None else now_ns + 1
    owned = mine(state)
    acted_on = _acted_on(state, seen)
    kept = authorship.merged(state.authors, seen.changes, (p.pid for _, p in owned))
    if seen.lost_changes:
        events.append(
            event(
                "guard.lost",
                "guard",
                Severity.WARNING,
                f"{seen.lost_changes} changes of masks came faster than they could be kept: their "
                "authors are not known",
                now_ns,
            )
        )
    for placed, process in owned:
        own = {tid: seat.cpus for tid, seat in seats(placed, process).items()}
        pin = guard.pins.get((process.pid, process.start_time))
        guard, drift = guarding.observe(
            guard,
            placed.workload,
            placed.cpus,
            process,
            state.read_ns,
            authorship.blamed(kept, process, own, 0 if pin is None else pin.at_ns),
            journal_ns,
            own if placed.roles else None,
            (process.pid, process.start_time) in acted_on,
        )
        kept = authorship.settled(kept, process, own, state.read_ns)
        if drift is not None:
            events.append(_drift_event(drift, process, state, seen, now_ns))
    return replace(state, guard=guard, authors=kept)


def _acted_on(state: State, seen: Seen) -> Set[ProcessKey]:
    """Processes whose threads the actor moves now."""
    busy = seen.busy
    if busy is None or isinstance(busy, MigrateMemory):
        return frozenset()
    if isinstance(busy, SetValue) and busy.knob not in HOLDING:
        return frozenset()
    return frozenset(keys_of(state, busy))


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
            blocked = blocked_by(Consent.THREADS, state, seen)
            then = f"not corrected: {blocked}" if blocked else "it is put right once"
            return event("pin.drift", subject, Severity.WARNING, f"{what}; {then}", now_ns)
        case Answer.REPORT:
            then = "the second change by that author is not corrected, the workload is manual"
            if drift.author.same not in drift.pin.corrected:
                then = f"{len(drift.pin.corrected)} authors were corrected, the workload is manual"
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


def blocked_by(consent: Consent, state: State, seen: Seen) -> str | None:
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


def queue_up(
    state: State, seen: Seen, now_ns: int, events: list[Event]
) -> tuple[State, tuple[Wanted, ...]]:
    """What the actor is to do now, and what is left as it is and why."""
    queue: list[Wanted] = []
    waiting: dict[str, str] = {}
    acting = seen.consents.auto or seen.consents.allow or THREADS_ONLY
    owned = [p for _, p in mine(state)]
    wanted = actions(state.placement, owned, acting, seen.facts, state.processes)
    # What is wanted no more has failed for good.
    mine_too = {failure_key(a) for a in wanted}
    failures = {k: f for k, f in state.failures.items() if not holds(k) or k in mine_too}
    state = replace(state, failures=failures)
    unmade: set[str] = set()
    for action in wanted:
        if isinstance(action, SetValue) and action.knob is Knob.PARTITION:
            # Nobody is moved into a partition that is not there yet.
            unmade.add(action.workload)
            why = _partition_changed(state, action)
            if why is not None:
                waiting[action.workload] = why
            if why is not None or _made_since(state, action):
                continue
        elif action.workload in unmade:
            continue
        keys = keys_of(state, action)
        pins = [state.guard.pins[key] for key in keys if key in state.guard.pins]
        if any(pin.at_ns >= state.read_ns for pin in pins):
            # The reading is older than what was last done to this process.
            continue
        if any(pin.suspect_ns for pin in pins):
            # Perhaps a person undid it: the journal is asked first.
            continue
        manual = next((pin.manual for pin in pins if pin.manual is not None), None)
        if manual is not None:
            waiting[action.workload] = f"manual: {manual}"
            continue
        if seen.busy is not None and _same_process(seen.busy, action):
            continue
        blocked = blocked_by(consent_of(action), state, seen)
        if blocked is not None and seen.actor == CONNECTING:
            continue
        if blocked is not None:
            waiting[action.workload] = blocked
            continue
        failure = state.failures.get(failure_key(action))
        if failure is not None and (failure.tries >= MAX_TRIES or now_ns < failure.retry_ns):
            waiting[action.workload] = failure.message
            continue
        queue.append(Wanted(action, _why(state, pins, action)))
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


def _made_since(state: State, action: SetValue) -> bool:
    one = state.values.get((action.knob, action.subject))
    return one is not None and one.at_ns >= state.read_ns


def _partition_changed(state: State, action: SetValue) -> str | None:
    """Why a partition is not made again: a person ended it, or somebody whom nothing names."""
    one = state.values.get((action.knob, action.subject))
    if one is None or one.at_ns >= state.read_ns:
        return None
    if one.manual is not None:
        return f"manual: its partition: {one.manual}"
    if one.value == action.value:
        return (
            f"{subject_of(action)} was set to {one.value} and isolates "
            f"{'nothing' if action.before == isolate.MEMBER else action.before} now: it is left "
            "alone until place apply"
        )
    return None


def _same_process(busy: Action, action: PinAction) -> bool:
    """Whether the actor is at that very process, unit or container now."""
    if isinstance(busy, SetValue) or isinstance(action, SetValue):
        return failure_key(busy) == failure_key(action)
    return not isinstance(busy, MigrateMemory) and busy.target.pid == action.target.pid


def _why(state: State, pins: list[Pin], action: PinAction) -> str:
    correcting = next((pin for pin in pins if pin.correcting), None)
    if correcting is not None:
        return f"the guard puts right what {correcting.corrected[-1]} changed"
    placed = state.placement.of(action.workload)
    return placed.reasons[0] if placed is not None and placed.reasons else "as planned"
