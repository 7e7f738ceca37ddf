"""A placement as a diff for people and as nodeagent.placement/v1."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodeagent.cli.render.hostplan import host_json, irqs_json, print_host
from nodeagent.errors import visible
from nodeagent.model.actions import JournalEntry
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.hostplan import HostPlan
from nodeagent.model.placement import (
    Action,
    ActionResult,
    Consent,
    Held,
    MigrateMemory,
    MoveToCpuset,
    Outcome,
    Placed,
    Placement,
    ProcessAction,
    ProcessState,
    SetValue,
    subject_of,
)
from nodeagent.place.match import matching
from nodeagent.place.roles import inside

if TYPE_CHECKING:
    from rich.console import Console
    from rich.padding import Padding

    from nodeagent.model.topology import Topology

OUTCOME_STYLE = {
    Outcome.DONE: "green",
    Outcome.GONE: "dim",
    Outcome.REFUSED: "yellow",
    Outcome.REVERTED: "yellow",
    Outcome.FAILED: "bold red",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan and what it was made from. `journal` None: it could not be read, `journal_reason`
    says why."""

    topology: Topology
    placement: Placement
    processes: tuple[ProcessState, ...]
    actions: tuple[Action, ...]
    file: str
    journal: tuple[JournalEntry, ...] | None = None
    journal_reason: str = ""
    host: HostPlan = field(default_factory=HostPlan)
    allow: frozenset[Consent] = frozenset()
    """Classes whose acts are among `actions`."""


def role(process: ProcessState, tid: int) -> str:
    """What a thread is within its process, as far as its number says."""
    return "main" if tid == process.pid else "thread"


def counts(planned: Planned) -> tuple[int, int, int, int]:
    """(processes to change, processes in place, workloads waiting for a process, refused)."""
    change = len({subject_of(a) for a in planned.actions})
    place = waiting = 0
    for placed in planned.placement.placed:
        found = matching(placed.match, planned.processes)
        waiting += not found
        place += sum(all(inside(t.cpus, placed.cpus) for t in p.threads) for p in found)
    return change, place, waiting, len(planned.placement.refused)


def placement_json(
    planned: Planned, results: Sequence[tuple[Action, ActionResult]] | None = None
) -> dict[str, object]:
    """Body of nodeagent.placement/v1. `results`: of an apply, one for each action."""
    rows: list[dict[str, object]] = []
    for placed in planned.placement.placed:
        found = matching(placed.match, planned.processes)
        rows.extend(_row(placed, p) for p in found)
        if not found:
            rows.append(_row(placed, None))
    body: dict[str, object] = {
        "placements": rows,
        "irqs": irqs_json(planned.host),
        "host": host_json(planned.host),
        "refused": [
            {"workload": r.workload, "reason": r.reason, "would_fit_if": r.would_fit_if}
            for r in planned.placement.refused
        ],
        "actions": [action_json(a) for a in planned.actions],
        "housekeeping": str(planned.placement.housekeeping),
        "notes": list(planned.placement.notes),
    }
    if results is not None:
        body["results"] = [
            {
                **action_json(a),
                "outcome": r.outcome,
                "message": r.message,
                "read_back": r.read_back,
                "journal_id": r.journal_id,
            }
            for a, r in results
        ]
    return body


def _row(placed: Placed, process: ProcessState | None) -> dict[str, object]:
    threads = process.threads if process is not None else ()
    return {
        "workload": placed.workload,
        "kind": placed.kind,
        "unit": placed.unit,
        "sharing": placed.sharing,
        "pool": placed.pool,
        "pid": process.pid if process is not None else None,
        "threads": [
            {
                "tid": t.tid,
                "comm": t.comm,
                "role": role(process, t.tid) if process is not None else "thread",
                "cpus": str(t.cpus),
            }
            for t in threads
        ],
        "cpus": str(placed.cpus),
        "mems": str(placed.mems),
        "node": placed.node,
        "gpu": placed.gpu,
        "reasons": list(placed.reasons),
    }


def action_json(action: Action) -> dict[str, object]:
    """One action."""
    if isinstance(action, SetValue):
        return {
            "do": "set_value",
            "workload": action.workload,
            "knob": action.knob,
            "subject": action.subject,
            "value": action.value,
            "before": action.before,
        }
    if isinstance(action, MigrateMemory):
        return {
            "do": "migrate_memory",
            "workload": action.workload,
            "pid": action.target.pid,
            "mems": str(action.nodes),
            "to": action.to,
            "before": action.before,
            "stall_ms": action.stall_ms,
        }
    moves = isinstance(action, MoveToCpuset)
    return {
        "do": "move_to_cpuset" if moves else "set_affinity",
        "workload": action.workload,
        "pid": action.target.pid,
        "cpus": str(action.cpus),
        "before": str(action.before),
        "cpuset": action.cpuset if isinstance(action, MoveToCpuset) else None,
    }


def print_plan(out: Console, planned: Planned) -> None:
    """Like the diff of an infrastructure tool: ~ changes, = in place, ? no process, ! refused."""
    from rich.text import Text

    topology, placement = planned.topology, planned.placement
    nodes = len([n for n in topology.nodes if n.cpus]) or 1
    out.print(
        f"{planned.file} on {len(topology.online)} PUs, {nodes} NUMA "
        f"{'node' if nodes == 1 else 'nodes'}; housekeeping keeps CPU {placement.housekeeping}"
    )
    by_pid = {
        a.target.pid: a for a in planned.actions if not isinstance(a, SetValue | MigrateMemory)
    }
    for placed in placement.placed:
        found = matching(placed.match, planned.processes)
        changing = [p for p in found if p.pid in by_pid]
        mark, style = ("~", "yellow") if changing else ("=", "green") if found else ("?", "cyan")
        out.print()
        out.print(Text.assemble((f"  {mark} ", style), (placed.workload, "bold"), _what(placed)))
        for process in found:
            out.print(_process_line(placed, process, by_pid.get(process.pid)))
        if not found:
            out.print(f"      no process now; it goes to CPU {placed.cpus}")
        for reason in placed.reasons:
            out.print(_indented(f"because {reason}"), style="dim")
    for refused in placement.refused:
        out.print()
        out.print(Text.assemble(("  ! ", "bold red"), (refused.workload, "bold"), "  refused"))
        out.print(_indented(refused.reason))
        out.print(_indented(f"would fit if {refused.would_fit_if}"), style="dim")
    print_host(out, planned.host, planned.allow)
    if placement.notes:
        out.print()
    for text in placement.notes:
        out.print(f"note: {text}")


def _indented(text: str) -> Padding:
    from rich.padding import Padding

    return Padding(text, (0, 0, 0, 6), expand=False)


def _what(placed: Placed) -> str:
    where = f", node {placed.node}" if placed.node is not None else ""
    unit = f", unit {placed.unit}" if placed.unit else ""
    pool = f" (pool {placed.pool})" if placed.pool else ""
    return f"  {placed.kind}, {placed.sharing}{pool}{unit}{where}"


def _process_line(placed: Placed, process: ProcessState, action: ProcessAction | None) -> str:
    name = f"{visible(process.comm)} ({process.pid})"
    total = len(process.threads)
    if action is None:
        outside = sum(not inside(t.cpus, placed.cpus) for t in process.threads)
        if outside:
            return f"      {name}: {outside} of {_threads(total)} outside CPU {placed.cpus}"
        return f"      {name}: {_threads(total)} on CPU {placed.cpus}"
    now = CpuSet()
    for thread in process.threads:
        if not inside(thread.cpus, placed.cpus):
            now |= thread.cpus
    outside = sum(not inside(t.cpus, placed.cpus) for t in process.threads)
    if isinstance(action, MoveToCpuset):
        how = f"into cpuset {action.cpuset}"
    else:
        how = f"{outside} of {_threads(total)} by affinity"
    return f"      {name}: CPU {now} -> {placed.cpus}, {how}"


def _threads(count: int) -> str:
    return f"{count} thread" if count == 1 else f"{count} threads"


def plan_sentence(planned: Planned) -> str:
    """`Plan: ...`."""
    change, place, waiting, refused = counts(planned)
    return (
        f"Plan: {change} to change, {place} in place, {waiting} waiting for a process, "
        f"{refused} refused."
    )


def print_results(out: Console, results: Sequence[tuple[Action, ActionResult]]) -> None:
    """What became of each action."""
    from rich.text import Text

    for action, result in results:
        out.print(
            Text.assemble(
                (f"  {result.outcome:9}", OUTCOME_STYLE[result.outcome]),
                (action.workload, "bold"),
                f"  {result.message}",
            )
        )


def status_json(planned: Planned, rows: Sequence[Held]) -> dict[str, object]:
    """placement/v1 with what holds: `held`, and what can be undone: `journal`."""
    by_pid = {p.pid: p for p in planned.processes}
    body = placement_json(planned)
    body["held"] = [
        {
            "workload": r.workload,
            "kind": r.kind,
            "pid": r.pid,
            "sharing": r.sharing,
            "cpus_before": _or_none(r.cpus_before),
            "cpus_planned": str(r.cpus_planned),
            "cpus_actual": _or_none(r.cpus_actual),
            "node_planned": r.node_planned,
            "ran_inside": r.ran_inside,
            "held": r.held,
            "comm": by_pid[r.pid].comm if r.pid in by_pid else None,
        }
        for r in rows
    ]
    body["journal"] = None if planned.journal is None else [_entry_json(e) for e in planned.journal]
    return body


def _entry_json(entry: JournalEntry) -> dict[str, object]:
    return {
        "id": entry.id,
        "do": entry.act,
        "state": entry.state,
        "workload": entry.workload,
        "pid": entry.pid,
        "before": str(entry.before),
        "cpus": str(entry.cpus),
        "cpuset": entry.cpuset or None,
        "knob": entry.knob or None,
        "subject": entry.subject or None,
        "value": entry.value if entry.knob else None,
        "value_before": entry.value_before if entry.knob else None,
        "at_ns": entry.at_ns,
        "by": entry.by,
        "why": entry.why,
    }


def _or_none(cpus: CpuSet | None) -> str | None:
    return None if cpus is None else str(cpus)


def print_status(out: Console, planned: Planned, rows: Sequence[Held]) -> None:
    """Wanted, actual, before, since when and by whom, for each process."""
    from rich.table import Table

    latest: Mapping[int, JournalEntry] = {e.pid: e for e in planned.journal or () if e.cpus}
    view = Table(box=None, pad_edge=False)
    for column in ("WORKLOAD", "PROCESS", "WANTED", "ACTUAL", "BEFORE", "HELD", "SINCE", "BY"):
        view.add_column(column, overflow="fold")
    for row in rows:
        entry = latest.get(row.pid) if row.pid is not None else None
        held = "no process" if row.pid is None else "yes" if row.held else "NO"
        view.add_row(
            row.workload,
            "-" if row.pid is None else str(row.pid),
            str(row.cpus_planned),
            "-" if row.cpus_actual is None else str(row.cpus_actual),
            "-" if row.cpus_before is None else str(row.cpus_before),
            held,
            "-" if entry is None else _since(entry.at_ns),
            "-" if entry is None else entry.by,
            style=None if row.held or row.pid is None else "yellow",
        )
    if rows:
        out.print(view)
    shown = {row.pid for row in rows}
    for entry in planned.journal or ():
        if entry.knob:
            for_whom = f" for {entry.workload}" if entry.workload else ""
            out.print(
                f"also set{for_whom}: {entry.knob} {entry.subject} to {entry.value or 'none'}, was "
                f"{entry.value_before or 'none'}, since {_since(entry.at_ns)} by {entry.by}"
            )
    others = [e for e in planned.journal or () if e.pid not in shown and e.cpus]
    for entry in others:
        out.print(
            f"also pinned: workload {entry.workload}, process {entry.pid}, on CPU {entry.cpus} "
            f"since {_since(entry.at_ns)} by {entry.by}"
        )
    if not planned.file:
        if planned.journal == ():
            out.print("Nothing is pinned by nodeagent.")
        out.print("note: no workload file is named, so this is what is pinned, not what is wanted")
    if planned.journal is None:
        out.print(f"note: since when and by whom is not known: {planned.journal_reason}")


def _since(at_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ns / 1e9))
