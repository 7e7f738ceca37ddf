"""reading: what could not be read is never taken for healthy."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check.record import (
    READ_BY_HAND,
    RECORD_MORE,
    Judged,
    Seen,
    check,
    ok,
    saw,
    some,
    unknown,
)
from nodeagent.model.snapshot import Unread


@check(
    "reading.complete",
    "everything that was asked for could be read",
    means="UNKNOWN when a file of /sys or /proc that this agent reads was there and could not be "
    "read or understood. The checks that needed it say UNKNOWN of their own.",
    why="A monitor that takes an unreadable file for a good one is worse than none.",
    prove="nodeagentctl -o json topology show | jq .unread",
    mend="Run as root for rights; for damaged content look at the kernel log and report it.",
    source="nodeagent docs/adr: a failed read is data",
)
def complete(s: Seen) -> Iterator[Judged]:
    """The unread files, those that only need root apart."""
    unread = s.snapshot.unread
    groups: dict[str, list[Unread]] = {}
    for u in unread:
        groups.setdefault(s.unread(u.path.lstrip("/"), u.reason).remedy, []).append(u)
    for remedy, sentence in (
        (s.as_root, "closed to this user"),
        (READ_BY_HAND, "could not be read"),
        (RECORD_MORE, "missing in the recording"),
    ):
        group = groups.get(remedy, [])
        if group:
            yield unknown(
                "files",
                f"{len(group)} {'file' if len(group) == 1 else 'files'} {sentence}: "
                f"{some((u.path for u in group), 3)}",
                *(saw(u.path, u.reason) for u in group[:5]),
                remedy=remedy,
            )
    if not unread:
        yield ok("files", "everything that was asked for could be read")
