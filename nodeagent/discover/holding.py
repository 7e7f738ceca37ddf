"""What this host offers to hold processes with: cgroup version, systemd, the cpuset controller.

Source: cgroups(7), Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.discover.root import Root
from nodeagent.place.holders import Facts

_CGROUP = "sys/fs/cgroup"


def facts(root: Root, runtimes: Iterable[str] = ()) -> Facts | None:
    """None: a recorded machine that does not tell. `runtimes`: those that may be called."""
    controllers = _words(root, f"{_CGROUP}/cgroup.controllers")
    given = _words(root, f"{_CGROUP}/cgroup.subtree_control")
    joined = root.peek("proc/1/cgroup", 1 << 16)
    first = root.peek("proc/1/comm", 64)
    if controllers is None and joined is None:
        return None
    version = None
    if "cpuset" in (controllers or ()):
        version = 2
    elif any(_v1(line) for line in (joined or b"").splitlines()):
        version = 1
    return Facts(
        version=version,
        systemd=first is not None and first.strip() == b"systemd",
        controller="cpuset" in (given or ()),
        runtimes=frozenset(runtimes),
    )


def _words(root: Root, path: str) -> list[str] | None:
    data = root.peek(path, 4096)
    return None if data is None else data.decode("ascii", "replace").split()


def _v1(line: bytes) -> bool:
    """Whether a line of /proc/PID/cgroup is of a v1 hierarchy with the cpuset controller."""
    fields = line.split(b":", 2)
    return len(fields) == 3 and b"cpuset" in fields[1].split(b",")
