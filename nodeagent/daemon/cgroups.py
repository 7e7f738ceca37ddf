"""Which processes live below a cgroup that the kernel named by its number."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from nodeagent.model.notice import Change, Kind
from nodeagent.model.placement import ProcessState

ROOTS = tuple(Path("/sys/fs/cgroup") / name for name in ("", "unified", "cpuset"))
"""Mounts of the unified hierarchy, and of cpuset in the first version."""
MAX_SPREAD = 1024
"""Records that the changes of one look become at most."""


def spread(
    changes: Iterable[Change], processes: Iterable[ProcessState], roots: Iterable[Path] = ROOTS
) -> Iterator[Change]:
    """The changes, and for each write to a cpuset one for each process below it.

    A cgroup's number is the inode of its folder. Source: include/linux/kernfs.h, kernfs_ino().
    """
    found = 0
    several, mounts = list(processes), list(roots)
    for change in changes:
        if change.kind is not Kind.CPUSET or change.pid:
            yield change
            continue
        for process in several:
            if found < MAX_SPREAD and _below(change.cgroup_id, process.cgroup, mounts):
                found += 1
                yield replace(change, pid=process.pid)


def _below(number: int, path: str, roots: list[Path]) -> bool:
    parts = [part for part in path.split("/") if part and part != ".."]
    for root in roots:
        for depth in range(len(parts) + 1):
            with contextlib.suppress(OSError):
                if root.joinpath(*parts[:depth]).stat().st_ino == number:
                    return True
    return False
