"""sched_setaffinity for every thread of a process, those born meanwhile too, and back again.

A thread inherits its creator's mask, so the threads that can still be outside are children of ones
not yet reached: scanning until nobody is outside, twice in a row, reaches them all. (Twice: a
listing of /proc/PID/task can miss a thread when another one ends while it is read.)
Source: sched_setaffinity(2), cpuset(7); Linux 8f9ea86fdf99 (v6.2) for the remembered user mask.
"""

from __future__ import annotations

import enum
import errno
import os
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from nodeagent.errors import ActError, ParseError, RightsError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.managers import manager_of
from nodeagent.pin.proc import (
    CPUS,
    PROC,
    Thread,
    cgroups_of,
    is_thread,
    mask_of,
    owner_of,
    remembers_masks,
    stat_of,
    threads_of,
)
from nodeagent.pin.step import step

MAX_SCANS = 64
"""A process that outruns this many scans is not pinned but reported."""

MAX_CONTESTED = 3
"""Times that one thread may leave the mask we have just given it; once more, and it is left to
whoever sets it."""


class GoneError(ActError):
    """The process ended, or its number belongs to another one now."""


class ContestedError(ActError):
    """Somebody else sets the affinity while we set it."""


class Why(enum.Enum):
    """Why a thread is not on its former mask after an undo."""

    LATER = "somebody changed it after us, which is respected"
    NARROWER = "written, and the kernel gave fewer of the CPUs"
    BLOCKED = "not written: it is still to be undone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A thread that is not on its former mask, and what makes an undo possible."""

    why: Why
    message: str
    remedy: str = ""


def check_alive(pid: int, start_time: int) -> str:
    """Name of the process. Raises GoneError, ActError for what must not be touched."""
    stat = stat_of(pid)
    if stat is None or stat.dead:
        raise GoneError(f"process {pid} has ended")
    if stat.start_time != start_time:
        raise GoneError(f"process {pid} has ended; {stat.comm} has its number now")
    if pid == 1 or stat.kernel_thread:
        what = "process 1" if pid == 1 else f"kernel thread {stat.comm} ({pid})"
        raise ActError(f"{what} is never pinned", "match the workload's own processes only")
    return stat.comm


def check_unmanaged(pid: int, comm: str) -> None:
    """Raises ActError where a kubelet, a batch system or Nomad places that process: no class of
    consent reaches it, whoever asks. What was done before it came there can still be undone."""
    for path in cgroups_of(pid):
        manager = manager_of(path)
        if manager is not None:
            raise ActError(
                f"{comm} ({pid}) is in cgroup {path!r}, which {manager.name} owns and places",
                manager.instead,
            )


def pin(
    pid: int,
    start_time: int,
    only: Collection[int],
    cpus: CpuSet,
    before_change: Callable[[list[Thread], list[Thread]], None],
) -> CpuSet:
    """Pins the threads named by number (none named: all) that are outside; the union of their
    masks read back.

    `before_change(outside, inside)` is called with threads not told before, and must have them on
    the disk when it returns; `inside` (of the whole process) only at the first call. Raises
    GoneError, ContestedError, ActError.
    """
    told: set[tuple[int, int]] = set()
    left: Counter[tuple[int, int]] = Counter()
    clean = 0
    for scan in range(MAX_SCANS):
        check_alive(pid, start_time)
        every = threads_of(pid)
        now = [t for t in every if t.tid in only] if only else every
        if not now:
            which = f"thread {min(only)}" if len(only) == 1 else f"{len(only)} threads"
            raise GoneError(f"{which if only else f'thread {pid}'} of process {pid} ended")
        outside = [t for t in now if not t.mask <= cpus]
        if not outside:
            clean += 1
            if clean == 2 or only:
                return _union(now)
            continue
        clean = 0
        fresh = [t for t in outside if t.key not in told]
        inside = [t for t in every if t.mask <= cpus] if scan == 0 else []
        # A mask does not change by itself: a thread that was written and is outside was set again.
        left.update(t.key for t in outside if t.key in told)
        for thread in outside:
            if left[thread.key] > MAX_CONTESTED:
                raise ContestedError(
                    f"somebody else sets the affinity of thread {thread.tid} of process {pid} to "
                    f"{thread.mask} as often as it is set to {cpus}",
                    "find what sets it: nodeagentctl place status",
                )
        if fresh:
            before_change(fresh, inside)
            told.update(t.key for t in fresh)
        for thread in outside:
            step("affinity.before")
            if is_thread(pid, thread):
                set_mask(pid, thread.tid, cpus)
        step("affinity.written")
    raise ActError(
        f"process {pid} makes threads faster than they are pinned: some are still outside {cpus} "
        f"after {MAX_SCANS} scans",
        "start it pinned: nodeagentctl exec --cpus ... -- CMD",
    )


def _union(threads: list[Thread]) -> CpuSet:
    cpus = CpuSet()
    for thread in threads:
        cpus |= thread.mask
    return cpus


def set_mask(pid: int, tid: int, cpus: CpuSet) -> bool:
    """sched_setaffinity of one thread; False when it is gone. Raises ActError, RightsError."""
    try:
        os.sched_setaffinity(tid, cpus.ids)
    except ProcessLookupError:
        return False
    except PermissionError as error:
        raise RightsError(
            f"the affinity of thread {tid} of process {pid} (user {owner_of(pid)}) may not be set "
            "without CAP_SYS_NICE",
            "run the actor as root, or give it CAP_SYS_NICE",
        ) from error
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise ActError(
                f"none of CPU {cpus} may be used by thread {tid} of process {pid}: they are "
                f"offline, or outside its cpuset {_cpuset_words(pid)}",
                "nodeagentctl place plan, on the machine as it is now",
            ) from error
        raise ActError(
            f"the affinity of thread {tid} of process {pid} could not be set: {error.strerror}"
        ) from error
    return True


def _cpuset_words(pid: int) -> str:
    try:
        return (PROC / str(pid) / "cpuset").read_text(errors="replace").strip() or "/"
    except OSError:
        return "(not readable)"


def online() -> CpuSet | None:
    """CPUs that take work now; None: the kernel does not say."""
    try:
        return CpuSet.parse((CPUS / "online").read_text(errors="replace").strip())
    except (OSError, ParseError):
        return None


def offline_words(mask: CpuSet, up: CpuSet | None) -> tuple[str, str] | None:
    """(what is offline, how to go on) when no CPU of a former mask is online; else None. Pure."""
    if up is None or not mask or mask & up:
        return None
    one = len(mask) == 1
    which = str(mask) if one else "{" + ",".join(map(str, mask)) + "}" if len(mask) <= 8 else "N"
    return f"CPU {mask} is offline" if one else f"CPUs {mask} are offline", (
        f"echo 1 | tee {CPUS}/cpu{which}/online; then nodeagentctl undo. If "
        f"{'it stays' if one else 'they stay'} offline: taskset -acp CPUS PID; undo leaves it there"
    )


def put_back(
    pid: int, thread: int, start_time: int, mask: CpuSet, ours: Callable[[CpuSet], bool]
) -> Left | None:
    """One thread's former mask. None: done, or nothing to do; else why it was left.

    `ours` says whether the mask found now is still what we wrote: another one is somebody's later
    change, and is respected.
    """
    stat = stat_of(pid, thread)
    if stat is None or stat.start_time != start_time:
        return None
    now = mask_of(thread)
    if now is None or now == mask:
        return None
    if not ours(now):
        return Left(
            why=Why.LATER,
            message=f"thread {thread} was set to {now} by somebody later and is left there",
        )
    step("undo.before")
    try:
        set_mask(pid, thread, mask)
    except ActError as error:
        down = offline_words(mask, online())
        if down is None:
            return Left(why=Why.BLOCKED, message=f"{error}; it stays on {now}", remedy=error.remedy)
        return Left(
            why=Why.BLOCKED,
            message=f"thread {thread} of process {pid} cannot go back to {mask}: {down[0]}; it "
            f"stays on {now}",
            remedy=down[1],
        )
    after, up = mask_of(thread), online() or CpuSet()
    if after is not None and after & up == mask & up and remembers_masks():
        # What is offline now is given back by the kernel when it comes.
        return None
    if after is not None and after != mask:
        return Left(
            why=Why.NARROWER,
            message=f"thread {thread} was on {mask} and is on {after} now: its cpuset or CPUs "
            "changed",
        )
    return None
