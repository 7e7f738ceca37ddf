"""reading: what could not be read is never taken for healthy."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check.record import (
    AS_ROOT,
    READ_BY_HAND,
    Judged,
    Seen,
    check,
    needs_right,
    ok,
    saw,
    some,
    unknown,
)


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
    for group, remedy, sentence in (
        ([u for u in unread if needs_right(u.reason)], AS_ROOT, "need more rights"),
        ([u for u in unread if not needs_right(u.reason)], READ_BY_HAND, "could not be read"),
    ):
        if group:
            yield unknown(
                "files",
                f"{len(group)} files {sentence}: {some((u.path for u in group), 3)}",
                *(saw(u.path, u.reason) for u in group[:5]),
                remedy=remedy,
            )
    if not unread:
        yield ok("files", "everything that was asked for could be read")
