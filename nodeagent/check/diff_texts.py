"""What differs between the settings of two readings; pure.

Counters that always move are left out; those that count what should not be come last. Files that
repeat for each CPU, queue or disk and changed alike are one difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from nodeagent.check.difference import Difference, Weight, changed
from nodeagent.model.cpuset import CpuSet

_ALWAYS = re.compile(
    # What moves by itself, names the machine, or is compared elsewhere.
    r"proc/(meminfo|buddyinfo|cmdline|mounts|swaps|self/.+|net/route|interrupts|cgroups)|"
    r"proc/sys/kernel/(random/boot_id|hostname)|log/.+|"
    r"derived/(df|dev_shm_used_bytes|cpu_flags)|nvml/.+|"
    r"sys/class/net/[^/]+/(statistics/[rt]x_packets|carrier_changes)|"
    r".*/(free|resv|surplus)_hugepages|"
    # Groups come and go with the jobs in them; partitions and quotas are what a person set.
    r"sys/fs/cgroup/.+/(cpuset\.(cpus|mems)(\.effective|\.exclusive(\.effective)?)?|cgroup\.type|"
    r"cpu\.idle|cpuset\.effective_(cpus|mems)|cpu\.cfs_period_us)"
)
_COUNTER = re.compile(
    r"sys/class/net/[^/]+/statistics/.+|derived/interrupt_errors|.*/cpu\.stat|.*_count"
)
_FIRMWARE = re.compile(
    r"proc/version|proc/sys/kernel/osrelease|proc/driver/nvidia/version|sys/class/dmi/id/.+|"
    r"sys/module/(nvidia|amdgpu|nvidia_peermem)/version|.*/(fw_ver|firmware_rev)|"
    r"derived/kernel_config"
)
_ISOLATION = re.compile(
    r"sys/devices/system/cpu/(isolated|nohz_full)|.*/cpuset\.cpus\.(partition|isolated)|"
    r"derived/rcu_offloaded|sys/devices/virtual/workqueue/.+|proc/irq/default_smp_affinity"
)
_DERIVED_ELSEWHERE = frozenset(
    ("sys/devices/system/cpu/isolated", "sys/devices/system/cpu/nohz_full")
)
"""Compared as CPU sets, not once more as texts."""
_NUMBER = re.compile(r"\d+")


def texts(a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[Difference]:
    """Differences of settings; several files that changed alike are one."""
    groups: dict[tuple[str, str | None, str | None], list[str]] = {}
    for path in sorted(a.keys() | b.keys()):
        old, new = a.get(path), b.get(path)
        if old == new or path in _DERIVED_ELSEWHERE or _ALWAYS.fullmatch(path):
            continue
        if _COUNTER.fullmatch(path):
            old, new = _counted(old, new)
        groups.setdefault((_NUMBER.sub("*", path), old, new), []).append(path)
    for (pattern, old, new), paths in groups.items():
        subject = paths[0] if len(paths) < 3 else f"{pattern} ({len(paths)} files)"
        what = "value" if pattern.startswith(("run/", "derived/")) else "text"
        for path in paths if len(paths) < 3 else paths[:1]:
            shown = path if len(paths) < 3 else subject
            yield from changed(shown, ((_weight(path), what, old, new),))


def _counted(old: str | None, new: str | None) -> tuple[str | None, str | None]:
    """A counter that only one side has, or that stands at nothing, tells nothing."""
    if old is None or new is None:
        return None, None
    return (None, None) if old.split() == new.split() else (old, new)


def _weight(path: str) -> Weight:
    if _COUNTER.fullmatch(path):
        return Weight.COUNTER
    if _FIRMWARE.fullmatch(path):
        return Weight.FIRMWARE
    return Weight.ISOLATION if _ISOLATION.fullmatch(path) else Weight.SETTING


def cpu_sets(
    names: tuple[str, ...], a: Mapping[str, CpuSet], b: Mapping[str, CpuSet]
) -> Iterator[Difference]:
    """Named sets of CPUs."""
    for name in names:
        yield from changed("isolation", ((Weight.ISOLATION, name, str(a[name]), str(b[name])),))
