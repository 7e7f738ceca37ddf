"""The undo journal: what was there before is on the disk before anything is changed.

One file, `undo.log`, of lines `CRC32 JSON`, only ever appended to. An action is *open* from its
first record until its `done` record: at most one is, and after a crash that is the one to complete
or revert. The first line is rewritten in place, after the lines that it counts: a tail that was
lost is noticed wherever the cut is, also between two lines (records.py, load.py).

Room for the records that close an action is allocated before it begins, so that a disk that fills
up meanwhile cannot leave a change without its end.
Source of the write order: fsync(2), rename(2) and the directory's own fsync.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from nodeagent.errors import ActError
from nodeagent.model.actions import MAX_MESSAGE
from nodeagent.pin.load import load
from nodeagent.pin.proc import boot_id
from nodeagent.pin.records import (
    VERSION,
    Closed,
    Done,
    Entry,
    Former,
    Header,
    Loaded,
    Open,
    Record,
    Resumed,
    Undoing,
    apply,
    line_of,
    sealed,
)
from nodeagent.pin.step import step

FILE = "undo.log"
MAX_FILE_BYTES = 64 << 20
FULL_BYTES = MAX_FILE_BYTES // 2
"""Beyond it no action begins; what closes those that have begun still fits."""
MAX_ENTRIES = 10_000
COMPACT_BYTES = 256 << 10
"""From this size on the file is rewritten when less than half of it is still needed."""
RESERVE_BYTES = 64 << 10
_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
"""Never through a link: the folder may be another user's."""


def read(folder: Path) -> Loaded:
    """A journal as it stands, without its lock and without mending it."""
    path = folder / FILE
    try:
        found = load(path.read_bytes()[:MAX_FILE_BYTES], str(path), boot_id())
        if found.notes:
            # Perhaps an actor was writing just then.
            found = load(path.read_bytes()[:MAX_FILE_BYTES], str(path), boot_id())
    except FileNotFoundError:
        return Loaded()
    return found


def _check_owner(path: Path, found: os.stat_result, kind: Callable[[int], bool]) -> None:
    """Raises ActError for a journal that another user could have written: what stands in it is
    carried out."""
    if not kind(found.st_mode) or found.st_uid not in (0, os.geteuid()):
        raise ActError(
            f"{path}: user {found.st_uid} owns it, or it is no plain one; the undo journal is "
            "read only from what the actor's own user made",
            "look at what it is, move it away, and give --state-dir a folder of the actor's user",
        )


class Journal:
    """The journal in `folder`, held by this process alone. Raises ActError."""

    def __init__(self, folder: Path, *, compact_bytes: int = COMPACT_BYTES) -> None:
        self._folder = folder
        self._compact_bytes = compact_bytes
        self._fd = -1
        self._path = folder / FILE
        self._boot = boot_id()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_owner(folder, folder.lstat(), stat.S_ISDIR)
            self._lock = os.open(folder / "lock", _OPEN, 0o600)
        except OSError as error:
            raise ActError(
                f"{folder}: the undo journal cannot be opened: {error.strerror}",
                "give the actor a state folder it may write to",
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise ActError(
                f"{folder}: another actor holds this journal",
                "stop it first; one actor a state folder",
            ) from error
        try:
            self._start()
        except ActError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise ActError(
                f"{self._path}: the undo journal cannot be opened: {error.strerror}",
                "free some space there, or give the actor another state folder",
            ) from error

    def _start(self) -> None:
        (self._folder / f"{FILE}.new").unlink(missing_ok=True)
        try:
            self._fd = os.open(self._path, _OPEN & ~os.O_CREAT)
        except FileNotFoundError:
            self._state = Loaded()
            self._rewrite()
            return
        found = os.fstat(self._fd)
        _check_owner(self._path, found, stat.S_ISREG)
        size = found.st_size
        if size > MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, f"{size} bytes, more than this program ever writes")
        self._state = load(os.pread(self._fd, size, 0), str(self._path), self._boot)
        if self._state.cut:
            aside = os.open(self._folder / f"{FILE}.damaged", _OPEN | os.O_TRUNC, 0o600)
            try:
                os.write(aside, self._state.cut[: 1 << 20])
            finally:
                os.close(aside)
            os.ftruncate(self._fd, self._state.end)
        header = self._state.header
        if not self._state.end:
            self._state.notes.append(
                f"{self._path}: empty, expected a first line; what stood in it cannot be undone"
            )
            self._rewrite()
        elif self._state.sealed:
            self._append([], make_room=False)
        elif not self._state.damaged and (header is None or header.version <= VERSION):
            # Of before there was a seal. Where there is no room for it, it goes on without.
            self._compact()
        self._sync_folder()

    def close(self) -> None:
        """Lets the lock go; the file stays."""
        if self._fd >= 0:
            os.close(self._fd)
        os.close(self._lock)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was found damaged when it was opened."""
        return tuple(self._state.notes)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Everything not closed, oldest first."""
        return tuple(self._state.entries[i] for i in sorted(self._state.entries))

    def entry(self, number: int) -> Entry:
        """The entry of that number; it must be there."""
        return self._state.entries[number]

    @property
    def next_id(self) -> int:
        """Number of the next entry."""
        return self._state.next_id

    def begin(self, record: Open, former: Former | None = None) -> Entry:
        """Both records are on the disk when this returns. Raises ActError: nothing is recorded."""
        assert record.id == self.next_id and (former is None or record.id == former.id)
        if len(self._state.entries) >= MAX_ENTRIES:
            raise ActError(
                f"{self._path}: {MAX_ENTRIES} actions are waiting to be undone, no more are kept",
                "nodeagentctl undo",
            )
        records: list[Record] = [record]
        if former is not None:
            masks = len(former.threads) + len(former.kept)
            records = [msgspec.structs.replace(record, masks=masks), former]
        self._write(records, make_room=True)
        return self.entry(record.id)

    def more(self, former: Former) -> None:
        """Masks of threads born meanwhile, on the disk before they are changed. Raises ActError."""
        self._write([former], make_room=True)

    def done(self, number: int, read_back: str) -> None:
        """The action is complete."""
        self._write([Done(id=number, read_back=read_back)])

    def resumed(self, number: int) -> None:
        """It goes on where it had stopped; a new one would record the half-way state as former."""
        self._write([Resumed(id=number)], make_room=True)

    def undoing(self, number: int) -> None:
        """Its undo begins."""
        self._write([Undoing(id=number)])

    def closed(self, number: int, how: str, message: str = "") -> None:
        """Nothing of it is left. Compacts the file when that is worth it."""
        self._write([Closed(id=number, how=how, message=message[:MAX_MESSAGE])])
        if self._state.end <= self._compact_bytes:
            return
        if self._state.live_bytes() < self._state.end // 2:
            self._compact()

    def _write(self, records: Sequence[Record], *, make_room: bool = False) -> None:
        lines = [line_of(r) for r in records]
        if make_room and self._state.end + sum(map(len, lines)) > FULL_BYTES:
            self._compact()
            if self._state.end + sum(map(len, lines)) > FULL_BYTES:
                raise self._full()
        step("journal.before")
        try:
            try:
                self._put_back()
            except OSError:
                if make_room:
                    raise
            self._append(lines, make_room=make_room)
        except OSError as error:
            raise ActError(
                f"{self._path}: the undo record could not be written: {error.strerror}",
                "free some space there; nothing is changed without its undo",
            ) from error
        step("journal.synced")
        for record, line in zip(records, lines, strict=True):
            apply(self._state, record, line)

    def _put_back(self) -> None:
        """Writes the file anew where somebody removed it, or its folder: what is not closed is in
        memory too. Raises OSError where that cannot be, or where another file stands there."""
        held = os.fstat(self._fd)
        try:
            found = self._path.lstat()
        except FileNotFoundError:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_owner(self._folder, self._folder.lstat(), stat.S_ISDIR)
            self._lock_again()
            self._rewrite()
            return
        if (found.st_dev, found.st_ino) != (held.st_dev, held.st_ino):
            raise OSError(errno.ESTALE, "another file stands there than the one that is held")

    def _lock_again(self) -> None:
        """The lock that went with the folder. Raises OSError when another actor has it."""
        lock = os.open(self._folder / "lock", _OPEN, 0o600)
        if os.path.sameopenfile(lock, self._lock):
            os.close(lock)
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise OSError(
                errno.EBUSY, "another actor holds the folder made in its place"
            ) from error
        os.close(self._lock)
        self._lock = lock

    def _full(self) -> ActError:
        waiting = f"{self._path}: {self._state.end} bytes wait to be undone, no more are kept"
        foreign = self._state.foreign_bytes()
        if not foreign:
            return ActError(waiting, "nodeagentctl undo")
        return ActError(
            f"{waiting}; {foreign} of them are of another version of nodeagent, which this one "
            "neither undoes nor drops",
            "nodeagentctl undo, and undo what is left with the version that wrote it",
        )

    def _append(self, lines: list[bytes], *, make_room: bool = True) -> None:
        data = b"".join(lines)
        end = self._state.end
        crc = zlib.crc32(data, self._state.crc)
        need = end + len(data) + RESERVE_BYTES
        if make_room and os.fstat(self._fd).st_size < need:
            os.posix_fallocate(self._fd, 0, need)
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(self._fd, data[done:], end + done)
            step("journal.written")
            self._seal(end + len(data), crc)
            os.fsync(self._fd)
        except OSError:
            # Half a line must not stand before the next one; the room stays allocated.
            with contextlib.suppress(OSError):
                self._seal(end, self._state.crc)
                os.pwrite(self._fd, bytes(done), end)
            raise
        self._state.end, self._state.crc = end + len(data), crc

    def _seal(self, end: int, crc: int) -> None:
        """The first line says how far the file was written; of another version it is left."""
        header = self._state.header
        if header is None or not self._state.sealed:
            return
        first = line_of(sealed(header, self._boot, end, crc))
        if len(first) == self._state.header_bytes:
            os.pwrite(self._fd, first, 0)
            step("journal.sealed")

    def _compact(self) -> None:
        """Only what is not closed, in a new file; the old one goes on where there is no room."""
        with contextlib.suppress(OSError):
            self._rewrite()

    def _rewrite(self) -> None:
        """What is not closed in a new file, which takes the old one's place. Raises OSError: the
        old one is whole."""
        new, old = self._folder / f"{FILE}.new", self._state.header
        # Of a newer version: what it wrote of its own into the first line is not known here.
        version = VERSION if old is None else max(VERSION, old.version)
        header = Header(version=version, next_id=self._state.next_id)
        rest = b"".join(self._state.live())
        crc = zlib.crc32(rest)
        length = len(line_of(sealed(header, self._boot, 0, 0)))
        header = sealed(header, self._boot, length + len(rest), crc)
        data = line_of(header) + rest
        fd = -1
        try:
            fd = os.open(new, _OPEN | os.O_TRUNC, 0o600)
            os.posix_fallocate(fd, 0, len(data) + RESERVE_BYTES)
            if os.pwrite(fd, data, 0) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(fd)
            step("journal.compact.written")
            new.rename(self._path)
        except OSError:
            if fd >= 0:
                os.close(fd)
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            raise
        step("journal.compact.renamed")
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        self._state.header, self._state.header_bytes = header, length
        self._state.end, self._state.crc = len(data), crc
        # Should the rename not last, a power cut has ended this boot, and its entries with it.
        with contextlib.suppress(OSError):
            self._sync_folder()

    def _sync_folder(self) -> None:
        fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
