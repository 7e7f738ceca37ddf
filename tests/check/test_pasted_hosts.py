"""What a few small files of a host's configuration add up to, in the words people act on."""

from __future__ import annotations

import pytest

from nodeagent.check.judge import judge
from nodeagent.check.policy import Policy
from nodeagent.discover.paste.part import Text
from nodeagent.discover.paste.read import read_paste
from nodeagent.model.finding import Finding, Verdict

V = Verdict


def answers(check_id: str, files: dict[str, str]) -> list[Finding]:
    s = read_paste([Text(name=n, text=t) for n, t in files.items()]).snapshot
    return [f for f in judge(s, Policy(), 0) if f.id == check_id]


QUEUES = "           CPU0       CPU1\n" + "".join(
    f" {40 + q}: {{a}} {{b}}  PCI-MSI 5242{q}-edge  ens3-TxRx-{q}\n" for q in range(4)
)
SIBLINGS = "0,8\n1,9\n2,10\n"
GRANTS = '{{"policyName":"static","defaultCpuSet":"{pool}","entries":{{"u1":{{"a":"1"}},"u2":{{"b":"{b}"}}}},"checksum":7}}'  # noqa: E501
SYS = "/sys/devices/system/node/node{n}/hugepages/hugepages-{kb}kB/free_hugepages: {f}\n"
GIB = "".join(SYS.format(n=n, kb=1048576, f=f) for n, f in ((0, 6), (1, 0)))
TOP = """\
    PID USER      PR  NI S  %CPU     TIME+ COMMAND              P
    811 svc       20   0 R  {a}   1:00.11 decode worker a      5
    812 svc       20   0 R  51.0   1:00.11 decode worker b      {p}
"""
TURBO = "CPU\tAvg_MHz\tBusy%\tBzy_MHz\tTSC_MHz\tC6\tC6%\n-\t9\t1\t900\t900\t{n}\t{p}\n"
TURBO += "4\t9\t1.0\t900\t900\t{n}\t{p}\n"
XSK = "rx 0 0\nrx dropped         0              {d}\nfill ring empty    17        {e}\n"
CASES: list[tuple[str, str, dict[str, str], Verdict, str]] = [
    ("flags without domain", "isolation.in-force",
     {"cmdline": "BOOT_IMAGE=/v isolcpus=managed_irq,2-5", "cpu-isolated": ""}, V.WARN, "domain"),
    ("flags without domain, list not told", "isolation.in-force",
     {"cmdline": "BOOT_IMAGE=/v isolcpus=managed_irq,2-5"}, V.INFO, "domain"),
    ("tick only", "isolation.consistent",
     {"cmdline": "BOOT_IMAGE=/v nohz_full=2-5", "cpu-isolated": ""}, V.WARN, "tick only"),
    ("slip of the pen", "isolation.syntax",
     {"cmdline": "BOOT_IMAGE=/v isolcpu=2-5 nohz_full=2-5"}, V.FAIL, "isolcpus= is meant"),
    ("poll is no slip", "isolation.syntax",
     {"cmdline": "BOOT_IMAGE=/v isolcpus=2-5 rcu_nocb_poll nohz=on"}, V.OK, "2-5"),
    ("all isolated", "isolation.housekeeping",
     {"cmdline": "BOOT_IMAGE=/v isolcpus=0-7", "cpu-possible": "0-7"}, V.FAIL, "every possible"),
    ("default mask without command line", "isolation.default-affinity",
     {"default_smp_affinity": "ff", "cpu-isolated": "6-7"}, V.WARN, "6-7"),
    ("unbound work", "isolation.workqueue", {"cpumask": "ff", "cpu-isolated": "6-7"}, V.WARN, "6"),
    ("mask inside", "irq.on-isolated",
     {"proc-irq-9-smp_affinity": "c0", "cpu-isolated": "4-7"}, V.WARN, "1 device interrupt is"),
    ("counts inside", "irq.on-isolated",
     {"interrupts": QUEUES.format(a=5, b=90_000), "cpu-isolated": "1"}, V.WARN, "ens3-TxRx-0"),
    ("counts outside", "irq.on-isolated",
     {"interrupts": QUEUES.format(a=90_000, b=5), "cpu-isolated": "1"}, V.OK, "no device"),
    ("masks beside the table", "irq.on-isolated",
     {"interrupts": QUEUES.format(a=9_000, b=5), "proc-irq-41-smp_affinity": "2",
      "cpu-isolated": "1"}, V.WARN, "ens3-TxRx-1"),
    ("queues on one CPU", "irq.one-cpu",
     {"interrupts": QUEUES.format(a=90_000, b=0)}, V.WARN, "all 4 queues of ens3"),
    ("queues spread", "irq.one-cpu", {"interrupts": QUEUES.format(a=9_000, b=8_000)}, V.OK, "4"),
    ("queues that never fired", "irq.one-cpu", {"interrupts": QUEUES.format(a=9, b=0)}, V.NA, ""),
    ("groups of L3", "cpu.l3-groups",
     {"e.txt": "CPU NODE SOCKET CORE L1d:L1i:L2:L3 ONLINE\n0 0 0 0 0:0:0:0 yes\n"
               "1 0 0 1 1:1:1:1 yes\n"}, V.INFO, "2 L3 groups"),
    ("slice not in force", "cgroup.unit",
     {"user.slice": "[Slice]\nAllowedCPUs=0-1\n", "cpuset.cpus.effective": "0-7"}, V.WARN,
     "not in force"),
    ("slice in force", "cgroup.unit",
     {"user.slice": "[Slice]\nAllowedCPUs=0-1\n", "cpuset.cpus.effective": "0-1"}, V.OK, ""),
    ("no controller", "cgroup.unit",
     {"user.slice": "[Slice]\nAllowedCPUs=0-1\n", "cgroup.subtree_control": "cpu memory"}, V.WARN,
     "cpuset controller"),
    ("systemd's mask lost", "cgroup.unit",
     {"system.conf": "[Manager]\nCPUAffinity=0-1\n", "status": "Name:\tx\nPid:\t9\n"
      "Cpus_allowed_list:\t0-7\n"}, V.WARN, "beyond CPUAffinity"),
    ("CPUs gone", "cgroup.changed",
     {"cpuset.cpus.before": "0-7", "cpuset.cpus.after": "0-3"}, V.WARN, "4-7 are gone"),
    ("a core shared by two", "cgroup.exclusive-cpus",
     {"cpu_manager_state": GRANTS.format(pool="0,2,8,10", b="9"), "thread_siblings_list": SIBLINGS},
     V.WARN, "1,9 are one core"),
    ("a core shared with the pool", "cgroup.exclusive-cpus",
     {"cpu_manager_state": GRANTS.format(pool="0,8-9", b="2,10"), "thread_siblings_list": SIBLINGS},
     V.WARN, "shared pool has CPU 9"),
    ("pages by name", "memory.hugepages-per-node",
     {"node0-nr_hugepages": "512", "node1-nr_hugepages": "0"}, V.WARN, "node 1 has no huge pages"),
    ("pages on both", "memory.hugepages-per-node",
     {"node0-nr_hugepages": "512", "node1-nr_hugepages": "512"}, V.OK, ""),
    ("DPDK's node", "memory.dpdk",
     {"eal.log": "EAL: No free 1048576 kB hugepages reported on node 1", "sysfs.txt": GIB}, V.WARN,
     "node 0: 6, node 1: 0"),
    ("DPDK's pool", "memory.log",
     {"eal.log": "EAL: No free 1048576 kB hugepages reported on node 1"}, V.WARN, "1048576 kB on "
     "node 1"),
    ("busy threads on one CPU", "pinning.collapsed", {"top": TOP.format(a="49.0", p=5)}, V.WARN,
     "decode worker b 812"),
    ("busy threads apart", "pinning.collapsed", {"top": TOP.format(a="49.0", p=6)}, V.OK, ""),
    ("an idle one beside it", "pinning.collapsed", {"top": TOP.format(a=" 0.3", p=5)}, V.OK, ""),
    ("memory without a map", "pinning.remote-memory",
     {"numastat": "Per-node process memory usage (in MBs) for PID 71 (py)\n     Node 0  Node 1  "
      "Total\nPrivate 10.00 990.00 1000.00\nTotal 10.00 990.00 1000.00\n",
      "taskset": "pid 71's current affinity list: 0-3"}, V.UNKNOWN, "process 71"),
    ("share of sleep", "jitter.clock", {"turbostat": TURBO.format(n=700, p="61.00")}, V.WARN,
     "61 % of the time"),
    ("entries are no share", "jitter.clock", {"turbostat": TURBO.format(n=700, p="0.00")}, V.OK,
     ""),
    ("fill ring", "feed.loss", {"xsk": XSK.format(d=0, e="4,711")}, V.FAIL, "4711"),
    ("fill ring full", "feed.loss", {"xsk": XSK.format(d=0, e="0")}, V.OK, ""),
    ("one core for two", "pinning.collapsed",
     {"threads.csv": "tid,comm,cpus_allowed\n7,rx,1\n8,tx,9\n", "thread_siblings_list": SIBLINGS},
     V.WARN, "CPUs 1,9 are one core"),
    ("a core each", "pinning.collapsed",
     {"threads.csv": "tid,comm,cpus_allowed\n7,rx,1\n8,tx,2\n", "thread_siblings_list": SIBLINGS},
     V.OK, ""),
    ("a mask of siblings", "cpu.smt-split",
     {"cpu2-thread_siblings": "00000404", "cpu-isolated": "2-3"}, V.WARN, "10"),
    ("files of one CPU", "isolation.housekeeping",
     {"cpu4-state3-disable": "0", "cpu-isolated": "4-7"}, V.NA, "online"),
    ("no CPU in common", "cgroup.unit",
     {"a.service": "[Service]\nCPUAffinity=0-1\nAllowedCPUs=2-3\n"}, V.FAIL, "in common"),
    ("the tick's reason", "isolation.log",
     {"trace": "  <idle>-0   [007] d.h.  1.000001: tick_stop: success=0 dependency=SCHED"}, V.WARN,
     "could not stop on CPU 7"),
    ("tuned and a managed interrupt", "irq.log",
     {"tuned.log": "ERROR tuned.x: Failed to set SMP affinity of IRQ 51 to '0f': [Errno 5] I/O"},
     V.WARN, "interrupt 51"),
    ("loader processes", "pinning.log",
     {"a.log": "This DataLoader will create 48 worker processes in total. Our suggested max number "
               "of worker in current system is 6, which is smaller"}, V.WARN, "48 loader"),
    ("Python's call", "pinning.log",
     {"a.log": "    os.sched_setaffinity(0, cores)\nOSError: [Errno 22] Invalid argument",
      "cpuset.cpus.effective": "4-7"}, V.FAIL, "an affinity call failed"),
    ("no native XDP", "feed.log",
     {"a.log": "libbpf: Kernel error message: Underlying driver does not support XDP in native "
               "mode"}, V.FAIL, "native mode"),
    ("NMI watchdog", "cpu.watchdog",
     {"nmi_watchdog": "1", "watchdog_cpumask": "0-7", "cpu-isolated": "6-7"}, V.WARN, "6-7"),
    ("cpupower's governor", "cpu.governor",
     {"a": 'analyzing CPU 3:\n  The governor "powersave" may decide which speed to use\n'}, V.WARN,
     "powersave"),
    ("cpupower's states", "cpu.c-states",
     {"a": "analyzing CPU 3:\nC1:\nFlags/Description: MWAIT 0x00\nLatency: 2\nUsage: 1\n"
           "C6:\nFlags/Description: MWAIT 0x20\nLatency: 170\nUsage: 9\n"}, V.WARN, "CPUs 3 may"),
    ("cpupower's state off", "cpu.c-states",
     {"a": "analyzing CPU 3:\nC6 (DISABLED) :\nFlags/Description: MWAIT 0x20\nLatency: 170\n"},
     V.OK, ""),
    ("testpmd's line", "feed.loss",
     {"a": "  RX-packets: 100        RX-missed: 40         RX-bytes:  6400\n"
           "  TX-packets: 0          TX-errors: 0          TX-bytes:  0\n"}, V.FAIL, "of 140"),
    ("fields in a line", "feed.loss",
     {"a": "ipackets: 900   opackets: 0\nimissed:   100   ierrors: 0   oerrors: 0\n"}, V.FAIL,
     "of 1000"),
    ("names above numbers", "feed.loss",
     {"a": "  ipackets  opackets  ibytes\n  9  0  5\n  ierrors   oerrors   imissed   rx_nombuf\n"
           "  0   0   7777   0\n"}, V.FAIL, "7777"),
    ("no mbufs", "feed.loss",
     {"xstats": "rx_good_packets: 1000\nrx_mbuf_allocation_errors: 50\n"}, V.FAIL, "50"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("check_id", "files", "verdict", "words"), [pytest.param(*c[1:], id=c[0]) for c in CASES]
)
def test_small_files(check_id: str, files: dict[str, str], verdict: Verdict, words: str) -> None:
    found = answers(check_id, files)
    assert verdict in {f.verdict for f in found}, found
    told = [f for f in found if f.verdict is verdict]
    assert any(words in f.message for f in told), told
    for f in told:
        if verdict in (V.WARN, V.FAIL):
            assert f.evidence and f.remedy, f


def test_free_memory_alone_is_told_with_what_is_missing() -> None:
    numactl = (
        "available: 2 nodes (0-1)\nnode 0 cpus: 0 1\nnode 0 size: 64000 MB\nnode 0 free: {} MB\n"
        "node 1 cpus: 2 3\nnode 1 size: 64000 MB\nnode 1 free: 60000 MB\n"
    )
    (low,) = answers("numa.exhausted", {"numactl.txt": numactl.format(300)})
    assert low.verdict is V.INFO and "300 MiB of 62 GiB free" in low.message
    assert low.evidence[0].path.endswith("/node0/meminfo (from numactl.txt)")
    (enough,) = answers("numa.exhausted", {"numactl.txt": numactl.format(30000)})
    assert enough.verdict is V.NA


def test_a_remedy_names_the_pool_and_the_cpus_that_are_known() -> None:
    log = {"eal.log": "EAL: No free 1048576 kB hugepages reported on node 3"}
    assert (
        "/node3/hugepages/hugepages-1048576kB/nr_hugepages" in answers("memory.log", log)[0].remedy
    )
    irq = {"proc-irq-9-effective_affinity": "80", "cpu-isolated": "4-7"}
    (f,) = answers("irq.on-isolated", irq)
    assert f.remedy.startswith("echo 0-3 > /proc/irq/9/smp_affinity_list")
    assert {e.path for e in f.evidence} == {
        "/proc/irq/9/effective_affinity (from proc-irq-9-effective_affinity)",
        "/sys/devices/system/cpu/isolated (from cpu-isolated)",
    }
    call = {"a": "sched_setaffinity: Invalid argument", "status": "Cpus_allowed_list:\t4-7"}
    assert answers("pinning.log", call)[0].remedy.startswith("taskset -c 4-7 ")
    turbo = {"turbostat": TURBO.format(n=700, p="61.00")}
    assert "cpupower -c 4 idle-set" in answers("jitter.clock", turbo)[0].remedy


def test_what_only_informs_is_an_answer_too() -> None:
    log = {"journal.txt": "irqbalance[8]: Cannot change IRQ 44 affinity: Input/output error"}
    assert answers("irq.log", log)[0].verdict is V.INFO
    assert not [f for f in answers("paste.recognised", log) if f.verdict is V.UNKNOWN]
