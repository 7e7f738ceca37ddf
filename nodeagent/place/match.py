"""Which processes a workload is: pure, over process states."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from nodeagent.model.placement import Match, ProcessState, Target, Workload


def matches(match: Match, process: ProcessState) -> bool:
    """Whether every given criterion fits. A match without any criterion fits nothing.

    `title` and `unit` are shell patterns; `cgroup` is one too, and also fits what lies below it;
    `cmdline` is searched as a regular expression. A kernel thread has an empty title and fits
    none of the two.
    """
    given = 0
    if match.pid is not None:
        given += 1
        if process.pid != match.pid:
            return False
    if match.comm is not None:
        given += 1
        if not fnmatchcase(process.comm, match.comm):
            return False
    if match.title is not None:
        given += 1
        if not process.title or not fnmatchcase(process.title, match.title):
            return False
    if match.cmdline is not None:
        given += 1
        if not process.title or re.search(match.cmdline, process.title) is None:
            return False
    if match.unit is not None:
        given += 1
        if not any(fnmatchcase(part, match.unit) for part in process.cgroup.split("/") if part):
            return False
    if match.cgroup is not None:
        given += 1
        wanted = match.cgroup.rstrip("/") or "/"
        inside = process.cgroup == wanted or fnmatchcase(process.cgroup, wanted)
        if not inside and not fnmatchcase(process.cgroup, wanted.rstrip("/") + "/*"):
            return False
    return given > 0


def matching(match: Match | None, processes: Iterable[ProcessState]) -> tuple[ProcessState, ...]:
    """The processes that fit, by pid."""
    if match is None:
        return ()
    return tuple(sorted((p for p in processes if matches(match, p)), key=lambda p: p.pid))


def claims(
    workloads: Sequence[Workload], processes: Sequence[ProcessState]
) -> tuple[dict[str, tuple[Target, ...]], dict[str, str]]:
    """(workload -> its processes, workload -> why it may not have them).

    A process belongs to one workload: the first in the file's order. A later one that fits the
    same process gets no process at all, and a sentence.
    """
    owner: dict[int, str] = {}
    mine: dict[str, tuple[Target, ...]] = {}
    contested: dict[str, str] = {}
    for workload in workloads:
        found = matching(workload.match, processes)
        taken = next((p for p in found if p.pid in owner), None)
        if taken is not None:
            contested[workload.name] = (
                f"it matches process {taken.pid} ({taken.comm}), which workload "
                f"{owner[taken.pid]} matches too"
            )
            continue
        owner.update((p.pid, workload.name) for p in found)
        mine[workload.name] = tuple(
            Target(pid=p.pid, tid=0, start_time=p.start_time) for p in found
        )
    return mine, contested
