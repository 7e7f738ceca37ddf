"""The tables of the fleet's memory, and what one transaction does with them.

Functions over an open connection: when a transaction begins and ends is the store's affair.
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass

from nodeagent.errors import NodeagentError

SCHEMA = 1
MAX_NODES = 4096
"""Nodes kept; a further one is refused with a sentence."""
MAX_GAPS = 1000
"""Gaps kept of one node; of older ones only their number and that of their events is."""
MAX_EPOCHS = 64
"""Journals kept of one node: an agent starts a new epoch when its own spool was lost."""

TABLES = """
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
ADDED = """
CREATE TABLE IF NOT EXISTS forgotten(
  uuid TEXT NOT NULL, reason INTEGER NOT NULL, gaps INTEGER NOT NULL, events INTEGER NOT NULL,
  PRIMARY KEY(uuid, reason)) WITHOUT ROWID
"""
"""Came without a new version: who does not know the table reads and writes the others as before."""


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


def greet(db: sqlite3.Connection, caller: Caller) -> Greeting:
    """Stores who calls, and says how far its events are committed. Raises NodeagentError for a
    node too many."""
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


def add_events(
    db: sqlite3.Connection, caller: Caller, events: list[NewEvent], gaps: list[Gap]
) -> int:
    """Stores events after what is committed; the greatest committed seq. Raises OrderError."""
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


def put_sections(
    db: sqlite3.Connection, caller: Caller, sections: list[tuple[int, bytes]], full: bool
) -> None:
    """Stores (section number, encoded part) pairs; `full` voids all others."""
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


def nodes(db: sqlite3.Connection) -> list[NodeRow]:
    """All nodes, by host name and UUID."""
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


def events(
    db: sqlite3.Connection, uuid: str | None, after_id: int, limit: int, newest: bool
) -> list[EventRow]:
    """Events with id > after_id, ascending; the oldest or the newest `limit` of them."""
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
