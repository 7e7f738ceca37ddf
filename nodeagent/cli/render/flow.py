"""Sentences on a screen: wrapped under their own indentation, at most 100 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

MAX_COLUMNS = 100
LEAST_COLUMNS = 12
"""What is left of a line for words, however deep it is indented on however narrow a screen."""

Part = str | tuple[str, str]
"""Words, or (words, rich style)."""


def columns(out: Console) -> int:
    """Width that is written to."""
    return min(MAX_COLUMNS, out.width)


def say(out: Console, *parts: Part, indent: int = 0, hang: int = 0) -> None:
    """One paragraph: its first line indented, the others by `hang` more."""
    text = Text.assemble(*parts)
    width = columns(out)
    indent = min(indent, max(0, width - LEAST_COLUMNS))
    hang = min(hang, max(0, width - indent - LEAST_COLUMNS))
    room = max(1, width - indent - hang)
    first = text.wrap(out, max(1, width - indent), overflow="fold")
    lines = list(first[:1])
    rest = text[len(first[0]) :] if first else Text()
    rest = rest[len(rest.plain) - len(rest.plain.lstrip(" ")) :]
    if rest.plain:
        lines += rest.wrap(out, room, overflow="fold")
    if not lines:
        out.print()
    for number, line in enumerate(lines):
        line.rstrip()
        pad = indent + (hang if number else 0)
        out.print(Text(" " * pad).append_text(line), soft_wrap=True)


def names(found: list[str], limit: int = 3) -> str:
    """`a, b, c`; of many, the first and the last: `rank0 ... rank63`."""
    return ", ".join(found) if len(found) <= limit else f"{found[0]} ... {found[-1]}"
