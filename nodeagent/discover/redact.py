"""What may leave a machine: serials, UUIDs, MACs, IPs, host and user names are masked.

Equal stays equal within a capture: `<ip-1>` is the same address everywhere in it. With a key the
mask is an HMAC of the value, so that captures made with the same key can be compared.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Callable, Mapping

from nodeagent.discover.boot import CMDLINE, parse_cmdline
from nodeagent.discover.store import Entry, Link

# Values of these boot arguments say how the kernel was set up, and nothing of who it belongs to.
BOOT_ARGS = re.compile(
    r"isolcpus|nohz(_full)?|rcu_nocb\w*|rcu\w*\..+|irqaffinity|kthread_cpus|housekeeping|"
    r"(intel_|amd_)?iommu(\..+)?|(default_)?hugepages(z)?|hugetlb\w*|transparent_hugepage|"
    r"numa\w*|mitigations|spectre\w*|spec_\w+|mds|l1tf|tsx\w*|retbleed|(no)?pti|"
    r"intel_idle\..+|processor\..+|idle|cpuidle\w*(\..+)?|haltpoll\..+|intel_pstate|amd_pstate\w*|"
    r"cpufreq\..+|tsc|clocksource|hpet|nmi_watchdog|watchdog\w*|softlockup\w*|skew_tick|mce|audit|"
    r"selinux|apparmor|security|lsm|console|earlyprintk|loglevel|log_buf_len|printk\..+|"
    r"crashkernel|pci|pcie_\w+|pcie_aspm\..+|vfio\w*(\..+)?|nvme\w*\..+|nvidia\w*\..+|amdgpu\..+|"
    r"mlx\w+\..+|cgroup\w*|systemd\.(unified_cgroup_hierarchy|legacy_\w+)|psi|swiotlb|kvm\w*\..+|"
    r"panic\w*|reboot|random\..+|sched\w*|preempt|threadirqs|workqueue\..+|maxcpus|nr_cpus|"
    r"possible_cpus|(no)?smt|smt-enabled|mem|memmap|movable\w*|kernelcore|init_on_\w+|page_\w+|"
    r"slub_\w+|acpi\w*(\..+)?|efi|x2apic\w*|lapic|nomodule|deferred_init|nested_\w+|movablecore|"
    r"elevator|net\.ifnames|biosdevname|ipv6\.disable|module\.sig_enforce|lockdown|bgrt_disable|"
    r"no_timer_check|nox2apic|tboot|amd_prefcore|split_lock_detect|vsyscall|raid|"
    r"trace_\w+|ftrace\w*|bpf\w*|perf\w*"
)
_MOUNT_POINTS = re.compile(
    r"/|/(dev|proc|sys|run|tmp|boot|var|usr|home|etc|opt|mnt)(/(shm|pts|hugepages\w*|mqueue))?|"
    r"/sys/(fs|kernel)/.+|/proc/sys/fs/.+|/dev/hugepages.*"
)
_NO_DEVICE = re.compile(
    r"tmpfs|cgroup2?|hugetlbfs|proc|sysfs|bpf|resctrl|devtmpfs|devpts|mqueue|debugfs|tracefs|"
    r"securityfs|pstore|configfs|fusectl|efivarfs|autofs|binfmt_misc|ramfs|nsfs|rpc_pipefs|none|"
    r"udev|systemd-1|overlay"
)
_UUID = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_MAC = r"(?:[0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_IPV4 = rf"(?<![\d.]){_OCTET}(?:\.{_OCTET}){{3}}(?![\d.])"
_GROUP = r"[0-9a-fA-F]{1,4}"
_IPV6 = (
    rf"(?<![\w:.])(?:(?:{_GROUP}:){{7}}{_GROUP}|(?:{_GROUP}:){{1,6}}(?::{_GROUP}){{1,6}}|"
    rf"(?:{_GROUP}:){{2,7}}:|::{_GROUP}(?::{_GROUP})*)(?![\w:.])"
)
_ANY = re.compile(
    rf"(?P<uuid>{_UUID})|(?P<mac>(?<![\w:-]){_MAC}(?![\w:-]))|(?P<enx>(?<=enx)[0-9a-f]{{12}})|"
    rf"(?P<ip>{_IPV4}|{_IPV6})"
)
_VERSIONS = re.compile(r"proc/version|.*/version|.*/bios_version|proc/sys/kernel/osrelease")
_KEPT_IPS = ("0.0.0.0", "127.0.0.1", "::1", "255.255.255.255")


class Masks:
    """Gives each value its mask, and counts what it masked."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key
        self._known: dict[tuple[str, str], str] = {}
        self._numbers: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        """Values masked, by kind, each occurrence."""

    def of(self, kind: str, value: str) -> str:
        """The value's mask: `<kind-N>`, or with a key `<kind-HEX>`."""
        self.counts[kind] += 1
        value = value.lower()
        known = self._known.get((kind, value))
        if known is None:
            if self._key is None:
                self._numbers[kind] += 1
                name = str(self._numbers[kind])
            else:
                name = hmac.new(self._key, f"{kind}\0{value}".encode(), hashlib.sha256).hexdigest()[
                    :12
                ]
            known = self._known[kind, value] = f"<{kind}-{name}>"
        return known


def redact(
    table: Mapping[str, Entry], masks: Masks, *, include_logs: bool = False
) -> dict[str, Entry]:
    """The table with everything masked that tells whose machine it is.

    `include_logs` keeps the values of boot arguments that we do not know.
    """
    host = _text(table.get("proc/sys/kernel/hostname"))
    found: dict[str, Entry] = {}
    for path in sorted(table):
        entry = table[path]
        name = _anywhere(_cgroup_folder(path, masks), masks)
        if isinstance(entry, bytes):
            text = _text(entry)
            if text is not None:
                entry = _file(path, text, host, masks, include_logs).encode()
        elif isinstance(entry, Link):
            entry = Link(_anywhere(entry.target, masks))
        found[name] = entry
    return found


def _text(entry: Entry) -> str | None:
    if not isinstance(entry, bytes):
        return None
    try:
        return entry.decode().strip("\0 \t\r\n")
    except UnicodeDecodeError:
        return None


def _file(path: str, text: str, host: str | None, masks: Masks, include_logs: bool) -> str:
    rule = _RULES.get(path)
    if rule is not None:
        text = rule(text, masks)
    elif path == CMDLINE and not include_logs:
        text = _cmdline(text, masks)
    if path in _FREE_TEXT:
        if host and host not in ("localhost", "(none)"):
            whole = re.compile(rf"(?<![\w.<-]){re.escape(host)}(?![\w-])")
            text = whole.sub(lambda m: masks.of("host", m[0]), text)
        text = re.sub(r"(?<=/home/)[^/\s<]+", lambda m: masks.of("user", m[0]), text)
    return text if _VERSIONS.fullmatch(path) else _anywhere(text, masks)


def _anywhere(text: str, masks: Masks) -> str:
    if "-" not in text and ":" not in text and "." not in text and "enx" not in text:
        return text

    def mask(m: re.Match[str]) -> str:
        kind = m.lastgroup or "mac"
        if kind == "ip" and m[0] in _KEPT_IPS:
            return m[0]
        if kind in ("mac", "enx"):
            return masks.of("mac", re.sub("[:-]", "", m[0]))
        return masks.of(kind, m[0])

    return _ANY.sub(mask, text)


def _hostname(text: str, masks: Masks) -> str:
    return masks.of("host", text) if text not in ("", "localhost", "(none)") else text


def _version(text: str, masks: Masks) -> str:
    """`Linux version 6.1 (builder@machine) (gcc ...)`."""
    return re.sub(
        r"(?<![\w.+-])([\w.+-]+)@([\w.-]+)",
        lambda m: f"{masks.of('user', m[1])}@{masks.of('host', m[2])}",
        text,
    )


def _cmdline(text: str, masks: Masks) -> str:
    words = []
    for name, value in parse_cmdline(text):
        if value is None or BOOT_ARGS.fullmatch(name):
            quoted = f'"{value}"' if value is not None and " " in value else value
            words.append(name if value is None else f"{name}={quoted}")
        else:
            words.append(f"{name}={masks.of('value', value)}")
    if re.search(r"(^|\s)--(\s|$)", text):
        words += ["--", masks.of("init", text.partition(" -- ")[2])]
    return " ".join(words)


def _mounts(text: str, masks: Masks) -> str:
    lines = []
    for line in text.splitlines():
        words = line.split(" ")
        if len(words) < 4:
            continue
        source, point, kind, options = words[:4]
        if not _NO_DEVICE.fullmatch(source):
            source = masks.of("path", source)
        if not _MOUNT_POINTS.fullmatch(point):
            point = masks.of("path", point)
        if not _NO_DEVICE.fullmatch(kind):
            options = ",".join(o for o in options.split(",") if "=" not in o)
        elif "dir=" in options:
            # overlay: lowerdir=, upperdir=, workdir= are paths of images.
            options = ",".join(o for o in options.split(",") if "dir=" not in o)
        lines.append(" ".join((source, point, kind, options, *words[4:])))
    return "\n".join(lines)


def _swaps(text: str, masks: Masks) -> str:
    lines = text.splitlines()
    rows = [re.sub(r"^\S+", lambda m: masks.of("path", m[0]), line) for line in lines[1:]]
    return "\n".join(lines[:1] + rows)


def _route(text: str, masks: Masks) -> str:
    lines = text.splitlines()
    rows = []
    for line in lines[1:]:
        words = line.split()
        for column in (1, 2):
            if len(words) > column and words[column] != "00000000":
                words[column] = masks.of("ip", words[column])
        rows.append("\t".join(words))
    return "\n".join(lines[:1] + rows)


_CGROUP_TOPS = re.compile(
    r"/((system|user|machine|kubepods\w*|kube\w*|docker|containerd|slurm\w*|lxc|podman|libpod\w*)"
    r"(\.slice|\.scope)?|init\.scope|nodeagent\S*)?"
)


def _cgroup(text: str, masks: Masks) -> str:
    """Cgroup paths name units, pods and users; who rules the top folder is enough to judge by."""
    lines = []
    for line in text.splitlines():
        head, _, path = line.rpartition(":")
        top = "/".join(path.split("/")[:2])
        if not _CGROUP_TOPS.fullmatch(top):
            top = ""
        rest = path[len(top) :]
        lines.append(f"{head}:{top}" + (f"/{masks.of('path', rest)}" if rest else ""))
    return "\n".join(lines)


_CGROUP_FILE = re.compile(
    r"(cgroup|cpuset|cpu|cpuacct|memory|io|blkio|pids|hugetlb|rdma|misc|irq|dmem|devices|freezer|"
    r"net_cls|net_prio|perf_event)\..+|tasks|notify_on_release|release_agent|unified|"
    # Version 1: the hierarchies themselves.
    r"(cpu|cpuset|cpuacct|memory|blkio|pids|hugetlb|rdma|misc|devices|freezer|systemd|elogind|"
    r"net_cls|net_prio|perf_event)(,(cpu|cpuacct|net_cls|net_prio))*"
)
_CGROUP_PART = re.compile(
    r"(system|user|machine|kube\w*|docker|crio|cri-containerd|containerd|slurm\w*|lxc|podman|"
    r"libpod\w*|session|nodeagent)-(.+?)(\.slice|\.scope|\.service)?"
)
_CGROUPS = "sys/fs/cgroup/"


def _cgroup_folder(path: str, masks: Masks) -> str:
    """A cgroup's folder: what rules it stays, which user, pod or container it is for does not."""
    if not path.startswith(_CGROUPS):
        return path
    parts = []
    for part in path.removeprefix(_CGROUPS).split("/"):
        known = _CGROUP_TOPS.fullmatch(f"/{part}") or _CGROUP_FILE.fullmatch(part)
        whose = _CGROUP_PART.fullmatch(part)
        if known or not part or "<" in part:
            # A capture of a capture has its masks already.
            parts.append(part)
        elif whose:
            parts.append(f"{whose[1]}-{masks.of('path', whose[2])}{whose[3] or ''}")
        else:
            parts.append(masks.of("path", part))
    return _CGROUPS + "/".join(parts)


def _cpuinfo(text: str, masks: Masks) -> str:
    """Arm boards say their serial number there."""
    return re.sub(r"(?mi)^(serial\s*:\s*)(\S+)", lambda m: m[1] + masks.of("serial", m[2]), text)


_RULES: dict[str, Callable[[str, Masks], str]] = {
    "proc/sys/kernel/hostname": _hostname,
    "proc/version": _version,
    "proc/driver/nvidia/version": _version,
    "proc/cpuinfo": _cpuinfo,
    "proc/mounts": _mounts,
    "proc/swaps": _swaps,
    "proc/net/route": _route,
    "proc/self/cgroup": _cgroup,
}
_FREE_TEXT = frozenset(("proc/cmdline", "proc/version", "proc/mounts"))
