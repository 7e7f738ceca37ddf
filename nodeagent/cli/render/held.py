"""What holds: wanted and actual CPUs of each process, its memory, since when and by whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodeagent.cli.planned import Planned
from nodeagent.cli.render.flow import columns, say
from nodeagent.cli.render.placement import Json, journal_json, placement_json
from nodeagent.cli.render.undone import since
from nodeagent.cli.render.words import short
from nodeagent.errors import visible
from nodeagent.model.actions import JournalEntry
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import HOLDING, Held
from nodeagent.model.words import many

if TYPE_CHECKING:
    from rich.console import Console

NAMED = 4
"""Processes of which the same is said, by name; the rest are counted."""
UNFOLDED = 24
"""Processes that are shown each by itself; of more, those that are held are counted."""
WIDE, MEDIUM = 90, 60
"""Columns from which on the whole table, or its middle, fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One process of a placed workload (or a workload without one), with what is known of it."""

    held: Held
    comm: str = ""
    entry: JournalEntry | None = None
    """The newest act of ours on it; None: none, or the journal could not be read."""
    local: float | None = None
    """Share of its memory on the planned nodes, 0..1; None: not known."""
    why: str = ""
    """Why it is not held, in a sentence; empty: it is, or it has no process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What `place status` shows."""

    planned: Planned
    standings: tuple[Standing, ...]
    notes: tuple[str, ...] = ()
    """What could not be seen, and why."""


def status_json(report: Report) -> Json:
    """placement/v1 with what holds: `held`, and what can be undone: `journal`."""
    return {
        **placement_json(report.planned),
        "held": [_row_json(s) for s in report.standings],
        "journal": journal_json(report.planned.journal),
        "unseen": list(report.notes),
    }


def _row_json(standing: Standing) -> Json:
    row, entry = standing.held, standing.entry
    return {
        "workload": row.workload,
        "kind": row.kind,
        "pid": row.pid,
        "sharing": row.sharing,
        "cpus_before": _or_none(row.cpus_before),
        "cpus_planned": str(row.cpus_planned),
        "cpus_actual": _or_none(row.cpus_actual),
        "node_planned": row.node_planned,
        "ran_inside": row.ran_inside,
        "memory_local": standing.local,
        "held": row.held,
        "why": standing.why or None,
        "guard": row.guard or None,
        "compared": row.compared or None,
        "comm": standing.comm or None,
        "since_ns": None if entry is None else entry.at_ns,
        "by": None if entry is None else entry.by,
        "act": None if entry is None else entry.id,
    }


def _or_none(cpus: CpuSet | None) -> str | None:
    return None if cpus is None else str(cpus)


def headline(report: Report) -> str:
    """The answer in one sentence."""
    planned, here = (
        report.planned,
        "on this machine" if report.planned.recording is None else "there",
    )
    running = [s for s in report.standings if s.held.pid is not None]
    if not planned.file:
        if planned.journal:
            acts = many(len(planned.journal), "act")
            return f"{acts} of nodeagent can be undone; no workload file says what is wanted."
        if planned.journal is None:
            return "No workload file says what is wanted, and what is pinned could not be read."
        return "Nothing is pinned by nodeagent, and no workload file says what is wanted."
    total = len({s.held.workload for s in report.standings})
    if not running:
        none = f"none of {many(total, 'workload')} has a process {here}" if total else "none placed"
        return f"Nothing to hold: {none}{_pinned(planned)}."
    names = dict.fromkeys(s.held.workload for s in running)
    lost = dict.fromkeys(s.held.workload for s in running if not s.held.held)
    if not lost:
        what = "It is" if len(names) == 1 else "All are"
        waiting = total - len(names)
        rest = f"; {many(waiting, 'workload')} without a process" if waiting else ""
        return f"{what} held: {many(len(names), 'workload')}, {_processes(running)}{rest}."
    which = ", ".join(list(lost)[:4]) + (f" and {len(lost) - 4} more" if len(lost) > 4 else "")
    return f"Not held: {len(lost)} of {many(len(names), 'workload')} ({which}){_pinned(planned)}."


def _pinned(planned: Planned) -> str:
    return "; nothing is pinned by nodeagent" if planned.journal == () else ""


def _processes(running: Sequence[Standing]) -> str:
    return many(len(running), "process")


def print_status(out: Console, report: Report, *, unfold: bool = False) -> None:
    """The sentence, the table, why not, and what could not be seen."""
    from rich.text import Text

    planned = report.planned
    say(out, headline(report))
    shown, folded = report.standings, tuple[Standing, ...]()
    if len(shown) > UNFOLDED and not unfold:
        folded = tuple(s for s in shown if s.held.held)
        shown = tuple(s for s in shown if not s.held.held)
    if shown:
        out.print()
        if columns(out) >= MEDIUM:
            _table(out, shown)
        else:
            _stack(out, shown)
    for group in _by_kind(folded):
        _group(out, group)
    told: dict[str, list[Held]] = {}
    for standing in shown:
        for text in _told(standing):
            told.setdefault(text, []).append(standing.held)
    if told:
        out.print()
    for text, rows in told.items():
        say(out, (_whom(rows), "bold"), f": {visible(text)}", hang=4)
    if planned.placement.refused and not told:
        out.print()
    for each in planned.placement.refused:
        say(out, (each.workload, "bold"), f": refused, {each.reason}", hang=4)
    _others(out, report)
    notes = list(report.notes)
    if columns(out) < WIDE and any(s.entry is not None for s in shown):
        notes.append(f"SINCE and BY are shown from {WIDE} columns on; -o json has them")
    if notes:
        out.print()
    for note in notes:
        line = Text(f"note: {visible(note)}")
        say(out, (line.plain, "dim"), hang=6)


def _whom(rows: Sequence[Held]) -> str:
    """Of whom one sentence is said: `rank0 (71), rank1 (72) and 6 more`."""
    names = [r.workload + (f" ({r.pid})" if r.pid is not None else "") for r in rows[:NAMED]]
    more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    return ", ".join(names) + more


def _told(standing: Standing) -> list[str]:
    """Why it is not held; else what the guard did; and what came of the pin."""
    row = standing.held
    found = [standing.why or row.guard]
    if row.compared:
        found.append(f"before and after the pin: {row.compared}")
    return [text for text in found if text]


def _table(out: Console, shown: Sequence[Standing]) -> None:
    from rich.table import Table

    wide = columns(out) >= WIDE
    view = Table(box=None, pad_edge=False, width=None)
    heads = ["WORKLOAD", "PROCESS", "WANTED", "ACTUAL", "HELD", "LOCAL", "INSIDE"]
    heads += ["SINCE", "BY"] if wide else []
    right = {"LOCAL", "INSIDE"}
    for head in heads:
        view.add_column(head, overflow="fold", justify="right" if head in right else "left")
    for s in shown:
        row = s.held
        cells = [
            row.workload,
            "-" if row.pid is None else f"{visible(s.comm)} ({row.pid})",
            short(row.cpus_planned, 24),
            "-" if row.cpus_actual is None else short(row.cpus_actual, 24),
            _held(row),
            _percent(s.local),
            _percent(row.ran_inside),
        ]
        if wide:
            entry = s.entry
            cells += ["-", "-"] if entry is None else [since(entry.at_ns)[5:], visible(entry.by)]
        view.add_row(*cells, style=None if row.held or row.pid is None else "yellow")
    out.print(view, width=columns(out))


def _stack(out: Console, shown: Sequence[Standing]) -> None:
    """For a screen that no table fits."""
    for s in shown:
        row = s.held
        say(out, (row.workload, "bold"), f" {_held(row)}")
        if row.pid is not None:
            say(out, f"{visible(s.comm)} ({row.pid})", indent=2, hang=2)
        say(out, f"wanted {short(row.cpus_planned, 24)}", indent=2, hang=2)
        if row.cpus_actual is not None:
            say(out, f"actual {short(row.cpus_actual, 24)}", indent=2, hang=2)


def _held(row: Held) -> str:
    return "no process" if row.pid is None else "yes" if row.held else "NO"


def _percent(share: float | None) -> str:
    """Rounded down, so that only the whole is 100 %."""
    if share is None:
        return "-"
    tenths = int(share * 1000 + 1e-6)
    return "100 %" if tenths == 1000 else f"{tenths / 10:.1f} %"


def _by_kind(folded: Sequence[Standing]) -> list[list[Standing]]:
    groups: dict[tuple[str, int | None], list[Standing]] = {}
    for s in folded:
        groups.setdefault((s.held.kind, s.held.node_planned), []).append(s)
    return list(groups.values())


def _group(out: Console, group: Sequence[Standing]) -> None:
    first = group[0].held
    names = list(dict.fromkeys(s.held.workload for s in group))
    node = f" on node {first.node_planned}" if first.node_planned is not None else ""
    local = [s.local for s in group if s.local is not None]
    told = f", memory at least {_percent(min(local))} local" if local else ""
    span = names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]}"
    say(
        out,
        ("  = ", "green"),
        (f"{many(len(names), 'workload')} of kind {first.kind}", "bold"),
        f"{node} ({span}): {many(len(group), 'process')} held{told}",
        hang=6,
    )


def _others(out: Console, report: Report) -> None:
    """What is pinned beside the workloads that are wanted."""
    planned = report.planned
    shown = {s.held.pid for s in report.standings}
    alive = {(p.pid, p.start_time) for p in planned.processes}
    newest: Mapping[object, JournalEntry] = {
        (e.knob, e.subject) if e.knob else (e.pid, e.start_time): e
        for e in planned.journal or ()
        if e.knob or e.cpus
    }
    named = {s.held.workload for s in report.standings if s.held.pid is not None}
    rest = [
        e
        for e in newest.values()
        if (e.workload not in named if e.knob in HOLDING else e.knob or e.pid not in shown)
    ]
    if rest:
        out.print()
    for e in rest[:UNFOLDED]:
        at = f"since {since(e.at_ns)} by {visible(e.by)} (act {e.id})"
        if e.knob:
            whom = f" for workload {e.workload}" if e.workload else ""
            say(out, f"also set: {e.knob} {e.subject} to {e.value}{whom}, {at}", hang=4)
            continue
        ended = "" if (e.pid, e.start_time) in alive else ", which has ended"
        say(
            out,
            f"also pinned: workload {e.workload}, process {e.pid}{ended}, on CPU {short(e.cpus)} "
            f"{at}",
            hang=4,
        )
    if rest[UNFOLDED:]:
        say(out, f"also: {many(len(rest) - UNFOLDED, 'act')} more; -o json lists them")
