"""Files on a file system with a server behind it (FUSE, NFS): looked at by a child, first.

Who opens such a file waits in the kernel for as long as the server is silent, and no signal helps.
The file child waits in our place, with a deadline; it is left alone when it misses it.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodeagent.child import Child

DEADLINE_S = 5.0
"""For one answer; a port whose link trains, or a device that wakes up, takes 1 s."""
MAX_WHOLE = 8 << 20
"""Files up to this size are read by the child; larger ones are only looked at by it."""
MAX_LINKS = 40
"""As the kernel's MAXSYMLINKS."""

SERVED = re.compile(
    r"fuse(?!ctl)[\w.]*|nfs4?|cifs|smb3|ceph|9p|afs|lustre|gpfs|beegfs|virtiofs|orangefs|coda"
)
"""Types of file systems that wait for a server."""


def read_served(path: str | os.PathLike[str], limit: int) -> bytes | None:
    """At most `limit` bytes of a regular file on a served file system, read by the child. None:
    it lies elsewhere, or it is for the caller to open (no plain file, or over MAX_WHOLE allowed):
    its server answered. Raises OSError, TimeoutError after DEADLINE_S."""
    where = locate(os.fspath(path))
    if where is None:
        return None
    child = file_child("/")
    try:
        if limit > MAX_WHOLE:
            _ask(child, "read", where, 1)
            return None
        return _ask(child, "read", where, limit)
    except OSError as error:
        # A pipe or a device: its own rules hold.
        if error.errno == errno.EINVAL:
            return None
        raise
    finally:
        child.close()


def look(path: str) -> None:
    """Waits for the server behind a path, whatever is there. Raises TimeoutError."""
    where = locate(path) or os.path.abspath(path)
    child = file_child("/")
    try:
        for op in ("mode", "read"):
            try:
                _ask(child, op, where, 1)
            except TimeoutError:
                raise
            except OSError:
                continue
    finally:
        child.close()


def behind(path: str) -> bool:
    """Whether a path lies on a served file system, be it by a link."""
    return locate(path) is not None


def locate(path: str) -> str | None:
    """The path with its links followed up to where it enters a served file system, which nobody
    has touched yet; None: it enters none."""
    known = _table()
    if not any(known.values()):
        return None
    with suppress(OSError):
        return _follow(path if path.startswith("/") else f"{os.getcwd()}/{path}", known)
    return None


def _follow(path: str, known: dict[str, bool]) -> str | None:
    at, links = "", 0
    steps = path.split("/")
    while steps:
        step = steps.pop(0)
        if step in ("", "."):
            continue
        if step == "..":
            at = at.rpartition("/")[0]
            continue
        at = f"{at}/{step}"
        if _is_far(at, known):
            return "/".join([at, *steps])
        try:
            target = os.readlink(at)
        except OSError:
            continue
        links += 1
        if links > MAX_LINKS:
            return None
        at = "" if target.startswith("/") else at.rpartition("/")[0]
        steps[:0] = target.split("/")
    return None


def _is_far(path: str, known: dict[str, bool]) -> bool:
    """By the nearest mount point above."""
    while path:
        if path in known:
            return known[path]
        path = path.rpartition("/")[0]
    return known.get("/", False)


def served(mountinfo: str) -> tuple[str, ...]:
    """Mount points of served file systems, absolute."""
    return tuple(point for point, far in _points(mountinfo).items() if far)


def mounts() -> tuple[str, ...]:
    """Mount points of served file systems as this process sees them."""
    return tuple(point for point, far in _table().items() if far)


def _points(mountinfo: str) -> dict[str, bool]:
    """Mount point -> whether it is served; of several at one place the last is seen. Source: Linux
    Documentation/filesystems/proc.rst, section 3.5."""
    found: dict[str, bool] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        words, kind = left.split(), right.split()
        if len(words) > 4 and kind:
            point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), words[4])
            found[point] = SERVED.fullmatch(kind[0]) is not None
    return found


def _table() -> dict[str, bool]:
    with suppress(OSError):
        return _points(Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape"))
    return {}


def file_child(base: str) -> Child:
    """A file child for what lies below `base`."""
    # Here, not above: recorded machines are read where there is no such thing (docs/adr/0010).
    from nodeagent.child import Child

    script = Path(__file__).with_name("file_child.py")
    return Child([sys.executable, "-I", "-S", str(script), base])


def _ask(child: Child, op: str, where: str, limit: int) -> bytes:
    hexed = os.fsencode(where.lstrip("/")).hex()
    answer = child.ask(f"{op} {limit} /{hexed}", DEADLINE_S)
    if answer is None:
        if not child.hung:
            raise OSError(errno.EIO, child.reason, where)
        raise TimeoutError(
            errno.ETIMEDOUT,
            f"no answer in {DEADLINE_S:g} s: the server behind its file system hangs",
            where,
        )
    return unpacked(answer, where)


def unpacked(answer: list[str], path: str) -> bytes:
    """What the file child answered. Raises OSError as the child met it."""
    kind, _, rest = (answer[0] if answer else "").partition(" ")
    if kind == ":":
        return bytes.fromhex(rest)
    number, _, sentence = rest.partition(" ")
    if not number.isdigit():
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)
    raise OSError(int(number), sentence, path)
