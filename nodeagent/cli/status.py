"""`nodeagentctl status` and `nodeagentctl events`: what the daemon knows, from api.sock."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from nodeagent.cli.main import Invocation
from nodeagent.errors import UsageError
from nodeagent.model.event import Event

if TYPE_CHECKING:
    from nodeagent.rpc.client import NodeClient


def check_stream(invocation: Invocation, what: str) -> None:
    """What streams is a table or JSON lines. Raises UsageError for `-o json`."""
    if invocation.output == "json":
        raise UsageError(f"{what} streams, saw -o json, expected -o jsonl", "use -o jsonl")


def node_client(path: str | None) -> NodeClient:
    """The daemon's client. Raises UnavailableError where gRPC is not installed."""
    check_grpc()
    from nodeagent.rpc.client import NodeClient

    return NodeClient(path)


def check_grpc() -> None:
    """Raises UnavailableError in an installation without gRPC (the pure wheel)."""
    from importlib.util import find_spec

    from nodeagent.errors import UnavailableError

    if find_spec("grpc") is None:
        raise UnavailableError(
            "this installation has no gRPC, so it can ask neither daemon nor controller",
            "run it on the node, or install there by script/setup",
        )


@click.command(
    epilog="\b\nExamples:  nodeagentctl status\n           nodeagentctl -o json status\n"
    "           nodeagentctl status --watch\n"
    "\b\nExit codes: 0 shown, 3 the daemon could not be asked"
)
@click.option("--watch", is_flag=True, help="Again after each change, until Ctrl-C.")
@click.pass_obj
def status(invocation: Invocation, watch: bool) -> None:
    """Show one screen: verdict, placements, feed, rings, jitter, controller, our own cost."""
    from nodeagent.cli.output import console, emit_json
    from nodeagent.cli.render.status import (
        headline,
        print_status,
        status_json,
        status_screen,
    )
    from nodeagent.cli.workloads import api_socket

    if watch:
        check_stream(invocation, "status --watch")
    with node_client(api_socket(invocation)) as client:
        if not watch:
            now = client.status()
            if invocation.output == "table":
                print_status(now)
            else:
                emit_json("status", status_json(now))
            return
        if invocation.output == "jsonl":
            for now, _ in client.watch():
                emit_json("status", status_json(now))
            return
        from rich.console import Group
        from rich.live import Live

        out = console()
        with Live(console=out, screen=out.is_terminal, auto_refresh=False) as live:
            for now, _ in client.watch():
                live.update(Group(headline(now), status_screen(now)), refresh=True)


@click.command(
    epilog="\b\nExamples:  nodeagentctl events\n           nodeagentctl events --follow\n"
    "           nodeagentctl -o jsonl events --since 120\n"
    "\b\nExit codes: 0 shown, 3 the daemon could not be asked"
)
@click.option("--since", metavar="SEQ", type=click.IntRange(min=0), help="Only events after it.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    metavar="N",
    help="The newest so many.",
)
@click.option("--follow", is_flag=True, help="Go on as they happen, until Ctrl-C.")
@click.pass_obj
def events(invocation: Invocation, since: int | None, limit: int, follow: bool) -> None:
    """Show what happened on this node, oldest first."""
    from nodeagent.cli.called import as_called
    from nodeagent.cli.output import console, emit_json
    from nodeagent.cli.render.status import event_json, event_line, events_screen
    from nodeagent.cli.workloads import api_socket

    if follow:
        check_stream(invocation, "events --follow")
    lines = invocation.output == "jsonl"

    def show(found: Iterable[Event]) -> None:
        for event in found:
            if lines:
                emit_json("event", event_json(event))
            else:
                told = dataclasses.replace(event, remedy=as_called(event.remedy, invocation))
                console().print(event_line(told), soft_wrap=True)

    with node_client(api_socket(invocation)) as client:
        found = client.events(since=since or 0, limit=limit, newest=True)
        if invocation.output == "json":
            emit_json("event", {"events": [event_json(e) for e in found]})
        elif lines or found or follow:
            show(found)
        else:
            console().print(events_screen(found))
        if follow:
            last = found[-1].seq if found else since or 0
            for _, more in client.watch(since=last):
                show(more)
