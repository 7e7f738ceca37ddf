"""Memory and hugepages of each node: what there is to promise, and what a workload takes. Pure.

Each is promised once. A workload that runs on the node already holds what it needs: only newcomers
are held against what is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Workload
from nodeagent.model.topology import NumaNode, Topology
from nodeagent.place.answer import Resource

ALL, FREE, PAGES, FREE_PAGES = "memory", "free memory", "hugepages", "free hugepages"
"""Names of what is promised. `memory` is the node's, without its hugepage pools."""


def size(count: int) -> str:
    """Bytes in MiB, rounded down, for a sentence."""
    return f"{count >> 20:,} MiB"


def page(count: int, between: str = " ") -> str:
    """Bytes in the largest unit that leaves no rest, as page sizes are told: 2 MiB, 1 GiB."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >> shift and not count & ((1 << shift) - 1):
            return f"{count >> shift}{between}{unit}"
    return f"{count}{between}B"


def room_of(topology: Topology, workloads: Iterable[Workload]) -> dict[Resource, int]:
    """Bytes of each node; what the machine does not tell is not there and bounds nobody."""
    sizes = {s for w in workloads for s, _ in w.hugepages}
    room: dict[Resource, int] = {}
    for node in topology.nodes:
        pools = {p.size_bytes: p for p in node.hugepages}
        if node.memory_bytes is not None:
            pooled = sum(p.size_bytes * p.total for p in node.hugepages)
            room[ALL, node.id, 0] = max(0, node.memory_bytes - pooled)
        left = free_of(node)
        if left is not None:
            room[FREE, node.id, 0] = left
        for s in sizes if pools else ():
            pool = pools.get(s)
            room[PAGES, node.id, s] = s * pool.total if pool is not None else 0
            room[FREE_PAGES, node.id, s] = s * pool.free if pool is not None else 0
    return room


def free_of(node: NumaNode) -> int | None:
    """Bytes that a newcomer could have: free, or page cache that can be dropped at once."""
    if node.memory_available_bytes is not None:
        return node.memory_available_bytes
    return node.memory_free_bytes


def demand_of(workload: Workload, mems: CpuSet, holds: bool) -> dict[Resource, int]:
    """What it takes of those nodes (one); `holds`: it runs there, and has its memory already."""
    node = next(iter(mems), None)
    if node is None:
        return {}
    wanted: dict[Resource, int] = {}
    if workload.memory_bytes:
        wanted[ALL, node, 0] = workload.memory_bytes
        if not holds:
            wanted[FREE, node, 0] = workload.memory_bytes
    for s, amount in workload.hugepages:
        rounded = -(-amount // s) * s
        wanted[PAGES, node, s] = rounded
        if not holds:
            wanted[FREE_PAGES, node, s] = rounded
    return wanted


def added(demands: Iterable[Mapping[Resource, int]]) -> dict[Resource, int]:
    """The sum, by resource."""
    total: dict[Resource, int] = {}
    for demand in demands:
        for key, amount in demand.items():
            total[key] = total.get(key, 0) + amount
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Short:
    """What is missing: a resource, the bytes left of it for this group, and those it needs."""

    what: Resource
    left: int
    need: int

    def sentence(self, topology: Topology, holds: str) -> str:
        """In words with figures; `holds` names the node that has it."""
        name, number, page_size = self.what
        node = topology.node(number)
        assert node is not None
        where = f"node {number}"
        if where != holds:
            where = f"{holds}'s memory, {where},"
        if name == ALL:
            return (
                f"{where} has {size(self.left)} of memory not promised to others, the request "
                f"needs {size(self.need)}"
            )
        if name == FREE:
            free = node.memory_free_bytes
            of_it = f" ({size(free)} free)" if free is not None and free != free_of(node) else ""
            promised = (free_of(node) or 0) - self.left
            minus = f", {size(promised)} of it promised to others" if promised else ""
            return (
                f"{where} has {size(free_of(node) or 0)} of memory available{of_it}{minus}, the "
                f"request needs {size(self.need)}"
            )
        pool = next((p for p in node.hugepages if p.size_bytes == page_size), None)
        if pool is None:
            return (
                f"{where} has no pool of {page(page_size)} pages, the request needs "
                f"{size(self.need)}"
            )
        kind = "free pages" if name == FREE_PAGES else "pages not promised to others"
        return (
            f"{where} has {self.left // page_size:,} {kind} of {page(page_size)}, the request "
            f"needs {self.need // page_size:,}"
        )


def short_of(demand: Mapping[Resource, int], left: Mapping[Resource, int]) -> Short | None:
    """What is missing most; None: all of it is there."""
    short = [
        Short(what=key, left=max(0, left[key]), need=need)
        for key, need in demand.items()
        if left.get(key, need) < need
    ]
    return min(short, key=lambda s: (s.left - s.need, s.what), default=None)
