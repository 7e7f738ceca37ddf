"""`nodeagentctl undo` and `place release`: put back what was changed, or look at what that does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from nodeagent.cli.acts import exit_code
from nodeagent.cli.main import Invocation
from nodeagent.cli.place import (
    ACT_CODES,
    EXIT_DONE,
    EXIT_NOTHING,
    complete_workload,
    live_only,
    override_option,
)
from nodeagent.errors import NodeagentError, UsageError
from nodeagent.model.actions import JournalEntry, Result
from nodeagent.model.placement import Outcome
from nodeagent.model.words import many

WITHOUT_ACTOR = "be root or in group nodeagent-admin; systemctl start nodeagent-actor"

_plan = click.option("--plan", "only_look", is_flag=True, help="Show what it would do, only.")


@click.command(
    epilog="\b\nExamples:  nodeagentctl place release rank0\n"
    "           nodeagentctl place release rank0 --plan\n" + ACT_CODES,
    short_help="Put a workload, or all, back where it was.",
)
@click.argument("workload", required=False, shell_complete=complete_workload)
@_plan
@override_option
@click.pass_obj
def release(
    invocation: Invocation, workload: str | None, only_look: bool, override_freeze: str
) -> int:
    """Put a workload's processes (or all) back where they were before they were pinned.

    What somebody else changed later is left as it is, and said. A daemon that pins by itself
    ([pin] auto) leaves the workload alone until place apply.
    """
    return _undo(invocation, workload, 0, only_look, override_freeze, "place release")


class _Act(click.ParamType):  # type: ignore[type-arg]  # not generic in every release
    """The number of an act; a workload's name belongs to `place release`."""

    name = "number"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        text = str(value)
        if text.isascii() and text.isdigit() and int(text) > 0:
            return int(text)
        raise UsageError(
            f"undo takes the number of an act, and {text!r} is none",
            f"nodeagentctl undo --plan shows them; a workload: nodeagentctl place release {text}",
        )


@click.command(
    epilog="\b\nExamples:  nodeagentctl undo --plan\n           nodeagentctl undo\n"
    "           nodeagentctl undo 12\n" + ACT_CODES
)
@click.argument("act", required=False, type=_Act(), metavar="[ID]")
@_plan
@override_option
@click.pass_obj
def undo(invocation: Invocation, act: int | None, only_look: bool, override_freeze: str) -> int:
    """Undo every change that nodeagent made to this host, newest first, and read it back.

    ID: only that act; undo --plan shows the numbers. What somebody else changed later is left as
    it is, and said.
    """
    return _undo(invocation, None, act or 0, only_look, override_freeze, "undo")


def _undo(
    invocation: Invocation,
    workload: str | None,
    act: int,
    only_look: bool,
    override_freeze: str,
    why: str,
) -> int:
    from nodeagent.cli.called import as_called
    from nodeagent.cli.output import console, emit_json, even_unheard
    from nodeagent.cli.render.acts import print_outcome
    from nodeagent.cli.render.flow import say
    from nodeagent.cli.render.placement import undo_json
    from nodeagent.cli.workloads import actor_socket

    live_only(invocation, why)
    if only_look:
        return _look(invocation, workload, act)
    socket = actor_socket(invocation.socket)

    async def ask() -> tuple[Result, ...]:
        from nodeagent.pin.client import ActorClient

        client = ActorClient(socket)
        try:
            return await client.undo(workload, entry=act, why=why, override_freeze=override_freeze)
        finally:
            await client.close()

    results = asyncio.run(ask())
    with even_unheard():
        if invocation.output != "table":
            emit_json("placement", undo_json(results))
        else:
            out = console()
            for r in results:
                print_outcome(out, r.workload, Outcome(r.outcome), r.message)
            text = _sentence(results, workload, act)
            say(out, as_called(text, invocation))
    if act and not results:
        return EXIT_NOTHING
    return exit_code([Outcome(r.outcome) for r in results])


def _sentence(results: Sequence[Result], workload: str | None, act: int) -> str:
    if not results:
        return nothing(workload, act)
    outcomes = [Outcome(r.outcome) for r in results]
    words = {
        Outcome.DONE: "done",
        Outcome.GONE: "closed (its process has ended)",
        Outcome.REFUSED: "refused",
        Outcome.REVERTED: "put back",
        Outcome.FAILED: "FAILED and still open",
    }
    parts = [f"{outcomes.count(o)} {text}" for o, text in words.items() if o in outcomes]
    # Whoever changed something later has their word: pin/actor.py says so for each.
    left = sum("somebody later" in r.message for r in results)
    rest = f"; of {left}, something was left as somebody set it later" if left else ""
    return f"Undo of {many(len(results), 'act')}: {', '.join(parts)}{rest}."


def nothing(workload: str | None, act: int) -> str:
    """That there is nothing to undo."""
    if act:
        return f"There is no act {act} that could be undone: nothing to undo."
    if workload:
        return (
            f"Workload {workload} is not pinned by nodeagent: nothing to undo. What is: "
            "nodeagentctl undo --plan"
        )
    return "Nothing is pinned by nodeagent: nothing to undo."


def _look(invocation: Invocation, workload: str | None, act: int) -> int:
    """What an undo would do; changes nothing."""
    from nodeagent.cli.called import as_called
    from nodeagent.cli.host import open_root
    from nodeagent.cli.output import console, emit_json, even_unheard
    from nodeagent.cli.planned import ask_actor
    from nodeagent.cli.render.placement import undo_plan_json
    from nodeagent.cli.render.undo import print_undo_plan
    from nodeagent.discover.procs import PATIENCE_S, Processes
    from nodeagent.place.undoing import would_undo

    actor = ask_actor(invocation)
    if actor.journal is None:
        raise NodeagentError(
            f"what can be undone is not known: {actor.reason}", actor.remedy or WITHOUT_ACTOR
        )
    with open_root(None) as root:
        reader = Processes(root, titles_s=PATIENCE_S)
        try:
            processes = reader.scan()
        finally:
            reader.close()
    entries: tuple[JournalEntry, ...] = tuple(
        e for e in reversed(actor.journal) if workload in (None, e.workload) and act in (0, e.id)
    )
    found = would_undo(entries, actor.journal, processes)
    with even_unheard():
        if invocation.output != "table":
            emit_json("placement", undo_plan_json([(w.entry, w.outcome, w.message) for w in found]))
        else:
            none = as_called(nothing(workload, act), invocation)
            print_undo_plan(console(), found, none, frozen=actor.standing.frozen)
    return EXIT_NOTHING if act and not found else EXIT_DONE
