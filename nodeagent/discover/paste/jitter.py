"""Everything that tools say about latency and counters, each reader asked in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nodeagent.discover.paste import bpf_times, counters, cpu_use, cyclic, rtla, waits
from nodeagent.discover.paste.part import Part
from nodeagent.discover.paste.quota import read_quota
from nodeagent.model.latency import Analysis, Counts, Times
from nodeagent.model.pasted import Report

Reader = Callable[[str, str], Iterator[Report]]
MAX_TEXT = 16 << 20
"""Characters of a text that are looked at."""

READERS: tuple[Reader, ...] = (
    rtla.read_analyses,
    rtla.read_timerlat,
    rtla.read_histogram,
    rtla.read_noise,
    rtla.read_hwlat,
    cyclic.read_cyclictest,
    cyclic.read_json,
    cyclic.read_oslat,
    cyclic.read_sysjitter,
    cyclic.read_hwlatdetect,
    bpf_times.read_times,
    bpf_times.read_bpftrace,
    bpf_times.read_runqslower,
    bpf_times.read_irq_totals,
    bpf_times.read_offcpu,
    waits.read_perf_sched,
    waits.read_pidstat,
    waits.read_pidstat_w,
    waits.read_perf_stat,
    waits.read_schedstat,
    waits.read_pressure,
    waits.read_table,
    counters.read_counts,
    counters.read_rates,
    cpu_use.read_turbostat,
    cpu_use.read_mpstat,
    cpu_use.read_vmstat,
)


def read_jitter(text: str, name: str) -> Part | None:
    """What the text says of latency, waits, quotas and counters; None when it says nothing."""
    quota = read_quota(text, name)
    if quota is not None:
        return quota
    body = text[:MAX_TEXT]
    found = tuple(report for read in READERS for report in read(body, name))
    if not found:
        return None
    facts: dict[str, object] = {}
    times = [r for r in found if isinstance(r, Times)]
    if times:
        facts["durations"] = [
            {
                "name": t.name,
                "count": t.count or None,
                "avg_us": t.avg_us,
                "total_us": t.total_us,
                "worst_us": list(t.worst_us) if t.buckets else None,
            }
            for t in times
        ]
    late = [r for r in found if isinstance(r, Analysis)]
    if late:
        facts["late_wakeups"] = [
            {"cpu": a.cpu, "thread_us": a.thread_us, "held_by": [h.name for h in a.held]}
            for a in late
        ]
    interrupts = [r for r in found if isinstance(r, Counts) and r.kind == "interrupts"]
    weak = {"proc/interrupts": text.strip()} if len(interrupts) == 1 else {}
    return Part(kind="latency", facts=facts, reports=found, weak=weak)
