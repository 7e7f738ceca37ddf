"""Readers of host configuration and host tools, over a whole text or each piece of a transcript."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from nodeagent.discover.paste.host_tables import read_host_table
from nodeagent.discover.paste.isolation_tools import read_isolation
from nodeagent.discover.paste.kubelet import read_kubelet
from nodeagent.discover.paste.memory_tools import read_memory
from nodeagent.discover.paste.messages import read_messages
from nodeagent.discover.paste.net_counters import read_counters
from nodeagent.discover.paste.net_tools import read_net
from nodeagent.discover.paste.part import Part
from nodeagent.discover.paste.threads import read_threads
from nodeagent.discover.paste.transcript import sections
from nodeagent.discover.paste.unit_files import read_units

MAX_TOOL = 4 << 20
"""A longer text is a log: only its messages are looked for."""
MAX_LINE = 1_000
"""Characters; the kernel's command line and lists of CPUs are shorter."""
READERS: tuple[Callable[[str, str], Part | None], ...] = (
    read_isolation,
    read_units,
    read_threads,
    read_host_table,
    read_kubelet,
    read_memory,
    read_net,
    read_counters,
)


def read_host_tools(text: str, name: str) -> Iterator[Part]:
    """Every part that some reader finds; a piece is named by its file or command."""
    found = read_messages(text, name)
    if found is not None:
        yield found
    if len(text) > MAX_TOOL:
        return
    for piece in sections(_bounded(text)):
        label = piece.path or piece.command
        for reader in READERS:
            part = reader(piece.text, f"{name}: {label}" if label else name)
            if part is not None:
                yield part


def _bounded(text: str) -> str:
    """Without lines that no tool prints and without long gaps; JSON on one line is spread out."""
    if text.lstrip()[:1] in ("{", "[") and max(map(len, text.split("\n"))) > MAX_LINE:
        try:
            text = json.dumps(json.loads(text), indent=1)
        except (ValueError, RecursionError):
            return ""
    kept: list[str] = []
    blank = 0
    for line in text.split("\n"):
        blank = 0 if line.strip() else blank + 1
        if blank < 3 and len(line) <= MAX_LINE:
            kept.append(line.rstrip())
    return "\n".join(kept)
