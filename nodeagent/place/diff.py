"""`actions`: what must be done so that the processes are where the placement says. Pure.

Only what differs: a thread whose mask is inside its role's set is left alone, also when its own
program bound it to a part of that set. The order is the placement's, then by pid; every action can
be undone from the journal (pin/undo.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import (
    Consent,
    Knob,
    MoveToCpuset,
    Placed,
    Placement,
    ProcessAction,
    ProcessState,
    SetAffinity,
    SetValue,
    Sharing,
    Target,
    ThreadState,
)
from nodeagent.place import isolate
from nodeagent.place.holders import Facts, Hold, Holder, Hosts, holder
from nodeagent.place.match import matching
from nodeagent.place.roles import inside, outside, seats

CPUSET_ROOT = "/nodeagent"
"""Every cpuset of ours is below this one."""

MAX_TIDS = 4096
"""Threads that one action names; more make more actions."""

PinAction = ProcessAction | SetValue

KNOB_OF_HOLDER = {Holder.UNIT: Knob.UNIT_CPUS, Holder.CONTAINER: Knob.CONTAINER_CPUS}

THREADS_ONLY: frozenset[Consent] = frozenset({Consent.THREADS})


def actions(
    placement: Placement,
    processes: Sequence[ProcessState],
    consents: AbstractSet[Consent] = THREADS_ONLY,
    facts: Facts | None = None,
    everyone: Sequence[ProcessState] | None = None,
) -> tuple[PinAction, ...]:
    """The actions of the allowed classes, in order. With `cgroup`, what holds a process's cgroup
    (place/holders.py) gets the set, for its children too, and affinity is left to it; otherwise
    its threads are pinned. Roles need `threads`: a cgroup holds whole processes.

    `facts` None: nothing is known of the host, and a cpuset of our own holds. `everyone`: the
    processes of the host, where `processes` are fewer.
    """
    wanted: list[PinAction] = []
    chosen = holds(placement, processes, consents, facts, everyone)
    for placed, process in _owned(placement, processes):
        hold = chosen[process.pid]
        for action in (
            _isolated(placed, process, consents, facts)
            if facts is not None
            and isolate.wants(placed.workload, facts)
            and isolate.why_not(placed, placement, hold, consents, facts) is None
            else _for(placed, process, consents, hold)
        ):
            # A unit or container is set once for all of its processes.
            if not (isinstance(action, SetValue) and action in wanted):
                wanted.append(action)
    return tuple(wanted)


def holds(
    placement: Placement,
    processes: Sequence[ProcessState],
    consents: AbstractSet[Consent] = THREADS_ONLY,
    facts: Facts | None = None,
    everyone: Sequence[ProcessState] | None = None,
) -> dict[int, Hold]:
    """Who is to hold each placed process, by pid, and why."""
    owned = _owned(placement, processes)
    mine: dict[str, set[int]] = {}
    for placed, process in owned:
        mine.setdefault(placed.workload, set()).add(process.pid)
    every = Hosts(everyone if everyone is not None else processes)
    found: dict[int, Hold] = {}
    for placed, process in owned:
        hold = holder(process, mine[placed.workload], every, consents, facts)
        if facts is not None and isolate.wants(placed.workload, facts):
            why = isolate.why_not(placed, placement, hold, consents, facts)
            hold = isolate.told_of(hold, placed, why)
        found[process.pid] = replace(hold, workload=placed.workload)
    return found


def told(placement: Placement, chosen: Mapping[int, Hold]) -> Placement:
    """The same with the holders' sentences among the reasons. `chosen`: by pid, from `holds`."""
    said: dict[str, list[str]] = {}
    for hold in chosen.values():
        if hold.worth_telling and hold.reason not in said.setdefault(hold.workload, []):
            said[hold.workload].append(hold.reason)
    return replace(
        placement,
        placed=tuple(
            replace(p, reasons=(*p.reasons, *said.get(p.workload, ()))) for p in placement.placed
        ),
    )


def _owned(
    placement: Placement, processes: Sequence[ProcessState]
) -> list[tuple[Placed, ProcessState]]:
    seen: set[int] = set()
    found = []
    for placed in placement.placed:
        for process in matching(placed.match, processes):
            if process.pid not in seen:
                seen.add(process.pid)
                found.append((placed, process))
    return found


def _for(
    placed: Placed, process: ProcessState, consents: AbstractSet[Consent], hold: Hold
) -> tuple[PinAction, ...]:
    stray = outside(placed, process)
    if not stray or hold.holder is Holder.NOBODY:
        return ()
    acts: list[PinAction] = []
    target = Target(pid=process.pid, tid=0, start_time=process.start_time)
    if not all(inside(t.cpus, placed.cpus) for t in stray):
        match hold.holder:
            case Holder.UNIT | Holder.CONTAINER:
                acts.append(
                    SetValue(
                        workload=placed.workload,
                        knob=KNOB_OF_HOLDER[hold.holder],
                        subject=hold.subject,
                        value=str(placed.cpus),
                        before="",
                        exclusive=_exclusive(placed),
                    )
                )
            case Holder.CPUSET:
                acts.append(
                    MoveToCpuset(
                        workload=placed.workload,
                        target=target,
                        cpuset=f"{CPUSET_ROOT}/{placed.workload}",
                        cpus=placed.cpus,
                        mems=placed.mems,
                        before=process.cgroup,
                        exclusive=_exclusive(placed),
                    )
                )
            case Holder.THREADS:
                pass
    if Consent.THREADS in consents and (placed.roles or not acts):
        acts += (
            _by_role(placed, process, stray) if placed.roles else [_whole(placed, target, stray)]
        )
    return tuple(acts)


def _isolated(
    placed: Placed, process: ProcessState, consents: AbstractSet[Consent], facts: Facts
) -> tuple[PinAction, ...]:
    """Into its partition; roles inside it are thread by thread as everywhere."""
    stray = outside(placed, process)
    roles = placed.roles and stray and Consent.THREADS in consents
    return (
        *isolate.acts(placed, process, facts),
        *(_by_role(placed, process, stray) if roles else ()),
    )


def _whole(placed: Placed, target: Target, stray: Sequence[ThreadState]) -> SetAffinity:
    return SetAffinity(
        workload=placed.workload,
        target=target,
        cpus=placed.cpus,
        before=_union(stray),
        exclusive=_exclusive(placed),
    )


def _exclusive(placed: Placed) -> bool:
    return placed.sharing is Sharing.EXCLUSIVE


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
            exclusive=_exclusive(placed),
        )
        for cpus, threads in groups.items()
        for some in (threads[i : i + MAX_TIDS] for i in range(0, len(threads), MAX_TIDS))
    ]


def _union(threads: Sequence[ThreadState]) -> CpuSet:
    before = CpuSet()
    for thread in threads:
        before |= thread.cpus
    return before
