"""A plan on the screen, like an infrastructure tool's diff: ~ changes, = in place, ? no process,
! refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nodeagent.cli.memory import move_line
from nodeagent.cli.planned import Planned
from nodeagent.cli.render import flow
from nodeagent.cli.render.flow import say
from nodeagent.cli.render.hostplan import print_host
from nodeagent.cli.render.rows import (
    UNFOLDED,
    Fold,
    Row,
    counts,
    folds,
    rows,
)
from nodeagent.cli.render.undone import brief, print_undoes
from nodeagent.cli.render.words import short, size
from nodeagent.errors import visible
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Consent, MigrateMemory, ProcessState, Refused, Sharing
from nodeagent.model.settings import DEFAULT_PATH
from nodeagent.model.words import many
from nodeagent.place.changes import Change, Standing, allow_line, needed
from nodeagent.place.roles import outside, rest_of

if TYPE_CHECKING:
    from rich.console import Console

MARK_STYLE = {"~": "yellow", "=": "green", "?": "cyan", "!": "bold red"}
MAX_PROCESSES = 6
"""Processes of one workload that are shown each by itself."""
MAX_REFUSED = 6
"""Refusals that are shown each by itself."""
_FIGURES = re.compile(r"[\w.:/-]*\d[\w.:,/-]*")
"""Numbers, and names that hold one."""
INSIDE = 6


def print_plan(out: Console, planned: Planned, *, unfold: bool = False) -> None:
    """The whole diff; `unfold`: every workload, process and value by itself."""
    _head(out, planned)
    found = rows(planned)
    each = unfold or len(found) <= UNFOLDED
    if not each:
        out.print()
    for fold in folds(found, unfold=unfold):
        if each:
            out.print()
            _row(out, planned, fold.rows[0], unfold=unfold)
        else:
            _fold(out, planned, fold)
    if not each:
        say(out, ("--all shows each workload and process by itself", "dim"), indent=2)
    print_host(out, planned, unfold=unfold)
    _refused(out, planned.placement.refused, unfold=unfold)
    if planned.recording is not None and not planned.processes:
        out.print()
        say(out, "note: the recording holds no processes: where they are is not known", hang=6)
    if planned.placement.notes:
        out.print()
    for text in planned.placement.notes:
        say(out, f"note: {text}", hang=6)
    _consent(out, planned)


def _head(out: Console, planned: Planned) -> None:
    topology, placement = planned.topology, planned.placement
    nodes = len([n for n in topology.nodes if n.cpus]) or 1
    where = (
        "this machine" if planned.recording is None else f"the recorded machine {planned.recording}"
    )
    say(
        out,
        f"{planned.file} on {where}: {many(len(topology.online), 'PU')}, "
        f"{many(nodes, 'NUMA node')}; housekeeping keeps CPU {short(placement.housekeeping)}",
        hang=4,
    )
    say(out, (_figures(planned), "dim"), hang=4)


def _figures(planned: Planned) -> str:
    """Where the PUs go."""
    placement, online = planned.placement, planned.topology.online
    exclusive = CpuSet.of(
        c for p in placement.placed if p.sharing is Sharing.EXCLUSIVE for c in p.cpus
    )
    pools = CpuSet.of(c for p in placement.placed if p.sharing is Sharing.SHARED for c in p.cpus)
    free = online - placement.housekeeping - exclusive - pools
    parts = [f"{len(placement.housekeeping)} for housekeeping", f"{len(exclusive)} exclusive"]
    if pools:
        both = len(pools & placement.housekeeping)
        parts.append(f"{len(pools)} shared" + (f" ({both} of housekeeping's)" if both else ""))
    return f"PUs: {', '.join(parts)}, {len(free)} left free"


def _title(fold: Fold) -> str:
    placed = fold.rows[0].placed
    units = {r.placed.unit for r in fold.rows}
    nodes = {r.placed.node for r in fold.rows}
    pools = {r.placed.pool for r in fold.rows}
    words = [", ".join(dict.fromkeys(r.placed.kind for r in fold.rows)), placed.sharing.value]
    if len(pools) == 1 and placed.pool:
        words[-1] += f" (pool {placed.pool})"
    if len(units) == 1 and placed.unit:
        words.append(f"unit {placed.unit}")
    if len(nodes) == 1 and placed.node is not None:
        words.append(f"node {placed.node}")
    if len(fold.rows) == 1 and placed.gpu:
        words.append(f"near {placed.gpu}")
    return ", ".join(words)


def _row(out: Console, planned: Planned, row: Row, *, unfold: bool) -> None:
    placed = row.placed
    say(
        out,
        (f"  {row.mark} ", MARK_STYLE[row.mark]),
        (placed.workload, "bold"),
        f"  {_title(Fold(rows=(row,)))}",
        hang=INSIDE,
    )
    if not row.processes:
        told = "no process now" if planned.recording is None else "no such process in the recording"
        say(out, f"{told}; it goes to CPU {_list(placed.cpus, unfold)}", indent=INSIDE, hang=2)
    roles = [f"{r.role.name} {_list(r.cpus, unfold)}" for r in placed.roles]
    if roles:
        rest = rest_of(placed)
        left = f"; the rest {_list(rest, unfold)}" if rest != placed.cpus else ""
        say(out, f"roles: {'; '.join(roles)}{left}", indent=INSIDE, hang=2)
    if placed.memory_bytes or (placed.mems and row.mark == "?"):
        promised = f", {size(placed.memory_bytes)} promised" if placed.memory_bytes else ""
        on = f"of node {placed.mems}" if placed.mems else "of any node"
        say(out, f"memory {on}{promised}", indent=INSIDE, hang=2)
    by_pid: dict[int | None, list[Change]] = {}
    for change in (c for c in row.changes if not isinstance(c.action, MigrateMemory)):
        by_pid.setdefault(change.pid, []).append(change)
    for change in by_pid.pop(None, []):
        # A unit or a container is set once for all that is in it.
        _change(out, planned, change, unfold=unfold)
    changing = [p for p in row.processes if p.pid in by_pid]
    limit = len(row.processes) if unfold else MAX_PROCESSES
    for process in changing[:limit]:
        for change in by_pid[process.pid]:
            _change(out, planned, change, unfold=unfold)
    if changing[limit:]:
        say(out, f"and {many(len(changing) - limit, 'process')} more to change", indent=INSIDE)
    _still(out, row, [p for p in row.processes if p.pid not in by_pid], limit)
    for move in (m for m in planned.moves if m.workload == placed.workload):
        kind = _class(planned.standing, Consent.MEMORY) if move.action is not None else ""
        say(out, f"process {move.pid}: {visible(move_line(move))}", kind, indent=INSIDE, hang=2)
    for reason in placed.reasons:
        say(out, (f"because {reason}", "dim"), indent=INSIDE, hang=2)


def _still(out: Console, row: Row, still: Sequence[ProcessState], limit: int) -> None:
    for process in still[:limit]:
        name = f"{visible(process.comm)} ({process.pid})"
        stray = outside(row.placed, process)
        on = f"{many(len(process.threads), 'thread')} on CPU {short(row.placed.cpus)}"
        if stray:
            on = (
                f"{len(stray)} of {many(len(process.threads), 'thread')} outside CPU "
                f"{short(row.placed.cpus)}"
            )
        say(out, f"{name}: {on}", indent=INSIDE, hang=2)
    if still[limit:]:
        say(out, f"and {many(len(still) - limit, 'process')} more in place", indent=INSIDE)


def _change(out: Console, planned: Planned, change: Change, *, unfold: bool) -> None:
    before = change.before if unfold else brief(change.before)
    after = change.after if unfold else brief(change.after)
    say(
        out,
        f"{visible(change.what)}: {change.unit}{before} -> {after}",
        f", {change.how}" if change.how else "",
        _class(planned.standing, change.consent),
        indent=INSIDE,
        hang=2,
    )
    print_undoes(out, change, change.unit)


def _class(standing: Standing, consent: Consent) -> tuple[str, str]:
    if standing.allow is None or consent in standing.allow:
        return f"  [{consent}]", "dim"
    return f"  [{consent}: not allowed]", "yellow"


def _fold(out: Console, planned: Planned, fold: Fold) -> None:
    """One line where to, and one why: of many workloads a person wants the picture first."""
    found = [r.placed.workload for r in fold.rows]
    to = short(fold.planned)
    told, style = "", ""
    if fold.mark == "?":
        where = f"to CPU {to}"
    elif fold.mark == "=":
        where = f"{many(len(fold.processes), 'process')} on CPU {to}"
    else:
        changed = [c for r in fold.rows for c in r.changes]
        moving = {c.pid for c in changed if c.pid is not None}
        mine = [p for p in fold.processes if p.pid in moving]
        threads = many(sum(len(p.threads) for p in mine), "thread")
        where = f"{many(len(mine), 'process')}, {threads}: CPU {short(fold.now)} -> {to}"
        told, style = _classes(planned.standing, changed)
    say(
        out,
        (f"  {fold.mark} ", MARK_STYLE[fold.mark]),
        (f"{len(found)} x " if len(found) > 1 else "", "bold"),
        (flow.names(found), "bold"),
        f"  {_title(fold)}: {where}",
        (told, style),
        hang=INSIDE,
    )
    undone = _undone([c for r in fold.rows for c in r.changes])
    if undone:
        say(out, (f"undoes {undone}", "dim"), indent=INSIDE, hang=2)
    if fold.reasons:
        say(out, (f"because {fold.reasons[0]}", "dim"), indent=INSIDE, hang=2)


def _classes(standing: Standing, changed: Sequence[Change]) -> tuple[str, str]:
    """The classes of consent of several changes."""
    classes = needed([c.action for c in changed])
    missing = [c for c in classes if standing.allow is not None and c not in standing.allow]
    words = ", ".join(f"{c}: not allowed" if c in missing else c for c in classes)
    return f"  [{words}]", "yellow" if missing else "dim"


def _undone(changed: Sequence[Change]) -> str:
    ours = len({c.replaced.id for c in changed if c.replaced is not None})
    foreign = sum(c.foreign for c in changed)
    found = [f"{many(ours, 'earlier act')} of ours"] if ours else []
    found += [f"{many(foreign, 'change')} by somebody else"] if foreign else []
    return " and ".join(found)


def _refused(out: Console, refused: Sequence[Refused], *, unfold: bool) -> None:
    for group in alike(refused, unfold=unfold):
        first = group[0]
        found = [r.workload for r in group]
        count = f"{len(found)} x " if len(found) > 1 else ""
        same = len({(r.reason, r.would_fit_if) for r in group}) == 1
        out.print()
        say(
            out,
            ("  ! ", MARK_STYLE["!"]),
            (f"{count}{flow.names(found)}", "bold"),
            "  refused",
            "" if same else f"; --all shows each, this is {first.workload}:",
            hang=INSIDE,
        )
        say(out, first.reason, indent=INSIDE, hang=2)
        say(out, (f"would fit if {first.would_fit_if}", "dim"), indent=INSIDE, hang=2)


def alike(refused: Sequence[Refused], *, unfold: bool) -> list[list[Refused]]:
    """Refusals by their reason; where those are many, by its words without the figures."""
    groups: dict[tuple[str, str], list[Refused]] = {}
    for whole in (True, False):
        groups = {}
        for each in refused:
            key = each.reason, each.would_fit_if
            if not whole:
                key = _FIGURES.sub("#", key[0]), _FIGURES.sub("#", key[1])
            groups.setdefault(key, []).append(each)
        if unfold or len(groups) <= MAX_REFUSED:
            break
    return list(groups.values())


def _consent(out: Console, planned: Planned) -> None:
    """The classes that are needed, and the very line that would allow what is not."""
    standing = planned.standing
    acts = (
        *planned.actions,
        *(a for r in planned.host.rows if (a := r.act) is not None),
        *(m.action for m in planned.moves if m.action is not None),
    )
    wanted = needed(acts)
    if not wanted or planned.recording is not None:
        return
    out.print()
    if standing.allow is None:
        say(
            out,
            f"Needs consent: {', '.join(wanted)}; whether it is given is not known: "
            f"{visible(standing.source)}",
            hang=4,
        )
        return
    missing = [c for c in wanted if c not in standing.allow]
    told = ", ".join(f"{c} ({'not given' if c in missing else 'given'})" for c in wanted)
    who = "the actor" if standing.source == "the actor" else visible(standing.source)
    say(out, f"Needs consent: {told}, says {who}", hang=4)
    if missing:
        _to_give(out, planned, missing, allow_line(standing.allow, wanted))
    if standing.frozen is not None:
        say(out, (f"Frozen: {visible(standing.frozen)}", "yellow"), hang=4)


def _to_give(out: Console, planned: Planned, missing: list[Consent], line: str) -> None:
    """What to write where; where it is written already, who has not read it."""
    path = planned.config or "the configuration"
    asked = planned.standing.source == "the actor"
    if asked and planned.config and set(missing) <= planned.configured:
        say(
            out,
            f"{path} gives it, and the actor has not read that: it was started before that was "
            "written, or with another --config or --allow. Start it anew: systemctl restart "
            f"nodeagent-actor, or by hand nodeagent-actor --config {path}",
            hang=4,
        )
        return
    restart = (
        "systemctl restart nodeagent-actor"
        if path == DEFAULT_PATH
        else f"start nodeagent-actor --config {path} anew"
    )
    say(out, f"To give it, in [pin] of {path}, then {restart}:", hang=4)
    say(out, (line, "bold"), indent=4)


def next_step(planned: Planned, again: str) -> str:
    """What comes after a plan that would change something: `again` is the command that does it."""
    allow = planned.standing.allow
    if planned.standing.frozen is not None:
        return f"Nothing was changed, nor will be while it is frozen. Afterwards: {again}"
    if allow is not None and not allow & set(needed(planned.actions)):
        return f"Nothing was changed, nor would be without that consent. With it: {again}"
    who = ", as root or in group nodeagent-admin" if planned.standing.barred else ""
    return f"Nothing was changed. Make it so{who}: {again}"


def _list(cpus: CpuSet, whole: bool) -> str:
    return str(cpus) if whole else short(cpus)


def plan_sentence(planned: Planned) -> str:
    """`Plan: ...`."""
    found = counts(planned)
    waiting = "waiting for a process" if planned.recording is None else "without a recorded process"
    return (
        f"Plan: {found.change} to change, {found.place} in place, {found.waiting} {waiting}, "
        f"{found.refused} refused."
    )
