"""cpu: cores, siblings, clocks and power states under the pinned threads."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from nodeagent.check.isolation import BOOT, CMDLINE, LISTS, given, quiet
from nodeagent.check.record import (
    READ_BY_HAND,
    Judged,
    Missing,
    NotApplicable,
    Seen,
    check,
    fail,
    info,
    ok,
    saw,
    some,
    warn,
)
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.finding import Evidence

CPU = "sys/devices/system/cpu"
SMT = f"{CPU}/smt/control"
CLOCK = "sys/devices/system/clocksource/clocksource0/current_clocksource"
DMA_LATENCY = "derived/cpu_dma_latency_us"
_IDLE = re.compile(rf"{CPU}/cpu(\d+)/cpuidle/state(\d+)/(?:latency|disable)")
SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit")


@check(
    "cpu.smt-split",
    "isolated CPUs are whole cores",
    means="WARN when one hardware thread of a core is isolated and its sibling is not.",
    why="SMT siblings share a core's execution units and caches: whatever runs on the sibling "
    "slows the isolated thread by up to half, in bursts nobody can schedule away.",
    prove="grep . /sys/devices/system/cpu/cpu*/topology/thread_siblings_list; "
    "cat /sys/devices/system/cpu/isolated",
    mend="Isolate both siblings (and leave one idle), or switch SMT off.",
    source="Linux Documentation/admin-guide/cputopology.rst; Intel SDM vol. 3, 'Intel "
    "Hyper-Threading Technology'",
)
def smt_split(s: Seen) -> Iterator[Judged]:
    """Cores that are isolated in half."""
    cpus, (path, text) = quiet(s)
    siblings = s.snapshot.topology.smt_siblings
    if not siblings:
        raise s.gone(f"{CPU}/cpu0/topology/thread_siblings_list", "no sibling lists are there")
    split = [c for c in s.snapshot.topology.cores if c & cpus and c - cpus]
    if split:
        outside = CpuSet.of(i for core in split for i in core - cpus)
        yield warn(
            f"cpu {outside}",
            f"{len(split)} cores are isolated in half: CPUs {outside} are siblings of isolated "
            "CPUs and run anything",
            saw(path, text),
            *(
                saw(f"{CPU}/cpu{min(c.ids)}/topology/thread_siblings_list", str(c))
                for c in split[:3]
            ),
            remedy=f"isolcpus={cpus | outside}  # whole cores; nohz_full= and rcu_nocbs= alike; "
            f"{BOOT}",
        )
    else:
        yield ok(f"cpu {cpus}", "whole cores are isolated", saw(path, text))


@check(
    "cpu.zero-isolated",
    "CPU 0 is left to the system",
    means="WARN when CPU 0 is isolated or nohz_full.",
    why="Timekeeping, ACPI and many drivers' first interrupt use the boot CPU; the kernel keeps "
    "its tick there whatever nohz_full= says.",
    prove="cat /sys/devices/system/cpu/isolated /sys/devices/system/cpu/nohz_full",
    mend="Leave CPU 0 and its sibling out of the lists.",
    source="Linux Documentation/timers/no_hz.rst, 'the boot CPU'",
)
def zero_isolated(s: Seen) -> Iterator[Judged]:
    """The boot CPU in the isolated set."""
    cpus, (path, text) = quiet(s)
    if 0 in cpus:
        core = next((c for i, c in s.snapshot.topology.smt_siblings if i == 0), CpuSet.of((0,)))
        yield warn(
            "cpu 0",
            "CPU 0 is isolated, but the kernel needs it for timekeeping and boot-time interrupts",
            saw(path, text),
            remedy=f"isolcpus={cpus - core}  # nohz_full= and rcu_nocbs= alike; {BOOT}"
            if cpus - core
            else f"drop isolcpus= and nohz_full=  # {BOOT}",
        )
    else:
        yield ok("cpu 0", "CPU 0 is left to the system", saw(path, text))


@check(
    "cpu.offline",
    "all CPUs that are there are online",
    means="WARN when a CPU is present and offline although SMT is not switched off; INFO when SMT "
    "is off on purpose.",
    why="An offline CPU takes its share of the NUMA node's cores away; tools that count or number "
    "CPUs without looking shift every mask.",
    prove="cat /sys/devices/system/cpu/offline /sys/devices/system/cpu/smt/control; lscpu",
    mend="echo 1 > /sys/devices/system/cpu/cpuN/online, or find who took it offline (dmesg, tuned, "
    "a thermal daemon).",
    source="Linux Documentation/core-api/cpu_hotplug.rst",
)
def offline(s: Seen) -> Iterator[Judged]:
    """Present without online."""
    topology = s.snapshot.topology
    if not topology.online:
        raise s.gone(f"{CPU}/online", "the online CPUs are not known")
    if not topology.present:
        raise s.gone(f"{CPU}/present", "the present CPUs are not known")
    s.whole(f"{CPU}/present", f"{CPU}/online")
    off = topology.present - topology.online
    evidence = (
        saw(f"{CPU}/present", str(topology.present)),
        saw(f"{CPU}/online", str(topology.online)),
    )
    smt = s.snapshot.texts.get(SMT, "")
    if off and smt in ("off", "forceoff"):
        yield info(f"cpu {off}", f"SMT is off: CPUs {off} are offline", saw(SMT, smt))
    elif off and (s.snapshot.host.cpu_vendor or "").startswith("IBM/S390"):
        yield info(f"cpu {off}", f"CPUs {off} of this partition are on standby", *evidence)
    elif off:
        yield warn(
            f"cpu {off}",
            f"CPUs {off} are present and offline",
            *evidence,
            remedy=f"chcpu -e {off}",
        )
    else:
        yield ok(f"cpu {topology.online}", f"all {len(topology.online)} PUs are online", *evidence)


@check(
    "cpu.mask-names-offline",
    "no boot argument names an offline CPU",
    means="WARN when isolcpus=, nohz_full=, rcu_nocbs= or irqaffinity= name CPUs that are present "
    "and offline.",
    why="A mask made for another machine, or for the time before a CPU failed: the workload that "
    "was to run there has fewer CPUs than its configuration says.",
    prove="cat /proc/cmdline /sys/devices/system/cpu/offline",
    mend="Bring the CPU online or write the masks anew.",
    source="Linux Documentation/core-api/cpu_hotplug.rst",
)
def mask_names_offline(s: Seen) -> Iterator[Judged]:
    """Masks against the offline set."""
    s.arg("isolcpus")
    topology = s.snapshot.topology
    found = [a for name in LISTS if (a := given(s, name)) is not None and a.cpus]
    if not found:
        raise NotApplicable("the command line names no CPU list")
    if not topology.online or not topology.present:
        raise s.gone(f"{CPU}/online", "the online CPUs are not known")
    off = topology.present - topology.online
    named = [(a, a.cpus & off) for a in found if a.cpus & off]
    for a, cpus in named:
        yield warn(
            a.name,
            f"{a.text} names CPUs {cpus}, which are offline",
            saw(CMDLINE, a.text),
            saw(f"{CPU}/online", str(topology.online)),
            remedy=f"echo 1 > /sys/devices/system/cpu/cpu{min(cpus.ids)}/online, or: "
            f"{a.name}={a.cpus - cpus}  # {BOOT}",
        )
    if not named:
        yield ok(some(a.name for a in found), "the boot arguments name online CPUs only")


@check(
    "cpu.governor",
    "the frequency governor is performance where tails matter",
    means="WARN when a CPU of a GPU node, or an isolated CPU, runs under another governor than "
    "performance. NA where the hypervisor or the firmware sets the frequency.",
    why="powersave and schedutil let an idle core's clock fall; the next message then waits 10 to "
    "500 us for it to rise.",
    prove="grep . /sys/devices/system/cpu/cpufreq/policy*/scaling_governor | sort -u -t: -k2",
    mend="cpupower frequency-set -g performance, or cpufreq.default_governor=performance on the "
    "command line.",
    source="Linux Documentation/admin-guide/pm/cpufreq.rst; Documentation/admin-guide/pm/"
    "intel_pstate.rst",
)
def governor(s: Seen) -> Iterator[Judged]:
    """Governors of the CPUs that count."""
    files = s.matching(CPU, "/scaling_governor")
    if not files:
        s.whole(f"{CPU}/cpufreq")
        raise s.gone(
            f"{CPU}/cpufreq/policy0/scaling_governor", "this kernel does not set the frequency"
        )
    if not s.latency_matters:
        raise NotApplicable("no GPU and no isolated CPU is here")
    blank = next((p for p, g in files if not g), None)
    if blank is not None:
        raise Missing(blank, "the file is empty", READ_BY_HAND)
    other = [(p, g) for p, g in files if g != "performance"]
    if other:
        kinds = Counter(g for _, g in other)
        yield warn(
            "cpufreq",
            f"{len(other)} of {len(files)} frequency policies run under "
            f"{some(sorted(kinds))}, not performance",
            *(saw(p, g) for p, g in other[:2]),
            remedy="cpupower frequency-set -g performance",
        )
    else:
        yield ok("cpufreq", f"all {len(files)} frequency policies run under performance")


@check(
    "cpu.c-states",
    "deep idle states are off on isolated CPUs",
    means="WARN when an isolated CPU (every CPU, when none is isolated and a person pasted the "
    "values) may enter an idle state with an exit latency above `exit_us`; or, where only "
    "`disable` was pasted, an idle state from state2 on. OK when /dev/cpu_dma_latency or the "
    "CPU's own pm_qos_resume_latency_us holds it below that.",
    why="Leaving C6 takes 50 to 200 us, during which the message waits; this is the commonest "
    "single outlier of an otherwise quiet CPU.",
    prove="grep . /sys/devices/system/cpu/cpu*/cpuidle/state*/{name,latency,disable}",
    mend="Hold /dev/cpu_dma_latency open with 0 in the latency-critical process, or "
    "cpupower idle-set -D 10 for those CPUs; not idle=poll for the whole machine.",
    source="Linux Documentation/admin-guide/pm/cpuidle.rst",
    bounds={"exit_us": 10},
)
def c_states(s: Seen) -> Iterator[Judged]:
    """Idle states by CPU: name, latency, disable."""
    cpus, _ = quiet(s) if not s.snapshot.pasted else (s.isolated, ("", ""))
    most = s.bounds["exit_us"]
    texts = s.snapshot.texts
    held = texts.get(DMA_LATENCY, "")
    if held.isdigit() and int(held) <= most:
        yield ok("cpuidle", f"/dev/cpu_dma_latency holds every CPU at {held} us or less",
                 saw("dev/cpu_dma_latency", held))  # fmt: skip
        return
    deep: list[tuple[int, Evidence]] = []
    seen = 0
    for path, disabled in s.matching(f"{CPU}/cpu", "/disable"):
        m = _IDLE.fullmatch(path)
        if m is None or (cpus and int(m[1]) not in cpus):
            continue
        state = path.removesuffix("disable")
        latency = texts.get(f"{state}latency", "")
        name = texts.get(f"{state}name", "")
        if not latency.isdigit() and s.snapshot.pasted is None:
            continue
        seen += 1
        bound = texts.get(f"{CPU}/cpu{m[1]}/power/pm_qos_resume_latency_us", "0")
        if bound == "n/a" or (bound.isdigit() and 0 < int(bound) <= most):
            # The CPU's own bound; "n/a" allows no latency at all.
            continue
        slow = int(latency) > most if latency.isdigit() else int(m[2]) >= 2
        if slow and disabled == "0":
            us = f"{latency} us" if latency else "exit latency not given"
            deep.append((int(m[1]), saw(path, f"0: {name or f'state{m[2]}'} ({us})")))
    for path, latency in s.matching(f"{CPU}/cpu", "/latency"):
        m = _IDLE.fullmatch(path)
        alone = f"{path.removesuffix('latency')}disable" not in texts
        if m is None or not alone or (cpus and int(m[1]) not in cpus):
            continue
        # Without `disable` next to it: an old kernel, or a paste of latencies.
        seen += 1
        if latency.isdigit() and int(latency) > most:
            name = texts.get(path.removesuffix("latency") + "name", "an idle state")
            deep.append((int(m[1]), saw(path, f"{latency} us ({name})")))
    if not seen:
        limit = s.snapshot.arg("intel_idle.max_cstate") or s.snapshot.arg("processor.max_cstate")
        if limit in ("0", "1"):
            yield ok("cpuidle", f"the command line limits idle states to C{limit}")
            return
        s.whole(f"{CPU}/cpuidle", *(f"{CPU}/cpu{c}/cpuidle" for c in cpus))
        raise s.gone(f"{CPU}/cpu0/cpuidle/state1/latency", "this kernel has no idle states to name")
    if deep:
        where = CpuSet.of(c for c, _ in deep)
        unseen = "" if held or s.snapshot.pasted else "; /dev/cpu_dma_latency was not seen"
        yield warn(
            f"cpu {where}",
            f"CPUs {where} may enter {len(deep)} idle states that take more than {most:g} us to "
            f"leave{unseen}",
            *(e for _, e in deep[:3]),
            remedy=f"cpupower -c {where} idle-set -D {most:g}  # or hold /dev/cpu_dma_latency open "
            "with 0",
        )
    else:
        yield ok("cpuidle", "no deep idle state is allowed there")


@check(
    "cpu.idle-poll",
    "idle=poll does not burn the whole machine",
    means="WARN when idle=poll is on the command line.",
    why="Every idle CPU then spins at full power: turbo headroom of the busy cores is "
    "gone, and SMT "
    "siblings slow each other.",
    prove="cat /proc/cmdline",
    mend="Drop idle=poll; hold /dev/cpu_dma_latency open with 0, or disable deep idle states on "
    "the isolated CPUs only.",
    source="Linux Documentation/admin-guide/kernel-parameters.rst, idle=; "
    "Documentation/admin-guide/pm/cpuidle.rst",
)
def idle_poll(s: Seen) -> Iterator[Judged]:
    """One boot argument."""
    value = s.arg("idle")
    if value == "poll":
        yield warn(
            "idle",
            "idle=poll keeps every idle CPU spinning: it costs turbo and slows SMT siblings",
            saw(CMDLINE, "idle=poll"),
            remedy="cpupower -c CPUS idle-set -D 10  # isolated CPUs alone; and drop idle=poll "
            "from /etc/default/grub",
        )
    else:
        yield ok("idle", "idle CPUs may sleep")


@check(
    "cpu.clocksource",
    "the clock is read from the CPU",
    means="WARN when the clock source is hpet, acpi_pm or another that is read through a device.",
    why="Each clock_gettime() then costs a microsecond or more and a lock instead of 20 ns: time "
    "stamps, schedulers and Python's own timers all pay it. The kernel falls back to these when "
    "it found the TSC unstable.",
    prove="cat /sys/devices/system/clocksource/clocksource0/current_clocksource; "
    "dmesg | grep -i tsc",
    mend="Find out why the TSC was given up (dmesg); update the firmware; tsc=reliable only when "
    "it is.",
    source="Linux Documentation/timers/timekeeping.rst; arch/x86/kernel/tsc.c",
)
def clocksource(s: Seen) -> Iterator[Judged]:
    """One settings file."""
    now = s.word(CLOCK, absent="this kernel names no clock source")
    if now in SLOW_CLOCKS:
        yield warn(
            "clocksource",
            f"the clock source is {now}: each reading of the time costs a device access",
            saw(CLOCK, now),
            remedy="dmesg | grep -i tsc  # why the TSC was given up",
        )
    else:
        yield ok("clocksource", f"the clock source is {now}", saw(CLOCK, now))


@check(
    "cpu.watchdog",
    "lockup detectors stay off isolated CPUs",
    means="WARN when the watchdog is on and its mask names an isolated CPU. NA without isolation.",
    why="The soft-lockup watchdog wakes a stop-class thread every 4 s and the NMI watchdog takes a "
    "performance counter and fires on each watched CPU.",
    prove="sysctl kernel.watchdog kernel.nmi_watchdog kernel.watchdog_cpumask",
    mend="sysctl kernel.watchdog_cpumask=HOUSEKEEPING, or nmi_watchdog=0 nosoftlockup.",
    source="Linux Documentation/admin-guide/lockup-watchdogs.rst",
)
def watchdog(s: Seen) -> Iterator[Judged]:
    """Watchdog mask against isolated CPUs."""
    cpus, (path, text) = quiet(s)
    told = "proc/sys/kernel/watchdog"
    if s.snapshot.pasted and told not in s.snapshot.texts:
        told = "proc/sys/kernel/nmi_watchdog"
    on = s.word(told, absent="this kernel has no lockup detector")
    if on == "0":
        yield ok("watchdog", "the lockup detectors are off")
        return
    mask = s.cpus("proc/sys/kernel/watchdog_cpumask", absent="this kernel has no watchdog mask")
    evidence = saw("proc/sys/kernel/watchdog_cpumask", str(mask)), saw(path, text)
    if both := mask & cpus:
        yield warn(
            f"cpu {both}",
            f"the lockup detectors run on the isolated CPUs {both}",
            *evidence,
            remedy=f"sysctl -w kernel.watchdog_cpumask={mask - cpus}"
            if mask - cpus
            else "sysctl -w kernel.watchdog=0",
        )
    else:
        yield ok("watchdog", f"the lockup detectors leave CPUs {cpus} out", *evidence)


@check(
    "cpu.l3-split",
    "isolated CPUs cover whole L3 groups or stay inside one",
    means="INFO when the isolated set takes part of several L3 groups of packages that have "
    "several (CCDs). One L3 cache for each socket is never split: its other CPUs are the system's.",
    why="Threads that share data across L3 caches (CCDs on EPYC) pay a cross-die transfer for each "
    "shared line: 16-25 % was measured for one workload.",
    prove="grep . /sys/devices/system/cpu/cpu*/cache/index3/shared_cpu_list | sort -u -t: -k2",
    mend="Choose the isolated CPUs by L3 group.",
    source="AMD 58649, 'Overview of AMD EPYC 9004 series processors microarchitecture'",
)
def l3_split(s: Seen) -> Iterator[Judged]:
    """L3 groups that are isolated in part."""
    cpus, (path, text) = quiet(s)
    groups = s.l3_groups()
    if len(groups) < 2:
        raise NotApplicable("fewer than two L3 groups are known")
    packages = s.packages()
    # Where a socket has one L3 cache, the system's own CPUs have to be beside the isolated ones.
    small = [c for c in groups if not any(p.cpus <= c.cpus for p in packages)]
    part = [c.cpus for c in small if c.cpus & cpus and c.cpus - cpus]
    if len(part) > 1:
        yield info(
            f"cpu {cpus}",
            f"the isolated set takes part of {len(part)} L3 groups: {some(part, 4)}",
            saw(path, text),
            remedy=f"isolcpus={part[-1]}  # whole L3 groups; nohz_full= and rcu_nocbs= alike",
        )
    else:
        yield ok(f"cpu {cpus}", f"{len(groups)} L3 groups, at most one isolated in part")


@check(
    "cpu.sum-of-nodes",
    "NUMA nodes and the online CPUs agree",
    means="FAIL when a CPU is on two NUMA nodes, WARN when an online CPU is on none.",
    why="A mask computed from such a table pins threads to the wrong place.",
    prove="cat /sys/devices/system/cpu/online; grep . /sys/devices/system/node/node*/cpulist",
    mend="Trust neither; look at dmesg for SRAT complaints, update the firmware; in a virtual "
    "machine mend its vNUMA description.",
    source="ACPI specification 6.5, section 5.2.16 (SRAT)",
)
def sum_of_nodes(s: Seen) -> Iterator[Judged]:
    """Each online CPU on exactly one node."""
    s.whole(f"{CPU}/online")
    nodes = s.nodes()
    online = s.snapshot.topology.online
    seen: Counter[int] = Counter(c for n in nodes for c in n.cpus)
    twice = CpuSet.of(c for c, n in seen.items() if n > 1)
    none = online - CpuSet.of(seen)
    evidence = [saw(f"sys/devices/system/node/node{n.id}/cpulist", str(n.cpus)) for n in nodes[:4]]
    if twice:
        yield fail(
            f"cpu {twice}",
            f"CPUs {twice} are on more than one NUMA node",
            *evidence,
            remedy="numactl -H; dmesg | grep -iE 'srat|numa'",
        )
    elif none and seen:
        yield warn(
            f"cpu {none}",
            f"CPUs {none} are online and on no NUMA node",
            *evidence,
            saw(f"{CPU}/online", str(online)),
            remedy="numactl -H; dmesg | grep -iE 'srat|numa'",
        )
    elif not seen:
        raise NotApplicable("no NUMA node has CPUs here")
    else:
        yield ok(f"cpu {online}", f"each online CPU is on one of {len(nodes)} NUMA nodes")
