"""NUMA nodes: CPUs, memory, distances, huge pages, and what kind of node each is.

Source: Documentation/ABI/stable/sysfs-devices-node; ACPI SLIT for distances.
"""

from __future__ import annotations

import re

from nodeagent.discover.root import Root, is_number
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.topology import Hugepages, NodeKind, NumaNode

NODE = "sys/devices/system/node"
_DIR = re.compile(r"node\d{1,5}")
_POOL = re.compile(r"hugepages-(\d{1,12})kB")
_NVIDIA = "proc/driver/nvidia/gpus"


def read_nodes(
    root: Root, online: CpuSet, gpu_nodes: frozenset[int] = frozenset()
) -> tuple[NumaNode, ...]:
    """All nodes, ascending. `gpu_nodes`: numbers that a GPU's driver calls its own memory."""
    ids = sorted(int(n[4:]) for n in root.names(NODE, _DIR, expected=True))
    with_memory = root.cpus(f"{NODE}/has_memory")
    on_gpu = gpu_nodes | _nvidia_nodes(root)
    nodes = tuple(_node(root, i, ids, online, with_memory, on_gpu) for i in ids)
    with_cpus = root.cpus(f"{NODE}/has_cpu") or CpuSet()
    for node in nodes:
        if node.id in with_cpus and not node.cpus:
            root.fail(f"{NODE}/node{node.id}/cpulist", "empty, but has_cpu lists the node")
    return nodes


def _node(
    root: Root,
    number: int,
    ids: list[int],
    online: CpuSet,
    with_memory: CpuSet | None,
    on_gpu: frozenset[int],
) -> NumaNode:
    at = f"{NODE}/node{number}"
    cpus = root.cpus(f"{at}/cpulist")
    if cpus is None:
        cpus = root.mask(f"{at}/cpumap")
    if cpus is None:
        root.fail(f"{at}/cpulist", "not there, expected a CPU list")
        cpus = CpuSet()
    cpus &= online
    total, free, available = _memory(root, f"{at}/meminfo")
    has = total > 0 if total is not None else with_memory is not None and number in with_memory
    kind = NodeKind.CPU if cpus else NodeKind.EMPTY
    if has:
        kind = NodeKind.CPU_MEMORY if cpus else NodeKind.MEMORY
        if not cpus and number in on_gpu:
            kind = NodeKind.GPU_MEMORY
    return NumaNode(
        id=number,
        cpus=cpus,
        memory_bytes=total,
        memory_free_bytes=free,
        memory_available_bytes=available,
        distances=_distances(root, f"{at}/distance", ids),
        kind=kind,
        hugepages=_hugepages(root, f"{at}/hugepages"),
    )


_CACHE = ("Active(file)", "Inactive(file)", "SReclaimable")
"""What a node gives back at once. Source: mm/show_mem.c si_mem_available()."""


def _memory(root: Root, path: str) -> tuple[int | None, int | None, int | None]:
    """(total, free, available) in bytes; lines read `Node 0 MemTotal:  131580 kB`."""
    found: dict[str, int] = {}
    text = root.text(path)
    if text is None:
        return None, None, None
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 4 and words[0] == "Node" and is_number(words[3]):
            found.setdefault(words[2].rstrip(":"), int(words[3]) << 10)
    if "MemTotal" not in found:
        root.fail(path, "no MemTotal line")
    free, cache = found.get("MemFree"), [found.get(key) for key in _CACHE]
    known = [size for size in cache if size is not None]
    available = None if free is None or len(known) < 2 else free + sum(known)
    return found.get("MemTotal"), free, available


def _distances(root: Root, path: str, ids: list[int]) -> tuple[tuple[int, int], ...]:
    """Distances to the nodes that are there; none when the row does not fit their number."""
    text = root.text(path)
    if text is None:
        return ()
    row = text.split()
    if len(row) != len(ids) or not all(map(is_number, row)):
        root.fail(path, f"{text[:40]!r}, expected {len(ids)} numbers")
        return ()
    return tuple(zip(ids, map(int, row), strict=True))


def _hugepages(root: Root, path: str) -> tuple[Hugepages, ...]:
    pools = []
    for name in root.names(path, _POOL):
        m = _POOL.fullmatch(name)
        total = root.number(f"{path}/{name}/nr_hugepages", expected=True)
        free = root.number(f"{path}/{name}/free_hugepages", expected=True)
        if m and total is not None and free is not None:
            surplus = root.number(f"{path}/{name}/surplus_hugepages")
            size = int(m[1]) << 10
            pools.append(Hugepages(size_bytes=size, total=total, free=free, surplus=surplus))
    return tuple(sorted(pools, key=lambda p: p.size_bytes))


def _nvidia_nodes(root: Root) -> frozenset[int]:
    """Nodes that NVIDIA's driver made of GPU memory (POWER9, GH200).

    Source: /proc/driver/nvidia/gpus/BDF/numa_status, `Node: 255`.
    """
    found = set()
    for name in root.names(_NVIDIA):
        for line in root.lines(f"{_NVIDIA}/{name}/numa_status"):
            key, _, value = line.partition(":")
            if key == "Node" and is_number(value.strip()):
                found.add(int(value))
    return frozenset(found)
