"""The kernel log of this machine, read once and not waited for; in a capture, its text.

Read only for a command of a person. /dev/kmsg gives every reader its own place, so that nothing is
taken from others. Source: Documentation/ABI/testing/dev-kmsg, Documentation/admin-guide/sysctl/
kernel.rst (dmesg_restrict).
"""

from __future__ import annotations

import errno
import os
from collections import deque
from typing import TYPE_CHECKING

from nodeagent.discover.root import Root

if TYPE_CHECKING:
    from nodeagent.discover.paste.part import Part

PATH = "dev/kmsg"
KEY = "derived/kernel_log"
"""Where a capture keeps the text."""
MAX_RECORDS = 50_000
"""The newest ones are kept."""
MAX_BYTES = 16 << 20


def read_kernel_log(root: Root) -> Part | None:
    """What the log says; None: nobody could look."""
    text = _live(root) if root.is_live else root.text(KEY, MAX_BYTES)
    if text is None:
        if not root.is_live and root.is_complete:
            # A capture made without the right to read it says so here.
            root.text(PATH, 1)
        return None
    if root.is_live:
        root.note(KEY, text)
    # Here: its rules take a while to be defined, and many recordings hold no log.
    from nodeagent.discover.paste.klog import read_log

    return read_log(text, PATH, is_log=True)


def _live(root: Root) -> str | None:
    try:
        fd = os.open("/" + PATH, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            root.refuse(PATH, error.strerror or str(error))
        return None
    lines: deque[str] = deque(maxlen=MAX_RECORDS)
    try:
        for _ in range(4 * MAX_RECORDS):
            try:
                data = os.read(fd, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:
                # Overwritten while we read: the next record is there.
                continue
            line = line_of(data)
            if line is not None:
                lines.append(line)
    except OSError as error:
        root.refuse(PATH, error.strerror or str(error))
        return None
    finally:
        os.close(fd)
    return "\n".join(lines)[-MAX_BYTES:]


def line_of(record: bytes) -> str | None:
    """`PRIORITY,SEQUENCE,MICROSECONDS,FLAGS;TEXT` as dmesg shows it; None: not the kernel's own."""
    head, _, body = record.decode("utf-8", "replace").partition(";")
    words = head.split(",")
    if len(words) < 3 or not words[0].isdigit() or not words[2].isdigit() or int(words[0]) >> 3:
        return None
    at = int(words[2])
    return f"[{at // 1_000_000:5}.{at % 1_000_000:06}] {body.partition(chr(10))[0]}"
