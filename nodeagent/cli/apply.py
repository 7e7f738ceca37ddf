"""`nodeagentctl place apply`: plan, ask, then pin; each act's outcome as it comes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace

import click

from nodeagent.cli.acts import Acted, exit_code, perform
from nodeagent.cli.main import Invocation
from nodeagent.cli.place import (
    ACT_CODES,
    EXIT_DONE,
    EXIT_NOTHING,
    all_option,
    by_option,
    complete_workload,
    housekeeping_option,
    live_only,
    override_option,
    workloads_option,
)
from nodeagent.cli.planned import Planned, planned
from nodeagent.errors import UsageError
from nodeagent.model.placement import MigrateMemory
from nodeagent.model.words import many

MAX_REPLANS = 5
"""Times that a plan which changed while it was read is shown again."""


@click.command(
    epilog="\b\nExamples:  nodeagentctl place apply\n           nodeagentctl place apply --yes\n"
    "           nodeagentctl place apply --yes --only rank0 --only index0\n" + ACT_CODES,
    short_help="Plan, then pin.",
)
@workloads_option
@housekeeping_option
@by_option
@click.option(
    "--only",
    metavar="WORKLOAD",
    multiple=True,
    shell_complete=complete_workload,
    help="Only that one, with its unit; may be repeated.",
)
@click.option("--yes", is_flag=True, help="Do it; without, a terminal is asked.")
@override_option
@all_option
@click.pass_obj
def apply(
    invocation: Invocation,
    file: str | None,
    housekeeping: str | None,
    by: str | None,
    only: tuple[str, ...],
    yes: bool,
    override_freeze: str,
    unfold: bool,
) -> int:
    """Plan, then pin, through the actor: each change has its undo on the disk first.

    A unit is placed whole or put back whole; what does not depend on it goes on. Ctrl-C ends it
    after the act in hand. Needs root or group nodeagent-admin, and [pin] allow.
    """
    from nodeagent.cli.called import as_called, options
    from nodeagent.cli.output import console, emit_json, even_unheard, note
    from nodeagent.cli.render.acts import Progress, summary
    from nodeagent.cli.render.flow import say
    from nodeagent.cli.render.placement import placement_json
    from nodeagent.cli.render.plan import plan_sentence, print_plan

    live_only(invocation, "place apply")
    table, out = invocation.output == "table", console()

    def make() -> Planned:
        whole = planned(invocation, file, housekeeping, by, must_answer=True)
        return _only(whole if yes else _unmoved(whole), only)

    def show(found: Planned) -> None:
        if table:
            with even_unheard():
                print_plan(out, found, unfold=unfold)
                out.print()
                say(out, plan_sentence(found))

    found = make()
    show(found)
    if found.actions and not yes:
        if not (sys.stdin.isatty() and table):
            raise UsageError(
                f"the plan makes {many(len(found.actions), 'change')}, and --yes was not given",
                f"nodeagentctl place apply --yes{options(file, housekeeping, by)}",
            )
        for _ in range(MAX_REPLANS):
            if found.standing.frozen is not None and not override_freeze:
                break
            if not _confirmed(found):
                note("Nothing was changed.")
                return EXIT_DONE
            # Whoever reads a plan takes their time, and the machine does not wait for them.
            again = make()
            if again.actions == found.actions:
                break
            found = again
            note("The machine changed while you were reading. This is the plan now:")
            show(found)
            if not found.actions:
                break
        else:
            raise UsageError(
                f"the plan changed {MAX_REPLANS} times while it was read",
                "find what moves the threads (nodeagentctl events), or give --yes",
            )
    progress = Progress(out if table else None, len(found.actions))
    try:
        acted = asyncio.run(
            perform(
                invocation,
                found,
                override_freeze=override_freeze,
                said=progress.done,
                moving=progress.moving,
            )
        )
    except asyncio.CancelledError:
        note("Left in the middle: the actor ends the act in hand; see nodeagentctl place status.")
        raise click.Abort from None
    finally:
        progress.close()
    if table:
        with even_unheard():
            for line in summary(found, acted, again=f" --yes{options(file, housekeeping, by)}"):
                say(out, as_called(line, invocation))
    else:
        with even_unheard():
            emit_json("placement", placement_json(found, acted.results, acted.not_tried))
    return _code(found, acted)


def _confirmed(found: Planned) -> bool:
    try:
        return click.confirm(f"Make {many(len(found.actions), 'change')}?")
    except click.Abort:
        # Ctrl-C or the end of the input: as if no had been said.
        click.echo(err=True)
        return False


def _code(found: Planned, acted: Acted) -> int:
    refused = bool(found.placement.refused)
    if refused and not found.actions and not found.placement.placed:
        return EXIT_NOTHING
    return exit_code(
        [r.outcome for _, r in acted.results], refused=refused or bool(acted.not_tried)
    )


def _unmoved(found: Planned) -> Planned:
    """The plan less the moving of memory: that stalls its process, and needs --yes."""
    if not any(isinstance(a, MigrateMemory) for a in found.actions):
        return found
    note = "memory of running processes is moved only with --yes; without it, it stays"
    return replace(
        found,
        placement=replace(found.placement, notes=(*found.placement.notes, note)),
        actions=tuple(a for a in found.actions if not isinstance(a, MigrateMemory)),
        changes=tuple(c for c in found.changes if not isinstance(c.action, MigrateMemory)),
    )


def _only(found: Planned, only: Sequence[str]) -> Planned:
    """The part of a plan that is about these workloads and whoever shares a unit with them."""
    if not only:
        return found
    known = {w.name: w.unit for w in found.workloads}
    strange = [name for name in only if name not in known]
    if strange:
        some = list(known)
        listed = ", ".join(some[:12]) + (f" and {len(some) - 12} more" if len(some) > 12 else "")
        raise UsageError(
            f"--only {strange[0]}: {found.file} has no such workload",
            f"it has: {listed or 'none'}",
        )
    units = {known[name] for name in only} - {None}
    kept = {n for n, unit in known.items() if n in only or unit in units}
    placement = replace(
        found.placement,
        placed=tuple(p for p in found.placement.placed if p.workload in kept),
        refused=tuple(r for r in found.placement.refused if r.workload in kept),
    )
    return replace(
        found,
        placement=placement,
        actions=tuple(a for a in found.actions if a.workload in kept),
        changes=tuple(c for c in found.changes if c.workload in kept),
        moves=tuple(m for m in found.moves if m.workload in kept),
        host=replace(
            found.host, rows=tuple(r for r in found.host.rows if r.workload in kept), notes=()
        ),
    )
