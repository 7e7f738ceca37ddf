"""Whose work a change undoes, in a line."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nodeagent.cli.render.flow import say
from nodeagent.cli.render.words import short
from nodeagent.errors import ParseError, visible
from nodeagent.model.actions import JournalEntry
from nodeagent.model.cpuset import CpuSet
from nodeagent.place.changes import Change

if TYPE_CHECKING:
    from rich.console import Console

INDENT = 10


def print_undoes(out: Console, change: Change, unit: str) -> None:
    """Whose work a change undoes; nothing where it undoes none. `unit`: `CPU ` or nothing."""
    entry = change.replaced
    if entry is None:
        if change.foreign:
            say(
                out,
                (f"undoes {unit}{brief(change.before)}, which nodeagent did not set", "dim"),
                indent=INDENT,
                hang=2,
            )
        return
    set_to = entry.value if entry.knob else str(entry.cpus)
    said = f"undoes act {entry.id}: {unit}{brief(set_to)}, set {_by(entry)}"
    if change.foreign:
        said = (
            f"undoes somebody's change to {unit}{brief(change.before)}: act {entry.id} had set "
            f"{unit}{brief(set_to)} {_by(entry)}"
        )
    say(out, (said, "dim"), indent=INDENT, hang=2)


def _by(entry: JournalEntry) -> str:
    why = f" ({visible(entry.why)})" if entry.why else ""
    return f"{since(entry.at_ns)} by {visible(entry.by)}{why}"


def since(at_ns: int) -> str:
    """CLOCK_REALTIME nanoseconds as this machine's wall clock has it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ns / 1e9))


def brief(text: str) -> str:
    """A value for the eye: a cpulist as `short` has it, other text cut."""
    if len(text) <= 48:
        return text
    try:
        return short(CpuSet.parse(text))
    except ParseError:
        return text[:45] + "..."
