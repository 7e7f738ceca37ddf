"""Feeds in Python: a thin layer over native/core/feeder_run.c (docs/feeds.md).

Every call that may take long releases the GIL (cffi in API mode does so around each call).
"""

from __future__ import annotations

import enum
import errno
import ipaddress
import os
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nodeagent.errors import NodeagentError, UnavailableError, UsageError
from nodeagent.given import open_given
from nodeagent.native._core import ffi as _ffi
from nodeagent.native._core import lib as _lib
from nodeagent.native.ring import TICK, Frame, Producer

if TYPE_CHECKING:
    import numpy.typing as npt

# cffi's objects have no types of their own.
ffi: Any = _ffi
lib: Any = _lib

WHY_BYTES = 256
"""Room for a sentence of the C library."""
_NEVER_NS = (1 << 64) - 1


class Kind(enum.IntEnum):
    """Kinds of ticks (NA_KIND_*)."""

    ADD = 1
    EXECUTE = 2
    EXECUTE_PRICE = 3
    REDUCE = 4
    DELETE = 5
    REPLACE = 6
    TRADE = 7
    CROSS = 8
    BREAK = 9
    DIRECTORY = 10
    STATUS = 11
    SYSTEM = 12
    IMBALANCE = 13
    OTHER = 14
    RESTART = 240
    WIRE_GAP = 241
    SESSION = 242
    SESSION_END = 243


class Format(enum.Enum):
    """Formats of recorded feeds; values are NA_FORMAT_*."""

    AUTO = 0
    PCAP = 1
    PCAPNG = 2
    BINARYFILE = 3
    SOUPBINTCP = 4


BAD = (
    "unknown-type",
    "wrong-length",
    "empty",
    "short-header",
    "truncated",
    "trailing-bytes",
    "sequence-overflow",
    "sequence-jump",
    "oversize",
    "not-ip",
    "ip-header",
    "fragment",
    "checksum",
    "snapped",
    "soup-type",
)
"""Names of NA_BAD_*, in that order: why a message (the first three) or a packet was not decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A destination group (or unicast address) and port, and the interface to join on."""

    group: str
    port: int
    interface: str | None = None
    """Name; None: by route."""

    def __str__(self) -> str:
        group = f"[{self.group}]" if ":" in self.group else self.group
        return f"{group}:{self.port}" + (f"@{self.interface}" if self.interface else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """A feed's counters since it started: struct na_feed_counts of core/feed_abi.h.

    span = published + rejected + gap_wire + gap_kernel, whatever came.
    """

    packets: int
    bytes: int
    filtered: int
    published: int
    rejected: int
    gap_wire: int
    gap_kernel: int
    span: int
    duplicates: int
    late: int
    gaps: int
    heartbeats: int
    sessions: int
    session_ends: int
    stale_session: int
    held: int
    kernel_drops: int
    symbols: int
    symbols_lost: int
    last_rx_ns: int
    first_seq: int
    next_seq: int
    bad: tuple[tuple[str, int], ...]
    """(kind, how many), only those that happened."""

    @property
    def adds_up(self) -> bool:
        """The identity: every sequence number is in exactly one counter."""
        return self.span == self.published + self.rejected + self.gap_wire + self.gap_kernel


def _counts(c: Any) -> Counts:
    plain = {name: int(getattr(c, name)) for name in Counts.__dataclass_fields__ if name != "bad"}
    bad = tuple((name, int(n)) for name, n in zip(BAD, c.bad, strict=True) if n)
    return Counts(**plain, bad=bad)


class CaptureError(NodeagentError):
    """A capture that cannot be read, or not to its end. What came before it was delivered."""


def capture_error(name: str, error: Any) -> CaptureError | None:
    """The sentence of a struct na_capture_error; None: there was no error."""
    where = f"{name}: record {error.record + 1} at byte {error.offset}"
    match error.kind:
        case lib.NA_CAPTURE_CUT:
            return CaptureError(
                f"{where} is cut: it needs {error.said} bytes, the file has {error.found} more",
                "everything before it was delivered; record or copy the file again for the rest",
            )
        case lib.NA_CAPTURE_CORRUPT:
            return CaptureError(
                f"{where} is damaged: saw {error.said} where {error.found} was expected",
                "everything before it was delivered; nothing after it can be trusted",
            )
        case lib.NA_CAPTURE_UNKNOWN:
            head = bytes(ffi.buffer(error.head, min(int(error.found), 16)))
            if head[:2] == b"\x1f\x8b":
                return CaptureError(
                    f"{name}: is compressed with gzip, expected the plain capture",
                    f"gunzip -c {name} | nodeagent-feeder --source capture --file - ...",
                )
            return CaptureError(
                f"{name}: begins with {head.hex(' ') or 'nothing'}, expected pcap, pcapng, or ITCH "
                "messages framed by BinaryFILE or SoupBinTCP",
                "name the format with --format if you know it",
            )
        case lib.NA_CAPTURE_LINK:
            return CaptureError(
                f"{where}: link type {error.said}, expected Ethernet, raw IP, Linux cooked or "
                "loopback",
                "capture on an Ethernet interface, or convert it with editcap",
            )
        case lib.NA_CAPTURE_IO:
            return CaptureError(
                f"{where}: {os.strerror(error.err)}", "name a capture file that can be read"
            )
    return None


def line_into(out: Any, line: Line) -> None:
    """Fills a struct na_feed_line. Raises UsageError."""
    import ipaddress
    import socket

    try:
        address = ipaddress.ip_address(line.group)
    except ValueError as error:
        raise UsageError(
            f"group {line.group!r}: expected an IPv4 or IPv6 address such as 239.1.1.1"
        ) from error
    if not 0 <= line.port < 65536:
        raise UsageError(f"port {line.port}: expected 0 to 65535")
    out.family = address.version
    out.port = line.port
    ffi.memmove(out.group, address.packed, len(address.packed))
    if line.interface:
        try:
            out.ifindex = socket.if_nametoindex(line.interface)
        except OSError as error:
            raise UsageError(
                f"interface {line.interface!r}: there is none of that name", "ip link"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketInfo:
    """What was got when a line's socket was opened."""

    receive_bytes: int
    drops_known: bool
    kernel_stamps: bool


class Memory:
    """Ticks, frames and symbols in plain memory: a feed without a ring (tests, tools)."""

    def __init__(self, ticks: int = 1 << 16, frame_bytes: int = 1 << 22) -> None:
        """Room for that many ticks and bytes of frames; what does not fit is counted."""
        self._ticks = np.zeros(ticks, TICK)
        self._frames = bytearray(frame_bytes)
        self._symbols = ffi.new("struct na_symbol[]", lib.NA_RING_SYMBOLS_MAX)
        self.pointer = ffi.new("struct na_memory *")
        self.pointer.ticks = ffi.from_buffer("struct na_tick[]", self._ticks)
        self.pointer.tick_capacity = ticks
        self.pointer.frames = ffi.from_buffer("uint8_t[]", self._frames)
        self.pointer.frame_capacity = frame_bytes
        self.pointer.symbols = self._symbols

    @property
    def ticks(self) -> npt.NDArray[np.void]:
        """What was published, dtype TICK."""
        return self._ticks[: min(self.pointer.tick_count, len(self._ticks))]

    @property
    def overflowed(self) -> bool:
        """Whether something did not fit."""
        p = self.pointer
        return bool(p.tick_count > p.tick_capacity or p.frame_bytes > p.frame_capacity)

    def clear(self) -> None:
        """Empties it, but for the symbols."""
        self.pointer.tick_count = 0
        self.pointer.frame_bytes = self.pointer.frame_count = 0

    def frames(self) -> list[Frame]:
        """The frames, in order."""
        found, at = [], 0
        size = ffi.sizeof("struct na_frame")
        end = min(self.pointer.frame_bytes, len(self._frames))
        while at < end:
            meta = ffi.from_buffer("struct na_frame *", memoryview(self._frames)[at:])
            length = {4: 4, 6: 16}.get(meta.family, 0)
            found.append(
                Frame(
                    position=at,
                    number=meta.number,
                    ts_rx_ns=meta.ts_rx_ns,
                    ts_hw_ns=meta.ts_hw_ns,
                    flags=meta.flags,
                    vlan=None if meta.vlan == lib.NA_FRAME_NO_VLAN else meta.vlan,
                    family=meta.family,
                    src=bytes(ffi.buffer(meta.src, length)),
                    dst=bytes(ffi.buffer(meta.dst, length)),
                    src_port=meta.src_port,
                    dst_port=meta.dst_port,
                    payload=bytes(self._frames[at + size : at + size + meta.length]),
                )
            )
            at += (size + meta.length + 15) & ~15
        return found

    def symbols(self) -> dict[int, str]:
        """Instrument -> symbol."""
        raw = np.frombuffer(ffi.buffer(self._symbols), dtype=[("name", "S23"), ("length", "u1")])
        return {
            int(i): bytes(raw["name"][i]).decode("latin-1") for i in np.flatnonzero(raw["length"])
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a feed is received. See struct na_feed_config of core/feed_abi.h."""

    kernel_stamps: bool = True
    busy: bool = False
    verify_checksums: bool = False
    linger: bool = False
    first_seq: int = 0
    wait_ns: int = 20_000_000
    rate: int = 0
    receive_bytes: int = 64 << 20


class Feed:
    """One feed: a source, the decoder, and a ring or memory that the ticks go to."""

    def __init__(
        self,
        *,
        lines: Sequence[Line] = (),
        file: str | None = None,
        format: Format = Format.AUTO,
        options: Options | None = None,
        ticks: Producer | None = None,
        frames: Producer | None = None,
        memory: Memory | None = None,
        stats: Any = None,
    ) -> None:
        """From sockets on `lines`, or from the capture `file` ("-": stdin; `lines` then filter it).

        `stats`: the `struct na_feed_stats *` that the data thread keeps.

        Raises CaptureError, UsageError, UnavailableError.
        """
        assert (ticks is None) != (memory is None)
        options = options or Options()
        self.name = file or ", ".join(map(str, lines))
        self._keep = (ticks, frames, memory, stats)
        self._fds: list[int] = []
        self._feed: Any = None
        self.sockets: tuple[SocketInfo, ...] = ()
        config = ffi.new("struct na_feed_config *")
        config.source = lib.NA_SOURCE_CAPTURE if file else lib.NA_SOURCE_SOCKET
        config.format = format.value
        config.lines = len(lines)
        config.kernel_stamps = options.kernel_stamps
        config.busy = options.busy
        config.verify_checksums = options.verify_checksums
        config.linger = options.linger
        config.first_seq = options.first_seq
        config.wait_ns = options.wait_ns
        config.rate = options.rate
        if len(lines) > 2 or not (lines or file):
            raise UsageError(f"{len(lines)} lines given, expected 1 or 2 (A and B)")
        try:
            for i, line in enumerate(lines):
                line_into(config.line[i], line)
            if file:
                self._fds.append(open_capture(file))
            else:
                self._open_sockets(config, lines, options)
            for i, fd in enumerate(self._fds):
                config.fds[i] = fd
            self.lines = tuple(
                Line(group=line.group, port=int(config.line[i].port), interface=line.interface)
                for i, line in enumerate(lines)
            )
            out = ffi.new("struct na_feed **")
            rc = lib.na_feed_new(
                config,
                ticks.ring if ticks else ffi.NULL,
                frames.ring if frames else ffi.NULL,
                memory.pointer if memory else ffi.NULL,
                ffi.NULL if stats is None else stats,
                out,
            )
            self._feed = ffi.gc(out[0], lib.na_feed_free)
            if rc < 0:
                raise self._error() or UnavailableError(f"{self.name}: {os.strerror(-rc)}")
        except BaseException:
            self.close()
            raise

    def _open_sockets(self, config: Any, lines: Sequence[Line], options: Options) -> None:
        infos = []
        for i, line in enumerate(lines):
            info = ffi.new("struct na_socket_info *")
            why = ffi.new("char[]", WHY_BYTES)
            rc = lib.na_socket_open(
                ffi.addressof(config.line, i), options.receive_bytes, options.kernel_stamps, info,
                why, WHY_BYTES,
            )  # fmt: skip
            if rc < 0:
                raise UnavailableError(
                    f"line {line}: {bytes(ffi.string(why)).decode()}", line_remedy(-rc, line)
                )
            self._fds.append(info.fd)
            infos.append(
                SocketInfo(
                    receive_bytes=info.receive_bytes,
                    drops_known=bool(info.drops_known),
                    kernel_stamps=bool(info.kernel_stamps),
                )
            )
        self.sockets = tuple(infos)

    def _error(self) -> CaptureError | None:
        error = ffi.new("struct na_capture_error *")
        lib.na_feed_error(self._feed, error)
        return capture_error("stdin" if self.name == "-" else self.name, error)

    def run(self) -> bool:
        """Receives, decodes, publishes, until `stop()` (False) or the capture's end (True).

        Blocks without the GIL. Raises CaptureError when a capture cannot be read to its end.
        """
        rc = lib.na_feed_run(self._feed)
        if rc < 0:
            raise self._error() or UnavailableError(f"{self.name}: {os.strerror(-rc)}")
        return bool(rc == lib.NA_FEED_ENDED)

    def stop(self) -> None:
        """From any thread: `run` returns soon."""
        lib.na_feed_stop(self._feed)

    def counts(self) -> Counts:
        """The counters, at most 20 ms old while it runs."""
        out = ffi.new("struct na_feed_counts *")
        lib.na_feed_read(self._feed, out)
        return _counts(out)

    def dropped_packets(self) -> int | None:
        """Packets the kernel dropped on this feed's sockets; None: not knowable here."""
        total, out = 0, ffi.new("uint64_t *")
        for fd in self._fds if self.sockets else ():
            if lib.na_socket_dropped(fd, out) < 0:
                return None
            total += int(out[0])
        return total if self.sockets else None

    def close(self) -> None:
        """Lets go of sockets and memory; not while `run` is under way."""
        if self._feed is not None:
            ffi.release(self._feed)
            self._feed = None
        for fd in self._fds:
            if fd != 0:
                os.close(fd)
        self._fds = []

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_capture(file: str) -> int:
    """The capture's descriptor; "-": 0, stdin. Raises CaptureError."""
    if file == "-":
        return 0
    try:
        return open_given(file)
    except OSError as error:
        raise CaptureError(f"{file}: {error.strerror}", "name a capture that is there") from error


def line_remedy(err: int, line: Line) -> str:
    """What to do about a line that could not be opened."""
    match err:
        case errno.EADDRINUSE:
            return f"another process holds port {line.port}: ss -lunp 'sport = {line.port}'"
        case errno.EADDRNOTAVAIL if not ipaddress.ip_address(line.group).is_multicast:
            return f"{line.group} is neither a multicast group nor an address of this host"
        case errno.ENODEV | errno.EADDRNOTAVAIL:
            return "name the interface that receives the group with --interface"
        case errno.ENOBUFS:
            return "too many groups on one socket: raise net.ipv4.igmp_max_memberships"
    return ""


def decode_capture(
    file: str | pathlib.Path,
    *,
    format: Format = Format.AUTO,
    lines: Sequence[Line] = (),
    options: Options | None = None,
    memory: Memory | None = None,
) -> tuple[Memory, Counts, CaptureError | None]:
    """A capture into memory: what was published, the counters, and where reading ended early."""
    memory = memory or Memory()
    with Feed(file=str(file), format=format, lines=lines, options=options, memory=memory) as feed:
        error = None
        try:
            feed.run()
        except CaptureError as cut:
            error = cut
        return memory, feed.counts(), error


def decode_blocks(
    blocks: bytes,
    *,
    memory: Memory | None = None,
    ring: Producer | None = None,
    per_packet: int = 1,
) -> Counts:
    """Decodes blocks of a two-byte length and an ITCH 5.0 message; nothing but the decoder."""
    out = ffi.new("struct na_feed_counts *")
    lib.na_feed_decode_blocks(
        ffi.from_buffer(blocks), len(blocks), memory.pointer if memory else ffi.NULL,
        ring.ring if ring else ffi.NULL, per_packet, out,
    )  # fmt: skip
    return _counts(out)
