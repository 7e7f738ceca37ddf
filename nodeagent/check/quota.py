"""cgroup: quotas that changed, quotas where the tick should stop, more threads than CPUs, and
pressure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodeagent.check.record import (
    Judged,
    Missing,
    NotApplicable,
    Seen,
    check,
    fail,
    ok,
    saw,
    shown,
    warn,
)
from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.latency import Pressure, Quota, Sizes

ORDER = {"before": 0, "old": 0, "t0": 0, "first": 0, "was": 0, "expected": 0, "wanted": 0,
         "after": 9, "new": 9, "now": 9, "second": 8, "is": 9}  # fmt: skip


def _cpus(text: str) -> float | None:
    """The CPUs that a cpu.max allows; None for no limit or damage."""
    words = text.split()
    if not words or not words[0].isdigit():
        return None
    period = int(words[1]) if len(words) > 1 and words[1].isdigit() else 100_000
    return int(words[0]) / period if period else None


def _name(quota: Quota) -> str:
    limit = "max" if quota.quota_us is None else str(quota.quota_us)
    return f"{limit} {quota.period_us}"


@check(
    "cgroup.quota-changed",
    "a group's CPU quota stays as it was set",
    means="WARN when two readings of one group's cpu.max differ: the limit was lost, added or "
    "changed.",
    why="systemd writes its own idea of a unit's limits at every daemon-reload. A limit that a "
    "runtime (docker, podman, a script) wrote past systemd is gone then, without a message.",
    prove="cat /sys/fs/cgroup/GROUP/cpu.max; systemctl daemon-reload; cat "
    "/sys/fs/cgroup/GROUP/cpu.max; systemctl show UNIT -p CPUQuotaPerSecUSec",
    mend="Set it where systemd keeps it: systemctl set-property UNIT CPUQuota=30%, or the "
    "runtime's "
    "systemd cgroup driver.",
    source="systemd.resource-control(5) CPUQuota=; Linux Documentation/admin-guide/cgroup-v2.rst",
)
def changed(s: Seen) -> Iterator[Judged]:
    """Quotas with labels, in their order."""
    quotas = list(s.reports(Quota))
    plain = s.snapshot.texts.get("sys/fs/cgroup/pasted/cpu.max")
    if plain is not None and len(quotas) == 1 and quotas[0].label:
        words = plain.split()
        number = int(words[0]) if words and words[0].isdigit() else None
        period = int(words[1]) if len(words) > 1 and words[1].isdigit() else 100_000
        quotas.append(Quota(source="cpu.max", quota_us=number, period_us=period, label="now"))
    if len(quotas) < 2:
        raise NotApplicable("there are no two readings of one quota")
    quotas.sort(key=lambda q: (ORDER.get(q.label.lower(), 5), q.label))
    first, last = quotas[0], quotas[-1]
    evidence = (saw(first.source, _name(first)), saw(last.source, _name(last)))
    if (first.quota_us, first.period_us) == (last.quota_us, last.period_us):
        yield ok("cpu.max", f"the quota stays {_name(first)}", *evidence)
        return
    if last.quota_us is None:
        what = f"the limit of {first.cpus:g} CPUs is gone"
    elif first.quota_us is None:
        what = f"a limit of {last.cpus:g} CPUs appeared"
    else:
        what = f"the limit went from {first.cpus:g} to {last.cpus:g} CPUs"
    percent = f"{100 * first.cpus:g}%" if first.cpus is not None else ""
    yield warn(
        "cpu.max",
        f"cpu.max changed from '{_name(first)}' to '{_name(last)}': {what}, as a daemon-reload of "
        "systemd or the runtime does to limits that are not the unit's own",
        *evidence,
        remedy=f"systemctl set-property UNIT CPUQuota={percent}  # so that systemd keeps it",
    )


@check(
    "cgroup.quota-nohz",
    "no CPU quota on nohz_full CPUs",
    means="WARN when a group has a CPU quota and its cpuset holds nohz_full CPUs (or pasted input "
    "does not tell its cpuset).",
    why="The quota is accounted in the tick: a group with cpu.max keeps the tick running on every "
    "CPU it uses, and nohz_full is without effect there.",
    prove="cat /sys/devices/system/cpu/nohz_full /sys/fs/cgroup/GROUP/cpu.max",
    mend="echo max > /sys/fs/cgroup/GROUP/cpu.max (Kubernetes: cpu-quota.crio.io: disable, or "
    "static "
    "policy without CFS quota); hold the group by its cpuset.",
    source="Linux kernel/sched/fair.c sched_cfs_period_timer(), kernel/time/tick-sched.c; "
    "Documentation/scheduler/sched-bwc.rst",
)
def nohz(s: Seen) -> Iterator[Judged]:
    """Each cpu.max against nohz_full."""
    files = [(p, t) for p, t in s.matching("", "cpu.max") if t.split()]
    if not files:
        raise NotApplicable("no cpu.max was read")
    cpus = s.snapshot.topology.isolation.nohz_full or s.snapshot.asked.nohz_full
    if not cpus:
        raise NotApplicable("no CPU is nohz_full")
    bad = False
    for path, text in files:
        limit = _cpus(text)
        if limit is None:
            continue
        where = path.removesuffix("cpu.max") + "cpuset.cpus.effective"
        own = s.snapshot.texts.get(path.removesuffix("cpu.max") + "cpuset.cpus")
        if s.snapshot.pasted is None and not own:
            # Of a whole machine we know: nobody gave it CPUs, so isolated ones are not its own.
            continue
        listed = s.snapshot.texts.get(where) or own
        try:
            inside = cpus if listed is None else CpuSet.parse(listed) & cpus
        except ParseError as error:
            raise Missing(where, str(error), f"cat {shown(where)}") from error
        if not inside:
            continue
        bad = True
        group = shown(path).removesuffix("/cpu.max")
        yield warn(
            group,
            f"cpu.max allows {limit:g} CPUs, and CPUs {inside} are nohz_full: the quota needs the "
            "tick, so it is not stopped there",
            saw(path, text),
            saw("sys/devices/system/cpu/nohz_full", str(cpus)),
            remedy=f"echo max > {group}/cpu.max  # it may then use all its CPUs all the time",
        )
    for leaf in ("cpu.max", "cpuset.cpus"):
        s.whole("sys/fs/cgroup", leaf=leaf)
    if not bad:
        yield ok("cgroup", "no group with a quota uses nohz_full CPUs")


@check(
    "cgroup.crowded",
    "a group has no more threads than it may use CPUs",
    means="WARN when the input tells of more threads than the group's quota or cpuset has CPUs.",
    why="Thread pools are sized by the machine's CPUs (os.cpu_count()), not by the group's. The "
    "rest waits in the run queue, or burns the quota by spinning.",
    prove="nproc; cat /sys/fs/cgroup/GROUP/{cpu.max,cpuset.cpus.effective,pids.current}",
    mend="OMP_NUM_THREADS, MKL_NUM_THREADS, TORCHINDUCTOR_COMPILE_THREADS and the like to the "
    "group's CPUs, or more CPUs.",
    source="Linux Documentation/admin-guide/cgroup-v2.rst; Python os.cpu_count()",
)
def crowded(s: Seen) -> Iterator[Judged]:
    """Threads against quota and cpuset."""
    sizes = [z for z in s.reports(Sizes) if z.threads is not None]
    if not sizes:
        raise NotApplicable("the input does not tell how many threads there are")
    limits: list[tuple[float, str, str]] = []
    for path, text in s.matching("", "cpu.max"):
        if (limit := _cpus(text)) is not None:
            limits.append((limit, path, text))
    for path, text in s.matching("", "cpuset.cpus.effective"):
        try:
            limits.append((float(len(CpuSet.parse(text))), path, text))
        except ParseError:
            continue
    if not limits:
        raise NotApplicable("the input tells no quota and no cpuset")
    limit, path, text = min(limits)
    machine = next((z.machine_cpus for z in s.reports(Sizes) if z.machine_cpus), None)
    threads = max(z.threads or 0 for z in sizes)
    if threads > limit:
        beside = f"; the pool was sized for the machine's {machine} CPUs" if machine else ""
        yield warn(
            "threads",
            f"{threads} threads share {limit:g} CPUs{beside}",
            saw(sizes[0].source, str(threads)),
            saw(path, text),
            remedy=f"export OMP_NUM_THREADS={max(1, int(limit))}  # and the like for compile and "
            "tokenizer pools; for latency a cpuset instead of a quota",
        )
    else:
        yield ok("threads", f"{threads} threads have {limit:g} CPUs")


_SOME = re.compile(
    r"(some|full) avg10=(\d+(?:\.\d+)?) avg60=(\d+(?:\.\d+)?) avg300=(\d+(?:\.\d+)?)"
)


def _pressure(path: str, text: str) -> Pressure | None:
    shares = {m[1]: max(float(x) for x in m.groups()[1:]) for m in _SOME.finditer(text)}
    leaf = path.rpartition("/")[2]
    return (
        Pressure(
            source=shown(path),
            resource=leaf.removesuffix(".pressure"),
            some_percent=shares.get("some", 0.0),
            full_percent=shares.get("full"),
        )
        if shares
        else None
    )


@check(
    "cgroup.pressure",
    "tasks do not stand still for lack of CPU, memory or I/O",
    means="WARN when, by a pressure file, tasks waited more than `some_percent` % of the time for "
    "CPU, or all of them more than `full_percent` % for memory or I/O.",
    why="Pressure counts the time in which work was there and could not go on: what a load average "
    "only hints at.",
    prove="cat /proc/pressure/{cpu,memory,io}; cat /sys/fs/cgroup/GROUP/cpu.pressure",
    mend="cpu: more CPUs or fewer threads; memory: more memory or a smaller working set; io: look "
    "for the disk.",
    source="Linux Documentation/accounting/psi.rst",
    bounds={"some_percent": 10, "full_percent": 5},
)
def pressure(s: Seen) -> Iterator[Judged]:
    """Each pressure file in the input."""
    found = s.reports(Pressure) or tuple(
        p
        for head, tail in (("proc/pressure/", ""), ("sys/fs/cgroup", ".pressure"))
        for path, text in s.matching(head, tail)
        if (p := _pressure(path, text)) is not None
    )
    if not found:
        raise NotApplicable("no pressure file is in the input")
    for p in found:
        name = p.resource or "a resource"
        full = p.full_percent or 0.0
        told = f"some {p.some_percent:g} %, full {full:g} %"
        heavy = full > s.bounds["full_percent"] and p.resource != "cpu"
        if p.some_percent > s.bounds["some_percent"] and (p.resource in ("cpu", "") or heavy):
            judged = fail if full > 50 and heavy else warn
            yield judged(
                f"pressure {name}",
                f"tasks stand still for {name}: {told}",
                saw(p.source, told),
                remedy="systemd-cgtop; cat /sys/fs/cgroup/*/cpu.pressure  names the group",
            )
        elif heavy:
            yield warn(
                f"pressure {name}",
                f"all tasks stand still for {name}: {told}",
                saw(p.source, told),
                remedy=f"grep . /sys/fs/cgroup/*/{name}.pressure  names the group",
            )
        else:
            yield ok(f"pressure {name}", told, saw(p.source, told))
