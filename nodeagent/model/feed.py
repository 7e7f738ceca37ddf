"""Feeds and rings as status values."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ReaderMode(enum.StrEnum):
    """lossy: lapped readers lose with an exact count; gating: the producer waits, with a
    deadline."""

    LOSSY = "lossy"
    GATING = "gating"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderStatus:
    """One attached reader: identity from the socket's credentials, figures from its own page."""

    name: str
    pid: int
    uid: int
    mode: ReaderMode
    records: int
    lost: int
    lag_records: int
    data_age_ns: int
    alive: bool
    data_age_quantiles_ns: tuple[tuple[str, float], ...] = ()
    """(p50|p99|max, nanoseconds), one sample a batch, as the reader itself kept them."""
    incarnation: int = 0
    """Of the segment that was last handed to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingStatus:
    """One ring segment and its readers."""

    feed: str
    incarnation: int
    capacity: int
    slot_bytes: int
    head: int
    """Records committed since the feed's first incarnation."""
    heartbeat_age_ns: int
    producer_pid: int
    producer_alive: bool
    size_bytes: int
    node: int | None
    """NUMA node of the segment's pages as read back; None: not known or on several."""
    readers: tuple[ReaderStatus, ...] = ()
    draining: bool = False
    """A dead producer's segment that readers are still draining."""
    kind: str = "ticks"
    """ticks (capacity and head count records) or frames (they count bytes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedLoss:
    """Lost by stage, each counted once. None: that stage cannot be known here."""

    nic: int | None
    kernel: int | None
    backend: int
    decoder: int
    wire_gap: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedStatus:
    """A feeder's own counters since it started."""

    feed: str
    source: str
    pid: int
    packets: int
    bytes: int
    messages: int
    duplicates: int
    rejected: int
    loss: FeedLoss
    last_message_age_ns: int | None
    wire_to_ring_ns: tuple[tuple[str, float], ...] = ()
    """(p50|p99|max, nanoseconds) from receive stamp to publish."""
    note: str = ""
    """Which back-end was got and why, in words."""
