"""What the two SQLite files (the agent's spool, the controller's store) have in common."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Everything inside is committed at its end, or nothing is. The connection is in autocommit
    mode (isolation_level=None)."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        # After a full disk SQLite has rolled back already.
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
