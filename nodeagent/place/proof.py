"""`place prove`: two readings of the counters, and what disturbed the CPUs between them. Pure.

Source: Documentation/filesystems/proc.rst (interrupts, softirqs), Documentation/timers/no_hz.rst
(a CPU in nohz_full ticks while more than one thread wants it),
Documentation/scheduler/sched-stats.rst.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.finding import Verdict
from nodeagent.model.proof import Counters, CpuProof, Culprit, Owned, Proof, TaskRun, ThreadProof

TICK = "LOC"
"""Row of /proc/interrupts: the local timer. arm64 has numbered lines named arch_timer."""
TICK_TITLE = "arch_timer"

IPIS = frozenset(
    {"RES", "CAL", "TLB", "IWI", "IPI0", "IPI1", "IPI2", "IPI3", "IPI4", "IPI5", "IPI6"}
)
"""One CPU's word to another: wake-ups, function calls, flushes."""

WITH_TICK = frozenset({"TIMER", "SCHED", "RCU", "HRTIMER"})
"""Softirqs that the tick brings along."""

MAX_TICK_HZ = 2.0
"""On a tickless CPU; one a second is the kernel's own."""
IRQ_FAIL_HZ = 10.0
IPI_WARN_HZ = 100.0
SOFT_FAIL_HZ = 10.0
STRANGER_WARN = 0.001
"""Share of the time: 10 ms in 10 s."""
STRANGER_FAIL = 0.01
GONE_WARN = 0.05
"""Share of the time that no thread of the last reading accounts for; the kernel may sample it."""
MAX_CULPRITS = 8
"""Of one CPU; the rest is counted."""

WRAP = 1 << 32
"""The kernel counts interrupts of a CPU in 32 bits."""

_HEAD = re.compile(r"CPU(\d+)")
_ORDER = (Verdict.OK, Verdict.INFO, Verdict.UNKNOWN, Verdict.WARN, Verdict.FAIL)


def rows_of(text: str) -> tuple[dict[str, dict[int, int]], dict[str, str]]:
    """A table of /proc/interrupts or /proc/softirqs: name -> CPU -> count; name -> the line's end.
    Rows that count for no CPU (ERR, MIS) are left out."""
    lines = text.splitlines()
    cpus = [int(n) for n in _HEAD.findall(lines[0])] if lines else []
    rows: dict[str, dict[int, int]] = {}
    titles: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, rest = line.partition(":")
        words = rest.split()
        counts = words[: len(cpus)]
        if not colon or len(counts) < len(cpus) or not all(w.isdecimal() for w in counts):
            continue
        rows[name.strip()] = dict(zip(cpus, map(int, counts), strict=True))
        titles[name.strip()] = " ".join(words[len(cpus) :])
    return rows, titles


def grown(before: int, after: int) -> int:
    """How far a counter came: over its end, or from the start where it began anew."""
    if after >= before:
        return after - before
    return after + WRAP - before if before >= WRAP // 2 and after < WRAP // 2 else after


def prove(
    first: Counters,
    last: Counters,
    cpus: CpuSet,
    owned: Sequence[Owned],
    tickless: CpuSet,
    met: Mapping[int, Sequence[int]],
    own_pid: int = 0,
) -> Proof:
    """Judges each CPU of `cpus` and each thread of the workloads.

    met: thread -> the CPUs it was met on, one for each look between the readings. `own_pid`: the
    process that looked, which is named like any other.
    """
    seconds = max((last.at_ns - first.at_ns) / 1e9, 1e-9)
    ran = dict(_ran(first, last))
    owner = {cpu: o.workload for o in owned for cpu in o.cpus}
    pids = {pid: o.workload for o in owned for pid in o.pids}
    by_cpu: dict[int, list[tuple[int, TaskRun, int]]] = {}
    for tid, ns in ran.items():
        task = last.tasks[tid]
        by_cpu.setdefault(task.cpu, []).append((tid, task, ns))
    gone = _gone(first, last, cpus, owned, by_cpu, seconds)
    proofs = tuple(
        _cpu(
            cpu,
            first,
            last,
            seconds,
            owner.get(cpu, ""),
            cpu in tickless,
            by_cpu.get(cpu, ()),
            pids,
            gone.get(cpu),
        )
        for cpu in sorted(cpus)
    )
    threads = tuple(_threads(owned, last, ran, met))
    unread = tuple(dict.fromkeys((*first.unread, *last.unread)))
    verdicts = [p.verdict for p in proofs] + [t.verdict for t in threads]
    if unread or not verdicts:
        verdicts.append(Verdict.UNKNOWN)
    return Proof(
        seconds=seconds,
        verdict=_worst(verdicts),
        cpus=proofs,
        threads=threads,
        unread=unread,
    )


def _worst(verdicts: Iterable[Verdict]) -> Verdict:
    found = max((v for v in verdicts), key=_ORDER.index, default=Verdict.OK)
    return Verdict.OK if found is Verdict.INFO else found


def _ran(first: Counters, last: Counters) -> Iterator[tuple[int, int]]:
    """Threads that ran between the readings, and for how long; those born meanwhile too."""
    for tid, task in last.tasks.items():
        old = first.tasks.get(tid)
        before = old.run_ns if old is not None and old.start_time == task.start_time else 0
        if task.run_ns > before:
            yield tid, task.run_ns - before


def _gone(
    first: Counters,
    last: Counters,
    cpus: CpuSet,
    owned: Sequence[Owned],
    by_cpu: Mapping[int, Sequence[tuple[int, TaskRun, int]]],
    seconds: float,
) -> dict[int, Culprit]:
    """CPU -> what ran there and is not found there any more: it has ended, or moved away. Of CPUs
    that one workload has together, the one where most is missing: its threads may move there."""
    found: dict[int, Culprit] = {}
    groups = [o.cpus & cpus for o in owned]
    alone = cpus - CpuSet.of(cpu for group in groups for cpu in group)
    for group in (*groups, *(CpuSet.of([cpu]) for cpu in alone)):
        missing = {
            cpu: last.busy_ns[cpu]
            - first.busy_ns[cpu]
            - sum(ns for _, _, ns in by_cpu.get(cpu, ()))
            for cpu in group
            if cpu in first.busy_ns and cpu in last.busy_ns
        }
        missing_ns = sum(missing.values())
        if missing_ns > GONE_WARN * seconds * 1e9:
            found[max(missing, key=lambda cpu: missing[cpu])] = Culprit(
                what="threads that have ended or moved away",
                kind="gone",
                run_ns=missing_ns,
                exact=False,
                verdict=Verdict.WARN,
            )
    return found


def _cpu(
    cpu: int,
    first: Counters,
    last: Counters,
    seconds: float,
    owner: str,
    tickless: bool,
    tasks: Sequence[tuple[int, TaskRun, int]],
    pids: Mapping[int, str],
    gone: Culprit | None,
) -> CpuProof:
    if cpu not in first.online or cpu not in last.online:
        return CpuProof(
            cpu=cpu, owner=owner, tickless=tickless, ticks=None, own_ns=0,
            verdict=Verdict.UNKNOWN,
            reason=f"CPU {cpu} is not online: it is off, or there is none of that number",
        )  # fmt: skip
    own_ns = sum(ns for _, task, ns in tasks if owner and pids.get(task.pid) == owner)
    found = [*_interrupts(cpu, first, last, seconds, tickless)]
    found += _softirqs(cpu, first, last, seconds, tickless)
    found += [
        _stranger(task, tid, ns, cpu, seconds)
        for tid, task, ns in tasks
        if not (owner and pids.get(task.pid) == owner)
    ]
    if gone is not None:
        found.append(gone)
    found.sort(key=lambda c: (-_ORDER.index(c.verdict), -(c.run_ns or 0), -(c.count or 0), c.what))
    ticks = _ticks(cpu, first, last)
    verdict = _worst(c.verdict for c in found)
    reason = _reason(found)
    if ticks is None and verdict is Verdict.OK:
        verdict, reason = Verdict.UNKNOWN, "/proc/interrupts has no row of the tick for this CPU"
    return CpuProof(
        cpu=cpu,
        owner=owner,
        tickless=tickless,
        ticks=ticks,
        own_ns=own_ns,
        culprits=tuple(found[:MAX_CULPRITS]),
        more=max(0, len(found) - MAX_CULPRITS),
        verdict=verdict,
        reason=reason,
    )


def _reason(found: Sequence[Culprit]) -> str:
    if not found or found[0].verdict in (Verdict.INFO, Verdict.OK):
        return ""
    return words_of(found[0])


def words_of(culprit: Culprit) -> str:
    """`IRQ 86 nvme1q3 12 times`, `kworker/3:1 (pid 40) ran 40 ms`."""
    if culprit.run_ns is not None:
        upto = "about " if culprit.kind == "gone" else "" if culprit.exact else "up to "
        return f"{culprit.what} ran {upto}{_ms(culprit.run_ns)}"
    times = "once" if culprit.count == 1 else f"{culprit.count} times"
    return f"{culprit.what} {times}"


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.1f} ms" if ns < 10_000_000 else f"{ns // 1_000_000} ms"


def _is_tick(name: str, title: str) -> bool:
    return name == TICK or TICK_TITLE in title


def _grown(
    cpu: int, first: Mapping[str, Mapping[int, int]], last: Mapping[str, Mapping[int, int]]
) -> Iterator[tuple[str, int]]:
    for name, counts in last.items():
        if cpu in counts:
            yield name, grown(first.get(name, {}).get(cpu, 0), counts[cpu])


def _ticks(cpu: int, first: Counters, last: Counters) -> int | None:
    rows = [
        count
        for name, count in _grown(cpu, first.interrupts, last.interrupts)
        if _is_tick(name, last.titles.get(name, ""))
    ]
    return sum(rows) if rows else None


def _interrupts(
    cpu: int, first: Counters, last: Counters, seconds: float, tickless: bool
) -> Iterator[Culprit]:
    for name, count in _grown(cpu, first.interrupts, last.interrupts):
        title = last.titles.get(name, "")
        rate = count / seconds
        named = f"{name} ({title.lower()})" if title else name
        if not count:
            continue
        if _is_tick(name, title):
            over = tickless and rate > MAX_TICK_HZ
            yield Culprit(what="the tick", kind="tick", count=count,
                          verdict=Verdict.WARN if over else Verdict.INFO)  # fmt: skip
        elif name.isdecimal():
            yield Culprit(
                what=f"IRQ {name} {title.split()[-1] if title else ''}".rstrip(),
                kind="irq",
                count=count,
                verdict=Verdict.FAIL if rate >= IRQ_FAIL_HZ else Verdict.WARN,
            )
        elif name in IPIS:
            verdict = Verdict.WARN if rate >= IPI_WARN_HZ else Verdict.INFO
            yield Culprit(what=named, kind="ipi", count=count, verdict=verdict)
        else:
            yield Culprit(what=named, kind="irq", count=count)


def _softirqs(
    cpu: int, first: Counters, last: Counters, seconds: float, tickless: bool
) -> Iterator[Culprit]:
    for name, count in _grown(cpu, first.softirqs, last.softirqs):
        rate = count / seconds
        if not count:
            continue
        if name in WITH_TICK:
            over = tickless and rate > MAX_TICK_HZ
            verdict = Verdict.WARN if over else Verdict.INFO
        else:
            verdict = Verdict.FAIL if rate >= SOFT_FAIL_HZ else Verdict.WARN
        yield Culprit(what=f"softirq {name}", kind="softirq", count=count, verdict=verdict)


def _stranger(task: TaskRun, tid: int, ns: int, cpu: int, seconds: float) -> Culprit:
    share = ns / (seconds * 1e9)
    # One that may run nowhere else was here all the time.
    exact = task.allowed is not None and task.allowed == CpuSet.of([cpu])
    verdict = Verdict.INFO
    if share >= STRANGER_FAIL:
        verdict = Verdict.FAIL
    elif share >= STRANGER_WARN:
        verdict = Verdict.WARN
    thread = "" if tid == task.pid else f", thread {tid}"
    return Culprit(
        what=f"{task.comm} (pid {task.pid}{thread})",
        kind="kernel-thread" if task.kernel else "process",
        run_ns=ns,
        exact=exact,
        verdict=verdict,
    )


def _threads(
    owned: Sequence[Owned],
    last: Counters,
    ran: Mapping[int, int],
    met: Mapping[int, Sequence[int]],
) -> Iterator[ThreadProof]:
    workload_of = {pid: o for o in owned for pid in o.pids}
    for tid, task in sorted(last.tasks.items()):
        mine = workload_of.get(task.pid)
        if mine is None:
            continue
        planned = mine.seats.get(tid, mine.cpus)
        ns = ran.get(tid, 0)
        seen: dict[int, int] = {}
        # A thread that did not run is where it was left, perhaps long before.
        for cpu in met.get(tid, ()) if ns else ():
            seen[cpu] = seen.get(cpu, 0) + 1
        outside = any(cpu not in planned for cpu in seen)
        yield ThreadProof(
            workload=mine.workload,
            pid=task.pid,
            tid=tid,
            comm=task.comm,
            planned=planned,
            seen=tuple(sorted(seen.items())),
            run_ns=ns,
            verdict=Verdict.FAIL if outside else Verdict.OK,
        )
