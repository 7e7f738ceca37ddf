"""Events: what happened, once, with a place in the order."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from nodeagent.model.finding import Evidence


class Severity(enum.StrEnum):
    """How bad: INFO a state changed, WARNING degraded and handled, ERROR the operator must act."""

    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event. `seq` counts from 1 within the node's journal epoch; 0: not yet numbered."""

    seq: int
    kind: str
    """Closed, dotted: finding.raised, finding.cleared, pin.done, pin.undone, pin.drift, feed.gap,
    ..."""
    subject: str
    severity: Severity
    message: str
    at_ns: int
    """CLOCK_REALTIME, nanoseconds."""
    evidence: tuple[Evidence, ...] = ()
    remedy: str = ""
