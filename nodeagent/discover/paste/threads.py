"""Where processes and threads may run and take memory: /proc/PID/status, taskset, numactl -s, ps,
top, strace, numastat -p, numa_maps, Python's sched_getaffinity.

Source: Linux Documentation/filesystems/proc.rst; util-linux taskset.c; numactl numactl.c show();
strace(1).
"""

from __future__ import annotations

import re

from nodeagent.discover.paste.part import Part, cpulist_or_none
from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.hostreport import RankPlace, Syscall, ThreadState
from nodeagent.model.pasted import Report

MAX_THREADS = 65_536
_STATUS = re.compile(
    r"^[ \t]*(Name|Pid|Tgid|Cpus_allowed_list|Mems_allowed_list):[ \t]*(\S.*?)[ "
    r"\t]*$"
)
_TASKSET = re.compile(
    r"^[ \t]*pid (\d+)'s (?:current|new) affinity (list|mask): ([0-9a-fA-FxX,-]+)", re.M
)
_SHOW = re.compile(
    r"^[ \t]*(physcpubind|membind|cpubind|nodebind|policy|memory nodes):[ "
    r"\t]*(.*)$",
    re.M,
)
_STRACE = re.compile(
    r"(?:\[pid\s+(\d+)\]\s*|^[ \t]*(\d+)\s+)?\b(sched_setaffinity|sched_getaffinity|set_mempolicy|"
    r"mbind|migrate_pages|move_pages|sched_setscheduler)"
    r"\((.{0,400}?)\)\s*=\s*(-?\d+)(?:\s+(E[A-Z]+))?",
    re.M,
)
_PYTHON = re.compile(r"^[^{\n]{0,80}\{(\d+(?:,\s*\d+)*)\}[ \t]*$", re.M)
_NUMA_MAPS = re.compile(r"^[ \t]*[0-9a-f]{6,16} "
                        r"(?:default|bind|prefer|interleave|local|weighted)\S* "
                        r".*\bN\d+=",
                        re.M)  # fmt: skip
_PAGES = re.compile(r"\bN(\d+)=(\d+)")


def read_threads(text: str, name: str) -> Part | None:
    """All of these in a text; None when it has none."""
    reports: list[Report] = [
        *_status(text, name),
        *_taskset(text, name),
        *_show(text, name),
        *_strace(text, name),
        *_table(text, name),
        *_numastat(text, name),
    ]
    if "affinity" in text.lower() or "affinity" in name:
        reports += [
            ThreadState(source=name, allowed=CpuSet.of(int(c) for c in m[1].split(",")))
            for m in _PYTHON.finditer(text)
            if all(int(c) < 1 << 16 for c in m[1].split(","))
        ]
    return Part(kind="threads", reports=tuple(reports[:MAX_THREADS])) if reports else None


def _status(text: str, name: str) -> list[ThreadState]:
    found: list[ThreadState] = []
    row: dict[str, str] = {}
    for line in [*text.split("\n"), "Name: ."]:
        m = _STATUS.match(line) if len(line) < 8192 else None
        if m is None:
            continue
        if m[1] in row:
            if "Cpus_allowed_list" in row or "Mems_allowed_list" in row:
                found.append(
                    ThreadState(
                        source=name,
                        pid=int(row["Pid"]) if row.get("Pid", "").isdigit() else None,
                        comm=row.get("Name"),
                        allowed=cpulist_or_none(row.get("Cpus_allowed_list", "")),
                        mems=cpulist_or_none(row.get("Mems_allowed_list", "")),
                    )
                )
            row = {}
        row[m[1]] = m[2]
    if "Cpus_allowed_list" in row or "Mems_allowed_list" in row:
        found.append(
            ThreadState(
                source=name,
                allowed=cpulist_or_none(row.get("Cpus_allowed_list", "")),
                mems=cpulist_or_none(row.get("Mems_allowed_list", "")),
            )
        )
    return found


def _taskset(text: str, name: str) -> list[ThreadState]:
    found = []
    for m in _TASKSET.finditer(text):
        try:
            cpus = CpuSet.parse(m[3]) if m[2] == "list" else CpuSet.parse_mask(m[3])
        except ParseError:
            continue
        found.append(ThreadState(source=name, pid=int(m[1]), allowed=cpus))
    return found


def _show(text: str, name: str) -> list[ThreadState]:
    rows = {m[1]: m[2] for m in _SHOW.finditer(text)}
    if "physcpubind" not in rows:
        return []
    return [
        ThreadState(
            source=name,
            comm="numactl --show",
            allowed=cpulist_or_none(",".join(rows["physcpubind"].split())),
            mems=cpulist_or_none(",".join(rows.get("membind", "").split())),
        )
    ]


def _strace(text: str, name: str) -> list[Syscall]:
    found = []
    for m in _STRACE.finditer(text):
        pid = m[1] or m[2]
        first = m[4].partition(",")[0].strip()
        cpus = None
        if m[3].startswith("sched_") and (inside := re.search(r"\[([^\]]*)\]", m[4])):
            cpus = cpulist_or_none(",".join(inside[1].replace(",", " ").split()))
            pid = first if first.isdigit() and first != "0" else pid
        elif (
            inside := re.search(
                r"\[0x([0-9a-fA-F]+)[^\]]*\]"
                r"|\{0x([0-9a-fA-F]+)",
                m[4],
            )
        ) is not None:
            cpus = CpuSet.parse_mask(inside[1] or inside[2])
        found.append(
            Syscall(
                source=name,
                name=m[3],
                arguments=m[4][:200],
                error=(m[6] or "failed") if m[5].startswith("-") else None,
                pid=int(pid) if pid else None,
                cpus=cpus,
            )
        )
    return found[:MAX_THREADS]


def _table(text: str, name: str) -> list[ThreadState]:
    """`ps -eLo pid,tid,psr,comm`, `top -H`, `pidstat -t`: by the header's words."""
    lines = text.split("\n")
    for i, line in enumerate(lines[:200]):
        words = line.split()
        column: str | None = next((w for w in ("PSR", "P", "CPUID") if w in words), None)
        if column is None and "CPU" in words and "%CPU" in words:
            column = "CPU"  # pidstat
        ids = next((w for w in ("TID", "LWP", "SPID", "PID") if w in words), None)
        last = next((w for w in ("COMMAND", "CMD", "COMM", "Command") if w in words), None)
        if column is None or ids is None or last is None:
            continue
        # The command may hold blanks: columns before it count from the left, others from the right.
        at = words.index(last)
        after = len(words) - at - 1
        found = []
        for row in lines[i + 1 : i + 1 + MAX_THREADS]:
            cells = row.split(None, at)
            if len(cells) != at + 1:
                continue
            ends = cells[at].rsplit(None, after) if after else [cells[at]]
            cells = [*cells[:at], *ends]
            if len(cells) != len(words):
                continue
            row_of = dict(zip(words, cells, strict=True))
            pid, psr = row_of[ids], row_of[column]
            if pid == "-" and ids == "TID":
                pid = row_of.get("TGID", "")
            busy = row_of.get("%CPU", "")
            if pid.isdigit() and psr.isdigit() and int(psr) < 1 << 16:
                found.append(
                    ThreadState(
                        source=name,
                        pid=int(pid),
                        comm=row_of[last].strip()[:60],
                        psr=int(psr),
                        busy_percent=float(busy) if re.fullmatch(r"\d+(?:\.\d+)?", busy) else None,
                    )
                )
        return found
    return []


def _numastat(text: str, name: str) -> list[RankPlace]:
    """`numastat -p`: a Total row by node, in MB; numa_maps: pages by node."""
    found: list[RankPlace] = []
    lines = text.split("\n")
    for i, line in enumerate(lines):
        nodes = [int(n) for n in re.findall(r"\bNode (\d{1,5})\b", line)]
        if not nodes or "Total" not in line or len(nodes) > 1024:
            continue
        one = re.search(r"for PID (\d+) \(([^)]*)\)", "\n".join(lines[max(0, i - 3) : i]))
        for row in lines[i + 1 :]:
            cells = row.split()
            values = cells[-len(nodes) - 1 : -1]
            numbers = all(re.fullmatch(r"\d+(?:\.\d+)?", v) for v in values)
            if len(cells) < len(nodes) + 2 or not numbers:
                if not row.strip() and found:
                    break
                continue
            label = " ".join(cells[: -len(nodes) - 1])
            if label == "Total" and not one and found:
                continue
            if one and label != "Total":
                continue
            rank = f"{one[1]} ({one[2]})" if one else label
            sizes = {n: int(float(v) * (1 << 20)) for n, v in zip(nodes, values, strict=True)}
            found.append(RankPlace(source=name, rank=rank, bytes_by_node=sizes))
        break
    if not found and _NUMA_MAPS.search(text):
        pages: dict[int, int] = {}
        for row in text.split("\n"):
            size = re.search(r"kernelpagesize_kB=(\d+)", row)
            for m in _PAGES.finditer(row):
                kb = int(m[2]) * (int(size[1]) if size else 4)
                pages[int(m[1])] = pages.get(int(m[1]), 0) + (kb << 10)
        found.append(RankPlace(source=name, rank="process", bytes_by_node=pages))
    return found
