"""Asks the daemon's `ring.sock` for feeds and rings; needs no gRPC."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import struct

import msgspec

from nodeagent.errors import UnavailableError
from nodeagent.model.feed import FeedStatus, RingStatus
from nodeagent.model.ringproto import (
    MAX_BYTES,
    Msg,
    MsgType,
    ProtocolError,
    StatRow,
    decode,
    encode,
    raise_error,
)

TIMEOUT_S = 5
MAX_ROWS = 100_000


def stat(path: str | os.PathLike[str]) -> tuple[tuple[FeedStatus, ...], tuple[RingStatus, ...]]:
    """Feeds and rings as the daemon sees them. Raises UnavailableError, ProtocolError."""
    feeds: list[FeedStatus] = []
    rings: dict[tuple[str, str, int], RingStatus] = {}
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            # Blocking, with the kernel's deadlines: in Python's own, a full backlog is an error.
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", TIMEOUT_S, 0))
            sock.connect(os.fspath(path))
            # Turned away already: why is there to be read.
            with contextlib.suppress(BrokenPipeError):
                sock.send(encode(Msg(type=MsgType.STAT)))
            for _ in range(MAX_ROWS):
                msg = decode(sock.recv(MAX_BYTES))
                raise_error(msg)
                if msg.type is MsgType.OK:
                    return tuple(feeds), tuple(rings.values())
                row = msgspec.json.decode(msg.text, type=StatRow)
                if row.feed is not None:
                    feeds.append(row.feed)
                if row.ring is not None:
                    key = (row.ring.feed, row.ring.kind, row.ring.incarnation)
                    before = rings.get(key)
                    readers = (before.readers if before else ()) + row.ring.readers
                    rings[key] = dataclasses.replace(row.ring, readers=readers)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        what = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UnavailableError(
            f"{path}: {what}", "is nodeagentd running, and may this user reach it?"
        ) from error
    raise ProtocolError(f"{path}: more than {MAX_ROWS} rows")
