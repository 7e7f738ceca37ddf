"""An initramfs: a folder as a newc cpio archive, and a kernel module with those it depends on.

Source: Linux Documentation/driver-api/early-userspace/buffer-format.rst.
"""

from __future__ import annotations

import pathlib
import re
import stat
from collections.abc import Callable, Iterator


def archive(tree: pathlib.Path) -> bytes:
    """The folder, every file root's, every time zero: the same folder gives the same bytes."""
    out = bytearray()

    def entry(name: str, mode: int, body: bytes) -> None:
        raw = name.encode() + b"\0"
        fields = (0, mode, 0, 0, 1, 0, len(body), 0, 0, 0, 0, len(raw), 0)
        out.extend(b"070701" + b"".join(b"%08X" % f for f in fields) + raw)
        out.extend(b"\0" * (-len(out) % 4))
        out.extend(body)
        out.extend(b"\0" * (-len(out) % 4))

    for path in sorted(tree.rglob("*")):
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            body = str(path.readlink()).encode()
        else:
            body = path.read_bytes() if path.is_file() else b""
        entry(str(path.relative_to(tree)), found.st_mode, body)
    entry("TRAILER!!!", 0, b"")
    return bytes(out)


def in_order(names: tuple[str, ...], read: Callable[[str], bytes | None]) -> list[str]:
    """The modules and what they depend on, in the order to load them.

    `read` gives a module's file by its name with underscores, None where it is built in.
    """
    ordered: list[str] = []
    for name in names:
        for found in _wanted(name.replace("-", "_"), read):
            if found not in ordered:
                ordered.append(found)
    return ordered


def _wanted(name: str, read: Callable[[str], bytes | None]) -> Iterator[str]:
    """Deepest first, then itself. The list stands in the file's .modinfo section."""
    body = read(name)
    if body is None:
        return
    found = re.search(rb"\0depends=([^\0]*)\0", body)
    for other in (found[1].decode() if found else "").split(","):
        if other:
            yield from _wanted(other.replace("-", "_"), read)
    yield name
