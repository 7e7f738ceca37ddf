"""`rocm-smi --showtopo` and `amd-smi topology`: weights, hops, link types and NUMA nodes of AMD
GPUs.

Source: ROCm/rocm_smi_lib, python_smi_tools/rocm_smi.py, showTopo*(); ROCm/amdsmi, amdsmi_cli,
topology.
"""

from __future__ import annotations

import re

from nodeagent.discover.paste.part import Part, cpulist_or_none
from nodeagent.discover.root import is_number
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.matrix import LinkMatrix

_SECTIONS = (
    (re.compile(r"weight between two gpus", re.IGNORECASE), "weight"),
    (re.compile(r"hops between two gpus", re.IGNORECASE), "hops"),
    (re.compile(r"link type between two gpus", re.IGNORECASE), "links"),
    (re.compile(r"numa nodes", re.IGNORECASE), "numa"),
)
_NUMA = re.compile(r"GPU\[(\d+)\]\s*:\s*\(Topology\)\s*Numa (Node|Affinity)\s*:\s*(\S+)")


_TABLE = re.compile(r"^\s*(ACCESS|WEIGHT|HOPS|LINK TYPE|[A-Z][A-Z -]{1,30}) TABLE:?\s*$")
_BDF = re.compile(r"(?:[0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_AS = {
    "ACCESS": "Link accessibility between two GPUs",
    "WEIGHT": "Weight between two GPUs",
    "HOPS": "Hops between two GPUs",
    "LINK TYPE": "Link Type between two GPUs",
}
_CELLS = {"ENABLED": "True", "DISABLED": "False", "SELF": "0"}


def amd_smi_topology(text: str) -> str:
    """The tables of `amd-smi topology`, which name GPUs by their PCI addresses, as `rocm-smi
    --showtopo` prints them: GPU0 is the first address. Another text as it is; lines keep their
    numbers."""
    if " TABLE" not in text or not _BDF.search(text):
        return text
    out: list[str] = []
    names: dict[str, str] = {}
    inside = False
    for line in text.split("\n"):
        words = line.split()
        if m := _TABLE.match(line):
            inside = True
            names = {}
            line = f"=== {_AS.get(m[1], m[1])} ==="
        elif inside and words and all(_BDF.fullmatch(w) for w in words) and not names:
            names = {w: f"GPU{i}" for i, w in enumerate(words)}
            line = " ".join(names.values())
        elif inside and words and words[0] in names:
            line = " ".join([names[words[0]], *(_CELLS.get(w, w) for w in words[1:])])
        elif words:
            inside = False
        out.append(line)
    return "\n".join(out)


def _banner(line: str) -> str | None:
    """What stands between the equals signs; None for another line."""
    if len(line) < 2 or line[0] != "=" or line[-1] != "=":
        return None
    return line.strip("=").strip()


def read_rocm(text: str) -> Part | None:
    """The topology sections in a text; None when there are none."""
    tables: dict[str, dict[tuple[str, str], str]] = {"weight": {}, "hops": {}, "links": {}}
    nodes: dict[str, dict[str, int | None]] = {"Node": {}, "Affinity": {}}
    section: str | None = None
    header: list[str] = []
    gpus: list[str] = []
    seen = False
    for number, line in enumerate(text.split("\n"), 1):
        if (title := _banner(line.strip())) is not None:
            section = next((name for pattern, name in _SECTIONS if pattern.search(title)), None)
            header = []
            seen = seen or section is not None
            continue
        for m in _NUMA.finditer(line):
            gpu = f"GPU{m[1]}"
            gpus += [gpu] if gpu not in gpus else []
            nodes[m[2]][gpu] = int(m[3]) if is_number(m[3]) else None
            seen = True
        tokens = line.split()
        if section not in tables or not tokens or not re.fullmatch(r"GPU\d+", tokens[0]):
            continue
        if not header:
            header = tokens
            gpus += [t for t in tokens if t not in gpus]
            continue
        row, cells = tokens[0], tokens[1:]
        if len(cells) != len(header) or row not in header:
            return Part(
                kind="rocm",
                refused=f"the topology matrix cannot be read: line {number} has {len(cells)} cells "
                f"under {len(header)} headings",
            )
        for column, cell in zip(header, cells, strict=True):
            if column != row:
                tables[section][row, column] = cell
    if not seen:
        return None
    facts: dict[str, object] = {
        "gpus": gpus,
        "links": {f"{a}-{b}": c for (a, b), c in tables["links"].items()},
    }
    numbers = {
        key: {pair: int(c) for pair, c in tables[key].items() if is_number(c)}
        for key in ("weight", "hops")
    }
    for key, cells_of in numbers.items():
        if cells_of:
            facts[key] = {f"{a}-{b}": n for (a, b), n in cells_of.items()}
    if nodes["Node"]:
        facts["numa_node"] = dict(nodes["Node"])
    if nodes["Affinity"]:
        facts["numa_affinity"] = {
            g: None if n is None else str(n) for g, n in nodes["Affinity"].items()
        }
    affinity: dict[str, CpuSet | None] = {
        g: None if n is None else cpulist_or_none(str(n))
        for g, n in (nodes["Affinity"] or nodes["Node"]).items()
    }
    matrix = LinkMatrix(
        gpus=tuple(gpus),
        nics=(),
        links=tables["links"],
        numa_affinity=affinity,
        weight=numbers["weight"],
        hops=numbers["hops"],
        rows=tuple(dict.fromkeys(a for a, _ in tables["links"])),
        source="rocm-smi --showtopo",
    )
    return Part(kind="rocm", facts=facts, matrix=matrix)
