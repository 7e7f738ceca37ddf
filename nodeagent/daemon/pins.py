"""The turn's part about pins: results, adoption, the guard, and what is to be done now. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import assert_never

from nodeagent.daemon import authors as authorship
from nodeagent.daemon import guard as guarding
from nodeagent.daemon import hostvalues
from nodeagent.daemon.guard import UNKNOWN, Answer, Drift, Guard, Pin, ProcessKey
from nodeagent.daemon.links import event
from nodeagent.daemon.state import (
    CONNECTING,
    MAX_TRIES,
    RETRY_NS,
    Done,
    Failure,
    Journal,
    JournalPin,
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
    Held,
    Knob,
    MigrateMemory,
    Outcome,
    Placed,
    ProcessAction,
    ProcessState,
    SetAffinity,
    SetValue,
    consent_of,
    subject_of,
)
from nodeagent.model.probe import ProbeStatus
from nodeagent.place import isolate
from nodeagent.place.diff import THREADS_ONLY, PinAction, actions
from nodeagent.place.held import held as held_rows
from nodeagent.place.locality import memory_local
from nodeagent.place.roles import seats


def take_results(state: State, seen: Seen, events: list[Event]) -> State:
    failures = dict(state.failures)
    by_key = {(p.pid, p.start_time): p for p in state.processes}
    for done in seen.done:
        action, result, at_ns = done.action, done.result, done.at_ns
        subject, failed = subject_of(action), failure_key(action)
        match result.outcome:
            case Outcome.DONE:
                failures.pop(failed, None)
                kind, then = "pin.done", ""
                if isinstance(action, SetValue) and action.knob in HOLDING:
                    pins = (state.guard.pins.get(k) for k in _keys(state, action))
                    kind, then = _what_for(next((p for p in pins if p and p.correcting), None))
                    state = _held(state, seen, action, at_ns)
                elif isinstance(action, SetValue):
                    if hostvalues.owed(state.values, action):
                        kind, then = "pin.corrected", f": put right once after {UNKNOWN.name}"
                    state = replace(state, values=hostvalues.done(state.values, done))
                if isinstance(action, SetValue | MigrateMemory):
                    text = f"{result.message}{then}"
                    events.append(event(kind, subject, Severity.INFO, text, at_ns))
                    continue
                key = action.target.pid, action.target.start_time
                process = by_key.get(key)
                before = _before(action, process)
                kind, then = _what_for(state.guard.pins.get(key))
                if process is not None:
                    tids = action.tids if isinstance(action, SetAffinity) else ()
                    state = replace(
                        state,
                        guard=guarding.pinned(
                            state.guard, process, action.workload, action.cpus, before, at_ns, tids
                        ),
                        run_base={
                            **state.run_base,
                            key[0]: _ran(seen.probe, key[0]),
                        },
                    )
                events.append(
                    event(
                        kind,
                        subject,
                        Severity.INFO,
                        f"{action.workload} (pid {key[0]}) is on {action.cpus}, was on {before}"
                        + then,
                        at_ns,
                    )
                )
            case Outcome.GONE:
                if isinstance(action, SetValue):
                    # A process that ended leaves the plan; a value is wanted until the next one.
                    retry_ns = at_ns + RETRY_NS * 2**10
                    failures[failed] = Failure(tries=1, retry_ns=retry_ns, message=result.message)
                events.append(event("pin.gone", subject, Severity.INFO, result.message, at_ns))
            case Outcome.REVERTED if (fought := _contested(state.guard, done)) is not None:
                state = replace(state, guard=fought[0])
                events.append(fought[1])
            case Outcome.REFUSED | Outcome.FAILED | Outcome.REVERTED:
                old = failures.get(failed)
                tries = 1 if old is None else old.tries + 1
                failures[failed] = Failure(
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
                        f"{_wish(action)}: {result.message}"
                        + ("; it is not tried again until something changes" if last else ""),
                        at_ns,
                        "nodeagentctl place status",
                    )
                )
            case _:
                assert_never(result.outcome)
    return replace(state, failures=failures)


def _what_for(pin: Pin | None) -> tuple[str, str]:
    """(kind of event, end of its sentence) of an act that was made: a pin, or a correction."""
    if pin is None or not pin.correcting:
        return "pin.done", ""
    return "pin.corrected", f": put right once after {pin.corrected[-1]}"


def _contested(guard: Guard, done: Done) -> tuple[Guard, Event] | None:
    """A correction that met its author at work: that is the second change, and it is reported."""
    if not done.result.contested or isinstance(done.action, SetValue):
        return None
    key = done.action.target.pid, done.action.target.start_time
    pin = guard.pins.get(key)
    if pin is None or not pin.correcting:
        return None
    why = f"changed again and again by {pin.corrected[-1]}"
    return guarding.left_alone(guard, key, why, done.at_ns), event(
        "pin.manual",
        f"{done.action.workload} pid {key[0]}",
        Severity.WARNING,
        f"{_wish(done.action)}: {done.result.message}; the workload is manual until place apply",
        done.at_ns,
        "find what moves the threads, then: nodeagentctl place apply --yes",
    )


def _held(state: State, seen: Seen, action: SetValue, at_ns: int) -> State:
    """A unit or container was set: all of its workload's processes are pinned."""
    cpus, guard, bases = CpuSet.parse(action.value), state.guard, dict(state.run_base)
    for _, process in _of(state, action.workload):
        guard = guarding.pinned(guard, process, action.workload, cpus, _actual(process), at_ns, ())
        bases[process.pid] = _ran(seen.probe, process.pid)
    return replace(state, guard=guard, run_base=bases)


def _of(state: State, workload: str) -> list[tuple[Placed, ProcessState]]:
    return [(placed, p) for placed, p in mine(state) if placed.workload == workload]


def _wish(action: Action) -> str:
    if isinstance(action, MigrateMemory):
        return f"the memory of {subject_of(action)} could not be moved to node {action.to}"
    if isinstance(action, SetValue):
        return f"{subject_of(action)} could not be set to {action.value}"
    return f"{action.workload} (pid {action.target.pid}) could not be put on {action.cpus}"


def _before(action: ProcessAction, process: ProcessState | None) -> CpuSet:
    if isinstance(action, SetAffinity):
        return action.before
    return _actual(process) if process is not None else CpuSet()


def _actual(process: ProcessState) -> CpuSet:
    ids: set[int] = set()
    for thread in process.threads:
        ids |= thread.cpus.ids
    return CpuSet(frozenset(ids))


def adopt(state: State, seen: Seen, now_ns: int, events: list[Event]) -> State:
    """Takes over what the journal says is pinned; leaves alone what a person undid."""
    if seen.journal is None:
        return state
    by_key = {(p.pid, p.start_time): p for p in state.processes}
    guard = state.guard
    listed: set[ProcessKey] = set()
    remembered = {(m.pid, m.start_time): m for m in state.remembered if not m.knob}
    for entry in _newest((*seen.journal.pins, *_from_holds(state, seen.journal))):
        key = entry.pid, entry.start_time
        listed.add(key)
        pin = guard.pins.get(key)
        applied = pin is not None and pin.left_before(entry.id, entry.at_ns)
        ours = pin is not None and pin.before is not None
        newer = pin is not None and pin.at_ns > seen.journal.at_ns
        if key not in by_key or (ours and not applied) or newer:
            continue
        # What an earlier daemon knew of it; nothing of that stands after a person's place apply.
        old = None if applied else remembered.get(key)
        left = (
            old is not None
            and old.manual is not None
            and not guarding.later(entry.id, entry.at_ns, old.manual_id, old.manual_ns)
        )
        guard = guard.with_pin(
            key,
            Pin(
                workload=entry.workload,
                cpus=entry.after,
                before=entry.before,
                at_ns=0 if pin is None else pin.at_ns,
                # Every thread had been pinned, or was born of one that was.
                inside=dict.fromkeys((t.tid for t in by_key[key].threads), entry.after),
                adopted=True,
                corrected=old.corrected if old is not None else (),
                manual=old.manual if old is not None and left else None,
                manual_ns=old.manual_ns if old is not None and left else 0,
                manual_id=old.manual_id if old is not None and left else None,
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
    for key, old in remembered.items():
        # Left alone, and no longer in the journal: undone by a person, or rolled back.
        if old.manual is not None and key in by_key and key not in guard.pins:
            left_alone = Pin(
                workload="",
                cpus=CpuSet(),
                before=None,
                at_ns=0,
                inside={},
                corrected=old.corrected,
                manual=old.manual,
                manual_ns=old.manual_ns,
                manual_id=old.manual_id,
            )
            guard = guard.with_pin(key, left_alone)
    return replace(state, guard=guard, journal_ns=seen.journal.at_ns)


def _from_holds(state: State, journal: Journal) -> list[JournalPin]:
    return [
        JournalPin(
            workload=hold.workload,
            pid=process.pid,
            start_time=process.start_time,
            after=hold.cpus,
            before=hold.before,
            at_ns=hold.at_ns,
            id=hold.id,
        )
        for hold in journal.holds
        for _, process in _of(state, hold.workload)
    ]


def _newest(entries: Iterable[JournalPin]) -> list[JournalPin]:
    """One of each process: where the last act put it, and where it was before the first."""
    found: dict[ProcessKey, JournalPin] = {}
    for entry in sorted(entries, key=lambda e: (e.id, e.at_ns)):
        first = found.get((entry.pid, entry.start_time))
        before = entry.before if first is None else first.before
        found[entry.pid, entry.start_time] = replace(entry, before=before)
    return list(found.values())


def mine(state: State) -> list[tuple[Placed, ProcessState]]:
    """Each placed workload's processes."""
    by_key = {(p.pid, p.start_time): p for p in state.processes}
    out: list[tuple[Placed, ProcessState]] = []
    for placed in state.placement.placed:
        for target in state.claimed.get(placed.workload, ()):
            process = by_key.get((target.pid, target.start_time))
            if process is not None:
                out.append((placed, process))
    return out


def watch_over(state: State, seen: Seen, now_ns: int, events: list[Event]) -> State:
    if seen.reading is None:
        return state
    guard = state.guard
    # Without an actor nothing can be undone either, so there is nothing to wait for.
    journal_ns = state.journal_ns if seen.actor is None else now_ns + 1
    owned = mine(state)
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
        )
        kept = authorship.settled(kept, process, own, state.read_ns)
        if drift is not None:
            events.append(_drift_event(drift, process, state, seen, now_ns))
    return replace(state, guard=guard, authors=kept)


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
        keys = _keys(state, action)
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


def _keys(state: State, action: PinAction) -> list[ProcessKey]:
    """The processes that an action is about."""
    if isinstance(action, SetValue):
        return [(p.pid, p.start_time) for _, p in _of(state, action.workload)]
    return [(action.target.pid, action.target.start_time)]


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


def _ran(probe: ProbeStatus | None, pid: int) -> Mapping[int, int]:
    delays = probe.delays if probe is not None else ()
    return next((dict(d.run_ns_by_cpu) for d in delays if d.pid == pid), {})


def rows(state: State, seen: Seen) -> tuple[State, tuple[Held, ...]]:
    """The placed workloads as they are; run time counts from when the pin was known to hold."""
    before: dict[int, CpuSet] = {}
    since: dict[int, list[tuple[int, int]]] = {}
    bases = dict(state.run_base)
    owned = mine(state)
    for placed, process in owned:
        pin = state.guard.pins.get((process.pid, process.start_time))
        if pin is None or pin.cpus != placed.cpus:
            continue
        before[process.pid] = pin.before or pin.cpus
        ran = _ran(seen.probe, process.pid)
        base = bases.setdefault(process.pid, ran)
        since[process.pid] = [(cpu, ns - base.get(cpu, 0)) for cpu, ns in ran.items()]
    rows = held_rows(state.placement, [p for _, p in owned], before, since)
    topology = state.snapshot.topology if state.snapshot is not None else None
    local = {
        process.pid: memory_local(placed, process, state.processes, state.memory, topology)
        for placed, process in owned
    }
    starts = {p.pid: p.start_time for _, p in owned}
    isolation = {p.pid: isolate.status(placed.workload, p, seen.facts) for placed, p in owned}
    said = tuple(
        replace(
            row,
            guard=_guard_says(state, key) or isolation.get(row.pid or 0, ""),
            compared=_compared(state, key),
            memory_local=local.get(row.pid or 0),
        )
        for row in rows
        for key in [(row.pid or 0, starts.get(row.pid or 0, 0))]
    )
    return replace(state, run_base=bases), said


def _guard_says(state: State, key: ProcessKey) -> str:
    pin = state.guard.pins.get(key)
    if pin is None:
        return ""
    if pin.manual is not None:
        return f"manual: {pin.manual}"
    return f"put right after {', '.join(pin.corrected)}" if pin.corrected else ""


def _compared(state: State, key: ProcessKey) -> str:
    track = state.tracks.by_key.get(key)
    result = None if track is None else track.result
    return "" if result is None else f"{result.sign}: {result.reason}"
