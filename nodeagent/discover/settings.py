"""Settings of the kernel that checks judge by: the list of their files, read as they are.

`Snapshot.texts` maps each path below (without `*`: the real paths) to its stripped text. A key
that is absent was not there; if it was there and could not be read, `Snapshot.unread` says why.
To judge by another file, add a row.
"""

from __future__ import annotations

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
    Setting("sys/devices/system/cpu/intel_pstate/min_perf_pct"),
    Setting("sys/devices/system/cpu/intel_pstate/max_perf_pct"),
    Setting("sys/devices/system/cpu/amd_pstate/status"),
    Setting("sys/devices/system/cpu/amd_pstate/prefcore"),
    Setting("sys/devices/system/cpu/cpuidle/current_driver"),
    Setting("sys/devices/system/cpu/cpuidle/current_governor"),
    Setting("sys/devices/system/cpu/cpuidle/current_governor_ro"),
    # (idle states of CPUs: power.py)
    Setting("sys/devices/system/cpu/cpufreq/policy*/affected_cpus"),
    Setting("sys/devices/system/cpu/cpufreq/policy*/cpuinfo_max_freq"),
    Setting("sys/devices/system/cpu/cpufreq/policy*/scaling_max_freq"),
    Setting("sys/devices/system/cpu/cpufreq/policy*/scaling_min_freq"),
    Setting("sys/devices/system/cpu/cpufreq/policy*/base_frequency"),
    Setting("sys/devices/system/cpu/cpufreq/policy*/energy_performance_preference"),
    Setting("sys/devices/system/cpu/cpufreq/policy0/scaling_driver"),
    Setting("sys/devices/system/cpu/vulnerabilities/*"),
    Setting("sys/devices/system/cpu/cpu*/cpu_capacity"),
    Setting("sys/devices/system/cpu/cpu*/acpi_cppc/highest_perf"),
    Setting("sys/devices/cpu_core/cpus"),
    Setting("sys/devices/cpu_atom/cpus"),
    Setting("sys/devices/system/clocksource/clocksource0/current_clocksource"),
    Setting("sys/devices/system/clocksource/clocksource0/available_clocksource"),
    Setting("sys/devices/system/clockevents/clockevent0/current_device"),
    Setting("sys/devices/system/clockevents/broadcast/current_device"),
    # NUMA and memory
    Setting("sys/devices/system/node/possible"),
    Setting("sys/devices/system/node/online"),
    Setting("sys/devices/system/node/has_cpu"),
    Setting("sys/devices/system/node/has_memory"),
    Setting("sys/devices/system/node/has_normal_memory"),
    Setting("sys/devices/system/node/has_generic_initiator"),
    # HMAT: what the best initiators of a node get (MB/s, ns); tiers; CXL and device memory
    Setting("sys/devices/system/node/node*/access0/initiators/read_bandwidth"),
    Setting("sys/devices/system/node/node*/access0/initiators/write_bandwidth"),
    Setting("sys/devices/system/node/node*/access0/initiators/read_latency"),
    Setting("sys/devices/system/node/node*/access0/initiators/write_latency"),
    Setting("sys/devices/system/node/node*/memory_side_cache/index*/size"),
    Setting("sys/devices/virtual/memory_tiering/memory_tier*/nodelist"),
    Setting("sys/bus/dax/devices/*/target_node"),
    Setting("sys/bus/dax/devices/*/size"),
    Setting("sys/bus/cxl/devices/mem*/numa_node"),
    Setting("sys/bus/cxl/devices/mem*/ram/size"),
    Setting("sys/kernel/mm/numa/demotion_enabled"),
    # Huge pages: pools of the machine, and what each node has beyond its own pool
    Setting("sys/kernel/mm/hugepages/*/nr_hugepages"),
    Setting("sys/kernel/mm/hugepages/*/free_hugepages"),
    Setting("sys/kernel/mm/hugepages/*/resv_hugepages"),
    Setting("sys/kernel/mm/hugepages/*/surplus_hugepages"),
    Setting("sys/kernel/mm/hugepages/*/nr_overcommit_hugepages"),
    Setting("proc/buddyinfo"),
    Setting("proc/self/limits"),
    Setting("proc/sys/vm/min_free_kbytes"),
    Setting("proc/sys/vm/watermark_scale_factor"),
    Setting("proc/sys/vm/overcommit_ratio"),
    Setting("proc/sys/kernel/shmmax"),
    Setting("proc/sys/kernel/shmall"),
    Setting("sys/devices/system/edac/mc/mc*/ce_count"),
    Setting("sys/devices/system/edac/mc/mc*/ue_count"),
    Setting("sys/devices/system/edac/mc/mc*/dimm*/dimm_label"),
    Setting("sys/devices/system/edac/mc/mc*/dimm*/size"),
    Setting("sys/devices/system/edac/mc/mc*/dimm*/dimm_ce_count"),
    Setting("sys/devices/system/edac/mc/mc*/dimm*/dimm_ue_count"),
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
    Setting("sys/devices/virtual/workqueue/cpumask_isolated"),
    Setting("sys/devices/virtual/workqueue/cpumask_requested"),
    Setting("sys/devices/virtual/workqueue/*/cpumask"),
    Setting("sys/bus/workqueue/devices/writeback/cpumask"),
    Setting("sys/module/rcutree/parameters/kthread_prio"),
    Setting("sys/module/workqueue/parameters/power_efficient"),
    Setting("sys/kernel/rcu_expedited"),
    Setting("sys/kernel/rcu_normal"),
    Setting("proc/irq/default_smp_affinity"),
    Setting("etc/default/irqbalance"),
    Setting("etc/sysconfig/irqbalance"),
    Setting("etc/tuned/active_profile"),
    Setting("etc/tuned/*-variables.conf"),
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
    Setting("proc/sys/net/core/rps_sock_flow_entries"),
    # (queues, clocks and counters of interfaces: net.py)
    Setting("sys/class/infiniband/*/fw_ver"),
    Setting("sys/class/infiniband/*/ports/*/state"),
    Setting("sys/class/infiniband/*/ports/*/phys_state"),
    Setting("sys/class/infiniband/*/ports/*/rate"),
    Setting("sys/class/infiniband/*/ports/*/link_layer"),
    # NVMe
    Setting("sys/class/nvme/nvme*/state"),
    Setting("sys/class/nvme/nvme*/queue_count"),
    Setting("sys/class/nvme/nvme*/numa_node"),
    Setting("sys/class/nvme/nvme*/transport"),
    Setting("sys/class/nvme/nvme*/firmware_rev"),
    Setting("sys/module/nvme/parameters/poll_queues"),
    Setting("sys/module/nvme/parameters/write_queues"),
    # AMD GPUs
    Setting("sys/class/kfd/kfd/topology/nodes/*/name"),
    Setting("sys/module/amdgpu/parameters/noretry"),
    # Control groups
    Setting("proc/cgroups"),
    Setting("proc/self/cgroup"),
    # (the groups themselves: cgroup.py)
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
    Setting("sys/module/nvidia_fs/version"),
)
"""Every settings file. One row more is all that a check needs to see another one."""


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
    if text is not None and (b":" not in text or b"\0" in text):
        root.fail("proc/cpuinfo", "binary or empty, expected rows of a processor")
    if not text:
        return {}
    block = text.partition(b"\n\n")[0].decode("utf-8", "replace")
    pairs = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
