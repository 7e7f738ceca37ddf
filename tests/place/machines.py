"""Machines and workloads for the planner's tests, drawn or named, and its hard constraints."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.pci import PciFunction
from nodeagent.model.placement import Match, Placement, Role, Sharing, Workload
from nodeagent.model.topology import (
    Cache,
    Hugepages,
    Isolation,
    NodeKind,
    NumaNode,
    Package,
    Topology,
)


def gpu(bdf: str, node: int | None, local: CpuSet | None = None) -> PciFunction:
    return function(bdf, "0302", "10de", node, local)


def nic(bdf: str, node: int | None) -> PciFunction:
    return function(bdf, "0200", "15b3", node)


def function(
    bdf: str, code: str, vendor: str, node: int | None, local: CpuSet | None = None
) -> PciFunction:
    return PciFunction(
        bdf=bdf,
        class_code=code,
        vendor=vendor,
        device="2330",
        numa_node=node,
        local_cpus=local,
        parents=(),
        root_bus=bdf[:7],
    )


def machine(
    *,
    packages: int = 1,
    nodes: int = 1,
    l3: int = 1,
    cores: int = 4,
    smt: int = 1,
    isolated: str = "",
    offline: str = "",
    memory_nodes: int = 0,
    pci: Sequence[PciFunction] = (),
    memory: int = 64 << 30,
    available: int | None = None,
    pages: tuple[int, int] | None = None,
) -> Topology:
    """`nodes` a package, `l3` groups a node, `cores` a group. PU numbers: all first siblings, then
    all second ones, as x86 counts. `pages`: (total, free) of 2 MiB on each node."""
    total = packages * nodes * l3 * cores
    off = CpuSet.parse(offline)
    possible = CpuSet.of(range(total * smt))
    online = possible - off
    siblings = {
        c + t * total: CpuSet.of(c + s * total for s in range(smt)) & online
        for c in range(total)
        for t in range(smt)
    }

    def span(first: int, count: int) -> CpuSet:
        return (
            CpuSet.of(c + t * total for c in range(first, first + count) for t in range(smt))
            & online
        )

    all_nodes = packages * nodes
    count = all_nodes + memory_nodes
    return Topology(
        online=online,
        possible=possible,
        present=possible,
        smt_siblings=tuple((cpu, siblings[cpu]) for cpu in online),
        packages=tuple(
            Package(id=p, cpus=span(p * nodes * l3 * cores, nodes * l3 * cores))
            for p in range(packages)
        ),
        nodes=tuple(
            NumaNode(
                id=n,
                cpus=span(n * l3 * cores, l3 * cores) if n < all_nodes else CpuSet(),
                memory_bytes=memory,
                distances=tuple((m, 10 if m == n else 12 + abs(m - n)) for m in range(count)),
                kind=NodeKind.CPU_MEMORY if n < all_nodes else NodeKind.GPU_MEMORY,
                memory_available_bytes=available,
                hugepages=()
                if pages is None
                else (Hugepages(size_bytes=2 << 20, total=pages[0], free=pages[1]),),
            )
            for n in range(count)
        ),
        caches=tuple(
            Cache(level=3, type="Unified", size_bytes=32 << 20, cpus=span(g * cores, cores))
            for g in range(all_nodes * l3)
        ),
        pci=tuple(pci),
        relations=(),
        isolation=Isolation(isolated=CpuSet.parse(isolated) & online),
    )


def want(
    name: str,
    cpus: int,
    *,
    sharing: Sharing = Sharing.EXCLUSIVE,
    near: str | None = None,
    unit: str | None = None,
    smt: str = "any",
    isolated: bool = False,
    memory_bytes: int = 0,
    cpu_list: CpuSet | None = None,
    l3: str = "any",
    hugepages: tuple[tuple[int, int], ...] = (),
    roles: tuple[int, ...] = (),
) -> Workload:
    return Workload(
        name=name,
        kind="custom",
        match=Match(comm=name),
        cpus=cpus,
        sharing=sharing,
        near=near,
        unit=unit,
        smt=smt,
        isolated=isolated,
        memory_bytes=memory_bytes,
        cpu_list=cpu_list,
        l3=l3,
        hugepages=hugepages,
        roles=tuple(Role(name=f"r{i}", cpus=n) for i, n in enumerate(roles)),
    )


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    shape = {
        "packages": draw(st.integers(1, 2)),
        "nodes": draw(st.integers(1, 2)),
        "l3": draw(st.integers(1, 3)),
        "cores": draw(st.integers(1, 4)),
        "smt": draw(st.sampled_from([1, 2, 2, 4, 8])),
    }
    total = shape["packages"] * shape["nodes"] * shape["l3"] * shape["cores"] * shape["smt"]
    some = st.sets(st.integers(0, total - 1), max_size=total // 2)
    offline = CpuSet.of(draw(some)) - CpuSet.of([0])
    isolated = CpuSet.of(draw(some)) - CpuSet.of([0])
    nodes = shape["packages"] * shape["nodes"]
    pci = [
        gpu(f"0000:{i:02x}:00.0", draw(st.none() | st.integers(0, nodes)))
        for i in range(draw(st.integers(0, 3)))
    ]
    available = draw(st.sampled_from([None, 40 << 30]))
    pages = draw(st.sampled_from([None, (1024, 1024), (1024, 100)]))
    return machine(
        **shape,
        offline=str(offline),
        isolated=str(isolated),
        memory_nodes=1,
        pci=pci,
        available=available,
        pages=pages,
    )


@st.composite
def workloads(draw: st.DrawFn, most: int = 6) -> tuple[Workload, ...]:
    made = []
    for i in range(draw(st.integers(0, most))):
        shared = draw(st.booleans()) and draw(st.booleans())
        count = draw(st.integers(1, 9))
        made.append(
            want(
                f"w{i}",
                count,
                sharing=Sharing.SHARED if shared else Sharing.EXCLUSIVE,
                near=draw(st.sampled_from([None, None, "gpu:0", "gpu:1", "node:0", "node:1"])),
                unit=draw(st.sampled_from([None, None, "a", "b"])),
                smt="any"
                if shared
                else draw(st.sampled_from(["any", "whole-core", "one-per-core"])),
                isolated=not shared and draw(st.booleans()),
                l3="any" if shared else draw(st.sampled_from(["any", "any", "one"])),
                memory_bytes=draw(st.sampled_from([0, 0, 10 << 30, 30 << 30, 70 << 30])),
                hugepages=draw(st.sampled_from([(), (), ((2 << 20, 300 << 20),)])),
                roles=() if shared else draw(st.sampled_from([(), (1,), (1, 1)]))[:count],
            )
        )
    return tuple(made)


def check(topology: Topology, wanted: tuple[Workload, ...], placement: Placement) -> None:
    """Every hard constraint, stated anew; nothing runs yet."""
    names = {w.name for w in wanted}
    placed = {p.workload: p for p in placement.placed}
    refused = {r.workload: r for r in placement.refused}
    assert placed.keys() | refused.keys() == names and not placed.keys() & refused.keys()
    assert placement.housekeeping and placement.housekeeping <= topology.online
    small = len(topology.online) < 6
    used: set[int] = set()
    core_of = {c: CpuSet.of([c]) for c in topology.online} | dict(topology.smt_siblings)
    wishes = {w.name: w for w in wanted}
    for p in placement.placed:
        w = wishes[p.workload]
        assert p.cpus and p.cpus <= topology.online and p.reasons
        if small:
            assert p.sharing is Sharing.SHARED and p.pool == "shared"
            assert len(topology.online) == 1 or p.cpus < topology.online
            assert len(topology.online) == 1 or not p.cpus & placement.housekeeping
            continue
        assert p.sharing is w.sharing
        if p.node is None:
            assert not any(n.cpus for n in topology.nodes) and not p.mems
        else:
            node = topology.node(p.node)
            assert node is not None and p.cpus <= node.cpus
            assert node.kind in (NodeKind.CPU_MEMORY, NodeKind.CPU)
        assert all(
            (n := topology.node(m)) is not None and n.kind is not NodeKind.GPU_MEMORY
            for m in p.mems
        )
        if w.sharing is Sharing.SHARED:
            assert len(p.cpus) >= w.cpus
            continue
        assert not p.cpus.ids & used and not p.cpus & placement.housekeeping
        used |= p.cpus.ids
        match w.smt:
            case "any":
                assert len(p.cpus) == w.cpus
            case "whole-core":
                assert all(core_of[c] <= p.cpus for c in p.cpus)
                assert w.cpus <= len(p.cpus) < w.cpus + 8
            case _:
                assert len(p.cpus) == w.cpus == len({core_of[c] for c in p.cpus})
                for c in p.cpus:
                    others = [q for q in placement.placed if q is not p]
                    assert not any(core_of[c] & q.cpus for q in others)
        if not w.isolated:
            assert not p.cpus & topology.isolation.isolated
        if w.l3 == "one":
            assert sum(bool(c.cpus & p.cpus) for c in topology.caches if c.level == 3) <= 1
        assert [r.role for r in p.roles] == list(w.roles)
        seen = CpuSet()
        for r in p.roles:
            assert len(r.cpus) == r.role.cpus and r.cpus <= p.cpus and not r.cpus & seen
            seen |= r.cpus
    for p in placement.placed:
        if p.sharing is Sharing.SHARED and not small:
            assert not p.cpus.ids & used and not p.cpus & topology.isolation.isolated
    for node in () if small else topology.nodes:
        mine = [wishes[p.workload] for p in placement.placed if node.id in p.mems]
        memory = sum(w.memory_bytes for w in mine)
        if node.memory_bytes is not None and memory:
            assert memory + sum(h.size_bytes * h.total for h in node.hugepages) <= node.memory_bytes
        if node.memory_available_bytes is not None:
            assert memory <= node.memory_available_bytes
        for pool in node.hugepages:
            wanted_pages = sum(
                n for w in mine for size, n in w.hugepages if size == pool.size_bytes
            )
            assert wanted_pages <= pool.free * pool.size_bytes
    for unit in {w.unit for w in wanted if w.unit}:
        members = [w.name for w in wanted if w.unit == unit]
        assert all(m in placed for m in members) or all(m in refused for m in members)
        if not small:
            assert len({placed[m].node for m in members if m in placed}) <= 1
    for said in placement.refused:
        assert said.reason and said.would_fit_if
