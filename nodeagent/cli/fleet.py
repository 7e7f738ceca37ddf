"""`nodeagentctl fleet`: what the controller knows of all nodes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from nodeagent.cli.main import Invocation
from nodeagent.cli.status import check_grpc, check_stream

if TYPE_CHECKING:
    from nodeagent.rpc.wire import Message

SILENT_S = 45.0
"""A connected node that was not heard of for three heartbeats is called silent."""


@click.group(
    epilog="\b\nExamples:  nodeagentctl fleet nodes\n"
    "           nodeagentctl fleet --controller 10.0.0.5:7440 node gpu-17\n"
    "           nodeagentctl -o jsonl fleet watch"
)
@click.option(
    "--controller",
    metavar="ADDRESS",
    envvar="NODEAGENT_CONTROLLER",
    show_envvar=True,
    default="127.0.0.1:7440",
    show_default=True,
    help="HOST:PORT of nodeagent-controller.",
)
@click.pass_context
def fleet(ctx: click.Context, controller: str) -> None:
    """All nodes, as their controller knows them."""
    check_grpc()
    ctx.meta["nodeagent.controller"] = controller


def _address() -> str:
    address: str = click.get_current_context().meta["nodeagent.controller"]
    return address


@fleet.command(epilog="\b\nExample:  nodeagentctl -o json fleet nodes")
@click.pass_obj
def nodes(invocation: Invocation) -> None:
    """Show a line for each node: verdict, findings, placements, link."""
    from nodeagent.cli.output import emit_json, note
    from nodeagent.rpc.client import FleetClient

    with FleetClient(_address()) as client:
        rows, notes = client.nodes()
    if invocation.output == "table":
        _nodes_table(rows)
        for line in notes:
            note(f"controller: {line}")
    elif invocation.output == "json":
        body = {"nodes": [_node_json(r) for r in rows], "notes": list(notes)}
        emit_json("fleet", {"controller": _address(), **body})
    else:
        for row in rows:
            emit_json("fleet", {"controller": _address(), "node": _node_json(row)})


@fleet.command(epilog="\b\nExample:  nodeagentctl fleet node gpu-17")
@click.argument("name")
@click.pass_obj
def node(invocation: Invocation, name: str) -> None:
    """Show one node's last status. NAME: host name, UUID, or the beginning of a UUID."""
    from nodeagent.cli.output import console, emit_json
    from nodeagent.cli.render.status import plain, print_status, status_json
    from nodeagent.rpc.client import FleetClient

    with FleetClient(_address()) as client:
        row, status, topology = client.node(name)
    if invocation.output != "table":
        body = {
            "controller": _address(),
            "node": _node_json(row),
            "status": None if status is None else status_json(status),
            "topology": None if topology is None else _topology_json(topology),
        }
        emit_json("fleet", body)
        return
    out = console()
    _nodes_table([row])
    out.print()
    if status is None:
        out.print(f"{plain(row.hostname)} has not sent its state yet", style="yellow")
    else:
        print_status(status)


@fleet.command(
    epilog="\b\nExamples:  nodeagentctl fleet events\n"
    "           nodeagentctl fleet events --node gpu-17 --limit 200",
    short_help="What happened, oldest first.",
)
@click.option("--node", "name", metavar="NAME", default="", help="Of one node only.")
@click.option("--after", metavar="ID", type=click.IntRange(min=0), default=0, help="After that id.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    metavar="N",
    help="The newest so many.",
)
@click.pass_obj
def events(invocation: Invocation, name: str, after: int, limit: int) -> None:
    """Show what happened, oldest first, in the order the controller stored it."""
    from nodeagent.cli.output import console, emit_json
    from nodeagent.rpc.client import FleetClient

    with FleetClient(_address()) as client:
        found = client.events(node=name, after_id=after, limit=limit, newest=True)
    if invocation.output == "json":
        emit_json("event", {"controller": _address(), "events": [_event_json(e) for e in found]})
        return
    for event in found:
        _show(invocation, event)
    if not found and invocation.output == "table":
        console().print("no events", style="dim")


@fleet.command(
    epilog="\b\nExamples:  nodeagentctl fleet watch\n"
    "           nodeagentctl -o jsonl fleet watch --after 0"
)
@click.option("--node", "name", metavar="NAME", default="", help="Of one node only.")
@click.option(
    "--after", metavar="ID", type=click.IntRange(min=0), help="Those after that id first."
)
@click.pass_obj
def watch(invocation: Invocation, name: str, after: int | None) -> None:
    """Show events as the controller stores them, until Ctrl-C."""
    from nodeagent.rpc.client import FleetClient

    check_stream(invocation, "fleet watch")
    with FleetClient(_address()) as client:
        for event in client.watch(node=name, after_id=after):
            _show(invocation, event)


def _show(invocation: Invocation, event: Message) -> None:
    from nodeagent.cli.output import console, emit_json
    from nodeagent.cli.render.status import event_line
    from nodeagent.model.event import Event
    from nodeagent.rpc import wire

    if invocation.output == "jsonl":
        emit_json("event", _event_json(event))
    else:
        line = event_line(wire.from_wire(Event, event.event), event.hostname)
        console().print(line, soft_wrap=True)


def _event_json(event: Message) -> dict[str, object]:
    from nodeagent.cli.render.status import event_json
    from nodeagent.model.event import Event
    from nodeagent.rpc import wire

    return {
        "id": event.id,
        "node": event.hostname,
        "agent_uuid": event.agent_uuid,
        "epoch": event.epoch,
        "received_ns": event.received_ns,
        **event_json(wire.from_wire(Event, event.event)),
    }


def _node_json(row: Message) -> dict[str, object]:
    from nodeagent.cli.render.status import when
    from nodeagent.rpc.wire import verdict_of

    return {
        "name": row.hostname,
        "agent_uuid": row.agent_uuid,
        "verdict": verdict_of(row.verdict).value,
        "fail": row.fail,
        "warn": row.warn,
        "unknown": row.unknown,
        "placed": row.placed,
        "held": row.held,
        "connected": row.connected,
        "first_seen": when(row.first_seen_ns),
        "last_seen": when(row.last_seen_ns),
        "last_seen_ns": row.last_seen_ns,
        "address": row.address,
        "version": row.version,
        "epoch": row.epoch,
        "committed_seq": row.committed_seq,
        "lost_events": row.lost_events,
        "sentence": row.sentence,
        "conflict": row.conflict or None,
    }


def _topology_json(topology: object) -> dict[str, object]:
    """As in topology/v1; what could not be read there is not part of a report."""
    from nodeagent.cli.render.topology_json import topology_json
    from nodeagent.model.snapshot import Host, Nvml, Snapshot
    from nodeagent.model.topology import Topology

    assert isinstance(topology, Topology)
    host = Host(hostname=None, boot_id=None, kernel=None, virtual=None)
    nvml = Nvml(available=False, reason=None)
    snapshot = Snapshot(
        topology=topology,
        host=host,
        boot_args=(),
        irqs=(),
        nics=(),
        gpus=(),
        nvml=nvml,
        unread=(),
        live=False,
    )
    return topology_json(snapshot)


def _nodes_table(rows: list[Message] | tuple[Message, ...]) -> None:
    from rich.table import Table
    from rich.text import Text

    from nodeagent.cli.output import VERDICT_STYLE, console
    from nodeagent.cli.render.status import ago, plain
    from nodeagent.rpc.wire import verdict_of

    out = console()
    if not rows:
        out.print("no node has reported yet", style="dim")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("node", "verdict", "fail/warn/unknown", "held", "link", "events", "version"):
        table.add_column(heading, no_wrap=heading != "link")
    now = time.time_ns()
    for row in rows:
        silent_s = (now - row.last_seen_ns) / 1e9
        if not row.connected:
            link = Text(f"gone for {ago(silent_s)}", "red")
        elif silent_s > SILENT_S:
            link = Text(f"silent for {ago(silent_s)}", "yellow")
        else:
            link = Text("connected", "green")
        verdict = verdict_of(row.verdict).value
        events = Text(f"{row.committed_seq:,}")
        if row.lost_events:
            events.append(f" ({row.lost_events:,} lost)", "red")
        table.add_row(
            Text(plain(row.hostname), "bold"),
            Text(verdict, VERDICT_STYLE[verdict]),
            f"{row.fail}/{row.warn}/{row.unknown}",
            f"{row.held}/{row.placed}",
            link,
            events,
            plain(row.version),
        )
    out.print(table)
    for row in rows:
        if row.conflict:
            who = f"{plain(row.hostname)} ({row.agent_uuid})"
            out.print(Text(f"{who}: {plain(row.conflict)}", "yellow"), soft_wrap=True)
