"""The machine as a picture: packages, nodes with memory, cores and caches, PCIe trees, findings."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nodeagent.check.summary import sentence
from nodeagent.cli.render.badge import COLOUR, SIGN, badge, badges, warn
from nodeagent.cli.render.item import Item
from nodeagent.cli.render.machine import distances, machine
from nodeagent.cli.render.marks import Marks, place
from nodeagent.cli.render.picture_links import links
from nodeagent.cli.render.picture_node import ISOLATED, PLAIN, core_groups, memory_bar
from nodeagent.cli.render.picture_pci import FILL, label_width, tree
from nodeagent.cli.render.svg import (
    FAINT,
    RED,
    Group,
    Line,
    Shape,
    Text,
    document,
    fit,
    text_width,
)
from nodeagent.cli.render.words import short, size
from nodeagent.model.finding import Finding, Verdict
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.words import many

PAD, GAP = 10.0, 10.0
ASPECT = 1.5
"""Width by height that a picture comes near to."""
MAX_WIDTH = 2800.0
MAX_FINDINGS = 24
"""Findings spelled out below the picture; the rest are counted."""
MAX_LINES = 3
"""Lines of one finding's sentence."""


def topology_svg(snapshot: Snapshot, findings: Sequence[Finding] = ()) -> str:
    """The picture as SVG text."""
    top = machine(snapshot)
    marks = place(snapshot, top, findings)
    label = label_width(top)
    # Packages that are frames around nodes have rows of their own.
    frames: list[Group] = []
    others: list[Group] = []
    for item in top.inside:
        box = _box(snapshot, item, marks, label)
        if box is not None:
            (frames if item.kind == "package" else others).append(box)
    body = _below([_best(g) for g in (frames, others) if g])
    parts = [_header(top, marks, max(body.width, 720.0)), body]
    between = links(snapshot)
    if between is not None:
        parts.append(between)
    width = max(p.width for p in parts)
    if findings:
        parts.append(_list(marks, width))
    parts.append(_legend(snapshot, top, marks, width))
    page = Group(width + 2 * PAD, 0)
    y = PAD
    for part in parts:
        page.put(part, PAD, y)
        y += part.height + GAP
    page.height = y
    description = ". ".join((*top.facts, *top.odd, _summary(marks) if findings else ""))
    return document(page, f"{top.title}: its topology", description)


# ---- boxes in rows -----------------------------------------------------------------------------


def _rows(boxes: Sequence[Group], limit: float, *, even: bool = True) -> Group:
    """Boxes side by side, in rows of at most that width; those of a row get one height."""
    framed = [b for b in boxes if b.border != "none"]
    widest = max((b.width for b in framed), default=0.0)
    if framed and min(b.width for b in framed) > 0.7 * widest:
        for box in framed:
            box.width = widest
    group = Group(0, 0)
    x = y = 0.0
    row: list[Group] = []

    def end() -> float:
        tallest = max((b.height for b in row), default=0.0)
        for box in row:
            if even and box.border != "none":
                box.height = tallest
        return tallest

    for box in boxes:
        if row and x + box.width > limit:
            y += end() + GAP
            x, row = 0.0, []
        group.put(box, x, y)
        row.append(box)
        x += box.width + GAP
        group.width = max(group.width, x - GAP)
    group.height = y + end()
    return group


def _below(groups: Sequence[Group]) -> Group:
    """Groups one below the other."""
    whole = Group(max((g.width for g in groups), default=0.0), 0)
    for group in groups:
        whole.put(group, 0, whole.height + (GAP if whole.inside else 0))
        whole.height = group.y + group.height
    return whole


def _best(boxes: Sequence[Group]) -> Group:
    """The number of columns whose shape is nearest to ASPECT; rows that come out even are
    better."""
    if not boxes:
        return Group(0, 0)
    sizes = [(b.width, b.height) for b in boxes]
    widest = max(b.width for b in boxes)

    def laid(columns: int) -> Group:
        for box, (width, height) in zip(boxes, sizes, strict=True):
            box.width, box.height = width, height
        return _rows(boxes, columns * (widest + GAP))

    def trial(columns: int) -> float:
        rows = laid(columns)
        shape = abs(math.log(max(rows.width, 1) / max(rows.height, 1) / ASPECT))
        return shape + (0.5 if len(boxes) % columns else 0.0)

    most = max(1, min(len(boxes), int(MAX_WIDTH // widest)))
    return laid(min(range(1, most + 1), key=trial))


# ---- packages and nodes ------------------------------------------------------------------------


def _box(snapshot: Snapshot, item: Item, marks: Marks, label: float) -> Group | None:
    match item.kind:
        case "package":
            return _package(snapshot, item, marks, label)
        case "node" | "unplaced":
            return _node(snapshot, item, marks, label)
        case "root" | "switch" | "gpu" | "nic" | "nvme" | "other":
            return tree(item, marks, label)
        case _:
            return None


def _package(snapshot: Snapshot, item: Item, marks: Marks, label: float) -> Group:
    nodes = [b for b in (_box(snapshot, i, marks, label) for i in item.inside) if b is not None]
    body = _best(nodes)
    if not snapshot.topology.nodes and item.cpus:
        body = core_groups(snapshot, item.cpus)
    # A package that only holds nodes is a frame around them.
    return _framed(item, marks, [body], ("#f4f6f9", "#6b7789"), facts=item.facts)


def _node(snapshot: Snapshot, item: Item, marks: Marks, label: float) -> Group:
    parts: list[Group] = []
    facts: list[str] = []
    node = item.node
    alone = len(item.keys) <= 2 and not item.title.startswith("NUMA nodes")
    if node is not None and alone:
        bar = memory_bar(node)
        if bar is not None:
            parts.append(bar)
        facts += [f for f in item.facts if f in ("memory not known", "no CPUs")]
        facts += distances(node)
        pools = [h for h in node.hugepages if h.total]
        if pools:
            told = ", ".join(f"{h.total:,} x {size(h.size_bytes)} ({h.free:,} free)" for h in pools)
            facts.append(f"hugepages {told}")
        if node.cpus:
            parts.append(core_groups(snapshot, node.cpus))
    else:
        facts += item.facts
    trees = [tree(i, marks, label) for i in _gpus_first(item.inside) if i.kind != "l3"]
    if trees:
        parts.append(_best(trees) if item.kind == "unplaced" else _columns(trees))
    fill = ("#fffdf5", "#a87600") if item.kind == "unplaced" else ("#ffffff", "#2f5f96")
    return _framed(item, marks, parts, fill, facts=facts)


def _gpus_first(items: Sequence[Item]) -> list[Item]:
    return sorted(items, key=lambda i: not any(c.kind == "gpu" for c in i.walk()))


def _columns(trees: Sequence[Group]) -> Group:
    """Trees one below the other, in a second column where they are many."""
    total = sum(t.height + GAP for t in trees)
    columns = 1 if total <= 720 else 2 if total <= 1800 else 3
    group = Group(0, 0)
    x = y = 0.0
    widest = 0.0
    for box in trees:
        if y and y + box.height > total / columns + 20:
            x, y, widest = x + widest + 2 * GAP, 0.0, 0.0
        group.put(box, x, y)
        y += box.height + GAP
        widest = max(widest, box.width)
        group.width = max(group.width, x + box.width)
        group.height = max(group.height, y - GAP)
    return group


def _framed(
    item: Item,
    marks: Marks,
    parts: Sequence[Group],
    colours: tuple[str, str],
    *,
    facts: Sequence[str],
) -> Group:
    """A box with a title, its signs, its facts, and what is inside below them."""
    fill, border = colours
    mine = marks.of(item)
    signs = badges(mine, 150)
    title = Text(PAD, 19, item.title, 13, bold=True)
    least = text_width(title.text, 13, bold=True) + (signs.width + 10 if signs else 0)
    wanted = [p.width for p in parts] + [text_width(f, 11) for f in (*facts, *item.odd)]
    inner = max(min(max(wanted, default=0.0), max([420.0, *(p.width for p in parts)])), least)
    tip = ", ".join((item.title, *item.facts, *item.odd))
    box = Group(inner + 2 * PAD, 0, tip, fill, border, 1.4)
    warn(box, mine)
    box.write(title, inner - (signs.width + 6 if signs else 0))
    if signs:
        # At the title, not at the far end: boxes of a row are made equally wide later.
        box.put(signs, PAD + text_width(title.text, 13, bold=True) + 8, 7)
    y = 28.0
    for fact in (*item.odd, *facts):
        y += 15
        colour = RED if fact in item.odd else FAINT
        box.write(Text(PAD, y - 4, fact, 11, colour=colour), inner)
    for part in parts:
        y += 5
        box.put(part, PAD, y)
        y += part.height
    box.height = y + PAD
    return box


# ---- header, findings, legend ------------------------------------------------------------------


def _header(top: Item, marks: Marks, width: float) -> Group:
    group = Group(width, 0, radius=0)
    signs = badges(list(marks.of(top)), width / 3)
    room = width - (signs.width + 8 if signs else 0)
    group.write(Text(0, 22, top.title, 20, bold=True), room)
    if signs:
        group.put(signs, text_width(group.texts[0].text, 20, bold=True) + 8, 8)
    y = 26.0
    for line, odd in _lines(top, width):
        y += 17
        group.write(Text(0, y, line, 12.5, colour=RED if odd else FAINT), width)
    group.height = y + 6
    return group


def _lines(top: Item, width: float) -> list[tuple[str, bool]]:
    """Facts as lines of text, several in one where they fit."""
    found: list[tuple[str, bool]] = []
    for fact in top.facts:
        joined = f"{found[-1][0]}, {fact}" if found else fact
        if found and text_width(joined, 12.5) <= width:
            found[-1] = (joined, False)
        else:
            found.append((fact, False))
    return found + [(fact, True) for fact in top.odd]


def _summary(marks: Marks) -> str:
    verdicts = [m.finding.verdict for m in marks.marks]
    bad = {v: verdicts.count(v) for v in (Verdict.FAIL, Verdict.WARN) if v in verdicts}
    said = ", ".join(f"{n} {v}" for v, n in bad.items()) or "nothing wrong"
    return f"{said} in {many(marks.answers + len(verdicts), 'answer')}"


def _list(marks: Marks, width: float) -> Group:
    """What was found, by number; what nobody could answer is counted."""
    group = Group(width, 0)
    group.write(Text(0, 14, f"Findings: {_summary(marks)}", 13, bold=True), width)
    y = 24.0
    drawn = marks.marks[:MAX_FINDINGS]
    names = [f"{m.finding.verdict} {m.finding.id}" for m in drawn]
    column = min(340.0, max((text_width(n, 11, bold=True) for n in names), default=0.0) + 12)
    at = 46 + column
    for mark, name in zip(drawn, names, strict=True):
        finding = mark.finding
        colour = COLOUR[finding.verdict]
        group.put(badge(finding.verdict, str(mark.number), finding.message), 0, y)
        group.write(Text(46, y + 11.5, name, 11, bold=True, colour=colour), column - 4)
        for line in _wrapped(sentence(finding), width - at, 11):
            group.write(Text(at, y + 11.5, line, 11), width - at)
            y += 15
        y += 4
    rest = []
    if len(marks.marks) > MAX_FINDINGS:
        rest.append(many(len(marks.marks) - MAX_FINDINGS, "more finding"))
    if marks.questions:
        rest.append(f"{many(marks.questions, 'question')} without an answer")
    if rest:
        words = f"{', '.join(rest)}: nodeagentctl topology check"
        group.write(Text(0, y + 12, words, 11, colour=FAINT), width)
        y += 18
    group.height = y
    return group


def _wrapped(text: str, room: float, letters: float) -> list[str]:
    lines = [""]
    for word in text.split():
        joined = f"{lines[-1]} {word}".strip()
        if text_width(joined, letters) <= room or not lines[-1]:
            lines[-1] = joined
        else:
            lines.append(word)
    if len(lines) > MAX_LINES:
        rest = " ".join(lines[MAX_LINES - 1 :])
        lines = [*lines[: MAX_LINES - 1], fit(rest, room, letters)]
    return lines


def _legend(snapshot: Snapshot, top: Item, marks: Marks, width: float) -> Group:
    """Only what the picture shows."""
    entries: list[tuple[Shape | Line, str]] = []
    drawn = list(top.walk())
    kinds = {i.kind for i in drawn}
    words = {"gpu": "GPU", "nic": "NIC", "nvme": "NVMe", "switch": "PCIe switch"}
    for kind in (k for k in words if k in kinds):
        fill, border = FILL[kind]
        entries.append((Shape(0, 0, 13, 13, fill, border, 3), words[kind]))
    if any(i.link for i in drawn):
        entries.append((Line([(0, 6.5), (16, 6.5)], width=3), "5.0 x16: PCIe generation and lanes"))
    if any(i.slow for i in drawn):
        entries.append(
            (Line([(0, 6.5), (16, 6.5)], RED, 3, True), "3.0 x8 of 5.0 x16: less than it can do")
        )
    if snapshot.topology.online:
        entries.append((Shape(0, 0, 11, 11, PLAIN[0], PLAIN[1], 2), "core"))
    quiet = snapshot.topology.isolation.isolated | snapshot.topology.isolation.nohz_full
    if quiet:
        entries.append(
            (Shape(0, 0, 11, 11, ISOLATED[0], ISOLATED[1], 2), f"isolated core ({short(quiet)})")
        )
    seen = {m.finding.verdict for m in marks.marks}
    for verdict in SIGN:
        if verdict in seen:
            entries.append((Shape(0, 2, 9, 9, COLOUR[verdict], path=SIGN[verdict]), str(verdict)))
    group = Group(width, 0)
    x, y = 0.0, 0.0
    for sign, said in entries:
        wide = 24 + text_width(said, 11)
        if x and x + wide > width:
            x, y = 0.0, y + 19
        if isinstance(sign, Shape):
            sign.x, sign.y = x + sign.x, y + 2 + sign.y
            group.shapes.append(sign)
        else:
            sign.points = [(x + px, y + 2 + py) for px, py in sign.points]
            group.lines.append(sign)
        group.write(Text(x + 22, y + 13, said, 11), width - x - 22)
        x += wide + 14
    group.height = y + 18
    return group
