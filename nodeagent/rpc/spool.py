"""The node's events on disk: numbered, synced, bounded, until the controller has them.

One SQLite file, one transaction with a sync for each append: what `append` returned survives
kill -9 and a power cut. It keeps more than it must, the newest acknowledged events too, so that
`nodeagentctl events` has a history after a restart.

A seq is never given twice within an epoch. When the file is lost or older than `agent.json` says,
the epoch rises and seqs start anew from 1; the controller keeps (UUID, epoch, seq).
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nodeagent.api.v1 import types_pb2
from nodeagent.errors import NodeagentError
from nodeagent.given import read_given
from nodeagent.model.event import Event, Severity
from nodeagent.rpc import wire
from nodeagent.rpc.database import transaction

SCHEMA = 1
MAX_EVENT_BYTES = 64 << 10
"""A single event beyond this is cut: its evidence goes first, then its texts."""


class SpoolError(NodeagentError):
    """The spool cannot be read or written: a full disk, missing rights, damage while running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the file. What is acknowledged goes first; beyond that the oldest is lost, and
    counted."""

    max_events: int = 100_000
    max_bytes: int = 64 << 20
    """Bytes of encoded events; the file is a little larger."""
    keep_acknowledged: int = 1_000
    """Acknowledged events kept for questions on this node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this agent is: made once, kept in `agent.json`."""

    agent_uuid: str
    epoch: int


class Spool:
    """The open spool. Thread-safe; `append` and `trim` block for the disk, the rest is memory."""

    def __init__(
        self, db: sqlite3.Connection, identity: Identity, limits: Limits, folder: pathlib.Path
    ) -> None:
        self._db = db
        self._identity = identity
        self._limits = limits
        self._folder = folder
        self._lock = threading.RLock()
        with _told(folder):
            row = db.execute(
                "SELECT count(*), coalesce(sum(length(body)), 0) FROM event"
            ).fetchone()
        self._count, self._bytes = int(row[0]), int(row[1])
        self._last = self._meta("last_seq")
        self._acknowledged = self._meta("acknowledged")
        self._dropped = self._meta("dropped")

    @classmethod
    def open(
        cls,
        state_dir: str | os.PathLike[str],
        limits: Limits | None = None,
        *,
        now_ns: int | None = None,
    ) -> Spool:
        """Opens or makes `agent.json` and `spool.db` below `state_dir`, mending what is lost.

        What was mended is the spool's first event, stamped `now_ns` (default: the clock's). Raises
        SpoolError when the folder cannot be written or another process has the spool open.
        """
        folder = pathlib.Path(state_dir)
        limits = limits or Limits()
        at_ns = time.time_ns() if now_ns is None else now_ns
        try:
            folder.mkdir(parents=True, exist_ok=True)
            known, bad_identity = _read_identity(folder / "agent.json")
            db, bad_spool = _open_db(folder / "spool.db")
            stored = _stored_identity(db) if db is not None else None
            if db is not None and stored is not None and (known or stored) == stored:
                if known is None:
                    _write_identity(folder / "agent.json", stored)
                return cls(db, stored, limits, folder)
            if db is not None and stored is not None and known is not None:
                if stored.agent_uuid == known.agent_uuid:
                    epoch = max(stored.epoch, known.epoch)
                    spool = cls(db, replace(known, epoch=epoch), limits, folder)
                    spool.renew_epoch(
                        f"spool.db is of epoch {stored.epoch}, agent.json of {known.epoch}: one of "
                        "them was restored from a copy",
                        at_ns,
                    )
                    return spool
                bad_spool = f"spool.db belongs to another agent, {stored.agent_uuid}"
                db.close()
            # The identity before the spool: a crash in between costs an epoch number, never a seq
            # given twice.
            if known is None:
                identity = Identity(agent_uuid=str(uuid.uuid4()), epoch=1)
            else:
                identity = replace(known, epoch=known.epoch + 1)
                bad_spool = bad_spool or "spool.db is missing"
            _write_identity(folder / "agent.json", identity)
            _set_aside(folder)
            spool = cls(_make_db(folder / "spool.db", identity), identity, limits, folder)
        except (OSError, sqlite3.Error) as error:
            raise _sentence(folder, error) from error
        if why := bad_identity or bad_spool:
            spool.append([_lost_event(identity, why, at_ns)])
        return spool

    @property
    def identity(self) -> Identity:
        """UUID and epoch."""
        return self._identity

    @property
    def last_seq(self) -> int:
        """The greatest seq given so far in this epoch; 0: none."""
        return self._last

    @property
    def acknowledged(self) -> int:
        """The greatest seq that a controller has committed; 0: none."""
        return self._acknowledged

    @property
    def unacknowledged(self) -> int:
        """Events kept that no controller has committed."""
        return min(self._count, self._last - self._acknowledged)

    @property
    def dropped(self) -> int:
        """Events lost to the bounds before they were acknowledged, since the spool was made."""
        return self._dropped

    def append(self, events: Sequence[Event]) -> tuple[Event, ...]:
        """Numbers the events, stores them and syncs; returns them with their seqs.

        Raises SpoolError; then none of them is stored and no seq is used.
        """
        return self._append(events) if events else ()

    def _append(self, events: Sequence[Event], **meta: int) -> tuple[Event, ...]:
        with self._lock, _told(self._folder):
            numbered = tuple(replace(e, seq=self._last + 1 + i) for i, e in enumerate(events))
            rows = [(e.seq, _encode(e)) for e in numbered]
            grown = sum(len(body) for _, body in rows)
            with transaction(self._db):
                self._db.executemany("INSERT INTO event(seq, body) VALUES (?, ?)", rows)
                count, size, dropped = self._evict(
                    self._count + len(rows), self._bytes + grown, numbered[-1].seq
                )
                meta |= {"last_seq": numbered[-1].seq, "dropped": self._dropped + dropped}
                self._store_meta(**meta)
            self._last = numbered[-1].seq
            self._count, self._bytes = count, size
            self._dropped += dropped
        return numbered

    def read(self, after: int, limit: int, max_bytes: int = 1 << 20) -> tuple[Event, ...]:
        """The oldest kept events with seq > after: at most `limit`, and about `max_bytes`.

        Raises SpoolError.
        """
        found: list[Event] = []
        size = 0
        with self._lock, _told(self._folder):
            rows = self._db.execute(
                "SELECT seq, body FROM event WHERE seq > ? ORDER BY seq LIMIT ?",
                (after, max(limit, 0)),
            )
            for seq, body in rows:
                size += len(body)
                if found and size > max_bytes:
                    break
                event = wire.from_wire(Event, types_pb2.Event.FromString(body))
                found.append(replace(event, seq=seq))
        return tuple(found)

    def acknowledge(self, seq: int) -> None:
        """The controller has committed all up to seq. In memory; `trim` and `append` write it.

        Without the lock, which is held while a dying disk syncs: the event loop calls this, and
        nobody else changes the number while a stream is open.
        """
        self._acknowledged = min(max(self._acknowledged, seq), self._last)

    def trim(self) -> None:
        """Writes how far is acknowledged, and lets go of what need not be kept. Raises
        SpoolError."""
        with self._lock, _told(self._folder):
            with transaction(self._db):
                count, size, _ = self._evict(self._count, self._bytes, self._last)
                self._store_meta()
            self._count, self._bytes = count, size

    def report_drops(self, at_ns: int) -> tuple[Event, ...]:
        """One event that says how many were lost since the last such event; () for none.

        Raises SpoolError.
        """
        with self._lock:
            told = self._meta("dropped_told")
            lost = self._dropped - told
            if lost <= 0:
                return ()
            return self._append(
                [
                    Event(
                        seq=0,
                        kind="report.overflow",
                        subject="event spool",
                        severity=Severity.ERROR,
                        message=f"{lost} events were lost: the spool was full "
                        f"({self._limits.max_events} events or {self._limits.max_bytes} bytes) "
                        "while no controller took them",
                        at_ns=at_ns,
                        remedy="bring the controller back, or raise the bounds of the spool",
                    )
                ],
                dropped_told=self._dropped,
            )

    def renew_epoch(self, why: str, at_ns: int) -> None:
        """Starts a new epoch and numbers what is not acknowledged anew from 1.

        For when the controller has seqs that this spool has not given yet: it was restored from an
        older copy. Raises SpoolError.
        """
        with self._lock, _told(self._folder):
            kept: list[Event] = []
            after = self._acknowledged
            while batch := self.read(after, 1000):
                kept.extend(batch)
                after = batch[-1].seq
            identity = replace(self._identity, epoch=self._identity.epoch + 1)
            _write_identity(self._folder / "agent.json", identity)
            rows = [(i + 1, _encode(replace(e, seq=i + 1))) for i, e in enumerate(kept)]
            with transaction(self._db):
                self._db.execute("DELETE FROM event")
                self._db.executemany("INSERT INTO event(seq, body) VALUES (?, ?)", rows)
                self._db.execute(
                    "UPDATE meta SET value = ? WHERE name = 'epoch'", (str(identity.epoch),)
                )
                self._acknowledged = 0
                self._store_meta(last_seq=len(rows))
            self._identity = identity
            self._last = self._count = len(rows)
            self._bytes = sum(len(body) for _, body in rows)
            self.append([_lost_event(identity, why, at_ns)])

    def close(self) -> None:
        """Writes what is in memory and closes the file."""
        with self._lock:
            with contextlib.suppress(SpoolError):
                self.trim()
            self._db.close()

    def _evict(self, count: int, size: int, last: int) -> tuple[int, int, int]:
        """Deletes from the oldest on, within the caller's transaction; (count, bytes, lost)."""
        limits, lost, acknowledged = self._limits, 0, self._acknowledged
        unacknowledged = last - acknowledged
        while count:
            # In steps, so that a full spool costs one row for each new one.
            spare = count - min(unacknowledged, count) - limits.keep_acknowledged
            over = max(count - limits.max_events, spare, int(size > limits.max_bytes))
            if over <= 0:
                break
            rows = self._db.execute(
                "SELECT seq, length(body) FROM event ORDER BY seq LIMIT ?", (over,)
            ).fetchall()
            self._db.execute("DELETE FROM event WHERE seq <= ?", (rows[-1][0],))
            count -= len(rows)
            size -= sum(r[1] for r in rows)
            lost += sum(1 for r in rows if r[0] > acknowledged)
        return count, size, lost

    def _meta(self, name: str) -> int:
        with _told(self._folder):
            row = self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return int(row[0]) if row else 0

    def _store_meta(self, **values: int) -> None:
        values["acknowledged"] = self._acknowledged
        self._db.executemany(
            "INSERT OR REPLACE INTO meta(name, value) VALUES (?, ?)",
            [(k, str(v)) for k, v in values.items()],
        )


@contextlib.contextmanager
def _told(folder: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise _sentence(folder, error) from error


def _sentence(folder: pathlib.Path, error: Exception) -> SpoolError:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    if "locked" in text:
        remedy = "another nodeagentd uses this folder: stop it, or set another [daemon] state_dir"
    elif "full" in text or "No space" in text:
        remedy = f"make room on the file system of {folder}"
    else:
        remedy = "the folder must be there and writable for the daemon's user"
    return SpoolError(f"{folder}/spool.db: the event spool cannot be used: {text}", remedy)


def _encode(event: Event) -> bytes:
    message = wire.to_wire(event)
    if message.ByteSize() > MAX_EVENT_BYTES:
        message.ClearField("evidence")
        for name in ("subject", "message", "remedy"):
            setattr(message, name, getattr(message, name)[: MAX_EVENT_BYTES // 16])
    data: bytes = message.SerializeToString()
    return data


def _lost_event(identity: Identity, why: str, at_ns: int) -> Event:
    return Event(
        seq=0,
        kind="report.epoch",
        subject="event spool",
        severity=Severity.WARNING,
        message=f"journal epoch {identity.epoch} begins: {why}; events that no controller had "
        "before are lost",
        at_ns=at_ns,
    )


MAX_IDENTITY = 4096
"""Bytes of agent.json."""


def _read_identity(path: pathlib.Path) -> tuple[Identity | None, str]:
    """(identity, ""), or (None, what is wrong with the file; "" when there is none)."""
    try:
        values = json.loads(read_given(path, MAX_IDENTITY))
        agent_uuid, epoch = str(uuid.UUID(values["uuid"])), int(values["epoch"])
    except FileNotFoundError:
        return None, ""
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None, "agent.json was damaged, a new UUID was made"
    return Identity(agent_uuid=agent_uuid, epoch=epoch), ""


def _write_identity(path: pathlib.Path, identity: Identity) -> None:
    fresh = path.with_suffix(".new")
    with fresh.open("w") as f:
        json.dump({"uuid": identity.agent_uuid, "epoch": identity.epoch}, f)
        f.write("\n")
        f.flush()
        os.fsync(f.fileno())
    fresh.replace(path)
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _connect(path: pathlib.Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1.0)
    # One process has it: a second one is told, and no -shm file is needed.
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA cache_size = -256")
    return db


def _open_db(path: pathlib.Path) -> tuple[sqlite3.Connection | None, str]:
    """(connection, ""), or (None, what is wrong; "" when there is no file)."""
    if not path.exists():
        return None, ""
    db = None
    try:
        db = _connect(path)
        if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise sqlite3.DatabaseError("its pages do not fit together")
        if db.execute("PRAGMA user_version").fetchone()[0] != SCHEMA:
            raise sqlite3.DatabaseError("it is of another version")
        db.execute("SELECT seq, body FROM event LIMIT 1").fetchone()
    except sqlite3.DatabaseError as error:
        if db is not None:
            db.close()
        if isinstance(error, sqlite3.OperationalError) and "no such table" not in str(error):
            raise  # locked, full, no rights: not damage
        return None, f"spool.db was damaged: {error}"
    return db, ""


def _stored_identity(db: sqlite3.Connection) -> Identity | None:
    found = dict(db.execute("SELECT name, value FROM meta WHERE name IN ('uuid', 'epoch')"))
    if set(found) != {"uuid", "epoch"}:
        return None
    return Identity(agent_uuid=found["uuid"], epoch=int(found["epoch"]))


def _make_db(path: pathlib.Path, identity: Identity) -> sqlite3.Connection:
    db = _connect(path)
    with transaction(db):
        db.execute("CREATE TABLE event(seq INTEGER PRIMARY KEY, body BLOB NOT NULL)")
        db.execute("CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT NOT NULL)")
        db.executemany(
            "INSERT INTO meta(name, value) VALUES (?, ?)",
            [("uuid", identity.agent_uuid), ("epoch", str(identity.epoch))],
        )
        db.execute(f"PRAGMA user_version = {SCHEMA}")
    return db


def _set_aside(folder: pathlib.Path) -> None:
    """Keeps one damaged spool for whoever wants to look into it."""
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            (folder / f"spool.db{suffix}").replace(folder / f"spool.db{suffix}.lost")
