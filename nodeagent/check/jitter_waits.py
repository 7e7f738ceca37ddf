"""jitter: who waited for a CPU, what took long, what the log tells of it."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check.record import (
    Judged,
    NotApplicable,
    Seen,
    check,
    fail,
    info,
    ok,
    saw,
    share,
    some,
    warn,
)
from nodeagent.check.tasks import bound_cpu, described, is_idle, is_kernel
from nodeagent.model.finding import Evidence
from nodeagent.model.kernel_event import KernelEvent
from nodeagent.model.latency import CpuUses, Switches, Times, Wait, Waits

BALANCING = "proc/sys/kernel/numa_balancing"
EFFECTIVE = "sys/fs/cgroup/pasted/cpuset.cpus.effective"


@check(
    "jitter.run-queue",
    "threads do not wait for a CPU",
    means="WARN when a task waited longer than `wait_us` for a CPU, or waited more than "
    "`wait_percent` % of the time it wanted to run. Rows of the idle task (swapper, pid 0) are an "
    "artefact of tracing and are dropped. A kworker's name tells the CPU it is bound to.",
    why="Throttling counters stay at 0 while more threads want to run than there are CPUs: the "
    "wait "
    "is in the run queue, and every message pays it.",
    prove="runqslower 1000; perf sched record -- sleep 10 && perf sched latency; cat "
    "/proc/PID/task/*/schedstat",
    mend="Give the group as many physical cores as threads that spin (one for each worker and one "
    "for each engine or scheduler thread), or fewer threads; keep others off with a cpuset.",
    source="Linux Documentation/scheduler/sched-stats.rst; iovisor/bcc "
    "tools/runqslower_example.txt",
    bounds={"wait_us": 1000, "wait_percent": 10},
)
def run_queue(s: Seen) -> Iterator[Judged]:
    """Waits of every tool."""
    waits = s.reports(Waits)
    queues = [t for t in s.reports(Times) if t.about == "run-queue" and t.buckets]
    crowds = [u for u in s.reports(CpuUses) if u.runnable is not None]
    if not waits and not queues and not crowds:
        raise NotApplicable("nobody measured waits for a CPU")
    bad = False
    for report in waits:
        real = [w for w in report.rows if not is_idle(w.task, w.pid)]
        dropped = len(report.rows) - len(real)
        judged = list(_waited(s, report, real))
        bad |= bool(judged)
        yield from judged
        if dropped:
            yield info(
                report.tool,
                f"{dropped} rows of the idle task were dropped: the idle task waits for nobody",
            )
    for queue in queues:
        beyond = queue.beyond(s.bounds["wait_us"])
        if beyond:
            bad = True
            low, high = queue.worst_us
            yield warn(
                f"run queue {queue.name}".strip(),
                f"{beyond} of {queue.count} waits for a CPU took {s.bounds['wait_us'] / 1000:g} ms "
                f"or longer, the longest {_span(low, high)}",
                saw(queue.source, f"{beyond} beyond {s.bounds['wait_us']:g} us"),
                remedy="runqslower -P 1000  # who waited, and what ran before",
            )
    cpus = len(s.snapshot.topology.online)
    for crowd in crowds:
        if cpus and crowd.runnable is not None and crowd.runnable > cpus:
            bad = True
            yield warn(
                "run queue",
                f"up to {crowd.runnable} tasks wanted to run on {cpus} CPUs",
                saw(crowd.source, f"r {crowd.runnable}"),
                remedy="fewer threads, or more CPUs; pidstat -u 1 names them",
            )
    if not bad:
        yield ok("run queue", "no task waited longer than the bound")


def _waited(s: Seen, report: Waits, rows: list[Wait]) -> Iterator[Judged]:
    """Single long waits, and shares of time."""
    late = sorted(
        (w for w in rows if (w.max_us or 0.0) > s.bounds["wait_us"]), key=lambda w: -(w.max_us or 0)
    )
    if late:
        told = [
            f"{described(w.task)} {w.max_us:g} us" + (f", after {w.before}" if w.before else "")
            for w in late
        ]
        cpus = sorted({c for w in late if (c := bound_cpu(w.task)) is not None})
        kernel = sum(is_kernel(w.task) for w in late)
        remedy = "runqslower -P 1000  # the column PREV COMM names what held the CPU"
        if kernel < len(late):
            remedy += "; give these tasks CPUs of their own (cpuset), or lower the load"
        yield warn(
            f"cpu {some(cpus)}" if cpus else report.tool,
            f"{len(late)} waits for a CPU above {s.bounds['wait_us'] / 1000:g} ms "
            f"({kernel} of kernel threads): {some(told, 4)}",
            *(saw(report.source, f"{w.task} {w.max_us:g} us") for w in late[:4]),
            remedy=remedy,
        )
    shares = [(w, _share(w)) for w in rows]
    slow = [(w, p) for w, p in shares if p is not None and p > s.bounds["wait_percent"]]
    if slow:
        slow.sort(key=lambda x: -x[1])
        cpus_text = s.snapshot.texts.get(EFFECTIVE, "")
        yield warn(
            f"task {some(w.task or w.pid for w, _ in slow)}",
            f"{len(slow)} of {len(rows)} threads were ready and had no CPU for up to "
            f"{slow[0][1]:.0f} % of the time"
            + (f", on CPUs {cpus_text}" if cpus_text else "")
            + ": more threads want to run than there are CPUs, though no quota need be reached",
            *(saw(report.source, f"{w.task or w.pid}: {p:.0f} % waiting") for w, p in slow[:4]),
            *([saw(EFFECTIVE, cpus_text)] if cpus_text else []),
            remedy="echo MORE_CPUS > /sys/fs/cgroup/GROUP/cpuset.cpus  # one core for each "
            "thread that spins; or fewer threads",
        )


def _share(w: Wait) -> float | None:
    """Waiting, in percent of waiting and running; None when nothing worth a share was seen."""
    if w.wait_percent is not None:
        return w.wait_percent
    if w.wait_us is None or w.run_us is None or w.wait_us + w.run_us < 1000:
        return None
    return share(w.wait_us, w.wait_us + w.run_us)


CAUSES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        ("task_numa_work", "change_prot_numa", "do_numa_page", "migrate_misplaced"),
        "automatic NUMA balancing scans and unmaps pages of the running task",
        "sysctl -w kernel.numa_balancing=0",
    ),
    (
        ("compact", "khugepaged", "collapse_huge", "do_huge_pmd"),
        "memory is compacted or collapsed into huge pages",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled; "
        "sysctl -w vm.compaction_proactiveness=0",
    ),
    (
        ("shrink_", "try_to_free", "node_reclaim", "balance_pgdat", "kswapd"),
        "memory is reclaimed in the task's way",
        "sysctl -w vm.zone_reclaim_mode=0; leave more memory free (vm.min_free_kbytes)",
    ),
    (
        ("swap_readpage", "do_swap_page", "swapin"),
        "pages come back from swap",
        "sysctl -w vm.swappiness=1, and mlock the process; swapoff -a only while more memory is "
        "available than swapped out (free -m)",
    ),
    (
        ("flush_tlb", "smp_call_function", "on_each_cpu", "membarrier", "native_flush"),
        "CPUs are interrupted to flush TLBs or run a call",
        "trace-cmd record -e ipi:ipi_send_cpumask  names the sender; keep its threads off these "
        "CPUs",
    ),
    (
        ("nvidia", "rm_ioctl", "nv_", "os_"),
        "the NVIDIA driver works in the caller's context",
        "poll NVML less often and with batched field reads; check persistence mode",
    ),
)
"""Functions of the kernel that take long, why, and what helps."""


@check(
    "jitter.function",
    "no function of the kernel holds a task for milliseconds",
    means="FAIL when NUMA balancing's work took longer than `function_us` in running tasks (unless "
    "the input shows that it is off now); WARN for other traced functions above it, for disk I/O "
    "above `block_us` and interrupt handlers above `irq_us`. Other histograms are shown as INFO.",
    why="Such calls run in the task's own time: it is stopped in the middle of its work.",
    prove="funclatency -m task_numa_work; biolatency -D; hardirqs -d",
    mend="By function: see the finding's remedy.",
    source="iovisor/bcc tools/funclatency_example.txt; Linux kernel/sched/fair.c task_numa_work()",
    bounds={"function_us": 1000, "block_us": 20000, "irq_us": 100},
)
def function(s: Seen) -> Iterator[Judged]:
    """Histograms but those of the run queue."""
    times = [t for t in s.reports(Times) if t.about != "run-queue"]
    if not times:
        raise NotApplicable("no durations were traced")
    limits = {"block": "block_us", "irq": "irq_us", "softirq": "irq_us"}
    for t in times:
        limit = s.bounds[limits.get(t.about, "function_us")]
        low, high = t.worst_us
        subject = t.name or t.about or "durations"
        if t.about in ("on-cpu", "off-cpu") or not t.buckets:
            yield info(subject, _summary(t), saw(t.source, _summary(t)))
            yield ok(subject, "shown; no bound fits it", saw(t.source, _summary(t)))
            continue
        if low < limit and (t.avg_us or 0.0) < limit:
            yield ok(subject, f"{subject}: {_summary(t)}", saw(t.source, _summary(t)))
            continue
        names, why, remedy = next(
            (c for c in CAUSES if any(n in t.name for n in c[0])), ((), "", "")
        )
        evidence: list[Evidence] = [saw(t.source, f"{subject}: {_summary(t)}")]
        message = f"{subject} took {_span(low, high)} at worst: {_summary(t)}"
        message += f"; {why}" if why else ""
        if names == CAUSES[0][0]:
            setting = s.snapshot.texts.get(BALANCING)
            if setting is not None:
                evidence.append(saw(BALANCING, setting))
            judged = warn if setting == "0" else fail
            yield judged(subject, message, *evidence, remedy=remedy)
        else:
            yield warn(
                subject,
                message,
                *evidence,
                remedy=remedy or f"trace who it is: {_trace(t)}",
            )


def _trace(t: Times) -> str:
    """What shows who it was."""
    if t.about == "function" and t.name:
        return f"bpftrace -e 'kprobe:{t.name} {{ @[comm, kstack(4)] = count(); }}'"
    if t.about in ("irq", "softirq"):
        return "perf trace -e irq:*; cat /proc/interrupts"
    return "bpftrace -e 'tracepoint:sched:sched_switch { @[args.prev_comm] = count(); }'"


def _span(low: float, high: float) -> str:
    unit, scale = ("ms", 1e3) if high >= 1000 else ("us", 1.0)
    return f"{low / scale:g} to {high / scale:g} {unit}"


def _summary(t: Times) -> str:
    said = []
    if t.count:
        said.append(f"{t.count} times")
    if t.avg_us is not None:
        said.append(f"{t.avg_us / 1000:g} ms on average")
    if t.total_us is not None:
        said.append(f"{t.total_us / 1000:g} ms in all")
    return ", ".join(said) or "no sample"


@check(
    "jitter.switches",
    "pinned tasks are not taken off their CPU or moved",
    means="WARN when a task was taken off its CPU against its will more than `involuntary_per_s` "
    "times a second (pidstat -w), moved more than `migrations_per_s` times a second, or switched "
    "more than `switches_per_s` times a second (perf stat).",
    why="Each switch costs 1 to 5 us and a cold cache, a migration more. A task that is pinned and "
    "alone on its CPU has next to none.",
    prove="pidstat -wt -p PID 1; perf stat -e context-switches,cpu-migrations -p PID sleep 10",
    mend="taskset or a cpuset for the task, one core for each thread that spins, and nobody else "
    "there.",
    source="pidstat(1); perf-stat(1)",
    bounds={"involuntary_per_s": 100, "migrations_per_s": 10, "switches_per_s": 20000},
)
def switches(s: Seen) -> Iterator[Judged]:
    """Rates by task."""
    rows = s.reports(Switches)
    if not rows:
        raise NotApplicable("nobody counted context switches")
    bad = False
    for r in rows:
        told = []
        if (r.involuntary_per_s or 0) > s.bounds["involuntary_per_s"]:
            told.append(f"taken off its CPU {r.involuntary_per_s:.0f} times a second")
        if (r.migrations_per_s or 0) > s.bounds["migrations_per_s"]:
            told.append(f"moved to another CPU {r.migrations_per_s:.0f} times a second")
        if (r.switches_per_s or 0) > s.bounds["switches_per_s"]:
            told.append(f"switched {r.switches_per_s:.0f} times a second")
        if told:
            bad = True
            yield warn(
                f"task {r.task}",
                f"{r.task} was {', '.join(told)}: it shares its CPU or is not pinned",
                saw(r.source, ", ".join(told)),
                remedy="taskset -pc CPUS PID; runqslower -P 100  # who else runs there",
            )
    if not bad:
        yield ok("switches", f"{len(rows)} tasks stay on their CPUs", saw(rows[0].source, "rates"))


@check(
    "jitter.log",
    "the kernel log does not tell of long interrupts and workers",
    means="WARN for lines by which the kernel says that a work item held a CPU for more than 10 "
    "ms, "
    "that an NMI handler or a timer interrupt took long. A timer interrupt of milliseconds on a "
    "virtual machine is the hypervisor.",
    why="The kernel counts these itself and says so once, often weeks before anybody measures.",
    prove="dmesg -T | grep -E 'hogged CPU|took too long|interrupt took'",
    mend="hogged CPU: the driver that the function belongs to (update it, or move unbound workers "
    "with the workqueue cpumask). NMI: sysctl -w kernel.nmi_watchdog=0 and no perf.",
    source="Linux kernel/workqueue.c wq_cpu_intensive_report(); arch/x86/kernel/nmi.c; "
    "kernel/time/hrtimer.c",
)
def told_by_log(s: Seen) -> Iterator[Judged]:
    """Events by kind and function."""
    if s.snapshot.events is None:
        s.whole("derived/kernel_log")
        raise NotApplicable("no kernel log was read")
    if not s.snapshot.events and s.snapshot.texts.get("log/kernel-lines", "1") == "0":
        raise NotApplicable("no line of this log is the kernel's")
    found: dict[str, list[KernelEvent]] = {}
    for e in s.snapshot.events:
        if e.kind in ("workqueue_hog", "nmi_long"):
            found.setdefault(str(e.details.get("function", e.kind)), []).append(e)
    for name, lines in found.items():
        first = lines[0]
        hog = first.kind == "workqueue_hog"
        message = (
            f"the work item {name} held a CPU for more than {first.details.get('us')} us"
            if hog
            else "a non-maskable or timer interrupt took long: perf, the watchdog, firmware or a "
            "hypervisor"
        )
        yield warn(
            name if hog else "interrupts",
            f"{message} ({len(lines)} lines)",
            saw(first.file or "kernel log", f"line {first.line}: {first.text}"),
            remedy="echo HOUSEKEEPING_MASK > /sys/devices/virtual/workqueue/cpumask"
            if hog
            else "sysctl -w kernel.nmi_watchdog=0; turbostat --show CPU,SMI --interval 10",
        )
    if not found:
        yield ok("kernel log", "no line tells of long interrupts or workers")
