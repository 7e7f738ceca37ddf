"""What an action has to know of a process at this very moment: its start, its threads, their masks.

The snapshot's reader is discover/root.py; an action reads again, itself, just before it writes.
None or an empty result: the process or thread is not there any more.
Source: proc_pid_stat(5), sched_getaffinity(2).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet

PROC = Path("/proc")
CPUS = Path("/sys/devices/system/cpu")
_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD, include/linux/sched.h."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """Fields of /proc/PID/stat. `start_time` in clock ticks since boot."""

    comm: str
    state: str
    ppid: int
    flags: int
    threads: int
    start_time: int

    @property
    def dead(self) -> bool:
        """A zombie without a living thread, or on its way out."""
        return self.state in "XxZ" and self.threads <= 1

    @property
    def kernel_thread(self) -> bool:
        """Not a process of user space."""
        return bool(self.flags & _KERNEL_THREAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """A thread as it is now."""

    tid: int
    start_time: int
    mask: CpuSet

    @property
    def key(self) -> tuple[int, int]:
        """A reused number is another thread."""
        return self.tid, self.start_time


def stat_of(pid: int, tid: int = 0) -> Stat | None:
    """Of a process, or of one of its threads."""
    path = PROC / str(pid) / "stat" if tid == 0 else PROC / str(pid) / "task" / str(tid) / "stat"
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name may hold spaces and parentheses: the last one ends it.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return Stat(
        comm=head.partition("(")[2],
        state=fields[0],
        ppid=int(fields[1]),
        flags=int(fields[6]),
        threads=int(fields[17]),
        start_time=int(fields[19]),
    )


def tids_of(pid: int) -> list[int]:
    """Numbers of the threads of a process."""
    try:
        return [int(task.name) for task in (PROC / str(pid) / "task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def mask_of(tid: int) -> CpuSet | None:
    """Affinity of a thread, with those of its CPUs that are offline for now: when one of them
    comes back, the thread may run there again, so an undo has to give it back too."""
    return _mask(tid, down())


def _mask(tid: int, offline: CpuSet) -> CpuSet | None:
    try:
        seen = CpuSet.of(os.sched_getaffinity(tid))
        if not offline:
            return seen
        return whole_mask(seen, (PROC / str(tid) / "status").read_text(errors="replace"), offline)
    except (FileNotFoundError, ProcessLookupError):
        return None


def whole_mask(seen: CpuSet, status: str, offline: CpuSet) -> CpuSet:
    """What sched_getaffinity(2) says, which leaves out what is offline, and the `offline` CPUs of
    the same thread's /proc status, which does not. Pure.

    Source: Linux kernel/sched/syscalls.c (sched_getaffinity: & cpu_active_mask), fs/proc/array.c.
    """
    listed = re.search(r"^Cpus_allowed_list:\s*([0-9,-]+)$", status, re.MULTILINE)
    return seen | (CpuSet.parse(listed[1]) & offline) if listed else seen


def up_and_down() -> tuple[CpuSet, CpuSet]:
    """CPUs that are there: (online, offline); both empty where the kernel does not say."""
    try:
        present, online = (
            CpuSet.parse((CPUS / name).read_text(errors="replace").strip())
            for name in ("present", "online")
        )
    except (OSError, ParseError):
        return CpuSet(), CpuSet()
    return online, present - online


def down() -> CpuSet:
    """CPUs that are there and offline; empty where the kernel does not say."""
    return up_and_down()[1]


def remembers_masks() -> bool:
    """Whether the kernel keeps what was asked for, CPUs included that may not be used for now.
    Source: Linux 8f9ea86fdf99 (v6.2)."""
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return version is not None and (int(version[1]), int(version[2])) >= (6, 2)


def lasting(mask: CpuSet, online: CpuSet, offline: CpuSet) -> CpuSet:
    """A former mask as it is to be put back. Pure.

    Where cpuset is on, /proc leaves out what is offline as well (seen on 6.1 and 6.12): a thread on
    every CPU that is online is bound to nothing, and gets those that come back.
    """
    return mask | offline if online and online <= mask else mask


def threads_of(pid: int) -> list[Thread]:
    """The threads with their masks; those that end meanwhile are left out."""
    found: list[Thread] = []
    offline = down()
    for tid in tids_of(pid):
        stat = stat_of(pid, tid)
        mask = _mask(tid, offline) if stat is not None else None
        if stat is not None and mask is not None:
            found.append(Thread(tid=tid, start_time=stat.start_time, mask=mask))
    return found


def is_thread(pid: int, thread: Thread) -> bool:
    """Whether that number is still that thread of that process.

    No system call sets an affinity through a descriptor, so between this look and the write a
    number may still pass on; it is kept as short as it can be, and never spans a sync to disk.
    """
    stat = stat_of(pid, thread.tid)
    return stat is not None and stat.start_time == thread.start_time


def boot_id() -> str:
    """This boot's random id. Source: Documentation/admin-guide/sysctl/kernel.rst."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def held(capability: int) -> bool:
    """Whether this process has that capability in force (CapEff). Source: proc(5)."""
    for line in (PROC / "self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> capability & 1)
    return False


def owner_of(pid: int) -> int | None:
    """User id of a process."""
    try:
        return (PROC / str(pid)).stat().st_uid
    except (FileNotFoundError, ProcessLookupError):
        return None


def cgroups_of(pid: int) -> tuple[str, ...]:
    """Its path in each hierarchy, without those that are the root; bytes that are no UTF-8 stand as
    replacements. Source: cgroups(7), /proc/PID/cgroup."""
    try:
        data = (PROC / str(pid) / "cgroup").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return ()
    lines = (line.split(":", 2) for line in data.decode("utf-8", "replace").split("\n"))
    return tuple(sorted({parts[2] for parts in lines if len(parts) == 3} - {"/"}))


def descendants(pid: int) -> Iterator[tuple[int, Stat]]:
    """Processes below a process, as far as their parents live."""
    children: dict[int, list[tuple[int, Stat]]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdecimal():
            stat = stat_of(int(entry.name))
            if stat is not None:
                children.setdefault(stat.ppid, []).append((int(entry.name), stat))
    below = list(children.get(pid, ()))
    seen = {pid}
    while below:
        child, stat = below.pop()
        if child in seen:
            # Read one after the other, with a number used again meanwhile, they may form a ring.
            continue
        seen.add(child)
        yield child, stat
        below.extend(children.get(child, ()))
