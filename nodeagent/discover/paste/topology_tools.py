"""`numastat`, `/proc/cpuinfo`, `lstopo` as text, `dmidecode -t memory`.

Source: numastat(8); Linux fs/proc/cpuinfo.c; hwloc utils/lstopo/lstopo-text.c; dmidecode(8).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from nodeagent.discover.paste.part import Part
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.host_report import Dimm
from nodeagent.model.pasted import Report

NODE = "sys/devices/system/node"
CPU = "sys/devices/system/cpu"
_COUNTERS = ("numa_hit", "numa_miss", "numa_foreign", "interleave_hit", "local_node", "other_node")


def read_numastat(text: str, name: str) -> Part | None:
    """`numastat` and `numastat -m` as the kernel files they come from; None without any."""
    columns: list[int] = []
    counters: dict[int, list[str]] = {}
    memory: dict[int, list[str]] = {}
    for line in text.split("\n"):
        words = line.split()
        if not words:
            continue
        heads = re.findall(r"[Nn]ode ?(\d{1,4})\b", line)
        if heads and not words[0].lower().startswith(("numa_", "mem")) and ":" not in line:
            columns = [int(n) for n in heads]
            continue
        values = words[1:]
        if not columns or len(values) < len(columns):
            continue
        if words[0] in _COUNTERS and all(v.isdigit() for v in values[: len(columns)]):
            for node, value in zip(columns, values, strict=False):
                counters.setdefault(node, []).append(f"{words[0]} {value}")
        elif words[0] in ("MemTotal", "MemFree", "MemUsed", "HugePages_Total", "HugePages_Free"):
            for node, value in zip(columns, values, strict=False):
                if re.fullmatch(r"\d{1,12}(?:\.\d{1,3})?", value):
                    unit = 1 if words[0].startswith("Huge") else 1024
                    memory.setdefault(node, []).append(
                        f"Node {node} {words[0]}: {int(float(value) * unit)}"
                        + ("" if unit == 1 else " kB")
                    )
    if not counters and not any(any("MemTotal" in x for x in m) for m in memory.values()):
        return None
    files = {f"{NODE}/node{n}/numastat": "\n".join(rows) for n, rows in counters.items()}
    files |= {f"{NODE}/node{n}/meminfo": "\n".join(rows) for n, rows in memory.items()}
    return Part(kind="numastat", files=files)


def read_cpuinfo(text: str, name: str) -> Part | None:
    """/proc/cpuinfo by its content: the file, and the cores that its ids tell."""
    if not re.search(r"^processor[ \t]*: \d", text, re.MULTILINE) or not re.search(
        r"^(?:vendor_id|CPU implementer|cpu[ \t]|model name|BogoMIPS)[ \t]*:", text, re.MULTILINE
    ):
        return None
    rows: list[dict[str, str]] = []
    for line in text.split("\n"):
        key, colon, value = line.partition(":")
        key = key.strip()
        if key == "processor" and colon:
            rows.append({})
        if rows and colon:
            rows[-1][key] = value.strip()
    cpus = [int(r["processor"]) for r in rows if r["processor"].isascii()
            and r["processor"].isdigit() and len(r["processor"]) < 6]  # fmt: skip
    files: dict[str, str] = {"proc/cpuinfo": text}
    groups: dict[tuple[str, str], list[int]] = {}
    packages: dict[str, list[int]] = {}
    if len(cpus) == len(rows):
        for cpu, row in zip(cpus, rows, strict=True):
            if "physical id" in row and "core id" in row:
                groups.setdefault((row["physical id"], row["core id"]), []).append(cpu)
                packages.setdefault(row["physical id"], []).append(cpu)
    width = {int(r["siblings"]) // int(r["cpu cores"]) for r in rows
             if r.get("siblings", "").isdigit() and r.get("cpu cores", "0").strip("0")
             and r["cpu cores"].isdigit()}  # fmt: skip
    # Core ids that repeat within a package would make too wide a core: then nothing is said.
    if groups and all(len(g) <= max(width, default=8) for g in groups.values()):
        for members in groups.values():
            for cpu in members:
                files[f"{CPU}/cpu{cpu}/topology/core_cpus_list"] = str(CpuSet.of(members))
        for number, members in packages.items():
            for cpu in members:
                at = f"{CPU}/cpu{cpu}/topology"
                files[f"{at}/package_cpus_list"] = str(CpuSet.of(members))
                files[f"{at}/physical_package_id"] = number
    weak = {f"{CPU}/online": str(CpuSet.of(cpus))} if cpus else {}
    return Part(kind="cpuinfo", files=files, weak=weak)


@dataclass(slots=True)
class _Object:
    depth: int
    text: str
    below: list[_Object] = field(default_factory=list)

    def pus(self) -> list[int]:
        found = [int(n) for n in re.findall(r"\bPU (?:L#\d{1,6} )?\(?P#(\d{1,5})", self.text)]
        for child in self.below:
            found += child.pus()
        return found


_LSTOPO = re.compile(
    r"^(\s*)((?:Machine|Package|Socket|NUMANode|Group\d?|L3\S*|L2\S*|L1\S*|Die|Core|PU|HostBridge"
    r"|PCI|Net|Block|GPU|CoProc|OpenFabrics|Bridge)\b.*)$"
)


def read_lstopo(text: str, name: str) -> Part | None:
    """`lstopo-no-graphics` as text; None for other text, or when indentation was lost."""
    if not re.search(r"^[ \t]*Machine(?: L#\d+)? ?\(", text, re.MULTILINE) or "PU L#" not in text:
        return None
    root = _Object(-1, "")
    stack = [root]
    objects: list[tuple[_Object, _Object]] = []
    for line in text.split("\n"):
        if m := _LSTOPO.match(line):
            found = _Object(len(m[1]), m[2])
            while stack[-1].depth >= found.depth:
                stack.pop()
            stack[-1].below.append(found)
            objects.append((found, stack[-1]))
            stack.append(found)
    files: dict[str, str] = {}
    everything = CpuSet.of(root.pus())
    for each, parent in objects:
        if m := re.match(r"NUMANode L#\d+ \(P#(\d{1,5})(?: (?:local=)?(\d+)([KMGT])B)?", each.text):
            own = each.pus() or (parent.pus() if parent is not root else [])
            files[f"{NODE}/node{m[1]}/cpulist"] = str(CpuSet.of(own))
            if m[2]:
                kib = int(m[2]) << {"K": 0, "M": 10, "G": 20, "T": 30}[m[3]]
                files[f"{NODE}/node{m[1]}/meminfo"] = f"Node {m[1]} MemTotal: {kib} kB"
        for key, pattern in (("core_cpus_list", r"\bCore L#\d+"), ("l3", r"\bL3\b"),
                             ("package_cpus_list", r"\b(?:Package|Socket) L#\d+")):  # fmt: skip
            if not re.search(pattern, each.text):
                continue
            pus = each.pus()
            for pu in pus:
                at = f"{CPU}/cpu{pu}"
                if key == "l3":
                    at += "/cache/index3"
                    files |= {f"{at}/level": "3", f"{at}/type": "Unified"}
                    files[f"{at}/shared_cpu_list"] = str(CpuSet.of(pus))
                else:
                    files[f"{at}/topology/{key}"] = str(CpuSet.of(pus))
                if number := re.search(r"(?:Package|Socket) L#(\d+)(?: P#(\d+))?", each.text):
                    files[f"{CPU}/cpu{pu}/topology/physical_package_id"] = number[2] or number[1]
    if not everything:
        return None
    return Part(kind="lstopo", files=files, weak={f"{CPU}/online": str(everything)})


_SIZES = {"kB": 10, "KB": 10, "MB": 20, "GB": 30, "TB": 40}


def read_dmidecode(text: str, name: str) -> Part | None:
    """The memory slots in a text; None when there are none."""
    dimms: list[Report] = []
    block: dict[str, str] | None = None
    start = 0
    lines = text.split("\n")
    for number, line in enumerate([*lines, "Handle end"], 1):
        if line.strip() == "Memory Device":
            block, start = {}, number
        elif line.startswith("Handle ") or (block and line.strip().endswith("Information")):
            if block and (found := _dimm(block, start, name)) is not None:
                dimms.append(found)
            block = None
        elif block is not None:
            key, colon, value = line.partition(":")
            if colon:
                block.setdefault(key.strip(), value.strip())
    if not dimms:
        return None
    return Part(kind="dmidecode", reports=tuple(dimms))


def _dimm(block: dict[str, str], line: int, source: str) -> Dimm | None:
    size = re.match(r"(\d{1,9}) (\w\w)", block.get("Size", ""))
    empty = block.get("Size", "").startswith(("No Module", "Not Installed"))
    if size is None and not empty:
        return None
    locator, bank = block.get("Locator", ""), block.get("Bank Locator", "")

    def rate(*keys: str) -> int | None:
        m = next((m for k in keys if (m := re.match(r"(\d{2,6})", block.get(k, "")))), None)
        return int(m[1]) if m else None

    return Dimm(
        source=source,
        line=line,
        locator=f"{bank} {locator}".strip() if _socket(locator) is None else locator,
        socket=_socket(locator) or _socket(bank),
        size_bytes=int(size[1]) << _SIZES.get(size[2], 20) if size and not empty else 0,
        speed_mts=rate("Speed"),
        configured_mts=rate("Configured Memory Speed", "Configured Clock Speed"),
    )


def _socket(locator: str) -> str | None:
    """The socket in a slot's name, as boards write it: CPU1_DIMM_A1, P0 CHANNEL A, NODE 1, B3."""
    m = re.search(r"(?:CPU|PROC|SOCKET|NODE|P)[ _]?(\d)(?!\d)", locator, re.IGNORECASE)
    if m:
        return f"CPU {m[1]}"
    m = re.fullmatch(r"(?:DIMM[ _.]?)?([AB])\d{1,2}", locator.strip())
    return f"CPU {'AB'.index(m[1]) + 1}" if m else None
