"""Kernel files in a text: `path: value` lines, sysctl's, a transcript's `cat`, files of one value
under their kernel name, and those that are known by what is in them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nodeagent.discover.paste.names import path_of, stem_of
from nodeagent.discover.paste.part import Part, cpulist_or_none
from nodeagent.discover.paste.transcript import Section, sections
from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.hostreport import Sample

_PATH = re.compile(
    r"^\s*/?((?:sys|proc)/(?:[^\s:=]|:(?=[0-9a-fA-F]{2}[:.]))+)\s*(?:[:=]|\s->(?=\s*\d))[ \t]?(.*)$"
)
_LINK = re.compile(r"^\s*/?(sys/\S+)\s+->\s+(\S+)\s*$")
_SYSCTL = re.compile(r"^\s*((?:kernel|vm|net|fs)(?:\.[\w-]+)+)\s*[=:]\s*(.*)$")
_GROUP_KEY = re.compile(r"^\s*([\w./@-]*\bcpu(?:set)?\.[a-z_.]+)\s*[:=]\s*(.*)$")
_ARGUMENT = re.compile(r"\b(?:BOOT_IMAGE|root|isolcpus|nohz_full|rcu_nocbs|irqaffinity)=\S")
_CONFIG = ("/etc/", "etc/", "GRUB_", "options ", "args=", "kernelopts=")
_CPU = "sys/devices/system/cpu"
MAX_VALUE = 64 << 10
_CPU_HEAD = re.compile(r"^[ \t]*CPU\d+(?:[ \t]+CPU\d+)*[ \t]*$", re.MULTILINE)
MAX_TABLE = 1 << 20
"""A table (interrupts, cpuinfo) may be longer than a value."""
_TABLES = (
    "interrupts",
    "cpuinfo",
    "meminfo",
    "mounts",
    "softirqs",
    "schedstat",
    "vmstat",
    "status",
)
_PARAGRAPHS = (
    *_TABLES,
    "snmp",
    "udp",
    "igmp",
    "stat",
    "cpu.stat",
    "softnet_stat",
    "netstat",
    "dev",
)


def read_values(text: str, name: str) -> Part | None:
    """Kernel files in a text; None when there are none."""
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    for line in text.split("\n"):
        if len(line) > MAX_VALUE:
            continue
        if m := _LINK.match(line):
            links[m[1]] = m[2]
        elif m := _PATH.match(line):
            if m[2].strip() or not line.rstrip().endswith(":"):
                files.setdefault(m[1].rstrip("/"), m[2].strip())
        elif m := _SYSCTL.match(line):
            files.setdefault("proc/sys/" + m[1].replace(".", "/"), m[2].strip())
        elif (m := _GROUP_KEY.match(line)) and (path := path_of(m[1])):
            files.setdefault(path, m[2].strip())
    files |= _of_sections(text)
    if not files and not links:
        one = _one_file(text, name)
        if one is not None:
            if one == "proc/interrupts" and (at := _CPU_HEAD.search(text)):
                text = text[at.start() :]
            files[one] = text.strip()[: MAX_TABLE if one.endswith(_TABLES) else MAX_VALUE]
    for path, body in by_content(text).items():
        files.setdefault(path, body)
    files |= _siblings(text, name)
    files = _masks(files) | files
    if not files and not links:
        return None
    moment = stem_of(name)[1]
    if moment is None:
        return Part(kind="values", files=files, links_to=links, weak=_online(files))
    reports = tuple(
        Sample(source=name, path=path, text=body, later=moment.later, at_s=moment.at_s)
        for path, body in files.items()
    )
    # What holds now is what was read last; the earlier reading is kept for the comparison.
    return Part(kind="values", files=files if moment.later else {}, reports=reports)


_SIBLINGS = re.compile(r"^[ \t]*(?:cpu(\d{1,5})[ \t]*[:=]?[ \t]*)?(\d[\d,-]*)[ \t]*$", re.M | re.I)
_TOPOLOGY = re.compile(r"sys/devices/system/cpu/cpu\d+/topology/(?:thread_siblings|core_cpus)_list")


def _siblings(text: str, name: str) -> dict[str, str]:
    """A file called siblings: a core's CPUs a line, as a loop over thread_siblings_list prints."""
    if "sibling" not in name or "sys/" in text or len(text) > MAX_VALUE:
        return {}
    found: dict[str, str] = {}
    as_mask = stem_of(name)[0].endswith(("thread_siblings", "core_cpus"))
    if as_mask and len(text.strip().split("\n")) == 1:
        return _masks({f"{_CPU}/cpu/topology/thread_siblings": text.strip()})
    for _, cpus in _SIBLINGS.findall(text):
        core = cpulist_or_none(cpus)
        for cpu in core or ():
            found[f"{_CPU}/cpu{cpu}/topology/thread_siblings_list"] = str(core)
    return found


def _masks(files: Mapping[str, str]) -> dict[str, str]:
    """Sibling lists of every CPU that a mask of siblings names."""
    found: dict[str, str] = {}
    for path, text in files.items():
        if not path.endswith(("/topology/thread_siblings", "/topology/core_cpus")):
            continue
        try:
            core = CpuSet.parse_mask(text)
        except ParseError:
            continue
        for cpu in core:
            found[f"{_CPU}/cpu{cpu}/topology/thread_siblings_list"] = str(core)
    return found


def _online(files: Mapping[str, str]) -> dict[str, str]:
    """CPUs that have siblings are online, where nothing else says which are."""
    cores = [cpulist_or_none(v) for p, v in files.items() if _TOPOLOGY.fullmatch(p)]
    cpus = CpuSet.of(c for core in cores if core is not None for c in core)
    return {f"{_CPU}/online": str(cpus)} if cpus else {}


def _of_sections(text: str) -> dict[str, str]:
    """What `cat`, `head` and loops over files printed."""
    found: dict[str, str] = {}
    pieces = sections(text)
    if len(pieces) == 1 and pieces[0].path is None and pieces[0].command is None:
        return found
    for piece in pieces:
        path = None if piece.path is None else path_of(piece.path)
        if path is not None and "*" not in path:
            found.setdefault(path, _body(path, piece))
            continue
        words = (piece.command or "").split()
        if not words:
            continue
        lines = [x.strip() for x in piece.text.split("\n") if x.strip()]
        program, rest = words[0].rpartition("/")[2], [w for w in words[1:] if w[:1] != "-"]
        if program == "uname" and "-r" in words and lines:
            found["proc/sys/kernel/osrelease"] = lines[0]
        elif program == "uname" and lines and len(lines[0].split()) > 2:
            found["proc/sys/kernel/osrelease"] = lines[0].split()[2]
        elif program == "sysctl" and "-n" in words and len(rest) == len(lines):
            found |= {
                "proc/sys/" + k.replace(".", "/"): v for k, v in zip(rest, lines, strict=True)
            }
        elif program == "cat" and len(rest) == len(lines) > 1:
            # One line each: only then is it clear which line is whose.
            paths = [path_of(w) for w in rest]
            found |= {p: v for p, v in zip(paths, lines, strict=True) if p is not None}
    return found


def _body(path: str, piece: Section) -> str:
    """The text of one file: to the first blank line, except where tables have those."""
    text = piece.text.strip("\n")
    if path.endswith(_PARAGRAPHS):
        return text.strip()[:MAX_TABLE]
    return text.partition("\n\n")[0].strip()[:MAX_VALUE]


def _one_file(text: str, name: str) -> str | None:
    """Which kernel file this is: the command line by its content, the rest by name."""
    body = text.strip()
    is_line = "\n" not in body and not any(w in body or w in name for w in _CONFIG)
    if is_line and _ARGUMENT.search(body):
        return "proc/cmdline"
    return path_of(name)


_MEMINFO = re.compile(
    r"^[ \t]*((?:Mem(?:Total|Free|Available)|HugePages_\w+|Huge(?:pagesize|tlb)|Commit(?:Limit"
    r"|ted_AS)"
    r"|Shmem\w*|AnonHugePages|Swap(?:Total|Free)|Cached|Buffers)):[ \t]+(\d+)(?: kB)?[ \t]*$",
    re.MULTILINE,
)
_NODE_INFO = re.compile(
    r"^[ \t]*Node (\d+)[ ,]+((?:Mem(?:Total|Free)|HugePages_\w+|Shmem|FilePages)):?[ \t]+(\d+)",
    re.M,
)
_MOUNT = re.compile(
    r"^[ \t]*(\S{1,200}) (?:on )?(/\S*) (?:type )?(tmpfs|hugetlbfs|cgroup2?|devtmpfs|ramfs)"
    r" (?:\(([^)]*)\)|(\S+)(?: \d+ \d+)?)\s*$",
    re.MULTILINE,
)
_INTERRUPTS = re.compile(r"^[ \t]+CPU\d+(?:[ \t]+CPU\d+)*[ \t]*\n[ \t]*\w+:[ \t]+\d+", re.MULTILINE)


def by_content(text: str) -> Mapping[str, str]:
    """Kernel files that their own words tell: meminfo, mounts, interrupts, cpu.stat."""
    found: dict[str, str] = {}
    memory = [m[0].strip() for m in _MEMINFO.finditer(text)]
    if memory:
        found["proc/meminfo"] = "\n".join(memory)
    nodes: dict[int, list[str]] = {}
    for m in _NODE_INFO.finditer(text):
        nodes.setdefault(int(m[1]), []).append(" ".join(m[0].split()))
    for node, lines in nodes.items():
        found[f"sys/devices/system/node/node{node}/meminfo"] = "\n".join(lines)
    mounts = [
        f"{m[1]} {m[2]} {m[3]} {m[4] if m[4] is not None else m[5]} 0 0"
        for m in _MOUNT.finditer(text)
    ]
    if mounts:
        found["proc/mounts"] = "\n".join(mounts)
    if table := _INTERRUPTS.search(text):
        found["proc/interrupts"] = (
            text[table.start() :].rstrip("\n").partition("\n\n")[0][:MAX_TABLE]
        )
    found |= _cpupower(text)
    throttle = re.findall(
        r"^[ \t]*((?:nr_periods|nr_throttled|throttled_(?:usec|time)|usage_usec)[: \t]+\d+)[ \t]*$",
        text, re.MULTILINE,
    )  # fmt: skip
    if len(throttle) > 1:
        found["sys/fs/cgroup/pasted/cpu.stat"] = "\n".join(x.replace(":", " ") for x in throttle)
    return found


_ANALYZING = re.compile(r"^[ \t]*analyzing CPU (\d{1,5}):?[ \t]*$", re.M)
_GOVERNOR = re.compile(r'The governor "(\w+)" may decide')
_STATE = re.compile(
    r"^[ \t]*(\w[\w-]*)( \(DISABLED\))?[ \t]*:[ \t]*\n[ \t]*Flags/Description:.*\n"
    r"[ \t]*Latency:[ \t]*(\d+)",
    re.M,
)


def _cpupower(text: str) -> dict[str, str]:
    """Governor and idle states of `cpupower frequency-info` and `cpupower idle-info`."""
    found: dict[str, str] = {}
    heads = list(_ANALYZING.finditer(text))
    for i, m in enumerate(heads):
        block = text[m.end() : heads[i + 1].start() if i + 1 < len(heads) else len(text)]
        if (governor := _GOVERNOR.search(block)) is not None:
            found[f"{_CPU}/cpu{m[1]}/cpufreq/scaling_governor"] = governor[1]
        for number, (name, disabled, latency) in enumerate(_STATE.findall(block)):
            at = f"{_CPU}/cpu{m[1]}/cpuidle/state{number}"
            found |= {f"{at}/name": name, f"{at}/latency": latency,
                      f"{at}/disable": "1" if disabled else "0"}  # fmt: skip
    return found
