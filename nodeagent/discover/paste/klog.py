"""Kernel and driver logs: the lines that mean something (contract: facts, Kernel and driver log).

Source: NVIDIA Xid catalogue and GPU deployment guide; Linux drivers/pci/pcie/aer.c,
mm/oom_kill.c, kernel/hung_task.c, kernel/watchdog.c, drivers/edac/edac_mc.c,
drivers/acpi/apei/ghes.c, drivers/nvme/host/pci.c, drivers/md/, fs/ext4/super.c.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nodeagent.discover.paste.part import Part
from nodeagent.model.kernel_event import KernelEvent

MAX_EVENTS = 100_000
"""More lines than this are counted, not kept."""
MAX_LINE = 8192
"""Characters of a line that are looked at; the kernel's own end at about 1,000."""
INFORMATION_XIDS = frozenset({154})
"""Xids by which the driver only tells what to do. Source: NVIDIA Xid catalogue, 154."""

_BDF = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
# Begins where a word does: from the middle of one it would be tried again and again.
_DEVICE = re.compile(
    r"(?<![\w-])-*\w[\w-]* ((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]):"
)
_PREFIX = re.compile(
    r"\s*(?:<\d+>|\[[^\]]*\]|(?:kern|user|daemon)\s*:\w+\s*:|\d{4}-\d\d-\d\dT\S+"
    r"|[A-Z][a-z]{2}\s+\d+ \d\d:\d\d:\d\d|[\w.-]+ kernel:|kernel:)\s*"
)
_STAMPED = re.compile(
    r"\s*(?:<\d+>)?\[\s*\d+\.\d+\]|\s*\[[A-Z][a-z]{2} [A-Z][a-z]{2} |.*\bkernel: "
)
"""Lines of the kernel: dmesg's stamps, or journal lines by `kernel:`."""

Details = Mapping[str, str | int | bool | None]
Maker = Callable[[re.Match[str]], Details]


def _none(_: re.Match[str]) -> Details:
    return {}


@dataclass(frozen=True, slots=True)
class Rule:
    """A line of one kind. `fault` as in KernelEvent; `bdf` names the group that holds the address,
    None: the device before the message."""

    kind: str
    pattern: re.Pattern[str]
    fault: bool | None = True
    details: Maker = _none
    bdf: str | None = None


def _rule(
    kind: str,
    pattern: str,
    *,
    fault: bool | None = True,
    details: Maker = _none,
    bdf: str | None = None,
    flags: int = 0,
) -> Rule:
    return Rule(kind, re.compile(pattern, flags), fault, details, bdf)


def _xid(m: re.Match[str]) -> Details:
    pid = re.search(r"\bpid='?(\d+)", m["rest"])
    name = re.search(r"\bname=([^,]+)", m["rest"])
    process = name[1].strip() if name else None
    cause = re.search(r"\bprevious Xid (\d+)", m["rest"])
    found: dict[str, str | int | bool | None] = {
        "xid": int(m["xid"]),
        "pid": int(pid[1]) if pid else None,
        "process": None if process == "<unknown>" else process,
    }
    return found | ({"cause_xid": int(cause[1])} if cause else {})


def _sxid(m: re.Match[str]) -> Details:
    rest = m["rest"]
    link = re.search(r"\bLink (\d+)", rest)
    fatal = None
    if re.match(r"\s*Non-fatal", rest, re.IGNORECASE):
        fatal = False
    elif re.match(r"\s*Fatal", rest):
        fatal = True
    return {
        "sxid": int(m["sxid"]),
        "nvswitch": int(m["switch"]),
        "fatal": fatal,
        "link": int(link[1]) if link else None,
    }


def _correctable(m: re.Match[str]) -> Details:
    return {"correctable": m["how"].lower().startswith("correct")}


def _killed(m: re.Match[str]) -> Details:
    return {"pid": int(m["pid"])} if m["pid"] else {}


def _task(m: re.Match[str]) -> Details:
    return {"process": m["task"], "pid": int(m["pid"]), "seconds": int(m["s"])}


def _lockup(m: re.Match[str]) -> Details:
    return {
        "cpu": int(m["cpu"]),
        "seconds": int(m["s"]),
        "process": m["task"],
        "pid": int(m["pid"]),
    }


def _device(m: re.Match[str]) -> Details:
    return {"device": m["device"]}


RULES: tuple[Rule, ...] = (
    _rule("panic", r"Kernel panic - not syncing"),
    _rule(
        "sxid",
        rf"nvidia-nvswitch(?P<switch>\d+): SXid \(PCI:(?P<bdf>{_BDF})\): "
        r"(?P<sxid>\d+),?(?P<rest>.*)",
        details=_sxid,
        bdf="bdf",
    ),
    _rule(
        "xid",
        rf"NVRM: Xid \((?:PCI:)?(?P<bdf>{_BDF})\): (?P<xid>\d+)(?P<rest>.*)",
        details=_xid,
        bdf="bdf",
    ),
    _rule(
        "gpu_off_bus",
        rf"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?(?P<bdf>{_BDF})?.*fallen off the bus",
        bdf="bdf",
    ),
    _rule("nvrm_reset_required", r"NVRM: .*NV_ERR_RESET_REQUIRED"),
    _rule("nvlink_init", r"NVRM: knvlink\w*(?:PostRx|RxDet)\w*: .*[Ff]ailed"),
    _rule(
        "",
        r"NVRM: (?:Xid \(|GPU at PCI:\S+: GPU-|GPU Board Serial|NVLink link training completed"
        r"|loading NVIDIA)",
        fault=False,
    ),
    _rule("nvrm_other", rf"NVRM: (?:.*?PCI:(?P<bdf>{_BDF}))?", fault=None, bdf="bdf"),
    _rule("amdgpu_init", r"amdgpu.*(?:\*ERROR\* hw_init of IP block|Fatal error during GPU init)"),
    _rule("fabric_manager", r"nv-fabricmanager(?:\[\d+\])?: .*(?:error|fail)", flags=re.IGNORECASE),
    _rule(
        "aer",
        r"(?:AER: (?:Multiple )?(?P<how>Correct(?:able|ed)|Uncorrect(?:able|ed))\b.*\breceived)",
        details=_correctable,
    ),
    _rule(
        "aer",
        r"PCIe Bus Error: severity=(?P<how>Correct\w+|Uncorrect\w+)",
        details=_correctable,
    ),
    _rule("aer", rf"{_BDF}:\s+(?:AER:\s+)?device \[\w{{4}}:\w{{4}}\] error status/mask="),
    _rule("aer", rf"{_BDF}:\s+(?:AER:\s+)?\[ ?\d{{1,2}}\] \w+"),
    _rule("aer", rf"{_BDF}: device has no AER-aware driver"),
    _rule(
        "aer",
        rf"{_BDF}: AER:\s+(?:can't recover|Error of this Agent|TLP Header|device recovery"
        r"|subordinate device|\w+ Port link has been reset)",
    ),
    _rule("ghes", r"\{\d+\}\[Hardware Error\]:"),
    _rule(
        "mce",
        r"\[Hardware Error\]: (?:CPU (?P<cpu>\d+): )?",
        details=lambda m: {"cpu": int(m["cpu"])} if m["cpu"] else {},
    ),
    _rule(
        "edac",
        r"EDAC MC\d+: \d+ (?P<how>CE|UE)\b",
        details=lambda m: {"correctable": m["how"] == "CE"},
    ),
    _rule("edac", r"EDAC \w+ MC\d+: (?:HANDLING MCE|CPU \d+: Machine Check|TSC |ADDR |PROCESSOR )"),
    _rule("memory_failure", r"Memory failure: 0x[0-9a-f]+:"),
    _rule("nic_power", r"mlx5.*insufficient power on the PCIe slot"),
    _rule("nic_thermal", r"mlx5.*High Temperature"),
    _rule("nic_fw", r"mlx5_cmd_(?:out_err|check)\b.*failed"),
    _rule("nvme_timeout", r"nvme (?P<device>nvme\d+): I/O .*\btimeout\b", details=_device),
    _rule(
        "nvme_dead",
        r"nvme (?P<device>nvme\d+): (?:Disabling device after reset failure"
        r"|Removing after probe failure|Device not ready; aborting)",
        details=_device,
    ),
    _rule("nvme_no_path", r"(?P<device>nvme\w+): no available path", details=_device),
    _rule("io_error", r"I/O error on dev(?:ice)? (?P<device>[^\s,]+)", details=_device),
    _rule("io_error", r"I/O error, dev (?P<device>[^\s,]+)", details=_device),
    _rule(
        "fs_error",
        r"(?:EXT4-fs|XFS|BTRFS)(?: error| warning)? ?\((?:device )?(?P<device>[^)\s]+)\):? "
        r".*(?:I/O [Ee]rror|read-only|[Cc]orrupt|[Ss]hutting down|[Ee]rror)",
        details=_device,
    ),
    _rule("fs_error", r"EXT4-fs error \(device (?P<device>[^)\s]+)\)", details=_device),
    _rule("raid", r"md/raid\S*: Disk failure on (?P<device>[^\s,]+)", details=_device),
    _rule(
        "oom",
        r"^(?P<task>.*\S) invoked oom-killer",
        details=lambda m: {"process": bare(m["task"])},
    ),
    _rule("oom", r"[Oo]ut of memory: Kill(?:ed)? process (?P<pid>\d+)?", details=_killed),
    _rule("oom", r"oom-kill:constraint=(?:.*,pid=(?P<pid>\d+))?", details=_killed),
    _rule("oom", r"oom_reaper: reaped process (?P<pid>\d+)?", details=_killed),
    _rule(
        "hung_task",
        r"task (?P<task>\S+):(?P<pid>\d+) blocked for more than (?P<s>\d+) seconds",
        details=_task,
    ),
    _rule(
        "soft_lockup",
        r"soft lockup - CPU#(?P<cpu>\d+) stuck for (?P<s>\d+)s! \[(?P<task>.+):(?P<pid>\d+)\]",
        details=_lockup,
    ),
    _rule(
        "segfault",
        r"(?<!\S)(?P<task>\S+)\[(?P<pid>\d+)\]: segfault at ",
        fault=None,
        details=lambda m: {"process": m["task"], "pid": int(m["pid"])},
    ),
)
"""First match wins; kind "" is a line known to mean nothing."""

_WORDS = re.compile(
    r"NVRM|SXid|Xid|amdgpu|fabricmanager|AER|PCIe Bus|Hardware Error|EDAC|Memory failure|mlx5"
    r"|nvme|I/O error|EXT4|XFS|BTRFS|md/raid|oom|ut of memory|blocked for|lockup|panic|segfault"
    r"|error status|\[ ?\d{1,2}\] [A-Z]"
)
"""A cheap look first: most lines of a log mean nothing."""
_UNKNOWN = re.compile(r'Unknown kernel command line parameters "([^"]*)"')
_NO_NOHZ = re.compile(r"nohz unsupported|Build with CONFIG_NO_HZ_FULL|NO_HZ_FULL.*not")


def bare(line: str) -> str:
    """A line without time stamps, level, host and `kernel:`."""
    while (m := _PREFIX.match(line)) and m.end():
        line = line[m.end() :]
    return line


def event(number: int, line: str, file: str | None = None) -> KernelEvent | None:
    """What a line means; None when it means nothing."""
    if not _WORDS.search(line):
        return None
    for rule in RULES:
        m = rule.pattern.search(line)
        if m is None:
            continue
        if not rule.kind:
            return None
        details = dict(rule.details(m))
        if rule.bdf is not None:
            bdf = m[rule.bdf]
        else:
            found = _DEVICE.search(line)
            bdf = found[1] if found else None
        fault = rule.fault
        if rule.kind == "xid" and details["xid"] in INFORMATION_XIDS:
            fault = False
        return KernelEvent(
            line=number,
            kind=rule.kind,
            fault=fault,
            text=line.strip()[:300],
            bdf=bdf.lower() if bdf else None,
            details=details,
            file=file,
        )
    return None


def read_log(text: str, name: str, *, is_log: bool) -> Part | None:
    """The events in a text; None when nothing in it looks like a log. `is_log`: its name says that
    it is one."""
    events: list[KernelEvent] = []
    texts: dict[str, str] = {}
    lines = text.split("\n")
    stamped = 0
    for number, whole in enumerate(lines, 1):
        line = whole[:MAX_LINE]
        stamped += bool(_STAMPED.match(line))
        if len(events) < MAX_EVENTS and (found := event(number, line, name)) is not None:
            events.append(found)
        if m := _UNKNOWN.search(line):
            texts["log/unknown-parameters"] = m[1]
        if "ommand line: " in line:
            texts["log/from-boot"] = line.partition("ommand line: ")[2].strip()
        if _NO_NOHZ.search(line):
            texts["log/nohz-unsupported"] = bare(line).strip()
    if not events and not texts and not is_log and stamped * 2 < len(lines):
        return None
    texts["log/kernel-lines"] = str(stamped)
    return Part(
        kind="log",
        facts={"kernel_events": [fact(e) for e in events]},
        events=tuple(events),
        texts=texts,
    )


def fact(e: KernelEvent) -> dict[str, object]:
    """The contract's shape of an event; `file` is added where several logs are judged."""
    return {"line": e.line, "kind": e.kind, "fault": e.fault, "bdf": e.bdf, **e.details}
