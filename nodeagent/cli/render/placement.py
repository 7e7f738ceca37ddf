"""nodeagent.placement/v1: a plan, what an apply or an undo did, and what holds, as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nodeagent.cli.planned import Planned
from nodeagent.cli.render.hostplan import host_json, irqs_json
from nodeagent.cli.render.rows import rows
from nodeagent.model.actions import JournalEntry, Result
from nodeagent.model.placement import (
    Action,
    ActionResult,
    Consent,
    MigrateMemory,
    MoveToCpuset,
    Placed,
    ProcessState,
    SetAffinity,
    SetValue,
    consent_of,
)
from nodeagent.place.changes import Change
from nodeagent.place.moves import Move
from nodeagent.place.roles import seats

Json = dict[str, object]


def placement_json(
    planned: Planned,
    results: Sequence[tuple[Action, ActionResult]] | None = None,
    not_tried: Sequence[Action] = (),
) -> Json:
    """Body of nodeagent.placement/v1. `results`: of an apply, one for each act that was tried."""
    found: list[Json] = []
    for row in rows(planned):
        found.extend(_row(row.placed, p) for p in row.processes)
        if not row.processes:
            found.append(_row(row.placed, None))
    body: Json = {
        "placements": found,
        "irqs": irqs_json(planned.host),
        "host": host_json(planned.host),
        "refused": [
            {"workload": r.workload, "reason": r.reason, "would_fit_if": r.would_fit_if}
            for r in planned.placement.refused
        ],
        "actions": [change_json(c) for c in planned.changes],
        "housekeeping": str(planned.placement.housekeeping),
        "notes": list(planned.placement.notes),
        "memory": [_move_json(m) for m in planned.moves],
        "consent": _consent(planned),
        "frozen": planned.standing.frozen,
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
        body["not_tried"] = [action_json(a) for a in not_tried]
    return body


def undo_json(results: Sequence[Result]) -> Json:
    """Body of nodeagent.placement/v1 of an undo: nothing is planned, `results` say what was
    done."""
    return {
        **_EMPTY,
        "results": [
            {
                "do": "undo",
                "workload": r.workload,
                "pid": r.pid or None,
                "outcome": r.outcome,
                "message": r.message,
                "read_back": r.read_back,
                "journal_id": r.journal_id,
            }
            for r in results
        ],
    }


def undo_plan_json(entries: Sequence[tuple[JournalEntry, str, str]]) -> Json:
    """Body of nodeagent.placement/v1 of an undo that is only looked at: (entry, what would come of
    it, the sentence) each."""
    return {
        **_EMPTY,
        "would_undo": [
            {**entry_json(entry), "outcome": outcome, "message": message}
            for entry, outcome, message in entries
        ],
    }


_EMPTY: Json = {"placements": [], "irqs": [], "refused": [], "actions": []}


def _row(placed: Placed, process: ProcessState | None) -> Json:
    threads = process.threads if process is not None else ()
    where = seats(placed, process) if process is not None else {}
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
                "role": where[t.tid].role,
                "cpus": str(t.cpus),
                "cpus_planned": str(where[t.tid].cpus),
            }
            for t in threads
        ],
        "cpus": str(placed.cpus),
        "mems": str(placed.mems),
        "node": placed.node,
        "gpu": placed.gpu,
        "roles": [{"role": r.role.name, "cpus": str(r.cpus)} for r in placed.roles],
        "memory_bytes": placed.memory_bytes,
        "reasons": list(placed.reasons),
    }


def _move_json(move: Move) -> Json:
    """Memory of a process that lies elsewhere; `reason`: why it is not moved."""
    return {
        "workload": move.workload,
        "pid": move.pid,
        "bytes": move.bytes,
        "to": None if move.action is None else move.action.to,
        "seconds": move.seconds,
        "how": move.how or None,
        "reason": move.reason or None,
    }


def _consent(planned: Planned) -> Json:
    allow = planned.standing.allow
    wanted = {consent_of(a) for a in planned.actions}
    return {
        "needed": [c for c in Consent if c in wanted],
        "allowed": None if allow is None else [c for c in Consent if c in allow],
        "source": planned.standing.source,
    }


def change_json(change: Change) -> Json:
    """One action, and what it undoes."""
    return {
        **action_json(change.action),
        "consent": change.consent,
        "undoes": None if change.replaced is None else entry_json(change.replaced),
        "set_by_somebody_else": change.foreign,
    }


def action_json(action: Action) -> Json:
    """One action."""
    match action:
        case SetValue():
            return {
                "do": "set_value",
                "workload": action.workload,
                "knob": action.knob,
                "subject": action.subject,
                "value": action.value,
                "before": action.before,
            }
        case MigrateMemory():
            return {
                "do": "migrate_memory",
                "workload": action.workload,
                "pid": action.target.pid,
                "mems": str(action.nodes),
                "to": action.to,
                "before": action.before,
                "stall_ms": action.stall_ms,
            }
        case SetAffinity():
            return {
                "do": "set_affinity",
                "workload": action.workload,
                "pid": action.target.pid,
                "tids": list(action.tids) or None,
                "cpus": str(action.cpus),
                "before": str(action.before),
                "cpuset": None,
            }
        case MoveToCpuset():
            return {
                "do": "move_to_cpuset",
                "workload": action.workload,
                "pid": action.target.pid,
                "cpus": str(action.cpus),
                "mems": str(action.mems),
                "before": action.before,
                "cpuset": action.cpuset,
            }


def entry_json(entry: JournalEntry) -> Json:
    """One act that can be undone."""
    return {
        "id": entry.id,
        "do": entry.act,
        "state": entry.state,
        "workload": entry.workload,
        "pid": entry.pid or None,
        "before": str(entry.before),
        "cpus": None if entry.knob else str(entry.cpus),
        "cpuset": entry.cpuset or None,
        "knob": entry.knob or None,
        "subject": entry.subject or None,
        "value": entry.value if entry.knob else None,
        "value_before": entry.value_before if entry.knob else None,
        "at_ns": entry.at_ns,
        "by": entry.by,
        "why": entry.why,
    }


def journal_json(journal: Sequence[JournalEntry] | None) -> list[Json] | None:
    """What can be undone; None: it could not be read."""
    return None if journal is None else [entry_json(e) for e in journal]


def latest(journal: Sequence[JournalEntry] | None) -> Mapping[tuple[int, int], JournalEntry]:
    """The newest act on each process that can be undone."""
    return {(e.pid, e.start_time): e for e in journal or () if e.cpus}
