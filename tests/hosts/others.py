"""Machines unlike the usual server: memory-only nodes, Arm, POWER, a desktop, a guest.

Each function writes a tree of /sys and /proc with the builder of `tree.py`. Sources of the shapes:
vendors' system guides (Grace, POWER9), the kernel's ABI documents, and what QEMU's firmware tables
look like from inside (`qemu-*.capture`).
"""

from __future__ import annotations

from nodeagent.model.cpuset import CpuSet
from tests.hosts.tree import (
    BRIDGE,
    ETHERNET,
    GPU,
    NIC,
    NVME,
    VGA,
    Core,
    Table,
    Tree,
    adjacent,
    cpuinfo,
    drive,
    finished,
    interface,
    joined,
    write_cpus,
    write_nodes,
    x86,
)


def memory_only(cores: int = 4) -> Table:
    """Two packages; two nodes of persistent memory and one of a GPU's, none with CPUs."""
    tree = Tree()
    nodes = tree.cpu_side(packages=2, cores=cores, smt=1, nodes_each=1)
    far = [[10, 21, 17, 28, 80], [21, 10, 28, 17, 80], [17, 28, 10, 28, 80], [28, 17, 28, 10, 80]]
    far.append([80, 80, 80, 80, 10])
    none = CpuSet()
    for i, (cpus, memory) in enumerate(
        zip(
            [*nodes, none, none, none],
            (64_000_000, 0, 256_000_000, 256_000_000, 96_000_000),
            strict=True,
        )
    ):
        tree.node(i, cpus, memory, far[i])
    gpu = tree.function(
        "pci0009:00/0009:00:00.0/0009:01:00.0",
        GPU,
        "10de:2342",
        node=0,
        local=nodes[0],
        driver="nvidia",
        link=("32.0", 16),
    )
    tree.function(
        "pci0009:00/0009:00:00.0", BRIDGE, "10de:22b1", node=0, local=nodes[0], driver="pcieport"
    )
    tree.put(f"proc/driver/nvidia/gpus/{gpu}/numa_status", "Node: 4\nStatus: online")
    return tree.finish("ro quiet", {})


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
        interface(tree, f"sys/devices/{end}", f"ib{i}", 400_000, 8, f"mlx5_{i}")
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
    drive(tree, f"sys/devices/{port}/0005:01:00.0", 0)
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
    drive(tree, "sys/devices/pci0000:00/0000:00:06.0/0000:02:00.0", 0)
    interface(tree, "sys/devices/pci0000:00/0000:00:1c.0/0000:03:00.0", "enp3s0", 2500, 4)
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
    interface(tree, "sys/devices/pci0000:00/0000:00:03.0", "eth0", -1, 4)
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
        interface(tree, f"sys/devices/{end}", f"eno{function}", 10_000, 8)
    return finished(tree, "ro crashkernel=auto", {}, "GenuineIntel", "Made-up Xeon 6100")
