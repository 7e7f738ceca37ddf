"""Reads a feed's ring without copying: numpy views of shared memory, validated after use.

    with Reader.attach("itch", "vwap") as reader:
        for batch in reader.batches(timeout_s=1.0):
            notional = (batch.ticks["price"] * batch.ticks["size"]).sum()
            if batch.validate() == 0:
                total += notional

A batch's first records may be overwritten while it is in use (lossy readers, when they are a whole
ring behind): `validate()` says how many. A producer that dies and comes back is followed by itself.
Needs numpy and the compiled core, nothing else.
"""

from __future__ import annotations

import asyncio
import enum
import os
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from nodeagent.errors import NodeagentError, UnavailableError
from nodeagent.model.feed import ReaderMode
from nodeagent.native.ring import Frame, Segment, ffi, lib

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

DEFAULT_SOCKET = "/run/nodeagent/ring.sock"
MAX_BATCH = 4096
"""Records a batch at most, unless asked otherwise."""
_FOREVER = (1 << 64) - 1
_SLICE_NS = 100_000_000
"""Longest wait in C before Python looks at its signals."""
_ATTACH_RETRY_S = 0.1


class Wait(enum.IntEnum):
    """What a wait ended with."""

    TIMEOUT = 0
    READY = 1
    STALE = 2
    """The producer is gone, or its heartbeat is older than half a second."""


class AttachError(NodeagentError):
    """The daemon is not there, does not know the feed, or does not let us in."""


class Batch:
    """Some records in a row. Use `ticks`, then `validate()`, then `advance()`."""

    __slots__ = ("_reader", "gap", "ticks")

    def __init__(self, reader: Reader, ticks: npt.NDArray[np.void], gap: int) -> None:
        self._reader = reader
        self.ticks = ticks
        """Read-only view, shape (n,), dtype nodeagent.native.ring.TICK; zero copy."""
        self.gap = gap
        """Records lost just before the first of these; exact."""

    def __len__(self) -> int:
        return len(self.ticks)

    def validate(self) -> int:
        """How many leading records had been overwritten by now; the rest stands."""
        return int(lib.na_reader_validate(self._reader.handle))

    def advance(self, count: int | None = None) -> None:
        """Done with the first `count` records (all): the next batch begins after them."""
        lib.na_reader_advance(self._reader.handle, len(self.ticks) if count is None else count)


class Reader:
    """A reader of one feed's ticks. One thread at a time."""

    def __init__(self, handle: Any) -> None:
        """Use `attach`."""
        self.handle = handle
        """`struct na_reader *`."""
        self._switches = -1
        self._segment: Segment | None = None
        self._frames: Segment | None = None
        self._slots: npt.NDArray[np.void] | None = None
        self._mask = 0

    @classmethod
    def attach(
        cls,
        feed: str,
        name: str,
        *,
        socket: str | os.PathLike[str] = DEFAULT_SOCKET,
        mode: ReaderMode = ReaderMode.LOSSY,
        wait_s: float = 0.0,
        busy: bool = False,
    ) -> Reader:
        """Attaches at the newest record.

        `mode` gating: the producer waits for this reader (with a deadline). `wait_s`: how long
        daemon and feed may take to appear. `busy`: waits look at the ring without ever sleeping.
        Raises AttachError.
        """
        handle = ffi.new("struct na_reader *")
        why = ffi.new("char[]", 1024)
        until = time.monotonic() + wait_s
        number = lib.NA_MODE_GATING if mode is ReaderMode.GATING else lib.NA_MODE_LOSSY
        path = os.fspath(socket)
        while True:
            rc = lib.na_reader_attach(
                handle, path.encode(), feed.encode(), name.encode(), number, why, len(why)
            )
            if rc == 0:
                break
            if time.monotonic() >= until:
                text = ffi.string(why).decode("utf-8", "replace")
                message, _, remedy = text.partition("\n")
                raise AttachError(f"feed {feed}: {message}", remedy)
            time.sleep(_ATTACH_RETRY_S)
        handle.spin_ns = _FOREVER if busy else 0
        return cls(ffi.gc(handle, lib.na_reader_detach))

    # ---- reading ----

    def batch(self, max_records: int = MAX_BATCH) -> Batch:
        """Records from the cursor on, possibly none; never waits."""
        handle = self.handle
        count = lib.na_reader_batch(handle, max_records)
        if handle.switches != self._switches:
            self._map()
        assert self._slots is not None
        at = handle.cursor & self._mask
        return Batch(self, self._slots[at : at + count], handle.gap)

    def wait(self, timeout_s: float | None = None) -> Wait:
        """Waits for a record; None: for ever. STALE comes once when the producer falls silent,
        and then at the end of each timeout until it speaks again."""
        left = _FOREVER if timeout_s is None else max(0, int(timeout_s * 1e9))
        while True:
            part = min(left, _SLICE_NS)
            told = bool(self.handle.told_stale)
            result = Wait(lib.na_reader_wait(self.handle, part))
            if left != _FOREVER:
                left -= part
            if result is Wait.READY or left == 0 or (result is Wait.STALE and not told):
                return result

    def batches(
        self, max_records: int = MAX_BATCH, timeout_s: float | None = None
    ) -> Iterator[Batch]:
        """Batch after batch, advancing over each when the next is asked for; ends when nothing
        came for timeout_s. An empty batch says that the producer has fallen silent (`stale`)."""
        while True:
            batch = self.batch(max_records)
            if not len(batch):
                result = self.wait(timeout_s)
                if result is Wait.READY:
                    continue
                if result is Wait.TIMEOUT or timeout_s is not None:
                    return
            yield batch
            batch.advance()

    def _map(self) -> None:
        handle = self.handle
        self._segment = Segment(handle.ticks, owned=False)
        self._frames = Segment(handle.frames, owned=False) if handle.frames else None
        self._slots = self._segment.ticks
        self._mask = self._segment.header.capacity - 1
        self._switches = handle.switches

    # ---- what is known ----

    @property
    def segment(self) -> Segment:
        """The current incarnation's segment: symbols, header, hot words."""
        if self._segment is None or self.handle.switches != self._switches:
            self._map()
        assert self._segment is not None
        return self._segment

    @property
    def cursor(self) -> int:
        """Position of the next record."""
        return int(self.handle.cursor)

    @property
    def records(self) -> int:
        """Records read and valid."""
        return int(self.handle.records)

    @property
    def lost(self) -> int:
        """Records lost by being lapped: skipped, or overwritten while in use."""
        return int(self.handle.lost)

    @property
    def renumbered(self) -> int:
        """How often the numbers began anew, so that what was lost then is not known."""
        return int(self.handle.renumbered)

    @property
    def switches(self) -> int:
        """Producer incarnations gone over to."""
        return int(self.handle.switches)

    @property
    def stale(self) -> bool:
        """Whether the producer is gone or silent, as last looked."""
        return bool(self.handle.state == lib.NA_READER_STALE)

    @property
    def dropped(self) -> bool:
        """Whether this reader was gating, missed the deadline and is lossy now."""
        return bool(self.handle.dropped)

    @property
    def attached(self) -> bool:
        """Whether the daemon knows of us; reading goes on without it."""
        return bool(self.handle.attached)

    @property
    def data_age_ns(self) -> int:
        """At the last batch: age of the oldest record not read then; 0: caught up."""
        return int(self.handle.age_ns)

    @property
    def price_exponent(self) -> int:
        """price = mantissa * 10**exponent."""
        return self.segment.header.price_exponent

    def symbol(self, instrument: int) -> str | None:
        """The symbol of an instrument, or None."""
        return self.segment.symbol(instrument)

    def symbols(self) -> dict[int, str]:
        """The whole symbol table."""
        return self.segment.symbols()

    def frame(self, position: int) -> Frame | None:
        """The frame that a tick's aux points to; None: overwritten, or the feed keeps none."""
        if self._segment is None or self.handle.switches != self._switches:
            self._map()
        return self._frames.frame(position) if self._frames else None

    def close(self) -> None:
        """Detaches. Views taken before stay readable."""
        self._segment = self._frames = self._slots = None
        ffi.release(self.handle)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncReader:
    """A reader in an event loop: a C thread of this process waits on the ring and wakes the loop.

    Same batches; `await wait()` instead of `wait()`. While a wait is under way nothing else of the
    reader may be used.
    """

    def __init__(self, reader: Reader) -> None:
        """Takes the reader over."""
        out = ffi.new("struct na_waiter **")
        rc = lib.na_waiter_start(reader.handle, out)
        if rc < 0:
            raise UnavailableError(f"no thread to wait for the ring: {os.strerror(-rc)}")
        self.reader = reader
        self._waiter = ffi.gc(out[0], lib.na_waiter_stop)
        self._fd = int(lib.na_waiter_fd(self._waiter))

    @classmethod
    async def attach(
        cls,
        feed: str,
        name: str,
        *,
        socket: str | os.PathLike[str] = DEFAULT_SOCKET,
        mode: ReaderMode = ReaderMode.LOSSY,
        wait_s: float = 0.0,
    ) -> AsyncReader:
        """As `Reader.attach`, in a thread of the loop's executor."""
        reader = await asyncio.to_thread(
            Reader.attach, feed, name, socket=socket, mode=mode, wait_s=wait_s
        )
        return cls(reader)

    def batch(self, max_records: int = MAX_BATCH) -> Batch:
        """See `Reader.batch`."""
        return self.reader.batch(max_records)

    async def wait(self, timeout_s: float | None = None) -> Wait:
        """See `Reader.wait`; may be cancelled."""
        loop = asyncio.get_running_loop()
        rang = asyncio.Event()
        timeout = _FOREVER if timeout_s is None else max(0, int(timeout_s * 1e9))
        loop.add_reader(self._fd, rang.set)
        try:
            lib.na_waiter_arm(self._waiter, timeout)
            await rang.wait()
        finally:
            loop.remove_reader(self._fd)
            # Within 20 ms also when cancelled: the thread is made to let go.
            result = Wait(lib.na_waiter_take(self._waiter))
        return result

    async def batches(
        self, max_records: int = MAX_BATCH, timeout_s: float | None = None
    ) -> AsyncIterator[Batch]:
        """See `Reader.batches`."""
        while True:
            batch = self.reader.batch(max_records)
            if not len(batch):
                result = await self.wait(timeout_s)
                if result is Wait.READY:
                    continue
                if result is Wait.TIMEOUT or timeout_s is not None:
                    return
            else:
                # Others of this loop get their turn also when the ring never runs empty.
                await asyncio.sleep(0)
            yield batch
            batch.advance()

    def close(self) -> None:
        """Ends the thread and detaches."""
        ffi.release(self._waiter)
        self.reader.close()

    async def __aenter__(self) -> AsyncReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
