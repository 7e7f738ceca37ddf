"""`lscpu` and `numactl -H`: CPUs and NUMA nodes as tools print them.

Source: util-linux sys-utils/lscpu.c; numactl numactl.c hardware().
"""

from __future__ import annotations

import itertools
import re

from nodeagent.discover.paste.part import Part, cpulist_or_none
from nodeagent.discover.root import is_number
from nodeagent.model.cpuset import CpuSet

NODE = "sys/devices/system/node"
CPU = "sys/devices/system/cpu"
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9 ()/\-]*")
_LISTED = re.compile(r"NUMA node\d+ CPU\(s\)|O(?:n|ff)-line CPU\(s\) list")
_CUT = re.compile(r"[\d,:-]*[,:-]")
_REST = re.compile(r"\s*[\d,:-]+\s*")
_NODE_CPUS = re.compile(r"NUMA node(\d+) CPU\(s\)")
_NUMBERS = {
    "CPU(s)": "cpus",
    "Thread(s) per core": "threads_per_core",
    "Core(s) per socket": "cores_per_socket",
    "Core(s) per cluster": "cores_per_cluster",
    "Socket(s)": "sockets",
    "CPU socket(s)": "sockets",
    "NUMA node(s)": "numa_node_count",
}
_STRINGS = {
    "Architecture": "architecture",
    "Vendor ID": "vendor",
    "Model name": "model",
    "On-line CPU(s) list": "online",
    "Off-line CPU(s) list": "offline",
}


def read_lscpu(text: str) -> Part | None:
    """`lscpu`'s summary in a text; None when there is none."""
    cpu: dict[str, object] = {}
    nodes: dict[int, CpuSet | None] = {}
    unclear: list[str] = []
    repairs: list[str] = []
    hypervisor = ""
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        key, colon, value = line.partition(":")
        key, value = key.strip(), value.strip()
        if key == "Hypervisor vendor" and colon:
            hypervisor = hypervisor or value.lower()
        if _LISTED.fullmatch(key) and _CUT.fullmatch(value):
            rest = list(itertools.takewhile(_REST.fullmatch, lines[number:]))
            if rest:
                value += "".join(x.strip() for x in rest)
                repairs.append(f"line {number}: {key} goes on over {len(rest)} more lines")
        if not colon or not _KEY.fullmatch(key):
            continue
        if node := _NODE_CPUS.fullmatch(key):
            # The kernel puts a node on-line for its CPUs or its memory: none is said as "".
            found = CpuSet() if not value else cpulist_or_none(value)
            if found is None:
                unclear.append(f"line {number}: {key} {value!r} is no CPU list")
            nodes.setdefault(int(node[1]), found)
        elif key in _NUMBERS:
            cpu.setdefault(_NUMBERS[key], int(value) if is_number(value) else None)
        elif key in _STRINGS:
            as_list = cpulist_or_none(value) if key.endswith("list") else None
            cpu.setdefault(_STRINGS[key], str(as_list) if as_list is not None else value or None)
    known = len(cpu.keys() - {"vendor", "model"})
    if not nodes and not ("cpus" in cpu and known >= 2):
        return None
    files: dict[str, str] = {}
    online = cpu.get("online")
    told = CpuSet.of(c for cpus in nodes.values() if cpus is not None for c in cpus)
    if isinstance(online, str):
        files[f"{CPU}/online"] = online
    offline = cpulist_or_none(str(cpu.get("offline") or ""))
    if isinstance(online, str) and "offline" in cpu and offline is not None:
        both = cpulist_or_none(online)
        files[f"{CPU}/present"] = str(both | offline) if both is not None else online
    for i, cpus in nodes.items():
        if cpus is not None:
            files[f"{NODE}/node{i}/cpulist"] = str(cpus)
    facts: dict[str, object] = {}
    if cpu:
        facts["cpu"] = cpu
    if nodes:
        facts["numa_nodes"] = [
            {"id": i, "cpus": None if c is None else str(c)} for i, c in sorted(nodes.items())
        ]
    weak = {f"{CPU}/online": str(told)} if told else {}
    if hypervisor:
        weak["sys/hypervisor/type"] = hypervisor
    return Part(
        kind="lscpu",
        facts=facts,
        files=files,
        weak=weak,
        unclear=tuple(unclear),
        repairs=tuple(repairs),
    )


_AVAILABLE = re.compile(r"^\s*available:\s*(\d+) nodes?\s*\(([^)]*)\)")
_CPUS = re.compile(r"^\s*node\s+(\d+)\s+cpus:\s*([\d ]*)$")
_SIZE = re.compile(r"^\s*node\s+(\d+)\s+(size|free):\s*(\d+)\s*MB")
_ROW = re.compile(r"^\s*(\d+):\s+([\d ]+)$")


def read_numactl(text: str) -> Part | None:
    """`numactl -H` in a text; None when there is none."""
    cpus: dict[int, CpuSet] = {}
    sizes: dict[str, dict[int, int]] = {"size": {}, "free": {}}
    rows: dict[int, list[int]] = {}
    columns: list[int] = []
    in_table = False
    for line in text.split("\n"):
        if m := _CPUS.match(line):
            cpus[int(m[1])] = CpuSet.of(int(c) for c in m[2].split() if int(c) < 1 << 16)
        elif m := _SIZE.match(line):
            sizes[m[2]][int(m[1])] = int(m[3]) << 20
        elif "node distances" in line:
            in_table = True
        elif in_table and re.match(r"^\s*node\s+[\d ]+$", line):
            columns = [int(w) for w in line.split()[1:]]
        elif in_table and (m := _ROW.match(line)):
            rows[int(m[1])] = [int(w) for w in m[2].split()]
    if not cpus and not (sizes["size"] and _AVAILABLE.search(text)):
        return None
    files = {f"{NODE}/node{i}/cpulist": str(c) for i, c in cpus.items()}
    for i, size in sizes["size"].items():
        free = sizes["free"].get(i)
        lines = [f"Node {i} MemTotal: {size >> 10} kB"]
        lines += [f"Node {i} MemFree: {free >> 10} kB"] if free is not None else []
        files[f"{NODE}/node{i}/meminfo"] = "\n".join(lines)
    ids = sorted(cpus.keys() | sizes["size"].keys())
    for i, row in rows.items():
        if columns == ids and len(row) == len(ids):
            files[f"{NODE}/node{i}/distance"] = " ".join(map(str, row))
    weak = {f"{CPU}/online": str(CpuSet.of(c for of in cpus.values() for c in of))}
    facts = {
        "numa_nodes": [
            {
                "id": i,
                "cpus": str(cpus[i]) if i in cpus else None,
                "memory_bytes": sizes["size"].get(i),
                "distances": {str(to): d for to, d in zip(columns, rows.get(i, []), strict=False)},
            }
            for i in ids
        ]
    }
    return Part(kind="numactl", facts=facts, files=files, weak=weak)
