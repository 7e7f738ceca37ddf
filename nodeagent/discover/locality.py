"""Where the memory of processes lies, at a price the daemon's turn can pay.

Two sources, neither of which reads numa_maps: a few thousand pages of a process asked by a child
(sample_child.py; it needs the right to look into the process), and the kernel's own count for a
whole cgroup (memory.numa_stat of cgroup v2, which anybody may read).

Source: move_pages(2), Documentation/admin-guide/cgroup-v2.rst "memory.numa_stat".
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from nodeagent.child import Child
from nodeagent.discover.root import Root, is_number
from nodeagent.model.memory import MemorySeen

EVERY_S = 30.0
"""Pause between two looks."""
REFUSED_S = 600.0
"""Pause after a look in which no process could be looked into."""
DEADLINE_S = 0.5
PERSON_S = 5.0
"""For somebody who waits for it."""
MAX_PIDS = 128
MAX_CGROUPS = 128
MIN_PAGES = 64
"""A share of fewer pages in memory says nothing, unless every page was asked about."""
NODES = "sys/devices/system/node/has_memory"
CGROUPS = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
_COUNTED = ("anon", "file_mapped")
"""What processes have in memory; the rest is cache, and the kernel's own."""


class Locality:
    """Looks every EVERY_S. Nothing is read where there is one node with memory."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._child: Child | None = None
        self._next_s = float("-inf")
        self._ask_s = float("-inf")
        nodes = root.cpus(NODES)
        self._several = nodes is not None and len(nodes) > 1

    @property
    def child_pid(self) -> int | None:
        """The sample child, while one waits."""
        return None if self._child is None else self._child.pid

    def look(self, processes: Iterable[tuple[int, str]], now_s: float) -> MemorySeen | None:
        """(pid, cgroup) of each process that is placed; None: not the time yet. `now_s` is
        monotonic."""
        if not self._several or now_s < self._next_s:
            return None
        wanted = list(processes)
        if not wanted:
            return None
        self._next_s = now_s + EVERY_S
        cgroups = sorted({cgroup for _, cgroup in wanted if cgroup not in ("", "/")})
        by_cgroup = {c: found for c in cgroups[:MAX_CGROUPS] if (found := self._cgroup(c))}
        return MemorySeen(by_pid=self._sampled([p for p, _ in wanted], now_s), by_cgroup=by_cgroup)

    def close(self) -> None:
        """Lets the child go."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def _cgroup(self, cgroup: str) -> dict[int, int]:
        """Bytes by node of a cgroup and all below it; empty: not told."""
        for top in CGROUPS:
            data = self._root.peek(f"{top}{cgroup}/memory.numa_stat", 1 << 16)
            if data is not None:
                return numa_stat(data.decode("utf-8", "replace"))
        return {}

    def _sampled(self, pids: list[int], now_s: float) -> dict[int, dict[int, int]]:
        if now_s < self._ask_s:
            return {}
        if self._child is None:
            self._child = _sampler()
        answer = self._child.ask(" ".join(map(str, pids[:MAX_PIDS])), DEADLINE_S)
        if not answer:
            # No right, no native code, or it hangs: all three are rarely otherwise a moment later.
            self._ask_s = now_s + REFUSED_S
        if not self._child.hung:
            # Between two looks it would only lie there.
            self.close()
        return _counted(answer or ())


def sampled(pids: Sequence[int]) -> tuple[dict[int, dict[int, int]], str]:
    """For a person: pages in memory by node of each process, of those sampled; and why some are
    missing. It costs the processes nothing to speak of."""
    child = _sampler()
    try:
        answer = child.ask(" ".join(map(str, pids[:MAX_PIDS])), PERSON_S)
        reason = child.reason
    finally:
        child.close()
    return _counted(answer or ()), "" if answer is not None else reason


def _sampler() -> Child:
    return Child([sys.executable, "-I", str(Path(__file__).with_name("sample_child.py"))])


def _counted(answer: Iterable[str]) -> dict[int, dict[int, int]]:
    found = {}
    for line in answer:
        pid, asked, *pairs = line.split()
        nodes = [p.partition(":") for p in pairs]
        if all(map(is_number, (pid, asked))) and all(
            is_number(n) and is_number(c) for n, _, c in nodes
        ):
            counts = {int(n): int(c) for n, _, c in nodes}
            if sum(counts.values()) >= MIN_PAGES:
                found[int(pid)] = counts
    return found


def numa_stat(text: str) -> dict[int, int]:
    """Bytes by node that processes have in memory, off a memory.numa_stat."""
    found: dict[int, int] = {}
    for line in text.splitlines():
        name, *pairs = line.split()
        if name not in _COUNTED:
            continue
        for pair in pairs:
            node, _, bytes_ = pair.removeprefix("N").partition("=")
            if is_number(node) and is_number(bytes_):
                found[int(node)] = found.get(int(node), 0) + int(bytes_)
    return found
