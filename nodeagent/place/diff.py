"""`actions`: what must be done so that the processes are where the placement says. Pure.

Only what differs: a thread whose mask is inside its role's set is left alone, also when its own
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
    ThreadState,
)
from nodeagent.place.match import matching
from nodeagent.place.roles import inside, outside, seats

CPUSET_ROOT = "/nodeagent"
"""Every cpuset of ours is below this one."""

MAX_TIDS = 4096
"""Threads that one action names; more make more actions."""

THREADS_ONLY: frozenset[Consent] = frozenset({Consent.THREADS})


def actions(
    placement: Placement,
    processes: Sequence[ProcessState],
    consents: AbstractSet[Consent] = THREADS_ONLY,
) -> tuple[ProcessAction, ...]:
    """The actions of the allowed classes, in order. With `cgroup`, a process is moved to a cpuset
    (which holds its children too) and affinity is left to it; otherwise its threads are pinned.
    Roles need `threads`: a cpuset holds whole processes."""
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
    stray = outside(placed, process)
    if not stray:
        return ()
    acts: list[ProcessAction] = []
    target = Target(pid=process.pid, tid=0, start_time=process.start_time)
    if Consent.CGROUP in consents and not all(inside(t.cpus, placed.cpus) for t in stray):
        acts.append(
            MoveToCpuset(
                workload=placed.workload,
                target=target,
                cpuset=f"{CPUSET_ROOT}/{placed.workload}",
                cpus=placed.cpus,
                mems=placed.mems,
                before=process.cgroup,
            )
        )
    if Consent.THREADS in consents and (placed.roles or not acts):
        acts += (
            _by_role(placed, process, stray) if placed.roles else [_whole(placed, target, stray)]
        )
    return tuple(acts)


def _whole(placed: Placed, target: Target, stray: Sequence[ThreadState]) -> SetAffinity:
    return SetAffinity(
        workload=placed.workload, target=target, cpus=placed.cpus, before=_union(stray)
    )


def _by_role(
    placed: Placed, process: ProcessState, stray: Sequence[ThreadState]
) -> list[ProcessAction]:
    """One action for each set of PUs, naming its threads: what is born later has its role read
    first, and is the next turn's."""
    where = seats(placed, process)
    groups: dict[CpuSet, list[ThreadState]] = {}
    for given in placed.roles:
        groups[given.cpus] = []
    for thread in stray:
        groups.setdefault(where[thread.tid].cpus, []).append(thread)
    return [
        SetAffinity(
            workload=placed.workload,
            target=Target(pid=process.pid, tid=0, start_time=process.start_time),
            cpus=cpus,
            before=_union(some),
            tids=tuple(t.tid for t in some),
        )
        for cpus, threads in groups.items()
        for some in (threads[i : i + MAX_TIDS] for i in range(0, len(threads), MAX_TIDS))
    ]


def _union(threads: Sequence[ThreadState]) -> CpuSet:
    before = CpuSet()
    for thread in threads:
        before |= thread.cpus
    return before
