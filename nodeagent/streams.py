"""A process's standard streams, when whoever started it closed them or gave it a full disk."""

from __future__ import annotations

import errno
import os
import sys

STREAM_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What a write to a stream meets where there is no room for it."""


def stand_in() -> None:
    """Opens /dev/null in the place of standard streams that are closed (`>&-`), so that no file
    that is opened later gets their number, and what is printed with it; then lets text that the
    stream's encoding does not have be escaped."""
    for fd, how in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            # The lowest free number is this one: those below are open by now.
            os.open(os.devnull, how)
            os.set_inheritable(fd, True)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def discard_stdout() -> None:
    """What stdout still holds goes nowhere: its reader has gone, or there is no room."""
    fd = os.open(os.devnull, os.O_WRONLY)
    os.dup2(fd, 1)
    os.close(fd)
