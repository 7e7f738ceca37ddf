"""`df`, `ls -l /dev/shm`, `ipcs -m`, `free`, `swapon`, huge-page counters, DPDK command lines.

Source: coreutils df(1), ls(1); util-linux ipcs(1), swapon(8); procps free(1); Linux
Documentation/admin-guide/mm/hugetlbpage.rst; DPDK EAL parameters.
"""

from __future__ import annotations

import re

from nodeagent.discover.paste.kubelet import size_of
from nodeagent.discover.paste.names import stem_of
from nodeagent.discover.paste.part import Part, cpulist_or_none
from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.memreport import (
    BoundDevice,
    EalArguments,
    Filesystem,
    HugePool,
    MemoryUse,
    ShmFile,
)
from nodeagent.model.pasted import Report

_DF = re.compile(
    r"^[ \t]*(?P<device>\S+)?(?:\s+(?P<type>[a-z][a-z0-9.]{2,10}))?\s+"
    r"(?P<size>\d+(?:\.\d+)?[KMGTP]?i?B?)\s+"
    r"(?P<used>\d+(?:\.\d+)?[KMGTP]?i?B?)\s+(?P<free>\d+(?:\.\d+)?[KMGTP]?i?B?)\s+"
    r"(?P<percent>\d{1,3})\s?%\s+"
    r"(?P<mount>/\S*)[ \t]*$"
)
_LS = re.compile(
    r"^[ \t]*-[rwxsStT-]{9}[.+@]?\s+\d+\s+\S+\s+\S+\s+"
    r"(\d+(?:\.\d+)?[KMGT]?)\s+\S+\s+\S+\s+\S+\s+(\S+)[ \t]*$"
)
_SHM_NAME = re.compile(
    r"^/?(?:dev/shm/)?(?:nccl-|torch_|psm_|sem\.|vllm|sglang|ray|plasma|shm_|rocm|ucx|nvshmem"
    r"|vader_|"
    r"hmat|mp-|wnsm_|sm_|open_mpi|psm2|pymp-)"
)
_IPCS = re.compile(r"^[ \t]*0x[0-9a-f]{8}\s+(\d+)\s+\S+\s+\d+\s+(\d+)\s+(\d+)\b")
_POOL = re.compile(
    r"(?:node(?P<node>\d+)/)?(?:hugepages/)?(?:hugepages-(?P<kb>\d+)kB/)?"
    r"\b(?P<key>nr_hugepages|free_hugepages|resv_hugepages|surplus_hugepages)\s*[=: "
    r"\t]\s*(?P<n>\d+)"
    r"[ \t]*$",
    re.M,
)
_POOL_NAME = re.compile(
    r"(?:^|[-_/])(?:node(?P<node>\d+)[-_/])?(?:hugepages[-_/])?(?:(?:hugepages-)?(?P<kb>\d+)kB[-_/])?"
    r"(?P<key>nr|free|resv|surplus)_hugepages$"
)
"""A file of one number, saved under the name of its pool."""
_INFO = re.compile(
    r"^[ \t]*(?:Node (\d+)[ ,]+)?HugePages_(Total|Free|Rsvd|Surp):?\s+(\d+)[ \t]*$", re.M
)
_PAGE = re.compile(r"^[ \t]*Hugepagesize:\s+(\d+) kB", re.M)
_DPDK_POOL = re.compile(r"^[ \t]*(\d+)\s+(\d+)\s+(\d+)([KMG])b\s+\d+[KMG]b[ \t]*$", re.M)
_MEM_ROW = re.compile(r"^[ \t]*(Mem|Swap):\s+(\S+)\s+(\S+)(.*)$", re.M)
_SWAPON = re.compile(
    r"^[ \t]*(/\S+)\s+(partition"
    r"|file)\s+(\d+(?:\.\d+)?[KMGT]?)\s+(\d+(?:\.\d+)?[KMGTB]?)\s+(-?\d+)[ \t]*$",
    re.M,
)
_BIND = re.compile(
    r"^[ \t]*([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\s+'([^']*)'"
    r"((?:\s+\S+=\S*)*)(\s+\*Active\*)?",
    re.M,
)
_EAL = re.compile(
    r"--socket-mem|--lcores|--huge-dir|--file-prefix|\s-n\s+\d|testpmd|dpdk-"
    r"|l[23]fwd"
)
_POOL_KEYS = {"Total": "nr", "Free": "free", "Rsvd": "resv", "Surp": "surplus"}


def read_memory(text: str, name: str) -> Part | None:
    """All of these in a text; None when it has none."""
    reports: list[Report] = [
        *_df(text, name),
        *_listing(text, name),
        *_pools(text, name),
        *_eal(text, name),
    ]
    for m in _BIND.finditer(text):
        pairs = dict(p.partition("=")[::2] for p in m[3].split())
        reports.append(
            BoundDevice(
                source=name,
                bdf=m[1],
                name=m[2],
                driver=pairs.get("drv") or None,
                interface=pairs.get("if") or None,
                active=m[4] is not None,
            )
        )
    files: dict[str, str] = {}
    use = _use(text, name)
    if use is not None:
        reports.append(use)
    swaps = _SWAPON.findall(text)
    if swaps:
        lines = ["Filename Type Size Used Priority"]
        for path, kind, size, used, priority in swaps:
            kb = [(size_of(x.rstrip("B")) or 0) >> 10 for x in (size, used)]
            lines.append(f"{path} {kind} {kb[0]} {kb[1]} {priority}")
        files["proc/swaps"] = "\n".join(lines)
    if not files and not reports:
        return None
    return Part(kind="memory", files=files, reports=tuple(reports))


def _df(text: str, name: str) -> list[Filesystem]:
    inodes, unit, held = False, 1 << 10, ""
    found = []
    for raw in text.split("\n"):
        line = raw[:1000]
        if line.lstrip().startswith("Filesystem"):
            inodes = "Inodes" in line or "IUse" in line
            m = re.search(r"(\d+)([KMG])-blocks|(\d+)-blocks", line)
            if m:
                unit = int(m[3]) if m[3] else int(m[1]) << {"K": 10, "M": 20, "G": 30}[m[2]]
            continue
        m = _DF.match(line)
        if m is None:
            # A long device stands alone, its numbers on the next line.
            held = line.strip() if re.fullmatch(r"\s*\S+\s*", line) else ""
            continue
        device, held = m["device"] or held or "?", ""
        plain = m["size"].isdigit()
        size, used = size_of(m["size"]), size_of(m["used"])
        if size is None or used is None:
            continue
        scale = unit if plain and not inodes else 1
        found.append(
            Filesystem(
                source=name,
                device=device,
                mount=m["mount"],
                size=size * scale,
                used=used * scale if m["used"].isdigit() else used,
                percent=int(m["percent"]),
                inodes=inodes,
            )
        )
    return found


def _listing(text: str, name: str) -> list[ShmFile]:
    found: list[ShmFile] = []
    here = "/dev/shm" in name or "dev-shm" in name or "shm" in stem_of(name)[0]
    for raw in text.split("\n"):
        line = raw[:1000]
        if re.match(r"^[ \t]*/\S*:[ \t]*$", line):
            here = line.strip().rstrip(":") == "/dev/shm"
        if (m := _LS.match(line)) and (here or _SHM_NAME.match(m[2])):
            size = size_of(m[1])
            if size is not None:
                leaf = m[2].removeprefix("/dev/shm/")
                found.append(ShmFile(source=name, name=leaf, size=size))
        elif m := _IPCS.match(line):
            by = "" if m[3] == "0" else f"{m[3]} processes"
            found.append(ShmFile(source=name, name=f"shmid {m[1]}", size=int(m[2]), mapped_by=by))
    return found


def _pools(text: str, name: str) -> list[HugePool]:
    moment = stem_of(name)[1]
    later = None if moment is None else moment.later
    rows: dict[tuple[int | None, int | None], dict[str, int]] = {}
    for m in _POOL.finditer(text):
        at = (int(m["node"]) if m["node"] else None, int(m["kb"]) << 10 if m["kb"] else None)
        rows.setdefault(at, {})[m["key"].removesuffix("_hugepages")] = int(m["n"])
    named = _POOL_NAME.search(stem_of(name)[0])
    if not rows and named and text.strip().isdigit():
        of = int(named["kb"]) << 10 if named["kb"] else None
        rows[int(named["node"]) if named["node"] else None, of] = {
            named["key"]: int(text.strip()[:12])
        }
    page = _PAGE.search(text)
    size = int(page[1]) << 10 if page else None
    for m in _INFO.finditer(text):
        at = (int(m[1]) if m[1] else None, size)
        rows.setdefault(at, {})[_POOL_KEYS[m[2]]] = int(m[3])
    if re.search(r"^[ \t]*Node\s+Pages\s+Size\s+Total", text, re.M):
        for m in _DPDK_POOL.finditer(text):
            scale = {"K": 10, "M": 20, "G": 30}[m[4]]
            rows[int(m[1]), int(m[3]) << scale] = {"nr": int(m[2])}
    return [
        HugePool(source=name, node=node, size_bytes=of, values=values, later=later)
        for (node, of), values in rows.items()
    ]


def _eal(text: str, name: str) -> list[EalArguments]:
    leaf = stem_of(name)[0].rpartition("/")[2]
    if leaf in ("lcores", "lcore", "corelist", "core-list"):
        cpus = cpulist_or_none(text.strip()) if len(text) < 4096 else None
        return [EalArguments(source=name, lcores=cpus, text=text.strip())] if cpus else []
    found = []
    for raw in re.sub(r"\\\s*\n", " ", text[: 1 << 20]).split("\n"):
        line = raw[:4000]
        if _EAL.search(line) is None or line.lstrip().startswith("EAL:"):
            continue
        cores = re.search(r"(?:^|\s)(?:-l|--lcores)[= ]+[\"']?([\d,@()-]+)", line)
        mask = re.search(r"(?:^|\s)-c[= ]+(?:0x)?([0-9a-fA-F]+)", line)
        memory = re.search(r"--socket-mem[= ]+[\"']?(\d+(?:,\d+)*)", line)
        cpus = None
        try:
            if cores:
                cpus = CpuSet.parse(re.sub(r"@?\(([\d,-]+)\)", r"\1", cores[1]).replace("@", ","))
            elif mask:
                cpus = CpuSet.parse_mask(mask[1])
        except ParseError:
            cpus = None
        if cpus is not None or memory:
            found.append(
                EalArguments(
                    source=name,
                    lcores=cpus or CpuSet(),
                    socket_mem_mb=tuple(int(x) for x in memory[1].split(",")) if memory else (),
                    text=line.strip()[:200],
                )
            )
    return found


def _use(text: str, name: str) -> MemoryUse | None:
    rows = {m[1]: m for m in _MEM_ROW.finditer(text)}
    head = re.search(r"^[ \t]*total\s+used\s+free", text, re.M)
    if head is None or "Mem" not in rows:
        return None
    # Without a unit free prints KiB; -m and -g print plain numbers too: only the ratio is used.
    memory = [size_of(x) for x in (rows["Mem"][2], rows["Mem"][3], *rows["Mem"][4].split())]
    swap = [size_of(x) for x in (rows["Swap"][2], rows["Swap"][3])] if "Swap" in rows else [0, 0]
    if memory[0] is None or swap[0] is None or swap[1] is None:
        return None
    available = memory[-1] if len(memory) == 6 else None
    return MemoryUse(
        source=name, total=memory[0], available=available, swap_total=swap[0], swap_used=swap[1]
    )
