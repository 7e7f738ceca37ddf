"""The live screen of the main job: one picture from one View. Nothing here reads or waits."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from nodeagent.cli.output import VERDICT_STYLE
from nodeagent.cli.standalone.view import View
from nodeagent.model.feed import FeedStatus, ReaderStatus, RingStatus
from nodeagent.model.finding import Finding, Verdict
from nodeagent.model.histogram import Histogram, bounds
from nodeagent.model.placement import Held
from nodeagent.model.status import NodeStatus

FINDINGS_SHOWN = 6
BAR = "▏▎▍▌▋▊▉█"
BAR_WIDTH = 24
_RANK = {Verdict.REFUSE: 0, Verdict.FAIL: 0, Verdict.WARN: 1, Verdict.UNKNOWN: 2}


def count(value: float) -> str:
    """A number with thousands separators."""
    return f"{value:,.0f}"


def micros(ns: float | None) -> str:
    """Nanoseconds as microseconds with three digits that count; - for None."""
    if ns is None:
        return "-"
    us = ns / 1000
    return f"{us:,.0f}" if us >= 100 else f"{us:.1f}"


def bar(share: float, width: int = BAR_WIDTH) -> str:
    """A bar of eighths of a column; any share above 0 shows at least one eighth."""
    eighths = max(1, round(share * width * 8)) if share > 0 else 0
    full, rest = divmod(eighths, 8)
    return "█" * full + (BAR[rest - 1] if rest else "")


def powers_of_two(histogram: Histogram) -> list[tuple[str, int]]:
    """(label in microseconds, count) rows of a nanosecond histogram, a row for each power of
    two."""
    rows: dict[int, int] = {}
    for bucket, n in enumerate(histogram.counts):
        if n:
            low_us = bounds(bucket)[0] / 1000
            power = 0 if low_us < 1 else int(low_us).bit_length()
            rows[power] = rows.get(power, 0) + n
    if not rows:
        return []
    label = {p: "< 1" if p == 0 else f"{2 ** (p - 1)}-{2**p}" for p in range(max(rows) + 1)}
    return [(label[p], rows.get(p, 0)) for p in range(min(rows), max(rows) + 1)]


def grid(columns: Iterable[tuple[str, bool]], title: str) -> Table:
    """An unboxed table; a column is (heading, whether numbers stand in it)."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for heading, number in columns:
        table.add_column(heading, justify="right" if number else "left", header_style="dim")
    return table


def headline(view: View) -> Text:
    """Verdict first, as the monitoring-plugin line has it."""
    text = Text()
    status = view.status
    if status is None:
        text.append(view.step, style="bold")
        return text
    text.append(str(status.verdict), style=VERDICT_STYLE[status.verdict])
    counted = [f for f in status.findings if f.counts and f.verdict != Verdict.OK]
    worst = min(counted, key=lambda f: _RANK.get(f.verdict, 9), default=None)
    text.append(f" - {len(counted)} finding{'s' if len(counted) != 1 else ''}")
    if worst is not None:
        text.append(f", worst {worst.id}")
    of = f" of {view.planned_s:.0f}" if view.planned_s is not None else ""
    text.append(f"   {status.hostname}   {view.elapsed_s:.0f}{of} s   {view.step}", style="dim")
    return text


def findings(found: Iterable[Finding]) -> RenderableType:
    """The worst findings, each with its remedy."""
    rows = sorted(
        (f for f in found if f.counts and f.verdict in _RANK),
        key=lambda f: (_RANK[f.verdict], f.id),
    )
    table = grid([("", False), ("finding", False), ("what, and what to do", False)], "Machine")
    for f in rows[:FINDINGS_SHOWN]:
        said = Text(f.message)
        if f.remedy:
            said.append(f" → {f.remedy}", style="dim")
        table.add_row(Text(str(f.verdict), style=VERDICT_STYLE[f.verdict]), f.id, said)
    if len(rows) > FINDINGS_SHOWN:
        table.add_row("", "", f"and {len(rows) - FINDINGS_SHOWN} more: nodeagentctl topology check")
    if not rows:
        table.add_row(Text("OK", style="green"), "", "nothing to say against this machine")
    return table


def placements(held: Iterable[Held], refused: Iterable[str]) -> RenderableType:
    """Where each workload belongs, where it is, and whether it stays there."""
    table = grid(
        [
            ("workload", False),
            ("kind", False),
            ("pid", True),
            ("sharing", False),
            ("before", False),
            ("planned", False),
            ("actual", False),
            ("ran inside", True),
            ("", False),
        ],
        "Placements",
    )
    for h in held:
        inside = "-" if h.ran_inside is None else f"{h.ran_inside:.1%}"
        ok = Text("held", style="green") if h.held else Text("not held", style="yellow")
        table.add_row(
            h.workload,
            h.kind,
            str(h.pid or "-"),
            str(h.sharing),
            str(h.cpus_before if h.cpus_before is not None else "-"),
            str(h.cpus_planned),
            str(h.cpus_actual if h.cpus_actual is not None else "-"),
            inside,
            ok,
        )
    return Group(table, *(Text(f"refused  {sentence}", style="yellow") for sentence in refused))


def ages(reader: ReaderStatus) -> tuple[str, str, str]:
    """Age of the oldest record it has not read (0: none), now, then p50 and p99; microseconds."""
    known = dict(reader.data_age_quantiles_ns)
    return micros(reader.data_age_ns), micros(known.get("p50")), micros(known.get("p99"))


def feed(feeds: Iterable[FeedStatus], rings: Iterable[RingStatus], rate: float) -> RenderableType:
    """Rate and loss of each feed, then each reader of each ring."""
    table = grid(
        [("feed", False), ("source", False), ("messages/s", True), ("messages", True)]
        + [(f"lost {stage}", True) for stage in ("nic", "kernel", "backend", "decoder", "gap")],
        "Feed",
    )
    for f in feeds:
        loss = (f.loss.nic, f.loss.kernel, f.loss.backend, f.loss.decoder, f.loss.wire_gap)
        cells = [
            Text("unknown", style="magenta")
            if n is None
            else Text(count(n), style="red" if n else "")
            for n in loss
        ]
        table.add_row(f.feed, f.source, count(rate), count(f.messages), *cells)
    readers = grid(
        [
            ("reader", False),
            ("pid", True),
            ("records", True),
            ("lost", True),
            ("lag", True),
            ("data age µs now", True),
            ("p50", True),
            ("p99", True),
            ("", False),
        ],
        "Ring",
    )
    for ring in rings:
        for r in ring.readers:
            readers.add_row(
                r.name,
                str(r.pid),
                count(r.records),
                Text(count(r.lost), style="red" if r.lost else ""),
                count(r.lag_records),
                *ages(r),
                "" if r.alive else Text("dead", style="red"),
            )
    return Group(table, Text(), readers)


def jitter(status: NodeStatus) -> RenderableType:
    """Run-queue latency of the watched threads, as a histogram; or the sentence why there is
    none."""
    title = Text("Run-queue latency of the workloads' threads", style="bold")
    if not status.probe.available:
        return Group(title, Text(status.probe.reason or "not available", style="yellow"))
    total = sum((d.runq for d in status.probe.delays), Histogram(counts=()))
    rows = powers_of_two(total)
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for justify in ("right", "left", "right"):
        table.add_column(justify=justify)
    top = max((n for _, n in rows), default=0)
    for label, n in rows:
        table.add_row(f"{label} µs", Text(bar(n / top), style="cyan"), count(n))
    tail = Text(
        f"{count(total.samples)} samples   p50 {micros(total.quantile(0.5))} µs   "
        f"p99 {micros(total.quantile(0.99))} µs   max {micros(total.maximum)} µs"
        + (f"   {count(status.probe.dropped)} dropped" if status.probe.dropped else ""),
        style="dim",
    )
    return Group(title, table, tail)


def footer(view: View) -> RenderableType:
    """Vector queries, controller link, our own cost."""
    text = Text()
    v = view.vector
    if v is not None:
        recall = "-" if v.recall is None else f"{v.recall:.3f}"
        text.append("Vector   ", style="bold")
        text.append(
            f"{v.rate_per_s:.0f} queries/s   p50 {v.p50_us:,.0f} µs   p99 {v.p99_us:,.0f} µs   "
            f"recall {recall}\n"
        )
    if view.status is not None:
        link = view.status.controller
        text.append("Control  ", style="bold")
        if link.connected:
            text.append("connected", style="green")
        else:
            text.append(f"not connected {link.reason}", style="yellow")
        text.append(
            f"   {link.address}   {link.reports} reports   {link.unacknowledged} unacknowledged\n"
        )
    if view.cost is not None:
        text.append("Ourself ", style="bold")
        text.append(
            f" {view.cost.cpu_percent:.2f} % of a CPU   {view.cost.pss_bytes / 2**20:.0f} MiB PSS"
        )
    return text


def render(view: View) -> RenderableType:
    """The whole screen."""
    status = view.status
    parts: list[RenderableType] = [headline(view)]
    if status is not None:
        refused = [f"{r.workload}: {r.reason}" for r in status.placement.refused]
        parts += [
            Text(),
            findings(status.findings),
            Text(),
            placements(status.held, refused),
            Text(),
            feed(status.feeds, status.rings, view.rate_per_s),
            Text(),
            jitter(status),
            Text(),
        ]
    parts.append(footer(view))
    parts += [Text(n, style="yellow") for n in view.notes[-3:]]
    return Panel(
        Group(*parts),
        title="nodeagent",
        subtitle="Ctrl-C stops and undoes everything",
        padding=(0, 1),
    )
