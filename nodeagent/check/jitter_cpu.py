"""jitter: counters of two times: the tick, interrupts on isolated CPUs, stolen time, clocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nodeagent.check.readings import Pair, pairs_of
from nodeagent.check.record import (
    Judged,
    NotApplicable,
    Seen,
    check,
    fail,
    ok,
    saw,
    share,
    some,
    unknown,
    warn,
)
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.latency import CpuUse, CpuUses, Rates

NAMES = {
    "TLB": "TLB shootdowns",
    "CAL": "function calls from other CPUs",
    "RES": "rescheduling interrupts",
    "NMI": "non-maskable interrupts (watchdog, perf)",
    "PMI": "performance counters",
    "IWI": "irq work",
    "RTR": "APIC timer reads",
    "IPI0": "rescheduling interrupts",
    "IPI1": "function calls from other CPUs",
}
"""What the letters mean. Source: arch/x86/kernel/irq.c, arch/arm64/kernel/smp.c."""
ALARMS = {"MCE": "machine check exceptions", "THR": "corrected-error interrupts",
          "DFR": "deferred machine checks", "TRM": "thermal events", "ERR": "spurious interrupts",
          "MIS": "misrouted interrupts"}  # fmt: skip
"""Any of these is worth a look, on whatever CPU."""
FLOODS = frozenset({"TLB", "CAL", "NMI", "PMI", "IWI", "IPI1"})
"""What does not come a thousand times a second to a CPU whose work is pinned."""
TICK = ("LOC", "arch_timer")
TRACE_TICK = (
    "echo 1 > /sys/kernel/tracing/events/timer/tick_stop/enable; cat "
    "/sys/kernel/tracing/trace_pipe  # says what needs the tick"
)


def _quiet(s: Seen) -> CpuSet:
    isolation = s.snapshot.topology.isolation
    return isolation.nohz_full or s.snapshot.asked.nohz_full


@check(
    "jitter.tick",
    "the timer tick is stopped on nohz_full CPUs",
    means="WARN when the local timer fires more often than `per_s` times a second on a nohz_full "
    "CPU, by two readings of /proc/interrupts or by mpstat -I. When the input does not tell how "
    "far "
    "apart the readings are, the increase is compared with the other CPUs' instead, and no rate is "
    "claimed.",
    why="nohz_full is a wish. A CPU quota (cpu.max), a second runnable task, a POSIX CPU timer, "
    "perf "
    "or RCU callbacks re-arm the tick: 250 or 1000 interrupts a second, with their softirqs.",
    prove="grep LOC /proc/interrupts; sleep 10; grep LOC /proc/interrupts",
    mend="One runnable task for each such CPU, no cpu.max on its group, no perf, no itimers; the "
    "tracepoint timer:tick_stop names the reason.",
    source="Linux Documentation/timers/no_hz.rst; kernel/time/tick-sched.c check_tick_dependency()",
    bounds={"per_s": 10},
)
def tick(s: Seen) -> Iterator[Judged]:
    """LOC by CPU."""
    pairs, wrong = pairs_of(s, "interrupts")
    rates = s.reports(Rates)
    if not pairs and not rates and wrong is None:
        raise NotApplicable("there are no two readings of /proc/interrupts")
    cpus = _quiet(s)
    if not cpus:
        raise NotApplicable("no CPU is nohz_full")
    if wrong is not None:
        yield unknown(
            "tick",
            wrong,
            saw("input", wrong),
            remedy="cat /proc/interrupts > interrupts.t0; sleep 10; "
            "cat /proc/interrupts > interrupts.t10",
        )
        return
    for source, ticks, seconds in _ticks(pairs, rates):
        mine = {c: n for c, n in ticks.items() if c in cpus}
        if not mine:
            continue
        if seconds is None:
            other = max((n for c, n in ticks.items() if c not in cpus), default=0)
            loud = {c: n for c, n in mine.items() if n > 100 and n > other / 2}
            told = "; how far apart the readings are is not told, so no rate is claimed"
        else:
            loud = {c: n for c, n in mine.items() if n / seconds > s.bounds["per_s"]}
            told = ""
        if not loud:
            yield ok(f"cpu {cpus}", "the tick is stopped there", saw(source, "LOC"))
            continue
        first = max(loud, key=lambda c: loud[c])
        amount = (
            f"{loud[first] / seconds:.0f} times a second"
            if seconds
            else f"{loud[first]:.0f} times between the readings"
        )
        yield warn(
            f"cpu {some(sorted(loud))}",
            f"the tick runs on nohz_full CPU {first}: its local timer fired {amount}{told}; "
            "something needs the tick (a quota, a second task, perf, a POSIX timer)",
            saw(source, f"LOC on CPU {first}: +{loud[first]:.0f}"),
            remedy=TRACE_TICK,
        )


def _ticks(
    pairs: list[Pair], rates: tuple[Rates, ...]
) -> Iterator[tuple[str, dict[int, float], float | None]]:
    for pair in pairs:
        for name in pair.second.rows:
            if name in TICK or "arch_timer" in pair.second.titles.get(name, ""):
                delta = {c: float(n) for c, n in pair.delta(name).items()}
                yield pair.sources(), delta, pair.seconds
    for rate in rates:
        for name in TICK:
            if name in rate.rows:
                yield rate.source, dict(rate.rows[name]), 1.0


@check(
    "jitter.interrupts",
    "isolated CPUs are not interrupted by others",
    means="WARN when a kind of interrupt other than the tick, or a softirq, came more often than "
    "`per_s` times a second to an isolated CPU (TLB shootdowns, calls from other CPUs, NMIs, "
    "devices), by two readings or mpstat -I; where no CPU is known to be isolated, for TLB "
    "shootdowns, calls and NMIs above `flood_per_s` on any; and for machine checks and thermal "
    "interrupts on any "
    "CPU. Without the time between the readings: when it came at all more than `times` times.",
    why="Each takes 1 to 20 us. TLB shootdowns come from threads of the same process on other CPUs "
    "that unmap memory: isolation cannot help there, only placement or the allocator.",
    prove="cat /proc/interrupts; sleep 10; cat /proc/interrupts; mpstat -I SCPU,CPU 10 1",
    mend="TLB: no munmap or mprotect in threads of that process (huge pages, mimalloc or "
    "MALLOC_TRIM_THRESHOLD_). CAL: find the sender (ipi:ipi_send_cpumask). NMI: "
    "kernel.nmi_watchdog=0. Devices: smp_affinity_list.",
    source="Linux Documentation/admin-guide/kernel-per-CPU-kthreads.rst; arch/x86/kernel/irq.c",
    bounds={"per_s": 10, "times": 100, "flood_per_s": 1000},
)
def interrupts(s: Seen) -> Iterator[Judged]:
    """Rows but the tick."""
    judged = bad = 0
    for kind in ("interrupts", "softirqs"):
        pairs, _ = pairs_of(s, kind)
        for pair in pairs:
            judged += 1
            found = list(_loud(s, pair))
            bad += len(found)
            yield from found
    for rate in s.reports(Rates):
        judged += 1
        for name, row in rate.rows.items():
            loud = {c: n for c, n in row.items() if c in s.isolated and n > s.bounds["per_s"]}
            if loud and name not in TICK:
                bad += 1
                first = max(loud, key=lambda c: loud[c])
                yield _told(name, NAMES.get(name, ""), loud, f"{loud[first]:.0f} a second",
                            rate.source)  # fmt: skip
    if not judged:
        raise NotApplicable("there are no two readings of interrupts")
    if not bad:
        yield ok("interrupts", "nothing but the tick interrupts the CPUs that matter")


def _loud(s: Seen, pair: Pair) -> Iterator[Judged]:
    for name in pair.second.rows:
        delta = pair.delta(name)
        if name in ALARMS:
            hit = {c: float(n) for c, n in delta.items() if n}
            if hit:
                first = max(hit, key=lambda c: hit[c])
                yield warn(
                    f"cpu {some(sorted(hit))}",
                    f"{ALARMS[name]}: {hit[first]:.0f} on CPU {first} between the readings",
                    saw(pair.sources(), f"{name} on CPU {first}: +{hit[first]:.0f}"),
                    remedy="dmesg | grep -iE 'mce|hardware error|temperature'",
                )
            continue
        if name in TICK or name == "MCP" or "arch_timer" in pair.second.titles.get(name, ""):
            continue
        limit = s.bounds["per_s"] * pair.seconds if pair.seconds else s.bounds["times"]
        if not s.isolated:
            # Nobody said which CPUs matter: only a flood is told, and only with a rate.
            if not pair.seconds or name not in FLOODS:
                continue
            limit = s.bounds["flood_per_s"] * pair.seconds
        loud = {
            c: float(n)
            for c, n in delta.items()
            if (c in s.isolated or not s.isolated) and n > limit
        }
        if loud:
            first = max(loud, key=lambda c: loud[c])
            rate = (
                f"{loud[first] / pair.seconds:.0f} a second"
                if pair.seconds
                else f"{loud[first]:.0f} between the readings (no time is told)"
            )
            title = NAMES.get(name, pair.second.titles.get(name, ""))
            kind = "softirq " if pair.second.kind == "softirqs" else ""
            mark = "isolated " if s.isolated else ""
            yield _told(f"{kind}{name}", title, loud, rate, pair.sources(), mark)


def _told(
    name: str, title: str, loud: dict[int, float], rate: str, source: str, kind: str = "isolated "
) -> Judged:
    first = max(loud, key=lambda c: loud[c])
    remedies = {
        "TLB": "threads of the process on these CPUs unmap memory elsewhere: bpftrace -e "
        "'tracepoint:tlb:tlb_flush { @[comm] = count(); }' names them",
        "CAL": "trace-cmd record -e ipi:ipi_send_cpumask  names the sender",
        "NMI": "sysctl -w kernel.nmi_watchdog=0; stop perf",
    }
    default = (
        f"echo HOUSEKEEPING_CPUS > /proc/irq/{name}/smp_affinity_list"
        if name.isdigit()
        else "trace-cmd record -e irq,irq_vectors,ipi on these CPUs names who sends them"
    )
    return warn(
        f"cpu {some(sorted(loud))}",
        f"{name}{f' ({title})' if title else ''}: {rate} on {kind}CPU {first}",
        saw(source, f"{name} on CPU {first}: +{loud[first]:.0f}"),
        remedy=remedies.get(name, default),
    )


@check(
    "jitter.steal",
    "the hypervisor does not take CPU time",
    means="WARN when more than `warn_percent` % of a CPU's time was stolen, FAIL above "
    "`fail_percent`.",
    why="Stolen time is time in which the virtual CPU was ready and the host ran somebody else. "
    "Nothing in the guest changes it.",
    prove="mpstat -P ALL 10 1; vmstat 1 10",
    mend="Dedicated or pinned vCPUs from the host's owner, a larger instance, or bare metal.",
    source="Linux Documentation/filesystems/proc.rst, /proc/stat steal",
    bounds={"warn_percent": 1, "fail_percent": 10},
)
def steal(s: Seen) -> Iterator[Judged]:
    """mpstat, vmstat, and two readings of /proc/stat."""
    found: list[tuple[str, int | None, float]] = [
        (r.source, u.cpu, u.steal_percent)
        for r in s.reports(CpuUses)
        for u in r.rows
        if u.steal_percent is not None
    ]
    pairs, _ = pairs_of(s, "stat")
    for pair in pairs:
        deltas = {
            name: pair.delta(name) for name in pair.second.rows if not name.startswith("guest")
        }
        for number, stolen in deltas.get("steal", {}).items():
            whole = sum(row.get(number, 0) for row in deltas.values())
            found.append((pair.sources(), number, share(stolen, whole)))
    if not found:
        raise NotApplicable("stolen time was not measured")
    source, cpu, worst = max(found, key=lambda f: f[2])
    who = "all CPUs together" if cpu is None else f"CPU {cpu}"
    if worst <= s.bounds["warn_percent"]:
        yield ok("steal", f"at most {worst:g} % is stolen", saw(source, f"steal {worst:g} %"))
        return
    yield (fail if worst > s.bounds["fail_percent"] else warn)(
        "hypervisor",
        f"{worst:.1f} % of {who} is stolen by the hypervisor",
        saw(source, f"{who}: steal {worst:.1f} %"),
        remedy="mpstat -P ALL 10  # proof for the host's owner, who must give dedicated "
        "vCPUs: nothing in the guest changes this",
    )


@check(
    "jitter.clock",
    "busy CPUs run at speed and isolated ones stay awake",
    means="By turbostat: WARN when a CPU that is at least half busy runs below `speed_percent` % "
    "of "
    "its base clock (TSC), when thermal throttling was counted, or when an isolated CPU (every "
    "CPU, "
    "when none is known to be isolated) spends more than `deep_percent` % in C6 or deeper. By "
    "mpstat: WARN when softirqs take more than `soft_percent` % of an isolated CPU, or half of "
    "any.",
    why="A slowed core makes every message late; the way out of C6 takes 50 to 200 us.",
    prove="turbostat --interval 10; mpstat -P ALL 10 1",
    mend="cpupower frequency-set -g performance; cpupower -c CPUS idle-set -D 10; look at power "
    "limits, fans and the firmware's power profile.",
    source="turbostat(8); Linux Documentation/admin-guide/pm/cpuidle.rst",
    bounds={"speed_percent": 80, "deep_percent": 5, "soft_percent": 5},
)
def clock(s: Seen) -> Iterator[Judged]:
    """Rows of turbostat and mpstat."""
    uses = [r for r in s.reports(CpuUses) if r.tool in ("turbostat", "mpstat")]
    if not uses:
        raise NotApplicable("nobody measured how CPUs spend their time")
    bad = False
    for report in uses:
        rows = [u for u in report.rows if u.cpu is not None] or list(report.rows)
        mine = [u for u in rows if not s.isolated or _in(u, s.isolated)]
        slow = [
            u
            for u in rows
            if (u.busy_percent or 0) >= 50
            and u.busy_mhz is not None
            and u.tsc_mhz
            and u.busy_mhz < u.tsc_mhz * s.bounds["speed_percent"] / 100
        ]
        hot = [u for u in rows if u.throttled]
        deep = [u for u in mine if (u.deep_percent or 0) > s.bounds["deep_percent"]]
        soft = [
            u
            for u in rows
            if (u.soft_percent or 0) > 50
            or (_in(u, s.isolated) and (u.soft_percent or 0) > s.bounds["soft_percent"])
        ]
        groups: tuple[tuple[list[CpuUse], str, Callable[[CpuUse], str], str], ...] = (
            (
                slow,
                "runs slowly while busy",
                lambda u: f"{u.busy_mhz:g} MHz of {u.tsc_mhz:g} at {u.busy_percent:g} % busy",
                "cpupower frequency-set -g performance; turbostat --show PkgWatt,PkgTmp  # power "
                "or heat limit?",
            ),
            (
                hot,
                "was throttled for heat",
                lambda u: f"{u.throttled} events",
                "look at fans, paste and inlet air; dmesg | grep -i temperature",
            ),
            (
                deep,
                "sleeps in C6 or deeper",
                lambda u: f"{u.deep_percent:g} % of the time",
                "cpupower -c {cpus} idle-set -D 10, or hold /dev/cpu_dma_latency open with 0",
            ),
            (
                soft,
                "is taken by softirqs",
                lambda u: f"{u.soft_percent:g} % of the time",
                "spread or move the NIC's queues: /proc/irq/N/smp_affinity_list, ethtool -L",
            ),
        )
        for group, text, value, remedy in groups:
            if group:
                bad = True
                cpus = [u.cpu for u in group if u.cpu is not None]
                first = group[0]
                yield warn(
                    f"cpu {some(cpus)}" if cpus else report.tool,
                    f"CPU {some(cpus) if cpus else '(all)'} {text}: {value(first)}",
                    saw(report.source, value(first)),
                    remedy=remedy.replace("{cpus}", str(CpuSet.of(cpus)) if cpus else "all"),
                )
    if not bad:
        yield ok("cpu", "busy CPUs run at speed, none is throttled or deeply asleep")


def _in(use: CpuUse, cpus: CpuSet) -> bool:
    return use.cpu is not None and use.cpu in cpus
