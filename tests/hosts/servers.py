"""Servers of the kinds one meets, made up: their shape is real, their names and counts are not.

Each function writes a tree of /sys and /proc with the builder of `generate.py`. Sources of the
shapes: vendors' system guides (HGX, Grace, MI300X), the kernel's ABI documents, and what QEMU's
firmware tables look like from inside (`qemu-*.capture`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from nodeagent.model.cpuset import CpuSet
from tests.hosts.generate import (
    BRIDGE,
    CPU,
    GPU,
    NIC,
    NODE,
    NVME,
    VGA,
    Table,
    Tree,
    _drive,
    _interface,
    _nvml,
)

ACCELERATOR = "120000"
ETHERNET = "020000"
GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Core:
    """A core under construction: its PUs and what it shares with which others."""

    pus: CpuSet
    package: int
    number: int
    """core_id: may repeat in other packages, as the kernel's does."""
    l3: int | None
    node: int


def x86(
    *, packages: int, cores: int, smt: int = 2, nodes_each: int = 1, l3_each: int = 1
) -> list[Core]:
    """Numbered as Linux does on x86: all first threads, then all second ones. `l3_each`: L3
    groups in a node."""
    total = packages * cores
    per_node, per_l3 = cores // nodes_each, cores // nodes_each // l3_each
    return [
        Core(
            pus=CpuSet.of(core + t * total for t in range(smt)),
            package=core // cores,
            number=core % cores,
            l3=core // per_l3,
            node=core // per_node,
        )
        for core in range(total)
    ]


def adjacent(
    *, packages: Sequence[int], cores: int, smt: int, first: Sequence[int], per_l3: int
) -> list[Core]:
    """Numbered as on POWER and Arm: a core's threads side by side; each package begins at its
    own first CPU and is its own node, of the package's number."""
    return [
        Core(
            pus=CpuSet.of(range(start + i * smt, start + (i + 1) * smt)),
            package=package,
            number=start + i * smt,
            l3=start + i // per_l3,
            node=package,
        )
        for package, start in zip(packages, first, strict=True)
        for i in range(cores)
    ]


def joined(cores: Iterable[Core]) -> CpuSet:
    """All PUs of some cores."""
    return CpuSet.of(pu for core in cores for pu in core.pus)


def write_cpus(
    tree: Tree,
    cores: Sequence[Core],
    *,
    l3: str = "32768K",
    offline: CpuSet | None = None,
    governor: str = "performance",
    names: tuple[str, str] = ("core_cpus", "package_cpus"),
    stale: bool = False,
) -> None:
    """The CPU files. An offline PU keeps its folder and loses topology and caches, as Linux does.
    `names`: those before Linux 5.3 were thread_siblings and core_siblings. `stale`: masks still
    name offline PUs, as some architectures' do."""
    off = offline or CpuSet()
    hidden = CpuSet() if stale else off
    everything = joined(cores)
    online = everything - off
    tree.cpus = max(everything.ids) + 1
    for name, cpus in (("online", online), ("possible", everything), ("present", everything)):
        tree.put(f"{CPU}/{name}", cpus)
    tree.put(f"{CPU}/isolated", "")
    tree.put(f"{CPU}/nohz_full", "(null)")
    tree.put(f"{CPU}/smt/active", int(any(len(c.pus) > 1 for c in cores)))
    packages = {c.package: joined(o for o in cores if o.package == c.package) for c in cores}
    groups = {c.l3: joined(o for o in cores if o.l3 == c.l3) for c in cores if c.l3 is not None}
    for core in cores:
        for pu in core.pus:
            at = f"{CPU}/cpu{pu}"
            if pu in off:
                tree.put(f"{at}/online", 0)
                continue
            tree.put(f"{at}/topology/{names[0]}_list", core.pus - hidden)
            tree.put(f"{at}/topology/{names[1]}_list", packages[core.package] - hidden)
            tree.put(f"{at}/topology/physical_package_id", core.package)
            tree.put(f"{at}/topology/core_id", core.number)
            if governor:
                tree.put(f"{at}/cpufreq/scaling_governor", governor)
            rows = [
                ("index0", 1, "Data", "48K", core.pus),
                ("index2", 2, "Unified", "1024K", core.pus),
            ]
            if core.l3 is not None:
                rows.append(("index3", 3, "Unified", l3, groups[core.l3]))
            for index, level, kind, amount, shared in rows:
                tree.put(f"{at}/cache/{index}/level", level)
                tree.put(f"{at}/cache/{index}/type", kind)
                tree.put(f"{at}/cache/{index}/size", amount)
                tree.put(f"{at}/cache/{index}/shared_cpu_list", shared - hidden)


def write_nodes(
    tree: Tree,
    nodes: dict[int, tuple[CpuSet, int]],
    distance: Callable[[int, int], int],
    *,
    pools: dict[int, tuple[int, int]] | None = None,
) -> None:
    """NUMA nodes: number -> (CPUs, kB of memory). `pools`: page size in kB -> (pages, free) on
    each node with CPUs."""
    ids = sorted(nodes)
    for number, (cpus, memory_kb) in nodes.items():
        at = f"{NODE}/node{number}"
        tree.put(f"{at}/cpulist", cpus)
        tree.put(f"{at}/distance", " ".join(str(distance(number, o)) for o in ids))
        tree.put(
            f"{at}/meminfo",
            f"Node {number} MemTotal:       {memory_kb} kB\n"
            f"Node {number} MemFree:        {memory_kb * 3 // 4} kB",
        )
        for page_kb, (total, free) in (pools or {}).items():
            pool = f"{at}/hugepages/hugepages-{page_kb}kB"
            tree.put(f"{pool}/nr_hugepages", total if cpus and memory_kb else 0)
            tree.put(f"{pool}/free_hugepages", free if cpus and memory_kb else 0)
    tree.put(f"{NODE}/has_memory", CpuSet.of(i for i, (_, kb) in nodes.items() if kb))


def slower(tree: Tree, path: str, speed: str, width: int) -> None:
    """A link that came up with less than it can do."""
    tree.put(f"sys/devices/{path}/current_link_speed", f"{speed} GT/s PCIe")
    tree.put(f"sys/devices/{path}/current_link_width", width)


def cpuinfo(tree: Tree, vendor: str, model: str, flags: str = "fpu constant_tsc") -> None:
    """The first CPU of /proc/cpuinfo on x86."""
    rows = (("vendor_id", vendor), ("model name", model), ("flags\t", flags))
    lines = ("processor\t: 0", *(f"{key}\t: {value}" for key, value in rows))
    tree.put("proc/cpuinfo", "\n".join(lines))


def hgx_10nic() -> Table:
    """Eight GPUs two to a switch, ten NICs, eight drives; one GPU and one NIC came up slow."""
    tree = Tree()
    cores = x86(packages=2, cores=12)
    write_cpus(tree, cores, l3="107520K")
    nodes = {i: joined(c for c in cores if c.node == i) for i in (0, 1)}
    write_nodes(
        tree,
        {i: (cpus, 1_056_000_000) for i, cpus in nodes.items()},
        lambda a, b: 10 if a == b else 21,
        pools={2048: (0, 0), 1048576: (64, 60)},
    )
    gpus = []
    for s in range(4):
        node, bus = s // 2, (0x10, 0x40, 0x90, 0xC0)[s]
        local = nodes[node]

        add = partial(tree.function, node=node, local=local)
        full = ("32.0", 16)
        chain = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0"
        add(chain, BRIDGE, "8086:352a", driver="pcieport", link=full)
        chain += f"/0000:{bus + 1:02x}:00.0"
        add(chain, BRIDGE, "1000:c030", driver="pcieport", link=full)
        plan = (
            (GPU, "10de:2335", "nvidia"),
            (GPU, "10de:2335", "nvidia"),
            (NIC, "15b3:1021", "mlx5_core"),
            (NIC, "15b3:1021", "mlx5_core"),
            (NVME, "144d:a824", "nvme"),
            (NVME, "144d:a824", "nvme"),
        )
        for slot, (code, ids, driver) in enumerate(plan):
            lanes = 4 if code == NVME else 16
            port = f"{chain}/0000:{bus + 2:02x}:{slot:02x}.0"
            end = f"{port}/0000:{bus + 3 + slot:02x}:00.0"
            add(port, BRIDGE, "1000:c030", driver="pcieport", link=("32.0", lanes))
            name = {GPU: "nvidia", NIC: "mlx5_comp", NVME: "nvme"}[code]
            bdf = add(end, code, ids, driver=driver, link=("32.0", lanes), irqs=1, irq_name=name)
            number = 2 * s + slot % 2
            if code == GPU:
                gpus.append(bdf)
            elif code == NIC:
                _interface(tree, f"sys/devices/{end}", f"ib{number}", 400_000, 4, f"mlx5_{number}")
            else:
                _drive(tree, f"sys/devices/{end}", number)
            if (s, slot) == (1, 1):
                slower(tree, end, "32.0", 8)
                slower(tree, port, "32.0", 8)
            if (s, slot) == (3, 2):
                slower(tree, end, "16.0", 16)
                slower(tree, port, "16.0", 16)
    for node, bus in ((0, 0x70), (1, 0xF0)):
        port = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0"
        tree.function(
            port,
            BRIDGE,
            "8086:352a",
            node=node,
            local=nodes[node],
            driver="pcieport",
            link=("16.0", 16),
        )
        end = f"{port}/0000:{bus + 1:02x}:00.0"
        tree.function(
            end,
            ETHERNET,
            "15b3:101f",
            node=node,
            local=nodes[node],
            driver="mlx5_core",
            link=("16.0", 16),
            irqs=2,
            irq_name="mlx5_comp",
        )
        _interface(tree, f"sys/devices/{end}", f"ens{node}", 200_000, 8, f"mlx5_{8 + node}")
    tree.put(
        "proc/net/route",
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
        "ens0\t00000000\t<ip-1>\t0003\t0\t0\t0\t00000000",
    )
    cpus = "4-11,16-23,28-35,40-47"
    extra = {
        f"{CPU}/isolated": cpus,
        f"{CPU}/nohz_full": cpus,
        "nvml/reading": _nvml(gpus, [nodes[0], nodes[1]]),
    }
    boot = (
        f"ro isolcpus=managed_irq,domain,{cpus} nohz_full={cpus} rcu_nocbs={cpus} "
        "irqaffinity=0-3,12-15,24-27,36-39 iommu=pt hugepagesz=1G hugepages=128"
    )
    return finished(tree, boot, extra, "GenuineIntel", "Made-up Xeon 8500")


def finished(
    tree: Tree, boot: str, extra: dict[str, str], vendor: str = "", model: str = ""
) -> Table:
    """What every machine has besides, with that CPU."""
    table = tree.finish(boot, extra)
    if model:
        cpuinfo(tree, vendor, model)
    return table


def mi300x_nps4() -> Table:
    """Two packages in four nodes each, eight GPUs with XGMI between every two, KFD's tree."""
    tree = Tree()
    cores = x86(packages=2, cores=16, nodes_each=4, l3_each=2)
    write_cpus(tree, cores)
    nodes = {i: joined(c for c in cores if c.node == i) for i in range(8)}
    write_nodes(
        tree,
        {i: (cpus, 264_000_000) for i, cpus in nodes.items()},
        lambda a, b: 10 if a == b else 12 if a // 4 == b // 4 else 32,
        pools={2048: (1024, 1024)},
    )
    gpus = []
    for i in range(8):
        bus = 0x04 + 0x20 * i
        local = nodes[i]
        path = f"pci0000:{bus:02x}"
        # A switch of the board, then the GPU's own two bridges.
        steps = (
            f"{bus:02x}:01.1",
            f"{bus + 1:02x}:00.0",
            f"{bus + 2:02x}:00.0",
            f"{bus + 3:02x}:00.0",
            f"{bus + 4:02x}:00.0",
            f"{bus + 5:02x}:00.0",
        )
        makers = ("1022:14ab", "1000:c030", "1000:c030", "1002:1500", "1002:1501")
        for step, ids in zip(steps, makers, strict=False):
            path += f"/0000:{step}"
            tree.function(
                path, BRIDGE, ids, node=i, local=local, driver="pcieport", link=("32.0", 16)
            )
        end = f"{path}/0000:{steps[-1]}"
        gpus.append(
            tree.function(
                end,
                ACCELERATOR,
                "1002:74a1",
                node=i,
                local=local,
                driver="amdgpu",
                link=("32.0", 16),
                irqs=1,
                irq_name="amdgpu",
            )
        )
        tree.put(f"sys/devices/{end}/mem_info_vram_total", 192 * GIB)
        below = "/".join(path.split("/")[:3])
        port = f"{below}/0000:{bus + 2:02x}:01.0"
        tree.function(
            port, BRIDGE, "1000:c030", node=i, local=local, driver="pcieport", link=("32.0", 16)
        )
        nic = f"{port}/0000:{bus + 8:02x}:00.0"
        tree.function(
            nic,
            ETHERNET,
            "14e4:1760",
            node=i,
            local=local,
            driver="bnxt_en",
            link=("32.0", 16),
            irqs=2,
            irq_name="bnxt",
        )
        _interface(tree, f"sys/devices/{nic}", f"eth{i}", 400_000, 4, f"bnxt_re{i}")
    _kfd(tree, gpus, cpu_nodes=8)
    return finished(tree, "ro iommu=pt pci=realloc=off", {}, "AuthenticAMD", "Made-up EPYC 9004")


def _kfd(tree: Tree, gpus: Sequence[str], *, cpu_nodes: int) -> None:
    """KFD's nodes: CPUs first, then GPUs with an XGMI link to every other."""
    at = "sys/class/kfd/kfd/topology/nodes"
    for i in range(cpu_nodes):
        tree.put(f"{at}/{i}/properties", "cpu_cores_count 8\nsimd_count 0\nlocation_id 0\ndomain 0")
    for i, bdf in enumerate(gpus):
        number = cpu_nodes + i
        bus = int(bdf.split(":")[1], 16)
        tree.put(
            f"{at}/{number}/properties",
            f"cpu_cores_count 0\nsimd_count 1216\nvendor_id 4098\ndevice_id 29857\n"
            f"location_id {bus << 8}\ndomain 0\ndrm_render_minor {128 + i}",
        )
        peers = [cpu_nodes + k for k in range(len(gpus)) if k != i]
        for k, (peer, kind, weight) in enumerate(
            [(i * cpu_nodes // len(gpus), 2, 20), *((p, 11, 15) for p in peers)]
        ):
            tree.put(
                f"{at}/{number}/io_links/{k}/properties",
                f"type {kind}\nnode_from {number}\nnode_to {peer}\nweight {weight}",
            )


def gb200() -> Table:
    """Two Arm CPUs, four GPUs whose memory is eight NUMA nodes each; one of the eight holds it."""
    tree = Tree()
    cores = adjacent(packages=(0, 1), cores=12, smt=1, first=(0, 12), per_l3=12)
    write_cpus(tree, cores, l3="116736K", governor="performance")
    sides = {i: joined(c for c in cores if c.node == i) for i in (0, 1)}
    nodes = {i: (cpus, 490_000_000) for i, cpus in sides.items()}
    nodes |= {i: (CpuSet(), 193_000_000 if i % 8 == 2 else 0) for i in range(2, 34)}

    def distance(a: int, b: int) -> int:
        if a == b:
            return 10
        side = [(0 if n in (0, 2) or 2 <= n < 18 else 1) for n in (a, b)]
        return (40 if min(a, b) < 2 <= max(a, b) else 80) if side[0] == side[1] else 80

    write_nodes(tree, nodes, distance, pools={2048: (0, 0), 524288: (0, 0)})
    for i, domain in enumerate(("0008", "0009", "0018", "0019")):
        node = i // 2
        port = f"pci{domain}:00/{domain}:00:00.0"
        tree.function(port, BRIDGE, "10de:22b1", node=node, local=sides[node], driver="pcieport")
        gpu = tree.function(
            f"{port}/{domain}:01:00.0",
            GPU,
            "10de:2941",
            node=node,
            local=sides[node],
            driver="nvidia",
            irqs=1,
            irq_name="nvidia",
        )
        tree.put(f"proc/driver/nvidia/gpus/{gpu}/numa_status", f"Node: {2 + 8 * i}\nStatus: online")
    for i, domain in enumerate(("0000", "0010")):
        port = f"pci{domain}:00/{domain}:00:00.0"
        end = f"{port}/{domain}:01:00.0"
        for path, code, ids, driver in (
            (port, BRIDGE, "10de:22b2", "pcieport"),
            (end, NIC, "15b3:1023", "mlx5_core"),
        ):
            tree.function(path, code, ids, node=i, local=sides[i], driver=driver, link=("64.0", 16))
        _interface(tree, f"sys/devices/{end}", f"ib{i}", 400_000, 8, f"mlx5_{i}")
    return _arm(tree, "ro init_on_alloc=0 iommu.passthrough=1")


def _arm(tree: Tree, boot: str) -> Table:
    table = tree.finish(boot, {})
    lines = ("processor\t: 0", "Features\t: fp asimd", "CPU implementer\t: 0x41")
    tree.put("proc/cpuinfo", "\n".join(lines))
    return table


def gh200() -> Table:
    """One Arm CPU, one GPU: node 1 is its memory, seven more nodes wait for MIG and are empty."""
    tree = Tree()
    cores = adjacent(packages=(0,), cores=12, smt=1, first=(0,), per_l3=12)
    write_cpus(tree, cores, l3="116736K")
    local = joined(cores)
    nodes = {0: (local, 490_000_000), 1: (CpuSet(), 99_000_000)}
    nodes |= {i: (CpuSet(), 0) for i in range(2, 9)}
    write_nodes(tree, nodes, lambda a, b: 10 if a == b else 80)
    port = "pci0009:00/0009:00:00.0"
    tree.function(port, BRIDGE, "10de:22b1", node=0, local=local, driver="pcieport")
    gpu = tree.function(
        f"{port}/0009:01:00.0",
        GPU,
        "10de:2342",
        node=0,
        local=local,
        driver="nvidia",
        link=("32.0", 16),
    )
    tree.put(f"proc/driver/nvidia/gpus/{gpu}/numa_status", "Node: 1\nStatus: online")
    port = "pci0005:00/0005:00:00.0"
    tree.function(port, BRIDGE, "10de:22b8", node=0, local=local, driver="pcieport")
    tree.function(
        f"{port}/0005:01:00.0",
        NVME,
        "1e0f:0013",
        node=0,
        local=local,
        driver="nvme",
        link=("32.0", 4),
    )
    _drive(tree, f"sys/devices/{port}/0005:01:00.0", 0)
    return _arm(tree, "ro iommu.passthrough=1")


def power9() -> Table:
    """SMT4, sparse packages and nodes 0 and 8, six GPUs whose memory is nodes 250 to 255."""
    tree = Tree()
    cores = adjacent(packages=(0, 8), cores=4, smt=4, first=(0, 88), per_l3=2)
    write_cpus(tree, cores, l3="10240K", names=("thread_siblings", "core_siblings"))
    sides = {i: joined(c for c in cores if c.node == i) for i in (0, 8)}
    nodes = {i: (cpus, 268_000_000) for i, cpus in sides.items()}
    nodes |= {i: (CpuSet(), 16_515_072) for i in range(250, 256)}
    write_nodes(
        tree,
        nodes,
        lambda a, b: 10 if a == b else 40 if max(a, b) == 8 else 80,
        pools={2048: (0, 0), 1048576: (0, 0)},
    )
    for i in range(6):
        node, domain = (0, "0004") if i < 3 else (8, "0035")
        bus = 0x04 + i % 3
        port = f"pci{domain}:00/{domain}:00:00.0"
        switch = f"{port}/{domain}:01:00.0"
        down = f"{switch}/{domain}:02:{i % 3 + 8:02x}.0"
        for path, ids in ((port, "1014:04c1"), (switch, "10b5:8725"), (down, "10b5:8725")):
            tree.function(
                path, BRIDGE, ids, node=node, local=sides[node], driver="pcieport", link=("8.0", 8)
            )
        gpu = tree.function(
            f"{down}/{domain}:{bus:02x}:00.0",
            GPU,
            "10de:1db5",
            node=node,
            local=sides[node],
            driver="nvidia",
            link=("8.0", 4),
        )
        tree.put(f"proc/driver/nvidia/gpus/{gpu}/numa_status", f"Node: {255 - i}\nStatus: online")
    table = tree.finish("root=/dev/sda2 ro", {})
    tree.put("proc/cpuinfo", "processor\t: 0\ncpu\t\t: POWER9, altivec supported")
    return table


def snc4() -> Table:
    """Two packages in four clusters each; one has lost its memory; GPUs on two of eight."""
    tree = Tree()
    cores = x86(packages=2, cores=12, nodes_each=4)
    write_cpus(tree, cores, l3="15360K", governor="powersave")
    nodes = {i: joined(c for c in cores if c.node == i) for i in range(8)}
    write_nodes(
        tree,
        {i: (cpus, 0 if i == 6 else 132_000_000) for i, cpus in nodes.items()},
        lambda a, b: 10 if a == b else 12 if a // 4 == b // 4 else 21,
        pools={2048: (256, 200)},
    )
    for node, bus in ((1, 0x26), (5, 0xA6)):
        for slot, (code, ids, driver) in enumerate(
            ((GPU, "10de:26b9", "nvidia"), (ETHERNET, "8086:1592", "ice"))
        ):
            port = f"pci0000:{bus:02x}/0000:{bus:02x}:{slot + 1:02x}.0"
            end = f"{port}/0000:{bus + 1 + slot:02x}:00.0"
            ends = ((port, BRIDGE, "8086:352a", "pcieport"), (end, code, ids, driver))
            for path, c, i, d in ends:
                tree.function(
                    path,
                    c,
                    i,
                    node=node,
                    local=nodes[node],
                    driver=d,
                    link=("16.0", 16),
                    irqs=2 * (c == ETHERNET),
                    irq_name="ice",
                )
            if code == ETHERNET:
                _interface(tree, f"sys/devices/{end}", f"ens{bus}f0", 100_000, 4)
    return finished(
        tree,
        "ro intel_iommu=on",
        {"proc/sys/kernel/numa_balancing": "1"},
        "GenuineIntel",
        "Made-up Xeon Max",
    )


def giant() -> Table:
    """1,024 CPUs in 64 nodes and eight packages."""
    tree = Tree()
    cores = x86(packages=8, cores=64, nodes_each=8, l3_each=1)
    write_cpus(tree, cores, l3="16384K", governor="")
    nodes = {i: joined(c for c in cores if c.node == i) for i in range(64)}
    write_nodes(
        tree,
        {i: (cpus, 66_000_000) for i, cpus in nodes.items()},
        lambda a, b: 10 if a == b else 12 if a // 8 == b // 8 else 32,
    )
    return finished(tree, "ro quiet", {}, "AuthenticAMD", "Made-up EPYC 9004")


def hybrid_desktop() -> Table:
    """Fast cores with two threads, slow ones with one, in clusters; firmware names no node."""
    tree = Tree()
    fast = [
        Core(pus=CpuSet.of((2 * i, 2 * i + 1)), package=0, number=4 * i, l3=0, node=0)
        for i in range(4)
    ]
    slow = [Core(pus=CpuSet.of((8 + i,)), package=0, number=16 + i, l3=0, node=0) for i in range(8)]
    write_cpus(tree, fast + slow, l3="24576K", governor="powersave")
    local = joined(fast + slow)
    write_nodes(tree, {0: (local, 65_000_000)}, lambda a, b: 10, pools={2048: (0, 0)})
    for path, code, ids, driver, link in (
        ("pci0000:00/0000:00:02.0", VGA, "8086:a780", "i915", None),
        ("pci0000:00/0000:00:01.0", BRIDGE, "8086:a70d", "pcieport", ("16.0", 16)),
        ("pci0000:00/0000:00:01.0/0000:01:00.0", VGA, "10de:2684", "nvidia", ("16.0", 16)),
        ("pci0000:00/0000:00:06.0", BRIDGE, "8086:a74d", "pcieport", ("16.0", 4)),
        ("pci0000:00/0000:00:06.0/0000:02:00.0", NVME, "144d:a80c", "nvme", ("16.0", 4)),
        ("pci0000:00/0000:00:1c.0", BRIDGE, "8086:7a38", "pcieport", ("5.0", 1)),
        ("pci0000:00/0000:00:1c.0/0000:03:00.0", ETHERNET, "8086:125c", "igc", ("5.0", 1)),
    ):
        tree.function(path, code, ids, node=-1, local=local, driver=driver, link=link)
    _drive(tree, "sys/devices/pci0000:00/0000:00:06.0/0000:02:00.0", 0)
    _interface(tree, "sys/devices/pci0000:00/0000:00:1c.0/0000:03:00.0", "enp3s0", 2500, 4)
    return finished(tree, "ro quiet splash", {}, "GenuineIntel", "Made-up Core i7")


def flat_vm() -> Table:
    """A guest that hides two sockets: one node, a package for each CPU, four GPUs passed in."""
    tree = Tree()
    cores = [Core(pus=CpuSet.of((i,)), package=i, number=0, l3=None, node=0) for i in range(16)]
    write_cpus(tree, cores, governor="")
    local = joined(cores)
    write_nodes(tree, {0: (local, 264_000_000)}, lambda a, b: 10, pools={2048: (0, 0)})
    for i in range(4):
        tree.function(
            f"pci0000:00/0000:00:{5 + i:02x}.0",
            GPU,
            "10de:20b5",
            node=-1,
            local=local,
            driver="nvidia",
        )
    tree.function(
        "pci0000:00/0000:00:03.0", ETHERNET, "1af4:1000", node=-1, local=local, driver="virtio-pci"
    )
    _interface(tree, "sys/devices/pci0000:00/0000:00:03.0", "eth0", -1, 4)
    extra = {
        "sys/class/dmi/id/sys_vendor": "QEMU",
        "sys/class/dmi/id/product_name": "Standard PC (i440FX + PIIX, 1996)",
    }
    table = tree.finish("ro console=ttyS0", extra)
    cpuinfo(tree, "GenuineIntel", "Made-up Xeon", "fpu hypervisor constant_tsc")
    return table


def silent_firmware() -> Table:
    """Two packages; the firmware names no device's node and gives a distance table that is none."""
    tree = Tree()
    cores = x86(packages=2, cores=6)
    write_cpus(tree, cores, offline=CpuSet.of((3, 15)))
    nodes = {i: joined(c for c in cores if c.node == i) - CpuSet.of((3, 15)) for i in (0, 1)}
    write_nodes(tree, {0: (nodes[0], 132_000_000), 1: (nodes[1], 66_000_000)}, lambda a, b: 10)
    everything = nodes[0] | nodes[1]
    for bus in (0x3A, 0xD7):
        port = f"pci0000:{bus:02x}/0000:{bus:02x}:00.0"
        for path, code, ids, driver in (
            (port, BRIDGE, "8086:2030", "pcieport"),
            (f"{port}/0000:{bus + 1:02x}:00.0", GPU, "10de:1eb8", None),
        ):
            tree.function(
                path, code, ids, node=-1, local=everything, driver=driver, link=("8.0", 16)
            )
    port = "pci0000:17/0000:17:00.0"
    tree.function(
        port, BRIDGE, "8086:2030", node=-1, local=everything, driver="pcieport", link=("8.0", 8)
    )
    for function in (0, 1):
        end = f"{port}/0000:18:00.{function}"
        tree.function(
            end, ETHERNET, "8086:1572", node=-1, local=everything, driver="i40e", link=("8.0", 8)
        )
        _interface(tree, f"sys/devices/{end}", f"eno{function}", 10_000, 8)
    return finished(tree, "ro crashkernel=auto", {}, "GenuineIntel", "Made-up Xeon 6100")


SERVERS: dict[str, Callable[[], Table]] = {
    "hgx-10nic": hgx_10nic,
    "mi300x-nps4": mi300x_nps4,
    "gb200": gb200,
    "gh200": gh200,
    "power9": power9,
    "snc4": snc4,
    "hybrid-desktop": hybrid_desktop,
    "flat-vm": flat_vm,
    "silent-firmware": silent_firmware,
}
BIG: dict[str, Callable[[], Table]] = {"giant": giant}
"""Too big to be kept as a capture: made anew for each test."""
