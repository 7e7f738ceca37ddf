"""What an undo would do, before it is done: the journal beside what is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nodeagent.model.actions import JournalEntry
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Outcome, ProcessState, ThreadState
from nodeagent.model.words import many


@dataclass(frozen=True, slots=True, kw_only=True)
class Undoing:
    """One act that would be undone: done, gone (nothing to write back) or refused."""

    entry: JournalEntry
    outcome: Outcome
    message: str
    left: bool = False
    """Nothing of it stands any more: what somebody did later is left."""


def would_undo(
    wanted: Sequence[JournalEntry],
    journal: Sequence[JournalEntry],
    processes: Sequence[ProcessState],
) -> tuple[Undoing, ...]:
    """One for each wanted entry, newest first as they come. The actor looks again when it acts,
    at each thread's own former mask."""
    by_pid = {p.pid: p for p in processes}
    chosen = {e.id for e in wanted}
    return tuple(_one(e, journal, chosen, by_pid.get(e.pid)) for e in wanted)


def _one(
    entry: JournalEntry,
    journal: Sequence[JournalEntry],
    chosen: set[int],
    process: ProcessState | None,
) -> Undoing:
    later = next((e for e in reversed(journal) if e.id > entry.id and _same(e, entry)), None)
    if later is not None and later.id not in chosen:
        return Undoing(
            entry=entry,
            outcome=Outcome.REFUSED,
            message=f"act {later.id} changed the same later; undo it first",
        )
    if not entry.knob and not entry.cpus:
        return Undoing(
            entry=entry,
            outcome=Outcome.DONE,
            message=f"memory of process {entry.pid} was moved to node {entry.value or '?'}: undo "
            "leaves it there and closes the act",
            left=True,
        )
    if entry.knob:
        return Undoing(
            entry=entry,
            outcome=Outcome.DONE,
            message=f"{entry.knob} {entry.subject}: {entry.value or '(unset)'} -> "
            f"{entry.value_before or '(unset)'}, unless somebody changed it since",
        )
    if process is None or process.start_time != entry.start_time:
        other = f"; {process.comm} has its number now" if process is not None else ""
        return Undoing(
            entry=entry,
            outcome=Outcome.GONE,
            message=f"process {entry.pid} has ended{other}: nothing to write back",
        )
    name = f"{process.comm} ({process.pid})"
    if later is not None:
        # The newer ones are undone first, and most leave it where this one had put it.
        places = _after(
            [e for e in reversed(journal) if e.id > entry.id and _same(e, entry)], process
        )
        if places and not entry.cpuset and not any(p & entry.cpus for p in places):
            union = CpuSet.of(c for p in places for c in p)
            return Undoing(
                entry=entry,
                outcome=Outcome.DONE,
                message=f"{name} is then on CPU {union}, where somebody had set it after this act, "
                f"and would be left there (before this act: {entry.before})",
                left=True,
            )
        return Undoing(
            entry=entry,
            outcome=Outcome.DONE,
            message=f"{name}: then from CPU {entry.cpus} -> {entry.before}",
        )
    ours = [t for t in process.threads if t.cpus <= entry.cpus]
    theirs = [t for t in process.threads if not t.cpus <= entry.cpus]
    if not ours and theirs and not entry.cpuset:
        return Undoing(
            entry=entry,
            outcome=Outcome.DONE,
            message=f"{name} is on CPU {_union(theirs)} and not where this act had put it "
            f"({entry.cpus}): it would be left there",
            left=True,
        )
    out = f", out of {entry.cpuset}" if entry.cpuset else ""
    message = f"{name}: CPU {entry.cpus} -> {entry.before}, {many(len(ours), 'thread')}{out}"
    if theirs:
        were = "was" if len(theirs) == 1 else "were"
        message += (
            f"; {many(len(theirs), 'thread')} on CPU {_union(theirs)} {were} not put there by this "
            "act and would be left"
        )
    return Undoing(entry=entry, outcome=Outcome.DONE, message=message)


def _after(undone: Sequence[JournalEntry], process: ProcessState) -> list[CpuSet]:
    """Where its threads are when those acts, newest first, have been undone."""
    places = [t.cpus for t in process.threads]
    for act in undone:
        places = [act.before if p <= act.cpus else p for p in places]
    return places


def _same(later: JournalEntry, entry: JournalEntry) -> bool:
    """Whether both are about the same value or process (of which each may have other threads)."""
    if later.knob or entry.knob:
        return (later.knob, later.subject) == (entry.knob, entry.subject)
    if not (later.cpus and entry.cpus):
        return False
    return (later.pid, later.start_time) == (entry.pid, entry.start_time)


def _union(threads: Sequence[ThreadState]) -> CpuSet:
    return CpuSet.of(c for t in threads for c in t.cpus)
