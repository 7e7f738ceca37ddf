"""isolation: what isolates CPUs after boot (tuned, partitions), and what still stops them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodeagent.check.isolation import ISOLATED, NOHZ_FULL, PARTITION, quiet
from nodeagent.check.record import (
    Judged,
    NotApplicable,
    Seen,
    check,
    info,
    ok,
    saw,
    warn,
)
from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet

PROFILE = "etc/tuned/active_profile"
RT_RUNTIME = "proc/sys/kernel/sched_rt_runtime_us"
RT_PERIOD = "proc/sys/kernel/sched_rt_period_us"
_PROFILES = ("cpu-partitioning", "realtime")
_CORES = re.compile(r"^\s*isolated_cores\s*=\s*(\S+)", re.MULTILINE)


@check(
    "isolation.run-time",
    "a cpuset partition isolates what it should",
    means="INFO when CPUs are isolated by a cpuset partition at run time: the scheduler leaves "
    "them alone, but unless nohz_full= names them too they keep their tick. WARN when a partition "
    "takes CPUs that isolcpus= has already (the kernel calls it invalid). NA without one.",
    why="A partition removes load balancing only. Tick, RCU callbacks and interrupts stay, and a "
    "restart of the service that made it takes it away.",
    prove="cat /sys/fs/cgroup/cpuset.cpus.isolated /sys/devices/system/cpu/nohz_full; grep . "
    "$(find /sys/fs/cgroup -name cpuset.cpus.partition)",
    mend="Name the CPUs in nohz_full= and rcu_nocbs= at boot, and let the partition do the rest.",
    source="Linux Documentation/admin-guide/cgroup-v2.rst, cpuset.cpus.isolated",
)
def run_time(s: Seen) -> Iterator[Judged]:
    """The root's list of isolated CPUs against the boot's."""
    now = s.cpus(PARTITION, absent="this kernel isolates no CPUs by partitions")
    if not now:
        raise NotApplicable("no cpuset partition isolates CPUs")
    boot = s.cpus(ISOLATED, absent="") if ISOLATED in s.snapshot.texts else CpuSet()
    asked = s.snapshot.asked.isolated
    evidence = [saw(PARTITION, str(now))]
    if both := now & asked:
        yield warn(
            f"cpu {both}",
            f"CPUs {both} are in isolcpus= and in a cpuset partition: the kernel takes one of them",
            *evidence,
            saw(ISOLATED, str(boot)),
            remedy="keep the partition and drop isolcpus=, or: echo member > "
            "/sys/fs/cgroup/GROUP/cpuset.cpus.partition",
        )
        return
    nohz = s.cpus(NOHZ_FULL, absent="") if NOHZ_FULL in s.snapshot.texts else CpuSet()
    ticking = now - nohz
    yield info(
        f"cpu {now}",
        f"a cpuset partition isolates CPUs {now}"
        + (f"; the tick stays on {ticking}" if ticking else ", the tick may stop there"),
        *evidence,
        remedy=f"nohz_full={now} rcu_nocbs={now}  # boot arguments" if ticking else "",
    )


@check(
    "isolation.tuned",
    "what tuned is told to isolate is isolated",
    means="WARN when tuned's profile isolates cores (cpu-partitioning, realtime) and the kernel "
    "isolates none, or others: the machine was not rebooted since, or its boot loader was not "
    "regenerated. NA without such a profile.",
    why="tuned writes boot arguments that count from the next boot on; until then the profile is "
    "shown as active and isolates nothing.",
    prove="tuned-adm active; cat /etc/tuned/*-variables.conf /sys/devices/system/cpu/isolated "
    "/proc/cmdline",
    mend="tuned-adm profile cpu-partitioning, then reboot; check that /proc/cmdline has what "
    "/etc/tuned/bootcmdline says.",
    source="tuned-profiles-cpu-partitioning(7), isolated_cores",
)
def tuned(s: Seen) -> Iterator[Judged]:
    """The active profile's variable against what is in force."""
    if s.snapshot.pasted is None and s.snapshot.why_unread(PROFILE) is None:
        profile = s.snapshot.texts.get(PROFILE, "")
    else:
        profile = s.text(PROFILE, absent="tuned is not told of")
    name = next((w for w in profile.split() if w.startswith(_PROFILES)), None)
    if name is None:
        raise NotApplicable("no tuned profile that isolates cores is active")
    path = f"etc/tuned/{_PROFILES[0] if name.startswith(_PROFILES[0]) else _PROFILES[1]}"
    path = f"{path}-variables.conf"
    try:
        cpus, where = quiet(s)
    except NotApplicable:
        # The file itself, else the arguments that would have filled it.
        told = next((p for p in (ISOLATED, "proc/cmdline") if p in s.snapshot.texts), None)
        if told is None:
            raise NotApplicable(f"the input says nothing of /{ISOLATED}") from None
        yield warn(
            "tuned",
            f"tuned's profile {name} is active, but no CPU is isolated",
            saw(PROFILE, profile),
            saw(told, s.snapshot.texts[told]),
            remedy=f"tuned-adm profile {name}, then reboot; cat /proc/cmdline shows its arguments",
        )
        return
    m = _CORES.search(s.snapshot.texts.get(path, ""))
    try:
        wanted = CpuSet.parse(m[1], last=s.last_cpu) if m else CpuSet()
    except ParseError:
        wanted = CpuSet()  # ${f:calc_isolated_cores:1}: tuned computes it
    if wanted and wanted != cpus and m is not None:
        yield warn(
            f"cpu {wanted}",
            f"tuned is told to isolate CPUs {wanted}, in force is {cpus}",
            saw(path, m[0].strip()),
            saw(*where),
            remedy=f"tuned-adm profile {name}, then reboot",
        )
    else:
        yield ok("tuned", f"profile {name}, CPUs {cpus} are isolated", saw(PROFILE, profile))


@check(
    "isolation.rt-throttling",
    "real-time threads on isolated CPUs are not stopped",
    means="INFO when the kernel stops real-time threads for a part of each period "
    "(sched_rt_runtime_us is not -1) and CPUs are isolated. NA without isolation.",
    why="A SCHED_FIFO thread that polls stands still 50 ms of each second by default.",
    prove="sysctl kernel.sched_rt_runtime_us kernel.sched_rt_period_us",
    mend="sysctl -w kernel.sched_rt_runtime_us=-1 where such a thread spins on a CPU of its own; "
    "leave it where one could starve the system.",
    source="Linux Documentation/scheduler/sched-rt-group.rst",
)
def rt_throttling(s: Seen) -> Iterator[Judged]:
    """One sysctl, where CPUs are isolated."""
    cpus, _ = quiet(s)
    runtime = s.number(RT_RUNTIME, absent="this kernel does not throttle real-time threads")
    if runtime < 0:
        yield ok("kernel.sched_rt_runtime_us", "real-time threads are never stopped")
        return
    period = s.number(RT_PERIOD, absent="this kernel does not throttle real-time threads")
    yield info(
        "kernel.sched_rt_runtime_us",
        f"a real-time thread that never sleeps is stopped {(period - runtime) / 1000:g} ms of each "
        f"{period / 1000:g} ms, also on the isolated CPUs {cpus}",
        saw(RT_RUNTIME, str(runtime)),
        remedy="sysctl -w kernel.sched_rt_runtime_us=-1",
    )
