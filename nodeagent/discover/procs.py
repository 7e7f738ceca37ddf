"""Processes and their threads: who runs, where each thread may run, where it ran last.

The caller reads only stat, status, comm and cgroup, which take no lock of the process; command
lines come from the process child (title_child.py). Processes that vanish are normal.

Source: Documentation/filesystems/proc.rst (stat fields), sched_getaffinity(2).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from nodeagent.child import Child
from nodeagent.discover.containers import Containers
from nodeagent.discover.root import Root, is_number
from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import ProcessState, ThreadState

MAX_PROCESSES = 32_768
MAX_THREADS = 65_536
"""Threads read in one scan, of all processes together; `overflow` counts the rest."""
TITLE_DEADLINE_S = 0.5
"""For all command lines of one scan, the child's start included: what a turn of the loop has."""
PATIENCE_S = 10.0
"""The same where a person waits: a node so busy that it takes seconds must still be read right."""
SETTLED_S = 60.0
"""Until then a process of root's is asked anew who it runs as."""
PF_KTHREAD = 0x00200000
"""Flag in stat field 9. Source: include/linux/sched.h."""


class Processes:
    """Scans /proc below a root. `title_reason` says why titles are missing; "": they are not.

    `labels`: containers' labels are asked for even where that means to start the runtime's tool.
    `titles_s`: how long a scan waits for titles.
    """

    def __init__(
        self, root: Root, *, labels: bool = False, titles_s: float = TITLE_DEADLINE_S
    ) -> None:
        self._titles_s = titles_s
        self._root = root
        self._child: Child | None = None
        self._titles: dict[tuple[int, int], str] = {}
        self._uids: dict[tuple[int, int], tuple[int, float]] = {}
        """Effective user, and when it was first seen (monotonic)."""
        self._by_pid: dict[int, str] = {}
        self._containers = Containers(root, labels=labels)
        self.title_reason = ""
        self.overflow = 0
        """Threads that the last scan left out (MAX_THREADS)."""

    def close(self) -> None:
        """Lets the process child go."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def scan(self, *, threads: bool = True, kernel: bool = False) -> tuple[ProcessState, ...]:
        """Every process, ascending pids, with fresh titles; kernel threads only if asked for.

        `threads=False` leaves `ProcessState.threads` empty: read() fills those that matter.
        """
        stats = {}
        for pid in self._root.pids()[:MAX_PROCESSES]:
            stat = self._stat(f"proc/{pid}/stat")
            if stat is not None and (kernel or not stat.flags & PF_KTHREAD):
                stats[pid] = stat
        alive = {(pid, stat.start) for pid, stat in stats.items()}
        self._titles = {k: t for k, t in self._titles.items() if k in alive}
        self._ask_titles(stats)
        self._by_pid = {pid: title for (pid, _), title in self._titles.items()}
        self._uids = {k: v for k, v in self._uids.items() if k in alive}
        self.overflow = 0
        left = MAX_THREADS
        found = []
        for pid, stat in stats.items():
            state = self._state(pid, stat, left if threads else 0)
            if state is not None:
                left -= len(state.threads)
                found.append(state)
        self._containers.forget(frozenset(p.container.id for p in found if p.container))
        return tuple(found)

    def meet(self, pids: Iterable[int]) -> tuple[ProcessState, ...]:
        """Those processes only, with fresh titles and without threads: for pids that are new."""
        stats = {}
        for pid in pids:
            stat = self._stat(f"proc/{pid}/stat")
            if stat is not None and not stat.flags & PF_KTHREAD:
                stats[pid] = stat
        self._ask_titles(stats)
        self._by_pid |= {pid: self._titles.get((pid, s.start), "") for pid, s in stats.items()}
        states = (self._state(pid, stat, 0) for pid, stat in stats.items())
        return tuple(s for s in states if s is not None)

    def pids(self) -> tuple[int, ...]:
        """Every pid, ascending: one directory listing."""
        return self._root.pids()

    @property
    def child_pid(self) -> int | None:
        """The process child, while it runs."""
        return None if self._child is None else self._child.pid

    def read(self, pids: Iterable[int]) -> tuple[ProcessState, ...]:
        """Those processes again, with the titles that the last scan saw; the ended ones are left
        out."""
        found = []
        for pid in pids:
            stat = self._stat(f"proc/{pid}/stat")
            state = None if stat is None else self._state(pid, stat, MAX_THREADS)
            if state is not None:
                found.append(state)
        return tuple(found)

    @property
    def container_reason(self) -> str:
        """Why names, images or labels of containers are missing; "": they are not."""
        return self._containers.reason

    def threads(self, pid: int) -> tuple[ThreadState, ...]:
        """That process's threads, ascending; none when it ended."""
        return self._threads(pid, MAX_THREADS)

    # ---- one process -----------------------------------------------------------------------

    def _state(self, pid: int, stat: _Stat, limit: int) -> ProcessState | None:
        key = (pid, stat.start)
        cgroup = _cgroup(self._root.peek(f"proc/{pid}/cgroup", 1 << 16))
        uid = self._user_of(pid, key)
        if uid is None:
            return None
        return ProcessState(
            pid=pid,
            start_time=stat.start,
            comm=stat.comm,
            title=self._titles.get(key, ""),
            cgroup=cgroup,
            threads=self._threads(pid, limit) if limit > 0 else (),
            ppid=stat.ppid,
            uid=uid,
            parent_title=self._by_pid.get(stat.ppid, ""),
            container=self._containers.of(cgroup),
        )

    def _user_of(self, pid: int, key: tuple[int, int]) -> int | None:
        """Services are started as root and become their own user a little later: root's are asked
        again while they are young."""
        now = time.monotonic()
        uid, since = self._uids.get(key, (None, now))
        if uid is None or (uid == 0 and now - since < SETTLED_S):
            uid = _uid(self._root.peek(f"proc/{pid}/status", 1 << 16))
            if uid is not None:
                self._uids[key] = uid, since
        return uid

    def _threads(self, pid: int, limit: int) -> tuple[ThreadState, ...]:
        found = []
        tids = self._root.tids(pid)
        self.overflow += max(0, len(tids) - limit)
        for tid in tids[:limit]:
            stat = self._stat(f"proc/{pid}/task/{tid}/stat")
            cpus = None if stat is None else self._affinity(pid, tid)
            if stat is not None and cpus is not None:
                found.append(
                    ThreadState(tid=tid, comm=stat.comm, cpus=cpus, last_cpu=stat.processor)
                )
        return tuple(found)

    def _affinity(self, pid: int, tid: int) -> CpuSet | None:
        if self._root.is_live and hasattr(os, "sched_getaffinity"):
            try:
                return CpuSet(frozenset(os.sched_getaffinity(tid)))
            except OSError:
                return None
        data = self._root.peek(f"proc/{pid}/task/{tid}/status", 1 << 16)
        for line in (data or b"").decode("utf-8", "replace").splitlines():
            if line.startswith("Cpus_allowed_list:"):
                try:
                    return CpuSet.parse(line.partition(":")[2])
                except ParseError:
                    return None
        return None

    def _stat(self, path: str) -> _Stat | None:
        data = self._root.peek(path, 4096)
        return None if data is None else _Stat.parse(data)

    # ---- titles ----------------------------------------------------------------------------

    def _ask_titles(self, stats: dict[int, _Stat]) -> None:
        wanted = [pid for pid, stat in stats.items() if not stat.flags & PF_KTHREAD]
        if not self._root.is_live or not wanted:
            return
        if self._child is None:
            # -I -S: no environment, no site-packages; it needs neither, and is small.
            script = Path(__file__).with_name("title_child.py")
            self._child = Child([sys.executable, "-I", "-S", str(script)])
        answer = self._child.ask(" ".join(map(str, wanted)), self._titles_s)
        if answer is None:
            self.title_reason = f"command lines: {self._child.reason}"
            return
        self.title_reason = ""
        for line in answer:
            pid, _, coded = line.partition(" ")
            if is_number(pid) and int(pid) in stats:
                self._titles[int(pid), stats[int(pid)].start] = _title(coded)


class _Stat:
    """What we need of /proc/PID/stat."""

    __slots__ = ("comm", "flags", "ppid", "processor", "start")

    def __init__(self, comm: str, ppid: int, flags: int, start: int, processor: int) -> None:
        self.comm, self.ppid, self.flags = comm, ppid, flags
        self.start, self.processor = start, processor

    @classmethod
    def parse(cls, data: bytes) -> _Stat | None:
        """comm may hold blanks and parentheses: it ends at the last one."""
        head, close, tail = data.rpartition(b")")
        words = tail.split()
        if not close or len(words) < 37:
            return None
        try:
            return cls(
                head.partition(b"(")[2].decode("utf-8", "replace"),
                int(words[1]),
                int(words[6]),
                int(words[19]),
                int(words[36]),
            )
        except ValueError:
            return None


def _uid(status: bytes | None) -> int | None:
    """The effective one: second of real, effective, saved, file system."""
    for line in (status or b"").splitlines():
        if line.startswith(b"Uid:"):
            words = line.split()
            return (
                int(words[2]) if len(words) > 2 and is_number(words[2].decode("latin-1")) else None
            )
    return None


def _cgroup(data: bytes | None) -> str:
    """The path in the unified hierarchy; else in v1's cpuset, else in any. "" when unreadable."""
    found: dict[str, str] = {}
    for line in (data or b"").decode("utf-8", "replace").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            found["0"] = path
        for controller in controllers.split(","):
            found.setdefault(controller, path)
    unified = found.pop("0", "")
    if unified not in ("", "/"):
        return unified
    # A hybrid machine keeps every process in the root of its unified tree.
    below = found.get("cpuset") or found.get("name=systemd")
    return below or unified or next(iter(found.values()), "")


def _title(coded: str) -> str:
    try:
        data = bytes.fromhex(coded)
    except ValueError:
        return ""
    return data.replace(b"\0", b" ").decode("utf-8", "replace").strip()
