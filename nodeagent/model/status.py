"""One node at one moment: what `status`, the screen and the stream to the controller are made
of."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.model.feed import FeedStatus, RingStatus
from nodeagent.model.finding import Finding, Verdict
from nodeagent.model.placement import Held, Placement
from nodeagent.model.probe import ProbeStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerLink:
    """The stream to the controller. `unacknowledged` counts events it has not committed yet."""

    configured: bool
    connected: bool
    address: str
    reports: int
    unacknowledged: int
    dropped: int
    """Events that the bounded buffer could not keep."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfCost:
    """What one part of us costs: CPU seconds since its start, PSS bytes now."""

    part: str
    pid: int
    cpu_seconds: float
    pss_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """The whole status."""

    agent_uuid: str
    epoch: int
    hostname: str
    version: str
    started_ns: int
    at_ns: int
    turns: int
    sentence: str
    """What the last turn decided, and why."""
    verdict: Verdict
    findings: tuple[Finding, ...]
    placement: Placement
    held: tuple[Held, ...]
    rings: tuple[RingStatus, ...]
    feeds: tuple[FeedStatus, ...]
    probe: ProbeStatus
    controller: ControllerLink
    cost: tuple[SelfCost, ...]
    frozen: str | None = None
    """Why nothing may be changed just now; None: not frozen."""
