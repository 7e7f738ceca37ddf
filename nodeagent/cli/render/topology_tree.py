"""The machine as a tree on a terminal, with what was found beside the device that it is about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nodeagent.check.summary import sentence
from nodeagent.cli.render.item import Item
from nodeagent.cli.render.machine import machine
from nodeagent.cli.render.marks import Mark, Marks, place
from nodeagent.cli.render.relations import print_relations
from nodeagent.errors import visible
from nodeagent.model.finding import Finding, Verdict
from nodeagent.model.pci import NVIDIA
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.words import many

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

STYLE = {
    "machine": "bold",
    "package": "bold",
    "node": "bold cyan",
    "unplaced": "bold yellow",
    "l3": "dim",
    "root": "dim",
    "switch": "blue",
    "gpu": "bold green",
    "nic": "bold magenta",
    "nvme": "bold yellow",
    "other": "",
}
DEVICES = ("gpu", "nic", "nvme", "other")
WIDTH = 100
SYMBOL = {Verdict.FAIL: "✗", Verdict.WARN: "▲", Verdict.UNKNOWN: "?", Verdict.INFO: "i"}
PLAIN = {Verdict.FAIL: "x", Verdict.WARN: "!", Verdict.UNKNOWN: "?", Verdict.INFO: "i"}
"""Where the terminal's encoding has no more than ASCII."""
GUIDES = ("│   ", "    ", "├── ", "└── ")
PLAIN_GUIDES = ("|   ", "    ", "+-- ", "`-- ")
MAX_MARKS = 3
"""Findings named beside one device; the rest are counted."""


def print_topology(snapshot: Snapshot, findings: Sequence[Finding] = ()) -> None:
    """Prints it, at most WIDTH columns wide."""
    from nodeagent.cli.output import console

    out = console()
    top = machine(snapshot)
    page = _Page(out, min(WIDTH, out.width), place(snapshot, top, findings))
    page.tree(top)
    print_relations(out, snapshot, page.width)
    if findings:
        page.findings()
    _rest(out, snapshot, page.width)


class _Page:
    """One printing: where to, how wide, which marks."""

    def __init__(self, out: Console, width: int, marks: Marks) -> None:
        self.out = out
        self.width = width
        self.marks = marks
        unicode = (out.encoding or "").lower().replace("-", "").startswith("utf")
        self.symbol = SYMBOL if unicode else PLAIN
        self.guides = GUIDES if unicode else PLAIN_GUIDES

    # ---- the tree ------------------------------------------------------------------------------

    def tree(self, top: Item) -> None:
        """The whole machine."""
        self._print(self._heading(top))
        for row in self._rows(top.inside, ""):
            self._print(row)

    def _heading(self, top: Item) -> list[tuple[str, str]]:
        from rich.cells import cell_len

        cells = [(top.title, "bold")]
        used = self.width
        for fact in (*top.facts, *top.odd):
            style = "yellow" if fact in top.odd else "default"
            begin = "\n  " if used + 2 + cell_len(fact) > self.width else ", "
            used = 2 + cell_len(fact) + (0 if begin == "\n  " else used)
            cells.append((begin + fact, style))
        marks = [m for m in self.marks.of(top) if m.finding.verdict is not Verdict.INFO]
        return cells + [("\n  " + text, style) for text, style in self._named(marks)]

    def _rows(self, items: Sequence[Item], before: str) -> Iterator[list[tuple[str, str]]]:
        passed, blank, branch, end = self.guides
        items = [_merged(i) for i in items]
        # The columns of devices that stand side by side begin at the same places.
        rows = [i for i in items if i.kind in DEVICES]
        names = max((len(visible(i.title)) for i in rows), default=0)
        links = max((len(i.link) for i in rows if not i.slow), default=0)
        for i, item in enumerate(items):
            last = i == len(items) - 1
            lead, under = before + (end if last else branch), before + (blank if last else passed)
            cells = self._cells(item, min(names, 28), links)
            yield from self._wrapped(lead, under + (passed if item.inside else blank), cells)
            yield from self._rows(item.inside, under)

    def _cells(self, item: Item, names: int, links: int) -> list[tuple[str, str]]:
        if item.kind in DEVICES:
            cells = [
                (visible(item.title).ljust(names), STYLE[item.kind]),
                (item.at, "default"),
            ]
            if item.link:
                cells.append((f"PCIe {item.link.ljust(links)}", "yellow" if item.slow else ""))
            elif links:
                cells.append((" " * (5 + links), ""))
        else:
            cells = [(f"{item.title} {item.at}".strip(), STYLE[item.kind])]
            if item.link:
                cells.append((f"PCIe {item.link}", "yellow" if item.slow else ""))
        cells += [(fact, "default") for fact in item.facts]
        cells += [(fact, "yellow") for fact in item.odd]
        named = self._named(self.marks.of(item))
        cells += named[:MAX_MARKS]
        if len(named) > MAX_MARKS:
            cells.append((f"and {len(named) - MAX_MARKS} more", "dim"))
        return cells

    def _wrapped(
        self, lead: str, under: str, cells: list[tuple[str, str]]
    ) -> Iterator[list[tuple[str, str]]]:
        """One row, or several: what does not fit goes below the title."""
        from rich.cells import cell_len

        row, used = [(lead, "dim")], cell_len(lead)
        for i, (text, style) in enumerate(cells):
            text = visible(text)
            gap = 2 if i else 0
            if i and used + gap + cell_len(text) > self.width:
                yield row
                row, used, gap = [(under, "dim")], cell_len(under), 0
            for part in _pieces(text, max(20, self.width - used - gap)):
                if used + gap + cell_len(part) > self.width and len(row) > 1:
                    yield row
                    row, used, gap = [(under, "dim")], cell_len(under), 0
                row.append((" " * gap + part, style))
                used += gap + cell_len(part)
        yield row

    def _named(self, marks: Sequence[Mark]) -> list[tuple[str, str]]:
        """One cell for each check, with how often it speaks where that is more than once."""
        groups: dict[tuple[str, str], int] = {}
        for mark in marks:
            key = (self._mark(mark), self._style(mark))
            groups[key] = groups.get(key, 0) + 1
        return [
            (f"{text} ({count})" if count > 1 else text, style)
            for (text, style), count in groups.items()
        ]

    def _mark(self, mark: Mark) -> str:
        return f"{self.symbol[mark.finding.verdict]} {mark.finding.id}"

    def _style(self, mark: Mark) -> str:
        from nodeagent.cli.output import VERDICT_STYLE

        return VERDICT_STYLE[mark.finding.verdict.value]

    # ---- what was found ------------------------------------------------------------------------

    def findings(self) -> None:
        """FAIL and WARN with their sentences; what else there is, counted; the legend."""
        import textwrap

        marks = self.marks.marks
        self.out.print()
        bad = [m for m in marks if m.finding.verdict in (Verdict.FAIL, Verdict.WARN)]
        for mark in bad:
            head = f"{self._mark(mark)}  "
            words = sentence(mark.finding)
            text = textwrap.fill(
                visible(head + words),
                self.width,
                subsequent_indent="  ",
                break_on_hyphens=False,
            )
            self._print([(text[: len(head)], self._style(mark)), (text[len(head) :], "default")])
        notes = len(marks) - len(bad)
        told = []
        if not bad:
            told.append(f"nothing wrong in {many(self.marks.answers, 'answer')}")
        if notes:
            told.append(many(notes, "note"))
        if self.marks.questions:
            told.append(f"{many(self.marks.questions, 'question')} without an answer")
        if told:
            self._print([(", ".join(told) + ": nodeagentctl topology check", "dim")])
        if marks:
            seen = {m.finding.verdict for m in marks}
            legend = "  ".join(f"{self.symbol[v]} {v}" for v in SYMBOL if v in seen)
            self._print([(f"{legend}; nodeagentctl explain ID tells more", "dim")])

    def _print(self, cells: list[tuple[str, str]]) -> None:
        from rich.text import Text

        line: Text = Text.assemble(*cells)
        line.rstrip()
        self.out.print(line, soft_wrap=True)


def _merged(item: Item) -> Item:
    """A PCIe root with one thing on it shares that thing's line."""
    from dataclasses import replace

    if item.kind != "root" or len(item.inside) != 1 or item.title.startswith("PCI "):
        return item
    (child,) = item.inside
    keys = child.keys | item.keys
    if child.kind == "switch":
        return replace(child, title=f"{item.title}, {child.title}", keys=keys)
    return replace(child, keys=keys)


def _pieces(text: str, width: int) -> list[str]:
    """A text that no line has room for, in pieces."""
    if len(text) <= width:
        return [text]
    return [text[i : i + width] for i in range(0, len(text), width)]


def _rest(out: Console, snapshot: Snapshot, width: int) -> None:
    nvidia = any(f.vendor == NVIDIA and f.computes for f in snapshot.topology.pci)
    if nvidia and not snapshot.nvml.available:
        out.print(f"NVML: {snapshot.nvml.reason}", style="yellow", markup=False, width=width)
    if snapshot.unread:
        first = snapshot.unread[0]
        more = len(snapshot.unread) - 1
        out.print(
            f"not read: {first.path}: {first.reason}"
            + (f", and {more} more (-o json lists them)" if more else ""),
            style="dim",
            markup=False,
            width=width,
        )
