"""PCIe links in tables of devices and bridges, as people make them of sysfs: speed, width, parent.

Tables are known by their header row; units, `N/A` and the order of columns do not matter. Tables
of GPUs (nvidia-smi's columns) are read by `gpu_csv`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping

from nodeagent.discover.paste.lspci import load_in
from nodeagent.discover.paste.part import Part
from nodeagent.errors import ParseError
from nodeagent.model.pasted import Report
from nodeagent.model.pci import parse_bdf
from nodeagent.model.pcie_said import SPEEDS_GTS, LinkReading

MAX_ROWS = 4096
MAX_LINE = 4096
_COLUMNS: dict[str, tuple[str, ...]] = {
    "device": ("bdf", "pci.bus_id", "gpu_bus_id", "bus_id", "pci", "gpu", "index", "device", "dev",
               "port", "name", "slot"),
    "parent": ("parent", "upstream", "bridge"),
    "speed_now": ("cur_speed", "speed_cur", "current_link_speed", "speed", "current_speed",
                  "speed_gts"),
    "speed_max": ("max_speed", "speed_max", "max_link_speed", "max_speed_gts"),
    "width_now": ("cur_width", "width_cur", "width", "link_width", "current_link_width",
                  "current_width"),
    "width_max": ("max_width", "width_max", "max_link_width"),
    "state": ("state", "load", "when", "phase", "condition", "sample"),
}  # fmt: skip


def read_pcie_tables(text: str, name: str) -> Part | None:
    """Links in a text; None when there are none."""
    reports = tuple(_tables(text, name))
    return Part(kind="pcie", reports=reports) if reports else None


def _tables(text: str, name: str) -> Iterator[Report]:
    """Each run of lines below a header that names a link's columns."""
    columns: dict[str, int] | None = None
    for line in text.split("\n")[:MAX_ROWS]:
        cells = _cells(line) if len(line) <= MAX_LINE else []
        if len(cells) < 2:
            columns = None
            continue
        header = _header(cells)
        if header is not None:
            columns = header
            continue
        if columns is None:
            continue
        row = {k: cells[i] for k, i in columns.items() if i < len(cells)}
        found = _reading(row, name)
        if found is not None:
            yield found


def _cells(line: str) -> list[str]:
    separator = "," if "," in line else "\t" if "\t" in line else "|" if "|" in line else None
    if separator is None:
        return line.split()
    try:
        return [c.strip() for c in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error:
        return []


def _header(cells: list[str]) -> dict[str, int] | None:
    """Which column is what; None for a row that is no header of ours."""
    names = [re.sub(r"\s*\[.*?\]$", "", c.lower()).strip(" #`*").replace(" ", "_") for c in cells]
    found = {
        what: next(names.index(alias) for alias in aliases if alias in names)
        for what, aliases in _COLUMNS.items()
        if any(alias in names for alias in aliases)
    }
    whole = {"speed_now", "width_now"} <= set(found) and {"speed_max", "width_max"} & set(found)
    return found if whole and {"device", "parent"} & set(found) else None


def _reading(row: Mapping[str, str], name: str) -> LinkReading | None:
    width, top = _width(row.get("width_now")), _width(row.get("width_max"))
    speed, best = _speed(row.get("speed_now")), _speed(row.get("speed_max"))
    if width is None and speed is None:
        return None
    return LinkReading(
        source=name,
        device=_device(row.get("device")),
        loaded=load_in(row["state"]) if "state" in row else None,
        speed_gts=speed,
        width=width,
        max_speed_gts=best,
        max_width=top,
        parent=_device(row.get("parent")),
    )


def _device(cell: str | None) -> str | None:
    if not cell or cell.upper() in ("N/A", "[N/A]"):
        return None
    try:
        return parse_bdf(cell)
    except ParseError:
        return f"GPU {cell}" if cell.isdigit() else cell[:64]


def _width(cell: str | None) -> int | None:
    m = re.fullmatch(r"x?(\d{1,2})x?", (cell or "").strip().lower())
    return int(m[1]) if m and int(m[1]) in (1, 2, 4, 8, 12, 16, 32) else None


def _speed(cell: str | None) -> float | None:
    m = re.fullmatch(r"(\d{1,2}(?:\.\d)?)(?: ?gt/s.{0,16})?", (cell or "").strip().lower())
    # A number that is no speed of PCIe is a network's.
    return float(m[1]) if m and float(m[1]) in SPEEDS_GTS else None
