"""Tools that measure latency from user space: cyclictest, jitterdebugger, oslat, sysjitter,
hwlatdetect.

Source: rt-tests (cyclictest.c, oslat.c, hwlatdetect.py), jitterdebugger, sysjitter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from nodeagent.model.latency import Latencies, LatencyRow
from nodeagent.model.pasted import Report

_THREAD = re.compile(
    r"T:\s*(?P<t>\d+) \(\s*(?P<pid>\d+)\)\s+(?:P:\s*\d+\s+I:\s*\d+\s+|A:\s*(?P<cpu>\d+)\s+)?"
    r"C:\s*(?P<count>\d+)\s+Min:\s*(?P<min>\d+)\s+(?:Act:\s*\d+\s+)?"
    r"Avg:\s*(?P<avg>\d+(?:\.\d+)?)\s+"
    r"Max:\s*(?P<max>\d+)(?:\s+SMI:\s*(?P<smi>\d+))?"
)
_NANO = re.compile(r"cyclictest\b.*\s(?:-\w*N|--nsecs)\b")
_PINNED = re.compile(r"cyclictest\b.*\s-a\s*(\d[\d,-]*)")
_SUMMARY = re.compile(r"(Min|Avg|Max) Latencies:([ \t\d]+)")
_OVERFLOWS = re.compile(r"Histogram Overflows:([ \t\d]+)")
_TOTAL = re.compile(r"# Total:([ \t\d]+)")


def read_cyclictest(text: str, source: str) -> Iterator[Report]:
    """Thread lines (the last of each thread), else the summary of a histogram. Microseconds,
    unless the command line in the text says -N. A thread's number is its CPU only with -S, -a or
    -t, which is how everybody runs it: `cpu` is that number."""
    scale = 1e-3 if _NANO.search(text) else 1.0
    last = {int(m["t"]): m for m in _THREAD.finditer(text)}
    overflows = [int(x) for x in (_OVERFLOWS.search(text) or ["", ""])[1].split()]
    pinned = _list(m[1]) if (m := _PINNED.search(text)) else []
    rows = []
    for t, m in sorted(last.items()):
        named = int(m["cpu"]) if m["cpu"] else (pinned[t] if t < len(pinned) else t)
        rows.append(
            LatencyRow(
                cpu=named,
                max_us=int(m["max"]) * scale,
                avg_us=float(m["avg"]) * scale,
                samples=int(m["count"]),
                overflows=overflows[t] if t < len(overflows) else 0,
            )
        )
    if not rows:
        found = {k: [int(x) for x in v.split()] for k, v in _SUMMARY.findall(text)}
        totals = [int(x) for x in (_TOTAL.search(text) or ["", ""])[1].split()]
        averages = found.get("Avg", [])
        rows = [
            LatencyRow(
                cpu=pinned[t] if t < len(pinned) else t,
                max_us=worst * scale,
                avg_us=averages[t] * scale if t < len(averages) else None,
                samples=totals[t] if t < len(totals) else None,
                overflows=overflows[t] if t < len(overflows) else 0,
            )
            for t, worst in enumerate(found.get("Max", []))
        ]
    smi = [int(m["smi"]) for m in last.values() if m["smi"] is not None]
    if rows:
        tool = "jitterdebugger" if any(m["cpu"] for m in last.values()) else "cyclictest"
        yield Latencies(source=source, tool=tool, rows=tuple(rows), smi=max(smi) if smi else None)


def _list(text: str) -> list[int]:
    """The CPUs of `-a 2,4-6`, in their order."""
    found: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        if low.isdigit() and (high or low).isdigit() and int(high or low) - int(low) < 4096:
            found += range(int(low), int(high or low) + 1)
    return found


def read_json(text: str, source: str) -> Iterator[Report]:
    """`cyclictest --json`, `jitterdebugger -f`, `oslat --json`: an object for each thread or CPU
    with max, avg, cycles or count."""
    body = text.strip()
    if not body.startswith("{") or '"max"' not in body:
        return
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return
    threads = told.get("thread") or told.get("cpu") if isinstance(told, dict) else None
    if not isinstance(threads, dict):
        return
    nano = told.get("resolution_in_ns") in (1, True)
    rows = []
    for key, thread in threads.items():
        if not isinstance(thread, dict) or not isinstance(thread.get("max"), int | float):
            continue
        cpu = thread.get("cpu", int(key) if key.isdigit() and len(key) < 6 else None)
        avg = thread.get("avg")
        count = thread.get("cycles", thread.get("count"))
        scale = 1e-3 if nano else 1.0
        rows.append(
            LatencyRow(
                cpu=cpu if isinstance(cpu, int) else None,
                max_us=float(thread["max"]) * scale,
                avg_us=float(avg) * scale if isinstance(avg, int | float) else None,
                samples=count if isinstance(count, int) else None,
            )
        )
    if rows:
        line = told.get("cmdline", "")
        word = line.split()[0].rpartition("/")[2] if isinstance(line, str) and line.split() else ""
        yield Latencies(source=source, tool=word or "jitterdebugger", rows=tuple(rows))


_CORE = re.compile(r"^[ \t>#*]*Core:\s+(.*)$", re.MULTILINE)


_VALUES = r"((?:\d+(?:\.\d+)?[ \t]+)+)"


def read_oslat(text: str, source: str) -> Iterator[Report]:
    """oslat: one column a CPU, (us) or, with -N, (ns)."""
    head = _CORE.search(text)
    if head is None:
        return
    cpus = [int(w) for w in head[1].split() if w.isdigit()]
    maximum = re.search(rf"^[ \t>#*]*Maximum:\s+{_VALUES}\((us|ns)\)", text, re.MULTILINE)
    average = re.search(rf"^[ \t>#*]*Average:\s+{_VALUES}\((us|ns)\)", text, re.MULTILINE)
    if maximum is None or not cpus:
        return
    scale = 1e-3 if maximum[2] == "ns" else 1.0
    worst = [float(w) * scale for w in maximum[1].split()]
    means = [float(w) * scale for w in average[1].split()] if average else []
    yield Latencies(
        source=source,
        tool="oslat",
        rows=tuple(
            LatencyRow(cpu=cpu, max_us=value, avg_us=means[i] if i < len(means) else None)
            for i, (cpu, value) in enumerate(zip(cpus, worst, strict=False))
        ),
    )


_SYSJITTER = re.compile(r"^[ \t>#*]*(core_i|int_(?:max|n|mean|total))(?:\([^)]*\))?:\s+(.*)$",
                        re.MULTILINE)  # fmt: skip


def read_sysjitter(text: str, source: str) -> Iterator[Report]:
    """sysjitter: one column a core, nanoseconds."""
    found: dict[str, list[str]] = {}
    for name, rest in _SYSJITTER.findall(text):
        found.setdefault(name, rest.split())
    if "core_i" not in found or "int_max" not in found:
        return
    numbers = found.get("int_n", [])
    rows = []
    for i, (core, worst) in enumerate(zip(found["core_i"], found["int_max"], strict=False)):
        if core.isdigit() and worst.isdigit():
            count = numbers[i] if i < len(numbers) else ""
            rows.append(
                LatencyRow(
                    cpu=int(core),
                    max_us=int(worst) / 1000,
                    samples=int(count) if count.isdigit() else None,
                )
            )
    if rows:
        yield Latencies(source=source, tool="sysjitter", rows=tuple(rows))


_SAMPLE = re.compile(r"ts: \d+(?:\.\d+)?,\s*inner:\s*(\d+),\s*outer:\s*(\d+)(?:,\s*cpu:\s*(\d+))?")


def read_hwlatdetect(text: str, source: str) -> Iterator[Report]:
    """hwlatdetect: the worst gap, and each sample by CPU where it says so; microseconds."""
    m = re.search(r"^[ \t>#*]*Max Latency:\s*(?:(\d+)\s*us|(Below threshold))", text, re.MULTILINE)
    samples = _SAMPLE.findall(text)
    smi = re.search(r"SMIs? (?:during|detected|count)[^:\d]*:?\s*(\d+)", text, re.IGNORECASE)
    if m is None and not samples:
        return
    over = re.search(r"Samples exceeding threshold:\s*(\d+)", text)
    worst: dict[int | None, float] = {}
    for inner, outer, cpu in samples:
        key = int(cpu) if cpu else None
        worst[key] = max(worst.get(key, 0.0), float(inner), float(outer))
    if m is not None and m[1] and not any(v >= float(m[1]) for v in worst.values()):
        worst[None] = float(m[1])
    rows = tuple(
        LatencyRow(cpu=cpu, max_us=us, what="gap", samples=int(over[1]) if over else None)
        for cpu, us in worst.items()
    ) or (LatencyRow(cpu=None, max_us=0.0, what="gap"),)
    yield Latencies(
        source=source,
        tool="hwlatdetect",
        rows=rows,
        hardware=True,
        smi=int(smi[1]) if smi else None,
    )
