"""The builder of the trees of /sys and /proc of machines that nobody here has."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from nodeagent.discover.store import Entry, Link
from nodeagent.model.cpuset import CpuSet

Table = dict[str, Entry]
CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"
BRIDGE, GPU, NIC, NVME, VGA, UNCORE = "060400", "030200", "020700", "010802", "030000", "088000"
ACCELERATOR, ETHERNET = "120000", "020000"
GIB = 1 << 30


@dataclass
class Tree:
    """A machine under construction."""

    table: Table = field(default_factory=dict)
    irq: int = 24
    rows: list[str] = field(default_factory=list)
    cpus: int = 0
    acs: str | None = ""
    """ACS controls that the firmware left on at a switch's ports, as `ReqRedir,CmpltRedir`. None:
    recorded without root, so that nothing is told of configuration space."""

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
            if self.acs is not None:
                self.put(f"derived/pci/{bdf}", _config_space(path, code, *link, self.acs))
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


def _config_space(path: str, code: str, speed: str, width: int, acs: str) -> str:
    """Its configuration space in lspci's words, as `pci_config.describe` gives them: a root
    port at the top, then a switch's upstream and downstream ports in turn."""
    above = path.count("/") - 1
    port = "Root Port" if above == 0 else "Upstream Port" if above % 2 else "Downstream Port"
    kind = port if code == BRIDGE else "Endpoint"
    rate = f"{speed.removesuffix('.0')}GT/s, Width x{width}"
    lines = [
        f"Capabilities: [60] Express (v2) {kind}",
        "DevCap: MaxPayload 512 bytes",
        "DevCtl: RlxdOrd+ ExtTag+ NoSnoop+ MaxPayload 512 bytes, MaxReadReq 4096 bytes",
        "DevSta: CorrErr- NonFatalErr- FatalErr- UnsupReq-",
        f"LnkCap: Speed {rate}",
        f"LnkSta: Speed {rate}",
        "DevCtl2: Completion Timeout: 50us to 50ms, TimeoutDis-",
    ]
    if kind in ("Root Port", "Downstream Port"):
        names = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd")
        on = acs.split(",") if kind == "Downstream Port" else []
        lines += [
            "Capabilities: [150] Access Control Services",
            "ACSCap: " + " ".join(f"{n}+" for n in names) + " EgressCtrl- DirectTrans+",
            "ACSCtl: "
            + " ".join(n + ("+" if n in on else "-") for n in names)
            + " EgressCtrl- DirectTrans-",
        ]
    return "\n".join([*lines, "Capabilities: [100] end of list"])


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
    key = f"derived/pci/{path.rpartition('/')[2]}"
    text = tree.table[key]
    assert isinstance(text, bytes)
    now = f"LnkSta: Speed {speed.removesuffix('.0')}GT/s, Width x{width}"
    lines = [now if line.startswith("LnkSta") else line for line in text.decode().splitlines()]
    tree.put(key, "\n".join(lines))


def cpuinfo(tree: Tree, vendor: str, model: str, flags: str = "fpu constant_tsc") -> None:
    """The first CPU of /proc/cpuinfo on x86."""
    rows = (("vendor_id", vendor), ("model name", model), ("flags\t", flags))
    lines = ("processor\t: 0", *(f"{key}\t: {value}" for key, value in rows))
    tree.put("proc/cpuinfo", "\n".join(lines))


def finished(
    tree: Tree, boot: str, extra: dict[str, str], vendor: str = "", model: str = ""
) -> Table:
    """What every machine has besides, with that CPU."""
    table = tree.finish(boot, extra)
    if model:
        cpuinfo(tree, vendor, model)
    return table


def interface(
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


def drive(tree: Tree, device: str, number: int) -> None:
    at = f"{device}/nvme/nvme{number}"
    tree.table[f"sys/class/nvme/nvme{number}"] = Link(f"/{at}")
    tree.put(f"{at}/model", "Made-up NVMe 7.68TB")
    tree.table[f"{at}/nvme{number}n1"] = None


def board(tree: Tree, local: CpuSet) -> None:
    """The board's own: a display chip and the interface that people log in by."""
    port = "pci0000:00/0000:00:1c.0"
    add = partial(tree.function, node=0, local=local)
    add(port, BRIDGE, "8086:1bb8", driver="pcieport", link=("5.0", 1))
    add(f"{port}/0000:01:00.0", VGA, "1a03:2000", driver="ast")
    path = "pci0000:00/0000:00:1f.6"
    add(path, "020000", "8086:15fb", driver="e1000e", irqs=1, irq_name="eno")
    interface(tree, f"sys/devices/{path}", "eno1", 1000, 1)
    tree.put(
        "proc/net/route",
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
        "eno1\t00000000\t<ip-1>\t0003\t0\t0\t0\t00000000",
    )


def nvml(gpus: list[str], nodes: list[CpuSet]) -> str:
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
