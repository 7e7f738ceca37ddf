"""Which processes there are, at a price the turn can pay.

Each turn lists the pids, meets the new ones and reads the threads of those that workloads claim;
everything else is looked at again only every RESCAN_S, for a process may change its title. A new
pid is met LOOKS times: between fork and exec it still has its parent's name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from nodeagent.discover.locality import Locality
from nodeagent.discover.procs import Processes
from nodeagent.model.actions import MAX_CONTAINERS
from nodeagent.model.cgroup import Container
from nodeagent.model.memory import MemorySeen
from nodeagent.model.placement import ProcessState

RESCAN_S = 30.0
"""Pause between two looks at every process."""

LOOKS = 3
"""Turns in which a new process is looked at."""


ASKS = 3
"""Times that the actor is asked about one container."""


class Watching:
    """The processes of this machine; nothing is read while there are no workloads."""

    def __init__(self, processes: Processes, locality: Locality) -> None:
        self._processes = processes
        self._locality = locality
        self._known: dict[int, ProcessState] = {}
        self._young: dict[int, int] = {}
        self._seen: set[int] = set()
        self._scanned_s = float("-inf")
        self._told: dict[str, Container] = {}
        self._asked: dict[str, int] = {}
        self._untold = ""

    @property
    def pid(self) -> int | None:
        """The process child."""
        return self._processes.child_pid

    @property
    def trouble(self) -> str | None:
        """Why titles are missing; None: they are not."""
        return self._processes.title_reason or None

    def scan(self, watched: frozenset[int], now_s: float) -> tuple[ProcessState, ...]:
        """All processes; those `watched` with their threads. `now_s` is monotonic."""
        alive = set(self._processes.pids())
        if now_s - self._scanned_s >= RESCAN_S:
            self._scanned_s = now_s
            self._known = {p.pid: p for p in self._processes.scan(threads=False)}
            here = {p.container.id for p in self._known.values() if p.container is not None}
            self._told = {i: c for i, c in self._told.items() if i in here}
            self._asked = {i: n for i, n in self._asked.items() if i in here}
        else:
            self._known = {pid: p for pid, p in self._known.items() if pid in alive}
            self._young = {pid: n for pid, n in self._young.items() if pid in alive and n > 0}
            self._young |= dict.fromkeys(alive - self._seen, LOOKS)
            if self._young:
                self._known |= {p.pid: p for p in self._processes.meet(sorted(self._young))}
                self._young = {pid: n - 1 for pid, n in self._young.items()}
        self._seen = alive
        return self._with_threads(watched)

    def _with_threads(self, watched: frozenset[int]) -> tuple[ProcessState, ...]:
        found = dict(self._known)
        for process in self._processes.read(sorted(watched & found.keys())):
            old = found[process.pid]
            if old.start_time != process.start_time:
                # The pid was given to another process since; it is met in the next turn.
                del found[process.pid]
                self._known.pop(process.pid, None)
                self._seen.discard(process.pid)
                continue
            found[process.pid] = dataclasses.replace(process, title=old.title)
        for pid in watched - {p for p, s in found.items() if s.threads}:
            found.pop(pid, None)
        return tuple(self._named(found[pid]) for pid in sorted(found))

    def _named(self, process: ProcessState) -> ProcessState:
        told = self._told.get(process.container.id) if process.container is not None else None
        return process if told is None else dataclasses.replace(process, container=told)

    def unnamed(self) -> tuple[str, ...]:
        """cgroups of containers whose name is not known, each for ASKS calls."""
        found: dict[str, str] = {}
        for process in self._known.values():
            box = process.container
            if box is None or box.name is not None or box.id in self._told:
                continue
            if self._asked.get(box.id, 0) < ASKS and len(found) < MAX_CONTAINERS:
                found.setdefault(box.id, box.cgroup)
        self._asked |= {number: self._asked.get(number, 0) + 1 for number in found}
        return tuple(found.values())

    def tell(self, containers: Iterable[Container], reason: str) -> None:
        """What was asked about them, and why not all is known."""
        self._told |= {c.id: c for c in containers}
        self._untold = reason

    @property
    def container_trouble(self) -> str | None:
        """Why names of containers are missing; None: none is."""
        missing = {
            p.container.id
            for p in self._known.values()
            if p.container is not None and p.container.name is None
        } - self._told.keys()
        if not missing:
            return None
        count = "1 container's name is" if len(missing) == 1 else f"{len(missing)} names are"
        return f"{count} unknown: {self._untold or self._processes.container_reason}"

    def memory(self, watched: frozenset[int], now_s: float) -> MemorySeen | None:
        """Where the memory of those processes lies; None: it is not the time to look."""
        known = [self._known[pid] for pid in sorted(watched) if pid in self._known]
        return self._locality.look([(p.pid, p.cgroup) for p in known], now_s)

    def close(self) -> None:
        """Ends the children."""
        self._processes.close()
        self._locality.close()
