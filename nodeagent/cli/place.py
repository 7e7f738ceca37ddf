"""`nodeagentctl place`: its commands, and `place plan`, which changes nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TypeVar

import click
from click.shell_completion import CompletionItem

from nodeagent.cli.main import Invocation
from nodeagent.errors import NodeagentError, UsageError

EXIT_DONE, EXIT_PARTLY, EXIT_NEITHER, EXIT_NOTHING = 0, 1, 2, 3
ACT_CODES = (
    "\b\nExit codes: 0 done and read back; 1 partly refused, the host is consistent;\n"
    "            2 the host is neither as planned nor as before;\n"
    "            3 nothing could be tried"
)
RUNTIMES = ("docker", "podman", "compose", "kubernetes", "systemd")
EVERY = "*"
"""Value of --container without a workload."""

_F = TypeVar("_F", bound=Callable[..., object])

workloads_option = click.option(
    "--workloads", "file", metavar="FILE", help="Workload file [default: the configured one]."
)
housekeeping_option = click.option(
    "--housekeeping", metavar="LIST", help="CPUs kept for the system [default: lowest cores]."
)
by_option = click.option(
    "--by",
    type=click.Choice(["threads", "cgroup"]),
    help="Pin by affinity of each thread, or by what holds its cgroup (unit, container, cpuset) "
    "[default: what the actor allows].",
)
override_option = click.option(
    "--override-freeze", metavar="REASON", default="", help="Act although frozen; recorded."
)
all_option = click.option(
    "--all", "unfold", is_flag=True, help="Fold nothing: every workload, process and value."
)


def complete_workload(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Names of the workload file that is given, else of the configured one."""
    from nodeagent.cli.workloads import wanted

    root = ctx.find_root()
    host, config = root.params.get("host"), root.params.get("config")
    try:
        found = wanted(ctx.params.get("file"), None, live=host is None, config=config).workloads
    except NodeagentError:
        return []
    return [CompletionItem(w.name) for w in found if w.name.startswith(incomplete)]


_AT = {
    "apply": "nodeagent.cli.apply:apply",
    "status": "nodeagent.cli.placed:status",
    "release": "nodeagent.cli.undo:release",
    "prove": "nodeagent.cli.prove:prove",
    "boot": "nodeagent.cli.boot:boot",
}


class _Group(click.Group):
    """Its commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["plan", *_AT]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _AT:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = _AT[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(
    cls=_Group,
    epilog="\b\nExamples:  nodeagentctl place plan\n           nodeagentctl place apply --yes\n"
    "           nodeagentctl place status\n           nodeagentctl place release rank0\n"
    "           nodeagentctl undo",
)
def place() -> None:
    """Where workloads belong: plan it, make it so, see whether it holds, put it back."""


@place.command(
    epilog="\b\nExamples:  nodeagentctl place plan\n"
    "           nodeagentctl place plan --workloads examples/workloads.toml --all\n"
    "           nodeagentctl --host machine.tar.xz place plan --workloads w.toml\n"
    "           nodeagentctl place plan --container rank0 --runtime podman\n"
    "\b\nExit codes: 0 planned; 1 with --detailed-exitcode when something would\n"
    "            change or is refused",
    short_help="What would change, and why; changes nothing.",
)
@workloads_option
@housekeeping_option
@by_option
@all_option
@click.option("--detailed-exitcode", is_flag=True, help="Exit 1 when the plan is not empty.")
@click.option(
    "--container",
    metavar="[WORKLOAD,...]",
    is_flag=False,
    flag_value=EVERY,
    shell_complete=complete_workload,
    help="Print how to launch it (or each) there, by the runtime that runs it.",
)
@click.option(
    "--runtime",
    type=click.Choice(RUNTIMES),
    multiple=True,
    help="With --container: for that one; may be repeated [default: what runs the workload, else "
    "what its match or this machine has].",
)
@click.pass_obj
def plan(
    invocation: Invocation,
    file: str | None,
    housekeeping: str | None,
    by: str | None,
    unfold: bool,
    detailed_exitcode: bool,
    container: str | None,
    runtime: tuple[str, ...],
) -> int:
    """Show what would be changed, why, what that undoes, and what cannot be placed.

    Nothing is changed. ~ will change, = is in place, ? has no process now, ! is refused. In
    brackets: the class of consent it needs. Many workloads are folded; --all shows each.
    """
    from rich.text import Text

    from nodeagent.cli.called import as_called, options
    from nodeagent.cli.output import console, emit_json, even_unheard
    from nodeagent.cli.planned import planned
    from nodeagent.cli.render.flow import columns, say
    from nodeagent.cli.render.hostplan import by_hand
    from nodeagent.cli.render.placement import placement_json
    from nodeagent.cli.render.plan import next_step, plan_sentence, print_plan

    if runtime and container is None:
        raise UsageError("--runtime without --container", "add --container, or leave it out")
    found = planned(invocation, file, housekeeping, by)
    pending = bool(found.actions or found.placement.refused)
    if container is not None:
        from nodeagent.cli.launch import show

        show(invocation, found, None if container == EVERY else container, runtime)
        return EXIT_DONE
    with even_unheard():
        if invocation.output != "table":
            emit_json("placement", placement_json(found))
        else:
            out = console()
            print_plan(out, found, unfold=unfold)
            out.print()
            say(out, plan_sentence(found))
            left = by_hand(found.host)
            if left:
                say(out, f"{left}.")
            if found.actions and invocation.host is None:
                again = f"nodeagentctl place apply --yes{options(file, housekeeping, by)}"
                again = as_called(again, invocation)
                text = next_step(found, again)
                if len(text) <= columns(out):
                    say(out, text)
                else:
                    # A command that is wrapped is two when it is pasted.
                    say(out, text.removesuffix(again).rstrip())
                    out.print(Text(f"  {again}"), soft_wrap=True)
    return EXIT_PARTLY if detailed_exitcode and pending else EXIT_DONE


def live_only(invocation: Invocation, what: str) -> None:
    """Raises UsageError for a recorded machine."""
    if invocation.host is not None:
        raise UsageError(
            f"{what} acts on this machine, and --host names another",
            "leave --host out, or use place plan",
        )
