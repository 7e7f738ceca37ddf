"""nodeagentctl feed: what the feeds do, a recorded feed sent again, a synthetic day."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from nodeagent.cli.main import Invocation
from nodeagent.cli.output import emit_json
from nodeagent.cli.ring import RING_SOCKET, ring_socket_of
from nodeagent.errors import visible

if TYPE_CHECKING:
    from nodeagent.model.feed import FeedStatus, ReaderStatus, RingStatus

F = TypeVar("F", bound=Callable[..., Any])

_WRITTEN = click.Choice(["pcap", "pcapng", "binaryfile", "soupbintcp"])
_FORMATS = click.Choice(["auto", *_WRITTEN.choices])


def _number(
    name: str,
    least: int,
    *,
    default: int,
    help: str,
    most: int | None = None,
    metavar: str = "N",
    shown: bool = True,
) -> Callable[[F], F]:
    """A whole number with bounds; `shown`: its default is worth a word in the help."""
    return click.option(
        name,
        type=click.IntRange(least, most),
        default=default,
        show_default=shown,
        metavar=metavar,
        help=help,
    )


@click.group(epilog="\b\nExample:  nodeagentctl feed status")
def feed() -> None:
    """Market-data feeds: status, replay, synthetic captures."""


@feed.command(
    epilog="\b\nExample:  nodeagentctl feed status\n"
    "Units:    loss in messages, each counted at one stage; - is not knowable here\n"
    "\b\nExit codes: 0 shown, 3 when nobody serves ring.sock",
    short_help="Feeds, loss by stage, rings, readers.",
)
@click.option(
    "--ring-socket", metavar="PATH", help=f"The daemon's ring.sock.  [default: {RING_SOCKET}]"
)
@click.option(
    "--interval",
    type=click.FloatRange(0, 60),
    default=0.5,
    show_default=True,
    metavar="SECONDS",
    help="Over which the rate is measured; 0: no rate.",
)
@click.pass_obj
def status(invocation: Invocation, ring_socket: str | None, interval: float) -> None:
    """Show feeds, their loss by stage, their rings, and how far each reader is behind."""
    from nodeagent.client.stat import stat

    path = ring_socket_of(invocation, ring_socket)
    before, _ = stat(path)
    start = time.monotonic()
    if interval and before:
        time.sleep(interval)
    feeds, rings = stat(path)
    seconds = time.monotonic() - start
    earlier = {f.feed: f for f in before if interval}
    rates = {
        f.feed: (f.messages - earlier[f.feed].messages) / seconds
        for f in feeds
        if f.feed in earlier and earlier[f.feed].pid == f.pid
    }
    if invocation.output == "table":
        _print_status(feeds, rings, rates)
    else:
        import msgspec

        emit_json(
            "feed",
            {
                "feeds": [
                    {**msgspec.to_builtins(f), "rate_per_s": rates.get(f.feed)} for f in feeds
                ],
                "rings": msgspec.to_builtins(rings),
            },
        )


def _print_status(
    feeds: tuple[FeedStatus, ...], rings: tuple[RingStatus, ...], rates: dict[str, float]
) -> None:
    if not feeds and not rings:
        click.echo("no feed: start one with nodeagent-feeder --name NAME --group ... --port ...")
    for f in feeds:
        rate = f"{rates[f.feed]:,.0f}/s" if f.feed in rates else "-"
        click.echo(f"feed {f.feed}  {f.source}, pid {f.pid}: {visible(f.note)}")
        click.echo(
            f"  received   {f.messages:,} messages ({rate}) of {f.packets:,} packets, last "
            + (f"{f.last_message_age_ns / 1e6:,.1f} ms ago" if f.last_message_age_ns else "never")
            + f"; {f.duplicates:,} duplicates"
        )
        stages = {
            "nic": f.loss.nic,
            "kernel": f.loss.kernel,
            "backend": f.loss.backend,
            "decoder": f.loss.decoder,
            "wire gap": f.loss.wire_gap,
        }
        lost = ", ".join(f"{k} {'-' if n is None else format(n, ',')}" for k, n in stages.items())
        click.echo(f"  lost       {lost}")
        if f.wire_to_ring_ns:
            spread = ", ".join(f"{name} {ns / 1000:,.1f}" for name, ns in f.wire_to_ring_ns)
            click.echo(f"  wire->ring {spread} µs")
        for ring in rings:
            if ring.feed == f.feed:
                _print_ring(ring)
    for ring in rings:
        if ring.feed not in {f.feed for f in feeds}:
            click.echo(f"feed {ring.feed}  (its feeder keeps no statistics)")
            _print_ring(ring)


def _print_ring(ring: RingStatus) -> None:
    unit = "ticks" if ring.kind == "ticks" else "bytes of frames"
    state = "" if ring.producer_alive else ", its feeder is gone"
    state += ", draining" if ring.draining else ""
    click.echo(
        f"  ring       {ring.capacity:,} {unit}, head {ring.head:,}, node "
        f"{'-' if ring.node is None else ring.node}, incarnation {ring.incarnation}, heartbeat "
        f"{ring.heartbeat_age_ns / 1e6:,.0f} ms ago{state}"
    )
    for reader in ring.readers:
        click.echo(f"  reader     {_reader(reader)}")


def _reader(r: ReaderStatus) -> str:
    ages = ", ".join(f"{name} {ns / 1000:,.1f}" for name, ns in r.data_age_quantiles_ns)
    return (
        f"{r.name} (pid {r.pid}, {r.mode}): {r.records:,} read, {r.lost:,} lost, "
        f"{r.lag_records:,} behind, data age {r.data_age_ns / 1000:,.1f} µs"
        + (f" ({ages})" if ages else "")
        + ("" if r.alive else ", dead")
    )


@feed.command(
    epilog="\b\nExample:  nodeagentctl feed replay day.pcap --group 239.192.0.1 --port 26400 \\\n"
    "            --interface lo --rate 500000 --loop\n"
    "Units:    --rate in messages a second",
    short_help="Send a recorded file as MoldUDP64 multicast.",
)
@click.argument("file", metavar="FILE")
@click.option("--group", required=True, metavar="ADDRESS", help="Destination group of line A.")
@click.option(
    "--port",
    required=True,
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="UDP port of line A.",
)
@click.option("--interface", metavar="NAME", help="Send by this interface; lo stays on this host.")
@click.option("--group-b", metavar="ADDRESS", help="Send everything on a line B as well.")
@click.option("--port-b", type=click.IntRange(1, 65535), metavar="PORT", help="UDP port of line B.")
@_number("--rate", 0, default=0, help="Messages a second; 0: unpaced.", shown=False)
@_number("--count", 0, default=0, help="End after N messages; 0: by --loops.", shown=False)
@_number("--loops", 0, default=1, help="Times through; 0: until stopped.")
@click.option("--loop", is_flag=True, help="Go round until stopped, or until --count.")
@_number(
    "--per-packet", 0, most=600, default=0, help="Messages a packet; 0: as recorded.", shown=False
)
@click.option(
    "--format", "format_", type=_FORMATS, default="auto", show_default=True, help="Of FILE."
)
@_number("--drop-a", 0, default=0, help="Withhold each N'th packet of A; 0: none.", shown=False)
@_number("--drop-b", 0, default=0, help="Withhold each N'th packet of B; 0: none.", shown=False)
@_number(
    "--ttl", 0, most=255, default=1, metavar="HOPS", help="0: this host only; 1: this network only."
)
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
    "The same arguments give the same bytes everywhere.",
    short_help="Write a capture of a synthetic ITCH 5.0 day.",
)
@click.argument("file", metavar="FILE")
@_number("--messages", 1, default=100_000, help="Messages in all.")
@_number("--symbols", 1, most=10_000, default=16, help="Traded symbols.")
@_number("--seed", 0, default=1, help="Another seed, another day.")
@click.option(
    "--format", "format_", type=_WRITTEN, default="pcap", show_default=True, help="Of FILE."
)
@_number("--most", 1, most=600, default=12, help="Messages a packet, at most.")
@_number("--lines", 1, most=2, default=1, help="2: each packet on A and B.")
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
