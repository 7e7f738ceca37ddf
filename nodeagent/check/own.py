"""self: what nodeagent itself costs this machine, and where it runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nodeagent.check.isolation import quiet
from nodeagent.check.record import (
    READ_BY_HAND,
    Judged,
    Missing,
    NotApplicable,
    Seen,
    check,
    ok,
    saw,
    some,
    warn,
)
from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet

COST = "run/self/"
FEEDER = "nodeagent-feede"
"""comm of nodeagent-feeder: the kernel keeps 15 characters."""
_ROW = re.compile(
    r"cpu_s=([0-9]{1,15}(?:\.[0-9]+)?) age_s=([0-9]{1,15}(?:\.[0-9]+)?) rss_kb=([0-9]{1,15}) "
    r"cpus=([0-9,-]*) last=([0-9]{1,9})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """One process of ours."""

    name: str
    pid: str
    cpu_s: float
    age_s: float
    rss_bytes: int
    cpus: CpuSet
    last_cpu: int
    path: str
    text: str


def ours(s: Seen) -> list[Ours]:
    """Our processes. Raises NotApplicable when none runs, Missing for damage."""
    found = []
    for path, text in s.matching(COST, ""):
        m = _ROW.fullmatch(text)
        try:
            if m is None:
                raise ValueError
            found.append(
                Ours(
                    name=path.split("/")[2],
                    pid=path.rpartition("/")[2],
                    cpu_s=float(m[1]),
                    age_s=float(m[2]),
                    rss_bytes=int(m[3]) << 10,
                    cpus=CpuSet.parse(m[4]),
                    last_cpu=int(m[5]),
                    path=path,
                    text=text,
                )
            )
        except (ValueError, IndexError, ParseError):
            raise Missing(path, f"saw {text[:60]!r}, expected costs", READ_BY_HAND) from None
    if not found:
        s.whole(COST)
        raise NotApplicable("no process of nodeagent runs here")
    return found


@check(
    "self.cpu",
    "nodeagent costs little CPU time",
    means="WARN when a process of nodeagent other than a feeder used more than `percent` % of one "
    "CPU over its life, after its first `settle_s` seconds. NA when none runs.",
    why="A monitor must not be the jitter it looks for.",
    prove="ps -C nodeagentd,nodeagent-actor,nodeagent-contr -o pid,etimes,cputimes,rss,psr,comm",
    mend="Read less often: [daemon] snapshot_s and interval_s; nodeagentctl status names the part.",
    source="nodeagent docs/architecture.md; proc_pid_stat(5)",
    bounds={"percent": 2, "settle_s": 60},
)
def cpu(s: Seen) -> Iterator[Judged]:
    """CPU seconds over age."""
    settled = [p for p in ours(s) if p.name != FEEDER and p.age_s >= max(1.0, s.bounds["settle_s"])]
    if not settled:
        raise NotApplicable("no process of nodeagent runs for long enough")
    hot = [p for p in settled if p.cpu_s * 100 > p.age_s * s.bounds["percent"]]
    for p in hot:
        yield warn(
            f"{p.name} {p.pid}",
            f"{p.name} ({p.pid}) used {p.cpu_s:.1f} s of CPU time in {p.age_s:.0f} s "
            f"({100 * p.cpu_s / p.age_s:.1f} % of a CPU)",
            saw(f"/proc/{p.pid}/stat", p.text),
            remedy="nodeagentctl status  # names the part; set a longer [daemon] snapshot_s",
        )
    if not hot:
        most = max(settled, key=lambda p: p.cpu_s / p.age_s)
        yield ok("self", f"{most.name} uses most: {100 * most.cpu_s / most.age_s:.2f} % of a CPU")


@check(
    "self.memory",
    "nodeagent costs little memory",
    means="WARN when a process of nodeagent other than a feeder holds more than `mib` MiB resident "
    "(shared pages counted in full). NA when none runs.",
    why="What the monitor holds is taken from page cache and huge pages of the job.",
    prove="grep VmRSS /proc/$(pgrep -x nodeagentd)/status; nodeagentctl status",
    mend="systemctl restart nodeagentd, and report it with nodeagentctl capture and status.",
    source="nodeagent docs/architecture.md; proc_pid_status(5), VmRSS",
    bounds={"mib": 256},
)
def memory(s: Seen) -> Iterator[Judged]:
    """Resident memory of each."""
    found = [p for p in ours(s) if p.name != FEEDER]
    if not found:
        raise NotApplicable("only feeders run here")
    fat = [p for p in found if p.rss_bytes > int(s.bounds["mib"]) << 20]
    for p in fat:
        yield warn(
            f"{p.name} {p.pid}",
            f"{p.name} ({p.pid}) holds {p.rss_bytes >> 20} MiB",
            saw(f"/proc/{p.pid}/status", f"VmRSS {p.rss_bytes >> 10} kB"),
            remedy="systemctl restart nodeagentd; nodeagentctl capture node.capture",
        )
    if not fat:
        most = max(found, key=lambda p: p.rss_bytes)
        yield ok("self", f"{most.name} holds most: {most.rss_bytes >> 20} MiB")


@check(
    "self.placement",
    "nothing of nodeagent runs on isolated CPUs",
    means="WARN when a process of nodeagent other than a feeder may run on isolated CPUs only, or "
    "last ran on one. NA without isolation or when none runs.",
    why="The agent promises never to take time from the CPUs that it watches.",
    prove="taskset -pc $(pgrep -x nodeagentd); ps -o psr= -p $(pgrep -x nodeagentd)",
    mend="systemctl set-property nodeagentd AllowedCPUs=HOUSEKEEPING; nodeagentctl undo puts back "
    "what was pinned.",
    source="nodeagent docs/architecture.md; proc_pid_stat(5), processor",
)
def placement(s: Seen) -> Iterator[Judged]:
    """Masks and last CPUs against the isolated set."""
    found = [p for p in ours(s) if p.name != FEEDER]
    cpus, where = quiet(s)
    if not found:
        raise NotApplicable("only feeders run here")
    wrong = [p for p in found if p.last_cpu in cpus or (p.cpus and p.cpus <= cpus)]
    rest = s.snapshot.topology.online - cpus
    for p in wrong:
        yield warn(
            f"{p.name} {p.pid}",
            f"{p.name} ({p.pid}) may run on CPUs {p.cpus} and last ran on CPU {p.last_cpu}; "
            f"{cpus} are isolated",
            saw(f"/proc/{p.pid}/stat", p.text),
            saw(*where),
            remedy=f"taskset -apc {rest} {p.pid}" if rest else f"taskset -pc {p.pid}",
        )
    if not wrong:
        yield ok("self", f"{some(p.name for p in found)} stay off CPUs {cpus}")
