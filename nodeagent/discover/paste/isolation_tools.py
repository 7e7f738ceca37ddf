"""Who asks for isolation outside the running kernel: tuned, boot loader files, the kernel's build
configuration, irqbalance, and what somebody tried to write.

Source: tuned-profiles-cpu-partitioning(7); grub's /etc/default/grub; irqbalance(1) and
irqbalance cputree.c; Linux init/Kconfig, kernel/time/Kconfig.
"""

from __future__ import annotations

import re

from nodeagent.discover.paste.names import stem_of
from nodeagent.discover.paste.part import Part, cpulist_or_none
from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.hostreport import BootFile, Irqbalance, KernelConfig, TunedActive, Wanted

_ACTIVE = re.compile(
    r"^[ \t]*Current active profile:\s*(\S.*?)\s*$|^[ \t]*(No current active "
    r"profile)",
    re.M,
)
_VARIABLES = re.compile(r"^[ \t]*(isolated_cores|no_balance_cores)\s*=\s*(.*)$", re.M)
_VERIFIED = re.compile(r"^[ \t]*Verification (succ?eeded|failed)", re.M | re.I)
_CONFIG = re.compile(
    r"^[ \t]*(?:[^:\s]*:)?\s*(?:(CONFIG_\w+)=(\S+)|# (CONFIG_\w+) is not "
    r"set)[ \t]*$",
    re.M,
)
_RELEASE = re.compile(r"config-(\d[\w.+~-]*?)(?:\.txt)?$")
_GRUB = re.compile(
    r"^[ \t]*(?:GRUB_CMDLINE_LINUX(?:_DEFAULT)?|(?:set )?kernelopts|args|options|kargs)"
    r"\s*[=\s]\s*[\"']?(.*?)[\"']?[ \t]*$",
    re.M,
)
_BANNED = re.compile(r"^[ \t]*(?:export\s+|Environment=[\"']?)?IRQBALANCE_\w+\s*=.*$", re.M)
_BALANCE = re.compile(
    r"^[ \t]*(?:Prevent irq assignment to these )?(isolated|adaptive-ticks|banned) "
    r"cpus:\s*([\da-fA-F,]+)",
    re.M | re.I,
)
_ECHO = re.compile(
    r"echo\s+(?:-n\s+)?[\"']?([0-9a-fA-F,-]+)[\"']?\s*>\s*/proc/irq/(\d+)/(smp_affinity(?:_list)?)"
)
_WANTED = ("wanted", "requested", "want", "asked", "desired", "expected")


def read_isolation(text: str, name: str) -> Part | None:
    """All of these in a text; None when it has none."""
    files: dict[str, str] = {}
    weak: dict[str, str] = {}
    reports: list[TunedActive | KernelConfig | BootFile | Irqbalance | Wanted] = []
    if m := _ACTIVE.search(text):
        files["etc/tuned/active_profile"] = m[1] or ""
        reports.append(TunedActive(source=name, profile=m[1], verified=_verified(text)))
    elif (verified := _verified(text)) is not None:
        reports.append(TunedActive(source=name, profile=None, verified=verified))
    if _VARIABLES.search(text):
        # The file tells no profile unless its name does: both read the same variable.
        for profile in ("cpu-partitioning", "realtime"):
            if profile in name or not re.search("cpu-partitioning|realtime", name):
                files[f"etc/tuned/{profile}-variables.conf"] = text.strip()[:65536]
    if found := _kernel_config(text):
        release = _RELEASE.search(name)
        reports.append(
            KernelConfig(source=name, release=release[1] if release else None, options=found)
        )
    arguments = " ".join(m[1].strip() for m in _GRUB.finditer(text))
    if "=" in arguments and not found:
        reports.append(BootFile(source=name, arguments=arguments))
        weak["proc/cmdline"] = arguments
    if _BANNED.search(text):
        files["etc/default/irqbalance"] = "\n".join(
            re.sub(r"^(?:export\s+|Environment=[\"']?)", "", m[0].strip()).rstrip("\"'")
            if "Environment=" in m[0]
            else m[0].strip().removeprefix("export ")
            for m in _BANNED.finditer(text)
        )
    if told := _balance(text, name):
        reports.append(told)
    reports += _wanted(text, name)
    if not files and not reports:
        return None
    return Part(kind="isolation", files=files, weak=weak, reports=tuple(reports))


def _verified(text: str) -> bool | None:
    m = _VERIFIED.search(text)
    return None if m is None else m[1].lower().startswith("succ")


def _kernel_config(text: str) -> dict[str, str]:
    return {m[1] or m[3]: (m[2] or "n").strip('"') for m in _CONFIG.finditer(text)}


def _balance(text: str, name: str) -> Irqbalance | None:
    sets: dict[str, CpuSet] = {}
    for m in _BALANCE.finditer(text):
        try:
            sets[m[1].lower()] = CpuSet.parse_mask(m[2])
        except ParseError:
            continue
    if not sets:
        return None
    return Irqbalance(
        source=name,
        isolated=sets.get("isolated"),
        nohz_full=sets.get("adaptive-ticks"),
        banned=sets.get("banned"),
    )


def _wanted(text: str, name: str) -> list[Wanted]:
    """A file `wanted` that holds a CPU list, and what a shell wrote into an interrupt's mask."""
    found: list[Wanted] = []
    # In a transcript the command is the piece's name.
    for m in _ECHO.finditer(f"{name}\n{text}"):
        try:
            cpus = CpuSet.parse(m[1]) if m[3].endswith("list") else CpuSet.parse_mask(m[1])
        except ParseError:
            continue
        found.append(Wanted(source=name, cpus=cpus, irq=int(m[2])))
    leaf = stem_of(name)[0].rpartition("/")[2]
    cpus_or_none = cpulist_or_none(text.strip()) if len(text) < 4096 else None
    if leaf in _WANTED and cpus_or_none is not None:
        found.append(Wanted(source=name, cpus=cpus_or_none))
    return found
