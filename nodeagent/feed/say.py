"""What a feeder says: JSON lines on stdout for programs, sentences on stderr for people."""

from __future__ import annotations

import json
import os
import sys

import click

from nodeagent.feed.plan import FeederPlan, Source
from nodeagent.native.feed import Counts, Feed


def note_of(plan: FeederPlan, feed: Feed) -> str:
    """Which back-end was got and why, in words; at most 223 bytes."""
    if plan.source is Source.CAPTURE:
        return f"recorded: {plan.file}"
    infos = feed.sockets
    size = min(i.receive_bytes for i in infos) >> 20
    words = f"recvmmsg, {len(infos)} line{'s' * (len(infos) > 1)}, receive buffer {size} MiB"
    if size < plan.options.receive_bytes >> 20:
        words += " (less than asked: CAP_NET_ADMIN or net.core.rmem_max)"
    if not all(i.drops_known for i in infos):
        words += ", kernel drops not known"
    return words


def losses(counts: Counts, kernel_known: bool) -> dict[str, int | None]:
    """Messages lost by stage, each once (contract: run/v1, feed.lost)."""
    return {
        "nic": None,
        "kernel": counts.gap_kernel if kernel_known else None,
        "backend": 0,
        "decoder": counts.rejected,
        "wire_gap": counts.gap_wire,
    }


class Say:
    """What the feeder says: JSON lines on stdout, or sentences on stderr."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json

    def _out(self, event: str, sentence: str, **fields: object) -> None:
        if self._json:
            line = {"schema": "nodeagent.feed/v1", "event": event, **fields}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
        else:
            click.echo(sentence, err=True)

    def ready(self, plan: FeederPlan, feed: Feed) -> None:
        """The data thread runs: what is sent from now on is received."""
        note = note_of(plan, feed)
        lines = [{"group": x.group, "port": x.port, "interface": x.interface} for x in feed.lines]
        self._out(
            "ready",
            f"feed {plan.name}: receiving {', '.join(map(str, feed.lines)) or plan.file}; {note}",
            feed=plan.name,
            source=plan.source.value,
            lines=lines,
            note=note,
            pid=os.getpid(),
        )
        if "NOTIFY_SOCKET" in os.environ:
            from cysystemd.daemon import sd_notify

            sd_notify(f"READY=1\nSTATUS=receiving, {note}")

    def offered(self, plan: FeederPlan, accepted: bool) -> None:
        """The daemon took the rings, or is away."""
        where = plan.socket
        self._out(
            "offered" if accepted else "alone",
            f"feed {plan.name}: "
            + (f"offered on {where}" if accepted else f"nobody serves {where} yet; publishing on"),
            feed=plan.name,
            socket=where,
        )

    def ended(self, plan: FeederPlan, counts: Counts, dropped: int | None, position: int) -> None:
        """The last figures."""
        lost = losses(counts, dropped is not None or plan.source is Source.CAPTURE)
        total = sum(n or 0 for n in lost.values())
        bad = ", ".join(f"{n:,} {kind}" for kind, n in counts.bad)
        self._out(
            "end",
            f"feed {plan.name}: {counts.published:,} messages of {counts.packets:,} packets, "
            f"{total:,} lost, {counts.duplicates:,} duplicates" + (f"; bad: {bad}" if bad else ""),
            feed=plan.name,
            source=plan.source.value,
            messages=counts.published,
            packets=counts.packets,
            bytes=counts.bytes,
            duplicates=counts.duplicates,
            late=counts.late,
            rejected=counts.rejected,
            filtered=counts.filtered,
            span=counts.span,
            lost=lost,
            gaps=counts.gaps,
            kernel_dropped_packets=dropped,
            first_seq=counts.first_seq,
            next_seq=counts.next_seq,
            sessions=counts.sessions,
            session_ends=counts.session_ends,
            bad=dict(counts.bad),
            ring_position=position,
        )
