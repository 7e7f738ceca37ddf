"""`nodeagentctl place` and `undo`: plan, apply, status, release; with and without a daemon."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nodeagent.cli.main import Invocation
from nodeagent.cli.prove import prove
from nodeagent.errors import NodeagentError, UsageError, visible
from nodeagent.model.actions import JournalEntry, Result
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Action, ActionResult, Consent, Outcome

if TYPE_CHECKING:
    from nodeagent.cli.render.placement import Planned

EXIT_DONE, EXIT_PARTLY, EXIT_NEITHER, EXIT_NOTHING = 0, 1, 2, 3
_ACT_CODES = (
    "\b\nExit codes: 0 done and read back; 1 partly refused, the host is consistent;\n"
    "            2 the host is neither as planned nor as before; 3 nothing could be tried"
)

_workloads = click.option(
    "--workloads", "file", metavar="FILE", help="Workload file [default: the configured one]."
)
_housekeeping = click.option(
    "--housekeeping", metavar="LIST", help="CPUs kept for the system [default: lowest cores]."
)
_by = click.option(
    "--by",
    type=click.Choice(["threads", "cgroup"]),
    help="Pin by affinity of each thread, or by a cpuset [default: what the actor allows].",
)
_override = click.option(
    "--override-freeze", metavar="REASON", default="", help="Act although frozen; recorded."
)


@click.group(
    epilog="\b\nExample:  nodeagentctl place plan\n          nodeagentctl place apply --yes"
)
def place() -> None:
    """Where workloads belong: plan it, make it so, see whether it holds, put it back."""


place.add_command(prove)


def _plan(
    invocation: Invocation,
    file: str | None,
    housekeeping: str | None,
    by: str | None,
    *,
    needed: bool = True,
    allow: AbstractSet[Consent] | None = None,
) -> Planned:
    """`needed` False: without any workload file nothing is wanted, rather than an error. `allow`:
    what the actor may do; None: as configured, on a recorded machine everything."""
    from nodeagent.cli.render.placement import Planned
    from nodeagent.cli.workloads import (
        NoWorkloadFileError,
        Wanted,
        configuration,
        plan_here,
        wanted,
    )
    from nodeagent.place.diff import actions
    from nodeagent.place.host import host_actions, host_plan

    try:
        want = wanted(file, housekeeping, live=invocation.host is None, config=invocation.config)
    except NoWorkloadFileError:
        if needed:
            raise
        want = Wanted(path="", workloads=(), housekeeping=None)
    here = plan_here(want, invocation.host)
    if allow is None and invocation.host is None:
        allow = frozenset(configuration(invocation.config).config.pin.allow)
    allow = frozenset(Consent) if allow is None else allow
    host = host_plan(here.snapshot, here.workloads, here.placement)
    pins = actions(here.placement, here.processes, frozenset({Consent(by or "threads")}))
    return Planned(
        topology=here.snapshot.topology,
        placement=here.placement,
        processes=here.processes,
        # A process is out of the way before what it leaves is taken by interrupts.
        actions=(*pins, *host_actions(host, allow)),
        file=want.path,
        host=host,
        allow=frozenset(allow),
    )


@place.command(
    epilog="\b\nExamples:  nodeagentctl place plan --workloads examples/workloads.toml\n"
    "           nodeagentctl --host machine.tar.xz place plan --workloads w.toml\n"
    "\b\nExit codes: 0 planned; 1 with --detailed-exitcode when something would change or is "
    "refused",
    short_help="What would change, and why; changes nothing.",
)
@_workloads
@_housekeeping
@_by
@click.option("--detailed-exitcode", is_flag=True, help="Exit 1 when the plan is not empty.")
@click.pass_obj
def plan(
    invocation: Invocation,
    file: str | None,
    housekeeping: str | None,
    by: str | None,
    detailed_exitcode: bool,
) -> int:
    """Show what would be changed, why, and what cannot be placed; change nothing.

    ~ will change, = is in place, ? has no process now, ! is refused.
    """
    planned = _plan(invocation, file, housekeeping, by)
    _show(invocation, planned)
    pending = bool(planned.actions or planned.placement.refused)
    return EXIT_PARTLY if detailed_exitcode and pending else EXIT_DONE


def _show(invocation: Invocation, planned: Planned) -> None:
    from nodeagent.cli.output import console, emit_json
    from nodeagent.cli.render.placement import placement_json, plan_sentence, print_plan

    if invocation.output != "table":
        emit_json("placement", placement_json(planned))
        return
    out = console()
    print_plan(out, planned)
    out.print()
    out.print(plan_sentence(planned))
    if planned.actions and invocation.host is None:
        out.print("Nothing was changed. Make it so: nodeagentctl place apply --yes")


@place.command(
    epilog="\b\nExample:  nodeagentctl place apply --yes\n" + _ACT_CODES,
    short_help="Plan, then pin.",
)
@_workloads
@_housekeeping
@_by
@click.option("--yes", is_flag=True, help="Do it; without, a terminal is asked.")
@_override
@click.pass_obj
def apply(
    invocation: Invocation,
    file: str | None,
    housekeeping: str | None,
    by: str | None,
    yes: bool,
    override_freeze: str,
) -> int:
    """Plan, then pin, through the actor: each change has its undo on the disk first.

    Needs root or group nodeagent-admin, and an actor whose --allow has the class.
    """
    from nodeagent.cli.output import console, emit_json, note
    from nodeagent.cli.render.placement import placement_json, print_plan, print_results
    from nodeagent.cli.workloads import actor_socket

    _live_only(invocation, "place apply")
    socket = actor_socket(invocation.socket)
    allow = asyncio.run(_allowed(socket))
    if by is None:
        # A cpuset where the actor may make one, else affinity.
        by = "cgroup" if Consent.CGROUP in allow else "threads"
    planned = _plan(invocation, file, housekeeping, by, allow=allow)
    table = invocation.output == "table"
    out = console()
    if table:
        print_plan(out, planned)
        out.print()
    if planned.actions and not yes:
        if not (sys.stdin.isatty() and table):
            raise UsageError(
                f"the plan makes changes ({len(planned.actions)}), and --yes was not given",
                "look at nodeagentctl place plan, then give --yes",
            )
        if not click.confirm("Make these changes?"):
            note("Nothing was changed.")
            return EXIT_DONE
    results = asyncio.run(_perform(socket, planned.actions, override_freeze))
    if table:
        if not results:
            out.print("Nothing to do: everything that runs is where it belongs.")
        print_results(out, results)
    else:
        emit_json("placement", placement_json(planned, results))
    return _exit_code([r.outcome for _, r in results], refused=bool(planned.placement.refused))


async def _allowed(socket: Path) -> frozenset[Consent]:
    """The classes that the actor may act in."""
    from nodeagent.pin.client import ActorClient

    client = ActorClient(socket)
    try:
        allow = (await client.status()).facts.get("allow")
    finally:
        await client.close()
    return frozenset(c for c in Consent if isinstance(allow, list) and c in allow)


async def _perform(
    socket: Path, actions: Sequence[Action], override_freeze: str
) -> list[tuple[Action, ActionResult]]:
    from nodeagent.pin.client import ActorClient

    client = ActorClient(socket)
    results: list[tuple[Action, ActionResult]] = []
    try:
        for action in actions:
            try:
                done = await client.perform(
                    action, why="place apply", override_freeze=override_freeze
                )
            except NodeagentError as error:
                if not results:
                    raise
                # What was done before stands: say so, rather than lose it.
                done = ActionResult(outcome=Outcome.FAILED, message=f"{error}; {error.remedy}")
                results.append((action, done))
                break
            results.append((action, done))
    finally:
        await client.close()
    return results


def _exit_code(outcomes: Sequence[Outcome], *, refused: bool = False) -> int:
    """The contract's codes for what acts."""
    if Outcome.FAILED in outcomes:
        return EXIT_NEITHER
    good = [o for o in outcomes if o in (Outcome.DONE, Outcome.GONE)]
    if outcomes and not good and all(o is Outcome.REFUSED for o in outcomes):
        return EXIT_NOTHING
    return EXIT_PARTLY if refused or len(good) < len(outcomes) else EXIT_DONE


@place.command(
    epilog="\b\nExample:  nodeagentctl place status\n"
    "\b\nExit codes: 0 shown, 3 when nothing could be read",
    short_help="Wanted, actual and former CPUs of each process.",
)
@_workloads
@_housekeeping
@click.pass_obj
def status(invocation: Invocation, file: str | None, housekeeping: str | None) -> None:
    """Show wanted, actual and former CPUs of each process; since when, and by whom.

    Without a workload file: what is pinned, by the actor's journal (as root also without actor).
    """
    import dataclasses

    from nodeagent.cli.output import console, emit_json
    from nodeagent.cli.render.placement import print_status, status_json
    from nodeagent.place.held import held

    planned = _plan(invocation, file, housekeeping, None, needed=invocation.host is not None)
    before: dict[int, CpuSet] = {}
    if invocation.host is None:
        journal, reason = _journal(invocation)
        planned = dataclasses.replace(planned, journal=journal, journal_reason=reason)
        starts = {p.pid: p.start_time for p in planned.processes}
        for entry in journal or ():
            if starts.get(entry.pid) == entry.start_time:
                before.setdefault(entry.pid, entry.before)
    else:
        planned = dataclasses.replace(planned, journal_reason="a recorded machine has no actor")
    rows = held(planned.placement, planned.processes, before)
    if invocation.output != "table":
        emit_json("placement", status_json(planned, rows))
    else:
        print_status(console(), planned, rows)


def _journal(invocation: Invocation) -> tuple[tuple[JournalEntry, ...] | None, str]:
    """From the actor, else (as root) from its file; else why not."""
    from nodeagent.cli.workloads import actor_socket, configuration
    from nodeagent.pin import undo as journal
    from nodeagent.pin.client import ActorClient

    async def ask() -> tuple[JournalEntry, ...]:
        client = ActorClient(actor_socket(invocation.socket))
        try:
            return await client.journal()
        finally:
            await client.close()

    try:
        return asyncio.run(ask()), ""
    except NodeagentError as error:
        reason = str(error)
    if invocation.socket is not None and invocation.config is None:
        return None, reason
    # Under systemd the actor has a folder of its own (docs/adr/0006).
    folders = [configuration(invocation.config).config.daemon.state_dir]
    if invocation.config is None:
        folders.insert(0, "/var/lib/nodeagent-actor")
    for state in folders:
        try:
            if (Path(state) / "journal").is_dir():
                loaded = journal.read(Path(state) / "journal")
                return tuple(loaded.entries[i].public() for i in sorted(loaded.entries)), ""
        except OSError as error:
            reason = f"{reason}; and {error.filename}: {error.strerror}"
    return None, reason


@place.command(
    epilog="\b\nExample:  nodeagentctl place release vwap\n" + _ACT_CODES,
    short_help="Put a workload, or all, back where it was.",
)
@click.argument("workload", required=False)
@_override
@click.pass_obj
def release(invocation: Invocation, workload: str | None, override_freeze: str) -> int:
    """Put a workload's processes (or all) back where they were before they were pinned."""
    return _undo(invocation, workload, override_freeze, "place release")


@click.command(epilog="\b\nExample:  nodeagentctl undo\n" + _ACT_CODES)
@_override
@click.pass_obj
def undo(invocation: Invocation, override_freeze: str) -> int:
    """Undo every change that nodeagent made to this host, newest first, and read it back.

    What somebody else changed later is left as it is, and said.
    """
    return _undo(invocation, None, override_freeze, "undo")


def _undo(invocation: Invocation, workload: str | None, override_freeze: str, why: str) -> int:
    from nodeagent.cli.output import console, emit_json
    from nodeagent.cli.render.placement import OUTCOME_STYLE
    from nodeagent.cli.workloads import actor_socket

    _live_only(invocation, why)
    socket = actor_socket(invocation.socket)
    results = asyncio.run(_ask_undo(socket, workload, why, override_freeze))
    if invocation.output != "table":
        emit_json(
            "placement",
            {
                "placements": [],
                "irqs": [],
                "refused": [],
                "actions": [],
                "results": [
                    {
                        "do": "undo",
                        "workload": r.workload,
                        "pid": r.pid,
                        "outcome": r.outcome,
                        "message": r.message,
                        "read_back": r.read_back,
                        "journal_id": r.journal_id,
                    }
                    for r in results
                ],
            },
        )
    else:
        from rich.text import Text

        out = console()
        if not results:
            what = f"Workload {workload} is" if workload else "Nothing is"
            out.print(f"{what} {'not ' if workload else ''}pinned by nodeagent: nothing to undo.")
        for r in results:
            outcome = Outcome(r.outcome)
            out.print(
                Text.assemble(
                    (f"  {outcome:9}", OUTCOME_STYLE[outcome]),
                    (r.workload, "bold"),
                    f"  {visible(r.message)}",
                )
            )
    return _exit_code([Outcome(r.outcome) for r in results])


async def _ask_undo(
    socket: Path, workload: str | None, why: str, override_freeze: str
) -> tuple[Result, ...]:
    from nodeagent.pin.client import ActorClient

    client = ActorClient(socket)
    try:
        return await client.undo(workload, why=why, override_freeze=override_freeze)
    finally:
        await client.close()


def _live_only(invocation: Invocation, what: str) -> None:
    if invocation.host is not None:
        raise UsageError(
            f"{what} acts on this machine, and --host names another",
            "leave --host out, or use place plan",
        )
