"""What an undo would do, on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nodeagent.cli.render.flow import say
from nodeagent.cli.render.undone import since
from nodeagent.errors import visible
from nodeagent.model.placement import Outcome
from nodeagent.model.words import many
from nodeagent.place.undoing import Undoing

if TYPE_CHECKING:
    from rich.console import Console

MARK = {
    Outcome.DONE: ("~", "yellow"),
    Outcome.GONE: ("=", "dim"),
    Outcome.REFUSED: ("!", "bold red"),
}


def print_undo_plan(
    out: Console, found: Sequence[Undoing], nothing: str, *, frozen: str | None
) -> None:
    """An act a paragraph, and a sentence."""
    if not found:
        say(out, nothing)
        return
    for each in found:
        entry = each.entry
        mark, style = MARK[each.outcome]
        why = f" ({visible(entry.why)})" if entry.why else ""
        say(
            out,
            (f"  {mark} ", style),
            (f"act {entry.id}", "bold"),
            f"  {entry.workload or 'this host'}, made {since(entry.at_ns)} by "
            f"{visible(entry.by)}{why}",
            hang=6,
        )
        say(out, visible(each.message), indent=6, hang=2)
    outcomes = [w.outcome for w in found]
    left = sum(w.left for w in found)
    parts = [f"{outcomes.count(Outcome.DONE) - left} to put back"]
    if left:
        parts.append(f"{left} to leave as somebody set it")
    if Outcome.GONE in outcomes:
        parts.append(f"{outcomes.count(Outcome.GONE)} of ended processes to close")
    if Outcome.REFUSED in outcomes:
        parts.append(f"{outcomes.count(Outcome.REFUSED)} refused")
    out.print()
    say(out, f"Undo of {many(len(found), 'act')}: {', '.join(parts)}. Nothing was changed.")
    if frozen is not None:
        say(out, (f"Frozen: {visible(frozen)}", "yellow"), hang=4)
