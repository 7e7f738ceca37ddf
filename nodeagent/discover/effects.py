"""What happened on each CPU so far: interrupts, softirqs, and how long each thread has run.

Reads only what takes no lock of a process: stat, schedstat; and /proc/stat.
Source: Documentation/scheduler/sched-stats.rst; proc_pid_stat(5).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable

from nodeagent.discover.root import Root
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.proof import Counters, TaskRun
from nodeagent.place.proof import rows_of

MAX_TABLE = 64 << 20
"""Bytes of /proc/interrupts: 2,048 CPUs times thousands of lines."""
MAX_THREADS = 65_536
PF_KTHREAD = 0x00200000


_CPU = re.compile(r"^cpu(\d+) (\d+) (\d+) (\d+) ", re.MULTILINE)


def busy_of(text: str, hz: int | None = None) -> dict[int, int]:
    """CPU -> nanoseconds of user, nice and system time (guests are in user) by /proc/stat."""
    tick_ns = 1_000_000_000 // (hz or os.sysconf("SC_CLK_TCK"))
    return {int(cpu): sum(map(int, ticks)) * tick_ns for cpu, *ticks in _CPU.findall(text)}


class Effects:
    """Counters of this machine, at one time each."""

    def __init__(self, root: Root) -> None:
        self._root = root

    def read(self, cpus: CpuSet) -> Counters:
        """Everything; affinities only of threads that are on one of `cpus`."""
        unread: list[str] = []
        texts = {}
        for name in ("interrupts", "softirqs"):
            text = self._root.text(f"proc/{name}", MAX_TABLE)
            if text is None:
                unread.append(f"/proc/{name} could not be read")
            texts[name] = text or ""
        stat = self._root.text("proc/stat", MAX_TABLE)
        if stat is None:
            unread.append("/proc/stat could not be read: who has ended or left is not seen")
        tasks: dict[int, TaskRun] = {}
        untimed = 0
        for pid in self._root.pids():
            for tid in self._root.tids(pid):
                if len(tasks) >= MAX_THREADS:
                    unread.append(f"more than {MAX_THREADS} threads: the rest was not looked at")
                    break
                task = self._task(pid, tid, cpus)
                if task is not None and task.run_ns < 0:
                    untimed += 1
                elif task is not None:
                    tasks[tid] = task
            else:
                continue
            break
        if untimed:
            unread.append(
                f"/proc/PID/schedstat of {untimed} threads could not be read (CONFIG_SCHED_INFO): "
                "who else ran is not known"
            )
        interrupts, titles = rows_of(texts["interrupts"])
        softirqs, _ = rows_of(texts["softirqs"])
        return Counters(
            at_ns=time.monotonic_ns(),
            interrupts=interrupts,
            softirqs=softirqs,
            titles=titles,
            tasks=tasks,
            busy_ns=busy_of(stat or ""),
            online=self._root.cpus("sys/devices/system/cpu/online") or CpuSet(),
            unread=tuple(unread),
        )

    def look(self, pids: Iterable[int]) -> dict[int, tuple[int, int]]:
        """Thread -> (CPU where it is or ran last, its run time in nanoseconds)."""
        found = {}
        for pid in pids:
            for tid in self._root.tids(pid):
                task = self._task(pid, tid, CpuSet())
                if task is not None and task.run_ns >= 0:
                    found[tid] = (task.cpu, task.run_ns)
        return found

    def _task(self, pid: int, tid: int, cpus: CpuSet) -> TaskRun | None:
        """None: it has ended. run_ns -1: not told."""
        stat = self._root.peek(f"proc/{pid}/task/{tid}/stat", 4096)
        if stat is None:
            return None
        head, close, tail = stat.rpartition(b")")
        words = tail.split()
        if not close or len(words) < 37:
            return None
        times = (self._root.peek(f"proc/{pid}/task/{tid}/schedstat", 4096) or b"").split()
        cpu = int(words[36])
        allowed = None
        if cpu in cpus:
            try:
                allowed = CpuSet(frozenset(os.sched_getaffinity(tid)))
            except OSError:
                allowed = None
        return TaskRun(
            pid=pid,
            comm=head.partition(b"(")[2].decode("utf-8", "replace"),
            kernel=bool(int(words[6]) & PF_KTHREAD),
            start_time=int(words[19]),
            run_ns=int(times[0]) if times else -1,
            cpu=cpu,
            allowed=allowed,
        )
