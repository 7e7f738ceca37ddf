"""Names of users by /etc/passwd alone: a directory service may take seconds, a turn may not."""

from __future__ import annotations

import os
from pathlib import Path

PASSWD = Path("/etc/passwd")
MAX_BYTES = 1 << 20


class Users:
    """Read again when the file was changed."""

    def __init__(self, path: Path = PASSWD) -> None:
        self._path = path
        self._read_ns = -1
        self._names: dict[int, str] = {}

    def name(self, uid: int) -> str:
        """The name, or the number where the file has none."""
        try:
            changed = self._path.stat().st_mtime_ns
            if changed != self._read_ns:
                self._names = self._parse()
                self._read_ns = changed
        except OSError:
            return str(uid)
        return self._names.get(uid, str(uid))

    def _parse(self) -> dict[int, str]:
        names: dict[int, str] = {}
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(fd, MAX_BYTES).decode("utf-8", "replace")
        finally:
            os.close(fd)
        for line in text.splitlines():
            fields = line.split(":")
            if len(fields) > 2 and fields[2].isascii() and fields[2].isdigit():
                names.setdefault(int(fields[2]), fields[0])
        return names
