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
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from nodeagent.controller import tables
from nodeagent.controller.tables import Caller, EventRow, Gap, Greeting, NewEvent, NodeRow
from nodeagent.errors import NodeagentError
from nodeagent.rpc.database import transaction

T = TypeVar("T")

MAX_JOBS = 256
"""Jobs in one transaction, and waiting jobs before a sender must wait."""
MAX_EVENTS = 1_000_000
"""Events kept; beyond it the oldest go."""
RETAIN_STEP = 5_000
"""Events deleted at a time, so that no transaction is long."""
FULL_S = 0.01
"""How long a sender waits before it offers its job to a full queue again."""


class StoreError(NodeagentError):
    """The store cannot be opened, read or written."""


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
        return await self._submit(lambda db: tables.greet(db, caller))

    async def add_events(
        self, caller: Caller, events: list[NewEvent], gaps: list[Gap]
    ) -> Awaitable[int]:
        """Stores events after what is committed; the greatest committed seq.

        Events that are stored already are passed over. Raises OrderError for a hole that no gap
        explains, StoreError when nothing was stored.
        """
        return await self._submit(lambda db: tables.add_events(db, caller, events, gaps), adds=True)

    async def put_sections(
        self, caller: Caller, sections: list[tuple[int, bytes]], *, full: bool
    ) -> Awaitable[None]:
        """Stores (section number, encoded part) pairs; `full` voids all others. Raises
        StoreError."""
        return await self._submit(lambda db: tables.put_sections(db, caller, sections, full))

    # Reads.

    async def nodes(self) -> list[NodeRow]:
        """All nodes, by host name and UUID. Raises StoreError."""
        return await self._read(tables.nodes)

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
        return await self._read(lambda db: tables.events(db, uuid, after_id, limit, newest))

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
                for statement in tables.TABLES.split(";\n"):
                    if statement.strip():
                        self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {tables.SCHEMA}")
        elif version != tables.SCHEMA:
            raise StoreError(
                f"{self._path}: saw schema version {version}, expected {tables.SCHEMA}",
                "run the nodeagent-controller that made it, or give another --state-dir",
            )
        self._db.execute(tables.ADDED)
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
