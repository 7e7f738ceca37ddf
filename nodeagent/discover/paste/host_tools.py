"""Readers of host configuration and host tools, over a whole text or each piece of a transcript."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nodeagent.discover.paste.messages import read_messages
from nodeagent.discover.paste.part import Part
from nodeagent.discover.paste.transcript import sections

MAX_TOOL = 4 << 20
"""A longer text is a log: only its messages are looked for."""
READERS: tuple[Callable[[str, str], Part | None], ...] = ()


def read_host_tools(text: str, name: str) -> Iterator[Part]:
    """Every part that some reader finds; a piece is named by its file or command."""
    found = read_messages(text, name)
    if found is not None:
        yield found
    if len(text) > MAX_TOOL:
        return
    for piece in sections(text):
        label = piece.path or piece.command
        for reader in READERS:
            part = reader(piece.text, f"{name}: {label}" if label else name)
            if part is not None:
                yield part
