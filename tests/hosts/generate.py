"""Makes the trees of /sys and /proc of machines that nobody here has.

`python -m tests.hosts.generate` writes each, and those of `servers.py`, as `NAME.capture` here, and
for every capture here what we say of it: `NAME.json` (topology), `NAME.check.txt` (findings),
`NAME.tree.txt` (the tree). Look at the difference before committing it. The shapes are those of
real ones (DGX-like switches, NPS4, memory-only nodes); names, addresses and counts are made up.
"""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from nodeagent.discover.store import Entry, Link
from nodeagent.model.cpuset import CpuSet

if TYPE_CHECKING:
    from nodeagent.discover.root import Root

Table = dict[str, Entry]
CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"
BRIDGE, GPU, NIC, NVME, VGA, UNCORE = "060400", "030200", "020700", "010802", "030000", "088000"


@dataclass
class Tree:
    """A machine under construction."""

    table: Table = field(default_factory=dict)
    irq: int = 24
    rows: list[str] = field(default_factory=list)
    cpus: int = 0

    def put(self, path: str, text: object) -> None:
        """A file, as the kernel ends it."""
        self.table[path] = f"{text}\n".encode()

    def cpu_side(self, *, packages: int, cores: int, smt: int, nodes_each: int) -> list[CpuSet]:
        """CPUs numbered as Linux does on x86: all first threads, then all second ones."""
        total = packages * cores
        self.cpus = total * smt
        self.put(f"{CPU}/online", f"0-{self.cpus - 1}")
        self.put(f"{CPU}/possible", f"0-{self.cpus - 1}")
        self.put(f"{CPU}/present", f"0-{self.cpus - 1}")
        self.put(f"{CPU}/isolated", "")
        self.put(f"{CPU}/nohz_full", "(null)")
        self.put(f"{CPU}/smt/active", int(smt > 1))

        def threads(of: Iterable[int]) -> CpuSet:
            return CpuSet.of(c + t * total for c in of for t in range(smt))

        per_node = cores // nodes_each
        for cpu in range(self.cpus):
            core = cpu % total
            package = core // cores
            at = f"{CPU}/cpu{cpu}"
            siblings = threads([core])
            whole = threads(range(package * cores, (package + 1) * cores))
            node = core // per_node
            local = threads(range(node * per_node, (node + 1) * per_node))
            self.put(f"{at}/topology/core_cpus_list", siblings)
            self.put(f"{at}/topology/thread_siblings_list", siblings)
            self.put(f"{at}/topology/package_cpus_list", whole)
            self.put(f"{at}/topology/physical_package_id", package)
            self.put(f"{at}/topology/core_id", core % cores)
            self.put(f"{at}/cpufreq/scaling_governor", "performance")
            rows = (
                ("index0", 1, "Data", "48K", siblings),
                ("index1", 1, "Instruction", "32K", siblings),
                ("index2", 2, "Unified", "2048K", siblings),
                ("index3", 3, "Unified", f"{1920 * per_node}K", local),
            )
            for index, level, kind, size, shared in rows:
                self.put(f"{at}/cache/{index}/level", level)
                self.put(f"{at}/cache/{index}/type", kind)
                self.put(f"{at}/cache/{index}/size", size)
                self.put(f"{at}/cache/{index}/shared_cpu_list", shared)
        return [
            threads(range(i * per_node, (i + 1) * per_node)) for i in range(packages * nodes_each)
        ]

    def node(self, number: int, cpus: CpuSet, memory_kb: int, distances: list[int]) -> None:
        """A NUMA node with a pool of 2 MiB pages."""
        at = f"{NODE}/node{number}"
        self.put(f"{at}/cpulist", cpus)
        self.put(f"{at}/distance", " ".join(map(str, distances)))
        self.put(
            f"{at}/meminfo",
            f"Node {number} MemTotal:       {memory_kb} kB\n"
            f"Node {number} MemFree:        {memory_kb // 2} kB",
        )
        pool = f"{at}/hugepages/hugepages-2048kB"
        self.put(f"{pool}/nr_hugepages", 512)
        self.put(f"{pool}/free_hugepages", 500)

    def function(
        self,
        path: str,
        code: str,
        ids: str,
        *,
        node: int,
        local: CpuSet,
        driver: str | None = None,
        link: tuple[str, int] | None = None,
        irqs: int = 0,
        irq_name: str = "",
    ) -> str:
        """A PCI function at `pciDDDD:BB/...`; gives its BDF."""
        at = f"sys/devices/{path}"
        bdf = path.rpartition("/")[2]
        vendor, device = ids.split(":")
        self.table[f"sys/bus/pci/devices/{bdf}"] = Link(f"../../../devices/{path}")
        for name, text in (("class", f"0x{code}"), ("vendor", f"0x{vendor}")):
            self.put(f"{at}/{name}", text)
        self.put(f"{at}/device", f"0x{device}")
        self.put(f"{at}/subsystem_vendor", f"0x{vendor}")
        self.put(f"{at}/subsystem_device", "0x0001")
        self.put(f"{at}/numa_node", node)
        self.put(f"{at}/local_cpulist", local)
        if driver:
            self.table[f"{at}/driver"] = Link(f"/sys/bus/pci/drivers/{driver}")
        if link:
            for end in ("current", "max"):
                self.put(f"{at}/{end}_link_speed", f"{link[0]} GT/s PCIe")
                self.put(f"{at}/{end}_link_width", link[1])
            for name, word in (
                ("correctable", "COR"),
                ("nonfatal", "NONFATAL"),
                ("fatal", "FATAL"),
            ):
                self.put(f"{at}/aer_dev_{name}", f"RxErr 0\nTOTAL_ERR_{word} 0")
        targets = list(local)
        for i in range(irqs):
            target = targets[i % len(targets)]
            self.table[f"{at}/msi_irqs/{self.irq}"] = b"msix\n"
            self.put(f"proc/irq/{self.irq}/smp_affinity_list", target)
            self.put(f"proc/irq/{self.irq}/effective_affinity_list", target)
            self.put(f"proc/irq/{self.irq}/node", node)
            counts = ["0"] * self.cpus
            counts[target] = str(1000 + i)
            columns = " ".join(c.rjust(10) for c in counts)
            self.rows.append(
                f"{self.irq:4}: {columns}  IR-PCI-MSIX-{bdf}  {i}-edge      {irq_name}{i}"
            )
            self.irq += 1
        return bdf

    def finish(self, cmdline: str, extra: dict[str, str]) -> Table:
        """What every machine has besides."""
        header = "     " + " ".join(f"CPU{c}".rjust(10) for c in range(self.cpus))
        self.put("proc/interrupts", "\n".join([header, *self.rows]))
        self.put("proc/cmdline", cmdline)
        self.put("proc/meminfo", "MemTotal:       1056000000 kB\nMemFree:        528000000 kB")
        cpuinfo = ("processor\t: 0", "vendor_id\t: GenuineIntel", "model name\t: Made-up Xeon")
        self.put("proc/cpuinfo", "\n".join((*cpuinfo, "flags\t\t: fpu")))
        mounts = ("tmpfs /dev/shm tmpfs rw 0 0", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0")
        self.put("proc/mounts", "\n".join(mounts))
        self.put("proc/sys/kernel/hostname", "<host-1>")
        self.put("proc/sys/kernel/osrelease", "6.8.0")
        self.put("proc/sys/kernel/numa_balancing", 0)
        self.put("proc/sys/vm/zone_reclaim_mode", 0)
        self.put("proc/sys/vm/swappiness", 10)
        for path, text in extra.items():
            self.put(path, text)
        return self.table


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
                _interface(tree, device, f"eth{i}", 400_000, 2 * irqs, rdma=f"mlx5_{i}")
            else:
                _drive(tree, device, i)
    for node in (0, 1):
        for i in range(uncore):
            bus = (0x7F, 0xFE)[node]
            path = f"pci0000:{bus:02x}/0000:{bus:02x}:{i >> 3:02x}.{i & 7}"
            tree.function(path, UNCORE, "8086:3250", node=node, local=nodes[node])
    _board(tree, nodes[0])
    return tree.finish(
        "BOOT_IMAGE=<value-1> ro quiet iommu=pt numa_balancing=disable",
        {"nvml/reading": _nvml(gpus, nodes), "run/irqbalance": "0"},
    )


def _interface(
    tree: Tree, device: str, name: str, speed: int, queues: int, rdma: str | None = None
) -> None:
    at = f"{device}/net/{name}"
    tree.table[f"sys/class/net/{name}"] = Link(f"/{at}")
    for key, text in (("operstate", "up"), ("speed", speed), ("mtu", 9000)):
        tree.put(f"{at}/{key}", text)
    for queue in range(queues):
        tree.table[f"{at}/queues/rx-{queue}"] = None
        tree.table[f"{at}/queues/tx-{queue}"] = None
    if rdma:
        tree.table[f"{device}/infiniband/{rdma}"] = None


def _drive(tree: Tree, device: str, number: int) -> None:
    at = f"{device}/nvme/nvme{number}"
    tree.table[f"sys/class/nvme/nvme{number}"] = Link(f"/{at}")
    tree.put(f"{at}/model", "Made-up NVMe 7.68TB")
    tree.table[f"{at}/nvme{number}n1"] = None


def _board(tree: Tree, local: CpuSet) -> None:
    """The board's own: a display chip and the interface that people log in by."""
    port = "pci0000:00/0000:00:1c.0"
    add = partial(tree.function, node=0, local=local)
    add(port, BRIDGE, "8086:1bb8", driver="pcieport", link=("5.0", 1))
    add(f"{port}/0000:01:00.0", VGA, "1a03:2000", driver="ast")
    path = "pci0000:00/0000:00:1f.6"
    add(path, "020000", "8086:15fb", driver="e1000e", irqs=1, irq_name="eno")
    _interface(tree, f"sys/devices/{path}", "eno1", 1000, 1)
    tree.put(
        "proc/net/route",
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
        "eno1\t00000000\t<ip-1>\t0003\t0\t0\t0\t00000000",
    )


def _nvml(gpus: list[str], nodes: list[CpuSet]) -> str:
    link = {"bdf": "00000000:C1:00.0", "switch": True}
    found = []
    for i, bdf in enumerate(gpus):
        node = i * len(nodes) // len(gpus)
        found.append(
            {
                "index": i,
                "bdf": f"0000{bdf.upper()}",
                "name": "Made-up GPU 80GB",
                "uuid": f"GPU-<uuid-{i + 1}>",
                "memory": 80 << 30,
                "numa_node": node,
                "cpus": list(nodes[node]),
                "mig": False,
                "links": [link] * 18,
            }
        )
    return json.dumps({"available": True, "driver": "570.00.01", "gpus": found})


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
            _interface(tree, f"sys/devices/{path}", f"eth{node}", 200_000, 4, rdma=f"mlx5_{node}")
    return tree.finish(
        "ro isolcpus=managed_irq,domain,4-15,20-31 nohz_full=4-15,20-31 irqaffinity=0-3,16-19",
        {f"{CPU}/isolated": "4-15,20-31", f"{CPU}/nohz_full": "4-15,20-31"},
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


def large(packages: int = 16, cores: int = 32, nodes_each: int = 4, irqs: int = 16) -> Table:
    """1,024 PUs in 64 NUMA nodes: the largest shape that one kernel is built for by default.

    Each package has a GPU, a NIC and a drive behind a switch. For benchmarks: no golden file.
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
                _interface(tree, device, f"eth{package}", 400_000, 2 * irqs, rdma=f"mlx5_{package}")
            else:
                _drive(tree, device, package)
    return tree.finish("ro quiet iommu=pt", {"nvml/reading": _nvml(gpus, nodes)})


MACHINES = {"two-socket-8gpu": two_socket_8gpu, "nps4-4gpu": nps4_4gpu, "memory-only": memory_only}


def write_tree(table: Table, folder: pathlib.Path) -> pathlib.Path:
    """The table as files and links below a folder."""
    for path, entry in table.items():
        at = folder / path
        if entry is None:
            at.mkdir(parents=True, exist_ok=True)
            continue
        at.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(entry, Link):
            target = entry.target
            if target.startswith("/"):
                target = "../" * path.count("/") + target.lstrip("/")
            at.symlink_to(target)
        elif isinstance(entry, bytes):
            at.write_bytes(entry)
    return folder


def answers(root: Root) -> dict[str, str]:
    """What we say of a machine, by the ending of the golden file that holds it."""
    import msgspec

    from nodeagent.check.judge import judge
    from nodeagent.check.policy import Policy
    from nodeagent.cli.render.topology_json import topology_json
    from nodeagent.cli.render.topology_tree import print_topology
    from nodeagent.discover.snapshot import read_snapshot
    from nodeagent.model.finding import Verdict

    snapshot = read_snapshot(root)
    findings = judge(snapshot, Policy(), 0)
    quiet = (Verdict.OK, Verdict.NA)
    lines = [
        f"{f.verdict} {f.id}  {f.subject}: {f.message}" for f in findings if f.verdict not in quiet
    ]
    shape = msgspec.json.format(msgspec.json.encode(topology_json(snapshot)), indent=1)
    tree = io.StringIO()
    with contextlib.redirect_stdout(tree):
        print_topology(snapshot)
    return {
        ".json": shape.decode() + "\n",
        ".check.txt": "\n".join(lines) + "\n",
        ".tree.txt": tree.getvalue(),
    }


def made(table: Table, name: str) -> Root:
    """The door to a tree that is nowhere but in memory."""
    from nodeagent.discover.root import Root
    from nodeagent.discover.store import TableStore

    return Root(TableStore(table), live=False, label=name)


def main() -> None:
    """Writes captures and golden answers."""
    from nodeagent.discover.capture import render
    from nodeagent.discover.root import Root
    from tests.hosts.servers import BIG, SERVERS

    here = pathlib.Path(__file__).parent
    for name, make in (MACHINES | SERVERS).items():
        (here / f"{name}.capture").write_text(render(make()))
    roots = [Root.open(str(f)) for f in sorted(here.glob("*.capture"))]
    names = [f.stem for f in sorted(here.glob("*.capture"))]
    for name, root in zip([*names, *BIG], [*roots, *(made(BIG[n](), n) for n in BIG)], strict=True):
        with root:
            for ending, text in answers(root).items():
                (here / f"{name}{ending}").write_text(text)


if __name__ == "__main__":
    main()
