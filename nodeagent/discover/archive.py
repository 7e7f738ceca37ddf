"""Recorded machines in one file: `.tar.xz`, `.tar.gz`, `.tar.zst` of sys/ and proc/, or a capture.

Bounded in members, in bytes and in paths: nothing is unpacked to disk, nothing leaves the table,
and a file that unpacks to more than the bound is refused.
"""

from __future__ import annotations

import io
import os
import sys
import tarfile
from typing import BinaryIO, cast

from nodeagent.discover.store import Entry, Link, Store, TableStore
from nodeagent.errors import NodeagentError, ReadError, UnavailableError
from nodeagent.given import read_given

MAX_MEMBERS = 100_000
MAX_BYTES = 256 << 20
"""Bytes of one machine, unpacked; the largest known tree has 16,000 files in 15 MB of tar."""
MAX_FILE = 16 << 20
MAX_ENDS = 16
"""Times that a reader may ask on after the end."""
TOPS = ("sys", "proc")


def open_archive(path: str) -> Store:
    """The machine in that file. Raises ReadError, UnavailableError (no zstd here)."""
    try:
        with _open(path) as file:
            head = file.read(6)
            file.seek(0)
            unpacked = _unpacked(path, head, file)
            if unpacked is None:
                return _capture(path, file.read(MAX_BYTES + 1))
            return _tar(path, unpacked)
    except NodeagentError:
        raise
    except OSError as error:
        raise _bad(path, error.strerror or str(error)) from error
    except (EOFError, tarfile.TarError, ValueError) as error:
        raise _bad(path, str(error)) from error
    except RecursionError as error:
        # tarfile reads a header that announces a header, and so on, by calling itself.
        raise _bad(path, "its headers are nested too deep") from error


def _unpacked(path: str, head: bytes, file: BinaryIO) -> _Bounded | None:
    """What the file unpacks to, by its first bytes; None: it is not compressed."""
    if head.startswith(b"\xfd7zXZ"):
        import lzma

        return _Bounded(path, cast(BinaryIO, lzma.LZMAFile(file)), lzma.LZMAError)
    if head.startswith(b"\x1f\x8b"):
        import gzip
        import zlib

        return _Bounded(path, cast(BinaryIO, gzip.GzipFile(fileobj=file)), zlib.error)
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return _Bounded(path, *_zstd(path, file))
    return None


def _open(path: str) -> BinaryIO:
    """The file; what cannot be wound back (`<(command)` of a shell) comes through memory."""
    if os.path.isfile(path):
        return open(path, "rb")
    data = read_given(path, MAX_BYTES)
    if len(data) > MAX_BYTES:
        raise _bad(path, f"larger than {MAX_BYTES >> 20} MiB")
    return io.BytesIO(data)


def _bad(path: str, reason: str) -> ReadError:
    return ReadError(
        path,
        f"cannot be read as a recorded machine: {reason}",
        "give a directory or .tar.xz/.tar.gz/.tar.zst with sys/ and proc/ at its top, or a file "
        "written by nodeagentctl capture",
    )


def _zstd(path: str, file: BinaryIO) -> tuple[BinaryIO, type[Exception]]:
    if sys.version_info >= (3, 14):
        from compression import zstd

        return cast(BinaryIO, zstd.ZstdFile(file)), zstd.ZstdError
    try:
        import zstandard
    except ImportError:
        raise UnavailableError(
            f"{path}: this Python has no zstd (it came with Python 3.14)",
            f"pip install zstandard, or: zstd -d < {path} | xz > machine.tar.xz",
        ) from None
    stream = io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(file))
    return cast(BinaryIO, stream), zstandard.ZstdError


class _Bounded(io.RawIOBase):
    """A stream that ends with an error after MAX_BYTES: a few kB can unpack to a disk full.

    lzma, zlib and zstd each have an error class of their own without a common parent (`fault`):
    here it becomes a ReadError.
    """

    def __init__(self, path: str, stream: BinaryIO, fault: type[Exception]) -> None:
        self._path, self._stream, self._left = path, stream, MAX_BYTES
        self._fault = fault
        self._ends = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]  # any writable buffer
        try:
            part = self._stream.read(len(view))
        except self._fault as error:
            raise _bad(self._path, str(error)) from error
        if not part:
            # A header may promise 2^95 bytes: tarfile skips them block by block, after the end too.
            self._ends += 1
            if self._ends > MAX_ENDS:
                raise _bad(self._path, "it ends within a member")
        self._left -= len(part)
        if self._left < 0:
            raise _bad(self._path, f"it unpacks to more than {MAX_BYTES >> 20} MiB")
        view[: len(part)] = part
        return len(part)


def _tar(path: str, unpacked: _Bounded) -> TableStore:
    table: dict[str, Entry] = {}
    held = 0
    bounded = io.BufferedReader(unpacked, 1 << 20)
    with tarfile.open(fileobj=bounded, mode="r|") as tar:
        for count, member in enumerate(tar):
            if count >= MAX_MEMBERS:
                raise _bad(path, f"it has more than {MAX_MEMBERS} members")
            name = member.name.removeprefix("./").strip("/")
            parts = name.split("/")
            if ".." in parts or member.name.startswith("/"):
                raise _bad(path, f"member {member.name[:200]!r} lies outside of it")
            if member.issym():
                table[name] = Link(member.linkname)
            elif member.isdir():
                table.setdefault(name, None)
            elif member.islnk():
                # The name of another member; a symbolic link's text is resolved below the root.
                target = member.linkname
                if ".." in target.split("/") or target.startswith("/"):
                    raise _bad(path, f"hard link {name[:200]!r} leads outside of it")
                table[name] = Link("/" + target.removeprefix("./"))
            elif member.isfile():
                held += member.size
                if held > MAX_BYTES:
                    raise _bad(path, f"its files hold more than {MAX_BYTES >> 20} MiB")
                body = tar.extractfile(member)
                # One byte more than any reader takes: "too large" is then said for that file.
                table[name] = body.read(MAX_FILE + 1) if body else b""
            # Devices and FIFOs are nothing to read: left out.
    return TableStore(_below_top(path, table))


def _below_top(path: str, table: dict[str, Entry]) -> dict[str, Entry]:
    """The table with sys/ and proc/ at its top, also when the archive holds one folder of them."""
    table.pop("", None)
    table.pop(".", None)
    tops = {p.partition("/")[0] for p in table}
    if tops & set(TOPS):
        return table
    if len(tops) == 1:
        (top,) = tops
        inner = {p[len(top) + 1 :]: e for p, e in table.items() if p != top}
        if {p.partition("/")[0] for p in inner} & set(TOPS):
            return inner
    raise _bad(path, "it holds neither sys/ nor proc/")


def _capture(path: str, data: bytes) -> TableStore:
    from nodeagent.discover.capture import MAGIC, parse

    if len(data) > MAX_BYTES:
        raise _bad(path, f"it is larger than {MAX_BYTES >> 20} MiB")
    if not data.startswith(MAGIC.encode()):
        raise _bad(path, f"it is neither an archive nor begins with {MAGIC!r}")
    return TableStore(parse(path, data), complete=True)
