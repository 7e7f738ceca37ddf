"""Audit records: who, what, before, after, why, and what came of it; one JSON object a line."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

FILE = "audit.jsonl"
MAX_BYTES = 16 << 20
"""Then the file becomes audit.jsonl.1, in place of an older one."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One act. `at_ns` CLOCK_REALTIME; `by` the peer as the kernel named it; `what` the action."""

    at_ns: int
    by: str
    what: str
    workload: str
    pid: int
    before: str
    after: str
    why: str
    outcome: str
    message: str
    journal_id: int | None = None
    override_freeze: str = ""


class Audit:
    """Appends to `folder`/audit.jsonl."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def write(self, record: Record) -> str:
        """ "", or why the record could not be written: the act stands all the same, and says so."""
        line = msgspec.json.encode(record) + b"\n"
        try:
            if self._path.exists() and self._path.stat().st_size + len(line) > MAX_BYTES:
                self._path.replace(self._path.with_name(FILE + ".1"))
            # Never through a link: the folder may be another user's.
            how = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(self._path, how, 0o640)
            try:
                if os.write(fd, line) != len(line):
                    return f"{self._path}: the audit record was cut"
                # An act is rare; a record that a crash takes away is none.
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            return f"{self._path}: no audit record could be written: {error.strerror}"
        return ""
