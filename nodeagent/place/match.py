"""Which processes a workload is, and which threads a role: pure, over process states."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase, translate

from nodeagent.model.cgroup import Container
from nodeagent.model.placement import (
    Match,
    ProcessState,
    Role,
    Sharing,
    Target,
    ThreadState,
    Workload,
)

MAX_EXPLAINED = 4
"""Workloads without a process of which it is said what was looked for."""


def matches(match: Match, process: ProcessState) -> bool:
    """Whether every given criterion fits. A match without any criterion fits nothing.

    Shell patterns all, but `pid`, and `cmdline`, which is searched as a regular expression;
    `cgroup` also fits what lies below it. What is not known of a process (the title of a kernel
    thread, the name of a container whose runtime did not answer) fits nothing. Process 1 and the
    kernel's own threads are nobody's, whatever fits them.
    """
    return _compiled(match)(process)


@functools.lru_cache(1024)
def _compiled(match: Match) -> Callable[[ProcessState], bool]:
    """Asked of every process of a node for every workload: the patterns are made ready once, and
    the cheapest and most telling criteria come first."""
    tests: list[Callable[[ProcessState], bool]] = []
    pid, comm, title, cmdline = match.pid, match.comm, match.title, match.cmdline
    unit, cgroup, parent = match.unit, match.cgroup, match.parent
    container, image, label = match.container, match.image, match.label
    if pid is not None:
        tests.append(lambda p: p.pid == pid)
    if match.user is not None:
        uid = match.uid
        tests.append(lambda p: p.uid == uid)
    if comm is not None:
        named = _shell(comm)
        tests.append(lambda p: named(p.comm) is not None)
    if container is not None or image is not None or label is not None:
        tests.append(lambda p: p.container is not None)
    if title is not None:
        titled = _shell(title)
        tests.append(lambda p: bool(p.title) and titled(p.title) is not None)
    if cmdline is not None:
        searched = re.compile(cmdline).search
        tests.append(lambda p: bool(p.title) and searched(p.title) is not None)
    if parent is not None:
        born = _shell(parent)
        tests.append(lambda p: bool(p.parent_title) and born(p.parent_title) is not None)
    if unit is not None:
        tests.append(lambda p: _part(p.cgroup, unit))
    if cgroup is not None:
        tests.append(lambda p: _below(p.cgroup, cgroup))
    if container is not None:
        tests.append(lambda p: _named(p.container, container))
    if image is not None:
        tests.append(lambda p: _imaged(p.container, image))
    if label is not None:
        tests.append(lambda p: _labelled(p.container, label))
    if not tests:
        return lambda _: False
    first, *rest = tests
    return lambda p: first(p) and all(test(p) for test in rest) and not _the_systems(p)


def _the_systems(process: ProcessState) -> bool:
    """Process 1 and the kernel's threads (children of kthreadd, 2) are never anybody's workload."""
    return process.pid == 1 or (not process.title and 2 in (process.pid, process.ppid))


def _shell(pattern: str) -> Callable[[str], re.Match[str] | None]:
    return re.compile(translate(pattern)).match


def _part(cgroup: str, pattern: str) -> bool:
    """A unit without a suffix is a service, as it is for systemctl."""
    parts = [part for part in cgroup.split("/") if part]
    if "." not in pattern and f"{pattern}.service" in parts:
        return True
    return any(fnmatchcase(part, pattern) for part in parts)


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
    fit = _compiled(match)
    return tuple(sorted((p for p in processes if fit(p)), key=lambda p: p.pid))


def with_users(workloads: Iterable[Workload], users: Mapping[str, int]) -> tuple[Workload, ...]:
    """The same, with the number of each user that a match names; `users`: those known here."""
    return tuple(
        w
        if w.match.user is None or w.match.uid is not None
        else replace(w, match=replace(w.match, uid=users.get(w.match.user)))
        for w in workloads
    )


def doubtful(workloads: Iterable[Workload]) -> tuple[str, ...]:
    """A sentence on exclusive workloads that anybody's process can pass for."""
    names = [w.name for w in workloads if w.sharing is Sharing.EXCLUSIVE and w.match.fakeable]
    if not names:
        return ()
    more = f" and {len(names) - MAX_EXPLAINED} more" if len(names) > MAX_EXPLAINED else ""
    return (
        f"warning: any user's process can pass for {', '.join(names[:MAX_EXPLAINED])}{more} and "
        "take its exclusive CPUs: a program says its own title and name; add user, unit, cgroup "
        "or container to the match",
    )


def unmatched(
    workloads: Sequence[Workload], idle: Sequence[str], processes: Sequence[ProcessState]
) -> tuple[str, ...]:
    """Sentences on workloads that no process fits: of a few, what was looked for and how many
    processes fit each criterion by itself, for a pattern with a slip is seen by that."""
    if not idle:
        return ()
    if len(idle) > MAX_EXPLAINED:
        return (f"no process matches: {', '.join(idle)}",)
    by_name = {w.name: w.match for w in workloads}
    return tuple(
        f"no process matches: {name} ({_criteria(by_name[name], processes)})" for name in idle
    )


def _criteria(match: Match, processes: Sequence[ProcessState]) -> str:
    given = {f.name: getattr(match, f.name) for f in dataclasses.fields(match)}
    uid = given.pop("uid")
    told = {name: value for name, value in given.items() if value is not None}
    unknown = "" if match.user is None or uid is not None else "; no such user is known here"
    if len(told) == 1:
        return "".join(f"{name} {value!r}" for name, value in told.items()) + unknown

    def counted(name: str) -> int:
        alone = Match(**{name: told[name]}, uid=uid if name == "user" else None)
        return len(matching(alone, processes))

    each = (f"{n} {v!r} by itself: {counted(n) or 'none'}" for n, v in told.items())
    return ", ".join(each) + unknown


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
    # Many ranks of one engine search the same thing in the same titles.
    searched: dict[str, Sequence[ProcessState]] = {}
    for workload in workloads:
        cmdline = workload.match.cmdline
        some = processes
        if cmdline is not None:
            if cmdline not in searched:
                searched[cmdline] = matching(Match(cmdline=cmdline), processes)
            some = searched[cmdline]
        found = matching(workload.match, some)
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
