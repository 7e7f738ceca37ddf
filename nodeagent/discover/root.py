"""The only door to /sys and /proc: bounded reads below a root, each failure recorded.

A root is this machine (`Root.live()`) or a recorded one (`Root.open(path)`): a directory, an
archive of it, or a capture. The same code reads all of them; nothing here raises for what it
reads.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress

from nodeagent.discover.legible import legible
from nodeagent.discover.store import DirStore, Entry, Failed, Link, Store
from nodeagent.errors import ParseError, UsageError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.snapshot import Unread

LIMIT = 256 << 10
"""Bytes read of one file unless the caller allows more."""
MAX_UNREAD = 10_000
"""Failures kept; more of them are counted in one last record."""

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO)


class Root:
    """Bounded reads of one machine's files.

    A file that is not there is None and no failure, unless the caller `expected` it. Everything
    else that goes wrong (rights, size, a loop of links, binary content, text that does not mean
    what it should) is None and stands in `unread`.
    """

    def __init__(self, store: Store, *, live: bool, label: str, keep: bool = False) -> None:
        """`keep`: remember all that is read, for a capture."""
        self._store = store
        self.is_live = live
        self.is_complete = live or getattr(store, "complete", False)
        """Whether an absent file was absent on the machine; a tree recorded by hand cannot tell."""
        self.label = label
        """What to call this root in a message."""
        self._unread: dict[str, str] = {}
        self._lost = 0
        self._parsed: dict[str, CpuSet] = {}
        self.kept: dict[str, Entry] | None = {} if keep else None
        """All that was read, by path; None unless asked for."""

    @classmethod
    def live(cls, *, keep: bool = False) -> Root:
        """This machine; for who reads no file that asks a device (processes)."""
        return cls(DirStore("/", inside=False), live=True, label="this machine", keep=keep)

    @classmethod
    def guarded(cls, *, keep: bool = False, path: str = "/", refuse: str | None = None) -> Root:
        """This machine; files that ask a device are read by a child, with deadlines.

        `refuse`: why that child is not to be asked (an earlier one hangs). `path`: where this
        machine's tree is mounted.
        """
        from nodeagent.discover.guarded import GuardedStore

        store = GuardedStore(path, live=True, refuse=refuse)
        return cls(store, live=True, label="this machine", keep=keep)

    @classmethod
    def open(cls, path: str, *, keep: bool = False) -> Root:
        """A recorded machine. Raises UsageError (exit 64) when there is none at `path`, ReadError
        when it cannot be read."""
        from nodeagent.discover.guarded import GuardedStore, touch
        from nodeagent.served import behind

        if behind(path):
            touch(path)
        if not os.path.lexists(path):
            raise UsageError(
                f"--host {path}: there is no such file or directory, expected a recorded machine",
                f"for a node that the controller knows: nodeagentctl fleet node {path}",
            )
        store: Store
        if os.path.isdir(path):
            store = GuardedStore(path, live=False)
            if not {"sys", "proc"}.intersection(store.names("")):
                store.close()
                raise UsageError(
                    f"--host {path}: this directory holds neither sys/ nor proc/",
                    "give the directory that holds them, an archive of it, or a capture",
                )
        else:
            from nodeagent.discover.archive import open_archive

            store = open_archive(path)
        return cls(store, live=False, label=path, keep=keep)

    @property
    def child(self) -> int | None:
        """Pid of the child that reads what may hang, while it runs."""
        return self._store.pid if isinstance(self._store, DirStore) else None

    def close(self) -> None:
        """Gives back the directory."""
        self._store.close()

    def __enter__(self) -> Root:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- what went wrong -------------------------------------------------------------------

    @property
    def unread(self) -> tuple[Unread, ...]:
        """Every failure so far, in the order of reading."""
        found = [Unread(path=f"/{p}", reason=r) for p, r in self._unread.items()]
        if self._lost:
            found.append(Unread(path="/", reason=f"{self._lost} more files could not be read"))
        return tuple(found)

    def fail(self, path: str, reason: str) -> None:
        """Records that a file could not be read or understood."""
        if path in self._unread:
            return
        if len(self._unread) >= MAX_UNREAD:
            self._lost += 1
        else:
            self._unread[path] = reason

    def _failed(self, path: str, error: OSError, expected: bool) -> None:
        reason = error.strerror or str(error)
        if error.errno in _ABSENT:
            if expected:
                self.fail(path, reason)
            return
        self.fail(path, reason)
        self._keep(path, Failed(reason))

    def _keep(self, path: str, entry: Entry) -> None:
        # A listing leaves a marker (None); what the entry really is takes its place.
        if self.kept is not None and self.kept.get(path) is None:
            self.kept[path] = entry

    # ---- reads -----------------------------------------------------------------------------

    def peek(self, path: str, limit: int = LIMIT) -> bytes | None:
        """The file's bytes, or None; never recorded (what vanishes by nature: /proc/PID)."""
        try:
            return self._store.read(path, limit)
        except OSError:
            return None

    def head(self, path: str, limit: int) -> bytes | None:
        """The file's first bytes, or None."""
        try:
            found = self._store.read(path, limit, head=True)
        except OSError as error:
            self._failed(path, error, False)
            return None
        if self.kept is not None:
            self._keep(path, found)
        return found

    def opaque(self, path: str, limit: int) -> bytes | None:
        """The file's first bytes, or None; they are in no capture (configuration space holds
        serial numbers)."""
        try:
            return self._store.read(path, limit, head=True)
        except OSError as error:
            self._failed(path, error, False)
            return None

    def text(
        self, path: str, limit: int = LIMIT, *, expected: bool = False, quiet: bool = False
    ) -> str | None:
        """The file's text, stripped, or None.

        `quiet`: EINVAL and EOPNOTSUPP are the file's way to say that it has no value just now
        (speed of a link that is down).
        """
        try:
            found = self._store.read(path, limit)
        except OSError as error:
            if not (quiet and error.errno in (errno.EINVAL, errno.EOPNOTSUPP)):
                self._failed(path, error, expected)
            return None
        if self.kept is not None:
            self._keep(path, found)
        try:
            text = found.decode().strip("\0 \t\r\n")
        except UnicodeDecodeError:
            self.fail(path, "binary, expected text")
            return None
        if "\0" in text:
            self.fail(path, "binary, expected text")
            return None
        return legible(text)

    def lines(self, path: str, limit: int = LIMIT, *, expected: bool = False) -> list[str]:
        """The file's lines; none when it could not be read."""
        text = self.text(path, limit, expected=expected)
        return text.splitlines() if text else []

    def number(
        self, path: str, base: int = 10, *, expected: bool = False, quiet: bool = False
    ) -> int | None:
        """The file as one number, or None."""
        text = self.text(path, 4096, expected=expected, quiet=quiet)
        if text is None:
            return None
        try:
            value = int(text, base)
        except ValueError:
            self.fail(path, f"{brief(text)}, expected a number")
            return None
        if value.bit_length() > 63:
            self.fail(path, f"{brief(text)}, expected a number of 64 bits")
            return None
        return value

    def cpus(self, path: str, *, expected: bool = False) -> CpuSet | None:
        """The file as a cpulist, or None. `(null)` is how nohz_full says "none"."""
        text = self.text(path, 1 << 16, expected=expected)
        return None if text is None else self._cpus(path, text, CpuSet.parse)

    def mask(self, path: str, *, expected: bool = False) -> CpuSet | None:
        """The file as a mask in hexadecimal words, or None."""
        text = self.text(path, 1 << 16, expected=expected)
        return None if text is None else self._cpus(path, text, CpuSet.parse_mask)

    def _cpus(self, path: str, text: str, parse: Callable[[str], CpuSet]) -> CpuSet | None:
        key = text if parse is CpuSet.parse else "0x" + text
        known = self._parsed.get(key)
        if known is not None:
            return known
        try:
            found = parse("" if text == "(null)" else text)
        except ParseError as error:
            self.fail(path, f"{brief(error.seen)}, expected {error.expected}")
            return None
        if len(self._parsed) < MAX_UNREAD:
            self._parsed[key] = found
        return found

    def names(
        self,
        path: str,
        pattern: re.Pattern[str] | None = None,
        *,
        expected: bool = False,
        quiet: bool = False,
    ) -> tuple[str, ...]:
        """Entries of a directory whose whole name fits, sorted; none when it is not there.

        `quiet`: a missing right is no failure (debugfs: only root sees it, and what it tells is
        told elsewhere as well).
        """
        try:
            found = self._store.names(path)
        except OSError as error:
            if not (quiet and error.errno in (errno.EACCES, errno.EPERM)):
                self._failed(path, error, expected)
            return ()
        if pattern is not None:
            found = [n for n in found if pattern.fullmatch(n)]
        found.sort()
        if self.kept is not None:
            self._keep(path, None)
            for name in found:
                self._keep(f"{path}/{name}", None)
        return tuple(found)

    def resolve(self, path: str) -> str | None:
        """The path without symbolic links, or None when it leads nowhere."""
        try:
            found = self._store.resolve(path)
        except OSError as error:
            self._failed(path, error, False)
            return None
        if found != path:
            self._keep(path, Link("/" + found))
            self._keep(found, None)
        return found

    def target(self, path: str) -> str | None:
        """Last component of a symbolic link's text (`driver` -> mlx5_core), or None.

        The link need not lead anywhere: partial copies of sysfs often hold only the link.
        """
        try:
            found = self._store.link(path)
        except OSError as error:
            if error.errno != errno.EINVAL:
                self._failed(path, error, False)
            return None
        self._keep(path, Link(found))
        return found.rpartition("/")[2]

    def note(self, path: str, text: str) -> None:
        """Keeps for a capture what is no file: it is read back by `text(path)`."""
        self._keep(path, text.encode())

    def refuse(self, path: str, reason: str) -> None:
        """Records that something which is read elsewhere could not be read; kept for a capture."""
        self.fail(path, reason)
        self._keep(path, Failed(reason))

    def pids(self) -> tuple[int, ...]:
        """Numbers of the processes that are there, ascending; never recorded."""
        try:
            # Asked for at every turn: a first character costs less than a call.
            names = [n for n in self._store.names("proc") if "1" <= n[:1] <= "9"]
            return tuple(sorted([int(n) for n in names if is_number(n)]))
        except OSError:
            return ()

    def tids(self, pid: int) -> tuple[int, ...]:
        """Numbers of a process's threads, ascending; never recorded."""
        try:
            return tuple(sorted(map(int, self._store.names(f"proc/{pid}/task"))))
        except (OSError, ValueError):
            return ()

    def exists(self, path: str) -> bool:
        """Whether the path leads to something."""
        with suppress(OSError):
            self._store.resolve(path)
            self._keep(path, None)
            return True
        return False

    def glob(self, pattern: str, limit: int = 4096) -> Iterator[str]:
        """Paths that fit a pattern with `*` in whole components or parts of them."""
        head, star, _ = pattern.partition("*")
        if not star:
            yield pattern
            return
        base = head.rpartition("/")[0]
        part, _, rest = pattern[len(base) + 1 :].partition("/")
        fits = re.compile(".*".join(map(re.escape, part.split("*"))))
        for name in self.names(base, fits)[:limit]:
            path = f"{base}/{name}"
            if rest:
                yield from self.glob(f"{path}/{rest}", limit)
            else:
                yield path


def is_number(text: str) -> bool:
    """Whether int() takes it and a kernel may have printed it: ASCII digits, at most 15
    (with a binary unit it still fits into 64 bits)."""
    return len(text) <= 15 and text.isascii() and text.isdigit()


def brief(text: str) -> str:
    """A file's text as it is quoted in a sentence: at most 40 characters, or the word empty."""
    return repr(text if len(text) <= 40 else text[:37] + "...") if text else "empty"
