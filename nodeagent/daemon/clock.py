"""The wall clock set back: what is dated later than now is dated now, and the turn goes on. Pure.

Times are compared with those of the actor's journal, which are wall clock. Left as they were, the
guard would take every reading for older than its pins, and be blind for as long as the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nodeagent.daemon.authors import Kept
from nodeagent.daemon.fold import Fold, Said
from nodeagent.daemon.guard import Guard, Pin, ProcessKey
from nodeagent.daemon.hoststate import Key, Set
from nodeagent.daemon.links import event
from nodeagent.daemon.state import RETRY_NS, Seen, State
from nodeagent.model.event import Event, Severity
from nodeagent.place.beforeafter import Tracks

SAID_NS = 1_000_000_000
"""From this step on it is told: a smaller one is what a time service does all day."""


def followed(state: State, now_ns: int, events: list[Event]) -> State:
    """The state for a turn at `now_ns`. What a person decided keeps its date: it must not seem
    older than an act that was made before it."""
    back_ns = state.now_ns - now_ns
    state = replace(state, now_ns=now_ns)
    if back_ns <= 0:
        return state
    if back_ns >= SAID_NS:
        events.append(
            event(
                "clock.back",
                "clock",
                Severity.WARNING,
                f"the clock was set back by {back_ns / 1e9:.0f} s: comparisons of before and after "
                "begin anew",
                now_ns,
                "timedatectl status; chronyc tracking",
            )
        )
    return replace(
        state,
        journal_ns=min(state.journal_ns, now_ns),
        guard=_guard(state.guard, now_ns),
        values=_values(state.values, now_ns),
        failures={
            k: replace(f, retry_ns=min(f.retry_ns, now_ns + RETRY_NS))
            for k, f in state.failures.items()
        },
        fold=Fold({k: _said(s, now_ns) for k, s in state.fold.said.items()}),
        authors=_authors(state.authors, now_ns),
        tracks=Tracks(),
    )


def not_later(seen: Seen, now_ns: int) -> Seen:
    """The same without a journal that was read before the step, which is soon read again, and with
    what was done before it done now."""
    journal = seen.journal
    return replace(
        seen,
        journal=None if journal is not None and journal.at_ns > now_ns else journal,
        done=tuple(replace(d, at_ns=min(d.at_ns, now_ns)) for d in seen.done),
    )


def _guard(guard: Guard, now_ns: int) -> Guard:
    pins: dict[ProcessKey, Pin] = {
        key: replace(
            pin, at_ns=min(pin.at_ns, now_ns - 1), suspect_ns=min(pin.suspect_ns, now_ns - 1)
        )
        for key, pin in guard.pins.items()
    }
    return replace(guard, pins=pins)


def _values(values: Mapping[Key, Set], now_ns: int) -> dict[Key, Set]:
    return {
        key: replace(
            one, at_ns=min(one.at_ns, now_ns - 1), suspect_ns=min(one.suspect_ns, now_ns - 1)
        )
        for key, one in values.items()
    }


def _authors(kept: Kept, now_ns: int) -> Kept:
    return {
        pid: tuple(
            replace(a, author=replace(a.author, at_ns=min(a.author.at_ns, now_ns))) for a in asked
        )
        for pid, asked in kept.items()
    }


def _said(said: Said, now_ns: int) -> Said:
    return Said(min(said.at_ns, now_ns), said.held, said.last)
