"""Idle states of the CPUs that count: each isolated one, and the first for the others; and of every
CPU the bound on its exit latency.

Every file here is a table of the kernel's: nothing asks the hardware.
Source: Documentation/ABI/testing/sysfs-devices-system-cpu (cpuidle), pm_qos_resume_latency_us.
"""

from __future__ import annotations

import re

from nodeagent.discover.root import Root
from nodeagent.model.cpuset import CpuSet

CPU = "sys/devices/system/cpu"
MAX_CPUS = 512
_STATE = re.compile(r"state\d{1,2}")
_FILES = ("name", "latency", "disable")


def read_idle(root: Root, online: CpuSet, isolated: CpuSet) -> dict[str, str]:
    """Path -> text of `name`, `latency` (us) and `disable` of each state, and each CPU's own
    bound on its exit latency."""
    found: dict[str, str] = {}
    first = CpuSet.of(list(online)[:1])
    for cpu in list(first | (isolated & online))[:MAX_CPUS]:
        base = f"{CPU}/cpu{cpu}"
        for state in root.names(f"{base}/cpuidle", _STATE):
            for file in _FILES:
                _take(root, f"{base}/cpuidle/{state}/{file}", found)
    # Of all: a workload may have asked for a bound on CPUs that are not isolated.
    for cpu in list(online)[:MAX_CPUS]:
        _take(root, f"{CPU}/cpu{cpu}/power/pm_qos_resume_latency_us", found)
    return found


def _take(root: Root, path: str, found: dict[str, str]) -> None:
    text = root.text(path, 256)
    if text is not None:
        found[path] = text
