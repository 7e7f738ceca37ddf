"""Folding: the same thing said again within a minute is counted, not repeated. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from nodeagent.model.event import Event, Severity

FOLD_NS = 60_000_000_000
"""An event of one kind about one subject is said at most once in this time."""

MAX_EVENTS = 128
"""Events of one turn; the rest are counted and reported as one."""

MAX_KEYS = 4096
"""Remembered (kind, subject) pairs; the oldest are forgotten first."""


ALWAYS = ("config.", "daemon.", "guard.ready", "pin.corrected", "pin.drift", "pin.manual")
"""Kinds that a person causes, or that come once for each author or actor: each is said."""


@dataclass(frozen=True, slots=True)
class Said:
    """When a (kind, subject) was last said, and what was held back since."""

    at_ns: int
    held: int = 0
    last: Event | None = None


@dataclass(frozen=True, slots=True)
class Fold:
    """What was said lately."""

    said: Mapping[tuple[str, str], Said] = field(default_factory=dict)


def fold(state: Fold, events: Iterable[Event], now_ns: int) -> tuple[Fold, tuple[Event, ...]]:
    """Those that are to be said now: fresh ones, and held-back ones whose minute is over."""
    said = dict(state.said)
    out: list[Event] = []
    overflow = 0
    for key, entry in state.said.items():
        if now_ns - entry.at_ns < FOLD_NS:
            continue
        if entry.last is None:
            del said[key]
        elif len(out) < MAX_EVENTS:
            out.append(_counted(entry.last, entry.held))
            said[key] = Said(now_ns)
    for event in events:
        key = (event.kind, event.subject)
        entry = said.get(key, Said(now_ns - FOLD_NS))
        if now_ns - entry.at_ns < FOLD_NS and not event.kind.startswith(ALWAYS):
            said[key] = Said(entry.at_ns, entry.held + 1, event)
        elif len(out) < MAX_EVENTS:
            out.append(event)
            said.pop(key, None)
            said[key] = Said(now_ns)
        else:
            overflow += 1
    if overflow:
        out.append(
            Event(
                seq=0,
                kind="event.overflow",
                subject="turn",
                severity=Severity.WARNING,
                message=f"{overflow} events of one turn were over the bound of {MAX_EVENTS} and "
                "were dropped",
                at_ns=now_ns,
            )
        )
    for key in list(said)[: max(0, len(said) - MAX_KEYS)]:
        del said[key]
    return Fold(said), tuple(out)


def _counted(event: Event, times: int) -> Event:
    if times == 1:
        return event
    return replace(event, message=f"{event.message} ({times} times within a minute)")
