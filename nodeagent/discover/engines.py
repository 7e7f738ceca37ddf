"""The processes that a person asks about: engines that are ours to place, and who moves others.

Read only for a command of a person, never in the daemon's turn: how much memory lies on which
node (numa_maps) walks page tables under the process's mmap_lock, so a child reads it
(memory_child.py) with a deadline. A capture keeps one JSON object a line.

Source: Documentation/filesystems/proc.rst (status, limits, numa_maps).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from nodeagent.discover.root import Root, is_number
from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.process import UNLIMITED, ProcessFacts

if TYPE_CHECKING:
    from nodeagent.model.placement import ProcessState

KEY = "derived/processes"
MAX_PROCESSES = 128
MAX_THREADS = 512
"""Threads kept of one process."""
MEMORY_DEADLINE_S = 3.0


def role_of(comm: str, title: str) -> str | None:
    """What a process is, by its name and command line; None: not ours."""
    # Here: a recorded machine tells its processes' roles itself.
    from nodeagent.place.engines import engine_of

    engine = engine_of(comm, title)
    return None if engine is None else engine.name


def read_engines(root: Root) -> tuple[ProcessFacts, ...] | None:
    """Every process with a role, by pid; None: nobody looked (a recorded tree without them)."""
    if not root.is_live:
        text = root.text(KEY, 8 << 20)
        return None if text is None else _decoded(root, text)
    # Here: a recorded machine is read where there is no process to start.
    from nodeagent.discover.procs import Processes

    processes = Processes(root)
    try:
        found = [
            (role, p)
            for p in processes.scan(threads=False)
            if (role := role_of(p.comm, p.title)) is not None
        ][:MAX_PROCESSES]
        whole = {p.pid: p for p in processes.read(p.pid for _, p in found)}
    finally:
        processes.close()
    memory, reason = memory_by_node(sorted(whole))
    facts = tuple(
        _facts(root, role, whole[p.pid], memory.get(p.pid), reason)
        for role, p in found
        if p.pid in whole
    )
    lines = (msgspec.json.encode(_coded(f)).decode() for f in facts)
    root.note(KEY, "\n".join(lines))
    return facts


def _facts(
    root: Root, role: str, p: ProcessState, memory: tuple[tuple[int, int], ...] | None, reason: str
) -> ProcessFacts:
    status = (root.peek(f"proc/{p.pid}/status", 1 << 16) or b"").decode("utf-8", "replace")
    mems = re.search(r"^Mems_allowed_list:\s*(\S+)$", status, re.MULTILINE)
    limits = (root.peek(f"proc/{p.pid}/limits", 1 << 14) or b"").decode("utf-8", "replace")
    locked = re.search(r"^Max locked memory\s+(\d{1,18}|unlimited)\s", limits, re.MULTILINE)
    return ProcessFacts(
        pid=p.pid,
        role=role,
        comm=p.comm,
        title=p.title,
        cgroup=p.cgroup,
        threads=p.threads[:MAX_THREADS],
        thread_count=len(p.threads),
        mems_allowed=_cpus(mems[1]) if mems else None,
        memlock_bytes=None if locked is None else _limit(locked[1]),
        memory_by_node=memory,
        memory_reason="" if memory is not None else reason or "no right to read its numa_maps",
    )


def _limit(text: str) -> int:
    return UNLIMITED if text == "unlimited" else int(text)


def _cpus(text: str) -> CpuSet | None:
    try:
        return CpuSet.parse(text)
    except ParseError:
        return None


def memory_by_node(pids: list[int]) -> tuple[dict[int, tuple[tuple[int, int], ...]], str]:
    """Bytes by node of each process, and why some are missing. Waits for each one's mmap_lock, in
    a child with a deadline: only when a person asks."""
    from nodeagent.child import Child

    if not pids:
        return {}, ""
    script = Path(__file__).with_name("memory_child.py")
    child = Child([sys.executable, "-I", "-S", str(script)])
    try:
        answer = child.ask(" ".join(map(str, pids)), MEMORY_DEADLINE_S)
        reason = child.reason
    finally:
        child.close()
    found = {}
    for line in answer or ():
        words = line.split()
        pairs = [w.partition(":") for w in words[1:]]
        if is_number(words[0]) and all(is_number(n) and is_number(b) for n, _, b in pairs):
            found[int(words[0])] = tuple((int(n), int(b)) for n, _, b in pairs)
    return found, "" if answer is not None else reason


# ---- as a capture keeps them --------------------------------------------------------------------


class _Thread(msgspec.Struct):
    tid: int
    comm: str
    cpus: str
    last_cpu: int | None = None


class Coded(msgspec.Struct):
    """A line of the capture."""

    pid: int
    role: str
    comm: str
    title: str
    cgroup: str
    thread_count: int
    threads: list[_Thread]
    mems_allowed: str | None = None
    memlock_bytes: int | None = None
    memory_by_node: list[tuple[int, int]] | None = None
    memory_reason: str = ""


def _coded(p: ProcessFacts) -> Coded:
    return Coded(
        pid=p.pid,
        role=p.role,
        comm=p.comm,
        title=p.title,
        cgroup=p.cgroup,
        thread_count=p.thread_count,
        threads=[
            _Thread(tid=t.tid, comm=t.comm, cpus=str(t.cpus), last_cpu=t.last_cpu)
            for t in p.threads
        ],
        mems_allowed=None if p.mems_allowed is None else str(p.mems_allowed),
        memlock_bytes=p.memlock_bytes,
        memory_by_node=None if p.memory_by_node is None else list(p.memory_by_node),
        memory_reason=p.memory_reason,
    )


def _decoded(root: Root, text: str) -> tuple[ProcessFacts, ...]:
    from nodeagent.model.placement import ThreadState

    found = []
    for line in text.splitlines()[:MAX_PROCESSES]:
        try:
            p = msgspec.json.decode(line, type=Coded)
            threads = tuple(
                ThreadState(tid=t.tid, comm=t.comm, cpus=CpuSet.parse(t.cpus), last_cpu=t.last_cpu)
                for t in p.threads[:MAX_THREADS]
            )
            mems = None if p.mems_allowed is None else CpuSet.parse(p.mems_allowed)
        except (msgspec.DecodeError, ParseError, RecursionError) as error:
            root.fail(KEY, f"{line[:40]!r}: {error}")
            continue
        memory = None if p.memory_by_node is None else tuple(p.memory_by_node)
        found.append(
            ProcessFacts(
                pid=p.pid,
                role=p.role,
                comm=p.comm,
                title=p.title,
                cgroup=p.cgroup,
                threads=threads,
                thread_count=p.thread_count,
                mems_allowed=mems,
                memlock_bytes=p.memlock_bytes,
                memory_by_node=memory,
                memory_reason=p.memory_reason,
            )
        )
    return tuple(found)
