"""What changed between two turns in feeds, rings, controller, actor and probe: events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from nodeagent.model.event import Event, Severity
from nodeagent.model.feed import FeedStatus, RingStatus
from nodeagent.model.finding import Finding, Verdict

STALE_NS = 1_000_000_000
"""A producer that has not moved its heartbeat for this long is stale."""

_SEVERITY = {
    Verdict.FAIL: Severity.ERROR,
    Verdict.REFUSE: Severity.ERROR,
    Verdict.WARN: Severity.WARNING,
    Verdict.UNKNOWN: Severity.WARNING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The figures of the last turn that this one is compared with."""

    loss: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(feed, stage) -> lost."""
    readers: Mapping[tuple[str, str, int], int] = field(default_factory=dict)
    """(feed, reader, pid) -> lost."""
    stale: frozenset[str] = frozenset()
    states: Mapping[str, str | None] = field(default_factory=dict)
    """Part -> why it is not there; None: it is."""


def event(
    kind: str,
    subject: str,
    severity: Severity,
    message: str,
    now_ns: int,
    remedy: str = "",
) -> Event:
    """An event that is not yet numbered."""
    return Event(
        seq=0,
        kind=kind,
        subject=subject,
        severity=severity,
        message=message,
        at_ns=now_ns,
        remedy=remedy,
    )


def finding_events(
    before: Iterable[Finding], after: Iterable[Finding], now_ns: int
) -> Iterator[Event]:
    """Raised, changed and cleared findings."""
    old = {(f.id, f.subject): f for f in before if f.counts and f.verdict is not Verdict.OK}
    new = {(f.id, f.subject): f for f in after if f.counts and f.verdict is not Verdict.OK}
    for key, f in new.items():
        was = old.get(key)
        if was is not None and was.verdict is f.verdict:
            continue
        yield Event(
            seq=0,
            kind="finding.raised" if was is None else "finding.changed",
            subject=f"{f.id} {f.subject}".strip(),
            severity=_SEVERITY[f.verdict],
            message=f"{f.verdict}: {f.message}",
            at_ns=now_ns,
            evidence=f.evidence,
            remedy=f.remedy,
        )
    for key, f in old.items():
        if key not in new:
            yield event(
                "finding.cleared",
                f"{f.id} {f.subject}".strip(),
                Severity.INFO,
                f"no longer {f.verdict}: {f.message}",
                now_ns,
            )


def feed_events(
    links: Links, feeds: Iterable[FeedStatus], rings: Iterable[RingStatus], now_ns: int
) -> tuple[Links, list[Event]]:
    """Losses since the last turn, by stage and by reader; producers that went stale or came
    back."""
    events: list[Event] = []
    loss: dict[tuple[str, str], int] = {}
    for feed in feeds:
        for stage in ("nic", "kernel", "backend", "decoder", "wire_gap"):
            lost = getattr(feed.loss, stage)
            if lost is None:
                continue
            loss[feed.feed, stage] = lost
            # A feeder that began anew counts from 0 again.
            more = lost - min(links.loss.get((feed.feed, stage), 0), lost)
            if more > 0:
                name = "feed.gap" if stage == "wire_gap" else "feed.loss"
                events.append(
                    event(
                        name,
                        f"{feed.feed} {stage}",
                        Severity.WARNING,
                        f"feed {feed.feed} lost {more} more at stage {stage}, {lost} in all",
                        now_ns,
                        "nodeagentctl feed status",
                    )
                )
    readers: dict[tuple[str, str, int], int] = {}
    stale: set[str] = set()
    for ring in rings:
        if ring.draining:
            continue
        # One that ended is told by the registry; this is one that lives and does not move.
        if ring.producer_alive and ring.heartbeat_age_ns > STALE_NS:
            stale.add(ring.feed)
        for reader in ring.readers:
            at = ring.feed, reader.name, reader.pid
            readers[at] = reader.lost
            more = reader.lost - links.readers.get(at, 0)
            if more > 0:
                events.append(
                    event(
                        "ring.loss",
                        f"{ring.feed} {reader.name}",
                        Severity.WARNING,
                        f"reader {reader.name} (pid {reader.pid}) of ring {ring.feed} was lapped "
                        f"and lost {more} records, {reader.lost} in all",
                        now_ns,
                        "give the reader a CPU of its own, or the ring more slots",
                    )
                )
    for name in sorted(stale - links.stale):
        events.append(
            event(
                "ring.stale",
                name,
                Severity.ERROR,
                f"the producer of ring {name} lives and has not moved for a second",
                now_ns,
                f"systemctl status nodeagent-feeder@{name}",
            )
        )
    for name in sorted(links.stale - stale):
        events.append(
            event("ring.fresh", name, Severity.INFO, f"ring {name} is written again", now_ns)
        )
    return (
        Links(loss=loss, readers=readers, stale=frozenset(stale), states=links.states),
        events,
    )


def state_events(
    links: Links, states: Mapping[str, str | None], now_ns: int
) -> tuple[Links, list[Event]]:
    """Parts that came or went: `states` maps a part to why it is not there (None: it is)."""
    events: list[Event] = []
    for part, why in states.items():
        if part in links.states:
            if (links.states[part] is None) == (why is None):
                continue
        elif why is None:
            # There from the start: nothing happened.
            continue
        if why is None:
            events.append(event(f"{part}.up", part, Severity.INFO, f"{part} is there", now_ns))
        else:
            events.append(
                event(f"{part}.down", part, Severity.WARNING, f"{part} is not there: {why}", now_ns)
            )
    return (
        Links(
            loss=links.loss,
            readers=links.readers,
            stale=links.stale,
            states=dict(states),
        ),
        events,
    )
