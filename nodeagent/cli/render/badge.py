"""Numbered signs for findings on a picture: each verdict has a colour and a shape."""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.cli.render.marks import Mark
from nodeagent.cli.render.svg import Group, Shape, Text, text_width
from nodeagent.model.finding import Verdict

COLOUR = {
    Verdict.FAIL: "#b3261e",
    Verdict.WARN: "#8f5600",
    Verdict.UNKNOWN: "#7b3fa0",
    Verdict.INFO: "#1f5fa8",
}
"""White letters on each have a contrast of at least 4.5."""
_CROSS = (
    "M1.2 0 L4.5 3.3 L7.8 0 L9 1.2 L5.7 4.5 L9 7.8 L7.8 9 L4.5 5.7 L1.2 9 L0 7.8 L3.3 4.5 L0 1.2 Z"
)
_TRIANGLE = "M4.5 0 L9 9 L0 9 Z"
_DIAMOND = "M4.5 0 L9 4.5 L4.5 9 L0 4.5 Z"
_CIRCLE = "M4.5 0 A4.5 4.5 0 1 1 4.5 9 A4.5 4.5 0 1 1 4.5 0 Z"
SIGN = {
    Verdict.FAIL: _CROSS,
    Verdict.WARN: _TRIANGLE,
    Verdict.UNKNOWN: _DIAMOND,
    Verdict.INFO: _CIRCLE,
}
HEIGHT = 15.0
_SIZE = 10.0


def badge(verdict: Verdict, text: str, tip: str = "") -> Group:
    """One sign with a short text."""
    words = text_width(text, _SIZE, bold=True)
    group = Group(20 + words + (3 if text else 0), HEIGHT, tip, COLOUR[verdict], radius=4)
    group.shapes.append(Shape(5, 3, 9, 9, "#ffffff", path=SIGN[verdict]))
    if text:
        group.texts.append(Text(18, 11.3, text, _SIZE, bold=True, colour="#ffffff"))
    return group


def warn(box: Group, marks: Sequence[Mark]) -> None:
    """Gives a box that something is wrong with a border in the colour of the worst finding."""
    verdict = marks[0].finding.verdict if marks else None
    if verdict in (Verdict.FAIL, Verdict.WARN):
        box.border, box.thick = COLOUR[verdict], 2.2


def badges(marks: Sequence[Mark], room: float) -> Group | None:
    """The signs of a box in a row, worst first; those without room are counted on the last."""
    if not marks:
        return None
    row = Group(0, HEIGHT)
    for i, mark in enumerate(marks):
        finding = mark.finding
        one = badge(finding.verdict, str(mark.number), f"{finding.verdict} {finding.id}")
        left = len(marks) - i - 1
        more = text_width(f"+{left}", _SIZE, bold=True) + 4 if left else 0
        if row.inside and row.width + one.width + more > room:
            rest = f"+{left + 1}"
            row.texts.append(Text(row.width + 1, 11.3, rest, _SIZE, bold=True))
            row.width += text_width(rest, _SIZE, bold=True) + 2
            return row
        row.put(one, row.width, 0)
        row.width += one.width + 2
    row.width -= 2
    return row
