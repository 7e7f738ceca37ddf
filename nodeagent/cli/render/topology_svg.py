"""The machine as a picture: boxes inside boxes, legible at eight GPUs on one screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from nodeagent.cli.render.machine import Item, gpu_names, machine
from nodeagent.model.snapshot import Snapshot

FONT = 12
LINE = 16
PAD = 8
GAP = 8
DEVICE_WIDTH = 216
CHARACTER = 6.5
"""Mean width of a character of the sans-serif face at FONT pixels."""

FILL = {
    "machine": ("#ffffff", "#ffffff"),
    "package": ("#f4f5f7", "#8a94a6"),
    "node": ("#ffffff", "#3b6ea5"),
    "l3": ("#eef3f8", "#9fb4cc"),
    "root": ("#fafafa", "#b8bec8"),
    "switch": ("#eceff4", "#8a94a6"),
    "gpu": ("#dff3e1", "#2e7d32"),
    "nic": ("#efe3f6", "#7b3fa0"),
    "nvme": ("#fdf1d2", "#b07d00"),
    "other": ("#ffffff", "#b8bec8"),
}
"""(fill, border) by kind; the word stands in every box too, for those who do not see colours."""
ROW_WIDTH = {"machine": 1400, "package": 1060, "node": 520}
"""Width at which the boxes inside begin a new row; other kinds stack theirs."""
DEVICES = ("gpu", "nic", "nvme", "other")


@dataclass(slots=True)
class Box:
    """An item with its place; `x` and `y` are relative to the box around it."""

    item: Item
    lines: list[str]
    inside: list[Box]
    width: float = 0
    height: float = 0
    x: float = 0
    y: float = 0


def topology_svg(snapshot: Snapshot) -> str:
    """The picture as SVG text."""
    top = machine(snapshot)
    links = _links(snapshot)
    if links:
        top = Item(
            kind=top.kind,
            title=top.title,
            facts=(*top.facts, *links),
            odd=top.odd,
            inside=top.inside,
        )
    box = _layout(top)
    width, height = box.width + 2 * PAD, box.height + 2 * PAD + LINE + GAP
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="{FONT}">',
        f"<title>{escape(top.title)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    _draw(box, PAD, PAD, out)
    _legend(PAD * 2, box.height + PAD + LINE, out)
    out.append("</svg>")
    return "\n".join(out) + "\n"


def _links(snapshot: Snapshot) -> list[str]:
    """Direct links between GPUs in words: all alike in one sentence, else the first few."""
    names = gpu_names(snapshot)
    pairs = [
        (f"{names.get(r.a, r.a)}-{names.get(r.b, r.b)}", f"{k.count} {k.type}")
        for r in snapshot.topology.relations
        for k in r.links
    ]
    if not pairs:
        return []
    kinds = Counter(text for _, text in pairs)
    many = len(names) * (len(names) - 1) // 2
    if len(kinds) == 1 and len(pairs) == many:
        return [f"direct links: {pairs[0][1]} between every two GPUs"]
    shown = ", ".join(f"{pair} {text}" for pair, text in pairs[:12])
    return [f"direct links: {shown}" + (f", and {len(pairs) - 12} more" if len(pairs) > 12 else "")]


def _layout(item: Item) -> Box:
    inside = [_layout(child) for child in sorted(item.inside, key=_rank)]
    box = Box(item, [item.title, *item.facts], inside)
    if item.kind in DEVICES:
        box.width = DEVICE_WIDTH
        box.height = 2 * PAD + LINE * len(box.lines) - 4
        return box
    if item.kind == "l3":
        box.lines = [", ".join(box.lines)]
    if item.kind in ("root", "switch") and inside:
        # One line, the facts beside the title.
        box.lines = [item.title]
    text = max(len(line) for line in box.lines) * CHARACTER + 2 * PAD
    y = float(PAD + LINE * len(box.lines) + 4)
    limit = ROW_WIDTH.get(item.kind, 0)
    x = float(PAD)
    row_height = 0.0
    widest = 0.0
    before = ""
    for child in inside:
        kind = child.item.kind
        # Caches have a row of their own.
        apart = "l3" in (before, kind) and kind != before
        before = kind
        if x > PAD and (apart or x + child.width + PAD > limit):
            x, y, row_height = float(PAD), y + row_height + GAP, 0.0
        child.x, child.y = x, y
        x += child.width + GAP
        row_height = max(row_height, child.height)
        widest = max(widest, x - GAP + PAD)
    if inside and limit:
        _stretch(inside)
    box.width = max(widest, min(text, limit or text) if inside else text)
    box.height = y + row_height + PAD if inside else y + 2
    return box


def _rank(item: Item) -> int:
    """Where it stands among those beside it: what has a GPU in it comes first, after caches."""
    if item.kind != "root":
        return 0
    return 1 if _holds_gpu(item) else 2


def _holds_gpu(item: Item) -> bool:
    return item.kind == "gpu" or any(_holds_gpu(child) for child in item.inside)


def _stretch(inside: Sequence[Box]) -> None:
    """Boxes of one row get one height."""
    for y in {b.y for b in inside}:
        row = [b for b in inside if b.y == y]
        tallest = max(b.height for b in row)
        for box in row:
            if box.item.kind != "l3":
                box.height = tallest


def _draw(box: Box, x: float, y: float, out: list[str]) -> None:
    fill, border = FILL[box.item.kind]
    whole = " | ".join([box.item.title, *box.item.facts])
    out.append(
        f'<g transform="translate({x:.1f} {y:.1f})"><title>{escape(whole)}</title>'
        f'<rect width="{box.width:.1f}" height="{box.height:.1f}" rx="4" fill="{fill}" '
        f'stroke="{border}"/>'
    )
    room = int((box.width - 2 * PAD) / CHARACTER)
    for i, line in enumerate(box.lines):
        weight = ' font-weight="bold"' if i == 0 and box.item.kind != "l3" else ""
        odd = box.item.odd and (" of " in line or "lost" in line or "virtual" in line)
        colour = "#a33600" if odd else "#1c2430"
        shown = line if len(line) <= room else line[: max(1, room - 1)] + "…"
        beside = ""
        if box.item.kind in ("root", "switch") and box.item.facts:
            colour_of = "#a33600" if box.item.odd else colour
            beside = (
                f'<tspan font-weight="normal" dx="8" fill="{colour_of}">'
                f"{escape(box.item.facts[0])}</tspan>"
            )
        out.append(
            f'<text x="{PAD}" y="{PAD + LINE * i + FONT - 2}" fill="{colour}"{weight}>'
            f"{escape(shown)}{beside}</text>"
        )
    for child in box.inside:
        _draw(child, child.x, child.y, out)
    out.append("</g>")


def _legend(x: float, y: float, out: list[str]) -> None:
    for kind, word in (("gpu", "GPU"), ("nic", "NIC"), ("nvme", "NVMe"), ("switch", "PCIe switch")):
        fill, border = FILL[kind]
        out.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="12" height="12" rx="2" fill="{fill}" '
            f'stroke="{border}"/>'
            f'<text x="{x + 18:.1f}" y="{y + 10:.1f}" fill="#1c2430">{word}</text>'
        )
        x += 40 + len(word) * CHARACTER
