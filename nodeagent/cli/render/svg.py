"""Boxes, texts and lines of a picture; a text is cut before it leaves its box.

No fonts are asked for their measure: widths are those of DejaVu Sans, the widest face that
`sans-serif` commonly means, so that narrower ones fit as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from nodeagent.errors import visible

INK, FAINT, RED = "#1c2430", "#5b6675", "#b3261e"

_WIDTHS = (
    # em of DejaVu Sans, rounded up
    ("iljI'|", 0.30),
    (' .,:;!ft[]()/-"', 0.41),
    ("rsczJL?\\{}*_xvyk", 0.60),
    ("ABCDEFKPRSTVXYZ&", 0.72),
    ("GHNOQUw+=<>~#", 0.84),
    ("mMW@%", 1.00),
)
_EM = {letter: em for letters, em in _WIDTHS for letter in letters}
_OTHER, _WIDE = 0.64, 1.05
BOLD = 1.12


def text_width(text: str, size: float, bold: bool = False) -> float:
    """Pixels that a text takes at most."""
    em = sum(_EM.get(c, _OTHER if c < "\u0250" else _WIDE) for c in text)
    return em * size * (BOLD if bold else 1)


def fit(text: str, room: float, size: float, bold: bool = False) -> str:
    """The text, or as much of it as there is room for and `…`; no control characters."""
    text = clean(text)
    if text_width(text, size, bold) <= room:
        return text
    while text and text_width(text + "…", size, bold) > room:
        text = text[:-1]
    return text.rstrip() + "…"


def clean(text: str) -> str:
    """Without what XML does not allow or a viewer might obey."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in visible(text))


@dataclass(slots=True)
class Text:
    """A line of text; `x` and `y` (its base line) are relative to the group."""

    x: float
    y: float
    text: str
    size: float = 12
    bold: bool = False
    colour: str = INK
    anchor: str = "start"
    """start, middle or end: what of the text `x` is."""


@dataclass(slots=True)
class Line:
    """Straight pieces through points, relative to the group."""

    points: Sequence[tuple[float, float]]
    colour: str = "#8a94a6"
    width: float = 1.2
    dashed: bool = False


@dataclass(slots=True)
class Shape:
    """A rectangle, or a path of its own, relative to the group."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    border: str = "none"
    radius: float = 0
    path: str = ""
    """Relative to (x, y); drawn instead of the rectangle."""


@dataclass(slots=True)
class Group:
    """A box with what is in it. `border` "none" and `fill` "none": not seen itself."""

    width: float
    height: float
    title: str = ""
    """What a viewer shows when the pointer rests on it."""
    fill: str = "none"
    border: str = "none"
    thick: float = 1
    radius: float = 5
    x: float = 0
    y: float = 0
    texts: list[Text] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    inside: list[Group] = field(default_factory=list)

    def put(self, child: Group, x: float, y: float) -> None:
        """Places a box in this one."""
        child.x, child.y = x, y
        self.inside.append(child)

    def write(self, text: Text, room: float) -> None:
        """Adds a text, cut to `room`."""
        text.text = fit(text.text, room, text.size, text.bold)
        self.texts.append(text)


def document(top: Group, title: str, description: str) -> str:
    """The whole picture: one file that needs no other."""
    width, height = math.ceil(top.width), math.ceil(top.height)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-labelledby="title description" '
        'font-family="Helvetica, Arial, sans-serif">',
        f'<title id="title">{escape(clean(title))}</title>',
        f'<desc id="description">{escape(clean(description))}</desc>',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    _group(top, out)
    out.append("</svg>")
    return "\n".join(out) + "\n"


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _group(group: Group, out: list[str]) -> None:
    out.append(f'<g transform="translate({_n(group.x)} {_n(group.y)})">')
    if group.title:
        out.append(f"<title>{escape(clean(group.title))}</title>")
    out.append(
        f'<rect width="{_n(group.width)}" height="{_n(group.height)}" rx="{_n(group.radius)}" '
        f'fill="{group.fill}" stroke="{group.border}" stroke-width="{_n(group.thick)}"/>'
    )
    for line in group.lines:
        points = " ".join(f"{_n(x)},{_n(y)}" for x, y in line.points)
        dashes = ' stroke-dasharray="5 3"' if line.dashed else ""
        out.append(
            f'<polyline points="{points}" fill="none" stroke="{line.colour}" '
            f'stroke-width="{_n(line.width)}"{dashes}/>'
        )
    for shape in group.shapes:
        paint = f'fill="{shape.fill}" stroke="{shape.border}"'
        if shape.path:
            at = f"translate({_n(shape.x)} {_n(shape.y)})"
            out.append(f'<path transform="{at}" d="{shape.path}" {paint}/>')
        else:
            out.append(
                f'<rect x="{_n(shape.x)}" y="{_n(shape.y)}" width="{_n(shape.width)}" '
                f'height="{_n(shape.height)}" rx="{_n(shape.radius)}" {paint}/>'
            )
    for child in group.inside:
        _group(child, out)
    for text in group.texts:
        bold = ' font-weight="bold"' if text.bold else ""
        anchor = f' text-anchor="{text.anchor}"' if text.anchor != "start" else ""
        out.append(
            f'<text x="{_n(text.x)}" y="{_n(text.y)}" font-size="{_n(text.size)}" '
            f'fill="{text.colour}"{bold}{anchor}>{escape(text.text)}</text>'
        )
    out.append("</g>")
