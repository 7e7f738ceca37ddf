"""PCIe trees of a picture: root, switches and devices from left to right, links labelled."""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.cli.render.badge import badges, warn
from nodeagent.cli.render.item import Item
from nodeagent.cli.render.marks import Mark, Marks
from nodeagent.cli.render.svg import FAINT, INK, RED, Group, Line, Text, text_width

DEVICE_WIDTH, DEVICE_HEIGHT = 264.0, 38.0
BRIDGE_WIDTH, BRIDGE_HEIGHT = 92.0, 34.0
GAP = 7.0
FILL = {
    "gpu": ("#dff3e1", "#2e7d32"),
    "nic": ("#efe3f6", "#7b3fa0"),
    "nvme": ("#fdf1d2", "#a87600"),
    "other": ("#ffffff", "#9aa3b0"),
    "switch": ("#e3e9f2", "#5d6b80"),
    "root": ("#f3f5f8", "#8a94a6"),
}
"""(fill, border) by kind; the word stands in every box too, for those who do not see colours."""
DEVICES = ("gpu", "nic", "nvme", "other")
LABEL = 10.0
"""Size of the letters on a link."""


def label_width(top: Item) -> float:
    """The room that every link's label gets, so that devices stand in columns."""
    labels = [text_width(i.link, LABEL, i.slow) for i in top.walk() if i.link]
    return max(labels, default=8.0)


def tree(item: Item, marks: Marks, label: float) -> Group:
    """A root, switch or device with all that hangs on it; `label`: see label_width."""
    if item.kind in DEVICES:
        return _device(item, marks)
    links = _ordered(item.inside)
    children = [tree(child, marks, label) for child in links]
    edge = label + 22
    height = sum(c.height for c in children) + GAP * max(0, len(children) - 1)
    height = max(height, BRIDGE_HEIGHT)
    width = BRIDGE_WIDTH + edge + max((c.width for c in children), default=0.0)
    group = Group(width, height)
    middle = _middle(children, height)
    bridge = _bridge(item, marks.of(item))
    group.put(bridge, 0, middle - BRIDGE_HEIGHT / 2)
    trunk = BRIDGE_WIDTH + 9
    y = 0.0
    for child, below in zip(children, links, strict=True):
        at = y + _anchor(child)
        colour = RED if below.slow else "#8a94a6"
        group.lines.append(Line([(trunk, middle), (trunk, at)], "#8a94a6", 1.4))
        group.lines.append(
            Line([(trunk, at), (BRIDGE_WIDTH + edge, at)], colour, _thick(below), below.slow)
        )
        if below.link:
            text = Text(trunk + 5, at - 3.5, below.link, LABEL, below.slow, RED)
            text.colour = RED if below.slow else FAINT
            group.texts.append(text)
        group.put(child, BRIDGE_WIDTH + edge, y)
        y += child.height + GAP
    group.lines.insert(0, Line([(BRIDGE_WIDTH, middle), (trunk, middle)], "#8a94a6", 1.4))
    return group


def _ordered(items: Sequence[Item]) -> list[Item]:
    """Switches and GPUs first, the board's own display last."""
    rank = {"switch": 0, "gpu": 0, "nic": 1, "nvme": 2, "other": 3}
    return sorted(items, key=lambda i: rank.get(i.kind, 0))


def _anchor(group: Group) -> float:
    """Where a line from the left meets a tree: the middle of its leftmost box."""
    if group.inside and group.fill == "none":
        first = group.inside[0]
        return first.y + first.height / 2
    return group.height / 2


def _middle(children: list[Group], height: float) -> float:
    """The height at which a bridge stands: between its first and its last line."""
    if not children:
        return height / 2
    last = height - children[-1].height + _anchor(children[-1])
    return max(BRIDGE_HEIGHT / 2, (_anchor(children[0]) + last) / 2)


def _thick(item: Item) -> float:
    """Wider for more lanes."""
    lanes = item.link.partition(" x")[2].partition(" ")[0]
    return {"16": 3.0, "8": 2.4, "4": 1.8, "32": 3.6}.get(lanes, 1.2)


def _bridge(item: Item, marks: Sequence[Mark]) -> Group:
    fill, border = FILL[item.kind]
    word, _, bus = item.title.rpartition(" ") if item.kind == "root" else (item.title, "", item.at)
    if item.kind == "root" and ":" not in bus:
        word, bus = "PCI", "bridges: ?"
    box = Group(BRIDGE_WIDTH, BRIDGE_HEIGHT, _tip(item), fill, border, radius=4)
    warn(box, marks)
    badge = badges(marks, BRIDGE_WIDTH - 52)
    box.write(Text(7, 14, word, 10.5, bold=True), BRIDGE_WIDTH - 14 - (badge.width if badge else 0))
    box.write(Text(7, 27, bus, 9.5, colour=FAINT), BRIDGE_WIDTH - 12)
    if badge:
        box.put(badge, BRIDGE_WIDTH - badge.width - 2, 2)
    return box


def _device(item: Item, marks: Marks) -> Group:
    fill, border = FILL[item.kind]
    mine = marks.of(item)
    box = Group(DEVICE_WIDTH, DEVICE_HEIGHT, _tip(item), fill, border, radius=4)
    warn(box, mine)
    badge = badges(mine, DEVICE_WIDTH - 80)
    room = DEVICE_WIDTH - 16
    taken = badge.width + 4 if badge else 0
    box.write(Text(8, 15, item.title, 12, bold=True), room - taken)
    if badge:
        box.put(badge, DEVICE_WIDTH - badge.width - 3, 3)
    address = Text(8, 30, item.at, 10, colour=FAINT)
    box.write(address, room)
    left = text_width(address.text, 10) + 8
    said = ", ".join((*item.odd, *item.facts))
    if said and room - left > 30:
        box.write(Text(8 + left, 30, said, 10, colour=RED if item.odd else INK), room - left)
    return box


def _tip(item: Item) -> str:
    link = f"PCIe {item.link}" if item.link else ""
    return ", ".join(
        filter(None, (f"{item.title} {item.at}".strip(), link, *item.odd, *item.facts))
    )
