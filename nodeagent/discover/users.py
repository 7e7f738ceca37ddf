"""Users of the machine by name, from /etc/passwd: a directory service could keep a turn waiting.

Source: passwd(5).
"""

from __future__ import annotations

from pathlib import Path

from nodeagent.given import read_given

PASSWD = Path("/etc/passwd")
MAX_BYTES = 4 << 20


def users(path: Path = PASSWD) -> dict[str, int]:
    """Name -> number; nothing where the file cannot be read."""
    try:
        text = read_given(path, MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return {}
    found: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split(":")
        if len(words) == 7 and words[2].isdecimal():
            found.setdefault(words[0], int(words[2]))
    return found
