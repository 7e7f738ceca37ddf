"""`nodeagentctl place status`: what is wanted, what is, since when and by whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from nodeagent.cli.main import Invocation
from nodeagent.cli.place import all_option, housekeeping_option, workloads_option
from nodeagent.errors import NodeagentError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.memory import known_local, local_share
from nodeagent.model.placement import HOLDING, Held, Placed, ProcessState
from nodeagent.model.words import many

if TYPE_CHECKING:
    from nodeagent.cli.planned import Planned
    from nodeagent.cli.render.held import Report
    from nodeagent.model.actions import JournalEntry

MAX_EVENTS = 1000
QUIET = frozenset({"pin.done", "pin.adopted", "pin.applied"})
"""Events of a pin that say nothing is wrong with it."""


@click.command(
    epilog="\b\nExamples:  nodeagentctl place status\n           nodeagentctl place status --all\n"
    "           nodeagentctl -o json place status\n"
    "\b\nExit codes: 0 shown, 3 when nothing could be read",
    short_help="What holds: wanted and actual, memory, since when, by whom.",
)
@workloads_option
@housekeeping_option
@all_option
@click.option(
    "--memory",
    "exact",
    is_flag=True,
    help="LOCAL to the byte: reads numa_maps, for which a large process may stall.",
)
@click.pass_obj
def status(
    invocation: Invocation,
    file: str | None,
    housekeeping: str | None,
    unfold: bool,
    exact: bool,
) -> None:
    """Show wanted and actual CPUs of each process, and why one is not held.

    LOCAL: share of its memory on the planned nodes, by a sample of 4,096 pages. INSIDE: share of
    its run time on the planned CPUs since it was pinned, measured by the daemon. SINCE, BY: our
    newest act on it. Without a workload file: what is pinned, by the actor's journal (as root also
    without actor).
    """
    from nodeagent.cli.called import as_called, options
    from nodeagent.cli.output import console, emit_json
    from nodeagent.cli.planned import planned
    from nodeagent.cli.render.held import print_status, status_json

    found = planned(invocation, file, housekeeping, needed=False, memory=False)
    again = f"nodeagentctl place apply{options(file, housekeeping, None)}"
    report = _report(invocation, found, exact, as_called(again, invocation))
    if invocation.output == "table":
        print_status(console(), report, unfold=unfold)
    else:
        emit_json("placement", status_json(report))


def _report(invocation: Invocation, found: Planned, exact: bool, again: str) -> Report:
    from nodeagent.cli.render.held import Report, Standing
    from nodeagent.cli.render.placement import latest
    from nodeagent.place.held import held

    newest = latest(found.journal)
    entries: dict[int, JournalEntry] = {}
    for process in found.processes:
        entry = newest.get((process.pid, process.start_time))
        if entry is not None:
            entries[process.pid] = entry
    before = {e.pid: e.before for e in reversed(found.journal or ()) if e.cpus}
    rows = held(found.placement, found.processes, {p: b for p, b in before.items() if p in entries})
    by_pid = {p.pid: p for p in found.processes}
    # Of a unit or a container it is one act for all that is in it.
    by_group = {e.workload: e for e in found.journal or () if e.knob in HOLDING}
    daemon, notes = _daemon(invocation, rows)
    local, more = _memory(found, rows, daemon, exact)
    notes += more
    standings = []
    for row in rows:
        mine = by_pid.get(row.pid) if row.pid is not None else None
        told = daemon.get(row.pid) if row.pid is not None else None
        placed = found.placement.of(row.workload)
        entry = (entries.get(row.pid) or by_group.get(row.workload)) if row.pid else None
        standings.append(
            Standing(
                held=row if told is None else told.row(row),
                comm=mine.comm if mine is not None else "",
                entry=entry,
                local=local.get(row.pid) if row.pid is not None else None,
                why=_why(found, placed, mine, entry, told, again),
            )
        )
    if found.journal is None and found.recording is None:
        notes.append(f"since when and by whom is not known: {found.journal_reason}")
    if found.standing.frozen is not None:
        notes.append(f"frozen: nothing is changed, undo included: {found.standing.frozen}")
    if not found.file and found.journal:
        notes.append("no workload file is named, so this is what is pinned, not what is wanted")
    return Report(planned=found, standings=tuple(standings), notes=tuple(notes))


class _Told:
    """What the daemon knows of one process."""

    def __init__(self, held: Held | None, event: str) -> None:
        self.held = held
        self.event = event

    def row(self, row: Held) -> Held:
        """The row, with where it really ran, where that was measured for this very plan."""
        from dataclasses import replace

        if self.held is None or self.held.cpus_planned != row.cpus_planned:
            return row
        told = self.held
        return replace(
            row,
            ran_inside=told.ran_inside,
            guard=told.guard,
            compared=told.compared,
            memory_local=told.memory_local,
        )


def _daemon(invocation: Invocation, rows: Sequence[Held]) -> tuple[dict[int, _Told], list[str]]:
    """By pid what the daemon measured and last said; and what it could not be asked for."""
    if invocation.host is not None or not any(r.pid is not None for r in rows):
        return {}, []
    from nodeagent.cli.status import node_client
    from nodeagent.cli.workloads import api_socket

    try:
        with node_client(api_socket(invocation)) as client:
            _, held = client.placements()
            events = client.events(limit=MAX_EVENTS, newest=True)
    except NodeagentError as error:
        return {}, [f"where they ran since (INSIDE) is measured by the daemon: {error}"]
    last: dict[str, str] = {}
    for event in events:
        if event.kind.startswith("pin."):
            last[event.subject] = "" if event.kind in QUIET else event.message
    theirs = {h.pid: h for h in held if h.pid is not None}
    found = {}
    for row in rows:
        if row.pid is not None:
            said = last.get(f"{row.workload} pid {row.pid}") or last.get(row.workload, "")
            found[row.pid] = _Told(theirs.get(row.pid), said)
    return found, []


def _memory(
    found: Planned, rows: Sequence[Held], daemon: dict[int, _Told], exact: bool
) -> tuple[dict[int, float], list[str]]:
    """Share of each process's memory on its planned nodes: known without a look, sampled (here,
    else by the daemon), or read to the byte."""
    wanted: dict[int, CpuSet] = {}
    for row in rows:
        placed = found.placement.of(row.workload)
        if row.pid is not None and placed is not None and placed.mems:
            wanted[row.pid] = placed.mems
    if not wanted:
        return {}, []
    if found.recording is not None:
        return {}, ["where memory lies (LOCAL) is not in the recording"]
    having = [n.id for n in found.topology.nodes if n.memory_bytes]
    local = {p: share for p, m in wanted.items() if (share := known_local(m, having)) is not None}
    open_ = sorted(wanted.keys() - local.keys())
    if not open_:
        return local, []
    if exact:
        from nodeagent.discover.engines import memory_by_node

        summed, reason = memory_by_node(open_)
        by_node = {pid: dict(pairs) for pid, pairs in summed.items()}
    else:
        from nodeagent.discover.locality import sampled

        by_node, reason = sampled(open_)
    for pid in open_:
        share = local_share(by_node.get(pid, {}), wanted[pid])
        told = daemon[pid].held if pid in daemon else None
        if share is None and told is not None:
            share = told.memory_local
        if share is not None:
            local[pid] = share
    missing = [pid for pid in open_ if pid not in local]
    if missing:
        why = reason or "no right to look into them; be root"
        return local, [f"where the memory of {many(len(missing), 'process')} lies: {why}"]
    return local, []


def _why(
    found: Planned,
    placed: Placed | None,
    process: ProcessState | None,
    entry: JournalEntry | None,
    told: _Told | None,
    again: str,
) -> str:
    """Why a process is not held; "": it is."""
    from nodeagent.place.roles import outside

    if placed is None or process is None:
        return ""
    stray = outside(placed, process)
    if not stray and process.threads:
        return ""
    if not process.threads:
        return "its threads could not be read"
    on = CpuSet.of(c for t in stray for c in t.cpus)
    said = f"{len(stray)} of {many(len(process.threads), 'thread')} may run on CPU {on}"
    if told is not None and told.held is not None and told.held.guard:
        # While frozen it could not be done.
        then = f"; to pin it again: {again}" if found.standing.frozen is None else ""
        return f"{said}; {told.held.guard}{then}"
    if told is not None and told.event:
        return f"{said}; the daemon says: {told.event}"
    if found.recording is not None:
        return f"{said} in the recording"
    if found.journal is None:
        return said
    if entry is None:
        if found.standing.frozen is not None:
            return f"{said}; nodeagent has not pinned it, and nothing is changed now: frozen"
        return f"{said}; nodeagent has not pinned it ({again})"
    put = entry.value if entry.knob else entry.cpus
    return f"{said}; act {entry.id} had put it on CPU {put}, and somebody moved it since"
