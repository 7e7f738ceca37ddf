"""Whose processes the placed workloads' are. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from nodeagent.daemon.guard import ProcessKey
from nodeagent.daemon.state import State
from nodeagent.model.placement import Placed, ProcessState, SetValue
from nodeagent.model.probe import ProbeStatus
from nodeagent.place.diff import PinAction


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


def of_workload(state: State, workload: str) -> list[tuple[Placed, ProcessState]]:
    """Those of one workload."""
    return [(placed, p) for placed, p in mine(state) if placed.workload == workload]


def keys_of(state: State, action: PinAction) -> list[ProcessKey]:
    """The processes that an action is about."""
    if isinstance(action, SetValue):
        return [(p.pid, p.start_time) for _, p in of_workload(state, action.workload)]
    return [(action.target.pid, action.target.start_time)]


def ran_of(probe: ProbeStatus | None, pid: int) -> Mapping[int, int]:
    """CPU -> nanoseconds that a process ran there, as the probe counts; empty: not known."""
    delays = probe.delays if probe is not None else ()
    return next((dict(d.run_ns_by_cpu) for d in delays if d.pid == pid), {})
