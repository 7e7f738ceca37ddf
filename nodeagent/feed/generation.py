"""What the registry holds for one producer incarnation, and for one reader."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import mmap
import os
from collections.abc import Mapping
from typing import Any

from nodeagent.errors import UnavailableError
from nodeagent.feed.peer import Peer
from nodeagent.feed.stats import (
    F_ADD_SEALS,
    MAX_COUNT,
    SEAL_GROW,
    SEAL_SEAL,
    SEAL_SHRINK,
    StatsPage,
)
from nodeagent.feed.wire import Connection
from nodeagent.model.feed import FeedStatus, ReaderMode, ReaderStatus, RingStatus
from nodeagent.model.histogram import Histogram
from nodeagent.model.ringproto import Flag, Msg
from nodeagent.native.ring import RingKind, Segment, ffi, lib

PAGE_BYTES = 4096
WAITING_OFFSET = 128


def make_page(name: str) -> int:
    """Descriptor of a reader's page: zeros, of a size that nobody can change."""
    fd = os.memfd_create(f"nodeagent-reader-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, PAGE_BYTES)
        fcntl.fcntl(fd, F_ADD_SEALS, SEAL_SHRINK | SEAL_GROW | SEAL_SEAL)
    except OSError:
        os.close(fd)
        raise
    return fd


class ReaderEntry:
    """One attached reader. Identity is its connection's; its page holds figures only."""

    def __init__(
        self, *, name: str, ring: RingKind, mode: ReaderMode, slot: int, order: int, page_fd: int
    ) -> None:
        self.name = name
        self.ring = ring
        self.mode = mode
        self.slot = slot
        self.order = order
        """Of the generation it was last handed."""
        self.page_fd = page_fd
        self.wants_next = False
        self._map = mmap.mmap(page_fd, PAGE_BYTES, prot=mmap.PROT_READ)
        self._page: Any = ffi.cast("struct na_ring_page *", ffi.from_buffer(self._map))

    def status(
        self, connection: Connection, segment: Segment, head: int, now_ns: int
    ) -> ReaderStatus:
        """Its figures against that segment, made sane."""
        page, header = self._page, segment.header
        cursor = int(page.cursor) if page.lineage == header.lineage else head
        # It may claim any position: neither ahead of what there is nor before it began.
        cursor = max(header.start, min(cursor, head))
        age = segment.age_ns(cursor, now_ns) if header.kind is RingKind.TICKS else 0
        counts = Histogram(counts=tuple(ffi.unpack(page.age_counts, len(page.age_counts))))
        p50, p99 = counts.quantile(0.5), counts.quantile(0.99)
        quantiles: tuple[tuple[str, float], ...] = ()
        if p50 is not None and p99 is not None:
            quantiles = (("p50", p50), ("p99", p99), ("max", float(page.age_max_ns)))
        return ReaderStatus(
            name=self.name,
            pid=connection.peer.pid,
            uid=connection.peer.uid,
            mode=self.mode,
            records=min(int(page.records), MAX_COUNT),
            lost=min(int(page.lost), MAX_COUNT),
            lag_records=max(0, min(head - cursor, MAX_COUNT)),
            data_age_ns=age,
            alive=connection.peer.alive,
            data_age_quantiles_ns=quantiles,
            incarnation=header.incarnation,
        )

    def close(self) -> None:
        """Clears its flag, so that no producer goes on waking it, and lets go of the page."""
        os.pwrite(self.page_fd, bytes(4), WAITING_OFFSET)
        os.close(self.page_fd)


class Generation:
    """The segments of one incarnation, as offered by its producer."""

    def __init__(
        self,
        *,
        segments: dict[RingKind, tuple[int, Segment]],
        peer: Peer,
        order: int,
        stats: StatsPage | None = None,
    ) -> None:
        self._segments = segments
        first = next(iter(segments.values()))[1].header
        self.feed = first.feed
        self.lineage = first.lineage
        self.incarnation = first.incarnation
        self.start = first.start
        self.peer = peer
        self.order = order
        """Later offers have higher numbers, over all feeds."""
        self.alive = True
        self.died_ns = 0
        self.connection: Connection | None = None
        self.stats = stats
        self._nodes = {kind: segment.node() for kind, (_, segment) in segments.items()}

    @classmethod
    def of(cls, msg: Msg, fds: list[int], peer: Peer, order: int) -> Generation:
        """From an OFFER; what it keeps, it duplicates. Raises RingError, UnavailableError."""
        segments: dict[RingKind, tuple[int, Segment]] = {}
        has_stats = bool(msg.flags & Flag.HAS_STATS)
        if RingKind.TICKS not in msg.rings or len(fds) != len(msg.rings) + has_stats:
            raise UnavailableError(f"an offer of rings {msg.rings} with {len(fds)} descriptors")
        with contextlib.ExitStack() as undo:
            for fd, ring in zip(fds, msg.rings, strict=False):
                segment = Segment.open(fd, RingKind(ring), populate=False)
                if segment.header.feed != msg.feed:
                    raise UnavailableError(f"its segment belongs to feed {segment.header.feed}")
                segments[RingKind(ring)] = (os.dup(fd), segment)
                undo.callback(os.close, segments[RingKind(ring)][0])
            stats = None
            if has_stats:
                stats = StatsPage.open(fds[-1])
                undo.callback(stats.close)
            pidfd = None if peer.pidfd is None else os.dup(peer.pidfd)
            made = cls(
                segments=segments,
                peer=dataclasses.replace(peer, pidfd=pidfd),
                order=order,
                stats=stats,
            )
            undo.pop_all()
        return made

    @property
    def rings(self) -> tuple[int, ...]:
        """Which there are, ticks first."""
        return tuple(sorted(self._segments))

    @property
    def fds(self) -> list[int]:
        """Their descriptors, in the same order."""
        return [self._segments[RingKind(ring)][0] for ring in self.rings]

    @property
    def closed(self) -> bool:
        """Whether its producer ended in good order."""
        return all(segment.hot().closed for _, segment in self._segments.values())

    def statuses(
        self, now_ns: int, readers: Mapping[Connection, ReaderEntry], *, draining: bool
    ) -> tuple[RingStatus, ...]:
        """One a ring."""
        return tuple(
            self._status(RingKind(ring), now_ns, readers, draining=draining) for ring in self.rings
        )

    def _status(
        self,
        kind: RingKind,
        now_ns: int,
        readers: Mapping[Connection, ReaderEntry],
        *,
        draining: bool,
    ) -> RingStatus:
        segment = self._segments[kind][1]
        header, hot = segment.header, segment.hot()
        return RingStatus(
            feed=self.feed,
            kind=kind.name.lower(),
            incarnation=self.incarnation,
            capacity=header.capacity,
            slot_bytes=header.slot_bytes,
            head=hot.commit,
            heartbeat_age_ns=max(0, now_ns - hot.heartbeat_ns),
            producer_pid=self.peer.pid,
            producer_alive=self.alive and self.peer.alive,
            size_bytes=header.size_bytes,
            node=self._nodes[kind],
            draining=draining,
            readers=tuple(
                reader.status(connection, segment, hot.commit, now_ns)
                for connection, reader in readers.items()
                if reader.order == self.order and reader.ring is kind
            ),
        )

    def feed_status(self, now_ns: int) -> FeedStatus | None:
        """Its feeder's counters; None: it offered none."""
        if self.stats is None:
            return None
        return self.stats.read(self.feed, self.peer.pid, now_ns)

    def close(self) -> None:
        """Lets go of the descriptors; the memory goes with the last one."""
        for fd, _ in self._segments.values():
            os.close(fd)
        self._segments.clear()
        if self.stats is not None:
            self.stats.close()
        self.peer.close()


class Feed:
    """One feed: its incarnations, oldest first, and its readers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.generations: list[Generation] = []
        self.readers: dict[Connection, ReaderEntry] = {}

    @property
    def newest(self) -> Generation | None:
        """The live one, or the last that died."""
        return self.generations[-1] if self.generations else None

    @property
    def live(self) -> Generation | None:
        """The one whose producer lives (asked of the kernel just now)."""
        newest = self.newest
        return newest if newest is not None and newest.alive and newest.peer.alive else None

    def after(self, order: int) -> Generation | None:
        """The oldest one younger than that."""
        return next((g for g in self.generations if g.order > order), None)

    def free_slot(self, kind: RingKind) -> int | None:
        """A place in the feeder's table of that ring."""
        taken = {r.slot for r in self.readers.values() if r.ring is kind}
        return next((s for s in range(lib.NA_RING_MAX_READERS) if s not in taken), None)
