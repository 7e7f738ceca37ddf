"""The placed workloads as they are, for status. Pure."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.daemon.guard import ProcessKey
from nodeagent.daemon.owned import mine, ran_of
from nodeagent.daemon.pins import blocked_by
from nodeagent.daemon.state import Seen, State
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Consent, Held
from nodeagent.place import isolate
from nodeagent.place.held import held as held_rows
from nodeagent.place.locality import memory_local


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
        ran = ran_of(seen.probe, process.pid)
        base = bases.setdefault(process.pid, ran)
        if ran and any(ran.get(cpu, 0) < ns for cpu, ns in base.items()):
            # The programs were attached anew, and count from nothing.
            base = bases[process.pid] = ran
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
            guard=_guard_says(state, seen, key) or isolation.get(row.pid or 0, ""),
            compared=_compared(state, key),
            memory_local=local.get(row.pid or 0),
        )
        for row in rows
        for key in [(row.pid or 0, starts.get(row.pid or 0, 0))]
    )
    return replace(state, run_base=bases), said


def _guard_says(state: State, seen: Seen, key: ProcessKey) -> str:
    pin = state.guard.pins.get(key)
    if pin is None:
        return ""
    if pin.manual is not None:
        return f"manual: {pin.manual}"
    if pin.correcting:
        blocked = blocked_by(Consent.THREADS, state, seen)
        then = f"not corrected: {blocked}" if blocked else "it is being put right"
        return f"moved by {pin.corrected[-1]}; {then}"
    return f"put right after {', '.join(pin.corrected)}" if pin.corrected else ""


def _compared(state: State, key: ProcessKey) -> str:
    track = state.tracks.by_key.get(key)
    result = None if track is None else track.result
    return "" if result is None else f"{result.sign}: {result.reason}"
