"""nodeagentctl ring: segments and readers as the daemon sees them, records as they come."""

from __future__ import annotations

import os
import pathlib
import sys
import time
from typing import TYPE_CHECKING

import click

from nodeagent.cli.main import Invocation
from nodeagent.cli.output import console, emit_json, note
from nodeagent.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodeagent.client.reader import Batch, Reader
    from nodeagent.model.feed import ReaderStatus, RingStatus

RING_SOCKET = "/run/nodeagent/ring.sock"
_DAY_NS = 86_400_000_000_000


def ring_socket_of(invocation: Invocation, option: str | None) -> str:
    """`--ring-socket`, or ring.sock beside the api.sock that was named, or the default one."""
    if option is not None:
        return option
    from nodeagent.cli.workloads import api_socket

    socket = api_socket(invocation)
    return RING_SOCKET if socket is None else str(pathlib.Path(socket).with_name("ring.sock"))


@click.group(epilog="\b\nExample:  nodeagentctl ring stat")
def ring() -> None:
    """The shared-memory rings of the feeds: segments, readers, records."""


_ring_socket = click.option(
    "--ring-socket", metavar="PATH", help=f"The daemon's ring.sock.  [default: {RING_SOCKET}]"
)


@ring.command(
    epilog="\b\nExample:  nodeagentctl ring stat\n"
    "Units:    sizes of ticks rings in records, of frames rings in bytes;\n"
    "          data age in µs\n"
    "\b\nExit codes: 0 shown, 3 when nobody serves ring.sock",
    short_help="Segments and their readers.",
)
@_ring_socket
@click.pass_obj
def stat(invocation: Invocation, ring_socket: str | None) -> None:
    """Show each segment (live, or draining after its producer died) and who reads it."""
    import msgspec

    from nodeagent.client.stat import stat as ask

    _, rings = ask(ring_socket_of(invocation, ring_socket))
    if invocation.output != "table":
        emit_json("ring", {"rings": msgspec.to_builtins(rings)})
        return
    if not rings:
        note("no ring: no feeder has offered one")
    for each in rings:
        _print_ring(each)


def _print_ring(r: RingStatus) -> None:
    from rich.table import Table

    out = console()
    unit = "ticks" if r.kind == "ticks" else "bytes"
    style, state = "green", "live"
    if r.draining or not r.producer_alive:
        style, state = "yellow", "producer gone, draining"
    elif r.heartbeat_age_ns > 500_000_000:
        style, state = "bold red", "STALE"
    from rich.text import Text

    out.print(Text.assemble((r.feed, "bold"), f" {r.kind}  ", (state, style)))
    out.print(
        f"  incarnation {r.incarnation}, pid {r.producer_pid}, heartbeat "
        f"{r.heartbeat_age_ns / 1e6:,.0f} ms ago"
    )
    out.print(
        f"  {r.capacity:,} {unit} in {r.size_bytes / (1 << 20):,.0f} MiB on node "
        f"{'?' if r.node is None else r.node}, head {r.head:,}"
    )
    if not r.readers:
        out.print("  no readers")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("reader", "pid", "uid", "mode"):
        table.add_column(name)
    for name in ("read", "lost", "behind", "data age µs", "p50", "p99", "max"):
        table.add_column(name, justify="right")
    for reader in r.readers:
        table.add_row(*_row(reader), style="red" if reader.lost else None)
    from rich.padding import Padding

    out.print(Padding(table, (0, 0, 0, 2)))


def _row(r: ReaderStatus) -> tuple[str, ...]:
    ages = dict(r.data_age_quantiles_ns)
    quantiles = (f"{ages[q] / 1000:,.1f}" if q in ages else "-" for q in ("p50", "p99", "max"))
    counts = (f"{r.records:,}", f"{r.lost:,}", f"{r.lag_records:,}", f"{r.data_age_ns / 1000:,.1f}")
    return (r.name, str(r.pid), str(r.uid), str(r.mode), *counts, *quantiles)


@ring.command(
    epilog="\b\nExample:  nodeagentctl ring tail itch --symbol AAAA --count 100\n"
    "          nodeagentctl -o jsonl ring tail itch | head\n"
    "A slow terminal is lapped like any lossy reader: what it missed is counted\n"
    "on stderr.",
    short_help="Records as they come.",
)
@click.argument("feed", metavar="FEED")
@click.option("--symbol", metavar="S", help="Only this symbol.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after so many records.")
@click.option(
    "--for", "seconds", type=click.FloatRange(0.1), metavar="SECONDS", help="End by itself."
)
@_ring_socket
@click.pass_obj
def tail(
    invocation: Invocation,
    feed: str,
    symbol: str | None,
    count: int | None,
    seconds: float | None,
    ring_socket: str | None,
) -> None:
    """Show the records of FEED as they come, from now on."""
    if invocation.output == "json":
        raise UsageError("ring tail is a stream, and json is one object", "use -o jsonl")
    from nodeagent.client.reader import Reader

    path = ring_socket_of(invocation, ring_socket)
    with Reader.attach(feed, f"tail-{os.getpid()}", socket=path) as reader:
        shown = 0
        printer = _Printer(reader, as_json=invocation.output == "jsonl")
        try:
            for batch in _batches(reader, seconds):
                shown += printer.show(batch, symbol, None if count is None else count - shown)
                if count is not None and shown >= count:
                    break
        except KeyboardInterrupt:
            pass
        if symbol is not None and not shown and symbol not in (known := reader.symbols().values()):
            some = ", ".join(sorted(known)[:5]) or "none yet"
            note(f"{symbol} is none of the {len(known)} symbols of feed {feed} (as {some})")
        note(f"{shown:,} records shown, {reader.lost:,} lost")


@ring.command(
    epilog='\b\nExample:  cc -I "$(nodeagentctl ring include)" reader.c -o reader',
    short_help="Folder of the C headers.",
)
@click.pass_obj
def include(invocation: Invocation) -> None:
    """Print the folder of the C headers: readers in C and C++ need no library."""
    import nodeagent.native

    folder = str(pathlib.Path(nodeagent.native.__file__).parent / "include")
    if invocation.output != "table":
        emit_json("ring", {"include": folder})
        return
    click.echo(folder)


def _batches(reader: Reader, seconds: float | None) -> Iterator[Batch]:
    from nodeagent.client.reader import Wait

    end = None if seconds is None else time.monotonic() + seconds
    while end is None or time.monotonic() < end:
        batch = reader.batch(1024)
        if len(batch):
            yield batch
            batch.advance()
            continue
        left = 1.0 if end is None else min(1.0, max(0.0, end - time.monotonic()))
        was_stale = reader.stale
        if reader.wait(left) is Wait.STALE and not was_stale:
            note("STALE: the producer is silent")


class _Printer:
    """Records as lines; symbols are looked up once each."""

    def __init__(self, reader: Reader, *, as_json: bool) -> None:
        self._reader = reader
        self._json = as_json
        self._symbols: dict[int, str] = {}
        self._generation = -1

    def show(self, batch: Batch, symbol: str | None, most: int | None) -> int:
        """Prints what is wanted of a batch; returns how many."""
        ticks = batch.ticks.copy()
        over = batch.validate()
        if batch.gap + over:
            note(f"GAP: {batch.gap + over:,} records lost to a slow terminal")
        generation = self._reader.segment.hot().symbols_seq
        if generation != self._generation:
            self._symbols, self._generation = self._reader.symbols(), generation
        lines: list[str] = []
        for tick in ticks[over:].tolist():
            name = self._symbols.get(tick[7], "")
            if symbol is not None and name != symbol:
                continue
            if most is not None and len(lines) >= most:
                break
            lines.append(self._line(tick, name))
        if lines:
            sys.stdout.write("\n".join(lines) + "\n")
            sys.stdout.flush()
        return len(lines)

    def _line(self, tick: tuple[int, ...], name: str) -> str:
        import msgspec

        from nodeagent.native.ring import KINDS

        seq, exch, received, price, size, ref, aux, instrument, kind, side, flags = tick
        exponent = self._reader.price_exponent
        word, letter = KINDS.get(kind, str(kind)), chr(side) if side else ""
        if self._json:
            return msgspec.json.encode(
                {
                    "schema": "nodeagent.ring/v1",
                    "seq": seq,
                    "ts_exch_ns": exch,
                    "ts_rx_ns": received,
                    "kind": word,
                    "symbol": name or None,
                    "instrument": instrument,
                    "side": letter or None,
                    "price": price,
                    "price_exponent": exponent,
                    "size": size,
                    "ref": ref,
                    "aux": aux,
                    "flags": flags,
                }
            ).decode()
        shown = f"{price * 10.0**exponent:,.{max(0, -exponent)}f}" if price else "-"
        return (
            f"{seq:>12}  {_clock(exch)}  {word:<13} {name or instrument!s:<12} {letter:1} "
            f"{shown:>14} {size:>12,}  {ref}"
        )


def _clock(ns: int) -> str:
    """Nanoseconds since midnight, or since 1970, as a time of day."""
    seconds, rest = divmod(ns % _DAY_NS, 1_000_000_000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:09}"
