"""What became of each act, as it comes, and what was done in all."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from nodeagent.cli.acts import Acted
from nodeagent.cli.planned import Planned
from nodeagent.cli.render.flow import say
from nodeagent.cli.render.hostplan import by_hand
from nodeagent.errors import visible
from nodeagent.model.placement import Action, ActionResult, Outcome, SetValue
from nodeagent.model.words import many

if TYPE_CHECKING:
    from rich.console import Console

OUTCOME_STYLE = {
    Outcome.DONE: "green",
    Outcome.GONE: "dim",
    Outcome.REFUSED: "yellow",
    Outcome.REVERTED: "yellow",
    Outcome.FAILED: "bold red",
}
_WIDEST = max(len(o) for o in Outcome)


class Progress:
    """A line for each act on `out` (None: none), and a counter on stderr where that is a terminal.

    Whoever stops listening does not stop the acts.
    """

    def __init__(self, out: Console | None, total: int) -> None:
        self._out = out
        self._total = total
        self._count = 0
        self._live = sys.stderr.isatty() and total > 0
        self._show()

    def done(self, action: Action, result: ActionResult) -> None:
        """One act more."""
        self._count += 1
        self._clear()
        if self._out is not None:
            try:
                print_outcome(self._out, action.workload, result.outcome, result.message)
                sys.stdout.flush()
            except OSError:
                # The reader has gone; what is being done goes on, and its exit code tells.
                self._out = None
        self._show()

    def moving(self, words: str) -> None:
        """How far the memory of the act in hand is."""
        self._clear()
        self._write(f"{self._count + 1} of {many(self._total, 'act')}: {words}")

    def close(self) -> None:
        """The counter goes away."""
        self._clear()
        self._live = False

    def _show(self) -> None:
        self._write(f"{min(self._count, self._total)} of {many(self._total, 'act')} done")

    def _clear(self) -> None:
        self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        if self._live:
            with contextlib.suppress(OSError):
                sys.stderr.write(text)
                sys.stderr.flush()


def print_outcome(out: Console, workload: str, outcome: Outcome, message: str) -> None:
    """`  done      rank0  python (4711), 12 threads: on 1-8`."""
    say(
        out,
        (f"{outcome:{_WIDEST}}", OUTCOME_STYLE[outcome]),
        "  ",
        (workload or "this host", "bold"),
        f"  {visible(message)}",
        indent=2,
        hang=_WIDEST + 2,
    )


def summary(found: Planned, acted: Acted, *, again: str = " --yes") -> list[str]:
    """What was done, what was not, and what to do about it; `again`: options of the next apply."""
    left_over = [f"{said}." for said in (by_hand(found.host),) if said]
    if not found.actions:
        if found.placement.refused and not found.placement.placed:
            return ["Nothing was done: every workload is refused."]
        return ["Nothing to do: everything that runs is where it belongs.", *left_over]
    outcomes = [r.outcome for _, r in acted.results]
    words = {
        Outcome.DONE: "done and read back",
        Outcome.GONE: "gone (ended meanwhile)",
        Outcome.REFUSED: "refused",
        Outcome.REVERTED: "put back",
        Outcome.FAILED: "FAILED",
    }
    parts = [f"{outcomes.count(o)} {text}" for o, text in words.items() if o in outcomes]
    if acted.not_tried:
        parts.append(f"{len(acted.not_tried)} not tried")
    lines = [f"Applied: {', '.join(parts)}."]
    if acted.stopped:
        left = list(dict.fromkeys(_whom(a) for a in acted.not_tried))
        whom = ", ".join(left[:4]) + (f" and {len(left) - 4} more" if len(left) > 4 else "")
        rest = f"; not tried: {whom}" if left else ""
        lines.append(f"Stopped: {visible(acted.stopped)}{rest}.")
        if "frozen" in acted.stopped:
            lines.append(f"When the freeze is over: nodeagentctl place apply{again}")
    if Outcome.FAILED in outcomes:
        lines.append("Look at nodeagentctl place status, then nodeagentctl undo --plan.")
    elif Outcome.DONE in outcomes:
        lines.append("Undo it: nodeagentctl undo (undo --plan shows what that would do).")
    return lines + left_over


def _whom(action: Action) -> str:
    if isinstance(action, SetValue) and not action.workload:
        return f"{action.knob} {action.subject}"
    return action.workload
