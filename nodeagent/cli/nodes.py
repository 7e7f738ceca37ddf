"""NUMA nodes that a program is to be started on: whether it may have them, and whether what it
wants is there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nodeagent.errors import ActError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.memory import size
from nodeagent.model.topology import NodeKind, NumaNode

LISTS = "nodeagentctl topology show lists the nodes"
FORCE = "free some there, ask for less, or start it anyway with --force"


def nodes_here() -> tuple[NumaNode, ...]:
    """The nodes of this machine; none on a kernel without NUMA."""
    from nodeagent.cli.host import open_root
    from nodeagent.discover.numa import read_nodes

    with open_root(None) as root:
        return read_nodes(root, root.cpus("sys/devices/system/cpu/online") or CpuSet())


def allowed_here() -> CpuSet | None:
    """What this process's cpuset leaves it; None: not told. Source: proc_pid_status(5)."""
    for line in Path("/proc/self/status").read_text(errors="replace").splitlines():
        if line.startswith("Mems_allowed_list:"):
            return CpuSet.parse(line.partition(":")[2])
    return None


def check_nodes(wanted: CpuSet, nodes: Sequence[NumaNode], allowed: CpuSet | None) -> None:
    """Raises ActError for the first node that memory cannot be taken from: the kernel would drop
    it from the mask without a word when another one is there."""
    if not wanted:
        raise ActError("no NUMA node is named to take memory from", LISTS)
    there = CpuSet.of(n.id for n in nodes) if nodes else CpuSet.of([0])
    for number in sorted(wanted.ids):
        node = next((n for n in nodes if n.id == number), None)
        if number not in there:
            raise ActError(
                f"NUMA node {number} is not there: this machine has node {there}",
                LISTS,
            )
        if node is not None and node.kind is NodeKind.GPU_MEMORY:
            raise ActError(
                f"NUMA node {number} is a GPU's own memory, and no program's memory belongs there",
                LISTS,
            )
        if node is not None and node.kind in (NodeKind.CPU, NodeKind.EMPTY):
            raise ActError(f"NUMA node {number} has no memory", LISTS)
        if allowed is not None and number not in allowed:
            raise ActError(
                f"NUMA node {number} is hidden by the cpuset of this process, which may have "
                f"memory of node {allowed} only",
                "widen AllowedMemoryNodes= (cpuset.mems) of the unit or container it starts in",
            )


def check_room(
    name: str,
    memory_bytes: int,
    hugepages: Sequence[tuple[int, int]],
    wanted: CpuSet,
    nodes: Sequence[NumaNode],
) -> None:
    """Raises ActError, with figures, when the nodes do not have what the workload says it needs.
    What a node does not tell is not held against it."""
    mine = [n for n in nodes if n.id in wanted]
    known = [_available(n) for n in mine]
    free = sum(k for k in known if k is not None)
    if memory_bytes and known and None not in known and free < memory_bytes:
        raise ActError(
            f"node {wanted} has {size(free)} free or reclaimable, and workload {name} wants "
            f"{size(memory_bytes)}",
            FORCE,
        )
    for page_bytes, bytes_ in hugepages:
        pages = sum(p.free for n in mine for p in n.hugepages if p.size_bytes == page_bytes)
        need = -(-bytes_ // page_bytes)
        if pages < need:
            raise ActError(
                f"node {wanted} has {pages} free huge pages of {size(page_bytes)}, and workload "
                f"{name} wants {need}",
                f"echo N > /sys/devices/system/node/node{min(wanted.ids)}/hugepages/"
                f"hugepages-{page_bytes >> 10}kB/nr_hugepages, or start it anyway with --force",
            )


def _available(node: NumaNode) -> int | None:
    known = node.memory_available_bytes
    return known if known is not None else node.memory_free_bytes
