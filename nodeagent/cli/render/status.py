"""A node's status on one screen and as JSON (schema status/v1), and events as lines (event/v1)."""

from __future__ import annotations

import dataclasses
import enum
import time
from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.text import Text

from nodeagent.check.summary import summary
from nodeagent.cli.output import VERDICT_STYLE, console
from nodeagent.cli.standalone import screen
from nodeagent.errors import visible
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.event import Event, Severity
from nodeagent.model.histogram import Histogram
from nodeagent.model.status import NodeStatus

Json = dict[str, object]

SEVERITY_STYLE = {Severity.INFO: "cyan", Severity.WARNING: "yellow", Severity.ERROR: "bold red"}


PAIRS = frozenset({"wire_to_ring_ns", "data_age_quantiles_ns", "run_ns_by_cpu"})
"""Fields that hold (key, value) pairs: objects in JSON."""


def plain(text: str) -> str:
    """Text of another machine without what would move a terminal's cursor."""
    return visible(text)


def when(at_ns: int) -> str:
    """CLOCK_REALTIME nanoseconds as ISO 8601, UTC, milliseconds; "-" for 0 and less."""
    if at_ns <= 0:
        return "-"
    seconds, rest = divmod(at_ns, 10**9)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest // 10**6:03}Z"


def ago(seconds: float) -> str:
    """A span of time in its greatest unit."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(seconds, 0):.0f} s"


def as_json(value: object) -> object:
    """A model value for JSON: CPU sets as cpulists, histograms as quantiles in their unit."""
    if isinstance(value, CpuSet):
        return str(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Histogram):
        return {
            "samples": value.samples,
            "p50": value.quantile(0.5),
            "p99": value.quantile(0.99),
            "max": value.maximum,
        }
    if isinstance(value, tuple | list):
        return [as_json(v) for v in value]
    if dataclasses.is_dataclass(value):
        return {
            f.name: dict(getattr(value, f.name))
            if f.name in PAIRS
            else as_json(getattr(value, f.name))
            for f in dataclasses.fields(value)
        }
    return value


def status_json(status: NodeStatus) -> Json:
    """The body of status/v1."""
    body = as_json(status)
    assert isinstance(body, dict)
    for finding, row in zip(status.findings, body["findings"], strict=True):
        row["doc"] = finding.doc
    return {"at": when(status.at_ns), **body}


def event_json(event: Event) -> Json:
    """The body of event/v1."""
    body = as_json(event)
    assert isinstance(body, dict)
    return {"at": when(event.at_ns), **body}


def event_line(event: Event, node: str = "") -> Text:
    """One event on one line; the remedy follows it."""
    text = Text(f"{when(event.at_ns)}  ", style="dim")
    text.append(f"{event.severity.value:7}  ", SEVERITY_STYLE[event.severity])
    if node:
        text.append(f"{plain(node)}  ", "bold")
    text.append(f"{plain(event.kind)}  ", "none")
    text.append(f"{plain(event.subject)}: ", "bold")
    text.append(plain(event.message), "none")
    if event.remedy:
        text.append(f"  → {plain(event.remedy)}", "cyan")
    return text


def print_status(status: NodeStatus) -> None:
    """One screen; its first line is a monitoring-plugin line, whole however narrow the screen."""
    out = console()
    out.print(headline(status), soft_wrap=True)
    out.print(status_screen(status))


def headline(status: NodeStatus) -> Text:
    """The monitoring-plugin line."""
    line = summary(status.findings)
    word = line.partition(" ")[0]
    return Text(word, VERDICT_STYLE[word]).append(line[len(word) :], "none")


def status_screen(status: NodeStatus) -> RenderableType:
    """What stands below the headline: placements, feed, rings, probe, link, cost."""
    age_s = (status.at_ns - status.started_ns) / 1e9
    who = Text(
        f"{plain(status.hostname)}   nodeagent {status.version}   {when(status.at_ns)}   "
        f"up {ago(age_s)}, {status.turns:,} turns",
        style="dim",
    )
    parts: list[RenderableType] = [who, Text(plain(status.sentence))]
    if status.frozen is not None:
        parts.append(Text(f"frozen: {plain(status.frozen)}", style="yellow"))
    parts += [Text(), screen.findings(status.findings)]
    if status.held or status.placement.refused:
        refused = [f"{r.workload}: {r.reason}" for r in status.placement.refused]
        parts += [Text(), screen.placements(status.held, refused)]
    else:
        parts += [Text(), Text("no workload is configured", style="dim")]
    if status.feeds or status.rings:
        parts += [Text(), _feeds(status), Text(), _rings(status)]
    parts += [Text(), screen.jitter(status), Text(), _link(status), _cost(status)]
    return Group(*parts)


def _feeds(status: NodeStatus) -> RenderableType:
    columns = [("feed", False), ("source", False), ("messages", True), ("rejected", True)]
    columns += [(s, True) for s in ("lost: nic", "kernel", "backend", "decoder", "gap")]
    table = screen.grid([*columns, ("age µs", True)], "Feeds")
    for f in status.feeds:
        loss = (f.loss.nic, f.loss.kernel, f.loss.backend, f.loss.decoder, f.loss.wire_gap)
        cells = [
            Text("unknown", style="magenta")
            if n is None
            else Text(screen.count(n), style="red" if n else "")
            for n in loss
        ]
        table.add_row(
            f.feed,
            f.source,
            screen.count(f.messages),
            screen.count(f.rejected),
            *cells,
            screen.micros(f.last_message_age_ns),
        )
    return table


def _rings(status: NodeStatus) -> RenderableType:
    columns = [("ring", False), ("reader", False), ("pid", True), ("records", True)]
    columns += [("lost", True), ("lag", True), ("data age µs now", True), ("p50", True)]
    columns += [("p99", True), ("", False)]
    table = screen.grid(columns, "Rings")
    for ring in status.rings:
        state = Text("draining", style="yellow") if ring.draining else Text()
        if not ring.producer_alive:
            state = Text("producer dead", style="red")
        table.add_row(
            f"{ring.feed} {ring.kind}",
            "",
            str(ring.producer_pid),
            screen.count(ring.head),
            *[""] * 5,
            state,
        )
        for r in ring.readers:
            table.add_row(
                "",
                plain(r.name),
                str(r.pid),
                screen.count(r.records),
                Text(screen.count(r.lost), style="red" if r.lost else ""),
                screen.count(r.lag_records),
                *screen.ages(r),
                Text() if r.alive else Text("dead", style="red"),
            )
    return table


def _link(status: NodeStatus) -> Text:
    link = status.controller
    text = Text("Controller  ", style="bold")
    if not link.configured:
        return text.append("none is configured", "dim")
    if link.connected:
        text.append("connected", "green")
    else:
        text.append("not connected", "yellow")
    text.append(
        f"   {link.address}   {link.reports:,} reports   {link.unacknowledged:,} unacknowledged",
        "none",
    )
    if link.dropped:
        text.append(f"   {link.dropped:,} lost", "red")
    if link.reason:
        text.append(f"\n            {plain(link.reason)}", "yellow")
    return text


def _cost(status: NodeStatus) -> Text:
    text = Text("Our cost    ", style="bold")
    known = [c.pss_bytes for c in status.cost if c.pss_bytes is not None]
    total = sum(c.cpu_seconds for c in status.cost)
    text.append(f"{total:.1f} CPU s   {sum(known) / 2**20:.0f} MiB PSS", "none")
    parts = ", ".join(
        f"{c.part} {'-' if c.pss_bytes is None else f'{c.pss_bytes / 2**20:.0f}'}"
        for c in status.cost
    )
    return text.append(f"   ({parts})" if parts else "", "dim")


def events_screen(events: Iterable[Event]) -> RenderableType:
    """Events, a line each."""
    lines = [event_line(e) for e in events]
    return Group(*lines) if lines else Text("no events", style="dim")
