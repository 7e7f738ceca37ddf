"""A table of measurements by placement: a column `placement` and one that was measured."""

from __future__ import annotations

import re

from nodeagent.discover.paste.part import Part
from nodeagent.model.host_report import Measured

_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,9})?")


def read_placement_table(text: str, name: str) -> Part | None:
    """The means of each placement; None when there is no such table."""
    columns: list[str] = []
    at = 0
    values: dict[str, list[float]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        cells = [c.strip().lower() for c in line.split(",")]
        if "placement" in cells and 2 <= len(cells) <= 6:
            columns, at, values = cells, number, {}
        elif columns and len(cells) == len(columns):
            row = dict(zip(columns, cells, strict=True))
            place = row.pop("placement")
            found = next((x for x in row.values() if _NUMBER.fullmatch(x)), None)
            if found is not None:
                values.setdefault(place, []).append(float(found))
    if len(values) < 2:
        return None
    report = Measured(
        source=name,
        line=at,
        metric=next(c for c in columns if c != "placement"),
        means={k: sum(v) / len(v) for k, v in values.items()},
    )
    return Part(kind="placement table", reports=(report,))
