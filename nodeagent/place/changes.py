"""What a plan's actions would change, from what to what, and whose work that undoes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from nodeagent.model.actions import JournalEntry
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import (
    HOLDING,
    PARTITION_ROOT,
    Action,
    Consent,
    Knob,
    MigrateMemory,
    MoveToCpuset,
    Placement,
    ProcessAction,
    ProcessState,
    SetAffinity,
    SetValue,
    consent_of,
)
from nodeagent.model.words import many
from nodeagent.place import isolate
from nodeagent.place.match import matching
from nodeagent.place.roles import outside, seats


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One action, in words. `before` and `after` in the words of what is changed, `unit` goes
    before each."""

    action: Action
    workload: str
    """Empty: the host as a whole."""
    what: str
    before: str
    after: str
    how: str
    consent: Consent
    unit: str = ""
    replaced: JournalEntry | None = None
    """The act of ours that is changed again; None: none is."""
    foreign: bool = False
    """What is there now was set by somebody else, as far as the journal knows."""
    pid: int | None = None


def changes(
    actions: Sequence[Action],
    placement: Placement,
    processes: Sequence[ProcessState],
    online: CpuSet,
    journal: Sequence[JournalEntry] | None,
) -> tuple[Change, ...]:
    """One for each action, in its order. `journal` None: it could not be read, and nothing is
    said about whose work is undone."""
    by_pid = {p.pid: p for p in processes}
    newest: dict[tuple[int, int] | tuple[str, str], JournalEntry] = {}
    for entry in journal or ():
        if entry.cpus or entry.knob:
            newest[_subject(entry)] = entry
    found = []
    for action in actions:
        if isinstance(action, SetValue):
            former = newest.get((action.knob, action.subject))
            if action.knob in HOLDING:
                found.append(_hold(action, placement, processes, former))
            else:
                found.append(_value(action, former))
        elif isinstance(action, MigrateMemory):
            found.append(_memory(action, by_pid.get(action.target.pid)))
        else:
            key = action.target.pid, action.target.start_time
            process = by_pid.get(action.target.pid)
            found.append(
                _process(action, placement, process, online, newest.get(key), journal is not None)
            )
    return tuple(found)


def _subject(entry: JournalEntry) -> tuple[int, int] | tuple[str, str]:
    return (entry.knob, entry.subject) if entry.knob else (entry.pid, entry.start_time)


def _value(action: SetValue, entry: JournalEntry | None) -> Change:
    what, before = f"{action.knob} {action.subject}", action.before
    if action.knob is Knob.PARTITION:
        what = f"isolated partition {isolate.path_of(action.subject)}"
        before = "none" if before == isolate.MEMBER else before
    return Change(
        action=action,
        workload=action.workload,
        what=what,
        before=before,
        after=action.value,
        how="made before a process is moved into it" if action.knob is Knob.PARTITION else "",
        consent=consent_of(action),
        unit="CPU " if action.knob is Knob.PARTITION else "",
        replaced=entry,
        foreign=entry is not None and entry.value != action.before,
    )


def _hold(
    action: SetValue,
    placement: Placement,
    processes: Sequence[ProcessState],
    entry: JournalEntry | None,
) -> Change:
    """A unit's or a container's, for all of its workload's processes."""
    placed = placement.of(action.workload)
    mine = matching(placed.match, processes) if placed is not None else ()
    stray = [p for p in mine if placed is not None and outside(placed, p)]
    before = CpuSet()
    for process in stray:
        for thread in process.threads:
            before |= thread.cpus
    threads = sum(len(p.threads) for p in stray)
    by = "AllowedCPUs= of its unit"
    if action.knob is Knob.CONTAINER_CPUS:
        by = f"{action.subject.partition(':')[0]} update of its container"
    some = f" of {many(len(stray), 'process')}" if len(stray) > 1 else ""
    return Change(
        action=action,
        workload=action.workload,
        what=_named(action, stray),
        before=str(before) or "unknown",
        after=action.value,
        how=f"{many(threads, 'thread')}{some} by {by}",
        unit="CPU ",
        consent=consent_of(action),
        replaced=entry,
        foreign=entry is not None and not before <= CpuSet.parse(entry.value),
        pid=stray[0].pid if stray else None,
    )


def _named(action: SetValue, stray: Sequence[ProcessState]) -> str:
    if action.knob is Knob.CONTAINER_CPUS and stray and stray[0].container is not None:
        box = stray[0].container
        return f"container {box.name or box.id[:12]}"
    return action.subject


def _memory(action: MigrateMemory, process: ProcessState | None) -> Change:
    comm = process.comm if process is not None else "process"
    return Change(
        action=action,
        workload=action.workload,
        what=f"{comm} ({action.target.pid})",
        before=action.before,
        after=str(action.to),
        how="its memory, in steps",
        consent=consent_of(action),
        unit="node ",
        pid=action.target.pid,
    )


def _process(
    action: ProcessAction,
    placement: Placement,
    process: ProcessState | None,
    online: CpuSet,
    entry: JournalEntry | None,
    known: bool,
) -> Change:
    comm = process.comm if process is not None else "process"
    before = _now(action, placement, process)
    ours = entry is not None and before <= entry.cpus
    return Change(
        action=action,
        workload=action.workload,
        what=f"{comm} ({action.target.pid})",
        before=str(before) or "unknown",
        after=str(action.cpus),
        how=_how(action, placement, process),
        unit="CPU ",
        consent=consent_of(action),
        replaced=entry,
        foreign=known and bool(before) and not ours and (entry is not None or before < online),
        pid=action.target.pid,
    )


def _now(action: ProcessAction, placement: Placement, process: ProcessState | None) -> CpuSet:
    """Where the threads are that it moves."""
    if isinstance(action, SetAffinity):
        return action.before
    found = CpuSet()
    placed = placement.of(action.workload)
    if process is not None:
        for thread in outside(placed, process) if placed is not None else process.threads:
            found |= thread.cpus
        if not found:
            # On its CPUs already, and not in the cpuset yet.
            for thread in process.threads:
                found |= thread.cpus
    return found


def _how(action: ProcessAction, placement: Placement, process: ProcessState | None) -> str:
    placed = placement.of(action.workload)
    total = len(process.threads) if process is not None else 0
    match action:
        case MoveToCpuset():
            kind = "partition" if action.cpuset.startswith(PARTITION_ROOT) else "cpuset"
            return f"{many(total, 'thread')} into {kind} {action.cpuset}"
        case SetAffinity(tids=tids) if tids:
            names: list[str] = []
            if process is not None and placed is not None and placed.roles:
                where = seats(placed, process)
                names = list(dict.fromkeys(where[t].role for t in tids if t in where))
            roles = f" ({', '.join(names)})" if names else ""
            return f"{len(tids)} of {many(total, 'thread')}{roles} by affinity"
        case SetAffinity():
            moved = total
            if process is not None and placed is not None:
                moved = len(outside(placed, process))
            return f"{moved} of {many(total, 'thread')} by affinity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What may be done on this machine now, as far as it is known."""

    allow: frozenset[Consent] | None
    """Classes the actor acts in; None: nobody could tell."""
    source: str
    """Who told: `the actor`, or the configuration's path; else why nobody could."""
    frozen: str | None = None
    """Why nothing may be changed just now."""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """Knob -> why the actor may not set it, whatever `allow` says."""
    barred: bool = False
    """Whoever asks has no right to speak to the actor."""


UNKNOWN_STANDING = Standing(allow=None, source="this is a recorded machine")


def needed(actions: Sequence[Action]) -> tuple[Consent, ...]:
    """The classes that the actions need, in the order of the enumeration."""
    wanted = {consent_of(a) for a in actions}
    return tuple(c for c in Consent if c in wanted)


def allow_line(allow: AbstractSet[Consent], wanted: Sequence[Consent]) -> str:
    """The line of `[pin]` that allows those too."""
    names = [c for c in Consent if c in allow or c in wanted]
    return "allow = [" + ", ".join(f'"{c}"' for c in names) + "]"


def by_workload(found: Sequence[Change]) -> Mapping[str, tuple[Change, ...]]:
    """In their order; the host's own under the empty name."""
    out: dict[str, list[Change]] = {}
    for change in found:
        out.setdefault(change.workload, []).append(change)
    return {name: tuple(each) for name, each in out.items()}
