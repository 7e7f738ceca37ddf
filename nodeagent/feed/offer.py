"""The feeder's side of `ring.sock`: claims a feed, offers its rings, keeps its reader table.

Belongs to the feeder's main thread; the data thread goes on publishing whatever happens here. The
daemon may come and go: the rings are offered again as soon as it is back.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from nodeagent.errors import NodeagentError
from nodeagent.feed.wire import receive, send
from nodeagent.model.feed import ReaderMode
from nodeagent.model.ringproto import ErrorCode, Flag, Msg, MsgType, ProtocolError, raise_error
from nodeagent.native.ring import Producer, RingError, RingKind, Segment

CLAIM_TIMEOUT_S = 5
RETRY_S = 0.25


def claim(path: Path | str, feed: str) -> dict[RingKind, Segment]:
    """The dead segments to number on from; empty: there are none, or the daemon is away.

    Raises ProtocolError when the feed has a living producer or this user may not feed.
    """
    found: dict[RingKind, Segment] = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        # Blocking, with the kernel's deadlines: in Python's own, a full backlog is an error.
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", CLAIM_TIMEOUT_S, 0))
        try:
            sock.connect(str(path))
            # Turned away already: why is there to be read.
            with contextlib.suppress(BrokenPipeError):
                send(sock, Msg(type=MsgType.CLAIM, feed=feed), [])
            answer = receive(sock)
        except OSError:
            return found
    if answer is None:
        return found
    msg, fds = answer
    try:
        raise_error(msg)
        for ring, fd in zip(msg.rings, fds, strict=False):
            # A segment of another ABI is as good as none: numbers begin anew.
            with contextlib.suppress(RingError):
                found[RingKind(ring)] = Segment.open(fd, RingKind(ring), populate=False)
    finally:
        for fd in fds:
            os.close(fd)
    return found


class Offer:
    """Keeps the rings of one feed offered. Call `poll()` at least every second."""

    def __init__(
        self,
        path: Path | str,
        feed: str,
        rings: Mapping[RingKind, Producer],
        stats_fd: int | None = None,
    ) -> None:
        """`rings`: ticks, and frames if they are kept. The objects stay the caller's."""
        self.path = Path(path)
        self.feed = feed
        self._rings = dict(rings)
        self._stats_fd = stats_fd
        self._sock: socket.socket | None = None
        self._retry_at = 0.0
        self._slots: set[tuple[RingKind, int]] = set()
        self.accepted = False
        """Whether the daemon has taken the offer and is there."""
        self.refusal: NodeagentError | None = None
        """What it said last when it refused."""

    @property
    def readers(self) -> int:
        """Attached readers, both rings together."""
        return len(self._slots)

    def poll(self, timeout_s: float = 0.0) -> None:
        """Connects, offers, deals with what the daemon says; waits for it at most timeout_s."""
        if self._sock is None:
            self._connect()
        if self._sock is None:
            time.sleep(timeout_s)
            return
        self._tell_dropped()
        poller = select.poll()
        poller.register(self._sock, select.POLLIN)
        waited = poller.poll(timeout_s * 1000)
        while waited and self._sock is not None:
            try:
                received = receive(self._sock)
                if received is None:
                    self._hang_up()
                    return
                msg, fds = received
                try:
                    self._handle(msg, fds)
                finally:
                    for fd in fds:
                        os.close(fd)
            except BlockingIOError:
                return
            except (OSError, ProtocolError) as failed:
                # Full is not for ever: readers go, and this feed goes on meanwhile.
                if isinstance(failed, ProtocolError) and failed.code is not ErrorCode.FULL:
                    self.refusal = failed
                self._hang_up()
                return

    def close(self) -> None:
        """Hangs up; the rings stay."""
        self._hang_up()

    def _connect(self) -> None:
        now = time.monotonic()
        if now < self._retry_at:
            return
        self._retry_at = now + RETRY_S
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        kinds = tuple(sorted(self._rings))
        fds = [self._rings[kind].fileno() for kind in kinds]
        flags = Flag.NONE
        if self._stats_fd is not None:
            fds.append(self._stats_fd)
            flags = Flag.HAS_STATS
        info = self._rings[RingKind.TICKS].info()
        try:
            sock.connect(str(self.path))
            send(
                sock,
                Msg(
                    type=MsgType.OFFER,
                    feed=self.feed,
                    rings=tuple(int(kind) for kind in kinds),
                    flags=flags,
                    lineage=info.lineage,
                    incarnation=info.incarnation,
                ),
                fds,
            )
        except OSError:
            sock.close()
            return
        self._sock = sock

    def _handle(self, msg: Msg, fds: list[int]) -> None:
        raise_error(msg)
        match msg.type:
            case MsgType.OK:
                self.accepted, self.refusal = True, None
                # This daemon tells of its readers next; those an earlier one told of have or
                # will have other pages. Until now they were kept: woken, and waited for.
                for ring, slot in tuple(self._slots):
                    self._remove(ring, slot)
            case MsgType.ADD_READER if fds:
                ring = RingKind(msg.ring)
                # The slot may be held from before the daemon hung up.
                self._remove(ring, msg.slot)
                with contextlib.suppress(RingError):
                    self._rings[ring].add_reader(
                        msg.slot, fds[0], gating=msg.mode is ReaderMode.GATING
                    )
                    self._slots.add((ring, msg.slot))
            case MsgType.REMOVE_READER:
                self._remove(RingKind(msg.ring), msg.slot)
            case _:
                raise ProtocolError(f"the daemon sent {msg.type.name} to a feeder")

    def _remove(self, ring: RingKind, slot: int) -> None:
        if (ring, slot) in self._slots:
            self._slots.discard((ring, slot))
            self._rings[ring].remove_reader(slot)

    def _tell_dropped(self) -> None:
        for ring, producer in self._rings.items():
            for slot in producer.dropped():
                if self._sock is not None:
                    with contextlib.suppress(OSError):
                        send(
                            self._sock,
                            Msg(type=MsgType.DROPPED, feed=self.feed, ring=ring, slot=slot),
                            [],
                        )

    def _hang_up(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        self.accepted = False
