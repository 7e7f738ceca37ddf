"""Which kernel file a pasted file is, by the name it was saved under, and at what time.

`proc-irq-45-smp_affinity`, `cpu.max.before`, `node0-meminfo.txt`, `pod1/cpuset.cpus.partition`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_CPU = "sys/devices/system/cpu"
_CGROUP = "sys/fs/cgroup"
_LEAF = re.compile(
    r"(?:(?P<group>.*?)[-_/.])?"
    r"(?P<leaf>(?:cpuset\.(?:cpus|mems)(?:\.(?:effective|partition|exclusive(?:\.effective)?"
    r"|isolated))?)|cpu\.(?:max(?:\.burst)?|stat(?:\.local)?|pressure|weight|idle|cfs_quota_us"
    r"|cfs_period_us)|cpuset\.(?:cpu_exclusive|mem_exclusive|sched_load_balance)"
    r"|memory\.(?:max|high|current|stat|events|numa_stat)"
    r"|cgroup\.(?:controllers|subtree_control|procs|threads|type|events)|hugetlb\.\w+\.\w+)"
)
_SUFFIX = re.compile(r"\.(?:txt|log|out|conf|data)$")
_MOMENT = re.compile(
    r"[-_.](?:(?P<first>before|pre|old|start|earlier)|(?P<then>after|post|new|end|later|now)"
    r"|t(?P<at>\d{1,6})s?)$"
)
_ROWS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), path)
    for pattern, path in (
        (r"(?:proc[-_/])?irq[-_/]?(\d+)[-_/]"
         r"((?:smp|effective)_affinity(?:_list)?|node|affinity_hint|spurious)",
         r"proc/irq/\1/\2"),
        (r"(?:proc[-_])?(?:irq[-_])?default_smp_affinity", "proc/irq/default_smp_affinity"),
        (r"(?:sys[-_])?node(\d+)[-_/](meminfo|cpulist|cpumap|distance|numastat|vmstat)",
         r"sys/devices/system/node/node\1/\2"),
        (r"node(\d+)[-_/](?:hugepages[-_/])?(?:hugepages-)?(\d+kB)[-_/](\w+_hugepages)",
         r"sys/devices/system/node/node\1/hugepages/hugepages-\2/\3"),
        (r"(?:sys[-_])?cpu[-_]?(isolated|nohz_full|online|offline|possible|present)",
         rf"{_CPU}/\1"),
        (r"(isolated|nohz_full|online|offline|possible|present)", rf"{_CPU}/\1"),
        (r"(?:sys[-_])?cpu(\d+)[-_/](?:topology[-_/])?(thread_siblings(?:_list)?|core_cpus(?:_list)?"
         r"|core_id|physical_package_id|die_id|cluster_id|core_siblings(?:_list)?"
         r"|package_cpus(?:_list)?)",
         rf"{_CPU}/cpu\1/topology/\2"),
        (r"(?:sys[-_])?cpu(\d+)[-_/](?:cpufreq[-_/])?(scaling_(?:governor|driver|(?:cur|min|max)_freq"
         r"|available_governors)|energy_performance_preference|base_frequency"
         r"|cpuinfo_(?:min|max|cur)_freq)",
         rf"{_CPU}/cpu\1/cpufreq/\2"),
        (r"(scaling_governor|energy_performance_preference)", rf"{_CPU}/cpufreq/\1"),
        (r"(?:sys[-_])?cpu(\d+)[-_/](?:cpuidle[-_/])?state[-_/]?(\d+)[-_/](disable|latency|name"
         r"|usage)",
         rf"{_CPU}/cpu\1/cpuidle/state\2/\3"),
        (r"cpu(\d+)[-_/](?:power[-_/])?pm_qos_resume_latency_us",
         rf"{_CPU}/cpu\1/power/pm_qos_resume_latency_us"),
        (r"(?:sys[-_])?cpu(\d+)[-_/](?:cache[-_/])?index(\d)[-_/](shared_cpu_list|size|level|type)",
         rf"{_CPU}/cpu\1/cache/index\2/\3"),
        (r"cpu(\d+)[-_/]online", rf"{_CPU}/cpu\1/online"),
        (r"(?:cpu[-_])?(?:intel_pstate[-_](status|no_turbo))", rf"{_CPU}/intel_pstate/\1"),
        (r"(?:cpu[-_])?smt[-_](active|control)", rf"{_CPU}/smt/\1"),
        (r"(?:cpuidle[-_])?(current_driver|current_governor(?:_ro)?)", rf"{_CPU}/cpuidle/\1"),
        (r"([0-9a-fA-F]{4,8}[:_][0-9a-fA-F]{2}[:_][0-9a-fA-F]{2}\.[0-7])[-_/](numa_node|local_cpulist"
         r"|local_cpus|current_link_(?:speed|width)|max_link_(?:speed|width)|irq|class|vendor)",
         r"sys/bus/pci/devices/\1/\2"),
        (r"(?:net[-_])?(?!cpu|node|irq|gpu|proc|sys)([a-z][a-z0-9]{2,14})[-_/](?:device[-_/])?"
         r"(numa_node|local_cpulist)",
         r"sys/class/net/\1/device/\2"),
        (r"(?:thp|transparent_hugepage)[-_](enabled|defrag|shmem_enabled)",
         r"sys/kernel/mm/transparent_hugepage/\1"),
        (r"(?:workqueue[-_/]?|wq[-_])?cpumask", "sys/devices/virtual/workqueue/cpumask"),
        (r"(?:(?:clocksource0?[-_/])?current_)?clocksource", "sys/devices/system/clocksource/"
         "clocksource0/current_clocksource"),
        (r"(?:clocksource0?[-_/])?available_clocksource", "sys/devices/system/clocksource/"
         "clocksource0/available_clocksource"),
        (r"(?:cpu[-_]?)?dma[-_]latency(?:_us)?", "dev/cpu_dma_latency"),
        (r"(?:proc[-_])?(cmdline|meminfo|mounts|swaps|interrupts|cpuinfo|softirqs|version|stat"
         r"|vmstat|schedstat|buddyinfo|filesystems|modules|cgroups)", r"proc/\1"),
        (r"(?:uname(?:[-_]r)?|osrelease|kernel[-_](?:release|version))",
         "proc/sys/kernel/osrelease"),
        (r"(?:proc[-_]net[-_]|net[-_])(snmp6?|udp6?|dev|softnet_stat|netstat|igmp|packet|route)",
         r"proc/net/\1"),
        (r"(softnet_stat|igmp)", r"proc/net/\1"),
        (r"(numa_balancing|sched_rt_runtime_us|sched_rt_period_us|nmi_watchdog|watchdog_cpumask"
         r"|timer_migration|sched_autogroup_enabled|perf_event_paranoid)",
         r"proc/sys/kernel/\1"),
        (r"(nr_hugepages|nr_overcommit_hugepages|zone_reclaim_mode|swappiness|overcommit_memory"
         r"|stat_interval|max_map_count)", r"proc/sys/vm/\1"),
        (r"(rmem_max|rmem_default|wmem_max|netdev_max_backlog|netdev_budget|busy_poll|busy_read)",
         r"proc/sys/net/core/\1"),
        (r"(rp_filter)", r"proc/sys/net/ipv4/conf/all/\1"),
    )
)  # fmt: skip
"""Names people save kernel files under, in full, and the file's path below the root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When a text was taken, by its name: the later of two, or at so many seconds."""

    later: bool
    at_s: float | None = None


def stem_of(name: str) -> tuple[str, Moment | None]:
    """The name without .txt and without the time in it, and that time."""
    stem = _SUFFIX.sub("", name.strip().lstrip("./"))
    m = _MOMENT.search(stem)
    if m is None:
        return stem, None
    stem = _SUFFIX.sub("", stem[: m.start()])
    if m["at"] is not None:
        return stem, Moment(later=int(m["at"]) > 0, at_s=float(m["at"]))
    return stem, Moment(later=m["then"] is not None)


def path_of(name: str) -> str | None:
    """The kernel file that a pasted file of this name holds, None when the name tells nothing."""
    stem, _ = stem_of(name)
    leaf = stem.rpartition("/")[2]
    for pattern, path in _ROWS:
        for text in (stem, leaf):
            if m := pattern.fullmatch(text):
                return m.expand(path)
    if m := re.fullmatch(r"(?:kernel|vm|net|fs)(?:\.[\w-]+)+", leaf):
        return "proc/sys/" + leaf.replace(".", "/")
    if m := _LEAF.fullmatch(stem):
        group = (m["group"] or "").removeprefix("sys-fs-").strip("-_/.")
        group = re.sub(r"^(?:sys/fs/)?cgroup[-_/]?", "", group).strip("-_/.")
        return f"{_CGROUP}/{group or 'pasted'}/{m['leaf']}"
    if m := re.match(r"/?((?:proc|sys)/.+)$", stem):
        return m[1]
    if m := re.fullmatch(r"((?:proc|sys)-[\w.-]+)", leaf):
        path = m[1].replace("-", "/")
        return re.sub(r"hugepages/hugepages/", "hugepages/hugepages-", path)
    return None
