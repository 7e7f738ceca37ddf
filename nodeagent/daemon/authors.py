"""Who changed a mask: from the kernel's records to the author of a drift. Pure.

A record is kept until its thread was seen inside its set again, so that a drift that waits for the
journal still has its author; and never blamed for what it did not ask for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nodeagent.daemon.guard import Author
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.notice import Change, Kind
from nodeagent.model.placement import ProcessState, ThreadState

MAX_KEPT = 4096
"""Records kept; the oldest go first, and their drifts have an unknown author."""

OWN_PROGRAM = "its own program"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """An author, and what it asked for where that is told."""

    author: Author
    mask: CpuSet | None


Kept = Mapping[tuple[int, int], tuple[Asked, ...]]
"""(pid, tid; 0: the whole process) -> the last two changes, newest first."""


def author_of(change: Change) -> Author:
    """Who it is, for people; and what tells it again under another pid."""
    if change.by_pid == change.pid:
        return Author(name=f"{OWN_PROGRAM} ({change.comm})", key=OWN_PROGRAM, at_ns=change.at_ns)
    parts = [f"pid {change.by_pid}"]
    person = change.login is not None
    if person:
        session = "" if change.session is None else f" in session {change.session}"
        parts.append(f"login of {change.login_name}{session}")
    elif change.unit:
        parts.append(change.unit)
    else:
        parts.append(f"user {change.user}")
    what = {
        Kind.CGROUP: ", by its cgroup",
        Kind.CPUSET: f", by writing {change.file or 'a cpuset'}",
    }.get(change.kind, "")
    return Author(
        name=f"{change.comm} ({', '.join(parts)}){what}",
        person=person,
        key=change.unit or f"{change.comm} of user {change.user}",
        at_ns=change.at_ns,
    )


def merged(kept: Kept, changes: Iterable[Change], alive: Iterable[int]) -> Kept:
    """With what came since, without what belongs to processes that ended."""
    now = dict(kept)
    for change in changes:
        key = change.pid, change.tid
        asked = Asked(author=author_of(change), mask=change.mask)
        now[key] = (asked, *now.pop(key, ()))[:2]
    pids = set(alive)
    now = {key: asked for key, asked in now.items() if key[0] in pids}
    for key in list(now)[: max(0, len(now) - MAX_KEPT)]:
        del now[key]
    return now


def settled(kept: Kept, process: ProcessState, seats: Mapping[int, CpuSet], read_ns: int) -> Kept:
    """Without the records whose threads were seen inside their sets after them."""
    if not any(pid == process.pid for pid, _ in kept):
        return kept
    outside = {t.tid for t in process.threads if not t.cpus <= seats[t.tid]}
    done = {
        (pid, tid)
        for (pid, tid), asked in kept.items()
        if pid == process.pid
        and asked[0].author.at_ns < read_ns
        and (tid not in outside if tid else not outside)
    }
    return {key: asked for key, asked in kept.items() if key not in done} if done else kept


def blamed(
    kept: Kept, process: ProcessState, seats: Mapping[int, CpuSet], since_ns: int
) -> dict[int, Author]:
    """Thread -> the author of where it is, for threads outside their sets.

    `since_ns`: when the pin was last known to hold; what was changed before says nothing.
    """
    found: dict[int, Author] = {}
    for thread in process.threads:
        seat = seats[thread.tid]
        if thread.cpus <= seat:
            continue
        asked = (*kept.get((process.pid, thread.tid), ()), *kept.get((process.pid, 0), ()))
        fitting = [a.author for a in asked if a.author.at_ns >= since_ns and _did(a, thread, seat)]
        if fitting:
            found[thread.tid] = max(fitting, key=lambda author: author.at_ns)
    return found


def _did(asked: Asked, thread: ThreadState, seat: CpuSet) -> bool:
    """Whether what was asked for leads to what is. The kernel gives a part of what is asked."""
    return asked.mask is None or (thread.cpus <= asked.mask and not asked.mask <= seat)
