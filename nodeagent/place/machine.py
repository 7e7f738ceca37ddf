"""The machine as the planner sees it: sites (NUMA nodes with CPUs) and the pieces of their cores.

Inside the search a set of PUs is an int, bit N for CPU N; CpuSet stands at the boundary.
Source of the words: NUMA node and SLIT distance as in ACPI; an L3 group is the set of PUs that
share one last-level cache (a CCX of an EPYC, a tile or package elsewhere).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.topology import NodeKind, Topology

L3Pieces = tuple[tuple[int, int, tuple["Piece", ...]], ...]
"""(L3 group, its PUs here, its pieces: large ones first, then by lowest PU), by lowest PU."""


def mask_of(cpus: CpuSet) -> int:
    """Bit N for CPU N."""
    mask = 0
    for cpu in cpus.ids:
        mask |= 1 << cpu
    return mask


def cpus_of(mask: int) -> CpuSet:
    """The inverse of mask_of."""
    ids = []
    while mask:
        low = mask & -mask
        ids.append(low.bit_length() - 1)
        mask ^= low
    return CpuSet.of(ids)


@dataclass(frozen=True, slots=True)
class Piece:
    """PUs of one core that may be given, all isolated or all not. `mask` = `core`: all of it.

    `tainted`: a sibling does housekeeping.
    """

    mask: int
    core: int
    l3: int
    isolated: bool
    tainted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A NUMA node where CPUs may be given; `node` None: a machine without NUMA nodes.

    `mems`: the node itself, or the nearest node with host memory when it has none.
    """

    node: int | None
    cpus: CpuSet
    mems: CpuSet
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the search works on."""

    topology: Topology
    housekeeping: CpuSet
    sites: tuple[Site, ...]
    pieces: tuple[tuple[Piece, ...], ...]
    """By site, ascending."""
    l3_groups: tuple[CpuSet, ...]
    givable: int
    """Every PU beside housekeeping's."""
    pools: tuple[int, ...]
    """By site: housekeeping CPUs that a shared pool may join; no load is balanced on isolated
    ones."""
    usual: tuple[int, ...]
    """By site: givable PUs that are not isolated."""
    isolates: bool
    """Whether any PU that may be given is isolated."""
    largest_core: int
    """PUs of the largest core."""
    known: dict[tuple[int, bool | None, int], L3Pieces] = field(default_factory=dict, compare=False)
    """Answers of `usable`, kept."""

    def site_of(self, node: int) -> int | None:
        """Index of the site of that NUMA node."""
        return next((i for i, s in enumerate(self.sites) if s.node == node), None)

    def sites_of(self, cpus: CpuSet) -> tuple[int, ...]:
        """The sites that hold these CPUs."""
        return tuple(i for i, s in enumerate(self.sites) if s.cpus & cpus)

    def usable(self, site: int, isolated: bool | None, allowed: int) -> L3Pieces:
        """What a workload of that kind may get there, by L3 group; `isolated` None: either."""
        key = (site, isolated, allowed)
        found = self.known.get(key)
        if found is None:
            by: dict[int, list[Piece]] = {}
            for p in self.pieces[site]:
                mask = p.mask & allowed
                if not mask or (isolated is not None and p.isolated is not isolated):
                    continue
                if mask != p.mask:
                    p = Piece(mask, p.core, p.l3, p.isolated, p.tainted)
                by.setdefault(p.l3, []).append(p)
            # Large cores first: fewest are touched then. Sorting keeps the order otherwise.
            found = tuple(
                (l3, _union(ps), tuple(sorted(ps, key=lambda p: -p.mask.bit_count())))
                for l3, ps in by.items()
            )
            self.known[key] = found
        return found


def _union(pieces: Iterable[Piece]) -> int:
    mask = 0
    for p in pieces:
        mask |= p.mask
    return mask


def machine_of(topology: Topology, housekeeping: CpuSet) -> Machine:
    """Sites and pieces of a topology. Nodes without CPUs, and GPU memory, are no sites."""
    sites = _sites(topology)
    isolated = topology.isolation.isolated
    core_of = {cpu: mask_of(core) for cpu, core in topology.smt_siblings}
    l3_of: dict[int, CpuSet] = {}
    for cache in topology.caches:
        if cache.level == 3:
            l3_of.update(dict.fromkeys(cache.cpus.ids, cache.cpus))
    system = mask_of(housekeeping)
    groups: dict[CpuSet, int] = {}
    pieces: list[tuple[Piece, ...]] = []
    for site in sites:
        found: dict[tuple[int, int, bool], int] = {}
        at: dict[int, int] = {}
        for cpu in site.cpus - housekeeping:
            if cpu not in at:
                shared = l3_of.get(cpu, site.cpus) & site.cpus
                at.update(dict.fromkeys(shared.ids, groups.setdefault(shared, len(groups))))
            key = (core_of.get(cpu, 1 << cpu), at[cpu], cpu in isolated)
            found[key] = found.get(key, 0) | 1 << cpu
        pieces.append(
            tuple(
                Piece(mask, core, l3, alone, bool(core & system))
                for (core, l3, alone), mask in sorted(found.items(), key=lambda kv: kv[1] & -kv[1])
            )
        )
    pool = housekeeping - isolated
    return Machine(
        topology=topology,
        housekeeping=housekeeping,
        sites=sites,
        pieces=tuple(pieces),
        l3_groups=tuple(groups),
        givable=mask_of(topology.online - housekeeping),
        pools=tuple(mask_of(s.cpus & pool) for s in sites),
        usual=tuple(_union(p for p in ps if not p.isolated) for ps in pieces),
        isolates=any(p.isolated for ps in pieces for p in ps),
        largest_core=max((len(c) for _, c in topology.smt_siblings), default=1),
    )


def _sites(topology: Topology) -> tuple[Site, ...]:
    sites: list[Site] = []
    seen: set[int] = set()
    for node in topology.nodes:
        # Firmware has been seen to list a CPU in two nodes: the first one has it.
        cpus = (node.cpus & topology.online) - CpuSet.of(seen)
        if not cpus or node.kind in (NodeKind.MEMORY, NodeKind.GPU_MEMORY, NodeKind.EMPTY):
            continue
        seen |= cpus.ids
        mems = memory_near(topology, node.id)
        sites.append(Site(node=node.id, cpus=cpus, mems=mems, name=f"node {node.id}"))
    rest = topology.online - CpuSet.of(seen)
    if rest and not sites:
        sites.append(Site(node=None, cpus=rest, mems=CpuSet(), name="this machine"))
    return tuple(sites)


def memory_near(topology: Topology, node_id: int) -> CpuSet:
    """The node itself if it has host memory, else the nearest that has; empty: none has."""
    node = topology.node(node_id)
    if node is None or node.kind is NodeKind.CPU_MEMORY:
        return CpuSet.of([node_id])
    distance = dict(node.distances)
    host = [n for n in topology.nodes if n.kind in (NodeKind.CPU_MEMORY, NodeKind.MEMORY)]
    best = min(
        host,
        key=lambda n: (distance.get(n.id, 255), n.kind is NodeKind.MEMORY, n.id),
        default=None,
    )
    return CpuSet.of([best.id] if best is not None else ())


def nearest_sites(topology: Topology, sites: tuple[Site, ...], node_id: int) -> tuple[int, ...]:
    """The sites nearest to a node without CPUs: all that share the least distance.

    Where the firmware tells no distance from it, its own answers the other way round; where
    neither, the lowest site.
    """
    node = topology.node(node_id)
    out = dict(node.distances) if node is not None else {}
    far: dict[int, int] = {}
    for i, site in enumerate(sites):
        if site.node is None:
            continue
        mine = topology.node(site.node)
        back = dict(mine.distances).get(node_id) if mine is not None else None
        said = out.get(site.node, back)
        if said is not None:
            far[i] = said
    if not far:
        return (0,) if sites else ()
    least = min(far.values())
    return tuple(i for i, d in far.items() if d == least)
