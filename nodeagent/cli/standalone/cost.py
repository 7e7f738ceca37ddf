"""What we cost: CPU and memory of all our processes but feeders and controller."""

from __future__ import annotations

import os
import pathlib
import time
from dataclasses import dataclass

from nodeagent.cli.standalone.view import OwnCost

PSS_S = 10.0
"""Pause between two readings of memory: walking the page tables is itself a cost."""
_TICKS = os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """A process and all below it; those that vanish meanwhile are left out."""
    found = [pid]
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        for child in children:
            found += descendants(int(child))
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of one process and of its children that have ended, in seconds; 0 when
    it is gone. Source: proc_pid_stat(5), fields 14 to 17."""
    try:
        fields = (
            pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        )
    except OSError:
        return 0.0
    return sum(int(n) for n in fields[11:15]) / _TICKS


def pss_bytes(pid: int) -> int:
    """Proportional set size less shared memory (the ring's segments are memfds), in bytes.

    Source: Linux Documentation/filesystems/proc.rst, smaps_rollup.
    """
    try:
        text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    kb = {k: int(v.split()[0]) for k, _, v in (x.partition(":") for x in text.splitlines()) if v}
    return (kb.get("Pss", 0) - kb.get("Pss_Shmem", 0)) * 1024


@dataclass(slots=True)
class CostMeter:
    """CPU since `start`, PSS now. It begins once everything is up: starting is no running cost."""

    pids: tuple[int, ...]
    started: float = 0.0
    cpu_at_start: float = 0.0
    _pss: int = 0
    _pss_at: float = float("-inf")

    def _cpu(self) -> float:
        own = sum(os.times()[:2])
        return own + sum(cpu_seconds(p) for pid in self.pids for p in descendants(pid))

    def start(self) -> None:
        """Counts from now."""
        self.started, self.cpu_at_start = time.monotonic(), self._cpu()

    def read(self, *, fresh: bool = False) -> OwnCost:
        """The cost since `start`. Memory is read once in PSS_S, or now where `fresh` is wanted."""
        now = time.monotonic()
        cpu = self._cpu() - self.cpu_at_start
        if fresh or now - self._pss_at >= PSS_S:
            everyone = [os.getpid(), *(p for pid in self.pids for p in descendants(pid))]
            self._pss, self._pss_at = sum(pss_bytes(p) for p in everyone), now
        return OwnCost(cpu_percent=100 * cpu / max(now - self.started, 1e-9), pss_bytes=self._pss)
