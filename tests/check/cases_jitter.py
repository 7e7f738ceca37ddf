"""Cases of test_checks.py for what tools say about latency: (name, what was pasted, verdict)."""

from __future__ import annotations

from nodeagent.discover.paste.part import Text
from nodeagent.discover.paste.read import read_paste
from nodeagent.model.finding import Verdict
from nodeagent.model.snapshot import Snapshot
from tests.check.machines import healthy

V = Verdict
H = healthy()


def P(texts: dict[str, str]) -> Snapshot:  # noqa: N802  # short, for a table
    """What somebody pasted, each text under its name."""
    return read_paste([Text(name=name, text=text) for name, text in texts.items()]).snapshot


def cyclictest(*maxima: int, tail: str = "") -> str:
    """Thread lines with these maxima."""
    lines = [
        f"T:{i:2} ({4100 + i:5}) P:95 I:200 C: 600000 Min:      1 Act:    3 Avg:    2 Max:{m:8}"
        for i, m in enumerate(maxima)
    ]
    head = "# /dev/cpu_dma_latency set to 0us\npolicy: fifo: loadavg: 0.10 0.20 0.30 2/900 4099\n"
    return head + "\n".join(lines) + tail + "\n"


TOP = """\
                                     Timer Latency
  0 00:01:00   |          IRQ Timer Latency (us)        |         Thread Timer Latency (us)
CPU COUNT      |      cur       min       avg       max |      cur       min       avg       max

          4 #60000     |        1         0         1         {irq} |        4         2         5        {thread}
  5 #60000     |        1         0         1         3 |        4         2         5         9
"""  # noqa: E501
AA = """\
## CPU {cpu} hit stop tracing, analyzing it ##
  IRQ handler delay:                                       {delay} us (9 %)
  IRQ latency:                                             {delay} us
  Timerlat IRQ duration:                                     5.10 us (7.1 %)
  Blocking thread:                                          {blocking} us (60 %)
                       {task}                      {blocking} us
    Blocking thread stack trace
                -> timerlat_irq
                -> {frame}
  {kind} interference                                      {other} us (3 %)
                       {irq}                          {other} us
------------------------------------------------------------------------
  Thread latency:                                          {total} us (100%)
"""


def aa(task: str, frame: str, blocking: float = 60.0, other: float = 2.0, delay: float = 1.0,
       kind: str = "IRQ", irq: str = "local_timer:236", total: float = 80.0) -> str:  # fmt: skip
    """One auto-analysis."""
    return AA.format(
        cpu=12, task=task, frame=frame, blocking=blocking, other=other, delay=delay, kind=kind,
        irq=irq, total=total,
    )  # fmt: skip


NOISE = """\
                                          Operating System Noise
duration:   0 00:00:10 | time is in us

         PU Period       Runtime        Noise  % CPU Aval   Max Noise   Max Single          HW          NMI          IRQ      Softirq       Thread
{rows}
"""  # noqa: E501


def noise(*rows: tuple[int, float, int, int, int]) -> str:
    """Rows of (cpu, available, max single, hardware, irq)."""
    return NOISE.format(
        rows="\n".join(
            f"  {c} #10        10000000         {round((100 - a) * 1e5)}     {a:8.5f}          40"
            f"           {m}           {h}            0           {i}            0            2"
            for c, a, m, h, i in rows
        )
    )


HWLAT = """\
hwlatdetect:  test duration 60 seconds
   detector: tracer
   parameters:
        CPU list:          0-3
        Latency threshold: 10us
        Sample window:     1000000us
Starting test
test finished
Max Latency: {worst}
Samples recorded: {n}
Samples exceeding threshold: {n}
"""
HIST = """\
Tracing run queue latency... Hit Ctrl-C to end.

     usecs               : count     distribution
         0 -> 1          : 4000     |****************************************|
         2 -> 3          : 900      |*********                               |
      {last}       : {n}       |                                        |
"""
FUNC = """\
Tracing 1 functions for "{name}"... Hit Ctrl-C to end.

     usecs               : count     distribution
         2 -> 3          : 900      |*********                               |
      {last}       : 7       |                                        |

avg = 55 usecs, total: 49885 usecs, count: 907
"""
SLOWER = """\
Tracing run queue latency higher than 1000 us
TIME     COMM             TID           LAT(us)  PREV COMM        PREV TID
{rows}
"""


def interrupts(loc: tuple[int, int], tlb: tuple[int, int] = (0, 0), mce: int = 0) -> str:
    """/proc/interrupts of CPU 0 and CPU 5."""
    return (
        "            CPU0       CPU5\n"
        "  36:         12          0  IR-PCI-MSI 524288-edge      eth0\n"
        f" LOC: {loc[0]:10} {loc[1]:10}   Local timer interrupts\n"
        f" TLB: {tlb[0]:10} {tlb[1]:10}   TLB shootdowns\n"
        f" MCE: {mce:10}          0   Machine check exceptions\n"
        " ERR:          0\n"
    )


def canary(*rows: tuple[float, int, int]) -> str:
    """Canaries' table."""
    return "ts_ms,cpu,overshoot_us\n" + "".join(f"{t},{c},{us}\n" for t, c, us in rows)


WHOLE = canary(*((1000.0 * k, c, 3000 + c) for k in range(1, 6) for c in (2, 9, 17)))
SHORT = canary(*((1000.0 * k, c, 200 + c) for k in range(1, 6) for c in (2, 9, 17)))
CALLED = "ts_ms,pid\n" + "".join(f"{1000.0 * k - 0.4},812\n" for k in range(1, 6))
ELSE = "ts_ms,pid\n" + "".join(f"{1000.0 * k + 500},812\n" for k in range(1, 6))
ISOLATED = {"cpu-isolated": "5-7"}
NOHZ = {"cpu-nohz_full": "5-7"}
TURBO = """\

         sec\tCore\tCPU\tAvg_MHz\tBusy%\tBzy_MHz\tTSC_MHz\tIRQ\tSMI\tC1%\tC6%\tCPU%c1\tCPU%c6\tCoreTmp\tCoreThr\tPkgTmp
10\t-\t-\t900\t30.00\t3000\t2500\t100\t{smi}\t1.0\t{c6}\t1.0\t{c6}\t50\t{thr}\t52
10\t0\t0\t{avg}\t90.00\t{mhz}\t2500\t100\t{smi}\t1.0\t{c6}\t1.0\t{c6}\t50\t{thr}\t52
"""


def turbo(smi: int = 0, c6: float = 0.0, thr: int = 0, mhz: int = 3100) -> dict[str, str]:
    """turbostat's table."""
    return {"turbostat.txt": TURBO.format(smi=smi, c6=c6, thr=thr, avg=int(mhz * 0.9), mhz=mhz)}


def mpstat(steal: float, soft: float = 0.5) -> str:
    """`mpstat -P ALL 10 1`."""
    idle = 100 - 20 - steal - soft
    row = (
        f"   15.00    0.00    5.00    0.00    0.00   {soft:5.2f}   {steal:5.2f}    0.00    0.00   "
    )
    return (
        "Linux 6.1.0 (h) \t01/02/2026 \t_x86_64_\t(2 CPU)\n\n"
        "10:00:01 AM  CPU    %usr   %nice    %sys %iowait    %irq   %soft  %steal  %guest  %gnice"
        "   %idle\n"
        f"10:00:11 AM  all{row}{idle:5.2f}\n10:00:11 AM    0{row}{idle:5.2f}\n\n"
        "Average:     CPU    %usr   %nice    %sys %iowait    %irq   %soft  %steal  %guest  %gnice"
        "   %idle\n"
        f"Average:     all{row}{idle:5.2f}\nAverage:       0{row}{idle:5.2f}\n"
    )


def stat(user: int, steal: int) -> str:
    """/proc/stat of one CPU."""
    numbers = f"{user} 0 0 1000 0 0 0 {steal} 0 0"
    return f"cpu  {numbers}\ncpu0 {numbers}\nintr 5\nctxt 7\nbtime 1\n"


PSI = "some avg10={some} avg60=1.00 avg300=0.50 total=123\nfull avg10={full} avg60=0.00 avg300=0.00 total=9\n"  # noqa: E501

PERF = """\
 Performance counter stats for process id '4711':

             1,200      context-switches          #    3.038 K/sec
             {moves}      cpu-migrations            #   20.063 /sec

      60.013842178 seconds time elapsed
"""
PIDSTAT_W = """\
10:00:01      UID       PID   cswch/s nvcswch/s  Command
10:00:02        0      4711      2.00   {rate}  python3
"""

CASES: dict[str, list[tuple[str, Snapshot, Verdict]]] = {
    "jitter.latency": [
        ("cyclictest, good", P({"c.txt": cyclictest(12, 9)}), V.OK),
        ("cyclictest, late", P({"c.txt": cyclictest(12, 180)}), V.WARN),
        ("cyclictest, very late", P({"c.txt": cyclictest(12, 4200)}), V.FAIL),
        ("late elsewhere", P({"c.txt": cyclictest(180), **ISOLATED}), V.OK),
        ("nanoseconds", P({"c.txt": "$ cyclictest -m -N -p 95\n" + cyclictest(12000)}), V.OK),
        ("overflows", P({"c.txt": cyclictest(9, tail="\n# Histogram Overflows: 00004")}), V.WARN),
        ("a histogram", P({"c.txt": "# Histogram\n000001 000005\n# Total: 000000005\n# Min "
                                    "Latencies: 00001\n# Avg Latencies: 00002\n# Max Latencies: "
                                    "00077\n# Histogram Overflows: 00000\n"}), V.WARN),
        ("json", P({"c.json": '{"file_version": 1, "cmdline": "cyclictest --json=x", '
                              '"thread": {"0": {"cycles": 9, "min": 1, "max": 300, "avg": 2.5, '
                              '"cpu": 4}}, "resolution_in_ns": 0}'}), V.WARN),
        ("jitterdebugger", P({"j.txt": "affinity: 0-1 = 2 [0x3]\nT: 0 (  614) A: 0 C:      8764 "
                                       "Min:         3 Avg:    4.08 Max:        42\n"}), V.OK),
        ("timerlat, good", P({"t.txt": TOP.format(irq=9, thread=19)}), V.OK),
        ("timerlat, late thread", P({"t.txt": TOP.format(irq=9, thread=190)}), V.WARN),
        ("timerlat hist", P({"t.txt": "# RTLA timerlat histogram\n# Time unit is microseconds "
                                      "(us)\nIndex   IRQ-004   Thr-004\n0   100   0\nover:  0   0\n"
                                      "count: 100 100\nmin:   0   2\navg:   1   5\nmax:   4   99\n"
                            }), V.WARN),
        ("oslat",
         P({"o.txt": "oslat V 2.4\n Core: \t 2 3 \n001 (us):\t 9 9 \n Minimum:\t 1 1 (us)\n"
                              " Average:\t 1.001 1.001 (us)\n Maximum:\t 5 61 (us)\n"}), V.WARN),
        ("oslat, ns", P({"o.txt": "Core:\t 2 3\nMinimum:\t 1 1 (ns)\nAverage:\t 100.0 100.0 (ns)\n"
                                  "Maximum:\t 5000 6100 (ns)\n"}), V.OK),
        ("sysjitter", P({"s.txt": "core_i:           0          1\nthreshold(ns): 200 200\n"
                                  "int_n: 10 10\nint_max(ns):  9000   1700000\n"
                                  "int_total(%): 0.1 0.1\n"}), V.FAIL),
        ("a table", P({"l.csv": "cpu,p99_us,max_us\n4,20,412\n5,9,11\n"}), V.WARN),
        ("no tool", P({"cmdline": "root=/dev/sda1 ro"}), V.NA),
        ("a machine", H, V.NA),
    ],
    "jitter.blocking": [
        ("idle", P({"a.txt": aa("swapper/12:0", "mwait_idle_with_hints")}), V.WARN),
        ("a worker", P({"a.txt": aa("kworker/12:1:991", "mlx5_core")}), V.WARN),
        ("an interrupt", P({"a.txt": aa("x:1", "f", blocking=3.0, other=50.0)}), V.WARN),
        ("hardware", P({"a.txt": aa("x:1", "f", blocking=3.0, delay=70.0)}), V.WARN),
        ("milliseconds", P({"a.txt": aa("objtool:77", "f", blocking=4000, total=4100)}), V.FAIL),
        ("no analysis", P({"t.txt": TOP.format(irq=9, thread=19)}), V.NA),
    ],
    "jitter.noise": [
        ("quiet", P({"o.txt": noise((4, 99.99991, 5, 3, 10))}), V.OK),
        ("the tick", P({"o.txt": noise((4, 99.60000, 9, 0, 10003))}), V.WARN),
        ("one piece", P({"o.txt": noise((4, 99.99000, 140, 0, 3))}), V.WARN),
        ("firmware", P({"o.txt": noise((4, 99.90001, 340, 12, 3))}), V.WARN),
        ("long", P({"o.txt": noise((4, 99.80000, 2100, 12, 3))}), V.FAIL),
        ("elsewhere", P({"o.txt": noise((0, 97.00000, 140, 0, 3)), **ISOLATED}), V.OK),
        ("none", P(ISOLATED), V.NA),
    ],
    "jitter.hardware": [
        ("below", P({"h.txt": HWLAT.format(worst="Below threshold", n=0)}), V.OK),
        ("a gap", P({"h.txt": HWLAT.format(worst="131us", n=4)}), V.WARN),
        ("a long gap", P({"h.txt": HWLAT.format(worst="3400us", n=4)}), V.FAIL),
        ("tracer", P({"trace.txt": " <...>-17 [003] d... 67.8: #1 inner/outer(us): 31/12 "
                                   "ts:1581527483.343962693 count:6\n"}), V.WARN),
        ("turbostat counts", P(turbo(smi=14)), V.WARN),
        ("turbostat counts none", P(turbo()), V.OK),
        ("not looked for", P({"c.txt": cyclictest(5)}), V.NA),
    ],
    "jitter.run-queue": [
        ("few", P({"r.txt": HIST.format(last="  4 -> 7   ", n=5)}), V.OK),
        ("long", P({"r.txt": HIST.format(last="2048 -> 4095", n=5)}), V.WARN),
        ("slow ones", P({"r.txt": SLOWER.format(rows="10:00:01 kworker/3:1      771          2100"
                                                     "     python3          812")}), V.WARN),
        ("idle only", P({"r.txt": SLOWER.format(rows="10:00:01 swapper/3        0            2100"
                                                     "     python3          812")}), V.INFO),
        ("none slow", P({"r.txt": SLOWER.format(rows="")}), V.OK),
        ("perf sched", P({"p.txt": "  Task | Runtime ms | Count | Avg delay ms | Max delay ms |\n"
                                   "  vllm:812      |   900.100 ms |      45 | avg:   0.300 ms | "
                                   "max:  14.700 ms | max start: 1.0 s | max end: 1.1 s\n"}),
         V.WARN),
        ("pidstat",
         P({"p.txt": "10:00:01 AM   UID       PID    %usr %system  %guest   %wait    %CPU"
                                "   CPU  Command\n10:00:02 AM     0       812   50.00    1.00    "
                                "0.00   44.00   51.00     3  vllm\n"}), V.WARN),
        ("schedstat", P({"schedstat": "9000000000 1000000 81\n"}), V.OK),
        ("schedstat, waiting", P({"812.schedstat": "9000000000 8000000000 81\n"}), V.WARN),
        ("a table", P({"s.csv": "tid,comm,run_ms,wait_ms\n1,a,5000,4000\n"}), V.WARN),
        ("vmstat",
         P({"v.txt": "procs -----------memory----------\n r  b   swpd   free   buff  cache"
                               "   si   so    bi    bo   in   cs us sy id wa st\n"
                               " 1  0 0 1 1 1 0 0 0 0 1 1 1 1 98 0 0\n"
                               "44  0 0 1 1 1 0 0 0 0 1 1 90 9 1 0 0\n",
                      "cpu-online": "0-7"}), V.WARN),
        ("not measured", P(ISOLATED), V.NA),
    ],
    "jitter.function": [
        ("short", P({"f.txt": FUNC.format(name="vfs_read", last="  64 -> 127")}), V.OK),
        ("long", P({"f.txt": FUNC.format(name="vfs_read", last="8192 -> 16383")}), V.WARN),
        ("balancing", P({"f.txt": FUNC.format(name="task_numa_work", last="8192 -> 16383")}),
         V.FAIL),
        ("balancing, off since", P({"f.txt": FUNC.format(name="task_numa_work",
                                                         last="8192 -> 16383"),
                                    "s.txt": "kernel.numa_balancing = 0"}), V.WARN),
        ("bpftrace", P({"b.txt": "Attaching 2 probes...\n\n@usecs: \n[0]  90 |@@@@|\n"
                                 "[1, 2)  10 |@|\n[2K, 4K)  3 |@|\n"}), V.WARN),
        ("on the CPU", P({"cpudist.txt": "     usecs : count distribution\n  4096 -> 8191 : 7 |*|\n"
                          }), V.INFO),
        ("a slow disk",
         P({"biolatency.txt": "     msecs : count distribution\n  64 -> 127 : 7 |*|\n"
                           }), V.WARN),
        ("none", P(ISOLATED), V.NA),
    ],
    "jitter.machine-stall": [
        ("with calls", P({"canary.csv": WHOLE, "nvml-calls.csv": CALLED}), V.FAIL),
        ("short, with calls", P({"canary.csv": SHORT, "nvml-calls.csv": CALLED}), V.FAIL),
        ("short, no call near", P({"canary.csv": SHORT, "nvml-calls.csv": ELSE}), V.WARN),
        ("long, nobody asked", P({"canary.csv": WHOLE}), V.FAIL),
        ("single CPUs", P({"canary.csv": canary((1, 2, 900), (40, 9, 900), (80, 2, 700))}), V.WARN),
        ("no stall", P({"canary.csv": canary((1, 2, 3), (40, 9, 4))}), V.OK),
        ("no canary", P(ISOLATED), V.NA),
    ],
    "jitter.switches": [
        ("moved", P({"p.txt": PERF.format(moves="3,000")}), V.WARN),
        ("stays", P({"p.txt": PERF.format(moves="2")}), V.OK),
        ("taken off", P({"p.txt": PIDSTAT_W.format(rate="850.00")}), V.WARN),
        ("alone", P({"p.txt": PIDSTAT_W.format(rate="0.50")}), V.OK),
        ("not counted", P(ISOLATED), V.NA),
    ],
    "jitter.log": [
        ("hogs", P({"dmesg.txt": "[ 1.0] workqueue: foo_work [foo] hogged CPU for >10000us 9 times"
                                 "\n"}), V.WARN),
        ("a long NMI", P({"dmesg.txt": "[ 1.0] INFO: NMI handler (perf_event_nmi_handler) took too "
                                       "long to run: 5.1 msecs\n"}), V.WARN),
        ("nothing", P({"dmesg.txt": "[ 1.0] random: crng init done\n"}), V.OK),
        ("not the kernel's", P({"app.log": "INFO 1 api.py:9] ready\n"}), V.NA),
        ("no log", P(ISOLATED), V.NA),
    ],
    "jitter.tick": [
        ("stopped", P({"i.t0": interrupts((0, 5)), "i.t10": interrupts((2500, 9)), **NOHZ}), V.OK),
        ("runs", P({"i.t0": interrupts((0, 5)), "i.t10": interrupts((2500, 2500)), **NOHZ}),
         V.WARN),
        ("no time told", P({"a.txt": interrupts((0, 5)), "b.txt": interrupts((2500, 2499)),
         **NOHZ}),
         V.WARN),
        ("two machines", P({"i.t0": interrupts((90, 5), (9, 9)),
                            "i.t10": interrupts((99, 2), (9, 9)), **NOHZ}), V.UNKNOWN),
        ("mpstat -I", P({"m.txt": "10:00:01 AM  CPU     NMI/s     LOC/s\n10:00:02 AM    0  0.00  "
                                  "250.00\n10:00:02 AM    5     0.00    250.00\n", **NOHZ}),
         V.WARN),
        ("one reading", P({"i.t0": interrupts((0, 5)), **NOHZ}), V.NA),
        ("not nohz_full", P({"i.t0": interrupts((0, 5)), "i.t10": interrupts((9, 9))}), V.NA),
    ],
    "jitter.interrupts": [
        ("shootdowns", P({"i.t0": interrupts((0, 5)), "i.t10": interrupts((9, 9), (0, 900)),
                          **ISOLATED}), V.WARN),
        ("shootdowns elsewhere", P({"i.t0": interrupts((0, 5)),
                                    "i.t10": interrupts((9, 9), (900, 0)), **ISOLATED}), V.OK),
        ("a flood, nothing isolated", P({"i.t0": interrupts((0, 5)),
                                         "i.t10": interrupts((9, 9), (0, 90_000))}), V.WARN),
        ("machine check", P({"i.t0": interrupts((0, 5)), "i.t10": interrupts((9, 9), mce=2)}),
         V.WARN),
        ("mpstat -I", P({"m.txt": "10:00:01 AM  CPU     NMI/s     TLB/s\n10:00:02 AM    5  0.00  "
                                  "80.00\n", **ISOLATED}), V.WARN),
        ("one reading", P({"i.t0": interrupts((0, 5)), **ISOLATED}), V.NA),
    ],
    "jitter.steal": [
        ("none", P({"m.txt": mpstat(0.0)}), V.OK),
        ("some", P({"m.txt": mpstat(4.0)}), V.WARN),
        ("much", P({"m.txt": mpstat(24.0)}), V.FAIL),
        ("two readings", P({"stat.t0": stat(1000, 0), "stat.t10": stat(1900, 100)}), V.WARN),
        ("not measured", P(ISOLATED), V.NA),
    ],
    "jitter.clock": [
        ("fast", P(turbo()), V.OK),
        ("slow while busy", P(turbo(mhz=800)), V.WARN),
        ("hot", P(turbo(thr=3)), V.WARN),
        ("deep", P(turbo(c6=60.0)), V.WARN),
        ("deep elsewhere", P({**turbo(c6=60.0), **ISOLATED}), V.OK),
        ("softirqs", P({"m.txt": mpstat(0.0, soft=70.0)}), V.WARN),
        ("not measured", P(ISOLATED), V.NA),
    ],
    "cgroup.quota-changed": [
        ("lost", P({"cpu.max.before": "50000 100000", "cpu.max.after": "max 100000"}), V.WARN),
        ("changed", P({"cpu.max.old": "50000 100000", "cpu.max": "90000 100000"}), V.WARN),
        ("v1", P({"cpu.cfs_quota_us.before": "50000", "cpu.cfs_quota_us.after": "-1"}), V.WARN),
        ("kept", P({"cpu.max.before": "50000 100000", "cpu.max.after": "50000 100000"}), V.OK),
        ("one reading", P({"cpu.max": "50000 100000"}), V.NA),
    ],
    "cgroup.quota-nohz": [
        ("a quota", P({"cpu.max": "50000 100000", **NOHZ}), V.WARN),
        ("elsewhere", P({"cpu.max": "50000 100000", "cpuset.cpus.effective": "0-3", **NOHZ}), V.OK),
        ("damaged", P({"cpu.max": "50000 100000", "cpuset.cpus.effective": "0-x", **NOHZ}),
         V.UNKNOWN),
        ("no limit", P({"cpu.max": "max 100000", **NOHZ}), V.OK),
        ("not nohz_full", P({"cpu.max": "50000 100000"}), V.NA),
    ],
    "cgroup.crowded": [
        ("a quota", P({"cpu.max": "400000 100000", "threads": "64", "nproc-host": "128"}), V.WARN),
        ("a cpuset", P({"cpuset.cpus.effective": "0-3", "threads": "12"}), V.WARN),
        ("enough", P({"cpuset.cpus.effective": "0-15", "threads": "12"}), V.OK),
        ("no limit", P({"cpu.max": "max 100000", "threads": "12"}), V.NA),
    ],
    "cgroup.pressure": [
        ("little", P({"cpu.pressure": PSI.format(some="2.00", full="0.00")}), V.OK),
        ("CPU", P({"cpu.pressure": PSI.format(some="42.00", full="0.00")}), V.WARN),
        ("memory", P({"memory.pressure": PSI.format(some="30.00", full="21.00")}), V.WARN),
        ("thrashing", P({"memory.pressure": PSI.format(some="90.00", full="81.00")}), V.FAIL),
        ("by its path", P({"x.txt": "/proc/pressure/cpu: some avg10=38.10 avg60=30.00 avg300=20.00 "
                                    "total=1\n"}), V.WARN),
        ("none", P(ISOLATED), V.NA),
    ],
}  # fmt: skip
ALWAYS_SEE = {c for c in CASES if c not in ("jitter.tick", "cgroup.quota-nohz")}
"""They judge what was pasted: what is not there was not asked for."""
ONLY_TELL = {"jitter.blocking"}
"""There is an analysis only where something was late."""
