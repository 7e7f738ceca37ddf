"""Each check: a machine on which it says OK, one it finds fault with, one it cannot see, one it has
nothing to judge on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.check.judge import BY_ID, CHECKS, judge
from nodeagent.check.policy import Policy
from nodeagent.model.finding import Finding, Verdict
from nodeagent.model.kernel_event import KernelEvent
from nodeagent.model.matrix import LinkMatrix
from nodeagent.model.pasted import Pasted
from nodeagent.model.pci import Acs, Aer, Link
from nodeagent.model.process import ProcessFacts
from nodeagent.model.snapshot import GpuFacts, Irq, NicFacts, Nvml, Snapshot
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
from tests.check import (
    cases_discover,
    cases_gpu_tools,
    cases_host_tools,
    cases_jitter,
    cases_layout,
    cases_machine,
    cases_pcie,
)
from tests.check.machines import (
    CPU,
    GIB,
    bare,
    cpus,
    function,
    healthy,
    isolated,
    port,
    topo,
    unreadable,
    with_cmdline,
    with_node,
    with_pci,
    with_texts,
)

H, Q, B = healthy(), isolated(), bare()
CMD = "proc/cmdline"
GPU0, NIC0, GPU1, NIC1 = (f"0000:{b}:00.0" for b in ("11", "13", "81", "83"))
THP = "sys/kernel/mm/transparent_hugepage/enabled"
CLOCK = "sys/devices/system/clocksource/clocksource0/current_clocksource"
PAGES = "sys/devices/system/node/node*/hugepages/hugepages-2048kB/nr_hugepages"


def no_cmdline(s: Snapshot) -> Snapshot:
    return dataclasses.replace(unreadable(s, CMD), boot_args=())


def held(throttled: int, periods: int, group: str = "a") -> Snapshot:
    text = f"nr_periods {periods}\nnr_throttled {throttled}"
    at = f"sys/fs/cgroup/{group}"
    return with_texts(H, {f"{at}/cpu.stat": text, f"{at}/cpu.max": "100000 100000"})


def running(s: Snapshot, group: str) -> Snapshot:
    engine = ProcessFacts(
        pid=9, role="vllm", comm="vllm", title="vllm serve", cgroup=group, threads=(),
        thread_count=1,
    )  # fmt: skip
    return dataclasses.replace(s, processes=(engine,))


def pages(node0: int, node1: int) -> Snapshot:
    s = H
    for node, total in enumerate((node0, node1)):
        pool = Hugepages(size_bytes=2 << 20, total=total, free=total)
        s = with_node(s, node, hugepages=(pool,))
    return s


def irq(s: Snapshot, **fields: object) -> Snapshot:
    first = dataclasses.replace(s.irqs[0], **fields)  # type: ignore[arg-type]  # test data
    return dataclasses.replace(s, irqs=(first, *s.irqs[1:]))


def no_pci(s: Snapshot) -> Snapshot:
    return dataclasses.replace(topo(s, pci=(), relations=()), gpus=(), nics=())


def unlisted(s: Snapshot = H) -> Snapshot:
    """The PCI devices could not be listed."""
    return unreadable(no_pci(s), "sys/bus/pci/devices", reason="Input/output error")


def no_nodes(s: Snapshot = H) -> Snapshot:
    return unreadable(
        topo(s, nodes=()), "sys/devices/system/node/node0/cpulist", reason="Input/output error"
    )


def switch(redirect: bool | None) -> Snapshot:
    """A GPU and a NIC below one switch."""
    pci = (
        port("0000:10:00.0", 0),
        dataclasses.replace(port("0000:11:00.0", 0), parents=("0000:10:00.0",)),
        *(
            dataclasses.replace(
                port(f"0000:12:0{i}.0", 0),
                parents=("0000:11:00.0", "0000:10:00.0"),
                acs=None
                if redirect is None
                else Acs(present=True, on=("SrcValid", "ReqRedir") if redirect else ()),
            )
            for i in (1, 2)
        ),
        *(
            function(bdf, code, vendor, 0, parents=(above, "0000:11:00.0", "0000:10:00.0"))
            for bdf, code, vendor, above in (
                ("0000:13:00.0", "0302", "10de", "0000:12:01.0"),
                ("0000:14:00.0", "0200", "15b3", "0000:12:02.0"),
            )
        ),
    )
    relation = Relation(a="0000:13:00.0", b="0000:14:00.0", path=Path.PXB, same_numa=True)
    return topo(H, pci=pci, relations=(relation,))


def narrow_uplink(speed: float, gpus: int = 2) -> Snapshot:
    """GPUs below a switch whose uplink runs at that speed."""
    up = dataclasses.replace(
        port("0000:11:00.0", 0),
        parents=("0000:10:00.0",),
        link=Link(speed_gts=speed, width=16, max_speed_gts=speed, max_width=16),
    )
    down = tuple(
        dataclasses.replace(port(f"0000:12:0{i}.0", 0), parents=("0000:11:00.0", "0000:10:00.0"))
        for i in range(gpus)
    )
    cards = tuple(
        function(f"0000:1{3 + i}:00.0", "0302", "10de", 0,
                 parents=(d.bdf, "0000:11:00.0", "0000:10:00.0"))
        for i, d in enumerate(down)
    )  # fmt: skip
    return topo(H, pci=(port("0000:10:00.0", 0), up, *down, *cards), relations=())


def matrix(links: Mapping[tuple[str, str], str], nodes: Mapping[str, int | None]) -> Snapshot:
    gpus = tuple(n for n in nodes if n.startswith("GPU"))
    return dataclasses.replace(
        no_pci(H),
        pasted=Pasted(),
        matrix=LinkMatrix(
            gpus=gpus,
            nics=tuple(sorted({n for pair in links for n in pair if n.startswith("NIC")})),
            links=links,
            numa_affinity={g: None if n is None else cpus(str(n)) for g, n in nodes.items()},
        ),
    )


def guest(s: Snapshot) -> Snapshot:
    return dataclasses.replace(s, host=dataclasses.replace(s.host, virtual="kvm"))


def grace() -> Snapshot:
    memory = NumaNode(id=2, cpus=cpus(""), memory_bytes=96 * GIB, distances=(),
                      kind=NodeKind.GPU_MEMORY)  # fmt: skip
    return topo(H, nodes=(*H.topology.nodes, memory))


def events(*found: KernelEvent) -> Snapshot:
    return dataclasses.replace(H, events=found)


def xid(number: int, fault: bool = True, **more: int) -> KernelEvent:
    return KernelEvent(
        line=3, kind="xid", fault=fault, text=f"NVRM: Xid (PCI:0000:11:00): {number}, ...",
        bdf="0000:11:00", details={"xid": number, **more},
    )  # fmt: skip


def lost() -> Snapshot:
    return dataclasses.replace(H, gpus=H.gpus[:1])


def no_nvml() -> Snapshot:
    nvml = Nvml(available=False, reason="libnvidia-ml.so.1: cannot open shared object file")
    return dataclasses.replace(H, gpus=(), nvml=nvml)


def link(bdf: str, **fields: object) -> Snapshot:
    whole: dict[str, object] = {"speed_gts": 32.0, "width": 16, "max_speed_gts": 32.0,
                                "max_width": 16}  # fmt: skip
    return with_pci(H, bdf, link=Link(**{**whole, **fields}))  # type: ignore[arg-type]  # test data


def reserved(line: str, s: Snapshot) -> Snapshot:
    return with_cmdline(s, line)


def split_l3() -> Snapshot:
    groups = ("0-1,4-5", "2-3,6-7", "8-15")
    caches = tuple(Cache(level=3, type="Unified", size_bytes=1, cpus=cpus(g)) for g in groups)
    return topo(with_cmdline(Q, "isolcpus=1,3,5,7"), caches=caches)


def offline(s: Snapshot, gone: str) -> Snapshot:
    return topo(s, online=s.topology.online - cpus(gone))


def pasted(
    kinds: tuple[str, ...] = (),
    repairs: tuple[str, ...] = (),
    unclear: tuple[str, ...] = (),
    conflicts: tuple[str, ...] = (),
    refused: tuple[str, ...] = (),
    unrecognised: tuple[str, ...] = (),
) -> Snapshot:
    said = Pasted(
        kinds=kinds,
        repairs=repairs,
        unclear=unclear,
        conflicts=conflicts,
        refused=refused,
        unrecognised=unrecognised,
    )
    return dataclasses.replace(H, pasted=said)


V = Verdict
CASES: list[tuple[str, str, Snapshot, Verdict]] = [
    (check, name, machine, verdict)
    for check, rows in {
        "isolation.syntax": [
            ("plain", Q, V.OK),
            ("N, all and strides", with_cmdline(Q, "nohz_full=4-N rcu_nocbs=all isolcpus=0-15:2/4"),
             V.OK),
            ("flags", with_cmdline(Q, "isolcpus=managed_irq,domain,4-N"), V.OK),
            ("no list", with_cmdline(Q, "isolcpus=domain,four"), V.FAIL),
            ("unknown flag", with_cmdline(Q, "isolcpus=magic,2-3"), V.WARN),
            ("beyond the last", with_cmdline(Q, "nohz_full=2-31"), V.WARN),
            ("not seen", no_cmdline(Q), V.UNKNOWN),
            ("nothing asked", H, V.NA),
        ],
        "isolation.unknown-parameters": [
            ("none", with_texts(events(), {"log/from-boot": "ro"}), V.OK),
            ("not from the boot", events(), V.NA),
            ("two", with_texts(events(), {"log/unknown-parameters": "a nohz_full=2 rcu_nocbs=2"}),
             V.FAIL),
            ("no nohz", with_texts(events(), {"log/nohz-unsupported": "Housekeeping: x"}), V.FAIL),
            ("no log", H, V.NA),
        ],
        "isolation.in-force": [
            ("as asked", Q, V.OK),
            ("dropped", with_texts(Q, {f"{CPU}/isolated": ""}), V.FAIL),
            ("at run time", with_cmdline(Q, "quiet"), V.INFO),
            ("not seen", unreadable(Q, f"{CPU}/isolated"), V.UNKNOWN),
            ("damaged", with_texts(Q, {f"{CPU}/isolated": "\x00\x01"}), V.UNKNOWN),
            ("nothing asked", H, V.NA),
            ("only managed_irq", with_cmdline(Q, "isolcpus=managed_irq,2-3"), V.INFO),
        ],
        "isolation.nohz-full-in-force": [
            ("as asked", Q, V.OK),
            ("null", with_texts(Q, {f"{CPU}/nohz_full": "(null)"}), V.FAIL),
            ("kernel lacks it", with_texts(Q, {f"{CPU}/nohz_full": None}), V.FAIL),
            ("boot CPU only", with_cmdline(Q, "nohz_full=0,2,3,6,7"), V.OK),
            ("not seen", unreadable(Q, f"{CPU}/nohz_full"), V.UNKNOWN),
            ("nothing asked", H, V.NA),
        ],
        "isolation.consistent": [
            ("same", Q, V.OK),
            ("larger rcu_nocbs", with_cmdline(Q, "isolcpus=2 nohz_full=2 rcu_nocbs=2-5"), V.OK),
            ("half", with_cmdline(Q, "isolcpus=2-3 nohz_full=2-5"), V.WARN),
            ("rcu left out", with_cmdline(Q, "isolcpus=2-5 nohz_full=2-4 rcu_nocbs=2-4"), V.WARN),
            ("not seen", no_cmdline(Q), V.UNKNOWN),
            ("nothing asked", H, V.NA),
        ],
        "isolation.irqaffinity-overlap": [
            ("apart", Q, V.OK),
            ("overlap", with_cmdline(Q, "isolcpus=4-N irqaffinity=0-15"), V.FAIL),
            ("not seen", no_cmdline(Q), V.UNKNOWN),
            ("not given", with_cmdline(Q, "isolcpus=2-3"), V.NA),
        ],
        "isolation.default-affinity": [
            ("apart", with_cmdline(Q, "isolcpus=2,3,6,7"), V.OK),
            ("overlap", with_texts(with_cmdline(Q, "isolcpus=2,3,6,7"),
                                   {"proc/irq/default_smp_affinity": "ffff"}), V.WARN),
            ("not seen", unreadable(with_cmdline(Q, "isolcpus=2,3,6,7"),
                                    "proc/irq/default_smp_affinity"), V.UNKNOWN),
            ("nothing isolated", H, V.NA),
        ],
        "isolation.kthread-cpus": [
            ("apart", with_cmdline(Q, "isolcpus=2-3 kthread_cpus=0-1"), V.OK),
            ("overlap", with_cmdline(Q, "isolcpus=2-3 kthread_cpus=0-3"), V.FAIL),
            ("not seen", no_cmdline(Q), V.UNKNOWN),
            ("not given", Q, V.NA),
        ],
        "isolation.workqueue": [
            ("apart", Q, V.OK),
            ("overlap", with_texts(Q, {"sys/devices/virtual/workqueue/cpumask": "ffff"}), V.WARN),
            ("not seen", unreadable(Q, "sys/devices/virtual/workqueue/cpumask"), V.UNKNOWN),
            ("nothing isolated", H, V.NA),
        ],
        "isolation.housekeeping": [
            ("enough", Q, V.OK),
            ("one left", with_cmdline(Q, "isolcpus=1-N"), V.WARN),
            ("none left", with_cmdline(Q, "isolcpus=0-N"), V.FAIL),
            ("not seen", no_cmdline(with_texts(Q, {f"{CPU}/isolated": "", f"{CPU}/nohz_full": ""})),
             V.UNKNOWN),
            ("nothing isolated", H, V.NA),
        ],
        "isolation.no-balancing": [
            ("a set", Q, V.INFO),
            ("not seen", no_cmdline(Q), V.UNKNOWN),
            ("one CPU", with_cmdline(Q, "isolcpus=3"), V.NA),
        ],
        "cpu.smt-split": [
            ("whole", Q, V.OK),
            ("half", with_cmdline(Q, "isolcpus=2,3"), V.WARN),
            ("not seen", unreadable(topo(Q, smt_siblings=()),
                                    f"{CPU}/cpu0/topology/thread_siblings_list"), V.UNKNOWN),
            ("nothing isolated", H, V.NA),
        ],
        "cpu.zero-isolated": [
            ("left", Q, V.OK),
            ("taken", with_cmdline(Q, "isolcpus=0-3"), V.WARN),
            ("not seen", no_cmdline(H), V.UNKNOWN),
            ("nothing isolated", H, V.NA),
        ],
        "cpu.offline": [
            ("all on", H, V.OK),
            ("one off", offline(H, "15"), V.WARN),
            ("SMT off", with_texts(offline(H, "4-7"), {f"{CPU}/smt/control": "off"}), V.INFO),
            ("not seen", unreadable(topo(H, online=cpus("")), f"{CPU}/online"), V.UNKNOWN),
        ],
        "cpu.mask-names-offline": [
            ("all on", Q, V.OK),
            ("one off", offline(Q, "7"), V.WARN),
            ("not seen", no_cmdline(Q), V.UNKNOWN),
            ("nothing asked", H, V.NA),
        ],
        "cpu.sum-of-nodes": [
            ("agree", H, V.OK),
            ("twice", with_node(H, 1, cpus=cpus("7-15")), V.FAIL),
            ("nowhere", with_node(H, 1, cpus=cpus("8-14")), V.WARN),
            ("not seen", no_nodes(), V.UNKNOWN),
            ("no nodes", topo(H, nodes=()), V.NA),
        ],
        "cpu.l3-split": [
            ("one group", Q, V.OK),
            ("two halves", split_l3(), V.INFO),
            ("not seen", no_cmdline(H), V.UNKNOWN),
            ("nothing isolated", H, V.NA),
        ],
        "cpu.governor": [
            ("performance", H, V.OK),
            ("powersave", with_texts(H, {f"{CPU}/cpu3/cpufreq/scaling_governor": "powersave"}),
             V.WARN),
            ("not seen", unreadable(H, f"{CPU}/cpufreq/policy0/scaling_governor"), V.UNKNOWN),
            ("blank", with_texts(H, {f"{CPU}/cpufreq/policy0/scaling_governor": ""}), V.UNKNOWN),
            ("no cpufreq", B, V.NA),
            ("no job", with_texts(B, {f"{CPU}/cpu0/cpufreq/scaling_governor": "powersave"}), V.NA),
        ],
        "cpu.c-states": [
            ("shallow", Q, V.OK),
            ("deep", with_texts(Q, {f"{CPU}/cpu2/cpuidle/state3/latency": "133"}), V.WARN),
            ("deep, disabled", with_texts(Q, {f"{CPU}/cpu2/cpuidle/state3/latency": "133",
                                              f"{CPU}/cpu2/cpuidle/state3/disable": "1"}), V.OK),
            ("deep, elsewhere", with_texts(Q, {f"{CPU}/cpu9/cpuidle/state3/latency": "133"}), V.OK),
            ("limited at boot", with_texts(with_cmdline(Q, "isolcpus=2-3 intel_idle.max_cstate=1"),
                                           {f"{CPU}/cpu2/cpuidle/state1/latency": None}), V.OK),
            ("not seen", unreadable(with_texts(Q, {f"{CPU}/cpu2/cpuidle/state1/latency": None}),
                                    f"{CPU}/cpu0/cpuidle/state1/latency"), V.UNKNOWN),
            ("nothing isolated", H, V.NA),
        ],
        "cpu.idle-poll": [
            ("sleeps", H, V.OK),
            ("polls", with_cmdline(H, "idle=poll"), V.WARN),
            ("not seen", no_cmdline(H), V.UNKNOWN),
            ("no command line", with_texts(dataclasses.replace(H, boot_args=()), {CMD: None}),
             V.NA),
        ],
        "cpu.clocksource": [
            ("tsc", H, V.OK),
            ("hpet", with_texts(H, {CLOCK: "hpet"}), V.WARN),
            ("not seen", unreadable(H, CLOCK), V.UNKNOWN),
            ("none", with_texts(H, {CLOCK: None}), V.NA),
        ],
        "cpu.watchdog": [
            ("apart", Q, V.OK),
            ("off", with_texts(Q, {"proc/sys/kernel/watchdog": "0"}), V.OK),
            ("overlap", with_texts(Q, {"proc/sys/kernel/watchdog_cpumask": "0-15"}), V.WARN),
            ("not seen", unreadable(Q, "proc/sys/kernel/watchdog_cpumask"), V.UNKNOWN),
            ("nothing isolated", H, V.NA),
        ],
        "irq.on-isolated": [
            ("apart", Q, V.OK),
            ("inside", irq(Q, effective=cpus("2"), counts=((2, 9),)), V.WARN),
            ("inside, never fired", irq(Q, effective=cpus("2"), counts=((2, 0),)), V.OK),
            ("managed", irq(Q, name="nvme0q3", effective=cpus("2"), counts=((2, 9),)), V.INFO),
            ("not seen", unreadable(dataclasses.replace(Q, irqs=()), "proc/interrupts"), V.UNKNOWN),
            ("masks not seen", unreadable(
                dataclasses.replace(Q, irqs=(Irq(number=7, name="x", affinity=None, effective=None,
                                                 node=0, bdf=NIC0),)),
                "proc/irq/7/effective_affinity_list"), V.UNKNOWN),
            ("nothing isolated", H, V.NA),
        ],
        "irq.remote-node": [
            ("near", H, V.OK),
            ("far", irq(H, effective=cpus("9")), V.WARN),
            ("far, of nothing that counts", irq(H, effective=cpus("9"), bdf=None), V.INFO),
            ("not seen", unreadable(dataclasses.replace(H, irqs=()), "proc/interrupts"), V.UNKNOWN),
            ("one node", B, V.NA),
        ],
        "numa.memoryless": [
            ("all have some", H, V.OK),
            ("a socket has none", with_node(H, 1, memory_bytes=0), V.FAIL),
            ("not seen", unreadable(with_node(H, 1, memory_bytes=None),
                                    "sys/devices/system/node/node1/meminfo"), V.UNKNOWN),
            ("no nodes", topo(H, nodes=()), V.NA),
        ],
        "numa.no-whole-node": [
            ("whole", H, V.OK),
            ("none", with_node(with_node(H, 1, cpus=cpus("")), 0, memory_bytes=0), V.FAIL),
            ("not seen", no_nodes(), V.UNKNOWN),
            ("one node", B, V.NA),
        ],
        "numa.memory-only": [
            ("GPU memory", grace(), V.INFO),
            ("not seen", no_nodes(), V.UNKNOWN),
            ("none", H, V.NA),
        ],
        "numa.subnodes": [
            ("split", topo(H, packages=(dataclasses.replace(H.topology.packages[0],
                                                            cpus=cpus("0-15")),)), V.INFO),
            ("not seen", no_nodes(), V.UNKNOWN),
            ("one each", H, V.NA),
        ],
        "numa.distances": [
            ("plausible", H, V.OK),
            ("skewed", with_node(H, 1, distances=((0, 31), (1, 10))), V.WARN),
            ("no nearer", with_node(H, 1, distances=((0, 10), (1, 10))), V.WARN),
            ("not seen", no_nodes(), V.UNKNOWN),
            ("one node", B, V.NA),
        ],
        "numa.balancing": [
            ("off", H, V.OK),
            ("on", with_texts(H, {"proc/sys/kernel/numa_balancing": "1"}), V.WARN),
            ("on, nothing pinned",
             with_texts(no_pci(H), {"proc/sys/kernel/numa_balancing": "1"}), V.INFO),
            ("not seen", unreadable(H, "proc/sys/kernel/numa_balancing"), V.UNKNOWN),
            ("damaged", with_texts(H, {"proc/sys/kernel/numa_balancing": ""}), V.UNKNOWN),
            ("one node", B, V.NA),
        ],
        "numa.zone-reclaim": [
            ("off", H, V.OK),
            ("on", with_texts(H, {"proc/sys/vm/zone_reclaim_mode": "1"}), V.WARN),
            ("not seen", unreadable(H, "proc/sys/vm/zone_reclaim_mode"), V.UNKNOWN),
            ("kernel lacks it", with_texts(H, {"proc/sys/vm/zone_reclaim_mode": None}), V.NA),
        ],
        "memory.hugepages-reserved": [
            ("all", reserved("hugepages=512", pages(256, 256)), V.OK),
            ("too few", reserved("hugepagesz=2M hugepages=512", pages(300, 100)), V.FAIL),
            ("by node", reserved("hugepages=0:512,1:512", pages(512, 512)), V.OK),
            ("by node, too few", reserved("hugepages=0:512,1:512", pages(512, 0)), V.FAIL),
            ("not seen", no_cmdline(H), V.UNKNOWN),
            ("not asked", H, V.NA),
        ],
        "memory.hugepages-per-node": [
            ("both", pages(8, 8), V.OK),
            ("one", pages(8, 0), V.WARN),
            ("one, no devices", no_pci(pages(8, 0)), V.INFO),
            ("not seen", no_nodes(), V.UNKNOWN),
            ("none", H, V.NA),
        ],
        "memory.thp": [
            ("madvise", H, V.OK),
            ("always", with_texts(H, {THP: "[always] madvise never"}), V.WARN),
            ("always, no job", with_texts(B, {THP: "[always] madvise never"}), V.INFO),
            ("not seen", unreadable(H, THP), V.UNKNOWN),
            ("damaged", with_texts(H, {THP: "always madvise"}), V.UNKNOWN),
            ("kernel lacks it", with_texts(H, {THP: None}), V.NA),
        ],
        "memory.swap": [
            ("none", H, V.OK),
            ("eager", with_texts(H, {"proc/swaps": "Filename Type\n/dev/sda2 partition 8 0 -2"}),
             V.WARN),
            ("not seen", unreadable(H, "proc/sys/vm/swappiness"), V.UNKNOWN),
            ("areas not seen", unreadable(H, "proc/swaps"), V.UNKNOWN),
            ("kernel lacks it", with_texts(H, {"proc/sys/vm/swappiness": None}), V.NA),
        ],
        "memory.overcommit": [
            ("heuristic", H, V.OK),
            ("strict", with_texts(H, {"proc/sys/vm/overcommit_memory": "2"}), V.WARN),
            ("not seen", unreadable(H, "proc/sys/vm/overcommit_memory"), V.UNKNOWN),
            ("kernel lacks it", with_texts(H, {"proc/sys/vm/overcommit_memory": None}), V.NA),
        ],
        "locality.gpu-nic": [
            ("near", H, V.OK),
            ("far", matrix({("GPU0", "NIC0"): "SYS"}, {"GPU0": 0}), V.WARN),
            ("one NIC, far from one of two", matrix(
                {("GPU0", "NIC0"): "PIX", ("GPU1", "NIC0"): "SYS"}, {"GPU0": 0, "GPU1": 1}),
             V.INFO),
            ("not seen", unlisted(), V.UNKNOWN),
            ("no GPU", B, V.NA),
            ("nobody tells", topo(H, relations=()), V.NA),
        ],
        "locality.gpu-peers": [
            ("linked", H, V.OK),
            ("even, not linked", matrix({("GPU0", "GPU1"): "SYS"}, {"GPU0": 0, "GPU1": 1}), V.OK),
            ("one alone", matrix({("GPU0", "GPU1"): "SYS", ("GPU1", "GPU2"): "PIX"},
                                 {"GPU0": 0, "GPU1": 1, "GPU2": 1}), V.WARN),
            ("not seen", unlisted(), V.UNKNOWN),
            ("no GPU", B, V.NA),
        ],
        "locality.gpu-nvme": [
            ("one node", topo(H, pci=(function(GPU0, "0302", "10de", 0),
                                      function(NIC0, "0108", "144d", 0))), V.OK),
            ("other node", topo(H, pci=(function(GPU0, "0302", "10de", 0),
                                        function(NIC1, "0108", "144d", 1))), V.INFO),
            ("not seen", unlisted(), V.UNKNOWN),
            ("no drive", H, V.NA),
        ],
        "locality.alone": [
            ("with CPUs", H, V.OK),
            ("without", with_node(H, 1, cpus=cpus("")), V.WARN),
            ("not seen", unlisted(), V.UNKNOWN),
            ("no GPU", B, V.NA),
        ],
        "contradiction.gpu-node-unknown": [
            ("told", H, V.OK),
            ("not told", with_pci(H, GPU1, numa_node=None), V.WARN),
            ("one node", topo(with_pci(H, GPU1, numa_node=None), nodes=H.topology.nodes[:1]), V.OK),
            ("not seen", unreadable(with_pci(H, GPU1, numa_node=None),
                                    f"sys/bus/pci/devices/{GPU1}/numa_node"), V.UNKNOWN),
            ("no GPU", B, V.NA),
        ],
        "contradiction.local-cpus": [
            ("agree", H, V.OK),
            ("differ", with_pci(H, GPU1, local_cpus=cpus("0-7")), V.WARN),
            ("not seen", unlisted(), V.UNKNOWN),
            ("no GPU", B, V.NA),
        ],
        "contradiction.nvml": [
            ("agree", H, V.OK),
            ("nodes differ", dataclasses.replace(
                H, gpus=(GpuFacts(bdf=GPU0, index=0, numa_node=1),)), V.WARN),
            ("CPUs differ", dataclasses.replace(
                H, gpus=(GpuFacts(bdf=GPU0, index=0, cpu_affinity=cpus("8-15")),)), V.WARN),
            ("GPU memory node", dataclasses.replace(
                grace(), gpus=(GpuFacts(bdf=GPU0, index=0, numa_node=2,
                                        cpu_affinity=cpus("0-7")),)), V.OK),
            ("no NVML", no_nvml(), V.NA),
        ],
        "contradiction.matrix": [
            ("agrees", matrix({("GPU0", "GPU1"): "NODE"}, {"GPU0": 0, "GPU1": 0}), V.OK),
            ("SYS in a node", matrix({("GPU0", "GPU1"): "SYS"}, {"GPU0": 0, "GPU1": 0}), V.WARN),
            ("PIX across", matrix({("GPU0", "GPU1"): "PIX"}, {"GPU0": 0, "GPU1": 1}), V.WARN),
            ("skewed", matrix({("GPU0", "GPU1"): "PIX", ("GPU1", "GPU0"): "NODE"},
                              {"GPU0": 0, "GPU1": 0}), V.WARN),
            ("none", H, V.NA),
        ],
        "pcie.width": [
            ("all", H, V.OK),
            ("half", link(GPU0, width=8), V.WARN),
            ("half, in a guest", guest(link(GPU0, width=8)), V.INFO),
            ("not seen", unlisted(), V.UNKNOWN),
            ("no devices", B, V.NA),
        ],
        "pcie.speed": [
            ("full", H, V.OK),
            ("a slow NIC", link(NIC0, speed_gts=8.0), V.WARN),
            ("an idle GPU", link(GPU0, speed_gts=2.5), V.INFO),
            ("not seen", unlisted(), V.UNKNOWN),
            ("no devices", B, V.NA),
        ],
        "pcie.bottleneck": [
            ("wide", narrow_uplink(32.0), V.OK),
            ("shared", narrow_uplink(16.0), V.WARN),
            ("one device", narrow_uplink(16.0, gpus=1), V.INFO),
            ("not seen", unlisted(), V.UNKNOWN),
            ("a guest", guest(H), V.NA),
        ],
        "pcie.aer": [
            ("clean", H, V.OK),
            ("a few retries", with_pci(H, GPU0, aer=Aer(correctable=9, nonfatal=0, fatal=0)), V.OK),
            ("a storm", with_pci(H, GPU0, aer=Aer(correctable=9999, nonfatal=0, fatal=0)), V.WARN),
            ("lost", with_pci(H, GPU0, aer=Aer(correctable=0, nonfatal=1, fatal=0)), V.FAIL),
            ("the port's", with_pci(H, "0000:10:00.0", aer=Aer(correctable=0, nonfatal=0, fatal=2)),
             V.FAIL),
            ("not seen", unlisted(), V.UNKNOWN),
            ("no devices", B, V.NA),
        ],
        "pcie.acs-redirect": [
            ("off", switch(False), V.OK),
            ("on", switch(True), V.FAIL),
            ("not seen", switch(None), V.UNKNOWN),
            ("no switch", H, V.NA),
            ("a guest", guest(switch(True)), V.NA),
        ],
        "pcie.iommu": [
            ("identity", H, V.OK),
            ("translated", with_texts(H, {"sys/kernel/iommu_groups/2/type": "DMA-FQ"}), V.WARN),
            ("vfio", with_pci(H, GPU0, driver="vfio-pci"), V.INFO),
            ("not seen", with_cmdline(unreadable(H, "sys/kernel/iommu_groups/2/type"), "ro"),
             V.UNKNOWN),
            ("no GPU", B, V.NA),
        ],
        "pcie.virtual-tree": [
            ("nodes told", guest(H), V.INFO),
            ("nodes not told", guest(with_pci(H, GPU0, numa_node=None)), V.WARN),
            ("not seen", unlisted(), V.UNKNOWN),
            ("bare metal", H, V.NA),
        ],
        "cgroup.version": [
            ("v2", H, V.OK),
            ("no cpuset", with_texts(H, {"sys/fs/cgroup/cgroup.controllers": "cpu io"}), V.WARN),
            ("v1", with_texts(H, {"sys/fs/cgroup/cgroup.controllers": None,
                                  "proc/mounts": "cgroup /c cgroup rw,cpuset 0 0"}), V.INFO),
            ("not seen", unreadable(H, "sys/fs/cgroup/cgroup.controllers"), V.UNKNOWN),
            ("none", with_texts(H, {"sys/fs/cgroup/cgroup.controllers": None}), V.NA),
        ],
        "cgroup.partition": [
            ("valid", with_texts(H, {"sys/fs/cgroup/a/cpuset.cpus.partition": "isolated"}), V.OK),
            ("invalid", with_texts(H, {"sys/fs/cgroup/a/cpuset.cpus.partition":
                                       "isolated invalid (Parent is not a partition root)"}),
             V.FAIL),
            ("not read", unreadable(H, "sys/fs/cgroup/a/cpuset.cpus.partition"), V.UNKNOWN),
            ("none", H, V.NA),
        ],
        "cgroup.throttled": [
            ("never", with_texts(H, {"sys/fs/cgroup/a/cpu.stat": "nr_periods 9\nnr_throttled 0"}),
             V.OK),
            ("once", held(1, 99), V.INFO),
            ("an engine once", running(held(1, 99), "/a"), V.WARN),
            ("mostly", held(8, 9), V.WARN),
            ("an engine mostly", running(held(8, 9), "/a/job"), V.FAIL),
            ("beside an engine", running(held(8, 9), "/ab"), V.INFO),
            ("an engine of version 1", running(held(8, 9, "cpu,cpuacct/a"), "/a"), V.FAIL),
            ("not read", unreadable(H, "sys/fs/cgroup/a/cpu.stat"), V.UNKNOWN),
            ("no quota", with_texts(H, {"sys/fs/cgroup/a/cpu.stat": "usage_usec 9"}), V.NA),
            ("none", H, V.NA),
        ],
        "gpu.driver": [
            ("bound", H, V.OK),
            ("not bound", with_pci(H, GPU0, driver=None), V.WARN),
            ("vfio", with_pci(H, GPU0, driver="vfio-pci"), V.INFO),
            ("not seen", unlisted(), V.UNKNOWN),
            ("no GPU", B, V.NA),
        ],
        "gpu.nvml": [
            ("all", H, V.OK),
            ("one lost", lost(), V.FAIL),
            ("not seen", no_nvml(), V.UNKNOWN),
            ("no GPU", B, V.NA),
        ],
        "gpu.alike": [
            ("alike", H, V.OK),
            ("two models", with_pci(H, GPU0, device="20b0"), V.INFO),
            ("not seen", unlisted(), V.UNKNOWN),
            ("no GPU", B, V.NA),
        ],
        "gpu.log": [
            ("clean", events(), V.OK),
            ("off the bus", events(xid(79)), V.FAIL),
            ("the application's", events(xid(43)), V.INFO),
            ("another", events(xid(63)), V.WARN),
            ("a symptom", events(xid(45, cause_xid=149)), V.FAIL),
            ("not the kernel's", with_texts(events(), {"log/kernel-lines": "0"}), V.INFO),
            ("advice only", events(xid(154, fault=False)), V.OK),
            ("no log", H, V.NA),
        ],
        "shm.size": [
            ("half of memory", H, V.OK),
            ("large", with_texts(H, {"proc/mounts": "tmpfs /dev/shm tmpfs rw,size=16777216k 0 0"}),
             V.OK),
            ("64 MiB", with_texts(H, {"proc/mounts": "shm /dev/shm tmpfs rw,size=65536k 0 0"}),
             V.WARN),
            ("not seen", unreadable(H, "proc/mounts"), V.UNKNOWN),
            ("damaged", with_texts(H, {"proc/mounts": "shm /dev/shm tmpfs rw,size=many 0 0"}),
             V.UNKNOWN),
            ("no tmpfs", with_texts(H, {"proc/mounts": "proc /proc proc rw 0 0"}), V.NA),
        ],
        "feed.nic-link": [
            ("fast", H, V.OK),
            ("slow", dataclasses.replace(
                H, nics=(dataclasses.replace(H.nics[0], speed_mbps=100),)), V.WARN),
            ("not seen", unreadable(dataclasses.replace(H, nics=()), "sys/class/net/eth0/speed"),
             V.UNKNOWN),
            ("down", dataclasses.replace(H, nics=()), V.NA),
        ],
        "paste.damaged": [
            ("whole", pasted(kinds=("matrix",)), V.OK),
            ("repaired", pasted(repairs=("topo.txt: line 2: ...",)), V.WARN),
            ("open", pasted(unclear=("topo.txt: line 2: ...",)), V.UNKNOWN),
            ("refused", pasted(refused=("topo.txt: no header",)), V.REFUSE),
            ("no paste", H, V.NA),
        ],
        "paste.recognised": [
            ("all", pasted(kinds=("matrix",)), V.OK),
            ("one not", pasted(kinds=("matrix",), unrecognised=("x.txt",)), V.UNKNOWN),
            ("an empty one", dataclasses.replace(
                H, pasted=Pasted(kinds=("matrix",), empty=("stdin",))), V.UNKNOWN),
            ("nothing to judge", dataclasses.replace(
                topo(no_pci(B), online=cpus(""), present=cpus(""), nodes=()), texts={},
                boot_args=(), pasted=Pasted(kinds=("values",))), V.UNKNOWN),
            ("no paste", H, V.NA),
        ],
        "paste.agrees": [
            ("agree", pasted(), V.OK),
            ("differ", pasted(conflicts=("/proc/x: a says 1, b says 2",)), V.WARN),
            ("no paste", H, V.NA),
        ],
        "reading.complete": [
            ("all", H, V.OK),
            ("not seen", unreadable(H, "sys/anything"), V.UNKNOWN),
        ],
        **cases_machine.CASES,
        **cases_gpu_tools.CASES,
        **cases_host_tools.CASES,
        **cases_jitter.CASES,
        **cases_layout.CASES,
    }.items()
    for name, machine, verdict in rows
]  # fmt: skip
CASES += [(c, *row) for c, rows in cases_discover.CASES.items() for row in rows]
CASES += [(c, n, s, v) for c, rows in cases_pcie.CASES.items() for n, s, v in rows]
LOUDEST = (V.REFUSE, V.FAIL, V.WARN, V.UNKNOWN, V.INFO, V.OK, V.NA)


def answers(check_id: str, s: Snapshot) -> list[Finding]:
    return [f for f in judge(s, Policy(), 0) if f.id == check_id]


@pytest.mark.parametrize(
    ("check_id", "machine", "expected"),
    [pytest.param(c, s, v, id=f"{c}-{n}-{v}") for c, n, s, v in CASES],
)
def test_verdict(check_id: str, machine: Snapshot, expected: Verdict) -> None:
    found = answers(check_id, machine)
    assert min((f.verdict for f in found), key=LOUDEST.index) is expected, found
    for f in found:
        assert f.message and f.subject, f
        if f.verdict in (V.WARN, V.FAIL):
            assert f.evidence and f.remedy, f
        if f.verdict is V.UNKNOWN:
            assert f.remedy and f.evidence, f


def test_each_check_is_tried_on_every_side() -> None:
    # These cannot be unable to see: they judge what is there, or it was never asked for.
    always_see = {"contradiction.nvml", "contradiction.matrix", "cgroup.partition",
                  "cgroup.throttled", "gpu.log", "paste.agrees",
                  "isolation.unknown-parameters"}  # fmt: skip
    only_tell = {"isolation.no-balancing", "numa.memory-only", "numa.subnodes",
                     "pcie.virtual-tree"}  # fmt: skip
    always_apply = {"reading.complete", "cpu.offline"}
    always_see |= cases_machine.ALWAYS_SEE | cases_gpu_tools.ALWAYS_SEE
    always_see |= cases_host_tools.CASES.keys() | cases_discover.ALWAYS_SEE
    only_tell |= cases_host_tools.ONLY_TELL
    always_see |= cases_jitter.ALWAYS_SEE
    only_tell |= cases_machine.ONLY_TELL | cases_gpu_tools.ONLY_TELL | cases_jitter.ONLY_TELL
    always_see |= cases_pcie.ALWAYS_SEE
    only_tell |= cases_pcie.ONLY_TELL
    always_see |= cases_layout.ALWAYS_SEE
    only_tell |= cases_layout.ONLY_TELL
    always_apply |= cases_machine.ALWAYS_APPLY
    for check_id in BY_ID.keys() - cases_machine.ASKED:
        tried = {v for c, _, _, v in CASES if c == check_id}
        assert tried & {V.WARN, V.FAIL, V.INFO, V.UNKNOWN}, check_id
        assert V.OK in tried or check_id in only_tell, check_id
        assert V.UNKNOWN in tried or check_id in always_see, check_id
        assert V.NA in tried or check_id in always_apply, check_id


def test_a_nic_for_each_gpu_of_a_switch() -> None:
    links = {(f"GPU{g}", f"NIC{n}"): "PXB" for g in (0, 1) for n in (0, 1)}
    (found,) = answers("locality.gpu-nic", matrix(links, {"GPU0": 0, "GPU1": 0}))
    assert "GPU0 -> NIC0 (PXB), GPU1 -> NIC1 (PXB)" in found.message


def test_memory_without_cpus_is_named_by_its_kind() -> None:
    at = "sys/devices/system/node/node{}/access0/initiators/{}"
    table = {
        "CXL": {"sys/bus/cxl/devices/mem0/numa_node": "2"},
        "device memory (DAX)": {"sys/bus/dax/devices/dax0.0/target_node": "2"},
        "HBM, 800000 MB/s": {at.format(0, "read_bandwidth"): "200000",
                             at.format(2, "read_bandwidth"): "800000"},
        "slow memory, 300 ns": {at.format(0, "read_latency"): "100",
                                at.format(2, "read_latency"): "300"},
    }  # fmt: skip
    for kind, texts in table.items():
        (found,) = answers("numa.memory-only", with_texts(cases_machine.cxl(), texts))
        assert f"(node 2: {kind})" in found.message, found
    (found,) = answers("numa.memory-only", cases_machine.cxl())
    assert "node 2:" not in found.message


def test_minus_one_is_never_node_zero() -> None:
    s = with_pci(H, GPU1, numa_node=None, local_cpus=None)
    (found,) = answers("contradiction.gpu-node-unknown", s)
    assert "NVML says 0000:81:00.0 on node 1 (inferred)" in found.message
    assert answers("locality.gpu-peers", s)[0].verdict is V.NA


# ---- no snapshot breaks a check -----------------------------------------------------------------

TEXT = st.one_of(
    st.sampled_from(["", "0", "1", "-1", "(null)", "0-15", "ffff,ffffffff", "[always]", "\x00",
                     "9" * 30, "always", "N", "0-1:1/0", "isolated invalid (x", "a b c\nd e"]),
    st.text(max_size=20),
)  # fmt: skip
SETS = st.frozensets(st.integers(0, 20), max_size=6).map(lambda ids: cpus(",".join(map(str, ids))))
MAYBE = st.one_of(st.none(), st.integers(0, 3))
BDF = st.sampled_from([GPU0, NIC0, GPU1, NIC1, "0000:10:00.0", "0000:80:00.0", "0001:00:01.1"])
LINKS = st.builds(
    Link,
    speed_gts=st.sampled_from([None, 0.0, 2.5, 32.0, 64.0]),
    width=st.sampled_from([None, 0, 1, 16]),
    max_speed_gts=st.sampled_from([None, 0.0, 8.0, 32.0]),
    max_width=st.sampled_from([None, 0, 16]),
)
FUNCTIONS = st.builds(
    function,
    BDF,
    st.sampled_from(["0302", "0300", "1200", "0200", "0108", "0604", ""]),
    st.sampled_from(["10de", "1002", "8086", "15b3", ""]),
    MAYBE,
    parents=st.lists(BDF, max_size=3).map(tuple),
    link=st.one_of(st.none(), LINKS),
    driver=st.sampled_from([None, "nvidia", "vfio-pci"]),
    local_cpus=st.one_of(st.none(), SETS),
    iommu_group=MAYBE,
    acs=st.sampled_from([None, Acs(present=False), Acs(present=True, on=("ReqRedir",))]),
    aer=st.one_of(st.none(), st.builds(Aer, correctable=MAYBE.map(lambda n: n or 0),
                                       nonfatal=st.integers(0, 1), fatal=st.integers(0, 1))),
)  # fmt: skip
NODES = st.builds(
    NumaNode,
    id=st.integers(0, 3),
    cpus=SETS,
    memory_bytes=st.sampled_from([None, 0, GIB, 256 * GIB]),
    memory_available_bytes=st.sampled_from([None, 0, GIB]),
    distances=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300)), max_size=4).map(tuple),
    kind=st.sampled_from(list(NodeKind)),
    hugepages=st.lists(
        st.builds(Hugepages, size_bytes=st.sampled_from([2 << 20, 1 << 30]),
                  total=st.integers(0, 9), free=st.integers(0, 9)), max_size=2).map(tuple),
)  # fmt: skip
RELATIONS = st.builds(
    Relation, a=BDF, b=BDF, path=st.sampled_from(list(Path)),
    same_numa=st.sampled_from([None, True, False]),
)  # fmt: skip
TOPOLOGIES = st.builds(
    Topology,
    online=SETS, possible=SETS, present=SETS,
    smt_siblings=st.lists(st.tuples(st.integers(0, 20), SETS.filter(bool)), max_size=4).map(tuple),
    packages=st.lists(st.builds(Package, id=st.integers(-1, 2), cpus=SETS), max_size=3).map(tuple),
    nodes=st.lists(NODES, max_size=3).map(tuple),
    caches=st.lists(st.builds(Cache, level=st.just(3), type=st.just("Unified"),
                              size_bytes=st.none(), cpus=SETS), max_size=3).map(tuple),
    pci=st.lists(FUNCTIONS, max_size=5).map(tuple),
    relations=st.lists(RELATIONS, max_size=5).map(tuple),
    isolation=st.builds(Isolation, isolated=SETS, nohz_full=SETS),
)  # fmt: skip
IRQS = st.builds(
    Irq, number=st.integers(0, 99), name=st.sampled_from(["nvme0q1", "eth0"]),
    affinity=st.one_of(st.none(), SETS), effective=st.one_of(st.none(), SETS), node=MAYBE,
    counts=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=3).map(tuple),
    bdf=st.one_of(st.none(), BDF),
)  # fmt: skip
MATRICES = st.builds(
    LinkMatrix,
    gpus=st.just(("GPU0", "GPU1", "GPU2")),
    nics=st.sampled_from([(), ("NIC0",), ("NIC0", "NIC1")]),
    links=st.dictionaries(
        st.tuples(*[st.sampled_from(["GPU0", "GPU1", "GPU2", "NIC0", "NIC1"])] * 2),
        st.sampled_from(["NV4", "PIX", "PXB", "PHB", "NODE", "SYS", "XGMI", "?"]),
    ),
    numa_affinity=st.dictionaries(st.sampled_from(["GPU0", "GPU1"]), st.one_of(st.none(), SETS)),
    cpu_affinity=st.dictionaries(st.sampled_from(["GPU0", "GPU1"]), st.one_of(st.none(), SETS)),
)
LINES = st.lists(
    st.sampled_from(["isolcpus=2-3", "isolcpus=domain,N", "nohz_full=4-N", "nohz_full=x",
                     "rcu_nocbs", "irqaffinity=all", "kthread_cpus=0", "hugepages=0:1,1:x",
                     "hugepagesz=1G", "hugepages=7", "idle=poll", "isolcpus="]),
    max_size=5,
).map(" ".join)  # fmt: skip
PATHS = sorted({p for _, _, s, _ in CASES for p in s.texts})
"""Every file that some check is tried with."""


@given(
    topology=TOPOLOGIES,
    irqs=st.lists(IRQS, max_size=3).map(tuple),
    matrix=st.one_of(st.none(), MATRICES),
    line=LINES,
    texts=st.dictionaries(st.sampled_from(PATHS), TEXT, max_size=30),
    lost=st.lists(st.sampled_from(PATHS), max_size=3),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    virtual=st.sampled_from([None, "kvm", "unknown"]),
)
def test_no_snapshot_breaks_a_check(
    topology: Topology,
    irqs: tuple[Irq, ...],
    matrix: LinkMatrix | None,
    line: str,
    texts: dict[str, str],
    lost: list[str],
    flags: tuple[bool, bool, bool],
    virtual: str | None,
) -> None:
    live, pasted, complete = flags
    s = dataclasses.replace(
        H,
        topology=topology,
        irqs=irqs,
        matrix=matrix,
        texts=texts,
        live=live,
        pasted=Pasted() if pasted else None,
        complete=complete,
        host=dataclasses.replace(H.host, virtual=virtual),
        nics=(NicFacts(name="e", bdf=NIC0, operstate="up", speed_mbps=1, rx_queues=1, tx_queues=1,
                       mtu=None),),
    )  # fmt: skip
    s = unreadable(with_cmdline(s, line), *dict.fromkeys(lost))
    found = judge(s, Policy(), 0)
    assert {f.id for f in found} == {c.id for c in CHECKS}
    for f in found:
        if f.verdict in (V.WARN, V.FAIL):
            assert f.evidence and f.remedy, f


@given(st.sampled_from([H, Q, B, switch(False), grace()]), st.data())
def test_a_read_that_fails_never_makes_a_machine_ok(s: Snapshot, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(s.texts)))
    before = {f.id: f.verdict for f in judge(s, Policy(), 0)}
    after = [f for f in judge(unreadable(s, path), Policy(), 0) if f.id != "reading.complete"]
    for f in after:
        if before[f.id] in (V.WARN, V.FAIL, V.UNKNOWN):
            assert f.verdict is not V.OK, f


@pytest.mark.parametrize(("maker", "word"), [("1002", "HIP"), ("10de", "CUDA")])
def test_the_group_is_chosen_in_the_makers_words(maker: str, word: str) -> None:
    three = ((GPU0, 0), ("0000:21:00.0", 1), ("0000:22:00.0", 1))
    s = topo(H, pci=tuple(function(b, "0302", maker, n) for b, n in three), relations=())
    s = dataclasses.replace(s, gpus=())
    (found,) = answers("locality.gpu-peers", s)
    assert found.verdict is V.WARN
    assert found.remedy is not None
    assert found.remedy.startswith(f"export {word}_VISIBLE_DEVICES=1,2 ")
