"""Tables with a header row (CSV, or aligned columns) about ranks, threads, pods, shared memory and
timings: read by their column names."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence

from nodeagent.discover.paste.part import Part, cpulist_or_none
from nodeagent.model.hostreport import (
    CpuGrant,
    CpuSetTiming,
    RankPlace,
    Rates,
    ThreadState,
)
from nodeagent.model.memreport import ShmFile
from nodeagent.model.pasted import Report

Row = Mapping[str, str]
MAX_ROWS = 65_536
_CPUS = ("cpus_allowed", "cpus_allowed_list", "allowed", "affinity", "cpu_affinity", "cpuset",
         "cpulist", "cpus", "cpu_list", "mask")  # fmt: skip
_WHO = ("rank", "worker", "local_rank", "instance", "process", "pid", "gpu", "name")
_NODE = ("gpu_node", "gpu_numa", "gpu_numa_node", "numa_node", "node")
_TIME = re.compile(r"(.*?)_?(ns|us|ms|s|sec|seconds|latency|time)$")
_RATE = re.compile(r"(?:.*(?:tok|qps|ops|rps|gbps|mbps|gb_s|iops|throughput|per_s|rate).*)")


def read_host_table(text: str, name: str) -> Part | None:
    """What the rows say; None when the columns are none of ours."""
    rows = table(text)
    if not rows:
        return None
    columns = set(rows[0])
    reports: list[Report] = []
    for make in (_shm, _pods, _threads, _ranks, _rates, _timings):
        reports = make(rows, columns, name)
        if reports:
            return Part(kind="table", reports=tuple(reports))
    return None


def table(text: str) -> Sequence[Row]:
    """Rows of a CSV (comma, semicolon, tab), keys in lower case; () when it is none."""
    lines = [x for x in text.strip().split("\n") if x.strip() and not x.startswith("#")]
    if len(lines) < 2 or len(lines[0]) > 1000:
        return ()
    mark = next((c for c in (",", ";", "\t") if c in lines[0]), None)
    if mark is None:
        return ()
    try:
        cells = list(csv.reader(lines[: MAX_ROWS + 1], delimiter=mark, skipinitialspace=True))
    except csv.Error:
        return ()
    head = [re.sub(r"[\s-]+", "_", c.strip().lower()) for c in cells[0]]
    if not all(re.fullmatch(r"[a-z][\w()./%]*", c) for c in head) or len(set(head)) != len(head):
        return ()
    return [_row(head, row, mark) for row in cells[1:] if any(c.strip() for c in row)]


def _row(head: list[str], row: list[str], mark: str) -> Row:
    """A row; a CPU list whose commas were not quoted is put together again when it is last."""
    if len(row) > len(head):
        row = [*row[: len(head) - 1], mark.join(row[len(head) - 1 :])]
    return dict(zip(head, (c.strip() for c in row), strict=False))


def _first(row: Row, names: Sequence[str]) -> str | None:
    return next((row[n] for n in names if n in row), None)


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _whole(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\d{1,18}", text) else None


def _is_rate(unit: str) -> bool:
    return _RATE.fullmatch(unit) is not None or _TIME.fullmatch(unit) is None


def _shm(rows: Sequence[Row], columns: set[str], name: str) -> list[Report]:
    if not {"name", "size"} <= columns and not {"name", "size_bytes"} <= columns:
        return []
    found: list[Report] = []
    for row in rows:
        size = _whole(row.get("size") or row.get("size_bytes"))
        if size is not None and row.get("name"):
            found.append(
                ShmFile(
                    source=name,
                    name=row["name"],
                    size=size,
                    allocated=_whole(row.get("allocated") or row.get("allocated_bytes")),
                    mapped_by=_first(row, ("mapped_by", "pids", "pid", "holders")),
                )
            )
    return found


def _pods(rows: Sequence[Row], columns: set[str], name: str) -> list[Report]:
    who = next((c for c in ("pod", "container", "poduid", "assignment") if c in columns), None)
    if who is None or not columns & set(_CPUS):
        return []
    found: list[Report] = []
    for row in rows:
        cpus = cpulist_or_none(_first(row, _CPUS) or "")
        if cpus is not None:
            found.append(CpuGrant(source=name, what="assigned", owner=row[who], cpus=cpus))
    return found


def _threads(rows: Sequence[Row], columns: set[str], name: str) -> list[Report]:
    ids: str | None = next((c for c in ("tid", "lwp", "thread") if c in columns), None)
    if ids is None and "pid" in columns and columns & set(_CPUS) and not columns & set(_NODE):
        ids = "pid"
    if ids is None:
        return []
    found: list[Report] = []
    for row in rows:
        allowed = cpulist_or_none(_first(row, _CPUS) or "")
        psr = _whole(_first(row, ("psr", "cpu", "last_cpu")))
        run, wait = _whole(row.get("run_ns")), _whole(_first(row, ("wait_ns", "delay_ns")))
        if allowed is not None or psr is not None or wait is not None:
            found.append(
                ThreadState(
                    source=name,
                    pid=_whole(row.get(ids)),
                    comm=_first(row, ("comm", "name", "command", "thread")),
                    allowed=allowed,
                    psr=psr,
                    run_ns=run,
                    wait_ns=wait,
                )
            )
    return found


def _ranks(rows: Sequence[Row], columns: set[str], name: str) -> list[Report]:
    who = next((c for c in _WHO if c in columns), None)
    memory = {
        c: int(m[1])
        for c in columns
        if (
            m := re.fullmatch(
                r"n(?:ode)?_?(\d{1,4})_?(?:mb"
                r"|mib|gb|gib|kb|bytes"
                r"|pages)?",
                c,
            )
        )
    }
    places = columns & {"bdf", "gpu_bdf", "gpu_node", "gpu_numa", "gpu_numa_node"}
    if who is None or not (memory or places or (columns & set(_NODE) and columns & set(_CPUS))):
        return []
    scale = {"mb": 20, "mib": 20, "gb": 30, "gib": 30, "kb": 10, "pages": 12}
    found: list[Report] = []
    for row in rows:
        sizes = {
            node: int(value) << scale.get(re.sub(r"^n(?:ode)?_?\d+_?", "", column), 0)
            for column, node in memory.items()
            if (value := _number(row.get(column))) is not None and 0 <= value < 1 << 50
        }
        found.append(
            RankPlace(
                source=name,
                rank=row.get(who, "?"),
                bdf=_first(row, ("bdf", "gpu_bdf")),
                gpu_node=_whole(_first(row, _NODE)),
                allowed=cpulist_or_none(_first(row, _CPUS) or ""),
                bytes_by_node=sizes,
            )
        )
    return found


def _rates(rows: Sequence[Row], columns: set[str], name: str) -> list[Report]:
    before = next(
        (
            c
            for c in sorted(columns)
            if re.match(
                r"(?:before|baseline|unpinned"
                r"|off)",
                c,
            )
        ),
        None,
    )
    after = next(
        (
            c
            for c in sorted(columns)
            if re.match(
                r"(?:after|pinned|on|bound)(?:_"
                r"|$)",
                c,
            )
        ),
        None,
    )
    if before is None or after is None:
        return []
    unit = before.partition("_")[2] or "value"
    better = _is_rate(unit)
    who = next((c for c in _WHO if c in columns), None)
    found: list[Report] = []
    for i, row in enumerate(rows):
        a, b = _number(row.get(before)), _number(row.get(after))
        if a is not None and b is not None:
            label = row[who] if who else str(i)
            found.append(
                Rates(
                    source=name, label=label, unit=unit, before=a, after=b, higher_is_better=better
                )
            )
    return found


def _timings(rows: Sequence[Row], columns: set[str], name: str) -> list[Report]:
    if not {"cpus", "cpuset", "cpu_list", "taskset"} & columns:
        return []
    measures = [c for c in rows[0] if _TIME.fullmatch(c) or _RATE.fullmatch(c)]
    found: list[Report] = []
    for row in rows:
        cpus = cpulist_or_none(_first(row, ("cpus", "cpuset", "cpu_list", "taskset")) or "")
        for column in measures:
            value = _number(row.get(column))
            if cpus is not None and value is not None:
                better = _is_rate(column)
                found.append(
                    CpuSetTiming(
                        source=name, cpus=cpus, unit=column, value=value, higher_is_better=better
                    )
                )
    return found
