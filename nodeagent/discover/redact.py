"""What may leave a machine: file by file, what is kept and what is masked (masks.py)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from nodeagent.discover import engines, irq, kmsg
from nodeagent.discover.boot import CMDLINE
from nodeagent.discover.masks import Masks, Scrubber
from nodeagent.discover.redact_words import (
    cgroup_folder,
    cgroup_path,
    cmdline,
    log_line,
    masked,
    processes,
)
from nodeagent.discover.store import Entry, Link

__all__ = ["Masks", "redact"]

_MOUNT_POINTS = re.compile(
    r"/|/(dev|proc|sys|run|tmp|boot|var|usr|home|etc|opt|mnt)(/(shm|pts|hugepages\w*|mqueue))?|"
    r"/sys/(fs|kernel)/.+|/proc/sys/fs/.+|/dev/hugepages.*"
)
_NO_DEVICE = re.compile(
    r"tmpfs|cgroup2?|hugetlbfs|proc|sysfs|bpf|resctrl|devtmpfs|devpts|mqueue|debugfs|tracefs|"
    r"securityfs|pstore|configfs|fusectl|efivarfs|autofs|binfmt_misc|ramfs|nsfs|rpc_pipefs|none|"
    r"udev|systemd-1|overlay"
)
_VERSIONS = re.compile(r"proc/version|.*/version|.*/bios_version|proc/sys/kernel/osrelease")
_FREE = re.compile(
    r"proc/(cmdline|version|mounts|swaps|self/cgroup|cpuinfo|driver/.+)|etc/.+|nvml/.+|derived/.+|"
    r"sys/class/dmi/.+|.*/(model|product_name|firmware_rev|fw_ver|name|node_desc|properties)"
)
"""Files in which people, firmware or programs write what they like."""


def redact(
    table: Mapping[str, Entry], masks: Masks, *, include_logs: bool = False
) -> dict[str, Entry]:
    """The table with everything masked that tells whose machine it is.

    `include_logs` keeps the values of boot arguments that we do not know, and every line of the
    kernel log; what TEXT knows for a secret is masked there too.
    """
    scrub = Scrubber(masks, _hosts(table), _users(table))
    found: dict[str, Entry] = {}
    for path in sorted(table):
        entry = table[path]
        name = scrub.addresses(_tuned_file(cgroup_folder(path, masks), scrub))
        if isinstance(entry, bytes):
            text = _text(entry)
            if text is not None:
                entry = _file(path, text, scrub, include_logs).encode()
        elif isinstance(entry, Link):
            entry = Link(scrub.addresses(cgroup_folder(entry.target, masks)))
        found[name] = entry
    return found


def _hosts(table: Mapping[str, Entry]) -> list[str]:
    """The machine's own names, with and without its domain, and those of servers it knows."""
    found = set()
    for name in (
        _text(table.get("proc/sys/kernel/hostname")) or "",
        *_SERVERS.findall(_text(table.get("proc/mounts")) or ""),
        *re.findall(r"@([\w-]+(?:\.[\w-]+)+)\)", _text(table.get("proc/version")) or ""),
        *re.findall(r"\bip=(?:[^:\s]*:){4}([\w.-]+):", _text(table.get(CMDLINE)) or ""),
    ):
        if name and name not in ("localhost", "(none)", "none") and name[0] != "<":
            found |= {name, name.partition(".")[0]}
    return sorted(n for n in found if not n.isdigit())


_SERVERS = re.compile(r"(?m)^(?://)?([a-zA-Z][\w-]*(?:\.[\w-]+)*)(?=:/|/)")


def _users(table: Mapping[str, Entry]) -> list[str]:
    """Whose home directories are spoken of, who built the kernel, who mounts a share."""
    found = set()
    for path, entry in table.items():
        if isinstance(entry, bytes) and (b"/home/" in entry or path in _NAMES_USERS):
            found |= set(_USER.findall(_text(entry) or ""))
    return sorted(found - {"root"})


_NAMES_USERS = ("proc/version", "proc/mounts", kmsg.KEY)
_USER = re.compile(
    r"(?:/home/|\((?=[\w.-]+@)|username=|\buser[= ]|\bfor user )([\w.-]{3,32})(?=@|[/\s,;)\"':]|$)"
)


def _text(entry: Entry) -> str | None:
    if not isinstance(entry, bytes):
        return None
    try:
        return entry.decode().strip("\0 \t\r\n")
    except UnicodeDecodeError:
        return None


def _file(path: str, text: str, scrub: Scrubber, include_logs: bool) -> str:
    rule = _RULES.get(path)
    if rule is not None:
        text = rule(text, scrub)
    elif _VARIABLES.fullmatch(path):
        text = _variables(text)
    elif path == CMDLINE and not include_logs:
        text = cmdline(text, scrub)
    elif path == kmsg.KEY and not include_logs:
        text = "\n".join(log_line(line, scrub) for line in text.split("\n"))
    if path == irq.INTERRUPTS:
        return text
    if _VERSIONS.fullmatch(path):
        return scrub.names(text)
    return scrub.free(text) if _FREE.fullmatch(path) else scrub.addresses(text)


def _hostname(text: str, scrub: Scrubber) -> str:
    return scrub.masks.of("host", text) if text not in ("", "localhost", "(none)") else text


def _version(text: str, scrub: Scrubber) -> str:
    """`Linux version 6.1 (builder@machine) (gcc ...)`."""
    return re.sub(
        r"(?<![\w.+-])([\w.+-]+)@([\w.-]+)",
        lambda m: f"{scrub.masks.of('user', m[1])}@{scrub.masks.of('host', m[2])}",
        text,
    )


def _interrupts(text: str, scrub: Scrubber) -> str:
    """Only what follows the counts is a name."""
    return "\n".join(
        m[1] + scrub.free(m[2]) if (m := _ROW.fullmatch(line)) else line
        for line in text.splitlines()
    )


_ROW = re.compile(r"(\s*\w+:(?:\s+\d+)*)(.*)")


def _irqbalance(text: str, scrub: Scrubber) -> str:
    """Its own variables; comments and what else is written there stay here."""
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(
        re.sub(r"(?<=[=\s])/[^\s\"']+", lambda m: scrub.masks.of("path", m[0]), scrub.free(line))
        for line in lines
        if line.startswith("IRQBALANCE_")
    )


def _tuned(text: str, scrub: Scrubber) -> str:
    """A profile that tuned or a vendor brings; one of one's own may be called after anybody."""
    return " ".join(
        w if _PROFILES.fullmatch(w) else masked("profile", w, scrub) for w in text.split()
    )


_VARIABLES = re.compile(r"etc/tuned/(.+)-variables\.conf")


def _tuned_file(path: str, scrub: Scrubber) -> str:
    """A profile's variables lie in a file that is called after it."""
    m = _VARIABLES.fullmatch(path)
    return path if m is None else f"etc/tuned/{_tuned(m[1], scrub)}-variables.conf"


def _variables(text: str) -> str:
    """CPU lists and switches of a tuned profile; comments and what else is written stay here."""
    return "\n".join(line for line in text.splitlines() if _VARIABLE.fullmatch(line.strip()))


_VARIABLE = re.compile(r"[a-z_]*(cores|cpus|irq|balance)[a-z_]*\s*=\s*[\w,:./ ${}-]{0,200}")
_PROFILES = re.compile(
    r"(throughput|latency|network|hpc|accelerator|spindown|desktop|server|balanced|powersave|"
    r"virtual|realtime|cpu-partitioning|openshift|aws|oracle|mssql|postgresql|sap|intel|optimize|"
    r"atomic)(-(performance|latency|throughput|host|guest|compute|disk|powersave|node|serial-"
    r"console|hana|netweaver|control-plane|sst|balanced|battery|virtual|realtime|kvm))*"
)


def _mounts(text: str, scrub: Scrubber) -> str:
    lines = []
    for line in text.splitlines():
        words = line.split(" ")
        if len(words) < 4:
            continue
        source, point, kind, options = words[:4]
        if not _NO_DEVICE.fullmatch(source):
            source = scrub.masks.of("path", source)
        if not _MOUNT_POINTS.fullmatch(point):
            point = scrub.masks.of("path", point)
        if not _NO_DEVICE.fullmatch(kind):
            options = ",".join(o for o in options.split(",") if "=" not in o)
        elif "dir=" in options:
            # overlay: lowerdir=, upperdir=, workdir= are paths of images.
            options = ",".join(o for o in options.split(",") if "dir=" not in o)
        lines.append(" ".join((source, point, kind, options, *words[4:])))
    return "\n".join(lines)


def _swaps(text: str, scrub: Scrubber) -> str:
    lines = text.splitlines()
    rows = [re.sub(r"^\S+", lambda m: scrub.masks.of("path", m[0]), line) for line in lines[1:]]
    return "\n".join(lines[:1] + rows)


def _route(text: str, scrub: Scrubber) -> str:
    lines = text.splitlines()
    rows = []
    for line in lines[1:]:
        words = line.split()
        for column in (1, 2):
            if len(words) > column and re.fullmatch(r"(?!0{8})[0-9A-Fa-f]{8}", words[column]):
                # Little endian; written as elsewhere, so that equal stays equal.
                octets = bytes.fromhex(words[column])[::-1]
                words[column] = scrub.masks.of("ip", ".".join(map(str, octets)))
        rows.append("\t".join(words))
    return "\n".join(lines[:1] + rows)


def _cgroup(text: str, scrub: Scrubber) -> str:
    """Lines of /proc/PID/cgroup; the same group has the same masks as its folder."""
    lines = []
    for line in text.splitlines():
        head, _, path = line.rpartition(":")
        inner = cgroup_path(path, scrub.masks)
        lines.append(f"{head}:{inner}")
    return "\n".join(lines)


def _df(text: str, scrub: Scrubber) -> str:
    rows = []
    for line in text.splitlines():
        head, blank, point = line.rpartition(" ")
        known = point == "on" or _MOUNT_POINTS.fullmatch(point)
        rows.append(head + blank + (point if known else masked("path", point, scrub)))
    return "\n".join(rows)


def _cpuinfo(text: str, scrub: Scrubber) -> str:
    """Arm boards say their serial number there."""
    return re.sub(
        r"(?mi)^(serial\s*:\s*)(\S+)", lambda m: m[1] + scrub.masks.of("serial", m[2]), text
    )


_RULES: dict[str, Callable[[str, Scrubber], str]] = {
    "proc/sys/kernel/hostname": _hostname,
    "proc/version": _version,
    "proc/driver/nvidia/version": _version,
    "proc/cpuinfo": _cpuinfo,
    "proc/mounts": _mounts,
    "proc/swaps": _swaps,
    "proc/net/route": _route,
    "proc/self/cgroup": _cgroup,
    irq.INTERRUPTS: _interrupts,
    engines.KEY: processes,
    "derived/df": _df,
    "etc/default/irqbalance": _irqbalance,
    "etc/sysconfig/irqbalance": _irqbalance,
    "etc/tuned/active_profile": _tuned,
}
