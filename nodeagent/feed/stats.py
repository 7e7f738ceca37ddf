"""A feeder's counters in a sealed page: written by its C loop, read by the daemon.

The layout is `struct na_feed_stats` of native/core/feed_stats_abi.h.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from typing import Any

from nodeagent.errors import UnavailableError
from nodeagent.model.feed import FeedLoss, FeedStatus
from nodeagent.model.histogram import Histogram
from nodeagent.native.ring import ffi, lib

F_ADD_SEALS = 1033
F_GET_SEALS = 1034
SEAL_SEAL, SEAL_SHRINK, SEAL_GROW, SEAL_FUTURE_WRITE = 0x1, 0x2, 0x4, 0x10
MAX_COUNT = (1 << 63) - 1
"""No count of a reader's page or a feeder's is shown larger: they may write what they like there,
and the report to the controller holds no larger one."""


class StatsPage:
    """The page, mapped. Feeders `create` one, the daemon opens the descriptor it was handed."""

    def __init__(self, fd: int, page: mmap.mmap, pointer: Any) -> None:
        self.fd = fd
        self._page = page
        self.pointer = pointer
        """`struct na_feed_stats *`, for the C loop."""

    @classmethod
    def create(cls, feed: str, source: str, note: str = "") -> StatsPage:
        """A page of zeros with its texts set; nobody else can ever write it."""
        fd = os.memfd_create(f"nodeagent-stats-{feed}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.posix_fallocate(fd, 0, lib.NA_FEED_STATS_BYTES)
        page = mmap.mmap(fd, lib.NA_FEED_STATS_BYTES)
        fcntl.fcntl(fd, F_ADD_SEALS, SEAL_SEAL | SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE)
        pointer = ffi.cast("struct na_feed_stats *", ffi.from_buffer(page))
        pointer.magic = lib.NA_FEED_STATS_MAGIC
        pointer.started_ns = time.monotonic_ns()
        made = cls(fd, page, pointer)
        made.describe(source, note)
        return made

    @classmethod
    def open(cls, fd: int) -> StatsPage:
        """Maps a page read-only, with a descriptor of its own. Raises UnavailableError."""
        need = SEAL_SEAL | SEAL_SHRINK
        try:
            seals = fcntl.fcntl(fd, F_GET_SEALS)
            if seals & need != need or os.fstat(fd).st_size != lib.NA_FEED_STATS_BYTES:
                raise UnavailableError("the feeder's statistics page is not sealed")
            page = mmap.mmap(fd, lib.NA_FEED_STATS_BYTES, prot=mmap.PROT_READ)
        except OSError as error:
            raise UnavailableError(f"the feeder's statistics page: {error.strerror}") from error
        pointer = ffi.cast("struct na_feed_stats *", ffi.from_buffer(page))
        if pointer.magic != lib.NA_FEED_STATS_MAGIC:
            raise UnavailableError("the feeder's statistics page is of another version")
        return cls(os.dup(fd), page, pointer)

    def describe(self, source: str, note: str) -> None:
        """Sets source and note (cut to 31 and 223 bytes)."""
        for field, text in ((self.pointer.source, source), (self.pointer.note, note)):
            raw = text.encode()[: ffi.sizeof(field) - 1]
            ffi.memmove(field, raw + b"\0", len(raw) + 1)

    def read(self, feed: str, pid: int, now_ns: int) -> FeedStatus:
        """The counters as they are (each read whole; the set is not one moment)."""
        s = self.pointer
        counts = tuple(ffi.unpack(s.wire_to_ring_counts, lib.NA_FEED_STATS_BUCKETS))
        histogram = Histogram(counts=counts, maximum=s.wire_to_ring_max_ns)
        p50, p99 = histogram.quantile(0.5), histogram.quantile(0.99)
        delays: tuple[tuple[str, float], ...] = ()
        if p50 is not None and p99 is not None:
            delays = (("p50", p50), ("p99", p99), ("max", float(s.wire_to_ring_max_ns)))
        last = int(s.last_message_ns)
        return FeedStatus(
            feed=feed,
            source=self._text(s.source),
            pid=pid,
            packets=_sane(s.packets),
            bytes=_sane(s.bytes),
            messages=_sane(s.messages),
            duplicates=_sane(s.duplicates),
            rejected=_sane(s.rejected),
            loss=FeedLoss(
                nic=_sane(s.nic_drops) if s.nic_known else None,
                kernel=_sane(s.kernel_drops) if s.kernel_known else None,
                backend=_sane(s.backend_drops),
                decoder=_sane(s.decoder_drops),
                wire_gap=_sane(s.wire_gap),
            ),
            last_message_age_ns=max(0, now_ns - last) if last else None,
            wire_to_ring_ns=delays,
            note=self._text(s.note),
        )

    @staticmethod
    def _text(field: Any) -> str:
        raw = bytes(ffi.buffer(field)).partition(b"\0")[0]
        return raw.decode("utf-8", "replace")

    def close(self) -> None:
        """Closes the descriptor; the mapping goes with the last reference to it."""
        os.close(self.fd)


def _sane(count: int) -> int:
    """A counter of a page that a feeder may have written anything into."""
    return min(int(count), MAX_COUNT)
