"""What the services ask of the daemon: the newest status, and the event log.

A full or damaged disk must not stop the daemon: events are then kept in memory, and the status says
so.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from nodeagent.model.event import Event
from nodeagent.model.status import NodeStatus
from nodeagent.model.topology import Topology
from nodeagent.rpc.spool import Spool, SpoolError

KEPT = 1000
"""Events kept in memory for questions on this node."""


class Recorder(Protocol):
    """Who stores events: the session."""

    async def record(self, events: Sequence[Event]) -> tuple[Event, ...]:
        """Stores, syncs, and returns those that are numbered now."""


class Log:
    """The event log. Without a spool events are numbered in memory and lost at the end."""

    def __init__(self, spool: Spool | None, trouble: str | None = None) -> None:
        self.spool = spool
        self.trouble = trouble
        """Why events are not written to disk; None: they are."""
        self._kept: deque[Event] = deque(maxlen=KEPT)
        if spool is not None:
            self._kept.extend(spool.read(max(0, spool.last_seq - KEPT), KEPT))

    @classmethod
    def open(cls, state_dir: Path) -> Log:
        """With the spool of that folder, or without one and the sentence why."""
        try:
            return cls(Spool.open(state_dir))
        except SpoolError as error:
            return cls(None, str(error))

    @property
    def last_seq(self) -> int:
        """Seq of the newest event that can be asked for; 0: none."""
        return self._kept[-1].seq if self._kept else 0

    async def record(self, recorder: Recorder | None, events: Sequence[Event]) -> tuple[Event, ...]:
        """Numbers and keeps them; returns those that are numbered now."""
        if recorder is None or self.spool is None:
            first = self.last_seq + 1
            numbered = tuple(replace(e, seq=first + i) for i, e in enumerate(events))
        else:
            numbered = await recorder.record(events)
            if numbered and numbered[0].seq != self.last_seq + 1:
                # The session stored something of its own, or a new epoch numbers anew.
                last = numbered[-1].seq
                read = self.spool.read
                self._kept.clear()
                self._kept.extend(await asyncio.to_thread(read, max(0, last - KEPT), KEPT))
                return numbered
        self._kept.extend(numbered)
        return numbered

    def events(self, since: int, limit: int) -> tuple[Event, ...]:
        """The oldest `limit` of the kept events with seq > since, ascending."""
        return tuple(e for e in self._kept if e.seq > since)[: max(limit, 0)]


class Source:
    """The StatusSource of rpc/local.py; `publish` sets a new status and wakes who waits."""

    def __init__(self, log: Log, first: NodeStatus) -> None:
        self._log = log
        self._status = first
        self._topology: Topology | None = None
        self._version = 0
        self._fresh = asyncio.Event()

    @property
    def version(self) -> int:
        """Rises with each publication."""
        return self._version

    @property
    def last_seq(self) -> int:
        """Seq of the newest event; 0: none."""
        return self._log.last_seq

    def status(self) -> NodeStatus:
        """As of the last turn."""
        return self._status

    def topology(self) -> Topology | None:
        """The machine's shape; None: not read yet."""
        return self._topology

    def events(self, since: int, limit: int) -> tuple[Event, ...]:
        """The oldest `limit` of the kept events with seq > since."""
        return self._log.events(since, limit)

    async def changed(self, seen: int) -> int:
        """Waits until `version` differs from `seen`."""
        while self._version == seen:
            await self._fresh.wait()
        return self._version

    def publish(self, status: NodeStatus, topology: Topology | None) -> None:
        """Sets the newest values."""
        self._status, self._topology = status, topology
        self.wake()

    def wake(self) -> None:
        """Something changed: the status, or the events."""
        self._version += 1
        fresh, self._fresh = self._fresh, asyncio.Event()
        fresh.set()
