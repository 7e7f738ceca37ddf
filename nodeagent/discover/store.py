"""Where a machine's files come from: a directory (this machine's is `/`), or a table in memory.

A store raises OSError as the kernel would; Root turns that into a record. Paths have no leading
slash: `sys/devices/system/cpu/online`.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from typing import Protocol

MAX_LINKS = 40
"""Symbolic links followed in one path, as in the kernel (fs/namei.c MAXSYMLINKS)."""
MAX_NAMES = 65536
"""Entries listed of one directory."""


class Store(Protocol):
    """What Root asks of the place that the files are in."""

    def read(self, path: str, limit: int, *, head: bool = False) -> bytes:
        """The file's bytes. Raises OSError; EFBIG when it holds more than `limit`.

        `head`: the first `limit` bytes will do, in one read.
        """

    def names(self, path: str) -> list[str]:
        """Entries of a directory, in any order. Raises OSError."""

    def resolve(self, path: str) -> str:
        """The path without symbolic links. Raises OSError (ENOENT, ELOOP, ...)."""

    def link(self, path: str) -> str:
        """Text of a symbolic link, which may lead nowhere. Raises OSError (EINVAL: no link)."""

    def close(self) -> None:
        """Gives back what it holds."""


def error(number: int, path: str) -> OSError:
    """An OSError with the usual text."""
    return OSError(number, os.strerror(number), path)


def _below(folder: str, leaf: str) -> str:
    # With a slash in front it would be a path of this machine's root.
    return f"{folder}/{leaf}" if folder else leaf


class DirStore:
    """Files below a directory, opened relative to it and never outside.

    `inside=True` (recorded machines): symbolic links are resolved here, below the directory, so
    that `/etc` in a link means `DIR/etc`. `inside=False` (the live root, `/`): the kernel's way.
    Only regular files are read; nothing blocks (O_NONBLOCK), a FIFO or device is refused.
    """

    def __init__(self, path: str, *, inside: bool) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._inside = inside
        self._known: dict[str, str] = {"": ""}

    @property
    def pid(self) -> int | None:
        """Pid of a child that reads for it; none here."""
        return None

    def close(self) -> None:
        """Closes the directory."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self, path: str, limit: int, *, head: bool = False) -> bytes:
        """See Store."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        if self._inside:
            folder, _, leaf = path.rpartition("/")
            known = self._known.get(folder)
            path = _below(self.resolve(folder) if known is None else known, leaf)
            mode = self._mode(path)
            if stat.S_ISLNK(mode):
                path = self.resolve(path)
                mode = self._mode(path)
            if not stat.S_ISREG(mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            flags |= os.O_NOFOLLOW
        return self._read(path, limit, head, flags)

    def _read(self, path: str, limit: int, head: bool, flags: int) -> bytes:
        fd = os.open(path, flags, dir_fd=self._fd)
        try:
            if not self._inside and not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            first = os.read(fd, limit if head else min(limit + 1, 1 << 16))
            # Kernel files of one record come in one read; a second one only tells the end. Those of
            # many records (/proc/interrupts) come in whole records of a page at most each.
            short = len(first) < 4096 and len(first) <= limit
            if head or (short and not _of_records(path)):
                return first
            parts, size = [first], len(first)
            while size <= limit:
                part = os.read(fd, min(limit + 1 - size, 1 << 20))
                if not part:
                    return b"".join(parts)
                parts.append(part)
                size += len(part)
            raise OSError(errno.EFBIG, f"larger than {limit} bytes", path)
        finally:
            os.close(fd)

    def names(self, path: str) -> list[str]:
        """See Store."""
        if self._inside:
            path = self.resolve(path)
        return self._list(path)[:MAX_NAMES]

    def _list(self, path: str) -> list[str]:
        fd = os.open(
            path or ".",
            os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC,
            dir_fd=self._fd,
        )
        try:
            return os.listdir(fd)
        finally:
            os.close(fd)

    def resolve(self, path: str) -> str:
        """See Store."""
        if not self._inside:
            os.stat(path or ".", dir_fd=self._fd)
            whole = os.path.realpath(os.path.join(self._path, path))
            return os.path.relpath(whole, self._path) if self._path != "/" else whole.lstrip("/")
        return walk(path, self._link, self._known)

    def link(self, path: str) -> str:
        """See Store."""
        if self._inside:
            head, _, leaf = path.rpartition("/")
            path = _below(self.resolve(head), leaf)
        return self._link_text(path)

    def mode(self, path: str) -> int:
        """st_mode of the entry itself: a link is a link. Raises OSError."""
        head, _, leaf = path.rpartition("/")
        return self._mode(_below(self.resolve(head), leaf))

    def _link(self, path: str) -> str | None:
        return self._link_text(path) if stat.S_ISLNK(self._mode(path)) else None

    def _mode(self, path: str) -> int:
        return os.lstat(path, dir_fd=self._fd).st_mode

    def _link_text(self, path: str) -> str:
        return os.readlink(path, dir_fd=self._fd)


def _of_records(path: str) -> bool:
    """Whether a short read may be followed by more. Source: fs/seq_file.c seq_read_iter()."""
    parts = path.removeprefix("/").split("/")
    return parts[0] == "proc" and parts[1:2] != ["sys"] and parts[-1] not in _ONE_RECORD


_ONE_RECORD = frozenset(
    ("stat", "status", "comm", "cgroup", "cmdline", "schedstat", "loginuid", "sessionid")
)
"""Files of a process, read for each of thousands. Source: fs/proc/base.c, ONE() and REG()."""


class _LinkOf(Protocol):
    def __call__(self, path: str) -> str | None:
        """Target of the symbolic link at a path without links above it; None: not a link.

        Raises OSError (ENOENT).
        """


def walk(path: str, link_of: _LinkOf, known: dict[str, str]) -> str:
    """Resolves symbolic links below a root, component by component.

    `known` keeps what was walked before, so that the folders above are asked about once. `..`
    never leaves the root. Raises OSError: ELOOP after MAX_LINKS links, and what `link_of` raises.
    """
    base = path
    ahead: list[str] = []
    while base and base not in known:
        base, _, leaf = base.rpartition("/")
        ahead.append(leaf)
    here, hops = known.get(base, ""), 0
    while ahead:
        leaf = ahead.pop()
        todo = [leaf]
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                here = here.rpartition("/")[0]
                continue
            step = f"{here}/{part}" if here else part
            target = link_of(step)
            if target is None:
                here = step
                continue
            hops += 1
            if hops > MAX_LINKS:
                raise error(errno.ELOOP, path)
            if target.startswith("/"):
                here = ""
            todo.extend(target.split("/")[::-1])
        base = f"{base}/{leaf}" if base else leaf
        if len(known) < MAX_NAMES:
            known[base] = here
    return here


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link in a table."""

    target: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A file whose reading failed when the machine was recorded."""

    reason: str


Entry = bytes | Link | Failed | None
"""What a table holds at a path: a file's bytes, a link, a failed read, or None (a directory)."""


class TableStore:
    """Files in memory: an unpacked archive or a capture (`complete`: all that we would read)."""

    def __init__(self, table: dict[str, Entry], *, complete: bool = False) -> None:
        self.complete = complete
        self._table = table
        self._known: dict[str, str] = {"": ""}
        self._children: dict[str, dict[str, None]] | None = None

    def close(self) -> None:
        """Nothing to give back."""

    def _tree(self) -> dict[str, dict[str, None]]:
        if self._children is None:
            tree: dict[str, dict[str, None]] = {"": {}}
            for path in self._table:
                while path:
                    head, _, leaf = path.rpartition("/")
                    below = tree.get(head)
                    if below is None:
                        tree[head] = {leaf: None}
                        path = head
                        continue
                    below[leaf] = None
                    break
            self._children = tree
        return self._children

    def read(self, path: str, limit: int, *, head: bool = False) -> bytes:
        """See Store."""
        entry = self._table.get(path)
        if entry is None or isinstance(entry, Link):
            path = self.resolve(path)
            entry = self._table.get(path)
        if isinstance(entry, Failed):
            raise OSError(errno.EIO, entry.reason, path)
        if entry is None:
            # A name in a capture that an older version took: it did not ask for the file yet.
            bare = self.complete and not self._tree().get(path)
            raise error(errno.ENOENT if bare else errno.EISDIR, path)
        assert isinstance(entry, bytes)
        if head:
            return entry[:limit]
        if len(entry) > limit:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes", path)
        return entry

    def names(self, path: str) -> list[str]:
        """See Store."""
        path = self.resolve(path)
        found = self._tree().get(path)
        if found is None:
            entry = self._table.get(path)
            if isinstance(entry, Failed):
                raise OSError(errno.EIO, entry.reason, path)
            if entry is None:
                return []
            raise error(errno.ENOTDIR, path)
        return list(found)[:MAX_NAMES]

    def resolve(self, path: str) -> str:
        """See Store."""
        return walk(path, self._link, self._known)

    def link(self, path: str) -> str:
        """See Store."""
        head, _, leaf = path.rpartition("/")
        entry = self._table.get(_below(self.resolve(head), leaf))
        if isinstance(entry, Link):
            return entry.target
        raise error(errno.EINVAL, path)

    def _link(self, path: str) -> str | None:
        entry = self._table.get(path)
        if isinstance(entry, Link):
            return entry.target
        if path not in self._table and path not in self._tree():
            raise error(errno.ENOENT, path)
        return None
