"""CPUs that are pinned already by somebody else's workload file: never given a second time. Pure.

The planner knows the workloads of one file. What another file's workloads were pinned to stands in
the undo journal, for as long as those processes live.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from nodeagent.model.actions import JournalEntry
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import (
    HOLDING,
    Knob,
    Placed,
    Placement,
    ProcessState,
    Refused,
    Sharing,
    Workload,
)
from nodeagent.place.match import claims


def without_taken(
    placement: Placement,
    workloads: Sequence[Workload],
    processes: Sequence[ProcessState],
    journal: Sequence[JournalEntry],
) -> Placement:
    """The placement less its workloads (and their units) whose PUs are another file's: the
    exclusive ones where anybody else is pinned to one, the shared ones where that is an exclusive
    workload."""
    return without(placement, workloads, elsewhere(workloads, processes, journal))


def elsewhere(
    workloads: Sequence[Workload],
    processes: Sequence[ProcessState],
    journal: Sequence[JournalEntry],
) -> tuple[JournalEntry, ...]:
    """Acts in force on processes that the file does not match, and on units and containers of
    workloads that it does not name.

    A process that the file matches under another name is its own: the workload was renamed. One
    that it does not match is not, whatever its workload is called: two files may use one name.
    """
    named = {w.name for w in workloads}
    owned, _ = claims(workloads, processes)
    mine = {t.pid for targets in owned.values() for t in targets}
    alive = {(p.pid, p.start_time): p for p in processes}
    here = [p for p in processes if p.pid in mine]
    return tuple(
        e for e in journal if _pins(e, mine, alive) or (e.workload not in named and _holds(e, here))
    )


def without(
    placement: Placement, workloads: Sequence[Workload], others: Sequence[JournalEntry]
) -> Placement:
    """The same, of what `elsewhere` found."""
    named = {w.name for w in workloads}
    why = {
        p.workload: found
        for p in placement.placed
        if (found := _taken(p, others, named)) is not None
    }
    if not why:
        return placement
    units = {p.unit: p.workload for p in placement.placed if p.workload in why and p.unit}
    for placed in placement.placed:
        if placed.unit in units and placed.workload not in why:
            first = why[units[placed.unit]]
            why[placed.workload] = replace(
                first,
                workload=placed.workload,
                reason=f"unit {placed.unit} is placed whole or not at all, and "
                f"{first.workload} is refused: {first.reason}",
            )
    order = {w.name: i for i, w in enumerate(workloads)}
    refused = sorted(
        (*placement.refused, *why.values()), key=lambda r: order.get(r.workload, len(order))
    )
    return replace(
        placement,
        placed=tuple(p for p in placement.placed if p.workload not in why),
        refused=tuple(refused),
    )


def _pins(
    entry: JournalEntry, mine: AbstractSet[int], alive: Mapping[tuple[int, int], ProcessState]
) -> bool:
    """Whether a process that is not ours is still where an act put it."""
    process = alive.get((entry.pid, entry.start_time))
    if not entry.cpus or process is None or entry.pid in mine:
        return False
    # Without its threads' masks it is taken to be where it was put.
    return not process.threads or any(t.cpus <= entry.cpus for t in process.threads)


def _holds(entry: JournalEntry, here: Sequence[ProcessState]) -> bool:
    """Whether a unit or container that is not ours has CPUs of its own, whoever is in it now."""
    if entry.knob not in HOLDING:
        return False
    unit = entry.knob == Knob.UNIT_CPUS
    name = entry.subject if unit else entry.subject.partition(":")[2]
    return not any(_in(p, name, unit) for p in here)


def _in(process: ProcessState, name: str, unit: bool) -> bool:
    """By whole names: a.service is not data.service."""
    box = process.container
    if not unit and box is not None:
        return box.id == name
    return f"/{name}/" in f"{process.cgroup}/"


def _cpus(entry: JournalEntry) -> CpuSet:
    return CpuSet.parse(entry.value) if entry.knob else entry.cpus


def _taken(
    placed: Placed, others: Sequence[JournalEntry], named: AbstractSet[str]
) -> Refused | None:
    alone = placed.sharing is Sharing.EXCLUSIVE
    found = next((e for e in others if (alone or e.exclusive) and _cpus(e) & placed.cpus), None)
    if found is None:
        return None
    both = _cpus(found) & placed.cpus
    who = found.subject if found.knob else f"process {found.pid}"
    kind = "exclusive workload" if found.exclusive else "workload"
    pinned = (
        f"CPU {both} of its {placed.cpus} is where {who} of {kind} {found.workload} is pinned "
        f"(act {found.id}, by {found.by})"
    )
    if found.workload in named:
        return Refused(
            workload=placed.workload,
            reason=f"{pinned}, and this file's {found.workload} does not match that process",
            would_fit_if=f"it were undone: nodeagentctl undo {found.id}",
        )
    return Refused(
        workload=placed.workload,
        reason=f"{pinned}, and this file does not name that workload",
        would_fit_if=f"{found.workload} stood in the same file, or were released: "
        f"nodeagentctl place release {found.workload}",
    )
