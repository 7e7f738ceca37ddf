"""Settings of the kernel that checks judge by: the list of their files, read as they are.

`Snapshot.texts` maps each path below (without `*`: the real paths) to its stripped text. A key
that is absent was not there; if it was there and could not be read, `Snapshot.unread` says why.
To judge by another file, add a row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nodeagent.discover.root import Root


@dataclass(frozen=True, slots=True)
class Setting:
    """A file, or several by `*`. `expected`: every kernel has it; its absence is recorded."""

    path: str
    expected: bool = False
    limit: int = 64 << 10


SETTINGS: tuple[Setting, ...] = (
    # Boot and kernel
    Setting("proc/cmdline", expected=True),
    Setting("proc/version"),
    Setting("proc/sys/kernel/hostname"),
    Setting("proc/sys/kernel/osrelease"),
    Setting("proc/sys/kernel/random/boot_id"),
    Setting("proc/meminfo", expected=True),
    Setting("proc/swaps"),
    Setting("proc/mounts"),
    Setting("proc/filesystems"),
    # CPUs: isolation, SMT, frequency, idle, clock
    Setting("sys/devices/system/cpu/isolated"),
    Setting("sys/devices/system/cpu/nohz_full"),
    Setting("sys/devices/system/cpu/offline"),
    Setting("sys/devices/system/cpu/smt/active"),
    Setting("sys/devices/system/cpu/smt/control"),
    Setting("sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"),
    Setting("sys/devices/system/cpu/cpufreq/boost"),
    Setting("sys/devices/system/cpu/intel_pstate/status"),
    Setting("sys/devices/system/cpu/intel_pstate/no_turbo"),
    Setting("sys/devices/system/cpu/amd_pstate/status"),
    Setting("sys/devices/system/cpu/cpuidle/current_driver"),
    Setting("sys/devices/system/cpu/cpuidle/current_governor"),
    Setting("sys/devices/system/cpu/vulnerabilities/*"),
    Setting("sys/devices/cpu_core/cpus"),
    Setting("sys/devices/cpu_atom/cpus"),
    Setting("sys/devices/system/clocksource/clocksource0/current_clocksource"),
    Setting("sys/devices/system/clocksource/clocksource0/available_clocksource"),
    # NUMA and memory
    Setting("sys/devices/system/node/possible"),
    Setting("sys/devices/system/node/online"),
    Setting("sys/devices/system/node/has_cpu"),
    Setting("sys/devices/system/node/has_memory"),
    Setting("proc/sys/kernel/numa_balancing"),
    Setting("proc/sys/vm/zone_reclaim_mode"),
    Setting("proc/sys/vm/swappiness"),
    Setting("proc/sys/vm/overcommit_memory"),
    Setting("proc/sys/vm/nr_hugepages"),
    Setting("proc/sys/vm/nr_overcommit_hugepages"),
    Setting("proc/sys/vm/max_map_count"),
    Setting("proc/sys/vm/stat_interval"),
    Setting("proc/sys/vm/compaction_proactiveness"),
    Setting("sys/kernel/mm/transparent_hugepage/enabled"),
    Setting("sys/kernel/mm/transparent_hugepage/defrag"),
    Setting("sys/kernel/mm/transparent_hugepage/shmem_enabled"),
    Setting("sys/kernel/mm/transparent_hugepage/khugepaged/defrag"),
    Setting("sys/kernel/mm/ksm/run"),
    Setting("sys/kernel/mm/lru_gen/enabled"),
    # Scheduler, watchdogs, work queues, interrupts
    Setting("proc/sys/kernel/sched_rt_runtime_us"),
    Setting("proc/sys/kernel/sched_rt_period_us"),
    Setting("proc/sys/kernel/sched_autogroup_enabled"),
    Setting("proc/sys/kernel/sched_schedstats"),
    Setting("proc/sys/kernel/timer_migration"),
    Setting("proc/sys/kernel/watchdog"),
    Setting("proc/sys/kernel/nmi_watchdog"),
    Setting("proc/sys/kernel/soft_watchdog"),
    Setting("proc/sys/kernel/watchdog_cpumask"),
    Setting("proc/sys/kernel/perf_event_paranoid"),
    Setting("proc/sys/kernel/unprivileged_bpf_disabled"),
    Setting("sys/devices/virtual/workqueue/cpumask"),
    Setting("sys/devices/virtual/workqueue/writeback/cpumask"),
    Setting("sys/bus/workqueue/devices/writeback/cpumask"),
    Setting("sys/module/rcutree/parameters/kthread_prio"),
    Setting("proc/irq/default_smp_affinity"),
    # Network
    Setting("proc/sys/net/core/rmem_max"),
    Setting("proc/sys/net/core/rmem_default"),
    Setting("proc/sys/net/core/wmem_max"),
    Setting("proc/sys/net/core/netdev_max_backlog"),
    Setting("proc/sys/net/core/netdev_budget"),
    Setting("proc/sys/net/core/busy_read"),
    Setting("proc/sys/net/core/busy_poll"),
    Setting("proc/sys/net/core/optmem_max"),
    Setting("proc/sys/net/ipv4/conf/*/rp_filter"),
    Setting("proc/sys/net/ipv4/igmp_max_memberships"),
    # Control groups
    Setting("proc/cgroups"),
    Setting("proc/self/cgroup"),
    Setting("sys/fs/cgroup/cgroup.controllers"),
    Setting("sys/fs/cgroup/cgroup.subtree_control"),
    Setting("sys/fs/cgroup/cpuset.cpus.effective"),
    Setting("sys/fs/cgroup/cpuset.cpus.isolated"),
    Setting("sys/fs/cgroup/*/cpuset.cpus"),
    Setting("sys/fs/cgroup/*/cpuset.cpus.partition"),
    Setting("sys/fs/cgroup/*/cpu.max"),
    # IOMMU, firmware, drivers
    Setting("sys/kernel/iommu_groups/*/type"),
    Setting("sys/class/dmi/id/sys_vendor"),
    Setting("sys/class/dmi/id/product_name"),
    Setting("sys/class/dmi/id/board_name"),
    Setting("sys/class/dmi/id/bios_version"),
    Setting("sys/hypervisor/type"),
    Setting("proc/driver/nvidia/version"),
    Setting("sys/module/nvidia/version"),
    Setting("sys/module/amdgpu/version"),
    Setting("sys/module/nvidia/parameters/NVreg_EnableStreamMemOPs"),
    Setting("sys/module/pcie_aspm/parameters/policy"),
    Setting("sys/module/nvidia_peermem/version"),
)
"""Every settings file. One row more is all that a check needs to see another one."""

PROCESSES = ("irqbalance", "tuned", "numad", "kubelet", "slurmd", "dockerd", "containerd")
"""Programs whose presence matters: `texts["run/NAME"]` is the number of their processes."""
MAX_PIDS = 32_768


def read_settings(root: Root) -> dict[str, str]:
    """All rows that are there."""
    found: dict[str, str] = {}
    for row in SETTINGS:
        if "*" not in row.path:
            text = root.text(row.path, row.limit, expected=row.expected)
            if text is not None:
                found[row.path] = text
            continue
        for path in root.glob(row.path):
            text = root.text(path, row.limit, quiet=True)
            if text is not None:
                found[path] = text
    return found


def first_cpu(root: Root) -> dict[str, str]:
    """`proc/cpuinfo`'s first block: one processor's keys and values.

    Only its head is read: the kernel prints a CPU at a time, and there may be hundreds.
    """
    text = root.head("proc/cpuinfo", 4096)
    if not text:
        return {}
    block = text.partition(b"\n\n")[0].decode("utf-8", "replace")
    pairs = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def read_derived(root: Root, texts: dict[str, str]) -> dict[str, str]:
    """What is no file of its own: `run/NAME` for PROCESSES, `derived/dev_shm_bytes`.

    `run/NAME` is "0" when none runs; the key is absent when nobody looked (a recorded tree).
    `derived/dev_shm_bytes`: size of the tmpfs on /dev/shm; without `size=` it is half of memory.
    """
    found: dict[str, str] = {}
    if root.is_live:
        counts = dict.fromkeys(PROCESSES, 0)
        for pid in root.pids()[:MAX_PIDS]:
            comm = (root.peek(f"proc/{pid}/comm", 64) or b"").decode("utf-8", "replace").strip()
            if comm in counts:
                counts[comm] += 1
        found = {f"run/{name}": str(count) for name, count in counts.items()}
        for key, text in found.items():
            root.note(key, text)
    else:
        for name in PROCESSES:
            seen = root.text(f"run/{name}", 64)
            if seen is not None:
                found[f"run/{name}"] = seen
    size = _dev_shm(texts)
    if size is not None:
        found["derived/dev_shm_bytes"] = str(size)
    return found


_SIZE = re.compile(r"size=([0-9]{1,18})([kmg%]?)")
_UNIT = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _dev_shm(texts: dict[str, str]) -> int | None:
    """Source: Documentation/filesystems/tmpfs.rst (size=, default half of memory)."""
    m = re.search(r"^MemTotal:\s+([0-9]{1,15}) kB", texts.get("proc/meminfo", ""), re.MULTILINE)
    memory = int(m[1]) << 10 if m else None
    size = None
    for line in texts.get("proc/mounts", "").splitlines():
        words = line.split()
        if len(words) < 4 or words[1] != "/dev/shm" or words[2] != "tmpfs":
            continue
        option = _SIZE.search(words[3])
        if option is None:
            size = None if memory is None else memory // 2
        elif option[2] == "%":
            size = None if memory is None else memory * int(option[1]) // 100
        else:
            size = int(option[1]) * _UNIT[option[2]]
    return size
