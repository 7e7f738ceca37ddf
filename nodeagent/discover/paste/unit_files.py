"""systemd units, device rules of control groups, `which`, `nproc`, resource limits.

Source: systemd.exec(5), systemd.resource-control(5); Linux Documentation/admin-guide/cgroup-v1/
devices.rst; bash(1) ulimit.
"""

from __future__ import annotations

import re

from nodeagent.discover.paste.names import stem_of
from nodeagent.discover.paste.part import Part
from nodeagent.model.hostreport import Count, DeviceRules, ToolPresence, UnitFile
from nodeagent.model.pasted import Report

KEYS = (
    "CPUAffinity", "NUMAPolicy", "NUMAMask", "AllowedCPUs", "AllowedMemoryNodes", "CPUQuota",
    "CPUQuotaPerSecUSec", "CPUWeight", "Delegate", "DeviceAllow", "DevicePolicy", "LimitMEMLOCK",
    "LimitNOFILE", "CPUSchedulingPolicy", "CPUSchedulingPriority", "EffectiveCPUs",
    "EffectiveMemoryNodes", "Slice", "MemoryMax", "TasksMax",
)  # fmt: skip
_KEY = re.compile(rf"^[ \t]*({'|'.join(KEYS)})\s*=[ \t]*(.*)$", re.M)
_DEVICE = re.compile(r"^[ \t]*([abc])\s+((?:\d+|\*):(?:\d+|\*))\s+([rwm]+)[ \t]*$", re.M)
_LIMIT = re.compile(
    r"^[ \t]*(?:max locked memory|locked memory).*?(unlimited|\d+)[ \t]*$"
    r"|^[ \t]*\S+\s+(?:soft|hard|-)\s+memlock\s+(unlimited|infinity|-1|\d+)[ \t]*$"
    r"|^[ \t]*MEMLOCK\s+.*?(unlimited|\d+)\s+\S+(?:\s+\w+)?[ \t]*$",
    re.M,
)

_COUNT = re.compile(
    r"(nproc|threads|nproc-host|host-nproc|n?threads|workers|omp_num_threads|nproc --all)"
    r"(?:[-_]\w+)?"
)


def read_units(text: str, name: str) -> Part | None:
    """All of these in a text; None when it has none."""
    files: dict[str, str] = {}
    reports: list[Report] = []
    stem, moment = stem_of(name)
    leaf = stem.rpartition("/")[2].rpartition(": ")[2]
    settings: dict[str, tuple[str, ...]] = {}
    for key, value in _KEY.findall(text):
        settings[key] = (*settings.get(key, ()), value.strip())
    if settings:
        unit = re.search(r"([\w@.-]+\.(?:service|slice|scope|socket)|(?:system|user)\.conf)", name)
        first = re.search(r"^# .*?([\w@.-]+\.(?:service|slice|scope))", text, re.M)
        label = unit[1] if unit else first[1] if first else leaf
        reports.append(UnitFile(source=name, unit=label, settings=settings))
    rules = tuple(" ".join(found) for found in _DEVICE.findall(text))
    if rules or leaf.endswith("devices.list"):
        later = None if moment is None else moment.later
        reports.append(DeviceRules(source=name, rules=rules, later=later))
    if m := re.fullmatch(r"(?:which|command -v|type|whereis)[- ](?:-\w+ )?([\w.-]+)", leaf):
        where = text.strip().split("\n")[0].strip()
        here = bool(where) and not re.search(r"no |not found|^\w+:$", where)
        reports.append(ToolPresence(source=name, tool=m[1], path=where if here else None))
    body = text.strip()
    count = _COUNT.fullmatch(leaf)
    if count is not None and re.fullmatch(r"\d{1,6}", body):
        what = "threads" if "thread" in count[1] or count[1] == "workers" else "cpus"
        if what == "cpus" and ("host" in leaf or "all" in leaf):
            what = "host-cpus"
        reports.append(Count(source=name, what=what, value=int(body)))
    limit = _LIMIT.search(text)
    if limit is not None:
        soft = next(g for g in limit.groups() if g)
        scale = 1024 if "kbytes" in limit[0] or "memlock" in limit[0] else 1
        soft = str(int(soft) * scale) if re.fullmatch(r"\d{1,18}", soft) else "unlimited"
        files["proc/self/limits"] = f"Max locked memory     {soft}     {soft}     bytes"
    elif leaf.startswith(("ulimit -l", "ulimit-l")) and (body.isdigit() or body == "unlimited"):
        soft = str(int(body) << 10) if body.isdigit() else body
        files["proc/self/limits"] = f"Max locked memory     {soft}     {soft}     bytes"
    if not files and not reports:
        return None
    return Part(kind="units", files=files, reports=tuple(reports))
