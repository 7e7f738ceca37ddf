"""Direct links between GPUs on a picture: one sentence where all are alike, else a table."""

from __future__ import annotations

from nodeagent.cli.render.devices import gpu_names
from nodeagent.cli.render.svg import FAINT, Group, Shape, Text, text_width
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.words import many

NAMES = {"nvlink": "NVLink", "xgmi": "XGMI"}
MAX_TABLE = 16
"""GPUs in the table; with more of them the links are told in one sentence."""
CELL, ROW = 44.0, 16.0


def links(snapshot: Snapshot) -> Group | None:
    """None where no GPU has a direct link."""
    pairs: dict[tuple[str, str], tuple[str, int]] = {}
    for relation in snapshot.topology.relations:
        for link in relation.links:
            pairs[relation.a, relation.b] = (link.type, link.count)
    if not pairs:
        return None
    gpus = [f.bdf for f in snapshot.topology.pci if f.computes]
    kinds = set(pairs.values())
    every = len(gpus) * (len(gpus) - 1) // 2
    kind = NAMES.get(next(iter(kinds))[0], next(iter(kinds))[0])
    if len(kinds) == 1 and len(pairs) == every:
        count = next(iter(kinds))[1]
        return _band(f"{kind}: {many(count, 'link')} between every two of {len(gpus)} GPUs")
    if len(gpus) > MAX_TABLE:
        return _band(f"{kind}: {len(pairs)} of {every} pairs of GPUs are linked directly")
    return _table(snapshot, gpus, pairs, kind)


def _band(words: str) -> Group:
    band = Group(text_width(words, 12, bold=True) + 44, 26, words, "#e9f5ea", "#2e7d32", 1.4, 13)
    band.texts.append(Text(22, 17, words, 12, bold=True, colour="#1d5a22"))
    return band


def _table(
    snapshot: Snapshot, gpus: list[str], pairs: dict[tuple[str, str], tuple[str, int]], kind: str
) -> Group:
    names = gpu_names(snapshot)
    title = f"{kind}: links between GPUs"
    width = max(CELL * (len(gpus) + 1) + 16, text_width(title, 12, bold=True) + 20)
    box = Group(width, 30 + ROW * (len(gpus) + 1) + 6, title, "#f6fbf6", "#2e7d32", 1.2)
    box.texts.append(Text(10, 17, title, 12, bold=True, colour="#1d5a22"))

    def cell(column: int, row: int, text: str, *, bold: bool = False) -> None:
        x, y = 10 + CELL * column, 30 + ROW * row + 11
        box.write(Text(x, y, text, 10, bold=bold, colour=FAINT if text == "-" else "#1c2430"), CELL)

    for i, a in enumerate(gpus):
        cell(i + 1, 0, names.get(a, "GPU"), bold=True)
        cell(0, i + 1, names.get(a, "GPU"), bold=True)
        for j, b in enumerate(gpus):
            found = pairs.get((a, b)) or pairs.get((b, a))
            if found:
                at = (8 + CELL * (j + 1), 30 + ROW * (i + 1))
                box.shapes.append(Shape(*at, CELL - 3, ROW - 2, "#cfe9d1", radius=2))
            cell(j + 1, i + 1, "" if a == b else str(found[1]) if found else "-")
    return box
