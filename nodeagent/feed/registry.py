"""The daemon's side of `ring.sock`: feeders offer segments, readers attach, nobody has to wait.

One epoll descriptor for everything: the daemon's loop watches `fileno()` and calls `poll()`, which
never blocks. The registry holds descriptors, not records: it reads header, hot words and readers'
pages only to report on them, and believes none of what a reader wrote.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path

import msgspec

from nodeagent.errors import UnavailableError
from nodeagent.feed.door import MAX_CONNECTIONS, Door
from nodeagent.feed.generation import Feed, Generation, ReaderEntry, make_page
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
        self._door = Door(
            self.path,
            reader_gids=reader_gids,
            feeder_uids=feeder_uids,
            max_connections=max_connections,
        )
        self.grace_ns = grace_ns
        """How long a dead feed without readers is kept."""
        self._feeds: dict[str, Feed] = {}
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._order = 0

    # ---- door ----

    @property
    def refused(self) -> int:
        """Connections turned away since the start."""
        return self._door.refused

    @property
    def most(self) -> int:
        """Connections at a time, by what is asked for and what descriptors there are."""
        return self._door.most

    def open(self) -> None:
        """Binds the socket. Raises UnavailableError when somebody serves there already."""
        self._door.open()

    def fileno(self) -> int:
        """Readable when `poll()` has something to do."""
        return self._door.epoll.fileno()

    def poll(self, timeout_s: float = 0.0) -> int:
        """Deals with what is ready, at most MESSAGES_A_POLL things; returns how many it were."""
        done = 0
        end = time.monotonic() + max(timeout_s, 0.0) + POLL_S
        while done < MESSAGES_A_POLL and time.monotonic() < end:
            ready = self._door.epoll.poll(timeout_s if not done else 0, 128)
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
        for connection in list(self._door.connections.values()):
            self._drop(connection)
        for feed in self._feeds.values():
            for generation in feed.generations:
                self._forget(generation)
        self._feeds.clear()
        self._door.close()

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
        if self._door.is_knock(fd):
            self._door.accept()
            return
        gone = self._door.pidfds.get(fd)
        if isinstance(gone, Generation):
            self._producer_ended(gone)
            return
        if gone is not None:
            self._drop(gone)
            return
        connection = self._door.connections.get(fd)
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
            self._door.epoll.modify(fd, wanted)

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
        if connection.peer.uid not in self._door.feeder_uids:
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
        self._door.answer(
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
            self._door.watch_pid(generation.peer.pidfd, generation)
            self._event(
                "feed.offered",
                feed.name,
                Severity.INFO,
                f"feed {feed.name}: incarnation {generation.incarnation} from pid "
                f"{connection.peer.pid}, records from {generation.start}",
            )
        generation.connection = connection
        connection.feed = feed.name
        self._door.answer(connection, Msg(type=MsgType.OK, feed=feed.name))
        for reader in feed.readers.values():
            self._add_reader(generation, reader)
        self._hand_on(feed)
        self._trim(feed)

    def _producer_ended(self, generation: Generation) -> None:
        self._door.forget_pid(generation.peer.pidfd)
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
                self._door.tell(
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
                self._door.tell(to, Msg(type=MsgType.DROPPED, feed=feed.name, name=reader.name))

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
        self._door.answer(
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
            self._door.tell(
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
            self._door.tell(
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
        self._door.forget(connection)
        feed = self._feeds.get(connection.feed)
        if feed is None:
            return
        reader = feed.readers.pop(connection, None)
        live = feed.newest
        if reader is not None:
            reader.close()
            if live is not None and live.connection is not None:
                self._door.tell(
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
        self._door.forget_pid(generation.peer.pidfd)
        generation.close()

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
        self._door.answer(connection, Msg(type=MsgType.OK))

    def _row(self, connection: Connection, row: StatRow) -> None:
        self._door.answer(
            connection, Msg(type=MsgType.STAT_ROW, text=msgspec.json.encode(row).decode())
        )
