"""jitter: stalls of the whole machine, told from those of one CPU."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check.record import (
    Judged,
    NotApplicable,
    Seen,
    check,
    fail,
    ok,
    saw,
    share,
    some,
    warn,
)
from nodeagent.model.latency import Calls, Spike, Spikes


@check(
    "jitter.machine-stall",
    "CPUs do not stall all at once",
    means="Canary threads on several CPUs tell stalls of the whole machine from those of one CPU. "
    "FAIL when at least `share_percent` % of the stalls hit all canaries at the same time and a "
    "listed call (NVML, an ioctl) was made at the same moments, or when such stalls last "
    "`fail_us`; WARN for shorter ones and for stalls of single CPUs above `stall_us`.",
    why="The scheduler stops one CPU at a time. All at once is firmware (SMI), a hypervisor, or a "
    "driver that holds the bus: pinning, priorities and isolation change nothing.",
    prove="Run one canary for each of four CPUs on two sockets and compare their time stamps with "
    "strace -ttt -e ioctl of the process that polls the GPU.",
    mend="When it goes with a poller's calls: poll less often, batch the reads, or stop polling on "
    "this platform. Else look for SMIs (turbostat SMI, hwlatdetect).",
    source="NVIDIA open-gpu-kernel-modules, reports of register reads that stall the machine; "
    "Linux "
    "Documentation/trace/hwlat_detector.rst",
    bounds={"share_percent": 80, "stall_us": 50, "fail_us": 1000, "window_ms": 1, "call_ms": 10},
)
def machine_stall(s: Seen) -> Iterator[Judged]:
    """Groups of stalls within a window."""
    reports = s.reports(Spikes)
    if not reports:
        raise NotApplicable("no canaries ran")
    calls = s.reports(Calls)
    for report in reports:
        rows = [r for r in report.rows if r.us > s.bounds["stall_us"]]
        cpus = {r.cpu for r in report.rows}
        if not rows:
            yield ok("canaries", f"{len(cpus)} canaries saw no stall")
            continue
        groups = _together(rows, s.bounds["window_ms"])
        need = max(2, len(cpus))
        whole = [g for g in groups if len({r.cpu for r in g}) >= need]
        worst = max(r.us for r in rows)
        evidence = saw(report.source, f"{len(whole)} of {len(groups)} stalls on all canaries")
        if len(cpus) < 2 or share(len(whole), len(groups)) < s.bounds["share_percent"]:
            yield warn(
                f"cpu {some(sorted({r.cpu for r in rows}))}",
                f"{len(groups)} stalls of up to {worst:g} us; {len(whole)} of them on all "
                f"{len(cpus)} canaries at once: mostly a matter of single CPUs",
                evidence,
                remedy="rtla timerlat top -c CPU -a 50  # names what ran instead",
            )
            continue
        message = (
            f"{len(whole)} of {len(groups)} stalls, up to {worst / 1000:g} ms, hit all "
            f"{len(cpus)} canaries at the same time: not the scheduler, the whole machine stands "
            "still"
        )
        found = [_matched(whole, c, s.bounds["call_ms"]) for c in calls]
        best = max(found, default=0)
        if calls and share(best, len(whole)) >= s.bounds["share_percent"]:
            c = calls[found.index(best)]
            pids = sorted({p for _, p in c.rows if p is not None})
            who = f" of pid {some(pids)}" if pids else ""
            yield fail(
                "whole machine",
                f"{message}; {best} of {len(whole)} come with a {c.what or 'listed'} call{who}",
                evidence,
                saw(c.source, f"{len(c.rows)} calls"),
                remedy="poll less often and with batched field reads (nvidia-smi dmon -d 10, DCGM "
                "instead of single queries), or stop that poller on this platform",
            )
            continue
        judged = fail if worst >= s.bounds["fail_us"] else warn
        yield judged(
            "whole machine",
            message + ("; no listed call goes with them" if calls else ""),
            evidence,
            remedy="turbostat --show CPU,SMI --interval 10  # during such stalls, and strace -ttt "
            "-e ioctl of what polls the GPU: firmware counts SMIs, a poller's times agree",
        )


def _together(rows: list[Spike], window_ms: float) -> list[list[Spike]]:
    """Stalls that began within a window of the first one of their group."""
    groups: list[list[Spike]] = []
    for row in sorted(rows, key=lambda r: r.at_ms):
        if groups and row.at_ms - groups[-1][0].at_ms <= window_ms:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _matched(groups: list[list[Spike]], calls: Calls, within_ms: float) -> int:
    """How many stalls have a call that near, before or within them."""
    times = [t for t, _ in calls.rows]
    return sum(
        any(-within_ms <= t - g[0].at_ms <= max(r.us for r in g) / 1000 for t in times)
        for g in groups
    )
