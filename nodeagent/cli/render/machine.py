"""The machine as nested items: packages, NUMA nodes, L3 groups, PCIe trees."""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.cli.render.devices import roots, shown
from nodeagent.cli.render.item import Item
from nodeagent.cli.render.words import short, size
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.topology import Cache, NodeKind, NumaNode, Package, Topology
from nodeagent.model.words import many

MANY = 4
"""More packages than this with nothing inside, or nodes that are all alike, become one line."""

MANY_NODES = 16
"""With more nodes than this the farthest ones are not named one by one."""


def machine(snapshot: Snapshot) -> Item:
    """The whole machine."""
    topology = snapshot.topology
    host = snapshot.host
    facts = [host.cpu_model] if host.cpu_model else []
    facts.append(_counts(topology))
    memory = _memory(topology)
    if memory:
        facts.append(memory)
    odd = []
    if host.virtual:
        odd.append(
            f"virtual machine (hypervisor: {host.virtual}): its PCIe and NUMA need not be real"
        )
    offline = topology.present - topology.online
    if offline and topology.online:
        odd.append(f"offline CPUs {short(offline)}")
    facts += _isolation(snapshot)
    name = host.hostname or ("this machine" if snapshot.live else "recorded machine")
    return Item(
        kind="machine",
        title=f"{name}" + (f", Linux {host.kernel}" if host.kernel else ""),
        facts=tuple(facts),
        odd=tuple(odd),
        keys=frozenset(("machine",)),
        inside=tuple(_inside(snapshot)),
    )


def _inside(snapshot: Snapshot) -> list[Item]:
    topology = snapshot.topology
    inside = _folded_packages([_package(snapshot, p) for p in topology.packages])
    placed = {n.id for p in topology.packages for n in _nodes_of(topology, p.cpus)}
    inside += _nodes(snapshot, [n for n in topology.nodes if n.id not in placed])
    if not topology.nodes and not topology.packages:
        inside += l3_items(topology, topology.online)
    known = {n.id for n in topology.nodes}
    homeless = [f for f in topology.pci if f.numa_node not in known and shown(f)]
    by_node = sorted({f.numa_node for f in homeless}, key=lambda n: -1 if n is None else n)
    for node in by_node:
        found = tuple(roots(snapshot, [f for f in homeless if f.numa_node == node]))
        if not topology.nodes and node is None:
            inside += found
            continue
        if node is None:
            one = len(topology.nodes) == 1
            why = "the firmware does not say which" + ("; there is only one" if one else "")
            inside.append(Item(kind="unplaced", title="node ?", facts=(why,), inside=found))
        else:
            why = "the devices name this node; it is not among the nodes that were read"
            inside.append(Item(kind="unplaced", title=f"node {node}", odd=(why,), inside=found))
    return inside


def _counts(topology: Topology) -> str:
    threads = {len(c) for c in topology.cores}
    per_core = f" ({threads.pop()} per core)" if len(threads) == 1 and max(threads) > 1 else ""
    functions = [f for f in topology.pci if shown(f)]
    counted = (
        (len(topology.packages), "package", ""),
        (len(topology.cores), "core", ""),
        (len(topology.online), "PU", per_core),
        (len(topology.nodes), "NUMA node", ""),
        (sum(f.computes for f in functions), "GPU", ""),
        (sum(f.is_nic for f in functions), "NIC", ""),
        (sum(f.is_nvme for f in functions), "NVMe drive", ""),
    )
    parts = [many(count, word) + more for count, word, more in counted if count]
    if not topology.online:
        parts.insert(0, "CPUs not known")
    if not topology.pci:
        parts.append("no PCI devices seen")
    return ", ".join(parts)


def _memory(topology: Topology) -> str:
    known = [n for n in topology.nodes if n.memory_bytes is not None]
    if len(known) < 2:
        return ""
    total = sum(n.memory_bytes or 0 for n in known)
    gpu = sum(n.memory_bytes or 0 for n in known if n.kind is NodeKind.GPU_MEMORY)
    more = f", {size(gpu)} of it GPU memory" if gpu else ""
    lacking = len(topology.nodes) - len(known)
    untold = f", {many(lacking, 'node')} not known" if lacking else ""
    return f"memory {size(total)}{more}{untold}"


def _isolation(snapshot: Snapshot) -> list[str]:
    force, asked = snapshot.topology.isolation, snapshot.asked
    found = []
    for name in ("isolated", "nohz_full", "rcu_nocbs", "irqaffinity"):
        now: CpuSet = getattr(force, name)
        wanted: CpuSet = getattr(asked, name)
        if now:
            found.append(f"{name} {short(now)}")
        if wanted and wanted != now:
            found.append(
                f"{name} asked for: {short(wanted)}, in force: {short(now) if now else 'none'}"
            )
    return found


# ---- packages ----------------------------------------------------------------------------------


def _nodes_of(topology: Topology, cpus: CpuSet) -> list[NumaNode]:
    """Nodes whose CPUs lie in a package; those without CPUs belong to none."""
    return [n for n in topology.nodes if n.cpus and n.cpus <= cpus]


def _package(snapshot: Snapshot, package: Package) -> Item:
    topology = snapshot.topology
    nodes = _nodes_of(topology, package.cpus)
    title = f"package {package.id}" if package.id >= 0 else "package"
    keys = frozenset((title,))
    if len(nodes) == 1 and nodes[0].cpus == package.cpus:
        node = _node(snapshot, nodes[0])
        return Item(
            kind="node",
            title=f"{title}, {node.title}",
            facts=node.facts,
            odd=node.odd,
            keys=keys | node.keys,
            node=node.node,
            inside=node.inside,
        )
    inside = _nodes(snapshot, nodes)
    if not nodes:
        # A node that spans packages is drawn beside them.
        inside = l3_items(topology, package.cpus)
    return Item(
        kind="package",
        title=title,
        facts=(f"CPUs {short(package.cpus)}",),
        keys=keys,
        cpus=package.cpus,
        inside=tuple(inside),
    )


def _folded_packages(items: list[Item]) -> list[Item]:
    """Virtual machines often have a package for each CPU: one line for all of them."""
    if len(items) <= MANY or any(i.kind != "package" for i in items):
        return items
    if any(c.kind != "l3" for i in items for c in i.inside):
        return items
    first, last = items[0], items[-1]
    return [
        Item(
            kind="package",
            title=f"{len(items)} packages",
            facts=(f"{first.title} with {first.facts[0]} to {last.title} with {last.facts[0]}",),
            keys=frozenset().union(*(i.keys for i in items)),
            cpus=CpuSet.of(cpu for i in items for cpu in i.cpus),
        )
    ]


# ---- nodes -------------------------------------------------------------------------------------

_HOLDS = {
    NodeKind.MEMORY: "memory only",
    NodeKind.CPU: "no memory",
    NodeKind.GPU_MEMORY: "memory of a GPU",
    NodeKind.EMPTY: "empty",
}


def _nodes(snapshot: Snapshot, nodes: Sequence[NumaNode]) -> list[Item]:
    """An item for each node; three or more without CPUs that are all alike become one."""
    used = {f.numa_node for f in snapshot.topology.pci if shown(f)}

    groups: dict[object, list[NumaNode]] = {}
    for node in nodes:
        single = node.cpus or node.id in used
        groups.setdefault(node.id if single else (node.kind, node.memory_bytes), []).append(node)
    found = []
    for run in groups.values():
        if len(run) < 3:
            found += [_node(snapshot, n) for n in run]
            continue
        kind = run[0].kind
        each = run[0].memory_bytes
        facts = [f"{len(run)} nodes", "no CPUs"]
        if each:
            facts.append(f"{size(each)} each")
        elif each is None:
            facts.append("memory not known")
        facts.append(_HOLDS.get(kind, kind.value))
        found.append(
            Item(
                kind="node",
                title=f"NUMA nodes {short(CpuSet.of(n.id for n in run))}",
                facts=tuple(facts),
                keys=frozenset(f"node {n.id}" for n in run),
                node=run[0],
            )
        )
    return found


def _node(snapshot: Snapshot, node: NumaNode) -> Item:
    topology = snapshot.topology
    facts = [f"CPUs {short(node.cpus)}" if node.cpus else "no CPUs"]
    odd = []
    if node.memory_bytes is None:
        facts.append("memory not known")
    elif node.memory_bytes:
        free = node.memory_free_bytes
        facts.append(
            size(node.memory_bytes) + (f" ({size(free)} free)" if free is not None else "")
        )
    if node.kind in (NodeKind.CPU, NodeKind.EMPTY) and node.memory_bytes is not None:
        odd.append(_HOLDS[node.kind])
    elif node.kind in (NodeKind.MEMORY, NodeKind.GPU_MEMORY):
        facts.append(_HOLDS[node.kind])
    caches = _l3(topology, node.cpus)
    inside = []
    if len(caches) == 1:
        facts.append(_one_l3(topology, node, caches[0]))
    else:
        inside += l3_items(topology, node.cpus)
    if node.distances:
        facts += distances(node)
    pools = [h for h in node.hugepages if h.total]
    if pools:
        facts.append(
            "hugepages "
            + ", ".join(f"{h.total:,} x {size(h.size_bytes)} ({h.free:,} free)" for h in pools)
        )
    inside += roots(snapshot, [f for f in topology.pci if f.numa_node == node.id])
    return Item(
        kind="node",
        title=f"NUMA node {node.id}",
        facts=tuple(facts),
        odd=tuple(odd),
        keys=frozenset((f"node {node.id}",)),
        node=node,
        inside=tuple(inside),
    )


def distances(node: NumaNode) -> list[str]:
    """`distance 12 to node 1-3, 32 to 4-7`: nodes of one distance together, nearest first."""
    by_value: dict[int, list[int]] = {}
    for other, value in node.distances:
        if other != node.id:
            by_value.setdefault(value, []).append(other)
    if not by_value:
        return []
    parts = [f"{value} to {short(CpuSet.of(ids), 24)}" for value, ids in sorted(by_value.items())]
    rest = f" and {len(parts) - 4} more" if len(parts) > 4 else ""
    if len(node.distances) > MANY_NODES and 1 < len(parts) <= 4:
        parts[-1] = f"{max(by_value)} to the rest"
    first, *others = parts[:4]
    first = first.replace(" to ", " to node ")
    return [f"distance {', '.join((first, *others))}{rest}"]


# ---- L3 groups ---------------------------------------------------------------------------------


def _l3(topology: Topology, cpus: CpuSet) -> list[Cache]:
    return [c for c in topology.caches if c.level == 3 and c.cpus & cpus]


def _one_l3(topology: Topology, node: NumaNode, cache: Cache) -> str:
    label = "L3" if cache.size_bytes is None else f"L3 {size(cache.size_bytes)}"
    beside = [n.id for n in topology.nodes if n.cpus & cache.cpus and n.id != node.id]
    if beside:
        return f"{label} shared with node {short(CpuSet.of(beside), 24)}"
    rest = len(node.cpus - cache.cpus)
    return f"{label} for {short(cache.cpus)}" if rest else label


def l3_items(topology: Topology, cpus: CpuSet) -> list[Item]:
    """The L3 caches of those CPUs: groups that are alike in one line."""
    cores = topology.cores

    def shape(cache: Cache) -> tuple[int, int, int]:
        count = sum(1 for core in cores if core & cache.cpus)
        return (cache.size_bytes or 0, count, len(cache.cpus))

    by_shape: dict[tuple[int, int, int], list[Cache]] = {}
    for cache in _l3(topology, cpus):
        by_shape.setdefault(shape(cache), []).append(cache)
    found = []
    for (size_bytes, count, _), caches in by_shape.items():
        amount = f"{size(size_bytes)}" if size_bytes else ""
        lists = [short(c.cpus, 32) for c in caches]
        if len(caches) == 1:
            title, facts = f"L3 {amount}".strip(), [many(count, "core"), f"CPUs {lists[0]}"]
        else:
            title = f"{len(caches)} L3 groups of {many(count, 'core')}"
            facts = [f"{amount} each"] if amount else []
            kept = len(lists)
            while kept > 1 and len("; ".join(lists[:kept])) > 52:
                kept -= 1
            more = f"; and {len(lists) - kept} more" if kept < len(lists) else ""
            facts.append("CPUs " + "; ".join(lists[:kept]) + more)
        found.append(Item(kind="l3", title=title, facts=tuple(facts)))
    return found
