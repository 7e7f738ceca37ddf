"""What the kernel told of guarded processes: what happened, and who changed where they run."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from nodeagent.model.cpuset import CpuSet


class Kind(enum.StrEnum):
    """What happened; the order is that of bpf/guard_abi.h."""

    FORK = "fork"
    EXEC = "exec"
    EXIT = "exit"
    MOVED = "moved"
    """A thread went to a CPU outside its process's mask."""
    AFFINITY = "affinity"
    CGROUP = "cgroup"
    """A process was moved to another cgroup, or its cgroup's cpuset was changed."""
    CPUSET = "cpuset"
    """A file of a cpuset was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Who changed where a process may run, as the kernel knew the author at that moment."""

    kind: Kind
    at_ns: int
    """CLOCK_REALTIME."""
    pid: int
    """The process that was changed; 0: every one below cgroup `cgroup_id`."""
    tid: int
    """The thread; 0: all of them."""
    by_pid: int
    comm: str
    uid: int
    user: str
    """Name of `uid`, or its number."""
    login: int | None
    """The user who logged in (loginuid); None: it descends from no login session."""
    login_name: str
    """Name of `login`, or its number; empty: None."""
    session: int | None
    """The audit subsystem's number of that session."""
    unit: str = ""
    """systemd's unit, by the cgroup; empty: none, or no unified hierarchy."""
    mask: CpuSet | None = None
    """What was asked for; None: the way the kernel was asked does not tell."""
    cgroup_id: int = 0
    """CPUSET: of the cpuset; CGROUP: of the cgroup it went to; 0: not told."""
    file: str = ""
    """CPUSET: the file that was written; CGROUP: the path it went to, where told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed:
    """What came since the last look."""

    pids: frozenset[int] = frozenset()
    """Guarded processes to which something happened."""
    kinds: frozenset[Kind] = frozenset()
    changes: tuple[Change, ...] = ()
    lost: int = 0
    """Records that the ring had no room for."""
    first_ns: int | None = None
    """CLOCK_MONOTONIC of the oldest record; None: nothing came."""


def unit_of(leaf: str, parent: str) -> str:
    """systemd's unit of a process in cgroup .../parent/leaf; "" when neither is one. Pure.

    Below a delegated unit the kernel's record has only two names: deeper ones are not told.
    """
    for name in (leaf, parent):
        if name.endswith((".service", ".scope")):
            return name
    return ""
