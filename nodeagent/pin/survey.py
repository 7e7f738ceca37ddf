"""The masks of threads that a change of their cpuset may take from them, and their way back.

Before Linux 6.2 a change of a cpuset forgets what its threads were bound to, and turning the
controller on forgets it for every thread of the host; since then the kernel remembers.
Source: cpuset(7); Linux 8f9ea86fdf99 (v6.2).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from nodeagent.model.cpuset import CpuSet
from nodeagent.pin import affinity
from nodeagent.pin.proc import PROC, Thread, mask_of, stat_of, threads_of

MAX_GROUPS = 4096
"""Groups below one that are looked into; a container host has some hundreds in all."""

Masks = Mapping[tuple[int, int], CpuSet]
"""(tid, start time) -> mask."""


def pids_below(folder: Path) -> Iterator[int]:
    """Processes of a group and of those below it."""
    left, seen = [folder], 0
    while left and seen < MAX_GROUPS:
        here = left.pop()
        seen += 1
        try:
            words = (here / "cgroup.procs").read_text().split()
            left += [e for e in here.iterdir() if e.is_dir() and not e.is_symlink()]
        except OSError as error:
            # EOPNOTSUPP: a threaded group; its processes are listed at its root.
            if error.errno in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
                continue
            raise
        yield from map(int, words)


def threads_below(folder: Path) -> list[Thread]:
    """Every thread of every process there."""
    return [thread for pid in pids_below(folder) for thread in threads_of(pid)]


def bound_threads(without: frozenset[int]) -> list[Thread]:
    """Threads of the whole host that are bound to a part of its CPUs, but for `without` (tids)."""
    up = affinity.online() or CpuSet()
    found = []
    for entry in PROC.iterdir():
        stat = stat_of(int(entry.name)) if entry.name.isdecimal() else None
        if stat is not None and not stat.kernel_thread:
            threads = threads_of(int(entry.name))
            found += [t for t in threads if t.tid not in without and t.mask < up]
    return found


def keep(masks: Masks, within: CpuSet | None, later: frozenset[int]) -> None:
    """Gives back the masks that a change took: those inside `within`, or (None) all of them; but
    for `later`, which somebody bound since.

    A thread that ended, or may not be bound there any more, is left as it is.
    """
    for (tid, start), mask in masks.items():
        if tid not in later and (within is None or mask <= within):
            _again(tid, start, mask)


def _again(tid: int, start: int, mask: CpuSet) -> CpuSet | None:
    """The mask afterwards; None: the thread is gone."""
    stat = stat_of(tid)
    if stat is None or stat.start_time != start or stat.kernel_thread:
        return None
    now = mask_of(tid)
    if now is None or now == mask:
        return now
    try:
        os.sched_setaffinity(tid, mask.ids)
    except OSError:
        return now
    return mask_of(tid)


def changed_later(masks: Masks, ours: CpuSet, room: CpuSet, *, whole: bool) -> frozenset[int]:
    """Threads that somebody bound to something else after the cpuset was set to `ours`.

    `room`: what the cpuset gives now; before Linux 6.2 that is the mask of every thread in it.
    `whole`: the act had finished, masks and all; before that a thread that may run everywhere has
    lost its mask to the kernel, which takes those of the whole host with the controller.
    """
    free = (affinity.online() or room) if not whole else room
    found = set()
    for (tid, start), mask in masks.items():
        now = mask_of(tid)
        if now is None or now in (mask, ours, mask & ours, mask - ours, room, free):
            continue
        stat = stat_of(tid)
        if stat is not None and stat.start_time == start:
            found.add(tid)
    return frozenset(found)


def put_back(masks: Masks, later: frozenset[int]) -> str:
    """The former masks, but for `later`. What could not be, in words; "": all of it is."""
    left = [
        tid
        for (tid, start), mask in masks.items()
        if tid not in later and _again(tid, start, mask) not in (None, mask)
    ]
    said = []
    if later:
        said.append(f"{_threads(sorted(later))} somebody bound later is left there")
    if left:
        said.append(f"{_threads(left)} may not have its former CPUs any more")
    return "; ".join(said)


def _threads(tids: list[int]) -> str:
    more = f" (and {len(tids) - 1} more)" if len(tids) > 1 else ""
    return f"thread {tids[0]}{more}, which" if more else f"thread {tids[0]}, which"
