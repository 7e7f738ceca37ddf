"""Kernel files pasted as `path: value` lines, as sysctl prints them, or as files of one value."""

from __future__ import annotations

import re

from nodeagent.discover.paste.part import Part

_PATH = re.compile(r"^\s*/?((?:sys|proc)/(?:[^\s:=]|:(?=[0-9a-fA-F]{2}[:.]))+)\s*[:=][ \t]?(.*)$")
_LINK = re.compile(r"^\s*/?(sys/\S+)\s+->\s+(\S+)\s*$")
_SYSCTL = re.compile(r"^\s*((?:kernel|vm|net|fs)(?:\.[\w-]+)+)\s*=\s*(.*)$")
_CPU = "sys/devices/system/cpu"
_CGROUP = "sys/fs/cgroup/pasted"
NAMES: dict[str, str] = {
    "cmdline": "proc/cmdline",
    "proc-cmdline": "proc/cmdline",
    "meminfo": "proc/meminfo",
    "mounts": "proc/mounts",
    "proc-mounts": "proc/mounts",
    "swaps": "proc/swaps",
    "interrupts": "proc/interrupts",
    "cpuinfo": "proc/cpuinfo",
    "uname-r": "proc/sys/kernel/osrelease",
    "osrelease": "proc/sys/kernel/osrelease",
    **{
        f"{prefix}{leaf}": f"{_CPU}/{leaf}"
        for prefix in ("cpu-", "cpu_", "")
        for leaf in ("possible", "present", "online", "offline", "isolated", "nohz_full")
    },
    **{
        leaf: f"{_CGROUP}/{leaf}"
        for leaf in (
            "cpu.max", "cpu.stat", "cpu.pressure", "cpuset.cpus", "cpuset.cpus.effective",
            "cpuset.cpus.partition", "cpuset.cpus.exclusive", "cpuset.mems",
            "cpuset.mems.effective",
        )
    },
}  # fmt: skip
"""Kernel files by the names people save them under (a .txt behind it does not matter)."""
_ARGUMENT = re.compile(r"\b(?:BOOT_IMAGE|root|isolcpus|nohz_full|rcu_nocbs|irqaffinity)=\S")
MAX_VALUE = 64 << 10


def read_values(text: str, name: str) -> Part | None:
    """Kernel files in a text; None when there are none."""
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    for line in text.split("\n"):
        if m := _LINK.match(line):
            links[m[1]] = m[2]
        elif m := _PATH.match(line):
            files[m[1].rstrip("/")] = m[2].strip()
        elif m := _SYSCTL.match(line):
            files["proc/sys/" + m[1].replace(".", "/")] = m[2].strip()
    if not files and not links:
        one = _one_file(text, name)
        if one is None:
            return None
        files[one] = text.strip()[:MAX_VALUE]
    return Part(kind="values", files=files, links_to=links)


def _one_file(text: str, name: str) -> str | None:
    """Which kernel file this is: the command line by its content, the rest by name."""
    body = text.strip()
    if "\n" not in body and _ARGUMENT.search(body):
        return "proc/cmdline"
    leaf = name.rpartition("/")[2]
    return NAMES.get(leaf) or NAMES.get(leaf.removesuffix(".txt"))
