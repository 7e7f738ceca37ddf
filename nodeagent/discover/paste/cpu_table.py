"""`lscpu -e`, `lscpu -p`, `lscpu -J`, `lscpu -C`: tables of CPUs and caches, by their header row.

Source: util-linux sys-utils/lscpu.c, lscpu(1).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from nodeagent.discover.paste.part import Part
from nodeagent.model.cpuset import CpuSet

NODE = "sys/devices/system/node"
CPU = "sys/devices/system/cpu"
_COLUMNS = frozenset(
    {"CPU", "CORE", "SOCKET", "CLUSTER", "NODE", "BOOK", "DRAWER", "CACHE", "ONLINE", "CONFIGURED",
     "POLARIZATION", "ADDRESS", "MAXMHZ", "MINMHZ", "MHZ", "MODELNAME", "SCALMHZ%"}
)  # fmt: skip
_CACHES = re.compile(r"L\d[di]?(?::L\d[di]?)*")
MAX_CPUS = 8192


def read_cpu_table(text: str, name: str) -> Part | None:
    """The table in a text; None when there is none. A row that does not fit its header is left
    out and told."""
    rows: list[tuple[int, dict[str, str]]] = []
    columns: list[str] = []
    unclear: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if found := _header(line):
            columns = found
            continue
        cells = [c.strip() for c in line.split(",")] if "," in line else line.split()
        if not columns or not cells or not cells[0].isascii() or not cells[0].isdigit():
            if columns and rows and line.strip() and not line.startswith("#"):
                columns = []
            continue
        # `lscpu -p` leaves a level's place empty behind a double comma; -e pads with blanks.
        if len(cells) != len(columns) and "," in line and "" in columns:
            cells = cells[: len(columns)]
        if len(cells) != len(columns):
            unclear.append(f"line {number}: {len(cells)} cells under {len(columns)} headings")
            continue
        if len(rows) < MAX_CPUS:
            rows.append((number, dict(zip(columns, cells, strict=True))))
    if len(rows) < 1 or "CPU" not in rows[0][1]:
        caches = _caches(text)
        return Part(kind="lscpu", facts={"caches": caches}) if caches else None
    return _part(rows, unclear)


_CACHE = re.compile(
    r"^(L\d[di]?)\s+(\d+(?:\.\d+)?[KMG])\s+(\d+(?:\.\d+)?[KMG])\s+\d+\s+(\w+)\s+(\d)\b"
)


def _caches(text: str) -> list[dict[str, object]]:
    """The rows of `lscpu -C`."""
    if not re.search(r"^[ \t]*NAME[ \t]+ONE-SIZE[ \t]+ALL-SIZE", text, re.MULTILINE):
        return []
    rows = (_CACHE.match(line.strip()) for line in text.split("\n"))
    return [
        {"name": m[1], "one": m[2], "all": m[3], "type": m[4], "level": int(m[5])}
        for m in rows
        if m
    ]


def _header(line: str) -> list[str]:
    """The columns of a header row; [] for another line."""
    words = line.lstrip("# ").replace(",", " , ").split() if "," in line else line.split()
    if "," in line:
        if not line.lstrip().startswith("#"):
            return []
        words = [w.strip() for w in line.lstrip("# ").split(",")]
    names = [w.upper() for w in words]
    known = [n for n in names if n in _COLUMNS or _CACHES.fullmatch(_case(n))]
    if "CPU" not in names or len([n for n in names if n]) < 2:
        return []
    if len(known) != len([n for n in names if n]) or names[0] != "CPU":
        return []
    return [_case(n) if n not in _COLUMNS else n for n in names]


def _case(name: str) -> str:
    return re.sub(r"(L\d)([DI])", lambda m: m[1] + m[2].lower(), name)


def _part(rows: list[tuple[int, dict[str, str]]], unclear: list[str]) -> Part:
    online: set[int] = set()
    offline: set[int] = set()
    groups: dict[str, dict[str, set[int]]] = {"NODE": {}, "SOCKET": {}, "CORE": {}}
    l3: dict[str, set[int]] = {}
    for _, row in rows:
        cpu = int(row["CPU"])
        if cpu >= 1 << 16:
            continue
        if row.get("ONLINE", "yes").lower() in ("no", "n", "-", ""):
            offline.add(cpu)
            continue
        online.add(cpu)
        for key in groups:
            if row.get(key, "-") not in ("-", ""):
                # Old versions count cores anew in each socket: both numbers make a core.
                prefix = f"{row.get('SOCKET', '')}/" if key == "CORE" else ""
                groups[key].setdefault(prefix + row[key], set()).add(cpu)
        if (group := _l3(row)) is not None:
            l3.setdefault(group, set()).add(cpu)
    files: dict[str, str] = {f"{CPU}/online": str(CpuSet.of(online))}
    if offline:
        files[f"{CPU}/present"] = str(CpuSet.of(online | offline))
    for node, cpus in groups["NODE"].items():
        if node.isascii() and node.isdigit():
            files[f"{NODE}/node{int(node)}/cpulist"] = str(CpuSet.of(cpus))
    for cpus in groups["CORE"].values():
        for cpu in cpus:
            files[f"{CPU}/cpu{cpu}/topology/core_cpus_list"] = str(CpuSet.of(cpus))
    for socket, cpus in groups["SOCKET"].items():
        for cpu in cpus:
            files[f"{CPU}/cpu{cpu}/topology/package_cpus_list"] = str(CpuSet.of(cpus))
            files[f"{CPU}/cpu{cpu}/topology/physical_package_id"] = socket
    for cpus in l3.values():
        for cpu in cpus:
            at = f"{CPU}/cpu{cpu}/cache/index3"
            files |= {f"{at}/level": "3", f"{at}/type": "Unified",
                      f"{at}/shared_cpu_list": str(CpuSet.of(cpus))}  # fmt: skip
    facts: dict[str, object] = {
        "cpu": {
            "online": str(CpuSet.of(online)),
            "offline": str(CpuSet.of(offline)) or None,
            "cpus": len(online | offline),
        }
    }
    if groups["NODE"]:
        facts["numa_nodes"] = [
            {"id": int(n), "cpus": str(CpuSet.of(c))}
            for n, c in sorted(groups["NODE"].items(), key=lambda x: x[0].zfill(6))
            if n.isascii() and n.isdigit()
        ]
    if l3:
        facts["l3"] = {k: str(CpuSet.of(c)) for k, c in l3.items()}
    return Part(kind="lscpu", facts=facts, files=files, unclear=tuple(unclear[:5]))


def _l3(row: Mapping[str, str]) -> str | None:
    """The L3 group of a row, from its cache column (L1d:L1i:L2:L3) or a column of its own."""
    for column, cell in row.items():
        if column == "CACHE" or ":" in column:
            names = column.split(":") if ":" in column else ["L1d", "L1i", "L2", "L3"]
            parts = cell.split(":")
            if len(parts) == len(names) and "L3" in names:
                found = parts[names.index("L3")]
                return found if found not in ("-", "") else None
        elif column == "L3" and cell not in ("-", ""):
            return cell
    return None


def lscpu_json(text: str) -> str | None:
    """The text form of `lscpu -J` (or `lscpu -e -J`); None for other text."""
    start = text.find('{\n   "lscpu"') if '{\n   "lscpu"' in text else text.find("{")
    if ('"lscpu"' not in text and '"cpus"' not in text) or start < 0:
        return None
    try:
        data, _ = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    if isinstance(data.get("lscpu"), list):
        return "\n".join(_fields(data["lscpu"], 0))
    cpus = data.get("cpus")
    if isinstance(cpus, list) and cpus and all(isinstance(c, dict) for c in cpus):
        columns = [str(k).upper() for k in cpus[0]]
        lines = [" ".join(columns)]
        for c in cpus:
            lines.append(" ".join(_word(x) for x in c.values()))
        return "\n".join(lines)
    return None


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value).replace(" ", "_") or "-"


def _fields(rows: object, depth: int) -> Iterator[str]:
    if not isinstance(rows, list) or depth > 8:
        return
    for row in rows:
        if isinstance(row, dict):
            field = str(row.get("field", "")).strip()
            yield f"{field.removesuffix(':')}: {row.get('data') or ''}"
            yield from _fields(row.get("children"), depth + 1)
