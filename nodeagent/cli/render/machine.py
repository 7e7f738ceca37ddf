"""The machine as nested items: what the tree on a terminal and the picture both draw."""

from __future__ import annotations

from dataclasses import dataclass, field

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.pci import Link, PciFunction
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.topology import Cache, NodeKind, NumaNode, Topology

GENERATION = {2.5: "1.0", 5.0: "2.0", 8.0: "3.0", 16.0: "4.0", 32.0: "5.0", 64.0: "6.0"}
"""PCIe generation by GT/s."""
VENDORS = {
    "10de": "NVIDIA",
    "1002": "AMD",
    "1022": "AMD",
    "8086": "Intel",
    "15b3": "Mellanox",
    "14e4": "Broadcom",
    "1000": "Broadcom",
    "10b5": "PLX",
    "11f8": "Microchip",
    "144d": "Samsung",
    "1344": "Micron",
    "1c5c": "SK hynix",
    "1e0f": "Kioxia",
    "1d0f": "Amazon",
    "1af4": "virtio",
    "1a03": "ASPEED",
    "102b": "Matrox",
    "19e5": "Huawei",
    "1ae0": "Google",
    "1414": "Microsoft",
}
"""Vendors one meets on GPU nodes. Source: the PCI ID repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A thing with what to say of it and what is inside. `odd`: some fact needs attention."""

    kind: str
    """machine, package, node, l3, root, switch, gpu, nic, nvme, or other."""
    title: str
    facts: tuple[str, ...] = ()
    odd: bool = False
    inside: tuple[Item, ...] = field(default=())


def size(count: int) -> str:
    """Bytes with a binary unit, at most three digits."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def short(cpus: CpuSet) -> str:
    """A cpulist for the eye: a stride as the kernel writes it (`0-110:1/2`), at most 48 long."""
    text = str(cpus)
    if len(text) <= 48:
        return text
    ids = list(cpus)
    step = ids[1] - ids[0]
    if ids == list(range(ids[0], ids[-1] + 1, step)):
        return f"{ids[0]}-{ids[-1]}:1/{step}"
    head = text[:32].rpartition(",")[0]
    return f"{head},... ({len(ids)} CPUs)"


def machine(snapshot: Snapshot) -> Item:
    """The whole machine."""
    topology = snapshot.topology
    host = snapshot.host
    facts = [_counts(topology)]
    if host.cpu_model:
        facts.insert(0, host.cpu_model)
    if host.virtual:
        facts.append(
            f"virtual machine (hypervisor: {host.virtual}): its PCIe and NUMA need not be real"
        )
    facts += _isolation(snapshot)
    name = host.hostname or ("this machine" if snapshot.live else "recorded machine")
    inside = [_package(snapshot, p.id, p.cpus) for p in topology.packages]
    placed = {n.id for p in topology.packages for n in _nodes_of(topology, p.cpus)}
    rest = [n for n in topology.nodes if n.id not in placed]
    inside += [_node(snapshot, n) for n in rest]
    if not topology.nodes:
        inside += [_l3(c) for c in topology.caches if c.level == 3]
    known = {n.id for n in topology.nodes}
    inside += _roots(snapshot, [f for f in topology.pci if f.numa_node not in known])
    return Item(
        kind="machine",
        title=f"{name}" + (f", Linux {host.kernel}" if host.kernel else ""),
        facts=tuple(facts),
        odd=host.virtual is not None,
        inside=tuple(inside),
    )


def _counts(topology: Topology) -> str:
    def many(count: int, word: str) -> str:
        return f"{count} {word}{'s' if count != 1 else ''}"

    threads = {len(c) for c in topology.cores}
    per_core = f", {threads.pop()} per core" if len(threads) == 1 else ""
    parts = [
        many(len(topology.packages), "package"),
        many(len(topology.cores), "core"),
        many(len(topology.online), "PU") + per_core,
        many(len(topology.nodes), "NUMA node"),
    ]
    gpus = sum(f.computes for f in topology.pci)
    if gpus:
        parts.append(many(gpus, "GPU"))
    offline = topology.present - topology.online
    if offline:
        parts.append(f"CPUs {offline} off-line")
    return ", ".join(parts)


def _isolation(snapshot: Snapshot) -> list[str]:
    force, asked = snapshot.topology.isolation, snapshot.asked
    found = []
    for name in ("isolated", "nohz_full", "rcu_nocbs", "irqaffinity"):
        now: CpuSet = getattr(force, name)
        wanted: CpuSet = getattr(asked, name)
        if now:
            found.append(f"{name} {now}")
        if wanted and wanted != now:
            found.append(f"{name} asked for: {wanted}, in force: {now or 'none'}")
    return found


def _nodes_of(topology: Topology, cpus: CpuSet) -> list[NumaNode]:
    """Nodes whose CPUs lie in a package; those without CPUs belong to none."""
    return [n for n in topology.nodes if n.cpus and n.cpus <= cpus]


def _package(snapshot: Snapshot, number: int, cpus: CpuSet) -> Item:
    topology = snapshot.topology
    nodes = _nodes_of(topology, cpus)
    inside = [_node(snapshot, n) for n in nodes]
    if topology.nodes and not nodes:
        # A node that spans packages is drawn beside them.
        inside = [_l3(c) for c in topology.caches if c.level == 3 and c.cpus <= cpus]
    return Item(
        kind="package",
        title=f"package {number}" if number >= 0 else "package",
        facts=(f"CPUs {short(cpus)}",),
        inside=tuple(inside),
    )


def _l3(cache: Cache, others: str = "") -> Item:
    label = "L3" if cache.size_bytes is None else f"L3 {size(cache.size_bytes)}"
    return Item(kind="l3", title=label, facts=(others or f"CPUs {short(cache.cpus)}",))


_HOLDS = {
    NodeKind.MEMORY: "memory only",
    NodeKind.CPU: "no memory",
    NodeKind.GPU_MEMORY: "memory of a GPU",
    NodeKind.EMPTY: "empty",
}


def _node(snapshot: Snapshot, node: NumaNode) -> Item:
    topology = snapshot.topology
    facts = [f"CPUs {short(node.cpus)}" if node.cpus else "no CPUs"]
    if node.memory_bytes is None:
        facts.append("memory not known")
    elif node.memory_bytes:
        free = node.memory_free_bytes
        facts.append(
            size(node.memory_bytes) + (f" ({size(free)} free)" if free is not None else "")
        )
    if node.kind in _HOLDS:
        facts.append(_HOLDS[node.kind])
    if len(node.distances) > 1:
        facts.append("distances " + " ".join(f"{i}:{d}" for i, d in node.distances))
    pools = [h for h in node.hugepages if h.total]
    if pools:
        facts.append(
            "hugepages "
            + ", ".join(f"{h.total} x {size(h.size_bytes)} ({h.free} free)" for h in pools)
        )
    inside = []
    for cache in topology.caches:
        if cache.level == 3 and cache.cpus & node.cpus:
            shared = [n.id for n in topology.nodes if n.cpus & cache.cpus and n is not node]
            more = f"shared with NUMA node {CpuSet.of(shared)}" if shared else ""
            inside.append(_l3(cache, more))
    inside += _roots(snapshot, [f for f in topology.pci if f.numa_node == node.id])
    return Item(
        kind="node",
        title=f"NUMA node {node.id}",
        facts=tuple(facts),
        odd=node.kind in (NodeKind.CPU, NodeKind.EMPTY),
        inside=tuple(inside),
    )


# ---- PCI ---------------------------------------------------------------------------------------


def _shown(function: PciFunction) -> bool:
    """GPUs, NICs and NVMe drives; a virtual function is counted on its physical one."""
    return (function.is_gpu or function.is_nic or function.is_nvme) and not function.physfn


def _roots(snapshot: Snapshot, functions: list[PciFunction]) -> list[Item]:
    """Root buses with devices to show, each a tree in which lone bridges are folded away."""
    roots: dict[str, list[PciFunction]] = {}
    for function in functions:
        if _shown(function):
            roots.setdefault(function.root_bus, []).append(function)
    found = []
    for bus, ends in sorted(roots.items()):
        inside = _branches(snapshot, [(f.parents[::-1], f) for f in ends])
        unknown = "" if ends[0].numa_node is not None else "NUMA node not known"
        found.append(
            Item(
                kind="root",
                title=f"PCIe root {bus}" if bus else "PCI",
                facts=(unknown,) if unknown else (),
                inside=tuple(inside),
            )
        )
    return found


Branch = tuple[tuple[str, ...], PciFunction]
"""Bridges still to go, from the root downward, and the device."""


def _branches(snapshot: Snapshot, branches: list[Branch]) -> list[Item]:
    groups: dict[str, list[Branch]] = {}
    for path, end in branches:
        groups.setdefault(path[0] if path else "", []).append((path[1:], end))
    found = []
    for bridge, below in groups.items():
        if bridge == "":
            found += [_device(snapshot, end) for _, end in below]
        elif len(below) == 1:
            found.append(_device(snapshot, below[0][1]))
        else:
            inside = _branches(snapshot, below)
            if len(inside) == 1:
                found += inside
                continue
            at = snapshot.topology.function(bridge)
            text, odd = link_text(at.link if at else None)
            # Several functions of one device under one port are no switch.
            boards = {end.bdf.rpartition(".")[0] for _, end in below}
            if len(boards) == 1:
                found += inside
                continue
            found.append(
                Item(
                    kind="switch",
                    title=f"switch {bridge}",
                    facts=(text,) if text else (),
                    odd=odd,
                    inside=tuple(inside),
                )
            )
    return found


def link_text(link: Link | None) -> tuple[str, bool]:
    """`PCIe 4.0 x8 of 5.0 x16`, and whether it is less than this end can do."""
    if link is None or link.speed_gts is None or not link.width:
        return "", False
    now = f"PCIe {GENERATION.get(link.speed_gts, f'{link.speed_gts:g} GT/s')} x{link.width}"
    slower = link.max_speed_gts is not None and link.speed_gts < link.max_speed_gts
    narrower = bool(link.max_width) and link.width < (link.max_width or 0)
    if not slower and not narrower:
        return now, False
    speed = link.max_speed_gts or link.speed_gts
    return f"{now} of {GENERATION.get(speed, f'{speed:g} GT/s')} x{link.max_width}", True


def _device(snapshot: Snapshot, function: PciFunction) -> Item:
    link, odd = link_text(function.link)
    vendor = VENDORS.get(function.vendor, function.vendor)
    facts = [vendor] if vendor else []
    if function.is_gpu:
        kind = "gpu" if function.computes else "other"
        title = gpu_names(snapshot).get(function.bdf, "GPU") if function.computes else "display"
    elif function.is_nic:
        kind, title = "nic", "NIC"
    else:
        kind, title = "nvme", "NVMe"
    names: list[str] = []
    for gpu in snapshot.gpus:
        if gpu.bdf == function.bdf:
            names.append(gpu.name or "")
            if gpu.error:
                facts.append(gpu.error)
                odd = True
    for nic in snapshot.nics:
        if nic.bdf == function.bdf:
            names.append(nic.name if nic.rdma is None else f"{nic.name}/{nic.rdma}")
            if nic.speed_mbps:
                facts.append(f"{nic.speed_mbps / 1000:g} Gb/s")
            elif nic.operstate == "down":
                facts.append("down")
    for drive in snapshot.nvmes:
        if drive.bdf == function.bdf:
            names.append(drive.name)
            if drive.model:
                facts = [drive.model]
    if function.vfs:
        facts.append(f"{function.vfs} VFs")
    if link:
        facts.append(link)
    if function.driver is None and any(f.driver for f in snapshot.topology.pci):
        facts.append("no driver")
    return Item(
        kind=kind,
        title=f"{title} {function.bdf}",
        facts=(*filter(None, names), *facts),
        odd=odd,
    )


def gpu_names(snapshot: Snapshot) -> dict[str, str]:
    """GPU0, GPU1, ... by BDF: the driver's numbers, or address order where none is loaded."""
    known = {g.bdf: f"GPU{g.index}" for g in snapshot.gpus}
    computing = [f.bdf for f in snapshot.topology.pci if f.computes]
    return known or {bdf: f"GPU{i}" for i, bdf in enumerate(computing)}
