"""What the main job knows at one moment, for the screen and for the summary. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field

from nodeagent.model.status import NodeStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorLoad:
    """The query load's last line. Latencies in microseconds, counted from when a query was due."""

    queries: int
    rate_per_s: float
    p50_us: float
    p99_us: float
    recall: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCost:
    """All our processes but feeders and controller. PSS less shared-memory segments, in bytes."""

    cpu_percent: float
    pss_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One moment of the main job."""

    elapsed_s: float
    planned_s: float | None
    """`--for`; None: until stopped."""
    step: str
    """What the job is doing, in words."""
    status: NodeStatus | None
    rate_per_s: float
    vector: VectorLoad | None
    cost: OwnCost | None
    notes: tuple[str, ...] = field(default=())
