"""What this host offers to hold processes with: cgroup version, systemd, the cpuset controller.

Source: cgroups(7), Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.discover.root import Root
from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import PARTITION_ROOT
from nodeagent.place.holders import Facts

_CGROUP = "sys/fs/cgroup"
_AT_BOOT = "sys/devices/system/cpu/isolated"


def facts(root: Root, runtimes: Iterable[str] = (), isolating: Iterable[str] = ()) -> Facts | None:
    """None: a recorded machine that does not tell. `runtimes`: those that may be called;
    `isolating`: workloads to isolate by partitions, none where isolcpus= isolates already."""
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
        isolating=frozenset() if _cpus(root, _AT_BOOT) else frozenset(isolating),
        partitions=_partitions(root, isolating),
    )


def _partitions(root: Root, names: Iterable[str]) -> dict[str, CpuSet]:
    found: dict[str, CpuSet] = {}
    for name in names:
        group = f"{_CGROUP}{PARTITION_ROOT}{name}"
        verdict = root.peek(f"{group}/cpuset.cpus.partition", 4096)
        cpus = _cpus(root, f"{group}/cpuset.cpus")
        if verdict is not None and verdict.strip() == b"isolated" and cpus:
            found[name] = cpus
    return found


def _cpus(root: Root, path: str) -> CpuSet | None:
    data = root.peek(path, 1 << 16)
    try:
        return None if data is None else CpuSet.parse(data.decode("ascii", "replace").strip())
    except ParseError:
        return None


def _words(root: Root, path: str) -> list[str] | None:
    data = root.peek(path, 4096)
    return None if data is None else data.decode("ascii", "replace").split()


def _v1(line: bytes) -> bool:
    """Whether a line of /proc/PID/cgroup is of a v1 hierarchy with the cpuset controller."""
    fields = line.split(b":", 2)
    return len(fields) == 3 and b"cpuset" in fields[1].split(b",")
