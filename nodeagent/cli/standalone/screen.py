"""The live screen of the main job: one picture from one View. Nothing here reads or waits."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from nodeagent.check.summary import summary as plugin_line
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


def grid(columns: Iterable[tuple[str, bool]], title: str, *, wide: bool = True) -> Table:
    """An unboxed table; a column is (heading, whether numbers stand in it)."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 2 if wide else 1, 0, 0),
    )
    for heading, number in columns:
        table.add_column(heading, justify="right" if number else "left", header_style="dim")
    return table


def headline(view: View) -> Text:
    """The monitoring-plugin line, then where and since when; before that, the step."""
    text = Text(no_wrap=True, overflow="ellipsis")
    status = view.status
    if status is None or not status.findings:
        text.append(view.step, style="bold")
        return text
    verdict = str(status.verdict)
    text.append(verdict, style=VERDICT_STYLE[verdict])
    text.append(plugin_line(status.findings).removeprefix(verdict) + "\n")
    of = f" of {view.planned_s:.0f}" if view.planned_s is not None else ""
    text.append(f"{status.hostname}   {view.step}, {view.elapsed_s:.0f}{of} s", style="dim")
    return text


def findings(
    found: Iterable[Finding], shown: int = FINDINGS_SHOWN, *, short: bool = False
) -> RenderableType:
    """The worst findings, each with its remedy: at most `shown` of them, cut to a line each where
    it must be `short`."""
    rows = sorted(
        (f for f in found if f.counts and f.verdict in _RANK),
        key=lambda f: (_RANK[f.verdict], f.id),
    )
    table = grid([("", False), ("finding", False), ("what, and what to do", False)], "Machine")
    for f in rows[:shown]:
        said = Text(f.message, no_wrap=short, overflow="ellipsis")
        if f.remedy:
            said.append(f" → {f.remedy}", style="dim")
        table.add_row(Text(str(f.verdict), style=VERDICT_STYLE[f.verdict]), f.id, said)
    if len(rows) > shown:
        table.add_row("", "", f"and {len(rows) - shown} more: nodeagentctl topology check")
    if not rows:
        table.add_row(Text("OK", style="green"), "", "nothing to say against this machine")
    return table


def placements(
    held: Iterable[Held], refused: Iterable[str], notes: Iterable[str] = (), *, wide: bool = True
) -> RenderableType:
    """Where each workload belongs, where it is, whether it stays there, and what the plan notes."""
    columns = [
        ("workload", False),
        ("kind", False),
        ("pid", True),
        ("sharing", False),
        ("before", False),
        ("planned", False),
        ("actual", False),
        ("ran inside", True),
        ("", False),
    ]
    table = grid([c for c in columns if wide or c[0] != "kind"], "Placements", wide=wide)
    for h in held:
        inside = "-" if h.ran_inside is None else f"{h.ran_inside:.1%}"
        if h.pid is None:
            state = Text("planned", style="dim")
        else:
            state = Text("held", style="green") if h.held else Text("not held", style="yellow")
        cells: list[str | Text] = [
            h.workload,
            h.kind,
            str(h.pid or "-"),
            str(h.sharing),
            str(h.cpus_before if h.cpus_before is not None else "-"),
            str(h.cpus_planned),
            str(h.cpus_actual if h.cpus_actual is not None else "-"),
            inside,
            state,
        ]
        table.add_row(*(c for i, c in enumerate(cells) if wide or i != 1))
    return Group(
        table,
        *(Text(f"refused  {sentence}", style="yellow") for sentence in refused),
        *(Text(note, style="dim") for note in notes),
    )


def ages(reader: ReaderStatus) -> tuple[str, str, str]:
    """Age of the oldest record it has not read (0: none), now, then p50 and p99; microseconds."""
    known = dict(reader.data_age_quantiles_ns)
    return micros(reader.data_age_ns), micros(known.get("p50")), micros(known.get("p99"))


def feed(
    feeds: Iterable[FeedStatus],
    rings: Iterable[RingStatus],
    rate: float,
    *,
    wide: bool = True,
) -> RenderableType:
    """Rate and loss of each feed, then each reader of each ring."""
    table = grid(
        [("feed", False), ("source", False), ("messages/s", True), ("messages", True)]
        + [(f"{stage}", True) for stage in ("nic", "kernel", "backend", "decoder", "gap")],
        "Feed, and what it lost by stage",
        wide=wide,
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
        wide=wide,
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
    return Group(table, *((Text(),) if wide else ()), readers)


def jitter(status: NodeStatus, shown: int = 64) -> RenderableType:
    """Run-queue latency of the watched threads, as a histogram of at most `shown` rows (those
    around the fullest one); or the sentence why there is none."""
    title = Text("Run-queue latency of the workloads' threads", style="bold")
    if not status.probe.available:
        return Group(title, Text(status.probe.reason or "not available", style="yellow"))
    total = sum((d.runq for d in status.probe.delays), Histogram(counts=()))
    rows = powers_of_two(total)
    top = max((n for _, n in rows), default=0)
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for justify in ("right", "left", "right"):
        table.add_column(justify=justify)
    for label, n in window(rows, shown):
        table.add_row(f"{label} µs", Text(bar(n / top), style="cyan"), count(n))
    tail = Text(
        f"{count(total.samples)} samples   p50 {micros(total.quantile(0.5))} µs   "
        f"p99 {micros(total.quantile(0.99))} µs   max {micros(total.maximum)} µs"
        + (f"   {count(status.probe.dropped)} dropped" if status.probe.dropped else ""),
        style="dim",
    )
    return Group(title, *((table,) if shown and rows else ()), tail)


def window(rows: list[tuple[str, int]], shown: int) -> list[tuple[str, int]]:
    """The `shown` neighbouring rows that hold the most."""
    if len(rows) <= shown:
        return rows
    sums = [sum(n for _, n in rows[at : at + shown]) for at in range(len(rows) - shown + 1)]
    best = max(range(len(sums)), key=sums.__getitem__)
    return rows[best : best + shown]


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
            "   this screen included"
        )
    text.rstrip()
    return text


WIDE = 100
"""Columns from which on nothing is left out for want of width."""
TALL = 30
"""Lines from which on there is a frame around it."""
HINT = "Ctrl-C stops and undoes everything"
ROWS = (64, 12, 8, 6, 4, 3, 2, 0)
"""Heights of the histogram that are tried."""


def render(view: View, size: tuple[int, int] = (WIDE, 1000)) -> RenderableType:
    """The whole screen for a terminal of (columns, lines).

    What does not fit is left out in this order: blank lines, rows of the histogram, findings but
    the first; placements, feed, readers, controller and cost always stand there.
    """
    columns, lines = size
    wide, framed = columns >= WIDE, lines >= TALL
    console = Console(width=max(columns - 4 * framed, 20), color_system=None, file=io.StringIO())

    def height(part: RenderableType) -> int:
        return len(console.render_lines(part, console.options.update(height=None), pad=False))

    def picture(body: RenderableType) -> RenderableType:
        if not framed:
            return body
        return Panel(body, title="nodeagent", subtitle=HINT, padding=(0, 1))

    status = view.status
    notes = [Text(n, style="yellow") for n in view.notes[-3:]]
    top = headline(view)
    if not framed:
        top.append(f"   {HINT}", style="dim")
    if status is None or not status.findings:
        return picture(Group(top, footer(view), *notes))
    refused = [f"{r.workload}: {r.reason}" for r in status.placement.refused]
    # Why PUs are shared, where there is room to say so.
    remarks = status.placement.notes if framed else ()
    pinned = placements(status.held, refused, remarks, wide=wide)
    fed = feed(status.feeds, status.rings, view.rate_per_s, wide=wide)
    bottom: list[RenderableType] = [footer(view), *notes]
    left = lines - 2 * framed - sum(map(height, [top, pinned, fed, *bottom]))
    rows_whole = histogram_rows(status)
    for shown, short in itertools.product(range(FINDINGS_SHOWN, 0, -1), (False, True)):
        machine = findings(status.findings, shown, short=short)
        room = left - height(machine) - height(jitter(status, 0))
        if room < 0:
            continue
        # A blank line between the parts where all else has its place.
        blank = [Text()] * (room >= min(rows_whole, ROWS[0]) + 5)
        rows = next(n for n in ROWS if min(n, rows_whole) + 5 * len(blank) <= room)
        parts = [top, machine, pinned, fed, jitter(status, rows)]
        body = [x for part in parts for x in (part, *blank)]
        return picture(Group(*body, *bottom))
    # Not even one finding has room: the first line counts them.
    return picture(Group(top, pinned, fed, jitter(status, 0), *bottom))


def histogram_rows(status: NodeStatus) -> int:
    """Rows of the whole histogram."""
    if not status.probe.available:
        return 0
    return len(powers_of_two(sum((d.runq for d in status.probe.delays), Histogram(counts=()))))
