"""The door of `ring.sock`: who may come in, who is connected, and what is sent to them."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import socket
from collections.abc import Iterable
from pathlib import Path

from nodeagent.errors import UnavailableError
from nodeagent.feed.generation import Generation
from nodeagent.feed.peer import Peer, peer_of
from nodeagent.feed.wire import Connection
from nodeagent.model.ringproto import ErrorCode, Msg, ProtocolError, error

MAX_CONNECTIONS = 1024
MAX_CONNECTIONS_PER_UID = 512
"""Of a user other than root: one user cannot shut the others out."""
FILES_A_CONNECTION = 4
FILES_LEFT = 256
"""Of RLIMIT_NOFILE: what connections may not take."""


class Door:
    """The socket, its connections and the epoll descriptor that watches them all."""

    def __init__(
        self,
        path: Path,
        *,
        reader_gids: Iterable[int],
        feeder_uids: Iterable[int],
        max_connections: int,
    ) -> None:
        """Root and this process's own user may do everything."""
        self.path = path
        self.reader_gids = frozenset(reader_gids)
        self.feeder_uids = frozenset(feeder_uids) | {0, os.geteuid()}
        # A reader costs a socket, a pidfd and a page; the daemon needs descriptors, too.
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.most = max(8, min(max_connections, (files - FILES_LEFT) // FILES_A_CONNECTION))
        self.epoll = select.epoll()
        self.connections: dict[int, Connection] = {}
        self.pidfds: dict[int, Connection | Generation] = {}
        self.refused = 0
        """Connections turned away since the start."""
        self._listener: socket.socket | None = None
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def open(self) -> None:
        """Binds the socket. Raises UnavailableError when somebody serves there already."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            self._bind(listener)
        except OSError as failed:
            listener.close()
            raise UnavailableError(
                f"{self.path}: {failed.strerror}", "stop the other daemon, or set run_dir"
            ) from failed
        # Who may do what is decided by the socket's credentials, also across containers.
        self.path.chmod(0o666)
        listener.listen(128)
        self._listener = listener
        self.epoll.register(listener.fileno(), select.EPOLLIN)

    def _bind(self, listener: socket.socket) -> None:
        try:
            listener.bind(str(self.path))
        except OSError as failed:
            if failed.errno != errno.EADDRINUSE:
                raise
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
                if probe.connect_ex(str(self.path)) == 0:
                    raise
            self.path.unlink()
            listener.bind(str(self.path))

    def close(self) -> None:
        """Takes the socket away; connections are the caller's to end before."""
        if self._listener is not None:
            self._listener.close()
            self.path.unlink(missing_ok=True)
            self._listener = None
        self.epoll.close()
        os.close(self._spare)

    def is_knock(self, fd: int) -> bool:
        """Whether somebody wants to come in."""
        return self._listener is not None and fd == self._listener.fileno()

    def accept(self) -> None:
        """Lets one in, or says why not."""
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError as failed:
            if failed.errno in (errno.EMFILE, errno.ENFILE):
                self._shed()
            return
        sock.setblocking(False)
        try:
            peer = peer_of(sock)
        except OSError:
            sock.close()
            return
        refusal = self._refusal(peer)
        if refusal is not None:
            self.refused += 1
            connection = Connection(sock, peer)
            with contextlib.suppress(OSError, ProtocolError):
                connection.send(refusal)
            connection.close()
            return
        connection = Connection(sock, peer)
        self.connections[sock.fileno()] = connection
        self.epoll.register(sock.fileno(), select.EPOLLIN)
        self.watch_pid(peer.pidfd, connection)

    def _shed(self) -> None:
        """Out of descriptors: one is kept to take a connection and close it, or the listener
        would stay readable for ever."""
        assert self._listener is not None
        os.close(self._spare)
        with contextlib.suppress(OSError):
            self._listener.accept()[0].close()
            self.refused += 1
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _refusal(self, peer: Peer) -> Msg | None:
        if not (peer.uid in self.feeder_uids or peer.gids & self.reader_gids):
            return error(
                ErrorCode.DENIED,
                f"user {peer.uid} may not use {self.path}",
                "join one of the groups of [ring] reader_groups",
            )
        count = len(self.connections)
        same = sum(c.peer.uid == peer.uid for c in self.connections.values())
        if count >= self.most or (peer.uid != 0 and same >= MAX_CONNECTIONS_PER_UID):
            return error(
                ErrorCode.FULL,
                f"{self.path} has {count} connections, its limit is {self.most}",
                "end readers that are not needed (nodeagentctl ring stat)",
            )
        return None

    def watch_pid(self, pidfd: int | None, whose: Connection | Generation) -> None:
        """Has the end of a process told."""
        if pidfd is not None:
            self.pidfds[pidfd] = whose
            self.epoll.register(pidfd, select.EPOLLIN)

    def forget_pid(self, pidfd: int | None) -> None:
        """Has it told no more."""
        if pidfd is not None and pidfd in self.pidfds:
            self.epoll.unregister(pidfd)
            del self.pidfds[pidfd]

    def forget(self, connection: Connection) -> None:
        """Closes a connection."""
        fd = connection.sock.fileno()
        self.connections.pop(fd, None)
        with contextlib.suppress(OSError):
            self.epoll.unregister(fd)
        self.forget_pid(connection.peer.pidfd)
        connection.close()

    def answer(self, connection: Connection, msg: Msg, fds: Iterable[int] = ()) -> None:
        """To who asked. Raises OSError, ProtocolError."""
        connection.send(msg, list(fds))
        self._watch_out(connection)

    def tell(self, connection: Connection, msg: Msg, fds: Iterable[int] = ()) -> None:
        """To somebody who did not ask just now: what fails there is not the asker's fault."""
        try:
            connection.send(msg, list(fds))
            self._watch_out(connection)
        except (OSError, ProtocolError):
            # Its queue is full or it is gone; hung up, it comes back and is told everything anew.
            connection.hang_up()

    def _watch_out(self, connection: Connection) -> None:
        if not connection.closed and connection.pending:
            self.epoll.modify(connection.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)
