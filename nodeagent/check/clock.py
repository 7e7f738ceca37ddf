"""cpu: the time stamp counter, and how fast the cores may run."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check.record import (
    READ_BY_HAND,
    Judged,
    Missing,
    NotApplicable,
    Seen,
    check,
    info,
    ok,
    saw,
    some,
    warn,
)

CPU = "sys/devices/system/cpu"
FLAGS = "derived/cpu_flags"
CLOCK = "sys/devices/system/clocksource/clocksource0/current_clocksource"
BY_TSC = ("tsc", "")
"""Clock sources with which the TSC's own properties count; "" is not told."""


@check(
    "cpu.tsc",
    "the time stamp counter is even and never stops",
    means="WARN when the kernel log says that the TSC was found unstable, or when a physical CPU "
    "lacks constant_tsc or nonstop_tsc. INFO for a virtual machine without them. NA on other "
    "architectures.",
    why="Feed latencies, ring stamps and tracing read the TSC. One that changes with the clock, "
    "stops in idle states or differs between sockets makes stamps go backwards; the kernel then "
    "falls back to a clock that costs a microsecond a reading.",
    prove="grep -o -w -E 'constant_tsc|nonstop_tsc|tsc_known_freq' /proc/cpuinfo | sort | uniq -c; "
    "dmesg | grep -i tsc",
    mend="Update the firmware (it must start all sockets' counters together); in a virtual machine "
    "ask for invtsc (QEMU: -cpu host,+invtsc). tsc=reliable only hides it.",
    source="Intel SDM vol. 3, 'Time-Stamp Counter'; Linux arch/x86/kernel/tsc.c, tsc_sync.c",
)
def tsc(s: Seen) -> Iterator[Judged]:
    """The log first, then the flags."""
    said = s.snapshot.texts.get("log/tsc-unstable")
    if said is not None:
        yield warn(
            "tsc",
            "the kernel found the time stamp counter unstable",
            saw("kernel log", said),
            remedy="update the firmware; cat "
            "/sys/devices/system/clocksource/clocksource0/current_clocksource tells what is used",
        )
        return
    text = s.snapshot.texts.get(FLAGS)
    if text is None:
        raise s.gone("proc/cpuinfo", "this processor names no flags")
    flags = text.split()
    if "tsc" not in flags:
        raise NotApplicable("this processor has no time stamp counter")
    missing = [f for f in ("constant_tsc", "nonstop_tsc") if f not in flags]
    evidence = saw("proc/cpuinfo", f"flags without {some(missing)}" if missing else "constant_tsc "
                   "nonstop_tsc")  # fmt: skip
    if not missing:
        yield ok("tsc", "the time stamp counter is even and never stops", evidence)
    elif s.snapshot.host.virtual is not None and s.snapshot.texts.get(CLOCK, "") not in BY_TSC:
        yield ok("tsc", "the hypervisor's own clock is in use, not the time stamp counter",
                 saw(CLOCK, s.snapshot.texts.get(CLOCK, "")))  # fmt: skip
    elif s.snapshot.host.virtual is not None:
        yield info(
            "tsc",
            f"the hypervisor does not promise an even time stamp counter: {some(missing)} missing",
            evidence,
            remedy="QEMU: -cpu host,+invtsc",
        )
    else:
        yield warn(
            "tsc",
            f"the time stamp counter may change with the clock or stop: {some(missing)} missing",
            evidence,
            remedy="keep idle states shallow (cpupower idle-set -D 10) and the clock fixed, or use "
            "CLOCK_MONOTONIC, not rdtsc",
        )


@check(
    "cpu.turbo",
    "the cores may run as fast as they can",
    means="WARN when turbo is off (no_turbo, boost, max_perf_pct below 100) or CPUs are held "
    "below what they can run at (scaling_max_freq under cpuinfo_max_freq by more than `percent` "
    "%). INFO where CPUs are isolated: some switch turbo off for even clocks. NA where the "
    "hypervisor or the firmware sets the frequency, and on machines without GPU or isolated CPU.",
    why="Launching kernels, tokenising and decoding feeds are single-threaded: a core held at its "
    "base clock is 20 to 40 % slower, and the GPU waits for it.",
    prove="grep . /sys/devices/system/cpu/{intel_pstate/no_turbo,cpufreq/boost}; "
    "grep . /sys/devices/system/cpu/cpufreq/policy*/{scaling,cpuinfo}_max_freq",
    mend="echo 0 > /sys/devices/system/cpu/intel_pstate/no_turbo, or echo 1 > "
    "/sys/devices/system/cpu/cpufreq/boost; cpupower frequency-set -u MAX; look for a power cap in "
    "the firmware or in tuned.",
    source="Linux Documentation/admin-guide/pm/intel_pstate.rst, cpufreq.rst",
    bounds={"percent": 2},
)
def turbo(s: Seen) -> Iterator[Judged]:
    """Switches, then each policy's limit."""
    off = [
        (path, text, on)
        for path, held, on in (
            (f"{CPU}/intel_pstate/no_turbo", "1", f"echo 0 > /{CPU}/intel_pstate/no_turbo"),
            (f"{CPU}/cpufreq/boost", "0", f"echo 1 > /{CPU}/cpufreq/boost"),
        )
        if (text := s.snapshot.texts.get(path)) == held
    ]
    percent = s.snapshot.texts.get(f"{CPU}/intel_pstate/max_perf_pct", "100")
    if percent.isdigit() and int(percent) < 100:
        path = f"{CPU}/intel_pstate/max_perf_pct"
        off.append((path, percent, f"echo 100 > /{path}"))
    limits = s.matching(f"{CPU}/cpufreq/policy", "/scaling_max_freq")
    s.whole(f"{CPU}/intel_pstate", f"{CPU}/cpufreq/boost", f"{CPU}/cpufreq/policy")
    if not off and not limits and f"{CPU}/cpufreq/boost" not in s.snapshot.texts:
        raise NotApplicable("this kernel does not set the frequency")
    if not s.latency_matters:
        raise NotApplicable("no GPU and no isolated CPU is here")
    slow = []
    for path, text in limits:
        most = s.snapshot.texts.get(path.replace("scaling_max_freq", "cpuinfo_max_freq"), "")
        if not text.isdigit() or not most.isdigit():
            if not text or not most:
                raise Missing(path, "the file is empty", READ_BY_HAND)
            continue
        if int(text) < int(most) * (1 - s.bounds["percent"] / 100):
            slow.append((path, int(text), int(most)))
    say = info if s.isolated and s.snapshot.pasted is None else warn
    for path, text, remedy in off:
        yield say(
            "turbo",
            f"turbo is limited: {path.rpartition('/')[2]} is {text}",
            saw(path, text),
            remedy=remedy,
        )
    if slow:
        path, now, most_khz = slow[0]
        yield warn(
            "cpufreq",
            f"{len(slow)} of {len(limits)} frequency policies are held at {now / 1e6:.2f} GHz or "
            f"so, of {most_khz / 1e6:.2f} GHz",
            *(saw(p, str(f)) for p, f, _ in slow[:3]),
            remedy=f"cpupower frequency-set -u {most_khz}kHz",
        )
    if not off and not slow:
        yield ok("cpufreq", "the cores may run as fast as they can")
