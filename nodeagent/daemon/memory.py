"""The guard's memory on disk: `guard.json`, replaced in one step, of this boot only.

A thread writes and syncs, for a disk may hang for minutes and the turn must not. What the newest
turn remembers wins; an action waits for the write that remembers it.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from nodeagent.daemon.guard import Memory
from nodeagent.given import read_given

FILE = "guard.json"
MAX_BYTES = 4 << 20
SLOW_S = 5.0
"""A write that takes longer is told."""


class _File(msgspec.Struct, frozen=True):
    boot_id: str
    memory: tuple[Memory, ...] = ()


class Memories:
    """Reads at the start, writes when something changed. One write at a time, one that waits."""

    def __init__(self, state_dir: Path, *, slow_s: float = SLOW_S) -> None:
        self._path = state_dir / FILE
        self._slow_s = slow_s
        self._boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._written: tuple[Memory, ...] = ()
        self._refused: str | None = None
        self._writing: tuple[Memory, ...] | None = None
        self._since_s = 0.0
        self._next: tuple[Memory, ...] | None = None
        self._then: Callable[[], None] | None = None

    @property
    def trouble(self) -> str | None:
        """Why it is not on disk; None: it is, or will be in a moment."""
        waited = time.monotonic() - self._since_s
        if self._writing is not None and waited > self._slow_s:
            return (
                f"{self._path}: a write has not ended for {waited:.0f} s: the disk hangs, and "
                "nothing is put right until it answers"
            )
        return self._refused

    def read(self) -> tuple[Memory, ...]:
        """What an earlier daemon of this boot wrote; nothing when there is none, or damage."""
        try:
            found = msgspec.json.decode(read_given(self._path, MAX_BYTES), type=_File)
        except (OSError, msgspec.MsgspecError, RecursionError):
            return ()
        self._written = found.memory if found.boot_id == self._boot_id else ()
        return self._written

    def write(self, memory: tuple[Memory, ...], then: Callable[[], None]) -> bool:
        """Calls `then` once the memory is synced, or its disk refused it (told in `trouble`): at
        once (True) when it is already, else in the loop that runs (False), unless a newer call
        took its place."""
        if self._writing is None and memory == self._written:
            self._then = None
            then()
            return True
        self._then = then
        if self._writing is None:
            self._start(memory)
        else:
            self._next = memory
        return False

    async def settled(self, deadline_s: float) -> bool:
        """Waits until nothing is being written; False after the deadline."""
        end = time.monotonic() + deadline_s
        while self._writing is not None and time.monotonic() < end:
            await asyncio.sleep(0.01)
        return self._writing is None

    def _start(self, memory: tuple[Memory, ...]) -> None:
        self._writing, self._since_s, self._next = memory, time.monotonic(), None
        # A thread that nobody joins: one that waits for a disk must not hold the end.
        threading.Thread(
            target=self._write, args=(memory, asyncio.get_running_loop()), daemon=True
        ).start()

    def _write(self, memory: tuple[Memory, ...], loop: asyncio.AbstractEventLoop) -> None:
        refused = None
        fresh = self._path.with_suffix(".new")
        try:
            with fresh.open("wb") as file:
                file.write(msgspec.json.encode(_File(boot_id=self._boot_id, memory=memory)))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
        except OSError as error:
            refused = f"{self._path}: {error.strerror}"
        try:
            loop.call_soon_threadsafe(self._done, refused)
        except RuntimeError:
            # The loop has ended meanwhile: nobody acts any more.
            return

    def _done(self, refused: str | None) -> None:
        assert self._writing is not None
        if refused is None:
            self._written = self._writing
        self._writing, self._refused = None, refused
        if self._next is not None and (self._next != self._written or refused is not None):
            self._start(self._next)
            return
        self._next = None
        then, self._then = self._then, None
        if then is not None:
            then()
