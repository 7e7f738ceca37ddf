"""The fleet's memory: one SQLite file, written by one thread, read by another.

What arrives together is committed together: the writer takes all waiting jobs into one transaction
and answers each only when the commit is on disk (WAL, synchronous=FULL). How far a node's events
are committed stands in the same transaction as the events themselves, so a crash at any moment
leaves neither an event without its seq nor a seq without its event.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pathlib
import queue
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from nodeagent.errors import NodeagentError
from nodeagent.rpc.database import transaction

T = TypeVar("T")

SCHEMA = 1
MAX_JOBS = 256
"""Jobs in one transaction, and waiting jobs before a sender must wait."""
MAX_NODES = 4096
"""Nodes kept; a further one is refused with a sentence."""
MAX_EVENTS = 1_000_000
"""Events kept; beyond it the oldest go."""
MAX_GAPS = 1000
"""Gaps kept of one node; of older ones only their number and that of their events is."""
MAX_EPOCHS = 64
"""Journals kept of one node: an agent starts a new epoch when its own spool was lost."""
RETAIN_STEP = 5_000
"""Events deleted at a time, so that no transaction is long."""
FULL_S = 0.01
"""How long a sender waits before it offers its job to a full queue again."""

_TABLES = """
CREATE TABLE node(
  uuid TEXT PRIMARY KEY, hostname TEXT NOT NULL, version TEXT NOT NULL, instance TEXT NOT NULL,
  boot_id TEXT NOT NULL, address TEXT NOT NULL, epoch INTEGER NOT NULL,
  first_seen_ns INTEGER NOT NULL, last_seen_ns INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE journal(
  uuid TEXT NOT NULL, epoch INTEGER NOT NULL, committed_seq INTEGER NOT NULL,
  committed_at_ns INTEGER NOT NULL, PRIMARY KEY(uuid, epoch)) WITHOUT ROWID;
CREATE TABLE event(
  id INTEGER PRIMARY KEY AUTOINCREMENT, uuid TEXT NOT NULL, epoch INTEGER NOT NULL,
  seq INTEGER NOT NULL, body BLOB NOT NULL, received_ns INTEGER NOT NULL);
CREATE UNIQUE INDEX event_seq ON event(uuid, epoch, seq);
CREATE TABLE gap(
  uuid TEXT NOT NULL, epoch INTEGER NOT NULL, first_seq INTEGER NOT NULL,
  last_seq INTEGER NOT NULL, reason INTEGER NOT NULL, PRIMARY KEY(uuid, epoch, first_seq)
) WITHOUT ROWID;
CREATE TABLE section(
  uuid TEXT NOT NULL, section INTEGER NOT NULL, body BLOB NOT NULL, at_ns INTEGER NOT NULL,
  PRIMARY KEY(uuid, section)) WITHOUT ROWID;
"""
_ADDED = """
CREATE TABLE IF NOT EXISTS forgotten(
  uuid TEXT NOT NULL, reason INTEGER NOT NULL, gaps INTEGER NOT NULL, events INTEGER NOT NULL,
  PRIMARY KEY(uuid, reason)) WITHOUT ROWID
"""
"""Came without a new version: who does not know the table reads and writes the others as before."""


class StoreError(NodeagentError):
    """The store cannot be opened, read or written."""


class OrderError(NodeagentError):
    """Events that do not follow what is committed: the sender must start from its hello again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who a stream comes from."""

    uuid: str
    epoch: int
    hostname: str
    version: str
    instance: str
    boot_id: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One node as stored."""

    uuid: str
    hostname: str
    version: str
    instance: str
    boot_id: str
    address: str
    epoch: int
    first_seen_ns: int
    last_seen_ns: int
    committed_seq: int
    lost_events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One stored event; `body` is the encoded Event message."""

    id: int
    uuid: str
    hostname: str
    epoch: int
    seq: int
    body: bytes
    received_ns: int


@dataclass(frozen=True, slots=True)
class NewEvent:
    """One event to store; `body` is the encoded Event message."""

    seq: int
    at_ns: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """What the store holds of a caller's (UUID, epoch); zeros for nothing."""

    committed_seq: int
    committed_at_ns: int
    """at_ns of the event with that seq."""
    want_full_state: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Seqs that will never come; `reason` is a GapReason number."""

    first_seq: int
    last_seq: int
    reason: int


class Store:
    """The open store. Writes return futures that are done after the commit."""

    def __init__(self, folder: pathlib.Path, lock: int, *, max_events: int = MAX_EVENTS) -> None:
        self._folder = folder
        self._lock = lock
        self._max_events = max_events
        self._path = folder / "fleet.db"
        self._db = self._connect()
        self._make()
        self._reader_db = self._connect()
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-read")
        self._jobs: queue.Queue[_Job | None] = queue.Queue(MAX_JOBS)
        self._trouble = ""
        self._failed = False
        self._on_commit: Callable[[], None] = lambda: None
        self._on_trouble: Callable[[str], None] = lambda trouble: None
        self._writer = threading.Thread(target=self._write, name="store-write", daemon=True)
        self._writer.start()

    @classmethod
    def open(cls, state_dir: str | os.PathLike[str], *, max_events: int = MAX_EVENTS) -> Store:
        """Opens or makes `fleet.db` below `state_dir`.

        Raises StoreError: another controller has it, no room, no rights, damage, another version.
        """
        folder = pathlib.Path(state_dir)
        fd = -1
        try:
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            fd = os.open(folder / "controller.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return cls(folder, fd, max_events=max_events)
        except BlockingIOError:
            os.close(fd)
            raise StoreError(
                f"{folder}: another nodeagent-controller uses this folder",
                "stop it, or give this one another --state-dir",
            ) from None
        except (OSError, sqlite3.Error) as error:
            if fd >= 0:
                os.close(fd)
            raise _sentence(folder, error) from error

    @property
    def trouble(self) -> str:
        """Why the last transaction failed; "" when it did not."""
        return self._trouble

    @property
    def failed(self) -> bool:
        """Whether the writer met a fault of ours and ended: nothing can be stored any more."""
        return self._failed

    def on_commit(self, call: Callable[[], None]) -> None:
        """What the writer's thread calls after each commit that added events."""
        self._on_commit = call

    def on_trouble(self, call: Callable[[str], None]) -> None:
        """What the writer's thread calls when a transaction fails ("why") or works again ("")."""
        self._on_trouble = call

    # Writes: each is one job of the writer.

    # Awaiting a call hands the job over, in order; awaiting what it returns waits for the commit.

    async def greet(self, caller: Caller) -> Awaitable[Greeting]:
        """Stores who calls, and says how far its events are committed. Raises StoreError."""
        return await self._submit(lambda db: _greet(db, caller))

    async def add_events(
        self, caller: Caller, events: list[NewEvent], gaps: list[Gap]
    ) -> Awaitable[int]:
        """Stores events after what is committed; the greatest committed seq.

        Events that are stored already are passed over. Raises OrderError for a hole that no gap
        explains, StoreError when nothing was stored.
        """
        return await self._submit(lambda db: _add_events(db, caller, events, gaps), adds=True)

    async def put_sections(
        self, caller: Caller, sections: list[tuple[int, bytes]], *, full: bool
    ) -> Awaitable[None]:
        """Stores (section number, encoded part) pairs; `full` voids all others. Raises
        StoreError."""
        return await self._submit(lambda db: _put_sections(db, caller, sections, full))

    # Reads.

    async def nodes(self) -> list[NodeRow]:
        """All nodes, by host name and UUID. Raises StoreError."""
        return await self._read(_nodes)

    async def sections(self, uuid: str) -> dict[int, bytes]:
        """Encoded parts of a node by section number. Raises StoreError."""
        return await self._read(
            lambda db: dict(
                db.execute("SELECT section, body FROM section WHERE uuid = ?", (uuid,)).fetchall()
            )
        )

    async def section_of_all(self, section: int) -> dict[str, bytes]:
        """One section of every node, by UUID. Raises StoreError."""
        return await self._read(
            lambda db: dict(
                db.execute("SELECT uuid, body FROM section WHERE section = ?", (section,))
            )
        )

    async def events(
        self, *, uuid: str | None, after_id: int, limit: int, newest: bool = False
    ) -> list[EventRow]:
        """Events with id > after_id, ascending; the oldest or the newest `limit` of them. Raises
        StoreError."""
        return await self._read(lambda db: _events(db, uuid, after_id, limit, newest))

    async def last_id(self) -> int:
        """The greatest event id; 0 for none. Raises StoreError."""
        row = await self._read(lambda db: db.execute("SELECT max(id) FROM event").fetchone())
        return int(row[0] or 0)

    def close(self) -> None:
        """Commits what waits and closes the file."""
        self._jobs.put(None)
        self._writer.join()
        self._reader.shutdown()
        self._reader_db.close()
        self._db.close()
        os.close(self._lock)

    # Inside.

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=2.0)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA cache_size = -2000")
        return db

    def _make(self) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version == 0:
            with transaction(self._db):
                for statement in _TABLES.split(";\n"):
                    if statement.strip():
                        self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {SCHEMA}")
        elif version != SCHEMA:
            raise StoreError(
                f"{self._path}: saw schema version {version}, expected {SCHEMA}",
                "run the nodeagent-controller that made it, or give another --state-dir",
            )
        self._db.execute(_ADDED)
        self._db.execute("SELECT max(id) FROM event").fetchone()

    async def _submit(
        self, work: Callable[[sqlite3.Connection], T], *, adds: bool = False
    ) -> Awaitable[T]:
        future: Future[T] = Future()
        job = _Job(work=work, adds=adds, future=future)
        while True:
            try:
                self._jobs.put_nowait(job)
            except queue.Full:
                # The disk is slower than the fleet: the senders wait, their windows fill.
                await asyncio.sleep(FULL_S)
                continue
            if self._failed:
                self._refuse_waiting()
            return asyncio.wrap_future(future)

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def guarded() -> T:
            try:
                return work(self._reader_db)
            except sqlite3.Error as error:
                raise _sentence(self._folder, error) from error

        return await asyncio.get_running_loop().run_in_executor(self._reader, guarded)

    def _write(self) -> None:
        """The writer's thread: all that waits, in one transaction."""
        jobs: list[_Job | None] = []
        try:
            while None not in jobs:
                jobs = [self._jobs.get()]
                with contextlib.suppress(queue.Empty):
                    while len(jobs) < MAX_JOBS:
                        jobs.append(self._jobs.get_nowait())
                self._commit([j for j in jobs if j is not None])
        except BaseException:
            self._end(jobs)
            raise

    def _end(self, jobs: list[_Job | None]) -> None:
        """A fault of ours ends the writer: nobody may wait for ever for a thread that has died."""
        self._failed = True
        for job in jobs:
            if job is not None and not job.future.done():
                job.future.set_exception(self._no_writer())
        self._refuse_waiting()
        self._set_trouble(str(self._no_writer()))

    def _refuse_waiting(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None and job.future.set_running_or_notify_cancel():
                    job.future.set_exception(self._no_writer())

    def _no_writer(self) -> StoreError:
        return StoreError(
            f"{self._path}: the store's writer met its own fault and has ended",
            "start nodeagent-controller again, and report the fault that its log shows",
        )

    def _commit(self, jobs: list[_Job]) -> None:
        # Whoever has gone away in the meantime has cancelled; from here on nobody can.
        jobs = [j for j in jobs if j.future.set_running_or_notify_cancel()]
        results: list[tuple[_Job, object]] = []
        try:
            with transaction(self._db):
                results = [(job, self._one(job)) for job in jobs]
                self._retain()
        except sqlite3.Error as error:
            self._set_trouble(str(_sentence(self._folder, error)))
            for job in jobs:
                job.future.set_exception(_sentence(self._folder, error))
            return
        self._set_trouble("")
        added = False
        for job, result in results:
            if isinstance(result, NodeagentError):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)
                added = added or job.adds
        if added:
            self._on_commit()

    def _set_trouble(self, trouble: str) -> None:
        changed, self._trouble = bool(trouble) != bool(self._trouble), trouble
        if changed:
            self._on_trouble(trouble)

    def _one(self, job: _Job) -> object:
        """One job in a savepoint of its own: what is wrong with it does not harm the others."""
        self._db.execute("SAVEPOINT job")
        try:
            result = job.work(self._db)
        except NodeagentError as error:
            self._db.execute("ROLLBACK TO job")
            result = error
        except (OverflowError, ValueError, sqlite3.IntegrityError, sqlite3.DataError) as error:
            # One sender's numbers, not the disk: the other senders' jobs stand.
            self._db.execute("ROLLBACK TO job")
            result = StoreError(f"it does not fit into the store: {error}")
        self._db.execute("RELEASE job")
        return result

    def _retain(self) -> None:
        low, high = self._db.execute("SELECT min(id), max(id) FROM event").fetchone()
        if low is not None and high - low + 1 > self._max_events:
            bound = min(high - self._max_events, low + RETAIN_STEP - 1)
            self._db.execute("DELETE FROM event WHERE id <= ?", (bound,))


@dataclass(slots=True)
class _Job:
    work: Callable[[sqlite3.Connection], object]
    adds: bool
    future: Future[Any]


def _greet(db: sqlite3.Connection, caller: Caller) -> Greeting:
    now = time.time_ns()
    known = db.execute("SELECT instance, epoch FROM node WHERE uuid = ?", (caller.uuid,)).fetchone()
    if known is None:
        (count,) = db.execute("SELECT count(*) FROM node").fetchone()
        if count >= MAX_NODES:
            raise NodeagentError(f"this controller keeps {MAX_NODES} nodes, no more are accepted")
    db.execute(
        "INSERT INTO node VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT(uuid) DO UPDATE SET "
        "hostname = excluded.hostname, version = excluded.version, instance = excluded.instance, "
        "boot_id = excluded.boot_id, address = excluded.address, epoch = excluded.epoch, "
        "last_seen_ns = excluded.last_seen_ns",
        (
            caller.uuid, caller.hostname, caller.version, caller.instance, caller.boot_id,
            caller.address, caller.epoch, now, now,
        ),
    )  # fmt: skip
    has_state = db.execute(
        "SELECT EXISTS(SELECT 1 FROM section WHERE uuid = ?)", (caller.uuid,)
    ).fetchone()[0]
    same = known is not None and known[0] == caller.instance and known[1] == caller.epoch
    seq, at_ns = _committed(db, caller)
    return Greeting(
        committed_seq=seq, committed_at_ns=at_ns, want_full_state=not (same and has_state)
    )


def _committed(db: sqlite3.Connection, caller: Caller) -> tuple[int, int]:
    row = db.execute(
        "SELECT committed_seq, committed_at_ns FROM journal WHERE uuid = ? AND epoch = ?",
        (caller.uuid, caller.epoch),
    ).fetchone()
    return (int(row[0]), int(row[1])) if row else (0, 0)


def _add_events(
    db: sqlite3.Connection, caller: Caller, events: list[NewEvent], gaps: list[Gap]
) -> int:
    now = time.time_ns()
    committed, at_ns = _committed(db, caller)
    before = committed
    holes = sorted(gaps, key=lambda g: g.first_seq)
    rows = []
    missing = []
    for event in events:
        seq = event.seq
        while holes and holes[0].first_seq <= committed + 1 < seq:
            hole = holes.pop(0)
            last = min(hole.last_seq, seq - 1)
            if last > committed:
                missing.append((caller.uuid, caller.epoch, committed + 1, last, hole.reason))
                committed = last
        if seq <= before:
            continue
        if seq != committed + 1:
            raise OrderError(
                f"saw event seq {seq} after {committed}, expected {committed + 1} or a gap that "
                "says why not"
            )
        rows.append((caller.uuid, caller.epoch, seq, event.body, now))
        committed, at_ns = seq, event.at_ns
    db.executemany(
        "INSERT INTO event(uuid, epoch, seq, body, received_ns) VALUES (?, ?, ?, ?, ?)", rows
    )
    if missing:
        db.executemany("INSERT INTO gap VALUES (?, ?, ?, ?, ?)", missing)
        _forget_gaps(db, caller.uuid)
    db.execute(
        "INSERT INTO journal VALUES (?, ?, ?, ?) ON CONFLICT(uuid, epoch) DO UPDATE SET "
        "committed_seq = excluded.committed_seq, committed_at_ns = excluded.committed_at_ns",
        (caller.uuid, caller.epoch, committed, at_ns),
    )
    if not before:
        db.execute(
            "DELETE FROM journal WHERE uuid = ? AND epoch IN (SELECT epoch FROM journal "
            "WHERE uuid = ? AND epoch != ? ORDER BY epoch DESC LIMIT -1 OFFSET ?)",
            (caller.uuid, caller.uuid, caller.epoch, MAX_EPOCHS - 1),
        )
    _seen(db, caller, now)
    return committed


def _forget_gaps(db: sqlite3.Connection, uuid: str) -> None:
    """Adds the oldest gaps beyond MAX_GAPS up in `forgotten`."""
    old = db.execute(
        "SELECT epoch, first_seq, last_seq - first_seq + 1, reason FROM gap WHERE uuid = ? "
        "ORDER BY epoch DESC, first_seq DESC LIMIT -1 OFFSET ?",
        (uuid, MAX_GAPS),
    ).fetchall()
    db.executemany(
        "INSERT INTO forgotten VALUES (?, ?, 1, ?) ON CONFLICT(uuid, reason) DO UPDATE SET "
        "gaps = gaps + 1, events = events + excluded.events",
        [(uuid, reason, events) for _, _, events, reason in old],
    )
    db.executemany(
        "DELETE FROM gap WHERE uuid = ? AND epoch = ? AND first_seq = ?",
        [(uuid, epoch, first) for epoch, first, _, _ in old],
    )


def _put_sections(
    db: sqlite3.Connection, caller: Caller, sections: list[tuple[int, bytes]], full: bool
) -> None:
    now = time.time_ns()
    if full:
        db.execute("DELETE FROM section WHERE uuid = ?", (caller.uuid,))
    db.executemany(
        "INSERT OR REPLACE INTO section VALUES (?, ?, ?, ?)",
        [(caller.uuid, number, body, now) for number, body in sections],
    )
    _seen(db, caller, now)


def _seen(db: sqlite3.Connection, caller: Caller, now_ns: int) -> None:
    db.execute("UPDATE node SET last_seen_ns = ? WHERE uuid = ?", (now_ns, caller.uuid))


def _nodes(db: sqlite3.Connection) -> list[NodeRow]:
    # GAP_REASON_OVERFLOW is 1: only those are lost.
    rows = db.execute(
        "SELECT n.uuid, n.hostname, n.version, n.instance, n.boot_id, n.address, n.epoch, "
        "n.first_seen_ns, n.last_seen_ns, coalesce(j.committed_seq, 0), "
        "(SELECT CAST(total(g.last_seq - g.first_seq + 1) AS INTEGER) FROM gap g "
        " WHERE g.uuid = n.uuid AND g.reason = 1) "
        "+ coalesce((SELECT f.events FROM forgotten f WHERE f.uuid = n.uuid AND f.reason = 1), 0) "
        "FROM node n LEFT JOIN journal j ON j.uuid = n.uuid AND j.epoch = n.epoch "
        "ORDER BY n.hostname, n.uuid"
    )
    names = NodeRow.__slots__
    return [NodeRow(**dict(zip(names, row, strict=True))) for row in rows]


def _events(
    db: sqlite3.Connection, uuid: str | None, after_id: int, limit: int, newest: bool
) -> list[EventRow]:
    where = "e.id > ?" if uuid is None else "e.id > ? AND e.uuid = ?"
    order = "DESC" if newest else "ASC"
    found = db.execute(
        "SELECT e.id, e.uuid, n.hostname, e.epoch, e.seq, e.body, e.received_ns "
        f"FROM event e JOIN node n ON n.uuid = e.uuid WHERE {where} ORDER BY e.id {order} LIMIT ?",
        (after_id, limit) if uuid is None else (after_id, uuid, limit),
    ).fetchall()
    names = EventRow.__slots__
    rows = [EventRow(**dict(zip(names, row, strict=True))) for row in found]
    return rows[::-1] if newest else rows


def _sentence(folder: pathlib.Path, error: Exception) -> StoreError:
    text = str(error)
    if "locked" in text:
        remedy = "another program holds fleet.db open for writing: close it"
    elif "full" in text or "No space" in text:
        remedy = f"make room on the file system of {folder}"
    elif "malformed" in text or "not a database" in text:
        remedy = (
            f"move {folder}/fleet.db* away (sqlite3 .recover may save parts) and start again: "
            "agents send their state and what they still hold"
        )
    else:
        remedy = "the folder must be there and writable for the controller's user"
    return StoreError(f"{folder}/fleet.db: the store cannot be used: {text}", remedy)
