"""nodeagentctl feed: what the feeds do, a recorded feed sent again, a synthetic day."""

from __future__ import annotations

import click

from nodeagent.cli.main import Invocation
from nodeagent.cli.output import emit_json

_FORMATS = click.Choice(["auto", "pcap", "pcapng", "binaryfile", "soupbintcp"])


@click.group()
def feed() -> None:
    """Market-data feeds: status, replay, synthetic captures."""


@feed.command(
    epilog="\b\nExample:  nodeagentctl feed replay day.pcap --group 239.192.0.1 --port 26400 \\\n"
    "            --interface lo --rate 500000 --loop\n"
    "Units:    --rate in messages a second"
)
@click.argument("file", metavar="FILE")
@click.option("--group", required=True, metavar="ADDRESS", help="Destination group of line A.")
@click.option("--port", required=True, type=click.IntRange(1, 65535), help="UDP port of line A.")
@click.option("--interface", metavar="NAME", help="Send by this interface; lo stays on this host.")
@click.option("--group-b", metavar="ADDRESS", help="Send everything on a line B as well.")
@click.option("--port-b", type=click.IntRange(1, 65535), help="UDP port of line B.")
@click.option("--rate", type=click.IntRange(0), default=0, help="Messages a second; 0: unpaced.")
@click.option("--count", type=click.IntRange(0), default=0, help="Messages in all.")
@click.option("--loops", type=click.IntRange(0), default=1, help="Times through; 0: until stopped.")
@click.option("--loop", is_flag=True, help="Go round until stopped, or until --count.")
@click.option("--per-packet", type=click.IntRange(0, 600), default=0, help="Messages a packet.")
@click.option("--format", "format_", type=_FORMATS, default="auto", show_default=True)
@click.option("--drop-a", type=click.IntRange(0), default=0, help="Withhold each n'th packet of A.")
@click.option("--drop-b", type=click.IntRange(0), default=0, help="Withhold each n'th packet of B.")
@click.option("--ttl", type=click.IntRange(0, 255), default=1, show_default=True)
@click.pass_obj
def replay(
    invocation: Invocation,
    file: str,
    group: str,
    port: int,
    interface: str | None,
    group_b: str | None,
    port_b: int | None,
    rate: int,
    count: int,
    loops: int,
    loop: bool,
    per_packet: int,
    format_: str,
    drop_a: int,
    drop_b: int,
    ttl: int,
) -> None:
    """Send the recorded FILE ("-": stdin) as MoldUDP64 multicast, paced.

    Ends after --loops (or --count messages), on Ctrl-C or SIGTERM; then says exactly what was sent.
    """
    from nodeagent.feed.replay import Plan, line_pair, report, send
    from nodeagent.native.feed import Format

    sent = send(
        Plan(
            file=file,
            lines=tuple(line_pair(group, port, interface, group_b, port_b)),
            rate=rate,
            count=count,
            loops=0 if loop or count else loops,
            per_packet=per_packet,
            format=Format[format_.upper()],
            drop_every=(drop_a, drop_b),
            ttl=ttl,
        )
    )
    said = report(sent)
    if invocation.output == "table":
        click.echo(
            f"sent {sent.messages:,} messages in {sent.packets:,} packets, numbers "
            f"{sent.first_seq} to {sent.last_seq}, in {said['seconds']:.3f} s "
            f"({said['rate_per_s']:,.0f} messages/s)"
            + (f", {sent.withheld:,} withheld" if sent.withheld else "")
        )
    else:
        emit_json("feed", said)


@feed.command(
    epilog="\b\nExample:  nodeagentctl feed synth day.pcap --messages 200000 --symbols 32\n"
    "The same arguments give the same bytes everywhere."
)
@click.argument("file", metavar="FILE")
@click.option("--messages", type=click.IntRange(1), default=100_000, show_default=True)
@click.option("--symbols", type=click.IntRange(1, 10_000), default=16, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@click.option("--format", "format_", type=_FORMATS, default="pcap", show_default=True)
@click.option("--most", type=click.IntRange(1, 600), default=12, help="Messages a packet, at most.")
@click.option("--lines", type=click.IntRange(1, 2), default=1, help="2: each packet on A and B.")
@click.pass_obj
def synth(
    invocation: Invocation,
    file: str,
    messages: int,
    symbols: int,
    seed: int,
    format_: str,
    most: int,
    lines: int,
) -> None:
    """Write a capture of a synthetic ITCH 5.0 day: every message type, plausible prices."""
    from nodeagent.errors import NodeagentError
    from nodeagent.feed import synth as maker
    from nodeagent.native.feed import Format

    try:
        made = maker.write(
            file,
            messages=messages,
            symbols=symbols,
            seed=seed,
            format=Format[format_.upper()],
            most=most,
            lines=lines,
        )
    except OSError as error:
        raise NodeagentError(
            f"{file}: {error.strerror}", "name a file in a folder that can be written"
        ) from error
    if invocation.output == "table":
        click.echo(
            f"{made.path}: {made.messages:,} messages, {made.symbols} symbols, "
            f"{made.format.name.lower()}, {made.bytes:,} bytes"
        )
    else:
        emit_json(
            "feed",
            {
                "file": str(made.path),
                "format": made.format.name.lower(),
                "messages": made.messages,
                "symbols": made.symbols,
                "bytes": made.bytes,
            },
        )
