"""Slurm: gres.conf, `scontrol show node`, node lines of slurm.conf, and what slurmd complains of.

Source: Slurm gres.conf(5), slurm.conf(5), scontrol(1); src/interfaces/gres.c,
src/slurmd/common/xcpuinfo.c.
"""

from __future__ import annotations

import re

from nodeagent.discover.paste.part import Part, cpulist_or_none
from nodeagent.model.host_report import GresLine, SlurmComplaint, SlurmNode
from nodeagent.model.pasted import Report

_GRES = re.compile(r"^\s*(?:NodeName=\S+\s+)?(?:AutoDetect=\S+\s+)?Name=gpu\b(.*)$", re.IGNORECASE)
_FILE = re.compile(r"\bFile=(\S+)", re.IGNORECASE)
_CORES = re.compile(r"\b(?:Cores|CPUs)=([\d,-]+)", re.IGNORECASE)
_COMPLAINT = re.compile(
    r"doesn'?t match socket boundaries|xcpuinfo_abs_to_mac: failed|Invalid GRES data"
    r"|gres/gpu: count changed|gres_plugin_node_config.{0,80}(?:invalid|count)"
    r"|Node configuration differs from hardware|[Ll]ow socket\*core|Low CPUs count"
    r"|gres/gpu count (?:reported|too) |GRES core specification .{0,80}(?:doesn'?t|not)"
    r"|Setting .{0,60}gpu .{0,60}to DRAIN|can'?t bind .{0,40}(?:cpu|gpu)|GPU .{0,60}not found"
    r"|mem_bind|sched_setaffinity\(.{0,80}failed|task/affinity.{0,80}(?:error|invalid|failed)"
)
_NODE = re.compile(r"^\s*NodeName=(\S+)(.*)$")
_PAIR = re.compile(r"\b([A-Za-z]{2,40})=(\S+)")
_REASON = re.compile(r"\bReason=(.+?)\s*(?:\[|$)")


def read_slurm(text: str, name: str) -> Part | None:
    """Everything of Slurm in a text; None when there is nothing."""
    reports: list[Report] = []
    node: dict[str, str] | None = None
    at = 0
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw[:4000]
        if m := _GRES.match(line):
            files = _FILE.search(m[1])
            cores = _CORES.search(m[1])
            reports.append(
                GresLine(
                    source=name,
                    line=number,
                    files=_expanded(files[1]) if files else (),
                    cores=cpulist_or_none(cores[1].strip(",")) if cores else None,
                    text=line.strip(),
                )
            )
            continue
        if m := _COMPLAINT.search(line):
            reports.append(SlurmComplaint(source=name, line=number, text=line.strip()[:300]))
        if m := _NODE.match(line):
            if node is not None:
                reports.append(_node(node, at, name))
            node, at = {"NodeName": m[1]}, number
        if node is not None:
            if m := _REASON.search(line):
                node["Reason"] = m[1]
            for key, value in _PAIR.findall(line):
                node.setdefault(key, value)
    if node is not None and len(node) > 2:
        reports.append(_node(node, at, name))
    if not reports:
        return None
    return Part(kind="Slurm", reports=tuple(reports))


def _expanded(files: str) -> tuple[str, ...]:
    """/dev/nvidia[0-3,6] as single files."""
    m = re.fullmatch(r"(.*)\[([\d,-]{1,200})\](.*)", files)
    numbers = cpulist_or_none(m[2]) if m else None
    if m is None or numbers is None:
        return tuple(files.split(","))
    return tuple(f"{m[1]}{n}{m[3]}" for n in numbers)


def _node(values: dict[str, str], line: int, source: str) -> SlurmNode:
    def whole(key: str) -> int | None:
        value = values.get(key, "")
        return int(value) if value.isascii() and value.isdigit() and len(value) < 8 else None

    gres = re.search(r"gpu(?::[\w.-]+)?:(\d{1,4})", values.get("Gres", ""))
    return SlurmNode(
        source=source,
        line=line,
        name=values["NodeName"],
        sockets=whole("Sockets") or whole("SocketsPerBoard"),
        cores_per_socket=whole("CoresPerSocket"),
        threads_per_core=whole("ThreadsPerCore"),
        cpus=whole("CPUTot") or whole("CPUs"),
        state=values.get("State"),
        reason=values.get("Reason"),
        gpus=int(gres[1]) if gres else None,
    )
