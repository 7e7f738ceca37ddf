"""One connection of `ring.sock`, non-blocking: messages with descriptors, and a bounded queue."""

from __future__ import annotations

import array
import contextlib
import os
import socket
from collections import deque

from nodeagent.feed.peer import Peer
from nodeagent.model.ringproto import (
    MAX_BYTES,
    MAX_FDS,
    ErrorCode,
    Msg,
    ProtocolError,
    decode,
    encode,
)

MAX_QUEUE = 1024
"""Messages waiting for the other side to read; whoever lets more pile up is hung up on."""


def receive(sock: socket.socket) -> tuple[Msg, list[int]] | None:
    """One message and its descriptors, which become the caller's; None: the other side hung up.

    Raises ProtocolError, and OSError of recvmsg(2).
    """
    packet, ancillary, flags, _ = sock.recvmsg(
        MAX_BYTES, socket.CMSG_SPACE(MAX_FDS * 4), socket.MSG_CMSG_CLOEXEC
    )
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ProtocolError(f"a packet longer than {MAX_BYTES} bytes or {MAX_FDS} descriptors")
        if not packet and not fds:
            return None
        return decode(packet), list(fds)
    except ProtocolError:
        for fd in fds:
            os.close(fd)
        raise


def send(sock: socket.socket, msg: Msg, fds: list[int]) -> None:
    """One message. Raises OSError of sendmsg(2), BlockingIOError when there is no room."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([encode(msg)], rights, socket.MSG_NOSIGNAL)


class Connection:
    """The other side's socket, who it is, and what could not be sent yet."""

    def __init__(self, sock: socket.socket, peer: Peer) -> None:
        self.sock = sock
        self.peer = peer
        self.feed = ""
        """Feed it offers or reads; empty: neither (yet)."""
        self.closed = False
        self._queue: deque[tuple[Msg, list[int]]] = deque()

    @property
    def pending(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._queue)

    def receive(self) -> tuple[Msg, list[int]] | None:
        """See `receive`."""
        return receive(self.sock)

    def send(self, msg: Msg, fds: list[int] | None = None) -> None:
        """Sends, or queues with descriptors of its own. Raises ProtocolError when too much
        waits, and OSError when the other side is gone."""
        fds = fds or []
        if not self._queue:
            try:
                send(self.sock, msg, fds)
                return
            except BlockingIOError:
                pass
        if len(self._queue) >= MAX_QUEUE:
            raise ProtocolError("it does not read what it is sent", "", ErrorCode.FULL)
        self._queue.append((msg, [os.dup(fd) for fd in fds]))

    def flush(self) -> None:
        """Sends what waits, as far as there is room. Raises OSError."""
        while self._queue:
            msg, fds = self._queue[0]
            try:
                send(self.sock, msg, fds)
            except BlockingIOError:
                return
            self._queue.popleft()
            for fd in fds:
                os.close(fd)

    def hang_up(self) -> None:
        """Ends the conversation; the loop then sees its end and cleans up."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes socket, queue and pidfd."""
        if self.closed:
            return
        self.closed = True
        for _, fds in self._queue:
            for fd in fds:
                os.close(fd)
        self._queue.clear()
        # Closing over unread messages would reset the other side, and what it was told last with
        # it. Nothing new can come after the shutdown; descriptors that came along are let go.
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RD)
            while self.sock.recv(1):
                pass
        self.sock.close()
        self.peer.close()
