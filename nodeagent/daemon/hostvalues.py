"""The turn's part about the host's values: what is set, who set one back, what is to be set now.

The same rules as for pins, on another clock: values are read with the machine's snapshot. Nothing
shows who writes them, so the first change of a value of ours is put right, the second is reported
and the value is left alone until `place apply`. Pure; time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from nodeagent.daemon.guard import UNKNOWN, later
from nodeagent.daemon.hoststate import Key, Planned, Set
from nodeagent.daemon.links import event
from nodeagent.daemon.state import (
    CONNECTING,
    MAX_TRIES,
    Done,
    Failure,
    Seen,
    State,
    Wanted,
    failure_key,
    holds,
)
from nodeagent.model.event import Event, Severity
from nodeagent.model.hostplan import HostPlan
from nodeagent.model.placement import Consent, Knob, Outcome, SetValue, consent_of
from nodeagent.place.host import host_actions, host_plan
from nodeagent.place.workloads import resolve

_NO_PROCESS = (0, 0)
"""Under which key the failures of values are remembered."""


def replanned(state: State) -> State:
    """Plans anew where the snapshot or the placement is another."""
    if state.snapshot is None:
        return state
    was = state.host
    if was.snapshot is state.snapshot and was.placement is state.placement:
        return state
    workloads = resolve(state.workloads, state.snapshot)
    plan = host_plan(state.snapshot, workloads, state.placement)
    return replace(state, host=Planned(plan, state.snapshot, state.placement))


def done(values: Mapping[Key, Set], result: Done) -> Mapping[Key, Set]:
    """After an act of ours."""
    action = result.action
    if not isinstance(action, SetValue) or result.result.outcome is not Outcome.DONE:
        return values
    key: Key = (action.knob, action.subject)
    old = values.get(key)
    new = Set(
        value=action.value if result.result.read_back is None else result.result.read_back,
        at_ns=result.at_ns,
        journaled=result.result.journal_id is not None or (old is not None and old.journaled),
        corrected=old.corrected if old is not None else False,
    )
    return {**values, key: new}


def owed(values: Mapping[Key, Set], action: SetValue) -> bool:
    """Whether that act is the correction of somebody's change."""
    one = values.get((action.knob, action.subject))
    return one is not None and one.correcting


def numbered(values: Mapping[Key, Set], newest: int | None) -> Mapping[Key, Set]:
    """What is left alone since this turn, with the newest number of the journal."""
    if newest is None or all(v.manual is None or v.manual_id is not None for v in values.values()):
        return values
    return {
        key: replace(one, manual_id=newest)
        if one.manual is not None and one.manual_id is None
        else one
        for key, one in values.items()
    }


def adopt(state: State, seen: Seen, now_ns: int, events: list[Event]) -> State:
    """Takes over what the journal says is set; leaves alone what a person undid."""
    if seen.journal is None:
        return state
    values = dict(state.values)
    listed = {(v.knob, v.subject): v for v in seen.journal.values}
    remembered = {(m.knob, m.subject): m for m in state.remembered if m.knob}
    for key, entry in listed.items():
        old = values.get(key)
        since = (entry.id, entry.at_ns)
        if old is not None and old.manual is not None:
            same = not later(*since, old.manual_id, old.at_ns)
        else:
            same = old is not None and entry.at_ns <= old.at_ns
        if old is not None and (same or old.at_ns > seen.journal.at_ns):
            continue
        known = remembered.get(key) if old is None else None
        stays = known is not None and not later(*since, known.manual_id, known.manual_ns)
        values[key] = Set(
            value=entry.value,
            at_ns=entry.at_ns,
            journaled=True,
            corrected=known is not None and bool(known.corrected),
            manual=known.manual if known is not None and stays else None,
            manual_ns=known.manual_ns if known is not None and stays else 0,
            manual_id=known.manual_id if known is not None and stays else None,
        )
        if old is not None and old.manual is not None:
            text = f"{_name(key)} was set to {entry.value or 'none'} by a person; it is guarded"
            events.append(event("pin.applied", _name(key), Severity.INFO, f"{text} again", now_ns))
    for key, one in values.items():
        gone = one.journaled and key not in listed and one.at_ns < seen.journal.at_ns
        if gone and one.manual is None and seen.actor is None:
            values[key] = replace(
                one,
                manual="it was put back by a person",
                manual_ns=now_ns,
                correcting=False,
                suspect_ns=0,
            )
            events.append(
                event(
                    "pin.undone",
                    _name(key),
                    Severity.INFO,
                    f"{_name(key)} was put back; it is left alone until place apply",
                    now_ns,
                    "nodeagentctl place apply --yes",
                )
            )
    return replace(state, values=values)


def queue_up(
    state: State,
    seen: Seen,
    now_ns: int,
    events: list[Event],
    blocked: Callable[[Consent], str | None],
) -> tuple[State, tuple[Wanted, ...]]:
    """What is to be set now, of the classes that `[pin] allow` names. `blocked`: why an act of a
    class may not be made by the daemon now."""
    if state.snapshot is None:
        return state, ()
    plan, taken_ns = state.host.plan, state.snapshot.taken_ns
    values = dict(state.values)
    _settle(values, plan, taken_ns)
    wanted: list[Wanted] = []
    waiting: dict[str, list[str]] = {}
    reasons = {(r.knob, r.subject): r.reason for r in plan.rows}
    actions = host_actions(plan, seen.consents.allow)
    for action in actions:
        key: Key = (action.knob, action.subject)
        if action.knob is Knob.IRQBALANCE or key == _busy(seen):
            continue
        one = values.get(key)
        if one is not None:
            if one.at_ns >= taken_ns or (not action.before and one.value == action.value):
                # The snapshot is older than what was last done, or does not tell this value.
                continue
            if one.manual is None and not one.correcting and action.before != one.value:
                one = _drifted(one, key, action, state, seen, events, now_ns, blocked)
                values[key] = one
            if one.manual is not None or one.suspect_ns:
                continue
        consent = consent_of(action)
        why = blocked(consent)
        if why is not None:
            if seen.actor != CONNECTING:
                waiting.setdefault(consent, []).append(why)
            continue
        failure = state.failures.get(failure_key(action))
        if failure is not None and _rests(failure, now_ns):
            waiting.setdefault(consent, []).append(failure.message)
            continue
        reason = "the guard puts right what somebody changed" if one is not None else ""
        wanted.append(Wanted(action, reason or reasons[action.knob, action.subject]))
    wanted = [*_told_first(wanted, actions, state, now_ns, blocked, reasons), *wanted]
    _say_waiting(state, waiting, events, now_ns)
    mine = {failure_key(a) for a in actions}
    kept = {k: f for k, f in state.failures.items() if k[0] != _NO_PROCESS or k in mine or holds(k)}
    held = {c: why[0] for c, why in waiting.items()}
    return replace(state, values=values, host_waiting=held, failures=kept), tuple(wanted)


def _settle(values: dict[Key, Set], plan: HostPlan, taken_ns: int) -> None:
    """What is as it should be: changed within what the plan allows, or put right meanwhile."""
    moving = {(str(r.knob), r.subject) for r in plan.rows if r.action == "move"}
    now = {(str(r.knob), r.subject): r.before for r in plan.rows if r.action == "keep"}
    for key, one in values.items():
        if key not in moving and one.at_ns < taken_ns:
            value = now.get(key) or one.value
            values[key] = replace(one, value=value, correcting=False, suspect_ns=0)


def _drifted(
    one: Set,
    key: Key,
    action: SetValue,
    state: State,
    seen: Seen,
    events: list[Event],
    now_ns: int,
    blocked: Callable[[Consent], str | None],
) -> Set:
    """Somebody set a value of ours to another one."""
    assert state.snapshot is not None
    seen_ns = one.suspect_ns or state.snapshot.taken_ns
    if one.journaled and seen.actor is None and state.journal_ns <= seen_ns:
        # Perhaps a person undid it: the journal is asked first.
        return replace(one, suspect_ns=seen_ns)
    what = (
        f"{_name(key)} was set from {one.value or 'none'} to {action.before or 'none'} by "
        f"{UNKNOWN.name}"
    )
    if one.corrected:
        events.append(
            event(
                "pin.manual",
                _name(key),
                Severity.WARNING,
                f"{what}; the second change is not corrected, it is left alone until place apply",
                now_ns,
                "find what sets it (irqbalance, tuned), then: nodeagentctl place apply --yes",
            )
        )
        return replace(one, manual="changed a second time", manual_ns=now_ns, suspect_ns=0)
    why = blocked(consent_of(action))
    then = f"not corrected: {why}" if why is not None else "it is put right once"
    events.append(event("pin.drift", _name(key), Severity.WARNING, f"{what}; {then}", now_ns))
    return replace(one, corrected=True, correcting=True, suspect_ns=0)


def _told_first(
    wanted: list[Wanted],
    actions: tuple[SetValue, ...],
    state: State,
    now_ns: int,
    blocked: Callable[[Consent], str | None],
    reasons: Mapping[tuple[Knob, str], str],
) -> list[Wanted]:
    """irqbalance is told of each interrupt that is moved now, before it is."""
    moved = {
        w.action.subject
        for w in wanted
        if isinstance(w.action, SetValue) and w.action.knob is Knob.IRQ_AFFINITY
    }
    found: list[Wanted] = []
    for action in actions:
        if action.knob is not Knob.IRQBALANCE or action.subject not in moved:
            continue
        failure = state.failures.get(failure_key(action))
        if blocked(Consent.HOST) is None and not (failure and _rests(failure, now_ns)):
            found.append(Wanted(action, reasons[action.knob, action.subject]))
    return found


def _rests(failure: Failure, now_ns: int) -> bool:
    return failure.tries >= MAX_TRIES or now_ns < failure.retry_ns


def _say_waiting(
    state: State, waiting: Mapping[str, list[str]], events: list[Event], now_ns: int
) -> None:
    for consent, why in waiting.items():
        if state.host_waiting.get(consent) == why[0]:
            continue
        count = f"{len(why)} values" if len(why) > 1 else "one value"
        events.append(
            event(
                "pin.waiting",
                f"class {consent}",
                Severity.INFO,
                f"{count} of the host (class {consent}) could be set and wait: {why[0]}",
                now_ns,
                "nodeagentctl place plan shows what would be done",
            )
        )


def _busy(seen: Seen) -> Key | None:
    action = seen.busy
    return (action.knob, action.subject) if isinstance(action, SetValue) else None


def _name(key: Key) -> str:
    return f"{key[0]} {key[1]}"
