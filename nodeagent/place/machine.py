"""The machine as the planner sees it: housekeeping, sites (NUMA nodes with CPUs), bins of cores.

Source of the words: NUMA node and SLIT distance as in ACPI; an L3 group is the set of PUs that
share one last-level cache (a CCX of an EPYC, a tile or package elsewhere).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.topology import NodeKind, Topology

SMALL_PUS = 6
"""Below this many online PUs nothing is exclusive: one shared pool."""

Core = tuple[int, ...]
"""Free PUs of one core, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Free cores of one NUMA node and one L3 group, all isolated or all not.

    `tainted` PUs have a sibling that does housekeeping.
    """

    site: int
    l3: CpuSet
    isolated: bool
    cores: tuple[Core, ...]
    tainted: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A NUMA node where CPUs may be given; `node` None: a machine without NUMA nodes.

    `mems`: the node itself, or the nearest node with host memory when it has none.
    """

    node: int | None
    cpus: CpuSet
    mems: CpuSet
    memory_bytes: int | None
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the search works on."""

    sites: tuple[Site, ...]
    bins: tuple[Bin, ...]
    housekeeping: CpuSet
    topology: Topology

    def site_of(self, node: int) -> int | None:
        """Index of the site of that NUMA node."""
        return next((i for i, s in enumerate(self.sites) if s.node == node), None)

    @property
    def poolable(self) -> CpuSet:
        """Housekeeping CPUs that a shared pool may join: no load is balanced on isolated ones."""
        return self.housekeeping - self.topology.isolation.isolated

    @property
    def l3_groups(self) -> tuple[CpuSet, ...]:
        """The L3 groups of the machine."""
        return tuple(dict.fromkeys(b.l3 for b in self.bins))


def housekeeping_of(topology: Topology, told: CpuSet | None) -> tuple[CpuSet, tuple[str, ...]]:
    """The CPUs that stay with the system, never empty on a machine with an online CPU; and notes.

    Unless told: the lowest core of each package that is not isolated and not the package's only
    one. Below SMALL_PUS, or where that gives none, the lowest PU.
    """
    online = topology.online
    notes: list[str] = []
    if told is not None:
        inside = told & online
        if inside:
            if inside != told:
                notes.append(
                    f"housekeeping {told} names CPUs that are not online: {told - online}; "
                    f"{inside} is used"
                )
            return inside, tuple(notes)
        notes.append(
            f"housekeeping {str(told) or '(empty)'} names no online CPU; the default is used"
        )
    isolated = topology.isolation.isolated
    usual = online - isolated or online
    if len(online) < SMALL_PUS:
        return CpuSet.of(sorted(usual.ids)[:1]), tuple(notes)
    chosen: set[int] = set()
    for package in topology.packages:
        mine = [c for c in topology.cores if c <= package.cpus]
        free = [c for c in mine if not c & isolated]
        if len(mine) > 1 and free:
            chosen |= free[0].ids
    if not chosen:
        first = next((c for c in topology.cores if c <= usual), None)
        whole = first if first is not None and first < online else CpuSet.of(list(usual)[:1])
        chosen |= whole.ids
    return CpuSet.of(chosen), tuple(notes)


def machine_of(topology: Topology, housekeeping: CpuSet) -> Machine:
    """Sites and bins of a topology. Nodes without CPUs, and GPU memory, are no sites."""
    sites = _sites(topology)
    isolated = topology.isolation.isolated
    core_of = dict(topology.smt_siblings)
    l3_of: dict[int, CpuSet] = {}
    for cache in topology.caches:
        if cache.level == 3:
            l3_of.update((cpu, cache.cpus) for cpu in cache.cpus.ids)
    bins: list[Bin] = []
    for index, site in enumerate(sites):
        groups: dict[tuple[CpuSet, bool], dict[CpuSet, list[int]]] = {}
        for cpu in site.cpus - housekeeping:
            core = core_of.get(cpu, CpuSet.of([cpu]))
            key = (l3_of.get(cpu, site.cpus), cpu in isolated)
            groups.setdefault(key, {}).setdefault(core, []).append(cpu)
        for (l3, alone), cores in groups.items():
            bins.append(
                Bin(
                    site=index,
                    l3=l3 & site.cpus,
                    isolated=alone,
                    cores=tuple(tuple(pus) for pus in cores.values()),
                    tainted=frozenset(
                        cpu for core, pus in cores.items() if core & housekeeping for cpu in pus
                    ),
                )
            )
    bins.sort(key=lambda b: (b.site, min(b.cores)[0]))
    return Machine(sites=sites, bins=tuple(bins), housekeeping=housekeeping, topology=topology)


def _sites(topology: Topology) -> tuple[Site, ...]:
    sites: list[Site] = []
    seen: set[int] = set()
    for node in topology.nodes:
        # Firmware has been seen to list a CPU in two nodes: the first one has it.
        cpus = (node.cpus & topology.online) - CpuSet.of(seen)
        if not cpus or node.kind in (NodeKind.MEMORY, NodeKind.GPU_MEMORY, NodeKind.EMPTY):
            continue
        seen |= cpus.ids
        mems, size = memory_near(topology, node.id)
        sites.append(
            Site(node=node.id, cpus=cpus, mems=mems, memory_bytes=size, name=f"node {node.id}")
        )
    rest = topology.online - CpuSet.of(seen)
    if rest and not sites:
        sites.append(
            Site(node=None, cpus=rest, mems=CpuSet(), memory_bytes=None, name="this machine")
        )
    return tuple(sites)


def memory_near(topology: Topology, node_id: int) -> tuple[CpuSet, int | None]:
    """The node itself if it has host memory, else the nearest that has; and its bytes."""
    node = topology.node(node_id)
    if node is None or node.kind is NodeKind.CPU_MEMORY:
        size = node.memory_bytes if node is not None else None
        return CpuSet.of([node_id]), size
    distance = dict(node.distances)
    host = [n for n in topology.nodes if n.kind in (NodeKind.CPU_MEMORY, NodeKind.MEMORY)]
    if not host:
        return CpuSet(), None
    best = min(
        host,
        key=lambda n: (distance.get(n.id, 255), n.kind is NodeKind.MEMORY, n.id),
    )
    return CpuSet.of([best.id]), best.memory_bytes


def nearest_site(topology: Topology, sites: Iterable[Site], node_id: int) -> Site | None:
    """The site nearest to a node without CPUs, by distance, then number."""
    node = topology.node(node_id)
    distance = dict(node.distances) if node is not None else {}
    return min(
        (s for s in sites if s.node is not None),
        key=lambda s: (distance.get(s.node if s.node is not None else -1, 255), s.node),
        default=None,
    )
