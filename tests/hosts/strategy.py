"""Machines drawn by hypothesis: a tree of /sys and /proc, and the topology that stands in it.

The topology comes from the numbers that were drawn, not from what was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

from hypothesis import strategies as st

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.pci import Aer, Link, PciFunction
from nodeagent.model.topology import (
    Cache,
    Hugepages,
    Isolation,
    NodeKind,
    NumaNode,
    Package,
    Path,
    Relation,
    Topology,
)
from tests.hosts.tree import (
    BRIDGE,
    CPU,
    GPU,
    NIC,
    NVME,
    UNCORE,
    VGA,
    Core,
    Table,
    Tree,
    joined,
    write_cpus,
    write_nodes,
)

SPEEDS = ("2.5", "5.0", "8.0", "16.0", "32.0", "64.0")
DOMAINS = ("0000", "0001", "00ff", "10000")
"""The last as VMD makes them: wider than four digits."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A machine: its files and what they mean."""

    table: Table
    topology: Topology


@dataclass(kw_only=True)
class _Ends:
    """PCI functions under construction."""

    tree: Tree
    nodes: dict[int, CpuSet]
    found: list[PciFunction] = field(default_factory=list)


@st.composite
def machines(draw: st.DrawFn) -> Drawn:
    """Any machine that the builder can write."""
    tree = Tree(acs=None)
    cores = _cores(draw)
    everything = joined(cores)
    off = CpuSet.of(
        draw(st.sets(st.sampled_from(sorted(everything)), max_size=len(everything) - 1))
    )
    online = everything - off
    write_cpus(
        tree,
        cores,
        l3="4096K",
        offline=off,
        governor="",
        stale=draw(st.booleans()),
        names=draw(
            st.sampled_from((("core_cpus", "package_cpus"), ("thread_siblings", "core_siblings")))
        ),
    )
    nodes = _nodes(draw, tree, cores, online)
    isolated = CpuSet.of(draw(st.sets(st.sampled_from(sorted(online)), max_size=4)))
    ends = _Ends(tree=tree, nodes={n.id: n.cpus for n in nodes})
    for domain, bus in draw(
        st.lists(
            st.tuples(st.sampled_from(DOMAINS), st.sampled_from((0x00, 0x40, 0x80))),
            max_size=4,
            unique=True,
        )
    ):
        _bus(draw, ends, f"pci{domain}:{bus:02x}", domain, [bus], ())
    functions = tuple(sorted(ends.found, key=lambda f: f.bdf))
    table = tree.finish("ro", {f"{CPU}/isolated": str(isolated)})
    topology = Topology(
        online=online,
        possible=everything,
        present=everything,
        smt_siblings=tuple(
            sorted(((pu, c.pus - off) for c in cores for pu in c.pus - off), key=lambda p: p[0])
        ),
        packages=_packages(cores, off),
        nodes=nodes,
        caches=_caches(cores, off),
        pci=functions,
        relations=_relations(functions),
        isolation=Isolation(isolated=isolated),
    )
    return Drawn(table=table, topology=topology)


# ---- CPUs ----------------------------------------------------------------------------------------


def _cores(draw: st.DrawFn) -> list[Core]:
    """Packages of any number and size; threads side by side or far apart, numbers with gaps."""
    ids = draw(st.lists(st.integers(0, 40), min_size=1, max_size=3, unique=True))
    smt = draw(st.integers(1, 4))
    sizes = [draw(st.integers(1, 4)) for _ in ids]
    side_by_side = draw(st.booleans())
    gap = draw(st.integers(0, 3))
    has_l3, per_l3 = draw(st.booleans()), draw(st.integers(1, 3))
    total = sum(sizes)
    cores: list[Core] = []
    for package, size in zip(ids, sizes, strict=True):
        for i in range(size):
            number = len(cores)
            start = number * (smt + gap)
            pus = range(start, start + smt)
            if not side_by_side:
                pus = range(number, number + total * smt, total)
            cores.append(
                Core(
                    pus=CpuSet.of(pus),
                    package=package,
                    # Repeats between packages, as real ones do.
                    number=i,
                    l3=package * 100 + i // per_l3 if has_l3 else None,
                    node=0,
                )
            )
    return cores


def _packages(cores: Sequence[Core], off: CpuSet) -> tuple[Package, ...]:
    found = {c.package: joined(o for o in cores if o.package == c.package) - off for c in cores}
    return tuple(Package(id=i, cpus=cpus) for i, cpus in sorted(found.items()) if cpus)


def _caches(cores: Sequence[Core], off: CpuSet) -> tuple[Cache, ...]:
    found = set()
    for core in cores:
        own = core.pus - off
        if not own:
            continue
        found.add(Cache(level=1, type="Data", size_bytes=48 << 10, cpus=own))
        found.add(Cache(level=2, type="Unified", size_bytes=1 << 20, cpus=own))
        if core.l3 is not None:
            shared = joined(c for c in cores if c.l3 == core.l3) - off
            found.add(Cache(level=3, type="Unified", size_bytes=4 << 20, cpus=shared))
    return tuple(sorted(found, key=lambda c: (c.level, c.type, min(c.cpus.ids))))


# ---- nodes ---------------------------------------------------------------------------------------


def _nodes(
    draw: st.DrawFn, tree: Tree, cores: Sequence[Core], online: CpuSet
) -> tuple[NumaNode, ...]:
    """Cores dealt out to nodes of any numbers; nodes without CPUs, without memory, without both."""
    count = draw(st.integers(0, 5))
    ids = sorted(draw(st.sets(st.integers(0, 300), min_size=count, max_size=count)))
    if not ids:
        return ()
    homes = [draw(st.sampled_from(ids)) for _ in cores]
    cpus = {
        i: joined(c for c, home in zip(cores, homes, strict=True) if home == i) & online
        for i in ids
    }
    memory = {i: draw(st.sampled_from((0, 4, 65_536, 528_000_000))) for i in ids}
    apart = {frozenset(p): draw(st.integers(11, 255)) for p in combinations(ids, 2)}
    pages, free = draw(st.tuples(st.integers(0, 99), st.integers(0, 99)))

    def distance(a: int, b: int) -> int:
        return 10 if a == b else apart[frozenset((a, b))]

    write_nodes(tree, {i: (cpus[i], memory[i]) for i in ids}, distance, pools={2048: (pages, free)})
    found = []
    for i in ids:
        here = bool(cpus[i] and memory[i])
        pool = Hugepages(size_bytes=2 << 20, total=pages if here else 0, free=free if here else 0)
        kinds = {
            (True, True): NodeKind.CPU_MEMORY,
            (True, False): NodeKind.CPU,
            (False, True): NodeKind.MEMORY,
            (False, False): NodeKind.EMPTY,
        }
        found.append(
            NumaNode(
                id=i,
                cpus=cpus[i],
                memory_bytes=memory[i] << 10,
                memory_free_bytes=memory[i] * 3 // 4 << 10,
                distances=tuple((o, distance(i, o)) for o in ids),
                kind=kinds[bool(cpus[i]), bool(memory[i])],
                hugepages=(pool,),
            )
        )
    return tuple(found)


# ---- PCI -----------------------------------------------------------------------------------------


def _bus(
    draw: st.DrawFn, ends: _Ends, at: str, domain: str, buses: list[int], above: tuple[str, ...]
) -> None:
    """Functions and bridges on one bus; `buses` counts the numbers given out below a root."""
    bus = buses[-1]
    for slot in range(draw(st.integers(1, 3))):
        bridge = len(above) < 4 and draw(st.booleans())
        code, ids = (BRIDGE, "10b5:8747")
        if not bridge:
            code, ids = draw(
                st.sampled_from(
                    (
                        (GPU, "10de:2330"),
                        (VGA, "1a03:2000"),
                        (NIC, "15b3:1021"),
                        (NVME, "144d:a824"),
                        (UNCORE, "8086:3250"),
                    )
                )
            )
        path = f"{at}/{domain}:{bus:02x}:{slot:02x}.0"
        node = draw(st.sampled_from((-1, *ends.nodes)))
        link = draw(st.none() | st.tuples(st.sampled_from(SPEEDS), st.sampled_from((1, 4, 16))))
        driver = draw(st.none() | st.sampled_from(("nvidia", "vfio-pci", "mlx5_core")))
        local = ends.nodes.get(node, CpuSet())
        bdf = ends.tree.function(path, code, ids, node=node, local=local, driver=driver, link=link)
        vendor, device = ids.split(":")
        speed, width = (float(link[0]), link[1]) if link else (None, None)
        ends.found.append(
            PciFunction(
                bdf=bdf,
                class_code=code[:4],
                vendor=vendor,
                device=device,
                numa_node=None if node < 0 else node,
                local_cpus=local or None,
                parents=above,
                root_bus=at.partition("/")[0].removeprefix("pci"),
                driver=driver,
                link=Link(speed_gts=speed, width=width, max_speed_gts=speed, max_width=width)
                if link
                else None,
                subsystem=f"{vendor}:0001",
                aer=Aer(correctable=0, nonfatal=0, fatal=0) if link else None,
            )
        )
        if bridge:
            buses.append(max(buses) + 1)
            _bus(draw, ends, path, domain, [*buses], (bdf, *above))
            used = [int(f.bdf.split(":")[-2], 16) for f in ends.found if f.bdf.startswith(domain)]
            buses.append(max([*buses, *(u for u in used if u < bus | 0x3F)]))


def _relations(functions: Sequence[PciFunction]) -> tuple[Relation, ...]:
    computing = [f for f in functions if f.class_code == GPU[:4]]
    ends = [f for f in functions if f in computing or f.class_code in (NIC[:4], NVME[:4])]
    found = []
    for a, b in combinations(ends, 2):
        known = a.numa_node is not None and b.numa_node is not None
        same = a.numa_node == b.numa_node if known else None
        found.append(Relation(a=a.bdf, b=b.bdf, path=_path(a, b, same), same_numa=same))
    return tuple(found)


def _path(a: PciFunction, b: PciFunction, same: bool | None) -> Path:
    """From the bridges that each has for itself, counted from the root downward."""
    if a.root_bus == b.root_bus:
        shared = 0
        for x, y in zip(reversed(a.parents), reversed(b.parents), strict=False):
            if x != y:
                break
            shared += 1
        if not shared:
            return Path.PHB
        alone = max(len(a.parents) - shared, len(b.parents) - shared)
        return Path.PIX if alone <= 1 else Path.PXB
    if same is None:
        return Path.UNKNOWN
    return Path.NODE if same else Path.SYS
