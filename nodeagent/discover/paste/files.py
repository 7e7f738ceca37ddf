"""The files that somebody pastes from: a folder of them walked, each read and decoded, with bounds.

Nothing here waits for ever or follows a link out: a pipe without a writer, a device, a server that
hangs, a loop of links and a folder without an end are each a sentence, or left out.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from nodeagent.discover.guarded import GuardedStore, touch
from nodeagent.discover.paste.part import Text
from nodeagent.discover.store import DirStore
from nodeagent.errors import ReadError, UsageError
from nodeagent.given import read_given
from nodeagent.served import behind

MAX_BYTES = 64 << 20
"""Of one file, and of all files together; what is larger is refused with a sentence."""
MAX_FILES = 1_000
MAX_ENTRIES = 100_000
"""Names looked at below one folder, folders included."""
TREES = ("sys", "proc")
"""Folders at the top that are a machine's tree: read by its own reader."""

_RECORDED = "{} {{0}}; for a recorded machine: nodeagentctl --host {{0}} topology check"
_ARCHIVES = (
    (b"PK\x03\x04", "a zip archive", "unzip {0}"),
    (b"PK\x05\x06", "a zip archive", "unzip {0}"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "7z x {0}"),
    (b"BZh", "compressed by bzip2", "bunzip2 {0}"),
    (b"\x1f\x8b", "compressed by gzip", _RECORDED.format("gunzip")),
    (b"\xfd7zXZ", "compressed by xz", _RECORDED.format("unxz")),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", _RECORDED.format("unzstd")),
)
_CONTROL = bytes([*range(1, 8), *range(14, 27), 28, 29, 30, 31, 127])
"""Bytes that text does not hold: NUL (holes in a log after a crash), white space and ESC left
out."""
_BINARY = 0.02
"""With a larger share of control bytes it is no text."""


def read_file(path: str) -> Text:
    """One file that was named. Raises UsageError, ReadError."""
    if behind(path):
        touch(path)
    if not os.path.lexists(path):
        raise UsageError(
            f"{path}: there is no such file or directory, expected what somebody pasted",
            "give files, a directory, or - for stdin",
        )
    try:
        data = read_given(path, MAX_BYTES)
    except OSError as error:
        raise ReadError(
            path, error.strerror or str(error), "give a file that can be read"
        ) from error
    for magic, what, remedy in _ARCHIVES:
        if data.startswith(magic):
            raise ReadError(path, f"is {what}, expected text", remedy.format(shlex.quote(path)))
    return Text(name=path, text=decode(path, data))


def read_folder(path: str) -> list[Text]:
    """Every file below a folder but those of a machine's tree; what cannot be read is a text of
    which nothing is understood. Raises UsageError, ReadError."""
    store = GuardedStore(path, live=False)
    texts: list[Text] = []
    left = MAX_BYTES
    try:
        names = sorted(_files(store, path), key=lambda name: name.split("/"))
        if len(names) > MAX_FILES:
            raise UsageError(
                f"{path}: {len(names)} files, expected at most {MAX_FILES}", "give fewer files"
            )
        for name in names:
            try:
                data = store.read(name, MAX_BYTES)
            except OSError as error:
                texts.append(Text(name=f"{name} ({error.strerror or error})", text=""))
                continue
            left -= len(data)
            if left < 0:
                raise ReadError(
                    path, f"holds more than {MAX_BYTES >> 20} MiB", "give the files that count"
                )
            texts.append(Text(name=name, text=decode(name, data)))
    finally:
        store.close()
    return texts


def is_folder(path: str) -> bool:
    """Whether it is a directory; asked by a child where a server must answer. Raises ReadError."""
    if behind(path):
        touch(path)
    return Path(path).is_dir()


def _files(store: DirStore, path: str) -> Iterator[str]:
    """Regular files below a folder; links are not followed."""
    seen, todo = 0, [""]
    while todo:
        folder = todo.pop()
        try:
            names = store.names(folder)
        except OSError as error:
            if not folder:
                raise ReadError(
                    path, error.strerror or str(error), "give a directory that can be read"
                ) from error
            continue
        seen += len(names)
        if seen > MAX_ENTRIES:
            raise UsageError(
                f"{path}: more than {MAX_ENTRIES:,} files and folders, expected a report",
                "give fewer files",
            )
        for name in names:
            if not folder and name in TREES:
                continue
            at = f"{folder}/{name}" if folder else name
            try:
                mode = store.mode(at)
            except OSError:
                continue
            if stat.S_ISDIR(mode):
                todo.append(at)
            elif stat.S_ISREG(mode):
                yield at


def decode(name: str, data: bytes) -> str:
    """UTF-8, or UTF-16 (PowerShell), by its mark or by its look; other bytes are replaced. Binary
    noise is empty: nothing of it is understood. Raises ReadError: larger than MAX_BYTES."""
    if len(data) > MAX_BYTES:
        raise ReadError(
            name, f"larger than {MAX_BYTES >> 20} MiB", "cut it to the part that counts"
        )
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    for encoding, high, low in (("utf-16-le", 1, 0), ("utf-16-be", 0, 1)):
        zeros = data[high:4096:2].count(0)
        if zeros > len(data[:4096]) * 0.4 and not data[low:4096:2].count(0):
            return data.decode(encoding, "replace")
    if len(data) - len(data.translate(None, _CONTROL)) > _BINARY * len(data) + 1:
        return ""
    return _HOLES.sub("\n", data.decode("utf-8", "replace"))


_HOLES = re.compile("\0+")
