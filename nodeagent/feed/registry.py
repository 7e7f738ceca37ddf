"""The daemon's side of `ring.sock`: feeders offer segments, readers attach, nobody has to wait.

One epoll descriptor for everything: the daemon's loop watches `fileno()` and calls `poll()`, which
never blocks. The registry holds descriptors, not records: it reads header, hot words and readers'
pages only to report on them, and believes none of what a reader wrote.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import resource
import select
import socket
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path

import msgspec

from nodeagent.errors import UnavailableError
from nodeagent.feed.generation import Generation, ReaderEntry, make_page
from nodeagent.feed.peer import Peer, peer_of
from nodeagent.feed.wire import Connection
from nodeagent.model.event import Event, Severity
from nodeagent.model.feed import FeedStatus, ReaderMode, RingStatus
from nodeagent.model.ringproto import (
    ErrorCode,
    Flag,
    Msg,
    MsgType,
    ProtocolError,
    StatRow,
    error,
)
from nodeagent.native.ring import RingError, RingKind, lib

MAX_CONNECTIONS = 1024
MAX_CONNECTIONS_PER_UID = 512
"""Of a user other than root: one user cannot shut the others out."""
FILES_A_CONNECTION = 4
FILES_LEFT = 256
"""Of RLIMIT_NOFILE: what connections may not take."""
MAX_FEEDS = 64
MAX_DEAD = 2
"""Dead segments kept for slow readers, a feed."""
MAX_EVENTS = 1024
MESSAGES_A_POLL = 1024
POLL_S = 0.05
"""After so long the rest waits for the next poll: the daemon has its turn to take."""
GRACE_NS = 10_000_000_000
"""A dead feed without readers is kept so long, for its feeder to number on from."""
READERS_A_ROW = 100


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


class Registry:
    """Serves `ring.sock`. `open()`, then `poll()` whenever `fileno()` is readable and each turn."""

    def __init__(
        self,
        path: Path | str,
        *,
        reader_gids: Iterable[int] = (),
        feeder_uids: Iterable[int] = (),
        max_connections: int = MAX_CONNECTIONS,
        grace_ns: int = GRACE_NS,
    ) -> None:
        """Root and this process's own user may do everything; `reader_gids`: groups that may
        attach; `feeder_uids`: further users that may offer a feed."""
        self.path = Path(path)
        self._reader_gids = frozenset(reader_gids)
        self._feeder_uids = frozenset(feeder_uids) | {0, os.geteuid()}
        # A reader costs a socket, a pidfd and a page; the daemon needs descriptors, too.
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._max = max(8, min(max_connections, (files - FILES_LEFT) // FILES_A_CONNECTION))
        self.grace_ns = grace_ns
        """How long a dead feed without readers is kept."""
        self._epoll = select.epoll()
        self._listener: socket.socket | None = None
        self._connections: dict[int, Connection] = {}
        self._pidfds: dict[int, Connection | Generation] = {}
        self._feeds: dict[str, Feed] = {}
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._order = 0
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self.refused = 0
        """Connections turned away since the start."""

    # ---- door ----

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
        self._epoll.register(listener.fileno(), select.EPOLLIN)

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

    def fileno(self) -> int:
        """Readable when `poll()` has something to do."""
        return self._epoll.fileno()

    def poll(self, timeout_s: float = 0.0) -> int:
        """Deals with what is ready, at most MESSAGES_A_POLL things; returns how many it were."""
        done = 0
        end = time.monotonic() + max(timeout_s, 0.0) + POLL_S
        while done < MESSAGES_A_POLL and time.monotonic() < end:
            ready = self._epoll.poll(timeout_s if not done else 0, 128)
            if not ready:
                break
            for fd, events in ready:
                done += 1
                self._ready(fd, events)
                if time.monotonic() >= end:
                    break
        self._sweep()
        return done

    def close(self) -> None:
        """Lets go of everything; feeders and readers go on without us."""
        for connection in list(self._connections.values()):
            self._drop(connection)
        for feed in self._feeds.values():
            for generation in feed.generations:
                self._forget(generation)
        self._feeds.clear()
        if self._listener is not None:
            self._listener.close()
            self.path.unlink(missing_ok=True)
            self._listener = None
        self._epoll.close()
        os.close(self._spare)

    def take_events(self) -> tuple[Event, ...]:
        """What happened since last asked, at most MAX_EVENTS."""
        events = tuple(self._events)
        self._events.clear()
        return events

    def _event(
        self, kind: str, feed: str, severity: Severity, message: str, remedy: str = ""
    ) -> None:
        self._events.append(
            Event(
                seq=0,
                kind=kind,
                subject=feed,
                severity=severity,
                message=message,
                at_ns=time.time_ns(),
                remedy=remedy,
            )
        )

    # ---- what is ready ----

    def _ready(self, fd: int, events: int) -> None:
        if self._listener is not None and fd == self._listener.fileno():
            self._accept()
            return
        gone = self._pidfds.get(fd)
        if isinstance(gone, Generation):
            self._producer_ended(gone)
            return
        if gone is not None:
            self._drop(gone)
            return
        connection = self._connections.get(fd)
        if connection is None:
            return
        try:
            if events & select.EPOLLOUT:
                connection.flush()
            if events & select.EPOLLIN:
                received = connection.receive()
                if received is None:
                    self._drop(connection)
                    return
                msg, fds = received
                try:
                    self._handle(connection, msg, fds)
                finally:
                    for unused in fds:
                        os.close(unused)
            elif events & (select.EPOLLHUP | select.EPOLLERR):
                self._drop(connection)
        except ProtocolError as failed:
            with contextlib.suppress(OSError):
                connection.send(error(failed.code, str(failed), failed.remedy))
            self._drop(connection)
        except OSError:
            self._drop(connection)
        if not connection.closed:
            wanted = select.EPOLLIN | (select.EPOLLOUT if connection.pending else 0)
            self._epoll.modify(fd, wanted)

    def _accept(self) -> None:
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
        self._connections[sock.fileno()] = connection
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        if peer.pidfd is not None:
            self._pidfds[peer.pidfd] = connection
            self._epoll.register(peer.pidfd, select.EPOLLIN)

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
        if not (peer.uid in self._feeder_uids or peer.gids & self._reader_gids):
            return error(
                ErrorCode.DENIED,
                f"user {peer.uid} may not use {self.path}",
                "join one of the groups of [ring] reader_groups",
            )
        count = len(self._connections)
        same = sum(c.peer.uid == peer.uid for c in self._connections.values())
        if count >= self._max or (peer.uid != 0 and same >= MAX_CONNECTIONS_PER_UID):
            return error(
                ErrorCode.FULL,
                f"{self.path} has {count} connections, its limit is {self._max}",
                "end readers that are not needed (nodeagentctl ring stat)",
            )
        return None

    def _handle(self, connection: Connection, msg: Msg, fds: list[int]) -> None:
        match msg.type:
            case MsgType.STAT:
                self._stat(connection)
            case MsgType.ATTACH:
                self._attach(connection, msg)
            case MsgType.NEXT:
                self._next(connection, msg)
            case MsgType.CLAIM:
                self._claim(connection, msg)
            case MsgType.OFFER:
                self._offer(connection, msg, fds)
            case MsgType.DROPPED:
                self._dropped(connection, msg)
            case _:
                raise ProtocolError(f"a message of type {msg.type.name} that only we send")

    # ---- feeders ----

    def _may_feed(self, connection: Connection, msg: Msg) -> None:
        if connection.peer.uid not in self._feeder_uids:
            raise ProtocolError(
                f"user {connection.peer.uid} may not offer a feed",
                "run the feeder as root or as a user of [ring] feeder_users",
                ErrorCode.DENIED,
            )
        if not msg.feed:
            raise ProtocolError("a feeder that names no feed")
        feed = self._feeds.get(msg.feed)
        live = feed.live if feed else None
        if live is not None and live.peer.pid != connection.peer.pid:
            raise ProtocolError(
                f"feed {msg.feed} has a producer, pid {live.peer.pid}",
                "stop that feeder first, or choose another name",
                ErrorCode.BUSY,
            )
        if feed is None and len(self._feeds) >= MAX_FEEDS:
            raise ProtocolError(f"there are {MAX_FEEDS} feeds already", "", ErrorCode.FULL)

    def _claim(self, connection: Connection, msg: Msg) -> None:
        self._may_feed(connection, msg)
        feed = self._feeds.get(msg.feed)
        newest = feed.newest if feed else None
        if newest is not None and newest.alive:
            self._producer_ended(newest)
        self._answer(
            connection,
            Msg(
                type=MsgType.CLAIMED,
                feed=msg.feed,
                rings=newest.rings if newest else (),
                lineage=newest.lineage if newest else 0,
                incarnation=newest.incarnation if newest else 0,
            ),
            newest.fds if newest else [],
        )

    def _offer(self, connection: Connection, msg: Msg, fds: list[int]) -> None:
        self._may_feed(connection, msg)
        feed = self._feeds.setdefault(msg.feed, Feed(msg.feed))
        try:
            generation = Generation.of(msg, fds, connection.peer, self._order + 1)
        except (RingError, UnavailableError) as failed:
            raise ProtocolError(
                f"feed {msg.feed}: {failed}", failed.remedy, ErrorCode.SEGMENT
            ) from failed
        newest = feed.newest
        if newest is not None and (newest.lineage, newest.incarnation) == (
            generation.lineage,
            generation.incarnation,
        ):
            # The same ring again, after its feeder lost the connection.
            generation.close()
            generation = newest
        else:
            if newest is not None:
                self._producer_ended(newest)
            self._order += 1
            feed.generations.append(generation)
            if generation.peer.pidfd is not None:
                self._pidfds[generation.peer.pidfd] = generation
                self._epoll.register(generation.peer.pidfd, select.EPOLLIN)
            self._event(
                "feed.offered",
                feed.name,
                Severity.INFO,
                f"feed {feed.name}: incarnation {generation.incarnation} from pid "
                f"{connection.peer.pid}, records from {generation.start}",
            )
        generation.connection = connection
        connection.feed = feed.name
        self._answer(connection, Msg(type=MsgType.OK, feed=feed.name))
        for reader in feed.readers.values():
            self._add_reader(generation, reader)
        self._hand_on(feed)
        self._trim(feed)

    def _producer_ended(self, generation: Generation) -> None:
        if generation.peer.pidfd is not None and generation.peer.pidfd in self._pidfds:
            self._epoll.unregister(generation.peer.pidfd)
            del self._pidfds[generation.peer.pidfd]
        if not generation.alive:
            return
        generation.alive = False
        generation.died_ns = time.monotonic_ns()
        closed = generation.closed
        self._event(
            "feed.ended" if closed else "feed.died",
            generation.feed,
            Severity.INFO if closed else Severity.ERROR,
            f"feed {generation.feed}: producer pid {generation.peer.pid} "
            + ("ended" if closed else "died"),
            "" if closed else "systemd starts it again; look at its journal for why",
        )
        for connection, reader in self._feeds[generation.feed].readers.items():
            if reader.order == generation.order:
                self._tell(
                    connection,
                    Msg(
                        type=MsgType.GONE,
                        feed=generation.feed,
                        lineage=generation.lineage,
                        incarnation=generation.incarnation,
                    ),
                )

    def _dropped(self, connection: Connection, msg: Msg) -> None:
        feed = self._feeds.get(connection.feed)
        if feed is None or feed.newest is None or feed.newest.connection is not connection:
            raise ProtocolError("DROPPED from one that is no feeder")
        for to, reader in feed.readers.items():
            if (reader.ring, reader.slot) == (msg.ring, msg.slot):
                reader.mode = ReaderMode.LOSSY
                self._event(
                    "feed.reader-dropped",
                    feed.name,
                    Severity.WARNING,
                    f"feed {feed.name}: gating reader {reader.name} (pid {to.peer.pid}) missed "
                    "its deadline and is lossy now",
                    "look why it stopped reading",
                )
                self._tell(to, Msg(type=MsgType.DROPPED, feed=feed.name, name=reader.name))

    # ---- readers ----

    def _attach(self, connection: Connection, msg: Msg) -> None:
        feed = self._feeds.get(msg.feed)
        if connection.feed:
            raise ProtocolError("a second ATTACH on one connection", "connect again")
        if not msg.name or msg.ring not in (RingKind.TICKS, RingKind.FRAMES):
            raise ProtocolError("a reader that names itself or its ring not")
        ring = RingKind(msg.ring)
        start = feed.newest if feed else None
        if feed is None or start is None or ring not in start.rings:
            known = ", ".join(sorted(self._feeds)) or "none"
            raise ProtocolError(
                f"no feed {msg.feed} with {ring.name.lower()} here",
                f"feeds here: {known}; nodeagentctl feed status",
                ErrorCode.NO_FEED,
            )
        for generation in feed.generations:
            # One that comes back goes on where it was, if that is still here.
            if (
                generation.lineage == msg.lineage
                and generation.incarnation >= msg.incarnation
                and ring in generation.rings
            ):
                start = generation
                break
        slot = feed.free_slot(ring)
        if slot is None:
            raise ProtocolError(
                f"feed {msg.feed} has {lib.NA_RING_MAX_READERS} readers", "", ErrorCode.FULL
            )
        reader = ReaderEntry(
            name=msg.name,
            ring=ring,
            mode=msg.mode,
            slot=slot,
            order=start.order,
            page_fd=make_page(msg.name),
        )
        feed.readers[connection] = reader
        connection.feed = feed.name
        self._answer(
            connection,
            Msg(
                type=MsgType.ATTACHED,
                feed=feed.name,
                name=msg.name,
                ring=ring,
                rings=start.rings,
                mode=msg.mode,
                slot=slot,
                flags=Flag.LIVE if start.alive else Flag.NONE,
                lineage=start.lineage,
                incarnation=start.incarnation,
            ),
            [*start.fds, reader.page_fd],
        )
        newest = feed.live
        if newest is not None:
            self._add_reader(newest, reader)

    def _next(self, connection: Connection, msg: Msg) -> None:
        feed = self._feeds.get(connection.feed)
        reader = feed.readers.get(connection) if feed else None
        if feed is None or reader is None:
            raise ProtocolError("NEXT from one that is no reader")
        at = next((g for g in feed.generations if g.order == reader.order), None)
        if at is None or (at.lineage, at.incarnation) == (msg.lineage, msg.incarnation):
            reader.wants_next = True
        self._hand_on(feed)
        self._trim(feed)

    def _hand_on(self, feed: Feed) -> None:
        """Hands the next incarnation to those who wait for it."""
        for connection, reader in list(feed.readers.items()):
            following = feed.after(reader.order) if reader.wants_next else None
            if following is None or reader.ring not in following.rings:
                continue
            reader.wants_next = False
            reader.order = following.order
            self._tell(
                connection,
                Msg(
                    type=MsgType.SEGMENT,
                    feed=feed.name,
                    ring=reader.ring,
                    rings=following.rings,
                    flags=Flag.LIVE if following.alive else Flag.NONE,
                    lineage=following.lineage,
                    incarnation=following.incarnation,
                ),
                following.fds,
            )

    def _add_reader(self, generation: Generation, reader: ReaderEntry) -> None:
        if generation.connection is None or reader.ring not in generation.rings:
            return
        # A descriptor of its own, opened for reading: the feeder cannot write the page by mistake.
        page = os.open(f"/proc/self/fd/{reader.page_fd}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._tell(
                generation.connection,
                Msg(
                    type=MsgType.ADD_READER,
                    feed=generation.feed,
                    name=reader.name,
                    ring=reader.ring,
                    mode=reader.mode,
                    slot=reader.slot,
                ),
                [page],
            )
        finally:
            os.close(page)

    # ---- endings ----

    def _drop(self, connection: Connection) -> None:
        """One connection is over: a reader with it, a feeder only if its process ended."""
        if connection.closed:
            return
        fd = connection.sock.fileno()
        self._connections.pop(fd, None)
        with contextlib.suppress(OSError):
            self._epoll.unregister(fd)
        if connection.peer.pidfd is not None and connection.peer.pidfd in self._pidfds:
            del self._pidfds[connection.peer.pidfd]
            self._epoll.unregister(connection.peer.pidfd)
        connection.close()
        feed = self._feeds.get(connection.feed)
        if feed is None:
            return
        reader = feed.readers.pop(connection, None)
        live = feed.newest
        if reader is not None:
            reader.close()
            if live is not None and live.connection is not None:
                self._tell(
                    live.connection,
                    Msg(
                        type=MsgType.REMOVE_READER,
                        feed=feed.name,
                        ring=reader.ring,
                        slot=reader.slot,
                    ),
                )
        for generation in feed.generations:
            if generation.connection is connection:
                generation.connection = None
                if not generation.peer.alive:
                    self._producer_ended(generation)
        self._trim(feed)

    def _trim(self, feed: Feed) -> None:
        """Lets go of dead segments that no reader has still to be handed."""
        waited_from = min((r.order for r in feed.readers.values()), default=self._order)
        for generation in feed.generations[:-1]:
            if generation.order <= waited_from:
                feed.generations.remove(generation)
                self._forget(generation)
        dead = [g for g in feed.generations if not g.alive]
        while len(dead) > MAX_DEAD:
            oldest = dead.pop(0)
            stuck = [
                f"{r.name} (pid {c.peer.pid})"
                for c, r in feed.readers.items()
                if r.order < oldest.order
            ]
            feed.generations.remove(oldest)
            self._forget(oldest)
            self._event(
                "feed.reader-stuck",
                feed.name,
                Severity.WARNING,
                f"feed {feed.name}: incarnation {oldest.incarnation} was let go before "
                f"{', '.join(stuck) or 'its readers'} had read it",
                "wake or end that reader; it will count what it missed as lost",
            )

    def _sweep(self) -> None:
        """Forgets feeds that died a while ago and that nobody reads."""
        now = time.monotonic_ns()
        for feed in list(self._feeds.values()):
            newest = feed.newest
            if newest is not None and newest.alive and not newest.peer.alive:
                self._producer_ended(newest)
            if (
                not feed.readers
                and (newest is None or not newest.alive)
                and (newest is None or now - newest.died_ns >= self.grace_ns)
            ):
                for generation in feed.generations:
                    self._forget(generation)
                del self._feeds[feed.name]

    def _forget(self, generation: Generation) -> None:
        if generation.peer.pidfd is not None and generation.peer.pidfd in self._pidfds:
            del self._pidfds[generation.peer.pidfd]
            self._epoll.unregister(generation.peer.pidfd)
        generation.close()

    # ---- sending ----

    def _answer(self, connection: Connection, msg: Msg, fds: Iterable[int] = ()) -> None:
        connection.send(msg, list(fds))
        self._watch(connection)

    def _tell(self, connection: Connection, msg: Msg, fds: Iterable[int] = ()) -> None:
        """To somebody who did not ask just now: what fails there is not the asker's fault."""
        try:
            connection.send(msg, list(fds))
            self._watch(connection)
        except (OSError, ProtocolError):
            # Its queue is full or it is gone; hung up, it comes back and is told everything anew.
            connection.hang_up()

    def _watch(self, connection: Connection) -> None:
        if not connection.closed and connection.pending:
            self._epoll.modify(connection.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)

    # ---- status ----

    def rings(self) -> tuple[RingStatus, ...]:
        """Every segment held, live and draining, with its readers."""
        self._sweep()
        now = time.monotonic_ns()
        return tuple(
            status
            for feed in self._feeds.values()
            for generation in feed.generations
            for status in generation.statuses(now, feed.readers, draining=not generation.alive)
        )

    def feeds(self) -> tuple[FeedStatus, ...]:
        """The counters of each feed's newest feeder."""
        now = time.monotonic_ns()
        found = (f.newest.feed_status(now) for f in self._feeds.values() if f.newest is not None)
        return tuple(status for status in found if status is not None)

    def _stat(self, connection: Connection) -> None:
        for status in self.feeds():
            self._row(connection, StatRow(feed=status))
        for ring in self.rings():
            readers = ring.readers
            for first in range(0, max(len(readers), 1), READERS_A_ROW):
                part = readers[first : first + READERS_A_ROW]
                self._row(connection, StatRow(ring=dataclasses.replace(ring, readers=part)))
        self._answer(connection, Msg(type=MsgType.OK))

    def _row(self, connection: Connection, row: StatRow) -> None:
        self._answer(connection, Msg(type=MsgType.STAT_ROW, text=msgspec.json.encode(row).decode()))
