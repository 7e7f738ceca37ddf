"""Histograms and tables of BCC's tools, libbpf-tools and bpftrace.

Source: iovisor/bcc tools (runqlat, cpudist, funclatency, biolatency, hardirqs, softirqs,
offcputime, runqslower) and their examples; bpftrace manual, hist().
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodeagent.model.latency import Bucket, Times, Wait, Waits
from nodeagent.model.pasted import Report

MAX_LINE = 400
_UNITS = {"nsecs": 1e-3, "ns": 1e-3, "usecs": 1.0, "us": 1.0, "msecs": 1e3, "ms": 1e3, "secs": 1e6,
          "s": 1e6}  # fmt: skip
_HEAD = re.compile(r"^[ \t>#*]*(nsecs|usecs|msecs|secs)[ \t]*:[ \t]*count\b")
_ROW = re.compile(r"^[ \t>#*]*(\d+) -> (\d+)[ \t]*:[ \t]*(\d+)\b")
_AVG = re.compile(
    r"avg = (\d+(?:\.\d+)?) (nsecs|usecs|msecs|secs), total: (\d+(?:\.\d+)?) (\w+), count: (\d+)"
)
_KEY = re.compile(
    r"^[ \t>#*]*(?:Function|pid|tid|cpu|disk|hardirq|softirq|flags|cgroup|comm|PID|name)"
    r"[ \t]*=[ \t]*[b']*(.+?)'?[ \t]*$"
)
_TRACED = re.compile(r"[Tt]racing \d+ functions? for \"?([^\s\"]+?)\"?(?:\.\.\.|\s|$)")
_WORD = re.compile(r"^[ \t>#*]*([A-Za-z_][\w.:+]*(?:__\w+)*)[ \t]*$")
_TRACE_KEY = re.compile(r"^[ \t>#*]*@(\w*)(?:\[(.*)\])?:[ \t]*$")
_TRACE_ROW = re.compile(
    r"^[ \t>#*]*[\[(](\d+[KMGT]?)(?:,[ \t]*(\d+[KMGT]?|\.\.\.))?[\])][ \t]+(\d+)[ \t]*(?:\||$)"
)
_ABOUT = (
    ("run queue", "run-queue"),
    ("runqlat", "run-queue"),
    ("runq", "run-queue"),
    ("on-cpu", "on-cpu"),
    ("cpudist", "on-cpu"),
    ("off-cpu", "off-cpu"),
    ("block device i/o", "block"),
    ("block i/o", "block"),
    ("biolatency", "block"),
    ("hard irq", "irq"),
    ("hardirq", "irq"),
    ("soft irq", "softirq"),
    ("softirq", "softirq"),
    ("functions for", "function"),
    ("funclatency", "function"),
    ("function =", "function"),
)
_POWERS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _about(text: str, name: str) -> str:
    head = "\n".join(text.split("\n", 6)[:6]).lower()
    return next((kind for word, kind in _ABOUT if word in head or word in name.lower()), "")


def read_times(text: str, source: str) -> Iterator[Report]:
    """Power-of-two histograms of BCC and libbpf-tools; one for each key."""
    if "->" not in text or "count" not in text:
        return
    about = _about(text, source.rpartition("/")[2])
    traced = _TRACED.search(text)
    name = traced[1] if traced else ""
    scale: float | None = None
    buckets: list[Bucket] = []
    avg: re.Match[str] | None = None

    def done() -> Iterator[Report]:
        if buckets:
            yield Times(
                source=source,
                about=about or ("function" if name and "=" not in name else ""),
                name=name,
                buckets=tuple(buckets),
                avg_us=float(avg[1]) * _UNITS[avg[2]] if avg else None,
                total_us=float(avg[3]) * _UNITS.get(avg[4], 1.0) if avg else None,
            )

    for whole in text.split("\n"):
        line = whole[:MAX_LINE]
        if m := _HEAD.match(line):
            yield from done()
            buckets, avg, scale = [], None, _UNITS[m[1]]
        elif (m := _ROW.match(line)) and scale is not None:
            low, high = int(m[1]), int(m[2])
            buckets.append(Bucket(low_us=low * scale, high_us=high * scale, count=int(m[3])))
        elif m := _AVG.search(line):
            avg = m
        elif m := _KEY.match(line):
            yield from done()
            buckets, avg, name = [], None, m[1]
        elif (m := _WORD.match(line)) and not buckets and not traced:
            name = m[1]
    yield from done()


def read_bpftrace(text: str, source: str) -> Iterator[Report]:
    """bpftrace's hist() and lhist() maps whose name says the unit (@usecs, @ns, @lat_us, @ms)."""
    name, label = "", ""
    scale: float | None = None
    buckets: list[Bucket] = []
    file = source.rpartition("/")[2]
    for whole in [*text.split("\n"), "@end:"]:
        line = whole[:MAX_LINE]
        if m := _TRACE_KEY.match(line):
            if buckets and scale is not None:
                key = name + (f"[{label}]" if label else "")
                yield Times(
                    source=source, about=_about(text + " " + name, file), name=key,
                    buckets=tuple(buckets),
                )  # fmt: skip
            buckets, name, label = [], m[1], m[2] or ""
            unit = re.search(r"(?:^|_)(nsecs|usecs|msecs|secs|ns|us|ms|s)(?:$|_)", name)
            scale = _UNITS[unit[1]] if unit else None
        elif (m := _TRACE_ROW.match(line)) and scale is not None:
            low = _number(m[1])
            high = _number(m[2]) if m[2] and m[2] != "..." else low + 1
            buckets.append(
                Bucket(low_us=low * scale, high_us=max(low, high - 1) * scale, count=int(m[3]))
            )


def _number(text: str) -> int:
    return int(text[:-1]) * _POWERS[text[-1]] if text[-1] in _POWERS else int(text)


_SLOW_HEAD = re.compile(r"TIME[ \t]+(?:COMM|TASK)[ \t]+(?:T|P)ID[ \t]+LAT\(us\)")
_SLOW = re.compile(
    r"^[ \t>#*]*(\d\d:\d\d:\d\d)[ \t]+(\S.{0,80}?)[ \t]+(\d+)[ \t]+(\d+)"
    r"(?:[ \t]+(\S.{0,80}?)[ \t]+(\d+))?[ \t]*$",
    re.MULTILINE,
)


def read_runqslower(text: str, source: str) -> Iterator[Report]:
    """runqslower: tasks that waited longer than its threshold; with -P what ran before."""
    if not _SLOW_HEAD.search(text) and "run queue latency higher" not in text:
        return
    rows = tuple(
        Wait(task=m[2], pid=int(m[3]), max_us=float(m[4]), before=m[5] or "")
        for m in _SLOW.finditer(text)
    )
    yield Waits(source=source, tool="runqslower", rows=rows)


_TOTALS = re.compile(r"^[ \t>#*]*(HARDIRQ|SOFTIRQ)[ \t]+TOTAL_(nsecs|usecs|msecs)", re.MULTILINE)
_TOTAL_ROW = re.compile(r"^[ \t>#*]*(\S.{0,80}?)[ \t]+(\d+)[ \t]*$")


def read_irq_totals(text: str, source: str) -> Iterator[Report]:
    """hardirqs and softirqs without -d: total time by interrupt since the start."""
    m = _TOTALS.search(text)
    if m is None:
        return
    scale = _UNITS[m[2]]
    about = "irq" if m[1] == "HARDIRQ" else "softirq"
    for whole in text[m.end() :].split("\n"):
        line = whole[:MAX_LINE]
        if row := _TOTAL_ROW.match(line):
            yield Times(
                source=source, about=about, name=row[1], buckets=(), total_us=int(row[2]) * scale
            )


_OFF_TASK = re.compile(r"^[ \t]*-?[ \t]+(\S.{0,80}?)[ \t]+\((\d+)\)[ \t]*$")
_OFF_TIME = re.compile(r"^[ \t]+(\d+)[ \t]*$")


def read_offcpu(text: str, source: str) -> Iterator[Report]:
    """offcputime: who slept, where in the kernel, for how long in all (microseconds)."""
    if "off-CPU time (us)" not in text:
        return
    frames: list[str] = []
    task = ""
    for whole in text.split("\n"):
        line = whole[:MAX_LINE]
        if m := _OFF_TASK.match(line):
            task = m[1]
        elif (m := _OFF_TIME.match(line)) and task:
            yield Times(
                source=source,
                about="off-cpu",
                name=f"{task}: {_told(frames)}",
                buckets=(),
                total_us=float(m[1]),
            )
            frames, task = [], ""
        elif line.strip() and not line.startswith("Tracing"):
            frames.append(line.strip().split("+")[0])


def _told(frames: list[str]) -> str:
    """The frame that tells why: the first that is not the scheduler's own."""
    own = ("finish_task_switch", "schedule", "__schedule", "__sched_text_start", "b'")
    return next((f for f in frames if not f.startswith(own)), frames[0] if frames else "")
