"""`actions`: what must be done so that the processes are where the placement says. Pure.

Only what differs: a thread whose mask is inside the planned set is left alone, also when its own
program bound it to a part of that set. The order is the placement's, then by pid; every action can
be undone from the journal (pin/undo.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import (
    Consent,
    MoveToCpuset,
    Placed,
    Placement,
    ProcessAction,
    ProcessState,
    SetAffinity,
    Target,
)
from nodeagent.place.match import matching

CPUSET_ROOT = "/nodeagent"
"""Every cpuset of ours is below this one."""

THREADS_ONLY: frozenset[Consent] = frozenset({Consent.THREADS})


def actions(
    placement: Placement,
    processes: Sequence[ProcessState],
    consents: AbstractSet[Consent] = THREADS_ONLY,
) -> tuple[ProcessAction, ...]:
    """The actions of the allowed classes, in order. With `cgroup`, a process is moved to a cpuset
    (which holds its children too) and affinity is left to it; otherwise its threads are pinned."""
    wanted: list[ProcessAction] = []
    seen: set[int] = set()
    for placed in placement.placed:
        for process in matching(placed.match, processes):
            if process.pid in seen:
                continue
            seen.add(process.pid)
            wanted.extend(_for(placed, process, consents))
    return tuple(wanted)


def _for(
    placed: Placed, process: ProcessState, consents: AbstractSet[Consent]
) -> tuple[ProcessAction, ...]:
    outside = [t for t in process.threads if not inside(t.cpus, placed.cpus)]
    if not outside:
        return ()
    target = Target(pid=process.pid, tid=0, start_time=process.start_time)
    if Consent.CGROUP in consents:
        return (
            MoveToCpuset(
                workload=placed.workload,
                target=target,
                cpuset=f"{CPUSET_ROOT}/{placed.workload}",
                cpus=placed.cpus,
                mems=placed.mems,
                before=process.cgroup,
            ),
        )
    if Consent.THREADS in consents:
        before = CpuSet()
        for thread in outside:
            before |= thread.cpus
        return (
            SetAffinity(workload=placed.workload, target=target, cpus=placed.cpus, before=before),
        )
    return ()


def inside(mask: CpuSet, planned: CpuSet) -> bool:
    """Whether a thread with that mask runs within the plan; an unread (empty) mask does not."""
    return bool(mask) and mask <= planned
