"""What the services ask of the daemon."""

from __future__ import annotations

from typing import Protocol

from nodeagent.model.event import Event
from nodeagent.model.status import NodeStatus
from nodeagent.model.topology import Topology


class StatusSource(Protocol):
    """The daemon's newest values. All calls but `changed` return at once and do no I/O."""

    @property
    def version(self) -> int:
        """Rises by at least one with each new status or event."""
        ...

    @property
    def last_seq(self) -> int:
        """The greatest seq given to an event in this epoch; 0: none."""
        ...

    def status(self) -> NodeStatus:
        """The status as of the last turn."""
        ...

    def topology(self) -> Topology | None:
        """The machine's shape; None: not read yet."""
        ...

    def events(self, since: int, limit: int) -> tuple[Event, ...]:
        """The oldest `limit` of the kept events with seq > since, ascending."""
        ...

    async def changed(self, seen: int) -> int:
        """Waits until `version` differs from `seen`, and returns it."""
        ...
