"""What we cost: CPU and memory of all our processes but feeders and controller."""

from __future__ import annotations

import os
import pathlib
import time
from dataclasses import dataclass

from nodeagent.cli.standalone.view import OwnCost

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
    """User and system time of one process so far, in seconds; 0 when it is gone."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


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

    def _cpu(self) -> float:
        own = sum(os.times()[:2])
        return own + sum(cpu_seconds(p) for pid in self.pids for p in descendants(pid))

    def start(self) -> None:
        """Counts from now."""
        self.started, self.cpu_at_start = time.monotonic(), self._cpu()

    def read(self) -> OwnCost:
        """The cost since `start`; PSS costs some milliseconds to read."""
        elapsed = max(time.monotonic() - self.started, 1e-9)
        everyone = [os.getpid(), *(p for pid in self.pids for p in descendants(pid))]
        return OwnCost(
            cpu_percent=100 * (self._cpu() - self.cpu_at_start) / elapsed,
            pss_bytes=sum(pss_bytes(p) for p in everyone),
        )
