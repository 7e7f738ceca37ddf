"""Who waited for a CPU: perf sched latency, pidstat, schedstat, pressure files, own tables.

Source: perf-sched(1), pidstat(1), Linux Documentation/scheduler/sched-stats.rst,
Documentation/accounting/psi.rst.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator

from nodeagent.model.latency import (
    Calls,
    Latencies,
    LatencyRow,
    Pressure,
    Spike,
    Spikes,
    Switches,
    Wait,
    Waits,
)
from nodeagent.model.pasted import Report

MAX_ROWS = 100_000
_TIME = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6, "sec": 1e6}

_SCHED = re.compile(
    r"^[ \t]*(\S.{0,80}?):\(?(\d+)\)?\s*\|\s*(\d+(?:\.\d+)?) ms\s*\|\s*(\d+)\s*\|"
    r"(?:\s*avg:)?\s*(\d+(?:\.\d+)?) ms\s*\|(?:\s*max:)?\s*(\d+(?:\.\d+)?) ms",
    re.MULTILINE,
)


def read_perf_sched(text: str, source: str) -> Iterator[Report]:
    """`perf sched latency`: runtime, count, average and longest delay of each task. With several
    threads folded together perf prints their number instead of a pid."""
    if "Max delay" not in text and "Maximum delay" not in text:
        return
    rows = tuple(
        Wait(
            task=m[1],
            pid=None if f":({m[2]})" in m[0] else int(m[2]),
            run_us=float(m[3]) * 1e3,
            wait_us=float(m[5]) * 1e3 * int(m[4]),
            max_us=float(m[6]) * 1e3,
        )
        for m in _SCHED.finditer(text)
    )
    if rows:
        yield Waits(source=source, tool="perf sched latency", rows=rows)


def read_pidstat(text: str, source: str) -> Iterator[Report]:
    """`pidstat -u`, `-t`: the %wait column, time spent waiting for a CPU; Average wins."""
    head: list[str] = []
    rows: dict[tuple[str, str], Wait] = {}
    for line in text.split("\n"):
        words = line.split()
        if "%wait" in words and "Command" in words:
            head = words
            continue
        if not head or len(words) < len(head) or "%wait" in words:
            continue
        # Time stamps take one or two words, Average one; a command may hold blanks.
        shift = head.index("UID") if "UID" in head else 0
        cells = dict(zip(head[shift:], words[shift:], strict=False))
        pid = cells.get("TID", "-")
        pid = pid if pid.isdigit() else cells.get("TGID", cells.get("PID", "-"))
        share = cells.get("%wait", "")
        if pid.isdigit() and re.fullmatch(r"\d+(?:\.\d+)?", share):
            cpu = cells.get("CPU", "")
            rows[pid, cells.get("Command", "")] = Wait(
                task=cells.get("Command", "").lstrip("|_"),
                pid=int(pid),
                wait_percent=float(share),
                cpu=int(cpu) if cpu.isdigit() else None,
            )
    if rows:
        yield Waits(source=source, tool="pidstat", rows=tuple(rows.values()))


_COUNTED = re.compile(
    r"^[ \t]*(\d[\d,]*(?:\.\d+)?)\s+(context-switches|cs|cpu-migrations|migrations|task-clock\b)",
    re.MULTILINE,
)
_ELAPSED = re.compile(r"^[ \t]*(\d+(?:\.\d+)?) seconds time elapsed", re.MULTILINE)
_TARGET = re.compile(r"Performance counter stats for (.+?):")


def read_perf_stat(text: str, source: str) -> Iterator[Report]:
    """`perf stat`: context switches and migrations, by the time that it says has passed."""
    elapsed = _ELAPSED.search(text)
    target = _TARGET.search(text)
    if elapsed is None or target is None or float(elapsed[1]) <= 0:
        return
    seconds = float(elapsed[1])
    found = {m[2]: float(m[1].replace(",", "")) / seconds for m in _COUNTED.finditer(text)}
    switches = found.get("context-switches", found.get("cs"))
    moves = found.get("cpu-migrations", found.get("migrations"))
    if switches is not None or moves is not None:
        yield Switches(
            source=source,
            task=target[1].replace("'", "").strip(),
            switches_per_s=switches,
            migrations_per_s=moves,
        )


def read_pidstat_w(text: str, source: str) -> Iterator[Report]:
    """`pidstat -w`: voluntary and involuntary switches of each task; the last line of it counts."""
    head: list[str] = []
    found: dict[str, Switches] = {}
    for line in text.split("\n"):
        words = line.split()
        if "nvcswch/s" in words:
            head = words[words.index("UID") :] if "UID" in words else words
            continue
        mine = words[-len(head) :] if head else []
        if not head or len(words) < len(head):
            continue
        cells = dict(zip(head, mine, strict=True))
        rates = [cells.get("cswch/s", ""), cells.get("nvcswch/s", "")]
        if all(re.fullmatch(r"\d+(?:\.\d+)?", r) for r in rates):
            task = cells.get("Command", "").lstrip("|_")
            pid = cells.get("TID", "-")
            pid = pid if pid.isdigit() else cells.get("TGID", cells.get("PID", ""))
            found[pid] = Switches(
                source=source,
                task=f"{task} ({pid})",
                involuntary_per_s=float(rates[1]),
                switches_per_s=float(rates[0]) + float(rates[1]),
            )
    yield from found.values()


_SCHEDSTAT = re.compile(r"^[ \t]*(\d+) (\d+) (\d+)[ \t]*$")
_CPU_SCHEDSTAT = re.compile(r"^cpu(\d+)((?: \d+){9})[ \t]*$", re.MULTILINE)


def read_schedstat(text: str, source: str) -> Iterator[Report]:
    """`/proc/PID/schedstat` (run, wait in ns, slices) and `/proc/schedstat` by CPU."""
    leaf = source.rpartition("/")[2].lower()
    m = _SCHEDSTAT.match(text)
    if m and "schedstat" in leaf and "\n" not in text.strip():
        digits = re.search(r"\d+", leaf)
        yield Waits(
            source=source,
            tool="/proc/PID/schedstat",
            rows=(
                Wait(
                    task=f"pid {digits[0]}" if digits else "the thread",
                    pid=int(digits[0]) if digits else None,
                    run_us=int(m[1]) / 1e3,
                    wait_us=int(m[2]) / 1e3,
                ),
            ),
        )
    if text.lstrip().startswith("version ") and "domain" in text:
        rows = []
        for cpu, numbers in _CPU_SCHEDSTAT.findall(text):
            values = numbers.split()
            rows.append(
                Wait(
                    task=f"cpu {cpu}",
                    pid=None,
                    cpu=int(cpu),
                    run_us=int(values[6]) / 1e3,
                    wait_us=int(values[7]) / 1e3,
                )
            )
        if rows:
            yield Waits(source=source, tool="/proc/schedstat", rows=tuple(rows))


_PSI = re.compile(
    r"^[ \t]*(some|full) avg10=(\d+(?:\.\d+)?) avg60=(\d+(?:\.\d+)?) avg300=(\d+(?:\.\d+)?) "
    r"total=\d+",
    re.MULTILINE,
)


def read_pressure(text: str, source: str) -> Iterator[Report]:
    """A pressure file: /proc/pressure/cpu, cpu.pressure of a group."""
    found = {m[1]: max(float(m[2]), float(m[3]), float(m[4])) for m in _PSI.finditer(text)}
    if found:
        leaf = source.rpartition("/")[2].lower()
        resource = next((r for r in ("cpu", "memory", "io", "irq") if r in leaf), "")
        yield Pressure(
            source=source,
            resource=resource,
            some_percent=found.get("some", 0.0),
            full_percent=found.get("full"),
        )


_LATE = (
    "overshoot", "latency", "lat", "stall", "gap", "late", "jitter", "max", "max_latency",
    "latency_max", "worst", "spike", "p99.99", "p9999", "p99.9", "p999", "p99",
)  # fmt: skip
"""Columns that tell how late, the worst first where a table has several."""
_UNIT = re.compile(r"(.*?)_?\(?(ns|us|ms|s|sec)\)?$")


def _columns(head: list[str]) -> dict[str, tuple[int, float]]:
    """Column name without its unit -> (index, factor to microseconds); without a unit factor 0."""
    found: dict[str, tuple[int, float]] = {}
    for i, cell in enumerate(head):
        name = cell.strip().lower()
        m = _UNIT.fullmatch(name)
        if m and m[1] and m[1] != name:
            found.setdefault(m[1].rstrip("_ "), (i, _TIME[m[2]]))
        else:
            found.setdefault(name, (i, 0.0))
    return found


def _first(columns: dict[str, tuple[int, float]], *names: str) -> tuple[int, float] | None:
    return next((columns[n] for n in names if n in columns), None)


def read_table(text: str, source: str) -> Iterator[Report]:
    """Tables with a heading that tells the unit: run and wait time by thread, stalls of canaries
    by CPU and time, times of calls."""
    lines = [x for x in text.strip().split("\n") if x.strip() and not x.lstrip().startswith("#")]
    if len(lines) < 2 or not any(c in lines[0] for c in ",;\t"):
        return
    mark = max(",;\t", key=lines[0].count)
    try:
        table = [row for row in csv.reader(lines[: MAX_ROWS + 1], delimiter=mark) if row]
    except csv.Error:
        return
    if not table:
        return
    columns = _columns(table[0])
    body = [row for row in table[1:] if len(row) >= len(table[0])]
    run = _first(columns, "run", "runtime", "run_time", "oncpu", "cpu_time", "exec")
    wait = _first(
        columns, "wait", "run_delay", "rundelay", "runq_wait", "runqueue", "runq", "delay"
    )
    task = _first(columns, "comm", "name", "thread", "task", "process", "command")
    pid = _first(columns, "tid", "pid")
    at = _first(columns, "ts", "time", "timestamp", "t", "at", "when")
    cpu = _first(columns, "cpu", "core")
    late = _first(columns, *_LATE)
    if run and wait and run[1] and wait[1]:
        rows = []
        for row in body:
            ran, waited = _number(row[run[0]]), _number(row[wait[0]])
            if ran is not None and waited is not None:
                rows.append(
                    Wait(
                        task=row[task[0]].strip() if task else "",
                        pid=_whole(row[pid[0]]) if pid else None,
                        run_us=ran * run[1],
                        wait_us=waited * wait[1],
                    )
                )
        if rows:
            yield Waits(source=source, tool="schedstat", rows=tuple(rows))
    elif at and cpu and late and late[1]:
        spikes = []
        for row in body:
            when, where, us = _number(row[at[0]]), _whole(row[cpu[0]]), _number(row[late[0]])
            if when is not None and where is not None and us is not None:
                spikes.append(Spike(at_ms=when * (at[1] or 1e6) / 1e3, cpu=where, us=us * late[1]))
        if spikes:
            yield Spikes(source=source, rows=tuple(spikes))
    elif late and late[1] and cpu:
        # Not a moment each, but a figure for each CPU.
        yield from _figures(body, source, late, cpu, task)
    elif at and not cpu and len(columns) <= 4 and _CALLS.search(source.rpartition("/")[2]):
        calls = []
        for row in body:
            when = _number(row[at[0]])
            if when is not None:
                calls.append((when * (at[1] or 1e6) / 1e3, _whole(row[pid[0]]) if pid else None))
        if calls:
            leaf = source.rpartition("/")[2].lower()
            what = next(
                (w.upper() for w in ("nvml", "ioctl", "smi", "ipmi", "rsmi") if w in leaf), ""
            )
            yield Calls(source=source, what=what, rows=tuple(calls))


def _figures(
    body: list[list[str]],
    source: str,
    late: tuple[int, float],
    cpu: tuple[int, float] | None,
    task: tuple[int, float] | None,
) -> Iterator[Report]:
    rows = []
    for row in body:
        us = _number(row[late[0]])
        if us is not None:
            rows.append(
                LatencyRow(
                    cpu=_whole(row[cpu[0]]) if cpu else None,
                    max_us=us * late[1],
                    task=row[task[0]].strip() if task else "",
                )
            )
    if rows:
        yield Latencies(source=source, tool="the table", rows=tuple(rows))


_CALLS = re.compile(r"call|nvml|poll|ioctl|smi|ipmi", re.IGNORECASE)


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\s*-?\d+(?:\.\d+)?\s*", text) else None


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\s*\d{1,9}\s*", text) else None
