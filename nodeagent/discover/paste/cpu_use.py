"""How CPUs spent their time: turbostat, mpstat, vmstat.

Source: turbostat(8), mpstat(1), vmstat(8).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodeagent.model.latency import CpuUse, CpuUses
from nodeagent.model.pasted import Report

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_DEEP = re.compile(r"CPU%c(?:[6-9]|10)|C(?:[6-9]|10)[A-Z]*%")
"""Columns of C6 and deeper, in percent: CPU%c6, C6%, C8%, C10%, C6P%. C6 alone counts entries."""


def read_turbostat(text: str, source: str) -> Iterator[Report]:
    """turbostat's table; the last line of a CPU wins, the summary line has `-` for its CPU."""
    head: list[str] = []
    rows: dict[int | None, CpuUse] = {}
    for line in text.split("\n"):
        words = line.split()
        if "Bzy_MHz" in words or ("Busy%" in words and "Avg_MHz" in words):
            head = words
            continue
        if not head or len(words) < 2 or not all(w == "-" or _NUMBER.fullmatch(w) for w in words):
            continue
        cells = dict(zip(head, words, strict=False))
        cpu = cells.get("CPU", "-")
        deep = [float(v) for k, v in cells.items() if _DEEP.fullmatch(k) and v != "-"]
        rows[int(cpu) if cpu.isdigit() else None] = CpuUse(
            cpu=int(cpu) if cpu.isdigit() else None,
            busy_percent=_float(cells, "Busy%"),
            busy_mhz=_float(cells, "Bzy_MHz"),
            tsc_mhz=_float(cells, "TSC_MHz"),
            smi=_int(cells, "SMI"),
            deep_percent=max(deep) if deep else None,
            throttled=_int(cells, "CoreThr"),
            celsius=_float(cells, "CoreTmp") or _float(cells, "PkgTmp"),
        )
    if rows:
        yield CpuUses(source=source, tool="turbostat", rows=tuple(rows.values()))


def read_mpstat(text: str, source: str) -> Iterator[Report]:
    """`mpstat -P ALL`: the Average block, else the last line of each CPU."""
    head: list[str] = []
    rows: dict[int | None, CpuUse] = {}
    for line in text.split("\n"):
        words = line.split()
        if "%idle" in words and "CPU" in words:
            head = words[words.index("CPU") :]
            continue
        cells_words = words[-len(head) :] if head else []
        if not head or len(words) < len(head) or not _NUMBER.fullmatch(cells_words[-1]):
            continue
        cells = dict(zip(head, cells_words, strict=True))
        cpu = cells["CPU"]
        if cpu.isdigit() or cpu == "all":
            idle = _float(cells, "%idle")
            rows[int(cpu) if cpu.isdigit() else None] = CpuUse(
                cpu=int(cpu) if cpu.isdigit() else None,
                busy_percent=None if idle is None else 100 - idle,
                steal_percent=_float(cells, "%steal"),
                soft_percent=_float(cells, "%soft"),
                irq_percent=_float(cells, "%irq"),
            )
    if rows:
        yield CpuUses(source=source, tool="mpstat", rows=tuple(rows.values()))


def read_vmstat(text: str, source: str) -> Iterator[Report]:
    """vmstat: runnable tasks and steal. The first line is the average since boot: it counts only
    when it is alone."""
    head: list[str] = []
    lines: list[dict[str, str]] = []
    for line in text.split("\n"):
        words = line.split()
        if words[:2] == ["r", "b"] and "cs" in words:
            head = words
        elif head and len(words) >= len(head) and all(w.isdigit() for w in words[: len(head)]):
            lines.append(dict(zip(head, words, strict=False)))
    if not lines:
        return
    lines = lines[1:] or lines
    steals = [float(x["st"]) for x in lines if x.get("st", "").isdigit()]
    yield CpuUses(
        source=source,
        tool="vmstat",
        rows=(CpuUse(cpu=None, steal_percent=sum(steals) / len(steals) if steals else None),),
        runnable=max(int(x["r"]) for x in lines),
    )


def _float(cells: dict[str, str], name: str) -> float | None:
    text = cells.get(name, "")
    return float(text) if _NUMBER.fullmatch(text) else None


def _int(cells: dict[str, str], name: str) -> int | None:
    text = cells.get(name, "")
    return int(text) if text.isdigit() else None
