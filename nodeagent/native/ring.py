"""Ring segments in Python: a thin layer over native/core/ring.c (docs/ring.md).

`Producer` publishes (tests and tools; feeders call ring.h from C). `Segment` is a read-only
mapping. Numpy views of a segment are read-only and keep the mapping alive.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nodeagent.errors import NodeagentError
from nodeagent.native._core import ffi as _ffi
from nodeagent.native._core import lib as _lib

if TYPE_CHECKING:
    import numpy.typing as npt

# cffi's objects have no types of their own.
ffi: Any = _ffi
lib: Any = _lib

TICK_SCHEMA = (
    "seq:u64 ts_exch_ns:u64 ts_rx_ns:u64 price:i64 size:u64 ref:u64 aux:u64"
    " instrument:u32 kind:u8 side:u8 flags:u16"
)
FRAME_SCHEMA = (
    "seq:u64 number:u64 ts_rx_ns:u64 ts_hw_ns:u64 length:u32 flags:u16 vlan:u16"
    " src_port:u16 dst_port:u16 family:u8 reserved:u8[3] src:u8[16] dst:u8[16]"
)
"""What NA_RING_SCHEMA_* are the FNV-1a 64 hashes of."""

TICK = np.dtype(
    [
        ("seq", "<u8"),
        ("ts_exch_ns", "<u8"),
        ("ts_rx_ns", "<u8"),
        ("price", "<i8"),
        ("size", "<u8"),
        ("ref", "<u8"),
        ("aux", "<u8"),
        ("instrument", "<u4"),
        ("kind", "u1"),
        ("side", "u1"),
        ("flags", "<u2"),
    ]
)
"""One tick slot, 64 bytes (struct na_tick)."""

KINDS = {
    getattr(lib, f"NA_KIND_{name.upper()}"): name
    for name in (
        "add",
        "execute",
        "execute_price",
        "reduce",
        "delete",
        "replace",
        "trade",
        "cross",
        "break",
        "directory",
        "status",
        "system",
        "imbalance",
        "other",
        "quote",
        "level",
        "clear",
        "restart",
        "wire_gap",
        "session",
        "session_end",
    )
}
"""Names of the values of a tick's `kind`."""

_WHY_BYTES = 256


class RingKind(enum.IntEnum):
    """Which of a feed's two rings."""

    TICKS = 1
    FRAMES = 2


class RingError(NodeagentError):
    """A segment that cannot be made, or is none; `errno` as the C library names it."""

    def __init__(self, message: str, errno: int, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.errno = errno


@dataclass(frozen=True, slots=True, kw_only=True)
class RingInfo:
    """What a producer got, read back. Errors are 0 or -errno."""

    node: int | None
    """NUMA node of all sampled pages; None: not known or on several."""
    policy_error: int
    lock_error: int
    collapse_error: int
    hugetlb: bool
    huge_bytes: int
    size_bytes: int
    capacity: int
    lineage: int
    incarnation: int
    start: int
    continued: bool
    wakes: int
    """FUTEX_WAKE calls so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The static part of a segment."""

    kind: RingKind
    feed: str
    capacity: int
    """Ticks: slots; frames: bytes."""
    slot_bytes: int
    data_bytes: int
    size_bytes: int
    lineage: int
    incarnation: int
    start: int
    producer_pid: int
    producer_start_time: int
    price_exponent: int
    created_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hot:
    """The words that change, as they were when read."""

    reserve: int
    commit: int
    first: int
    futex: int
    heartbeat_ns: int
    closed: bool
    symbols_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One record of the frames ring, copied out. Addresses are in network order."""

    position: int
    number: int
    ts_rx_ns: int
    ts_hw_ns: int
    flags: int
    vlan: int | None
    family: int
    src: bytes
    dst: bytes
    src_port: int
    dst_port: int
    payload: bytes


def _text(field: Any) -> str:
    return bytes(ffi.string(field)).decode("utf-8", "replace")


def _name_into(field: Any, name: str) -> None:
    raw = name.encode()
    if not 0 < len(raw) < lib.NA_RING_NAME_BYTES:
        raise RingError(f"name {name!r}: expected 1 to {lib.NA_RING_NAME_BYTES - 1} bytes", 22)
    ffi.memmove(field, raw, len(raw))


class Segment:
    """A read-only mapping of a segment, checked (seals, CRC32C, geometry) when it is opened."""

    def __init__(self, view: Any, *, owned: bool = True) -> None:
        """Wraps a `struct na_view *`; `owned`: its reference is this object's now."""
        if not owned:
            lib.na_view_ref(view)
        self._view = ffi.gc(view, lib.na_view_unref)
        fixed = lib.na_view_header(view)
        self.header = Header(
            kind=RingKind(fixed.kind),
            feed=_text(fixed.feed),
            capacity=fixed.capacity,
            slot_bytes=fixed.slot_bytes,
            data_bytes=fixed.data_bytes,
            size_bytes=fixed.data_offset + fixed.data_bytes,
            lineage=fixed.lineage,
            incarnation=fixed.incarnation,
            start=fixed.start,
            producer_pid=fixed.producer_pid,
            producer_start_time=fixed.producer_start_time,
            price_exponent=fixed.price_exponent,
            created_ns=fixed.created_ns,
        )
        self._hot = ffi.new("struct na_ring_hot *")
        self._ticks: npt.NDArray[np.void] | None = None

    @classmethod
    def open(cls, fd: int, kind: RingKind | None = None, *, populate: bool = True) -> Segment:
        """Maps the segment behind a descriptor, which stays the caller's. Raises RingError.

        `populate`: make the page tables now (readers), not as pages are touched (the daemon)."""
        out = ffi.new("struct na_view **")
        why = ffi.new("char[]", _WHY_BYTES)
        rc = lib.na_view_open(fd, kind or 0, populate, out, why, _WHY_BYTES)
        if rc < 0:
            raise RingError(_text(why), -rc, "attach again, or restart the feeder of this feed")
        return cls(out[0])

    @property
    def view(self) -> Any:
        """The `struct na_view *`."""
        return self._view

    def hot(self) -> Hot:
        """The words that change."""
        lib.na_view_hot(self._view, self._hot)
        h = self._hot
        return Hot(
            reserve=h.reserve,
            commit=h.commit,
            first=h.first,
            futex=h.futex,
            heartbeat_ns=h.heartbeat_ns,
            closed=h.state == lib.NA_RING_CLOSED,
            symbols_seq=h.symbols_seq,
        )

    @property
    def ticks(self) -> npt.NDArray[np.void]:
        """All slots twice in a row, shape (2 * capacity,), dtype TICK; read-only, zero copy.

        Slot of position p: p % capacity. Contents may change at any time: see docs/ring.md.
        """
        if self._ticks is None:
            assert self.header.kind is RingKind.TICKS
            size = 2 * self.header.data_bytes
            data = ffi.buffer(_Owner(self).pointer(lib.na_view_data(self._view)), size)
            self._ticks = np.frombuffer(memoryview(data).toreadonly(), dtype=TICK)
        return self._ticks

    def node(self) -> int | None:
        """NUMA node of the pages; None: not known or on several."""
        node: int = lib.na_view_node(self._view)
        return node if node >= 0 else None

    def end(self, cursor: int) -> int:
        """One past the last record readable from cursor on."""
        return int(lib.na_view_end(self._view, cursor))

    def age_ns(self, cursor: int, now_ns: int) -> int:
        """Data age of a reader at that cursor (CLOCK_MONOTONIC); 0: caught up."""
        return int(lib.na_view_age(self._view, cursor, now_ns))

    def symbol(self, instrument: int) -> str | None:
        """The symbol of an instrument, or None."""
        out = ffi.new("struct na_symbol *")
        if lib.na_view_symbol(self._view, instrument, out) < 0:
            return None
        return bytes(ffi.buffer(out.name, out.length)).decode("utf-8", "replace")

    def symbols(self) -> dict[int, str]:
        """The whole table."""
        count = lib.na_view_header(self._view).symbols_capacity
        table = ffi.new("struct na_symbol[]", max(count, 1))
        lib.na_view_symbols(self._view, table)
        raw = np.frombuffer(ffi.buffer(table), dtype=[("name", "S23"), ("length", "u1")])
        return {
            int(i): bytes(raw["name"][i]).decode("utf-8", "replace")
            for i in np.flatnonzero(raw["length"])
        }

    def frame(self, position: int) -> Frame | None:
        """The frame at a position; None: overwritten, or none starts there."""
        return self._frame(lib.na_view_frame, position)

    def next_frame(self, position: int) -> tuple[Frame | None, int]:
        """The frame at a position, or the oldest when that is gone; and the position after it."""
        at = ffi.new("uint64_t *", position)
        frame = self._frame(lib.na_view_next_frame, at)
        return frame, int(at[0])

    def _frame(self, call: Any, at: Any) -> Frame | None:
        meta = ffi.new("struct na_frame *")
        room = bytearray(lib.NA_FRAME_MAX_PAYLOAD)
        length = call(self._view, at, meta, ffi.from_buffer(room), len(room))
        if length < 0:
            return None
        size = {4: 4, 6: 16}.get(meta.family, 0)
        return Frame(
            position=meta.seq - 1,
            number=meta.number,
            ts_rx_ns=meta.ts_rx_ns,
            ts_hw_ns=meta.ts_hw_ns,
            flags=meta.flags,
            vlan=None if meta.vlan == lib.NA_FRAME_NO_VLAN else meta.vlan,
            family=meta.family,
            src=bytes(ffi.buffer(meta.src, size)),
            dst=bytes(ffi.buffer(meta.dst, size)),
            src_port=meta.src_port,
            dst_port=meta.dst_port,
            payload=bytes(room[:length]),
        )


class _Owner:
    """Makes a pointer into a mapping keep that mapping alive: cffi's gc holds the segment."""

    def __init__(self, segment: Segment) -> None:
        self._view = segment.view

    def pointer(self, data: Any) -> Any:
        """The same address, whose cdata holds the view."""
        view = self._view

        def forget(_: Any) -> None:
            nonlocal view
            view = None

        return ffi.gc(ffi.cast("char *", data), forget)


class Producer:
    """Publishes one ring. Close it (or leave its `with`) and readers see the end."""

    def __init__(
        self,
        feed: str,
        *,
        kind: RingKind = RingKind.TICKS,
        capacity: int = 1 << 16,
        price_exponent: int = -4,
        node: int | None = None,
        hugetlb: bool = False,
        gating_deadline_ns: int = 0,
        dead: Segment | None = None,
    ) -> None:
        """`capacity`: slots (ticks) or bytes (frames), rounded up to a power of two and 2 MiB;
        `dead`: the last segment, to number on from. Raises RingError."""
        config = ffi.new("struct na_ring_config *")
        _name_into(config.feed, feed)
        config.kind = kind
        config.capacity = capacity
        config.price_exponent = price_exponent
        config.node = -1 if node is None else node
        config.hugetlb = hugetlb
        config.gating_deadline_ns = gating_deadline_ns
        out = ffi.new("struct na_ring **")
        why = ffi.new("char[]", _WHY_BYTES)
        dead_view = dead.view if dead else ffi.NULL
        rc = lib.na_ring_create(config, dead_view, out, why, _WHY_BYTES)
        if rc < 0:
            raise RingError(
                f"ring of feed {feed}: {_text(why)}",
                -rc,
                "ask for a smaller ring, or free memory on that node" if rc in (-28, -12) else "",
            )
        self._ring = ffi.gc(out[0], lib.na_ring_destroy)
        self.kind = kind
        self.feed = feed

    @property
    def ring(self) -> Any:
        """The `struct na_ring *`, for C code that publishes."""
        return self._ring

    def info(self) -> RingInfo:
        """What was got, read back."""
        i = ffi.new("struct na_ring_info *")
        lib.na_ring_info(self._ring, i)
        return RingInfo(
            node=i.node if i.node >= 0 else None,
            policy_error=i.policy_error,
            lock_error=i.lock_error,
            collapse_error=i.collapse_error,
            hugetlb=bool(i.hugetlb),
            huge_bytes=i.huge_bytes,
            size_bytes=i.size_bytes,
            capacity=i.capacity,
            lineage=i.lineage,
            incarnation=i.incarnation,
            start=i.start,
            continued=bool(i.continued),
            wakes=i.wakes,
        )

    def fileno(self) -> int:
        """The segment's descriptor, to be passed on; it stays this object's."""
        info = ffi.new("struct na_ring_info *")
        lib.na_ring_info(self._ring, info)
        return int(info.fd)

    @property
    def position(self) -> int:
        """Records (bytes, for frames) committed so far in this lineage."""
        return int(lib.na_ring_position(self._ring))

    def publish(self, ticks: npt.NDArray[np.void]) -> None:
        """One batch of dtype TICK (contiguous); `seq` is not read. Commits and wakes."""
        assert ticks.dtype == TICK and ticks.flags.c_contiguous
        pointer = ffi.from_buffer("struct na_tick[]", ticks)
        lib.na_ring_publish(self._ring, pointer, len(ticks))

    def publish_frame(
        self,
        payload: bytes,
        *,
        ts_rx_ns: int = 0,
        src: bytes = b"",
        dst: bytes = b"",
        src_port: int = 0,
        dst_port: int = 0,
        vlan: int | None = None,
    ) -> int:
        """One frame; returns its position. Raises RingError when it is too long."""
        meta = ffi.new("struct na_frame *")
        meta.ts_rx_ns = ts_rx_ns
        meta.vlan = lib.NA_FRAME_NO_VLAN if vlan is None else vlan
        meta.family = {0: 0, 4: 4, 16: 6}[len(src)]
        meta.src_port, meta.dst_port = src_port, dst_port
        ffi.memmove(meta.src, src, len(src))
        ffi.memmove(meta.dst, dst, len(dst))
        at = lib.na_ring_publish_frame(self._ring, meta, payload, len(payload))
        if at == (1 << 64) - 1:
            raise RingError(f"a frame of {len(payload)} bytes, expected at most 65535", 90)
        return int(at)

    def beat(self, now_ns: int) -> None:
        """Stores the heartbeat (CLOCK_MONOTONIC)."""
        lib.na_ring_beat(self._ring, now_ns)

    def set_symbols(self, symbols: Mapping[int, str] | Iterable[tuple[int, str]]) -> None:
        """Enters symbols (at most 23 bytes each). Raises RingError for a number out of range."""
        for number, name in dict(symbols).items():
            raw = name.encode()
            if lib.na_ring_set_symbol(self._ring, number, raw, len(raw)) < 0:
                raise RingError(f"instrument {number}: expected less than 65536", 34)

    def add_reader(self, slot: int, page_fd: int, *, gating: bool = False) -> None:
        """Maps a reader's page. Raises RingError."""
        rc = lib.na_ring_add_reader(self._ring, slot, page_fd, int(gating))
        if rc < 0:
            raise RingError(f"reader's page for slot {slot}: errno {-rc}", -rc)

    def remove_reader(self, slot: int) -> bool:
        """Unmaps it; False: there was none."""
        return int(lib.na_ring_remove_reader(self._ring, slot)) == 0

    def dropped(self) -> list[int]:
        """Slots of gating readers that missed their deadline since last asked."""
        slots: list[int] = []
        while (slot := lib.na_ring_next_dropped(self._ring, slots[-1] + 1 if slots else 0)) >= 0:
            slots.append(slot)
        return slots

    @property
    def ready_readers(self) -> int:
        """Attached readers that see whatever is published from now on."""
        return int(lib.na_ring_ready_readers(self._ring))

    def close(self) -> None:
        """Marks the segment closed and lets go of it."""
        ffi.release(self._ring)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
