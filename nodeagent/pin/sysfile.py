"""One small file of /proc or /sys as a value: read, written as it is, its errors in sentences.

Never made and never cut: a file that is not there is a kernel or device that does not have it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from nodeagent.errors import ActError, NodeagentError, RightsError
from nodeagent.pin.affinity import GoneError

SYS = Path("/sys")
MAX_BYTES = 64 << 10
"""A mask of 8,192 CPUs takes 2 KiB; the kernel hands out one page at most."""

Explain = Callable[[OSError], NodeagentError | None]
"""What an errno means for this file; None: nothing particular."""


def read(path: Path, gone: str, explain: Explain | None = None) -> str:
    """The text without its line end. Raises GoneError with the sentence `gone` where there is no
    such file, else RightsError or ActError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise GoneError(gone) from error
    except OSError as error:
        raise _meaning(path, "read", error, explain) from error
    try:
        return os.read(fd, MAX_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise _meaning(path, "read", error, explain) from error
    finally:
        os.close(fd)


def write(path: Path, text: str, gone: str, explain: Explain | None = None) -> None:
    """One write(2) of the text. Raises as `read` does."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise GoneError(gone) from error
    except OSError as error:
        raise _meaning(path, f"set to {text or 'nothing'}", error, explain) from error
    data = text.encode() or b"\n"
    try:
        if os.write(fd, data) != len(data):
            raise ActError(f"{path}: took a part of {text} only")
    except OSError as error:
        raise _meaning(path, f"set to {text or 'nothing'}", error, explain) from error
    finally:
        os.close(fd)


def _meaning(path: Path, what: str, error: OSError, explain: Explain | None) -> NodeagentError:
    known = explain(error) if explain is not None else None
    if known is not None:
        return known
    said = f"{path}: may not be {what}: {error.strerror}"
    match error.errno:
        case errno.EACCES | errno.EPERM:
            return RightsError(said, "run the actor as root, with the capabilities of its unit")
        case errno.EROFS:
            return RightsError(
                said, f"it is mounted read-only here: give the actor's unit ReadWritePaths={path}"
            )
        case errno.ENODEV:
            return GoneError(f"{path}: its device is not there any more")
        case errno.EBUSY | errno.EAGAIN:
            return ActError(f"{path}: could not be {what}, it is busy", "try again in a moment")
        case _:
            return ActError(f"{path}: could not be {what}: {error.strerror}")


def number(subject: str, digits: int = 9) -> bool:
    """Whether a subject is a plain number: it becomes part of a path."""
    return subject.isascii() and subject.isdecimal() and len(subject) <= digits
