"""What became of the acts: pins that hold, failures that are tried again. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from nodeagent.daemon import guard as guarding
from nodeagent.daemon import hostvalues
from nodeagent.daemon.guard import UNKNOWN, Guard, Pin
from nodeagent.daemon.links import event
from nodeagent.daemon.owned import keys_of, of_workload, ran_of
from nodeagent.daemon.state import (
    MAX_TRIES,
    RETRY_NS,
    Done,
    Failure,
    Seen,
    State,
    failure_key,
)
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.event import Event, Severity
from nodeagent.model.placement import (
    HOLDING,
    Action,
    MigrateMemory,
    Outcome,
    ProcessAction,
    ProcessState,
    SetAffinity,
    SetValue,
    subject_of,
)


def take_results(state: State, seen: Seen, events: list[Event]) -> State:
    """Each act that ended since the last turn, said, and its pin or failure noted."""
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
                    pins = (state.guard.pins.get(k) for k in keys_of(state, action))
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
                            key[0]: ran_of(seen.probe, key[0]),
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
                events.append(_gone(action, subject, result.message, at_ns))
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


def _gone(action: Action, subject: str, message: str, at_ns: int) -> Event:
    """Of processes one event a workload: one that starts hundreds a second would fill the log, and
    what its owner can do is the same for all of them."""
    if isinstance(action, SetValue | MigrateMemory):
        return event("pin.gone", subject, Severity.INFO, message, at_ns)
    return event(
        "pin.gone",
        action.workload,
        Severity.INFO,
        f"{action.workload}: {message} before it was put on {action.cpus}",
        at_ns,
        "where that is usual, start it there: nodeagentctl exec --workload "
        f"{action.workload} -- COMMAND",
    )


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
    for _, process in of_workload(state, action.workload):
        guard = guarding.pinned(guard, process, action.workload, cpus, _actual(process), at_ns, ())
        bases[process.pid] = ran_of(seen.probe, process.pid)
    return replace(state, guard=guard, run_base=bases)


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
