"""Servers of the kinds one meets, made up: their shape is real, their names and counts are not.

Each function writes a tree of /sys and /proc with the builder of `tree.py`. Sources of the shapes:
vendors' system guides (HGX, MI300X) and the kernel's ABI documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tests.hosts.tree import (
    ACCELERATOR,
    BRIDGE,
    CPU,
    ETHERNET,
    GIB,
    GPU,
    NIC,
    NODE,
    NVME,
    UNCORE,
    Table,
    Tree,
    board,
    drive,
    finished,
    interface,
    joined,
    nvml,
    slower,
    write_cpus,
    write_nodes,
    x86,
)


def two_socket_8gpu(cores: int = 8, irqs: int = 4, uncore: int = 4) -> Table:
    """Two packages, four switches each with a GPU, a NIC and an NVMe drive, NVSwitch between."""
    tree = Tree()
    nodes = tree.cpu_side(packages=2, cores=cores, smt=2, nodes_each=1)
    for i, cpus in enumerate(nodes):
        tree.node(i, cpus, 528_000_000, [10, 21] if i == 0 else [21, 10])
    tree.put(f"{NODE}/has_memory", "0-1")
    gpus = []
    for i in range(8):
        node = i // 4
        local = nodes[node]
        bus = (0x15, 0x37, 0x48, 0x59, 0x97, 0xB7, 0xC7, 0xD7)[i]

        def at(*steps: int, bus: int = bus) -> str:
            return "/".join(
                [f"pci0000:{bus:02x}", *(f"0000:{s >> 8:02x}:{s & 0xFF:02x}.0" for s in steps)]
            )

        port, up = bus << 8 | 1, (bus + 1) << 8
        chain: tuple[int, ...] = (port, up)
        add = partial(tree.function, node=node, local=local)
        add(at(port), BRIDGE, "8086:352a", driver="pcieport", link=("32.0", 16))
        add(at(*chain), BRIDGE, "1000:c030", driver="pcieport", link=("32.0", 16))
        for slot, (code, ids, driver) in enumerate(
            (
                (GPU, "10de:2330", "nvidia"),
                (NIC, "15b3:1021", "mlx5_core"),
                (NVME, "144d:a824", "nvme"),
            )
        ):
            down = (bus + 2) << 8 | slot << 3
            end = (bus + 3 + slot) << 8
            lanes = 4 if code == NVME else 16
            add(at(*chain, down), BRIDGE, "1000:c030", driver="pcieport", link=("32.0", lanes))
            bdf = add(
                at(*chain, down, end),
                code,
                ids,
                driver=driver,
                link=("32.0", lanes),
                irqs=1 if code == GPU else irqs,
                irq_name={GPU: "nvidia", NIC: "mlx5_comp", NVME: f"nvme{i}q"}[code],
            )
            device = f"sys/devices/{at(*chain, down, end)}"
            if code == GPU:
                gpus.append(bdf)
            elif code == NIC:
                interface(tree, device, f"eth{i}", 400_000, 2 * irqs, rdma=f"mlx5_{i}")
            else:
                drive(tree, device, i)
    for node in (0, 1):
        for i in range(uncore):
            bus = (0x7F, 0xFE)[node]
            path = f"pci0000:{bus:02x}/0000:{bus:02x}:{i >> 3:02x}.{i & 7}"
            tree.function(path, UNCORE, "8086:3250", node=node, local=nodes[node])
    board(tree, nodes[0])
    return tree.finish(
        "BOOT_IMAGE=<value-1> ro quiet iommu=pt numa_balancing=disable",
        {"nvml/reading": nvml(gpus, nodes), "run/irqbalance": "0"},
    )


def hgx_10nic() -> Table:
    """Eight GPUs two to a switch, ten NICs, eight drives; one GPU and one NIC came up slow, and
    the firmware left ACS redirect on at every switch port."""
    tree = Tree(acs="SrcValid,ReqRedir,CmpltRedir,UpstreamFwd")
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
                interface(tree, f"sys/devices/{end}", f"ib{number}", 400_000, 4, f"mlx5_{number}")
            else:
                drive(tree, f"sys/devices/{end}", number)
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
        interface(tree, f"sys/devices/{end}", f"ens{node}", 200_000, 8, f"mlx5_{8 + node}")
    tree.put(
        "proc/net/route",
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
        "ens0\t00000000\t<ip-1>\t0003\t0\t0\t0\t00000000",
    )
    cpus = "4-11,16-23,28-35,40-47"
    extra = {
        f"{CPU}/isolated": cpus,
        f"{CPU}/nohz_full": cpus,
        "nvml/reading": nvml(gpus, [nodes[0], nodes[1]]),
    }
    boot = (
        f"ro isolcpus=managed_irq,domain,{cpus} nohz_full={cpus} rcu_nocbs={cpus} "
        "irqaffinity=0-3,12-15,24-27,36-39 iommu=pt hugepagesz=1G hugepages=128"
    )
    return finished(tree, boot, extra, "GenuineIntel", "Made-up Xeon 8500")


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
        interface(tree, f"sys/devices/{nic}", f"eth{i}", 400_000, 4, f"bnxt_re{i}")
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


def nps4_4gpu(cores: int = 16) -> Table:
    """One package in four NUMA nodes (NPS4): a GPU on each, NICs on two of them only."""
    tree = Tree()
    nodes = tree.cpu_side(packages=1, cores=cores, smt=2, nodes_each=4)
    for i, cpus in enumerate(nodes):
        tree.node(i, cpus, 128_000_000, [10 if i == j else 12 for j in range(4)])
    # Firmware numbers the root complexes as it likes: bus order is not node order.
    for bus, node in ((0x00, 3), (0x40, 2), (0x80, 1), (0xC0, 0)):
        at = f"pci0000:{bus:02x}"
        port = f"{at}/0000:{bus:02x}:01.1"
        add = partial(tree.function, node=node, local=nodes[node])
        add(port, BRIDGE, "1022:14ab", driver="pcieport", link=("16.0", 16))
        add(f"{port}/0000:{bus + 1:02x}:00.0", GPU, "10de:20b2", driver="nvidia", link=("16.0", 16))
        if node in (1, 3):
            port = f"{at}/0000:{bus:02x}:03.1"
            add(port, BRIDGE, "1022:14ab", driver="pcieport", link=("16.0", 16))
            path = f"{port}/0000:{bus + 2:02x}:00.0"
            add(
                path,
                "020000",
                "15b3:101b",
                driver="mlx5_core",
                link=("16.0", 16),
                irqs=4,
                irq_name="mlx5_comp",
            )
            interface(tree, f"sys/devices/{path}", f"eth{node}", 200_000, 4, rdma=f"mlx5_{node}")
    return tree.finish(
        "ro isolcpus=managed_irq,domain,4-15,20-31 nohz_full=4-15,20-31 irqaffinity=0-3,16-19",
        {f"{CPU}/isolated": "4-15,20-31", f"{CPU}/nohz_full": "4-15,20-31"},
    )


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
                interface(tree, f"sys/devices/{end}", f"ens{bus}f0", 100_000, 4)
    return finished(
        tree,
        "ro intel_iommu=on",
        {"proc/sys/kernel/numa_balancing": "1"},
        "GenuineIntel",
        "Made-up Xeon Max",
    )


def giant(packages: int = 16, cores: int = 32, nodes_each: int = 4, irqs: int = 16) -> Table:
    """1,024 PUs in 64 NUMA nodes: the largest shape that one kernel is built for by default.

    Each package has a GPU, a NIC and a drive behind a switch.
    """
    tree = Tree()
    nodes = tree.cpu_side(packages=packages, cores=cores, smt=2, nodes_each=nodes_each)
    for i, cpus in enumerate(nodes):
        near = [12 if i // nodes_each == j // nodes_each else 32 for j in range(len(nodes))]
        near[i] = 10
        tree.node(i, cpus, 64_000_000, near)
    tree.put(f"{NODE}/has_memory", f"0-{len(nodes) - 1}")
    gpus = []
    for package in range(packages):
        node = package * nodes_each
        add = partial(tree.function, node=node, local=nodes[node])
        # A PCI domain each, as machines of that size have.
        root = f"pci{package:04x}:00"

        def at(*steps: str, package: int = package, root: str = root) -> str:
            return "/".join([root, *(f"{package:04x}:{s}.0" for s in steps)])

        add(at("00:01"), BRIDGE, "8086:352a", driver="pcieport", link=("32.0", 16))
        add(at("00:01", "01:00"), BRIDGE, "1000:c030", driver="pcieport", link=("32.0", 16))
        for slot, (code, ids, driver) in enumerate(
            (
                (GPU, "10de:2330", "nvidia"),
                (NIC, "15b3:1021", "mlx5_core"),
                (NVME, "144d:a824", "nvme"),
            )
        ):
            lanes = 4 if code == NVME else 16
            port = ("00:01", "01:00", f"02:{slot:02x}")
            add(at(*port), BRIDGE, "1000:c030", driver="pcieport", link=("32.0", lanes))
            path = at(*port, f"{3 + slot:02x}:00")
            bdf = add(
                path,
                code,
                ids,
                driver=driver,
                link=("32.0", lanes),
                irqs=1 if code == GPU else irqs,
                irq_name={GPU: "nvidia", NIC: "mlx5_comp", NVME: f"nvme{package}q"}[code],
            )
            device = f"sys/devices/{path}"
            if code == GPU:
                gpus.append(bdf)
            elif code == NIC:
                interface(tree, device, f"eth{package}", 400_000, 2 * irqs, rdma=f"mlx5_{package}")
            else:
                drive(tree, device, package)
    return tree.finish("ro quiet iommu=pt", {"nvml/reading": nvml(gpus, nodes)})
