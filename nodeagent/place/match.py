"""Which processes a workload is, and which threads a role: pure, over process states."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from nodeagent.model.cgroup import Container
from nodeagent.model.placement import (
    Match,
    ProcessState,
    Role,
    Target,
    ThreadState,
    Workload,
)


def matches(match: Match, process: ProcessState) -> bool:
    """Whether every given criterion fits. A match without any criterion fits nothing.

    Shell patterns all, but `pid`, and `cmdline`, which is searched as a regular expression;
    `cgroup` also fits what lies below it. What is not known of a process (the title of a kernel
    thread, the name of a container whose runtime did not answer) fits nothing.
    """
    if match == _NOTHING:
        return False
    return (
        (match.pid is None or process.pid == match.pid)
        and (match.comm is None or fnmatchcase(process.comm, match.comm))
        and (match.title is None or _known(process.title, match.title))
        and (match.cmdline is None or _searched(process.title, match.cmdline))
        and (match.parent is None or _known(process.parent_title, match.parent))
        and (match.unit is None or _part(process.cgroup, match.unit))
        and (match.cgroup is None or _below(process.cgroup, match.cgroup))
        and (match.container is None or _named(process.container, match.container))
        and (match.image is None or _imaged(process.container, match.image))
        and (match.label is None or _labelled(process.container, match.label))
    )


_NOTHING = Match()


def _known(text: str, pattern: str) -> bool:
    return bool(text) and fnmatchcase(text, pattern)


def _searched(title: str, pattern: str) -> bool:
    return bool(title) and re.search(pattern, title) is not None


def _part(cgroup: str, pattern: str) -> bool:
    return any(fnmatchcase(part, pattern) for part in cgroup.split("/") if part)


def _below(cgroup: str, path: str) -> bool:
    wanted = path.rstrip("/") or "/"
    if cgroup == wanted or fnmatchcase(cgroup, wanted):
        return True
    return fnmatchcase(cgroup, wanted.rstrip("/") + "/*")


def _named(container: Container | None, pattern: str) -> bool:
    """By its name, or by its id: whole, or the 12 digits that runtimes print."""
    if container is None:
        return False
    names = (container.id, container.id[:12], container.name)
    return any(fnmatchcase(name, pattern) for name in names if name)


def image_names(image: str) -> tuple[str, ...]:
    """What people call an image: with and without registry, with and without tag or digest."""
    head, slash, rest = image.partition("/")
    hosted = slash and ("." in head or ":" in head or head == "localhost")
    short = rest if hosted else image
    short = short.removeprefix("library/") if hosted else short
    names = [image, short]
    for name in (image, short):
        bare = name.partition("@")[0]
        before, _, last = bare.rpartition("/")
        names += [bare, f"{before}/{last.partition(':')[0]}" if before else last.partition(":")[0]]
    return tuple(dict.fromkeys(names))


def _imaged(container: Container | None, pattern: str) -> bool:
    if container is None or not container.image:
        return False
    return any(fnmatchcase(name, pattern) for name in image_names(container.image))


def _labelled(container: Container | None, label: str) -> bool:
    key, _, pattern = label.partition("=")
    labels = container.labels if container is not None else ()
    return any(k == key and fnmatchcase(v, pattern) for k, v in labels)


def like(text: str, patterns: str) -> bool:
    """Whether a text that is known fits one of the shell patterns that `|` parts."""
    return bool(text) and any(fnmatchcase(text, p) for p in patterns.split("|"))


def fits(role: Role, process: ProcessState, thread: ThreadState) -> bool:
    """Whether every criterion of a role that is given fits; a role without any fits all."""
    if role.main is not None and role.main is not (thread.tid == process.pid):
        return False
    if role.title is not None and not like(process.title, role.title):
        return False
    if role.parent is not None and not like(process.parent_title, role.parent):
        return False
    return role.comm is None or like(thread.comm, role.comm)


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
