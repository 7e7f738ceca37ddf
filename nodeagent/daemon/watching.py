"""Which processes there are, at a price the turn can pay.

Each turn lists the pids, meets the new ones and reads the threads of those that workloads claim;
everything else is looked at again only every RESCAN_S, for a process may change its title. A new
pid is met LOOKS times: between fork and exec it still has its parent's name.
"""

from __future__ import annotations

import dataclasses

from nodeagent.discover.procs import Processes
from nodeagent.model.placement import ProcessState

RESCAN_S = 30.0
"""Pause between two looks at every process."""

LOOKS = 3
"""Turns in which a new process is looked at."""


class Watching:
    """The processes of this machine; nothing is read while there are no workloads."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._known: dict[int, ProcessState] = {}
        self._young: dict[int, int] = {}
        self._seen: set[int] = set()
        self._scanned_s = float("-inf")

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
        return tuple(found[pid] for pid in sorted(found))

    def close(self) -> None:
        """Ends the child."""
        self._processes.close()
