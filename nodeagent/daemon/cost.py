"""What we cost: CPU seconds and PSS of our own processes, read rarely.

smaps_rollup walks a process's page tables under its mmap_lock, so only our own processes are
asked, once in PSS_S.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from nodeagent.model.status import SelfCost

CPU_S = 10.0
"""Pause between two readings of CPU time."""

PSS_S = 60.0
"""Pause between two readings of PSS."""

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Costs:
    """Remembers the last readings; `read` refreshes those that are due."""

    def __init__(self) -> None:
        self._rows: tuple[SelfCost, ...] = ()
        self._pss: dict[int, int | None] = {}
        self._cpu_at = self._pss_at = float("-inf")

    def read(self, parts: Mapping[str, int | None], now_s: float) -> tuple[SelfCost, ...]:
        """`parts` maps a part's name to its pid (None: not running); `now_s` is monotonic."""
        pids = {name: pid for name, pid in parts.items() if pid is not None}
        known = {row.part: row.pid for row in self._rows}
        if now_s - self._cpu_at < CPU_S and known == pids:
            return self._rows
        if now_s - self._pss_at >= PSS_S or not set(pids.values()) <= self._pss.keys():
            self._pss = {pid: pss_bytes(pid) for pid in pids.values()}
            self._pss_at = now_s
        rows = []
        for name, pid in pids.items():
            used = cpu_seconds(pid)
            if used is not None:
                rows.append(
                    SelfCost(part=name, pid=pid, cpu_seconds=used, pss_bytes=self._pss.get(pid))
                )
        self._rows, self._cpu_at = tuple(rows), now_s
        return self._rows


def cpu_seconds(pid: int) -> float | None:
    """User and system time of all its threads; None: gone. Source: proc(5), stat 14 and 15."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def pss_bytes(pid: int) -> int | None:
    """Proportional set size; None: gone, or no right to ask. Source: proc(5), smaps_rollup."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return None
