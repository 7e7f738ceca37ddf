"""The guard's memory on disk: `guard.json`, replaced in one step, of this boot only."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from nodeagent.daemon.guard import Memory
from nodeagent.given import read_given

FILE = "guard.json"
MAX_BYTES = 4 << 20


class _File(msgspec.Struct, frozen=True):
    boot_id: str
    memory: tuple[Memory, ...] = ()


class Memories:
    """Reads at the start, writes when something changed. `trouble`: why it cannot be written."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FILE
        self._boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._written: tuple[Memory, ...] = ()
        self.trouble: str | None = None

    def read(self) -> tuple[Memory, ...]:
        """What an earlier daemon of this boot wrote; nothing when there is none, or damage."""
        try:
            found = msgspec.json.decode(read_given(self._path, MAX_BYTES), type=_File)
        except (OSError, msgspec.MsgspecError, RecursionError):
            return ()
        self._written = found.memory if found.boot_id == self._boot_id else ()
        return self._written

    def write(self, memory: tuple[Memory, ...]) -> None:
        """Synced when it returns; a disk that refuses is told in `trouble`."""
        if memory == self._written:
            return
        fresh = self._path.with_suffix(".new")
        try:
            with fresh.open("wb") as file:
                file.write(msgspec.json.encode(_File(boot_id=self._boot_id, memory=memory)))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
        except OSError as error:
            self.trouble = f"{self._path}: {error.strerror}"
            return
        self._written, self.trouble = memory, None
