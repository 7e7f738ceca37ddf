"""Control groups: the tree of version 2, or version 1's cpuset and cpu trees, as settings texts.

Of each group only the files that are there are read: which CPUs and nodes, which partition and
why it is none, which quota and how often it held the group back.

Source: Documentation/admin-guide/cgroup-v2.rst; cgroup-v1/cpusets.rst; scheduler/sched-bwc.rst.
"""

from __future__ import annotations

import re

from nodeagent.discover.root import Root

TOP = "sys/fs/cgroup"
MAX_GROUPS = 2048
"""Groups looked at in each tree, those nearest to its root first."""
MAX_DEPTH = 10
LEFT_OUT = "derived/cgroups_left_out"
"""`texts` key: how many groups were not looked at; absent: none."""

_FILE = re.compile(
    r"(cgroup|cpuset|cpu|cpuacct|memory|io|blkio|pids|hugetlb|rdma|misc|irq|dmem|devices|freezer|"
    r"net_cls|net_prio|perf_event)\..+|tasks|notify_on_release|release_agent"
)
_V2 = (
    *("cpuset.cpus", "cpuset.cpus.effective", "cpuset.cpus.partition"),
    *("cpuset.cpus.exclusive", "cpuset.cpus.exclusive.effective"),
    *("cpuset.mems", "cpuset.mems.effective", "cpu.max", "cpu.idle", "cgroup.type"),
)
_V2_TOP = ("cgroup.controllers", "cgroup.subtree_control", "cpuset.cpus.isolated")
_V1_CPUSET = (
    *("cpuset.cpus", "cpuset.effective_cpus", "cpuset.mems", "cpuset.effective_mems"),
    *("cpuset.cpu_exclusive", "cpuset.sched_load_balance", "cpuset.memory_migrate"),
)
_V1_CPU = ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.rt_runtime_us")


def read_cgroups(root: Root) -> dict[str, str]:
    """Path -> text of what was read, of whichever trees are mounted in their usual places."""
    found: dict[str, str] = {}
    left = 0
    names = frozenset(root.names(TOP))
    if "cgroup.controllers" in names:
        left += _walk(root, TOP, _V2, found)
    else:
        for name, files in (
            ("unified", _V2),
            ("cpuset", _V1_CPUSET),
            ("cpu,cpuacct" if "cpu,cpuacct" in names else "cpu", _V1_CPU),
        ):
            if name in names:
                left += _walk(root, f"{TOP}/{name}", files, found)
        if not names:
            # A tree recorded by hand may hold some groups and no list of controllers.
            return found
    if left:
        found[LEFT_OUT] = str(left)
    return found


def _walk(root: Root, top: str, files: tuple[str, ...], found: dict[str, str]) -> int:
    """Breadth first; how many groups were left out."""
    todo = [(top, 0)]
    seen = 0
    while seen < len(todo) and seen < MAX_GROUPS:
        group, depth = todo[seen]
        seen += 1
        names = root.names(group)
        there = frozenset(names)
        for name in files if group != top else (*_V2_TOP, *files):
            if name in there:
                text = root.text(f"{group}/{name}", quiet=True)
                if text is not None:
                    found[f"{group}/{name}"] = text
        if "cpu.stat" in there and _has_quota(group, found):
            text = root.text(f"{group}/cpu.stat", quiet=True)
            if text is not None:
                found[f"{group}/cpu.stat"] = text
        if depth < MAX_DEPTH:
            todo += [(f"{group}/{n}", depth + 1) for n in names if not _FILE.fullmatch(n)]
    return len(todo) - seen


def _has_quota(group: str, found: dict[str, str]) -> bool:
    """Whether a group's CPU time is bounded: cpu.stat counts throttling only then."""
    v2, v1 = found.get(f"{group}/cpu.max"), found.get(f"{group}/cpu.cfs_quota_us")
    return (v2 is not None and not v2.startswith("max")) or (v1 is not None and v1[:1] != "-")
