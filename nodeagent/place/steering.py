"""Where a NIC's queues are steered under a placement: XPS and RPS. Pure.

XPS puts no work on the CPUs that it names, so it is set only where a workload asks for a queue of
its own. RPS does: quiet CPUs are taken out of its masks, wherever they stand.
Source: Documentation/networking/scaling.rst.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.hostplan import HostRow
from nodeagent.model.placement import Knob, Placement, Workload
from nodeagent.model.snapshot import NicFacts, Snapshot
from nodeagent.place.irqs import near_nics
from nodeagent.place.quiet import Quiet

NET = "sys/class/net"


def queue_rows(
    snapshot: Snapshot, workloads: Sequence[Workload], placement: Placement, quiet: Quiet
) -> tuple[HostRow, ...]:
    """A row for each queue whose mask is set."""
    near = near_nics(snapshot, workloads, placement)
    rows: list[HostRow] = []
    for nic in snapshot.nics:
        if nic.bdf is None:
            continue
        mine = near.get(nic.bdf, ())
        rows += _receiving(snapshot, nic, mine, placement, quiet)
        rows += _sending(snapshot, nic, mine, placement)
    return tuple(rows)


def masks(snapshot: Snapshot, nic: NicFacts, side: str, file: str) -> dict[int, CpuSet]:
    """Queue -> its mask, of those that could be read."""
    found: dict[int, CpuSet] = {}
    for queue in range(nic.rx_queues if side == "rx" else nic.tx_queues):
        text = snapshot.texts.get(f"{NET}/{nic.name}/queues/{side}-{queue}/{file}")
        if text is None:
            continue
        try:
            found[queue] = CpuSet.parse_mask(text)
        except ParseError:
            continue
    return found


def _receiving(
    snapshot: Snapshot,
    nic: NicFacts,
    near: Sequence[Workload],
    placement: Placement,
    quiet: Quiet,
) -> Iterator[HostRow]:
    function = snapshot.topology.function(nic.bdf or "")
    node = function.numa_node if function is not None else None
    room = quiet.near(node) if near else CpuSet()
    room = room or quiet.rest
    owned = {q: w for w in near for q in w.queues or ()}
    for queue, mask in masks(snapshot, nic, "rx", "rps_cpus").items():
        owner = owned.get(queue)
        placed = placement.of(owner.name) if owner is not None else None
        if not mask or (placed is not None and mask <= placed.cpus):
            # Off: the interrupt's own CPU does the work, and that one is looked after.
            continue
        if not room or mask <= room:
            continue
        goal = mask & room or room
        what = "isolated or exclusive PUs" if mask & quiet.cpus else "another node"
        yield HostRow(
            knob=Knob.RPS,
            subject=f"{nic.name}/rx-{queue}",
            device=nic.name,
            action="move",
            value=str(goal),
            before=str(mask),
            reason=f"packets of this queue are processed on {what} ({mask - goal})",
            workload=near[0].name if near else "",
        )


def _sending(
    snapshot: Snapshot, nic: NicFacts, near: Sequence[Workload], placement: Placement
) -> Iterator[HostRow]:
    now = masks(snapshot, nic, "tx", "xps_cpus")
    owners: dict[int, tuple[str, CpuSet]] = {}
    own = CpuSet()
    for workload in near:
        placed = placement.of(workload.name)
        if workload.queues is None or placed is None:
            continue
        cpus = list(placed.cpus)
        numbers = [q for q in workload.queues if q in now]
        for i, queue in enumerate(numbers):
            share = CpuSet.of(cpus[i :: len(numbers)]) or CpuSet.of(cpus[:1])
            owners.setdefault(queue, (workload.name, share))
        if numbers:
            own |= placed.cpus
    for queue, mask in now.items() if owners else ():
        name, goal = owners.get(queue, ("", mask - own))
        if goal == mask:
            continue
        yield HostRow(
            knob=Knob.XPS,
            subject=f"{nic.name}/tx-{queue}",
            device=nic.name,
            action="move",
            value=str(goal),
            before=str(mask),
            reason=f"{name} asks for queue {queue}: it alone sends there"
            if name
            else f"CPU {mask & own} sends by the queues of its own",
            workload=name or near[0].name,
        )
