"""jitter: what a measurement of latency says, and whom it names.

Default bounds follow what a tuned CPU reaches: isolated CPUs of a PREEMPT or PREEMPT_RT kernel
stay below 50 us (OSADL's latency plots, rtla's own examples); elsewhere a stall of 1 ms is seen by
a user.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check.record import (
    Judged,
    NotApplicable,
    Seen,
    check,
    fail,
    ok,
    saw,
    some,
    unknown,
    warn,
)
from nodeagent.check.tasks import described, is_idle, remedy
from nodeagent.model.latency import Analysis, CpuUses, Held, Latencies, LatencyRow, Noise, NoiseRow

BOUNDS = {"isolated_us": 50, "other_us": 1000, "fail_us": 1000}
IDLE = ("mwait", "intel_idle", "acpi_idle", "cpuidle", "poll_idle", "acpi_safe_halt",
        "default_idle", "cpu_idle", "do_idle", "amd_e400_idle", "psci_")  # fmt: skip
IDLE_REMEDY = (
    "cpupower -c CPUS idle-set -D 2  # no state that takes longer than 2 us to leave; or hold "
    "/dev/cpu_dma_latency open with 0 in the latency-critical process"
)


def bound_us(s: Seen, cpu: int | None) -> float:
    """How late a CPU may be: strict for isolated ones, and where nobody said which are isolated (a
    latency test is run on the CPUs that matter)."""
    if s.isolated and cpu is not None and cpu not in s.isolated:
        return s.bounds["other_us"]
    return s.bounds["isolated_us"]


def where(cpu: int | None) -> str:
    """A subject."""
    return "cpu" if cpu is None else f"cpu {cpu}"


@check(
    "jitter.latency",
    "measured wake-up latency stays below the bound",
    means="WARN when a CPU's worst latency is above `isolated_us` (isolated CPUs, and all CPUs "
    "when "
    "the input does not say which are isolated) or `other_us` (the others); FAIL from `fail_us` on "
    "an isolated CPU. The worst value counts, not the average: one late wake-up is one late "
    "message.",
    why="Averages hide the tail: a run with 3 us on average and one of 800 us has lost a deadline.",
    prove="cyclictest -m -p 95 -i 200 -h 400 -D 10m -a CPUS -t; rtla timerlat top -c CPUS -d 10m",
    mend="rtla timerlat top -c CPU -a 50 stops at the first late wake-up and names what was in the "
    "way.",
    source="Linux Documentation/tools/rtla/rtla-timerlat.rst; rt-tests cyclictest(8); OSADL "
    "latency plots",
    bounds=BOUNDS,
)
def latency(s: Seen) -> Iterator[Judged]:
    """Each measurement: worst row by CPU."""
    reports = [r for r in s.reports(Latencies) if not r.hardware]
    if not reports:
        raise NotApplicable("no latency was measured")
    for report in reports:
        late = [r for r in report.rows if r.max_us > bound_us(s, r.cpu)]
        cut = [r for r in report.rows if r.overflows and r not in late]
        if late:
            yield _late(s, report, late)
        if cut:
            yield warn(
                f"cpu {some(r.cpu for r in cut if r.cpu is not None)}",
                f"{report.tool}: {sum(r.overflows for r in cut)} samples lie beyond the histogram: "
                "how late they were is not printed",
                saw(report.source, f"overflows: {cut[0].overflows}"),
                remedy="cyclictest -m -p 95 -i 200 -h 2000 -D 10m -a CPUS -t  # a longer histogram",
            )
        if not late and not cut:
            worst = max(report.rows, key=lambda r: r.max_us)
            yield ok(
                report.tool,
                f"{report.tool}: at worst {worst.max_us:g} us"
                + (f" on CPU {worst.cpu}" if worst.cpu is not None else ""),
                saw(report.source, f"max {worst.max_us:g} us"),
            )


def _where(row: LatencyRow) -> str:
    return "all CPUs" if row.cpu is None else f"CPU {row.cpu}"


def _late(s: Seen, report: Latencies, late: list[LatencyRow]) -> Judged:
    worst = max(late, key=lambda r: r.max_us)
    cpus = sorted({r.cpu for r in late if r.cpu is not None})
    limit = bound_us(s, worst.cpu)
    average = f", on average {worst.avg_us:g} us" if worst.avg_us is not None else ""
    message = (
        f"{report.tool}: {worst.what or 'wake-up'} latency up to {worst.max_us:g} us"
        + (f" on CPU {worst.cpu}" if worst.cpu is not None else "")
        + f"{average}; bound {limit:g} us"
    )
    rows = {r.what: r for r in report.rows if r.cpu == worst.cpu}
    if "IRQ" in rows and worst.what in ("thread", "user"):
        share = rows["IRQ"].max_us / worst.max_us
        message += (
            ": the timer interrupt itself came that late (interrupts off, idle exit or hardware)"
            if share > 0.6
            else ": the interrupt came in time, the thread then waited for the CPU"
        )
    evidence = saw(report.source, f"{_where(worst)}: max {worst.max_us:g} us")
    subject = f"cpu {some(cpus)}" if cpus else report.tool
    task = "rtla timerlat top -c CPUS -a 50  # stops at the first late wake-up and names the cause"
    severe = worst.max_us >= s.bounds["fail_us"] and limit == s.bounds["isolated_us"]
    judged = fail if severe else warn
    return judged(subject, message, evidence, remedy=task)


@check(
    "jitter.blocking",
    "an analysed late wake-up has a cause that can be named",
    means="WARN for each late wake-up that rtla analysed, with what took the time: the way out "
    "of an "
    "idle state (the blocking thread is swapper: that is no task), a task with the CPU, an "
    "interrupt, a softirq, or interrupts switched off. FAIL from `fail_us`.",
    why="The name in the trace is often the messenger: swapper is the idle task, a kworker runs "
    "for "
    "somebody else, and time before the interrupt handler belongs to hardware or to code with "
    "interrupts off.",
    prove="rtla timerlat top -c CPU -a 50",
    mend="By cause: see each finding's remedy.",
    source="Linux Documentation/tools/rtla/common_timerlat_aa.rst",
    bounds=BOUNDS,
)
def blocking(s: Seen) -> Iterator[Judged]:
    """Each auto-analysis: the largest holder."""
    reports = s.reports(Analysis)
    if not reports:
        raise NotApplicable("no late wake-up was analysed")
    for a in reports:
        if not (a.held or a.irq_us or a.irq_delay_us or a.thread_us):
            yield unknown(
                f"cpu {a.cpu}",
                f"the analysis of CPU {a.cpu} tells no latency and nobody who held it",
                saw(a.source, "no latency is told"),
                remedy=f"paste the whole output: rtla timerlat top -c {a.cpu} -a 50",
            )
            continue
        message, mend = _cause(a)
        total = a.thread_us or a.irq_us or sum(h.us for h in a.held)
        severe = total >= s.bounds["fail_us"]
        first = max(a.held, key=lambda h: h.us, default=None)
        shown = _shown(a, first)
        yield (fail if severe else warn)(
            f"cpu {a.cpu}",
            f"CPU {a.cpu} woke its thread {total:g} us late: {message}",
            saw(a.source, shown),
            *([saw(a.source, f"stack: {' < '.join(a.stack[:4])}")] if a.stack else []),
            remedy=mend.replace("CPUS", str(a.cpu)),
        )


def _shown(a: Analysis, first: Held | None) -> str:
    """The largest figure of an analysis, with its name."""
    if first is not None:
        return f"{first.name} {first.us:g} us"
    if a.irq_delay_us:
        return f"IRQ handler delay {a.irq_delay_us:g} us"
    return f"IRQ latency {a.irq_us:g} us" if a.irq_us else f"thread latency {a.thread_us:g} us"


def _cause(a: Analysis) -> tuple[str, str]:
    """What held the thread, and what helps."""
    sums: dict[str, float] = {}
    for h in a.held:
        sums[h.kind] = sums.get(h.kind, 0.0) + h.us
    delay = a.irq_delay_us or 0.0
    tasks = [h for h in a.held if h.kind in ("blocking", "thread")]
    top = max(tasks, key=lambda h: h.us, default=None)
    idle_frame = any(f.lstrip("_").startswith(IDLE) for f in a.stack)
    idle_task = top is not None and is_idle(top.name.rpartition(":")[0] or top.name)
    others = max((v for k, v in sums.items() if k not in ("blocking", "thread")), default=0.0)
    if (idle_task or (a.from_idle and delay >= (top.us if top else 0.0))) and others <= max(
        delay, top.us if top else 0.0
    ):
        frame = next((f for f in a.stack if f.lstrip("_").startswith(IDLE)), "")
        return (
            "the blocking thread is the idle task, so this is the way out of a deep idle state "
            f"(C-state){f', in {frame}' if frame and idle_frame else ''}; no task is to blame",
            IDLE_REMEDY,
        )
    kinds = {**sums, "delay": delay}
    kind = max(kinds, key=lambda k: kinds[k], default="delay")
    if kind in ("blocking", "thread") and top is not None:
        name = top.name.rpartition(":")[0] or top.name
        frame = f", in {a.stack[0]}" if a.stack else ""
        what = "ran with the CPU" if kind == "blocking" else "came in between"
        return f"{described(name)} {what} for {top.us:g} us{frame}", remedy(name, a.cpu)
    if kind == "irq":
        first = max((h for h in a.held if h.kind == "irq"), key=lambda h: h.us)
        return (
            f"interrupts took {sums[kind]:g} us, most of it {first.name}",
            "move that interrupt: echo HOUSEKEEPING_CPUS > /proc/irq/N/smp_affinity_list",
        )
    if kind == "softirq":
        first = max((h for h in a.held if h.kind == "softirq"), key=lambda h: h.us)
        return (
            f"softirqs took {sums[kind]:g} us, most of it {first.name}",
            "move the interrupts that raise it (NIC queues, timers) off this CPU",
        )
    if kind == "nmi":
        return f"NMIs took {sums[kind]:g} us", "sysctl -w kernel.nmi_watchdog=0; stop perf"
    frame = f" (in {a.stack[0]})" if a.stack else ""
    return (
        f"the timer interrupt itself came {delay:g} us late{frame}: interrupts were off, or the "
        "hardware stood still",
        "rtla osnoise top -c CPUS  # HW column: hardware; trace-cmd with irqsoff names who has "
        "interrupts off",
    )


@check(
    "jitter.noise",
    "the operating system leaves isolated CPUs alone",
    means="WARN when osnoise saw one interruption longer than `isolated_us` (`other_us` on CPUs "
    "that are known not to be isolated), less than `available_percent` % of the time left on a CPU "
    "that is isolated or not said not to be, and says so when most "
    "of it is hardware noise: time that nothing in the kernel accounts for. FAIL from `fail_us` "
    "in one piece.",
    why="Hardware noise is a system management interrupt or the hypervisor: no setting of Linux "
    "helps. About 100, 250 or 1000 interrupts a second are the timer tick.",
    prove="rtla osnoise top -c CPUS -d 1m",
    mend="HW: firmware settings (power capping, USB legacy, memory scrub), another BIOS, or bare "
    "metal. IRQ: the tick (nohz_full) and device interrupts. Thread: isolcpus, workqueue cpumask.",
    source="Linux Documentation/trace/osnoise-tracer.rst; tools/rtla/rtla-osnoise-top.rst",
    bounds={**BOUNDS, "available_percent": 99.9},
)
def noise(s: Seen) -> Iterator[Judged]:
    """Rows of osnoise."""
    reports = s.reports(Noise)
    if not reports:
        raise NotApplicable("no osnoise was measured")
    for report in reports:
        bad = [r for r in report.rows if _noisy(s, r)]
        hardware = [r for r in bad if r.hardware > max(r.nmi, r.irq, r.softirq, r.thread)]
        if hardware:
            worst = max(hardware, key=lambda r: r.hardware)
            yield warn(
                f"cpu {some(r.cpu for r in hardware)}",
                f"hardware noise: {worst.hardware} times on CPU {worst.cpu}, up to "
                f"{worst.max_single_us:g} us; firmware (SMI) or a hypervisor took the CPU",
                saw(report.source, f"CPU {worst.cpu}: HW {worst.hardware}"),
                remedy="turbostat --show CPU,SMI --interval 10  # SMI counts up: firmware; else "
                "ask "
                "the hypervisor's owner",
            )
        if bad:
            worst = max(bad, key=lambda r: r.max_single_us)
            severe = worst.max_single_us >= s.bounds["fail_us"]
            yield (fail if severe else warn)(
                f"cpu {some(r.cpu for r in bad)}",
                f"noise on CPU {worst.cpu}: {worst.available_percent:g} % of the time is left, one "
                f"interruption took {worst.max_single_us:g} us; {_who(worst)}",
                saw(report.source, f"CPU {worst.cpu}: {worst.available_percent:g} %, max single "
                    f"{worst.max_single_us:g} us"),
                remedy="rtla osnoise top -c CPUS -s 50 -t  # trace of the first one above 50 us",
            )  # fmt: skip
        if not bad:
            yield ok("osnoise", f"{len(report.rows)} CPUs are quiet")


def _noisy(s: Seen, r: NoiseRow) -> bool:
    strict = not s.isolated or r.cpu in s.isolated
    little = strict and r.available_percent < s.bounds["available_percent"]
    return little or r.max_single_us > bound_us(s, r.cpu)


def _who(r: NoiseRow) -> str:
    """The column with most interruptions, and whether they are the tick."""
    columns = {"hardware": r.hardware, "NMI": r.nmi, "IRQ": r.irq, "softirq": r.softirq,
               "thread": r.thread}  # fmt: skip
    name = max(columns, key=lambda k: columns[k])
    rate = columns[name] * 1e6 / r.runtime_us if r.runtime_us else 0.0
    text = f"most often {name} ({columns[name]} times"
    text += f", {rate:.0f} a second)" if rate >= 1 else ")"
    if name == "IRQ" and any(abs(rate - hz) < 0.1 * hz for hz in (100, 250, 300, 1000)):
        text += ": that is the timer tick, which was not stopped"
    return text


@check(
    "jitter.hardware",
    "firmware and hypervisor do not take the CPUs",
    means="WARN when hwlatdetect or the hwlat tracer found gaps, or a tool counted system "
    "management "
    "interrupts; FAIL when a gap was `fail_us` long or longer.",
    why="In an SMI every CPU stands still while firmware runs; the operating system cannot see, "
    "mask or move it. The only trace is lost time on all CPUs at once.",
    prove="hwlatdetect --duration=60 --threshold=10; turbostat --show CPU,SMI --interval 10",
    mend="Firmware settings: low-latency or maximum-performance profile, no power capping, no "
    "correctable-error logging by SMI, no legacy USB; else a newer BIOS. In a guest: dedicated "
    "CPUs.",
    source="Linux Documentation/trace/hwlat_detector.rst; rt-tests hwlatdetect(8); turbostat(8) "
    "SMI",
    bounds={"fail_us": 1000},
)
def hardware(s: Seen) -> Iterator[Judged]:
    """Gaps and SMI counts."""
    gaps = [r for r in s.reports(Latencies) if r.hardware]
    counted = [r for r in s.reports(Latencies) if not r.hardware and r.smi is not None]
    uses = [r for r in s.reports(CpuUses) if any(u.smi is not None for u in r.rows)]
    if not gaps and not counted and not uses:
        raise NotApplicable("nobody looked for firmware's interrupts")
    mend = (
        "set the firmware's low-latency profile, switch off power capping and SMI error logging; "
        "then hwlatdetect --duration=60"
    )
    for report in gaps:
        worst = max(report.rows, key=lambda r: r.max_us)
        if worst.max_us <= 0:
            yield ok(report.tool, "no gap above the tool's threshold", saw(report.source, "none"))
            continue
        yield (fail if worst.max_us >= s.bounds["fail_us"] else warn)(
            where(worst.cpu),
            f"{report.tool}: the hardware stood still for up to {worst.max_us:g} us"
            + (f", {worst.samples} times" if worst.samples else "")
            + ": firmware (SMI) or a hypervisor, not the kernel",
            saw(report.source, f"max {worst.max_us:g} us"),
            remedy=mend,
        )
    smis = [(r.source, r.smi or 0) for r in counted]
    smis += [(r.source, max(u.smi or 0 for u in r.rows)) for r in uses]
    seen = [(source, n) for source, n in smis if n]
    if seen:
        source, number = max(seen, key=lambda x: x[1])
        yield warn(
            "firmware",
            f"{number} system management interrupts came while it was measured: each stops the CPU "
            "for 10 us to some ms",
            saw(source, f"SMI {number}"),
            remedy=mend,
        )
    elif smis:
        yield ok("firmware", "no system management interrupt came", saw(smis[0][0], "SMI 0"))
