"""Cases of test_checks.py for what the machine's own readings tell: (name, machine, verdict)."""

from __future__ import annotations

import dataclasses

from nodeagent.check.baseline import shape
from nodeagent.model.baseline import Baseline
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.finding import Verdict
from nodeagent.model.matrix import LinkMatrix
from nodeagent.model.pasted import Pasted
from nodeagent.model.pci import PciFunction
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.topology import Cache, Hugepages, Isolation, NodeKind, NumaNode
from tests.check.machines import (
    CPU,
    GIB,
    bare,
    cpus,
    function,
    healthy,
    isolated,
    topo,
    unreadable,
    with_cmdline,
    with_node,
    with_pci,
    with_texts,
)

H, Q, B = healthy(), isolated(), bare()
V = Verdict
GPU0, NIC0, GPU1, NIC1 = (f"0000:{b}:00.0" for b in ("11", "13", "81", "83"))
CMD = "proc/cmdline"
MC = "sys/devices/system/edac/mc"
NET = "sys/class/net"
KSM = "sys/kernel/mm/ksm/run"
DEFRAG = "sys/kernel/mm/transparent_hugepage/defrag"
DEMOTION = "sys/kernel/mm/numa/demotion_enabled"
PARTITION = "sys/fs/cgroup/cpuset.cpus.isolated"
TUNED = "etc/tuned/active_profile"
TUNED_CORES = "etc/tuned/cpu-partitioning-variables.conf"
RT = "proc/sys/kernel/sched_rt_runtime_us"
RT_PERIOD = "proc/sys/kernel/sched_rt_period_us"
BANNED = "etc/default/irqbalance"
SMT = f"{CPU}/smt/active"
CONTROL = f"{CPU}/smt/control"
DMI = "sys/class/dmi/id/sys_vendor"
GROUPS = "proc/sys/net/ipv4/igmp_max_memberships"
RP_FILTER = "proc/sys/net/ipv4/conf/all/rp_filter"
RMEM = "proc/sys/net/core/rmem_max"
LIMITS = "proc/self/limits"
NO_PCI = dataclasses.replace(topo(H, pci=(), relations=()), gpus=())
UNLISTED = unreadable(NO_PCI, "sys/bus/pci/devices", reason="Input/output error")


def with_function(first: int, added: PciFunction) -> Snapshot:
    """The healthy machine's first PCI functions, and another one."""
    return topo(H, pci=(*H.topology.pci[:first], added))


def accepted(s: Snapshot) -> Snapshot:
    """That machine, compared with the healthy one's baseline."""
    return dataclasses.replace(s, baseline=Baseline(accepted="2026-01-01", traits=shape(H)))


def no_cmdline(s: Snapshot) -> Snapshot:
    return dataclasses.replace(unreadable(s, CMD), boot_args=())


def no_nodes(s: Snapshot = H) -> Snapshot:
    return unreadable(
        topo(s, nodes=()), "sys/devices/system/node/node0/cpulist", reason="Input/output error"
    )


def pages(node0: int, node1: int, size: int = 2 << 20) -> Snapshot:
    s = H
    for node, total in enumerate((node0, node1)):
        s = with_node(s, node, hugepages=(Hugepages(size_bytes=size, total=total, free=total),))
    return s


def far_irqs(s: Snapshot = H) -> Snapshot:
    """The interrupts of the NIC of node 0 go to node 1."""
    first = dataclasses.replace(s.irqs[0], affinity=cpus("9"), effective=cpus("9"))
    return dataclasses.replace(s, irqs=(first, *s.irqs[1:]))


def irq(s: Snapshot, **fields: object) -> Snapshot:
    first = dataclasses.replace(s.irqs[0], **fields)  # type: ignore[arg-type]  # test data
    return dataclasses.replace(s, irqs=(first, *s.irqs[1:]))


def queues(*on: int) -> Snapshot:
    """The NIC of node 0 with a queue's interrupt on each of these CPUs."""
    made = tuple(
        dataclasses.replace(H.irqs[0], number=100 + i, affinity=CpuSet.of((cpu,)),
                            effective=CpuSet.of((cpu,)), counts=((cpu, 5),))
        for i, cpu in enumerate(on)
    )  # fmt: skip
    return dataclasses.replace(H, irqs=made)


def guest(s: Snapshot) -> Snapshot:
    return dataclasses.replace(s, host=dataclasses.replace(s.host, virtual="kvm"))


def maker(s: Snapshot, vendor: str) -> Snapshot:
    return dataclasses.replace(s, host=dataclasses.replace(s.host, cpu_vendor=vendor))


def single(s: Snapshot) -> Snapshot:
    """Each PU is a package, as a guest without a topology shows it."""
    first = s.topology.packages[0]
    return topo(s, packages=tuple(
        dataclasses.replace(first, id=c, cpus=CpuSet.of((c,))) for c in range(16)
    ))  # fmt: skip


def one_node(s: Snapshot) -> Snapshot:
    node = dataclasses.replace(s.topology.nodes[0], cpus=s.topology.online, distances=((0, 10),))
    return topo(s, nodes=(node,))


def quiet_machine(s: Snapshot) -> Snapshot:
    """Without GPUs: nothing there where tails matter."""
    pci = tuple(p for p in s.topology.pci if not p.is_gpu)
    return dataclasses.replace(topo(s, pci=pci, relations=()), gpus=())


def cxl(s: Snapshot = H) -> Snapshot:
    far = NumaNode(id=2, cpus=cpus(""), memory_bytes=96 * GIB, distances=(), kind=NodeKind.MEMORY)
    return topo(s, nodes=(*s.topology.nodes, far))


def left(node: int, available: int) -> Snapshot:
    return with_node(H, node, memory_free_bytes=1 << 20, memory_available_bytes=available)


def dimms(*sizes: tuple[int, ...]) -> Snapshot:
    texts: dict[str, str | None] = {}
    for mc, row in enumerate(sizes):
        for i, size in enumerate(row):
            texts[f"{MC}/mc{mc}/dimm{i}/size"] = str(size)
            texts[f"{MC}/mc{mc}/dimm{i}/dimm_label"] = f"CPU_SrcID#{mc}_Chan#{i}_DIMM#0"
    return with_texts(H, texts)


def errors(corrected: int, uncorrected: int) -> Snapshot:
    return with_texts(H, {f"{MC}/mc0/ce_count": str(corrected),
                          f"{MC}/mc0/ue_count": str(uncorrected)})  # fmt: skip


def npsx(within: int, across: int) -> Snapshot:
    """Two packages of two nodes each, with these distances."""
    lists = ("0-1,4-5", "2-3,6-7", "8-9,12-13", "10-11,14-15")
    nodes = tuple(
        dataclasses.replace(
            H.topology.nodes[0], id=n, cpus=cpus(text),
            distances=tuple((m, 10 if m == n else within if m // 2 == n // 2 else across)
                            for m in range(4)),
        )
        for n, text in enumerate(lists)
    )  # fmt: skip
    return topo(H, nodes=nodes)


def swapped() -> Snapshot:
    """GPU 0 on node 1, GPU 1 on node 0."""
    return with_pci(with_pci(H, GPU0, numa_node=1), GPU1, numa_node=0)


def shared(gpus: int, spread: bool) -> Snapshot:
    """GPUs on one switch and two NICs: one near, one near too or across."""
    links = {(f"GPU{g}", f"NIC{n}"): "PIX" if n == 0 or spread else "NODE"
             for g in range(gpus) for n in (0, 1)}  # fmt: skip
    return dataclasses.replace(
        NO_PCI, pasted=Pasted(),
        matrix=LinkMatrix(gpus=tuple(f"GPU{g}" for g in range(gpus)), nics=("NIC0", "NIC1"),
                          links=links,
                          numa_affinity={f"GPU{g}": cpus("0") for g in range(gpus)}),
    )  # fmt: skip


def claimed(affinity: str, node: str) -> Snapshot:
    return dataclasses.replace(
        NO_PCI, pasted=Pasted(),
        matrix=LinkMatrix(gpus=("GPU0",), nics=(), links={},
                          cpu_affinity={"GPU0": cpus(affinity)},
                          numa_affinity={"GPU0": cpus(node)}),
    )  # fmt: skip


def speeds(leaf: str, fast: str, top: int, rest: int, s: Snapshot = Q) -> Snapshot:
    there = cpus(fast)
    return with_texts(
        s, {f"{CPU}/cpu{c}/{leaf}": str(top if c in there else rest) for c in range(16)}
    )


def policies() -> Snapshot:
    """Frequency policies, of which those of the isolated CPUs are the fastest."""
    at = f"{CPU}/cpufreq/policy"
    texts: dict[str, str | None] = {f"{at}{c}/affected_cpus": str(c) for c in range(16)}
    fast = cpus("2,3,6,7")
    texts |= {f"{at}{c}/base_frequency": "2700000" if c in fast else "2100000" for c in range(16)}
    return with_texts(Q, texts)


def alternating() -> Snapshot:
    """Even CPUs on node 0, odd ones on node 1, siblings n and n+8; a range is isolated."""
    s = topo(
        Q,
        smt_siblings=tuple((c, CpuSet.of((c % 8, c % 8 + 8))) for c in range(16)),
        nodes=tuple(
            dataclasses.replace(n, cpus=CpuSet.of(range(n.id, 16, 2))) for n in Q.topology.nodes
        ),
    )
    return with_cmdline(s, "isolcpus=2-3,10-11")


def one_l3(s: Snapshot) -> Snapshot:
    return topo(s, caches=(Cache(level=3, type="Unified", size_bytes=1, cpus=cpus("0-15")),))


def tuned(cores: str) -> Snapshot:
    """Isolated as ever, with a profile that is told these cores."""
    text = f"# made by hand\nisolated_cores={cores}"
    return with_texts(Q, {TUNED: "cpu-partitioning", TUNED_CORES: text})


def cost(name: str = "nodeagentd", **fields: object) -> dict[str, str | None]:
    row = {"cpu_s": "4.00", "age_s": "4000.0", "rss_kb": "70000", "cpus": "0-1", "last": "1"}
    row |= {k: str(v) for k, v in fields.items()}
    return {f"run/self/{name}/77": " ".join(f"{k}={v}" for k, v in row.items())}


def feeder(s: Snapshot = H, **fields: object) -> Snapshot:
    return with_texts(s, cost("nodeagent-feede", **fields))


def counters(nic: str = "eth0", **rows: int) -> Snapshot:
    return with_texts(H, {f"{NET}/{nic}/statistics/{k}": str(v) for k, v in rows.items()})


def limit(text: str) -> Snapshot:
    return with_texts(H, {LIMITS: f"Limit  Soft Limit\nMax locked memory   {text}  {text}  bytes"})


def asked(name: str) -> Snapshot:
    return dataclasses.replace(H, pasted=Pasted(kinds=(name,)))


CASES: dict[str, list[tuple[str, Snapshot, Verdict]]] = {
    "baseline.holds": [
        ("as accepted", accepted(H), V.OK),
        ("memory lost", accepted(with_node(H, 0, memory_bytes=GIB)), V.FAIL),
        ("bus not listed", accepted(unreadable(NO_PCI, "sys/bus/pci/devices")), V.UNKNOWN),
        ("none accepted", H, V.NA),
    ],
    "locality.unit": [
        ("whole", pages(512, 512), V.OK),
        ("no huge pages there", pages(512, 0), V.WARN),
        ("interrupts elsewhere", far_irqs(), V.WARN),
        ("NICs on one node only", with_function(7, function(NIC1, "0200", "15b3", 0)),
         V.WARN),
        ("one NIC", topo(H, pci=H.topology.pci[:7]), V.INFO),
        ("drive elsewhere", with_function(8, function("0000:a0:00.0", "0108", "144d", 1)),
         V.INFO),
        ("not seen", UNLISTED, V.UNKNOWN),
        ("masks not seen", unreadable(H, "proc/irq/40/effective_affinity_list"), V.UNKNOWN),
        ("no GPU", B, V.NA),
    ],
    "locality.nic-share": [
        ("one each", H, V.OK),
        ("ties", shared(4, True), V.OK),
        ("one alone", shared(4, False), V.INFO),
        ("not seen", UNLISTED, V.UNKNOWN),
        ("no GPU", B, V.NA),
    ],
    "contradiction.affinity": [
        ("agree", claimed("0-7", "0"), V.OK),
        ("other node's CPUs", claimed("8-15", "0"), V.WARN),
        ("no such node", claimed("0-7", "4"), V.WARN),
        ("no matrix", H, V.NA),
    ],
    "contradiction.bridge-node": [
        ("agree", H, V.OK),
        ("differ", with_pci(H, GPU0, numa_node=1), V.WARN),
        ("not seen", UNLISTED, V.UNKNOWN),
        ("bridges tell nothing", with_pci(with_pci(topo(H, pci=H.topology.pci[:2]), "0000:10:00.0",
                                                   numa_node=None), GPU0, numa_node=0), V.NA),
    ],
    "contradiction.l3": [
        ("inside", H, V.OK),
        ("across", one_l3(H), V.WARN),
        ("across, in a guest", one_l3(guest(H)), V.INFO),
        ("across sockets of one PU", single(one_l3(H)), V.INFO),
        ("clusters of a device tree", one_l3(maker(H, "0x41")), V.INFO),
        ("ARM with DMI", with_texts(one_l3(maker(H, "0x41")), {DMI: "Giga"}), V.WARN),
        ("no caches", topo(H, caches=()), V.NA),
    ],
    "contradiction.smt": [
        ("agree", with_texts(H, {SMT: "1"}), V.OK),
        ("off, and pairs", with_texts(H, {SMT: "0"}), V.WARN),
        ("in a guest", with_texts(guest(H), {SMT: "0"}), V.INFO),
        ("not told by this architecture",
         with_texts(H, {SMT: "0", CONTROL: "notimplemented"}), V.NA),
        ("not seen", unreadable(H, SMT), V.UNKNOWN),
        ("no such file", H, V.NA),
    ],
    "contradiction.vnuma": [
        ("a node each", guest(H), V.OK),
        ("flat with GPUs", one_node(guest(H)), V.WARN),
        ("a socket for each PU", topo(guest(quiet_machine(H)), packages=tuple(
            dataclasses.replace(H.topology.packages[0], id=c, cpus=CpuSet.of((c,)))
            for c in range(16))), V.INFO),
        ("not seen", no_nodes(guest(H)), V.UNKNOWN),
        ("bare metal", H, V.NA),
    ],
    "cpu.numbering": [
        ("fits", Q, V.OK),
        ("made for adjacent siblings", with_cmdline(Q, "isolcpus=2-3"), V.WARN),
        ("ranges across nodes", alternating(), V.INFO),
        ("not seen", no_cmdline(H), V.UNKNOWN),
        ("nothing isolated", H, V.NA),
    ],
    "cpu.hybrid": [
        ("fast ones", speeds("cpu_capacity", "2,3,6,7", 1024, 400), V.OK),
        ("mixed", speeds("cpu_capacity", "2,6", 1024, 400), V.WARN),
        ("efficiency cores", with_texts(Q, {"sys/devices/cpu_core/cpus": "0-2",
                                            "sys/devices/cpu_atom/cpus": "3-15"}), V.WARN),
        ("nothing isolated", speeds("cpu_capacity", "2,6", 1024, 400, H), V.INFO),
        ("damaged", with_texts(Q, {f"{CPU}/cpu2/cpu_capacity": "fast"}), V.UNKNOWN),
        ("graded", speeds("cpu_capacity", "2,6", 1024, 1000), V.NA),
        ("alike", Q, V.NA),
    ],
    "cpu.priority-cores": [
        ("given", policies(), V.OK),
        ("not given", speeds("acpi_cppc/highest_perf", "8-11", 255, 190), V.INFO),
        ("not seen", unreadable(Q, f"{CPU}/cpufreq/policy2/base_frequency"), V.UNKNOWN),
        ("alike", Q, V.NA),
    ],
    "isolation.run-time": [
        ("partition", with_texts(H, {PARTITION: "4-5"}), V.INFO),
        ("both", dataclasses.replace(with_texts(Q, {PARTITION: "2-3"}),
                                     asked=Isolation(isolated=cpus("2,3,6,7"))), V.WARN),
        ("not seen", unreadable(H, PARTITION), V.UNKNOWN),
        ("empty", with_texts(H, {PARTITION: ""}), V.NA),
    ],
    "isolation.tuned": [
        ("as told", tuned("2,3,6,7"), V.OK),
        ("computed", tuned("${f:calc_isolated_cores:1}"), V.OK),
        ("none in force", with_texts(H, {TUNED: "cpu-partitioning"}), V.WARN),
        ("others in force", tuned("4-7"), V.WARN),
        ("not seen", unreadable(H, TUNED), V.UNKNOWN),
        ("another profile", with_texts(H, {TUNED: "throughput-performance"}), V.NA),
        ("no tuned", H, V.NA),
    ],
    "isolation.rt-throttling": [
        ("never", with_texts(Q, {RT: "-1"}), V.OK),
        ("by default", with_texts(Q, {RT: "950000", RT_PERIOD: "1000000"}), V.INFO),
        ("not seen", unreadable(Q, RT), V.UNKNOWN),
        ("nothing isolated", H, V.NA),
    ],
    "irq.effective": [
        ("as set", H, V.OK),
        ("elsewhere", irq(H, affinity=cpus("2")), V.WARN),
        ("not fired since", irq(H, affinity=cpus("2"), counts=((1, 0),)), V.OK),
        ("not seen", unreadable(H, "proc/irq/40/effective_affinity_list"), V.UNKNOWN),
        ("no interrupts", B, V.NA),
    ],
    "irq.irqbalance": [
        ("does not run", with_texts(Q, {"run/irqbalance": "0"}), V.OK),
        ("by itself", with_texts(Q, {"run/irqbalance": "1", BANNED: "#IRQBALANCE_BANNED_CPUS="}),
         V.OK),
        ("told well", with_texts(Q, {"run/irqbalance": "1", BANNED: 'IRQBALANCE_BANNED_CPUS="cc"'}),
         V.OK),
        ("told ill", with_texts(Q, {"run/irqbalance": "1", BANNED: "IRQBALANCE_BANNED_CPUS=4"}),
         V.FAIL),
        ("list told ill", with_texts(Q, {"run/irqbalance": "1",
                                         BANNED: "IRQBALANCE_BANNED_CPULIST=8-9"}), V.FAIL),
        ("not seen", with_texts(unreadable(Q, BANNED), {"run/irqbalance": "1"}), V.UNKNOWN),
        ("damaged", with_texts(Q, {"run/irqbalance": "1", BANNED: "IRQBALANCE_BANNED_CPUS=zz"}),
         V.UNKNOWN),
        ("nothing isolated", H, V.NA),
    ],
    "irq.one-cpu": [
        ("spread", queues(0, 1, 2, 3), V.OK),
        ("all on one", queues(1, 1, 1, 1), V.WARN),
        ("not seen", UNLISTED, V.UNKNOWN),
        ("few queues", H, V.NA),
    ],
    "numa.exhausted": [
        ("enough", left(0, 200 * GIB), V.OK),
        ("used up", left(1, GIB), V.WARN),
        ("not seen", no_nodes(), V.UNKNOWN),
        ("not told", H, V.NA),
    ],
    "numa.dimms": [
        ("alike", dimms((32768, 32768), (32768, 32768)), V.OK),
        ("one missing", dimms((32768, 32768), (32768, 0)), V.WARN),
        ("not seen", unreadable(H, f"{MC}/mc0/dimm0/size"), V.UNKNOWN),
        ("damaged", with_texts(H, {f"{MC}/mc0/dimm0/size": "big"}), V.UNKNOWN),
        ("in a guest", guest(dimms((32768, 32768), (32768, 0))), V.NA),
        ("no EDAC", H, V.NA),
    ],
    "memory.ecc": [
        ("few", errors(3, 0), V.OK),
        ("many corrected", errors(5000, 0), V.WARN),
        ("uncorrected", errors(0, 1), V.FAIL),
        ("not seen", unreadable(H, f"{MC}/mc0/ce_count"), V.UNKNOWN),
        ("no EDAC", H, V.NA),
    ],
    "numa.demotion": [
        ("off", with_texts(cxl(), {DEMOTION: "false"}), V.OK),
        ("on", with_texts(cxl(), {DEMOTION: "true"}), V.WARN),
        ("not seen", unreadable(cxl(), DEMOTION), V.UNKNOWN),
        ("no slow memory", with_texts(H, {DEMOTION: "true"}), V.NA),
    ],
    "numa.interleaved": [
        ("a node each", H, V.OK),
        ("numa=off", with_cmdline(one_node(H), "numa=off"), V.WARN),
        ("interleaved, GPUs", one_node(H), V.WARN),
        ("one bus", one_node(quiet_machine(H)), V.INFO),
        ("sockets of one PU", single(one_node(quiet_machine(H))), V.INFO),
        ("s390", one_node(maker(H, "IBM/S390")), V.NA),
        ("not seen", no_nodes(), V.UNKNOWN),
        ("in a guest", one_node(guest(H)), V.NA),
    ],
    "numa.uneven": [
        ("a boot's difference", with_node(H, 1, memory_bytes=253 * GIB), V.OK),
        ("one of sixteen DIMMs",
         maker(with_node(H, 1, memory_bytes=239 * GIB), "GenuineIntel"), V.WARN),
        ("a partition's share", with_node(H, 1, memory_bytes=239 * GIB), V.INFO),
        ("half", with_node(H, 1, memory_bytes=100 * GIB), V.WARN),
        ("in a guest", guest(with_node(H, 1, memory_bytes=100 * GIB)), V.INFO),
        ("not seen", no_nodes(), V.UNKNOWN),
        ("one node", B, V.NA),
    ],
    "numa.flat-distances": [
        ("told", npsx(12, 32), V.OK),
        ("flat", npsx(20, 20), V.INFO),
        ("not seen", no_nodes(), V.UNKNOWN),
        ("a node each", H, V.NA),
    ],
    "numa.gpu-order": [
        ("ascending", H, V.OK),
        ("not", swapped(), V.INFO),
        ("not seen", UNLISTED, V.UNKNOWN),
        ("no GPU", B, V.NA),
    ],
    "memory.hugepages-need": [
        ("nothing asked for", pages(512, 512), V.NA),
    ],
    "memory.ksm": [
        ("off", with_texts(H, {KSM: "0"}), V.OK),
        ("on", with_texts(H, {KSM: "1"}), V.WARN),
        ("on, elsewhere", with_texts(B, {KSM: "1"}), V.INFO),
        ("not seen", unreadable(H, KSM), V.UNKNOWN),
        ("no KSM", with_texts(H, {KSM: None}), V.NA),
    ],
    "memory.thp-defrag": [
        ("madvise", with_texts(H, {DEFRAG: "always defer [madvise] never"}), V.OK),
        ("always", with_texts(H, {DEFRAG: "[always] defer madvise"}), V.WARN),
        ("always, elsewhere", with_texts(B, {DEFRAG: "[always] defer madvise"}), V.INFO),
        ("damaged", with_texts(H, {DEFRAG: "always"}), V.UNKNOWN),
        ("no THP", with_texts(H, {DEFRAG: None}), V.NA),
    ],
    "memory.memlock": [
        ("unlimited", limit("unlimited"), V.OK),
        ("little", limit("8388608"), V.INFO),
        ("little, pasted", dataclasses.replace(limit("65536"), pasted=Pasted()), V.WARN),
        ("damaged", with_texts(H, {LIMITS: "Limit"}), V.UNKNOWN),
        ("no RDMA", B, V.NA),
    ],
    "feed.socket-buffer": [
        ("large", feeder(), V.OK),
        ("small", feeder(with_texts(H, {RMEM: "212992"})), V.INFO),
        ("not seen", feeder(unreadable(H, RMEM)), V.UNKNOWN),
        ("a namespace", feeder(with_texts(H, {RMEM: None})), V.NA),
        ("no feed", with_texts(H, {RMEM: "212992"}), V.NA),
    ],
    "feed.rp-filter": [
        ("loose", feeder(), V.OK),
        ("strict", feeder(with_texts(H, {RP_FILTER: "1"})), V.INFO),
        ("not seen", feeder(unreadable(H, RP_FILTER)), V.UNKNOWN),
        ("no feed", with_texts(H, {RP_FILTER: "1"}), V.NA),
    ],
    "feed.rx-queues": [
        ("enough", feeder(), V.OK),
        ("one", feeder(dataclasses.replace(H, nics=(dataclasses.replace(H.nics[0], rx_queues=1),))),
         V.INFO),
        ("not seen", feeder(unreadable(dataclasses.replace(H, nics=()), f"{NET}/eth0/operstate")),
         V.UNKNOWN),
        ("no feed", H, V.NA),
    ],
    "feed.irq-on-feeder": [
        ("apart", feeder(cpus="2"), V.OK),
        ("on it", feeder(cpus="1"), V.WARN),
        ("masks not seen", feeder(unreadable(H, "proc/irq/9/effective_affinity_list"), cpus="2"),
         V.UNKNOWN),
        ("not pinned", feeder(cpus="0-7"), V.NA),
        ("not pinned, on two CPUs", feeder(dataclasses.replace(
            H, topology=dataclasses.replace(H.topology, online=CpuSet.parse("0-1"))), cpus="0-1"),
         V.NA),
        ("no feeder", H, V.NA),
    ],
    "feed.ptp": [
        ("clocks", feeder(dataclasses.replace(
            H, nics=tuple(dataclasses.replace(n, ptp_clock=0) for n in H.nics))), V.OK),
        ("none", feeder(), V.INFO),
        ("not seen", feeder(unreadable(dataclasses.replace(H, nics=()), f"{NET}/eth0/operstate")),
         V.UNKNOWN),
        ("no feed", H, V.NA),
    ],
    "feed.nic-drops": [
        ("none", counters(rx_packets=10**9, rx_missed_errors=5, rx_crc_errors=0), V.OK),
        ("missed", counters(rx_packets=10**9, rx_missed_errors=10**6), V.WARN),
        ("cable", counters(rx_packets=10**9, rx_crc_errors=10**6), V.WARN),
        ("damaged", with_texts(H, {f"{NET}/eth0/statistics/rx_packets": "many"}), V.UNKNOWN),
        ("no counters", H, V.NA),
    ],
    "feed.memberships": [
        ("many", feeder(with_texts(H, {GROUPS: "200"})), V.OK),
        ("twenty", feeder(with_texts(H, {GROUPS: "20"})), V.INFO),
        ("not seen", feeder(unreadable(H, GROUPS)), V.UNKNOWN),
        ("no feed", with_texts(H, {GROUPS: "20"}), V.NA),
    ],
    "self.cpu": [
        ("little", with_texts(H, cost()), V.OK),
        ("much", with_texts(H, cost(cpu_s="400.00")), V.WARN),
        ("just started", with_texts(H, cost(cpu_s="4.00", age_s="9.0")), V.NA),
        ("damaged", with_texts(H, {"run/self/nodeagentd/7": "x"}), V.UNKNOWN),
        ("none", H, V.NA),
    ],
    "self.memory": [
        ("little", with_texts(H, cost()), V.OK),
        ("much", with_texts(H, cost(rss_kb=900000)), V.WARN),
        ("damaged", with_texts(H, {"run/self/nodeagentd/7": "x"}), V.UNKNOWN),
        ("none", H, V.NA),
    ],
    "self.placement": [
        ("off", with_texts(Q, cost()), V.OK),
        ("ran there", with_texts(Q, cost(last=2)), V.WARN),
        ("pinned there", with_texts(Q, cost(cpus="2-3")), V.WARN),
        ("damaged", with_texts(Q, {"run/self/nodeagentd/7": "x"}), V.UNKNOWN),
        ("nothing isolated", with_texts(H, cost()), V.NA),
    ],
}  # fmt: skip
ALWAYS_SEE = {"contradiction.affinity", "contradiction.l3"}
"""These cannot be unable to see: they judge what is there, or it was never asked for."""
ONLY_TELL = {"isolation.run-time"}
"""These have nothing to approve of."""
ALWAYS_APPLY: set[str] = set()
ASKED = {"memory.hugepages-need"}
"""These apply where a policy sets a bound: test_policy_checks.py tries them."""
