"""Where interrupts go under a placement: those of a near NIC to its node, a CPU a queue; any other
off isolated CPUs and off those of exclusive workloads. Pure.

Least that is needed: what is well where it is stays, what never fired is left, what the kernel
manages is explained. Source: Documentation/networking/scaling.rst, "RSS IRQ configuration".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.hostplan import HostRow
from nodeagent.model.placement import Knob, Placement, Workload
from nodeagent.model.snapshot import Irq, Snapshot
from nodeagent.model.topology import Topology
from nodeagent.place.quiet import Quiet

NOT_A_QUEUE = re.compile(r"async|misc|config|ctrl|mbox|cmd|fdir|link|event|page|health", re.I)
_QUEUE_NUMBER = re.compile(r"(\d+)(?:@.*)?$")
MANAGED = (
    "the kernel manages its affinity and refuses a write (EIO, EPERM): it fires only for I/O "
    "started there"
)


def lands(irq: Irq) -> CpuSet:
    """Where an interrupt goes: the effective mask, else the one that was set."""
    return irq.effective or irq.affinity or CpuSet()


def queue_of(irq: Irq, interface: str = "") -> int | None:
    """The number of the queue that an interrupt serves, by its name; None: of no queue. One that
    is named as its interface (eth0) has the link's events, or everything where it is alone."""
    if irq.name == interface or NOT_A_QUEUE.search(irq.name.partition("@")[0]):
        return None
    found = _QUEUE_NUMBER.search(irq.name)
    return int(found[1]) if found else None


def irq_rows(
    snapshot: Snapshot, workloads: Sequence[Workload], placement: Placement, quiet: Quiet
) -> tuple[HostRow, ...]:
    """A row for each interrupt that is set, or whose staying has a reason worth telling."""
    nics = near_nics(snapshot, workloads, placement)
    rows: list[HostRow] = []
    seen: set[int] = set()
    for bdf, mine in nics.items():
        irqs = [i for i in snapshot.irqs if i.bdf == bdf and i.affinity is not None]
        seen |= {i.number for i in irqs}
        rows += _near(snapshot, bdf, irqs, mine, placement, quiet)
    rows += [
        row
        for irq in snapshot.irqs
        if irq.number not in seen and (row := _other(snapshot, irq, quiet)) is not None
    ]
    return tuple(rows)


def near_nics(
    snapshot: Snapshot, workloads: Sequence[Workload], placement: Placement
) -> Mapping[str, tuple[Workload, ...]]:
    """PCI function of each NIC that placed workloads are near, with those workloads."""
    there = {n.bdf for n in snapshot.nics if n.bdf is not None}
    found: dict[str, tuple[Workload, ...]] = {}
    for workload in workloads:
        if workload.near in there and placement.of(workload.name) is not None:
            assert workload.near is not None
            found[workload.near] = (*found.get(workload.near, ()), workload)
    return found


def device_of(snapshot: Snapshot, irq: Irq) -> str:
    """Whose interrupt it is, for people."""
    names = [n.name for n in snapshot.nics if n.bdf is not None and n.bdf == irq.bdf]
    names += [n.name for n in snapshot.nvmes if n.bdf is not None and n.bdf == irq.bdf]
    return names[0] if names else irq.bdf or irq.name or f"IRQ {irq.number}"


def node_of(topology: Topology, irq: Irq) -> int | None:
    """The device's node, else the interrupt's own; None: nothing names one."""
    device = topology.function(irq.bdf) if irq.bdf else None
    return device.numa_node if device is not None else irq.node


def spread_order(topology: Topology, cpus: CpuSet) -> list[int]:
    """One PU of each core first, then the second ones: queues do not share a core before they
    must."""
    rank = {cpu: i for core in topology.cores for i, cpu in enumerate(core)}
    return sorted(cpus, key=lambda cpu: (rank.get(cpu, 0), cpu))


def _near(
    snapshot: Snapshot,
    bdf: str,
    irqs: Sequence[Irq],
    workloads: Sequence[Workload],
    placement: Placement,
    quiet: Quiet,
) -> list[HostRow]:
    """The interrupts of a NIC that workloads are near."""
    topology = snapshot.topology
    function = topology.function(bdf)
    node = function.numa_node if function is not None else None
    room = quiet.near(node)
    names = ", ".join(w.name for w in workloads)
    first = workloads[0].name
    if not room:
        why = (
            f"the firmware names no node for it, so it is not brought near {names}"
            if node is None
            else f"node {node} has no CPU that is neither isolated nor exclusive"
        )
        return [
            _other(snapshot, i, quiet) or _row(snapshot, i, "leave", lands(i), why, first)
            for i in irqs
        ]
    asked = _asked(workloads, placement)
    interface = next((n.name for n in snapshot.nics if n.bdf == bdf), "")
    # One interrupt for everything is that of queue 0.
    alone = len(irqs) == 1
    queue = {i.number: 0 if alone else queue_of(i, interface) for i in irqs}
    queues = [i for i in irqs if queue[i.number] is not None and queue[i.number] not in asked]
    free = [i for i in queues if i.managed is not True]
    load = dict.fromkeys(room, 0)
    most = -(-len(free) // len(room))
    rows: dict[int, HostRow] = {}
    for irq in irqs:
        number = queue[irq.number]
        if irq.managed:
            rows[irq.number] = _row(snapshot, irq, "leave", lands(irq), MANAGED, first)
        elif number in asked:
            owner, cpu = asked[number]
            why = f"{owner} asks for queue {number} on its own PU"
            rows[irq.number] = _to(snapshot, irq, CpuSet.of([cpu]), why, owner)
        elif number is None:
            off = bool(lands(irq) & quiet.cpus)
            why = f"off isolated and exclusive PUs, on node {node} of {names}'s NIC"
            rows[irq.number] = (
                _to(snapshot, irq, room, why, first)
                if off
                else _row(snapshot, irq, "keep", lands(irq), "it serves no queue", first)
            )
        elif len(at := lands(irq)) == 1 and (irq.affinity or at) <= room and load[min(at)] < most:
            load[min(at)] += 1
            why = f"on node {node}, where {names} and its NIC are"
            rows[irq.number] = _row(snapshot, irq, "keep", irq.affinity or at, why, first)
    order = spread_order(topology, room)
    for irq in free:
        if irq.number not in rows:
            cpu = min(order, key=lambda c: load[c])
            load[cpu] += 1
            why = (
                f"node {node} is where {names} and its NIC are; a CPU a queue, off isolated and "
                "exclusive PUs"
            )
            rows[irq.number] = _to(snapshot, irq, CpuSet.of([cpu]), why, first)
    return [rows[i.number] for i in irqs]


def _asked(workloads: Sequence[Workload], placement: Placement) -> dict[int, tuple[str, int]]:
    """Queue -> (workload, its PU), for those that ask for queues of their own."""
    found: dict[int, tuple[str, int]] = {}
    for workload in workloads:
        placed = placement.of(workload.name)
        if workload.queues is None or placed is None:
            continue
        cpus = list(placed.cpus)
        for i, queue in enumerate(workload.queues):
            found.setdefault(queue, (workload.name, cpus[i % len(cpus)]))
    return found


def _other(snapshot: Snapshot, irq: Irq, quiet: Quiet) -> HostRow | None:
    """An interrupt that is delivered to a quiet CPU and fired there; None: it disturbs nobody."""
    hit = lands(irq) & quiet.cpus
    fired = any(cpu in quiet.cpus for cpu, _ in irq.counts)
    if not hit or not fired or irq.affinity is None or _of_every_cpu(snapshot, irq):
        return None
    if irq.managed:
        return _row(snapshot, irq, "leave", lands(irq), MANAGED)
    if not irq.affinity & quiet.cpus:
        why = f"its mask leaves CPU {hit} out already: the kernel moves it when it fires next"
        return _row(snapshot, irq, "leave", irq.affinity, why)
    node = node_of(snapshot.topology, irq)
    goal = quiet.kept(node)
    if not goal:
        return _row(snapshot, irq, "leave", lands(irq), "no CPU is left to move it to")
    where = f" of node {node}" if goal <= quiet.near(node) else ""
    what = "isolated" if hit <= snapshot.topology.isolation.isolated else "exclusive"
    why = f"it fires on {what} CPU {hit}; housekeeping{where} takes it"
    return _to(snapshot, irq, goal, why)


def _of_every_cpu(snapshot: Snapshot, irq: Irq) -> bool:
    """An interrupt that each CPU has for itself (timers of Arm), which cannot be moved."""
    online = snapshot.topology.online
    return irq.bdf is None and len(online) > 2 and len(irq.counts) >= len(online)


@lru_cache(maxsize=256)
def _text(cpus: CpuSet) -> str:
    """Thousands of interrupts have a few sets between them."""
    return str(cpus)


def _to(snapshot: Snapshot, irq: Irq, goal: CpuSet, why: str, workload: str = "") -> HostRow:
    action = "keep" if irq.affinity == goal else "move"
    return _row(snapshot, irq, action, goal, why, workload)


def _row(
    snapshot: Snapshot, irq: Irq, action: str, cpus: CpuSet, why: str, workload: str = ""
) -> HostRow:
    return HostRow(
        knob=Knob.IRQ_AFFINITY,
        subject=str(irq.number),
        device=device_of(snapshot, irq),
        action=action,
        value=_text(cpus),
        before=_text(irq.affinity or CpuSet()),
        reason=why,
        managed=irq.managed,
        workload=workload,
    )
