"""Writes to the cpusets that guarded processes live in, told by inotify as they are made.

Beside the kernel's programs of the guard, which need rights and attach to a cpuset's writer on some
kernels only. It tells that a file was written, not by whom; what the kernel changes itself (a CPU
that goes offline) it does not tell. Source: inotify(7); a control file's write(2) is told as that
of any file.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath

from nodeagent.daemon.cgroups import ROOTS

FILES = ("cpuset.cpus", "cpuset.mems", "cpuset.cpus.partition")
MAX_WATCHES = 1024
"""Files; further ones are left to the poll."""
RETRY_S = 10.0
"""Pause between two looks for files that were missing (cpuset may be enabled later), or that are
others of the same name by now: of a removed cgroup nothing is told."""

_IN_MODIFY, _IN_IGNORED, _IN_Q_OVERFLOW = 0x2, 0x8000, 0x4000
_HEAD = struct.Struct("iIII")
_BUFFER = 1 << 16


class CpusetWatch:
    """`written` is called once for any number of writes, until `take` has been called."""

    def __init__(
        self,
        written: Callable[[], None],
        clock_s: Callable[[], float],
        roots: Iterable[Path] = ROOTS,
    ) -> None:
        self._written = written
        self._clock_s = clock_s
        self._roots = tuple(roots)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int | None = None
        self._waits = False
        self._cgroups: frozenset[str] = frozenset()
        self._watches: dict[Path, int] = {}
        self._tried_s = float("-inf")
        self.trouble: str | None = None
        """Why writes are not told; None: they are, or there is nothing to watch."""

    def watch(self, cgroups: frozenset[str]) -> None:
        """Exactly the cpusets of these cgroups (paths as in /proc/PID/cgroup) and those above."""
        now_s = self._clock_s()
        if cgroups == self._cgroups and now_s - self._tried_s < RETRY_S:
            return
        self._cgroups, self._tried_s, self.trouble = cgroups, now_s, None
        wanted = set(self._files(cgroups))
        if wanted and self._fd is None:
            self._open()
        if self._fd is None:
            return
        for path in self._watches.keys() - wanted:
            self._libc.inotify_rm_watch(self._fd, self._watches.pop(path))
        for path in sorted(wanted):
            if path not in self._watches and len(self._watches) >= MAX_WATCHES:
                self.trouble = f"more than {MAX_WATCHES} files of cpusets: the rest is polled"
                break
            self._add(path)
        self._wait()

    def take(self) -> bool:
        """Whether anything was written since last asked."""
        told = False
        while self._fd is not None:
            try:
                data = os.read(self._fd, _BUFFER)
            except BlockingIOError:
                break
            told = self._read(data) or told
        self._wait()
        return told

    def close(self) -> None:
        """Ends the watch."""
        self._rest()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _files(self, cgroups: Iterable[str]) -> Iterator[Path]:
        for cgroup in cgroups:
            path = PurePosixPath("/", cgroup)
            if ".." in path.parts:
                # Above the root of our own cgroup namespace: not to be seen from here.
                continue
            for root in self._roots:
                for folder in (path, *path.parents):
                    for name in FILES:
                        yield root / folder.relative_to("/") / name

    def _open(self) -> None:
        fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if fd < 0:
            why = os.strerror(ctypes.get_errno())
            self.trouble = f"cpusets are looked at every turn only: inotify: {why}"
            return
        self._fd = fd

    def _add(self, path: Path) -> None:
        # Of a file that is watched already, the same number again.
        wd = self._libc.inotify_add_watch(self._fd, os.fsencode(path), _IN_MODIFY)
        old = self._watches.pop(path, wd)
        if old != wd:
            self._libc.inotify_rm_watch(self._fd, old)
        if wd >= 0:
            self._watches[path] = wd
            return
        error = ctypes.get_errno()
        if not _absent(error):
            self.trouble = f"{path} is looked at every turn only: inotify: {os.strerror(error)}"

    def _read(self, data: bytes) -> bool:
        told, at = False, 0
        while at < len(data):
            wd, mask, _, length = _HEAD.unpack_from(data, at)
            at += _HEAD.size + length
            if mask & _IN_IGNORED:
                # The cgroup is gone; one of that name may come again.
                self._watches = {p: w for p, w in self._watches.items() if w != wd}
                self._tried_s = float("-inf")
            told = told or bool(mask & (_IN_MODIFY | _IN_Q_OVERFLOW))
        return told

    def _wait(self) -> None:
        if self._fd is not None and not self._waits:
            self._waits = True
            asyncio.get_running_loop().add_reader(self._fd, self._happened)

    def _rest(self) -> None:
        if self._fd is not None and self._waits:
            self._waits = False
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(self._fd)

    def _happened(self) -> None:
        self._rest()
        self._written()


def _absent(error: int) -> bool:
    return isinstance(OSError(error, ""), FileNotFoundError | NotADirectoryError)
