"""Messages of `ring.sock` (SOCK_SEQPACKET): one fixed header of 128 bytes a packet, then text.

The layout is `struct na_ring_msg` of native/core/ring_abi.h; descriptors travel beside it as
SCM_RIGHTS. Conversation: docs/ring.md, "ring.sock".
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from nodeagent.errors import NodeagentError
from nodeagent.model.feed import FeedStatus, ReaderMode, RingStatus

MAGIC = 0x53524E41
VERSION = 1
MAX_TEXT = 65536
MAX_FDS = 4
NAME_BYTES = 32
"""Of a feed's or reader's name, with the ending NUL."""

_HEADER = struct.Struct("<IHHIIHHHHIIQQQ32s32sQ")
HEADER_BYTES = _HEADER.size
MAX_BYTES = HEADER_BYTES + MAX_TEXT


class MsgType(enum.IntEnum):
    """What a message says; who sends it stands in ring_abi.h."""

    CLAIM = 1
    CLAIMED = 2
    OFFER = 3
    OK = 4
    ATTACH = 5
    ATTACHED = 6
    SEGMENT = 7
    GONE = 8
    NEXT = 9
    ADD_READER = 10
    REMOVE_READER = 11
    DROPPED = 12
    STAT = 13
    STAT_ROW = 14
    ERROR = 15


class Flag(enum.IntFlag):
    """Bits of `Msg.flags`."""

    NONE = 0
    HAS_STATS = 1
    LIVE = 2


class ErrorCode(enum.IntEnum):
    """`Msg.status` of an ERROR."""

    NONE = 0
    PROTOCOL = 1
    VERSION = 2
    DENIED = 3
    NO_FEED = 4
    BUSY = 5
    FULL = 6
    SEGMENT = 7


class ProtocolError(NodeagentError):
    """Bytes that are no message, or an ERROR that the other side sent."""

    def __init__(
        self, message: str, remedy: str = "", code: ErrorCode = ErrorCode.PROTOCOL
    ) -> None:
        super().__init__(message, remedy)
        self.code = code


MODES = (ReaderMode.LOSSY, ReaderMode.GATING)
"""By number on the wire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Msg:
    """One message. `ring` is 1 (ticks) or 2 (frames); `rings` the tuple of those whose
    descriptors come with it, in that order."""

    type: MsgType
    feed: str = ""
    name: str = ""
    status: ErrorCode = ErrorCode.NONE
    flags: Flag = Flag.NONE
    ring: int = 0
    rings: tuple[int, ...] = ()
    mode: ReaderMode = ReaderMode.LOSSY
    slot: int = 0
    lineage: int = 0
    incarnation: int = 0
    cursor: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatRow:
    """What a STAT_ROW's JSON text holds: one of the two. A ring with many readers comes in
    several rows that differ in `readers` only."""

    feed: FeedStatus | None = None
    ring: RingStatus | None = None


def valid_name(name: str) -> bool:
    """Names are 1 to 31 bytes of printable characters without spaces or slashes."""
    return (
        0 < len(name.encode()) < NAME_BYTES
        and name.isprintable()
        and not any(c.isspace() or c == "/" for c in name)
    )


def encode(msg: Msg) -> bytes:
    """The packet's bytes."""
    text = msg.text.encode()
    assert len(text) <= MAX_TEXT
    return (
        _HEADER.pack(
            MAGIC,
            VERSION,
            msg.type,
            msg.status,
            msg.flags,
            msg.ring,
            sum(1 << ring for ring in msg.rings),
            MODES.index(msg.mode),
            msg.slot,
            len(text),
            0,
            msg.lineage,
            msg.incarnation,
            msg.cursor,
            msg.feed.encode(),
            msg.name.encode(),
            0,
        )
        + text
    )


def _name(raw: bytes, what: str) -> str:
    head, nul, _ = raw.partition(b"\0")
    if not head:
        return ""
    try:
        name = head.decode()
    except UnicodeDecodeError:
        name = ""
    if not nul or not valid_name(name):
        raise ProtocolError(f"{what} {head!r}: expected 1 to 31 printable bytes without spaces")
    return name


def decode(packet: bytes) -> Msg:
    """The message in a packet. Raises ProtocolError."""
    if len(packet) < HEADER_BYTES:
        raise ProtocolError(f"a packet of {len(packet)} bytes, expected at least {HEADER_BYTES}")
    (
        magic,
        version,
        kind,
        status,
        flags,
        ring,
        rings,
        mode,
        slot,
        text_bytes,
        _,
        lineage,
        incarnation,
        cursor,
        feed,
        name,
        _,
    ) = _HEADER.unpack_from(packet)
    if magic != MAGIC:
        raise ProtocolError(f"a packet that begins with {magic:#010x}, expected {MAGIC:#010x}")
    if version != VERSION:
        raise ProtocolError(
            f"version {version} of the ring protocol, expected {VERSION}",
            "use the reader and the daemon of one release",
            ErrorCode.VERSION,
        )
    try:
        return Msg(
            type=MsgType(kind),
            feed=_name(feed, "feed name"),
            name=_name(name, "reader name"),
            status=ErrorCode(status),
            flags=Flag(flags & 3),
            ring=ring,
            rings=tuple(bit for bit in (1, 2) if rings >> bit & 1),
            mode=MODES[mode],
            slot=slot,
            lineage=lineage,
            incarnation=incarnation,
            cursor=cursor,
            text=packet[HEADER_BYTES : HEADER_BYTES + text_bytes].decode(),
        )
    except (ValueError, IndexError) as error:
        raise ProtocolError(f"a packet that is no message: {error}") from error


def error(code: ErrorCode, message: str, remedy: str = "") -> Msg:
    """An ERROR message."""
    return Msg(type=MsgType.ERROR, status=code, text=f"{message}\n{remedy}"[: MAX_TEXT // 4])


def raise_error(msg: Msg) -> None:
    """Raises ProtocolError when the message is an ERROR."""
    if msg.type is MsgType.ERROR:
        message, _, remedy = msg.text.partition("\n")
        raise ProtocolError(message, remedy, msg.status)
