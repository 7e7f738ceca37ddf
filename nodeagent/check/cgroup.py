"""cgroup: the hierarchy, cpuset partitions, and quotas."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check.record import (
    Judged,
    NotApplicable,
    Seen,
    check,
    fail,
    info,
    ok,
    saw,
    shown,
    some,
    warn,
)
from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.finding import Evidence

TOP = "sys/fs/cgroup"
CONTROLLERS = f"{TOP}/cgroup.controllers"
REASONS = {
    # The longer first: one is part of another. GROUP and PARENT become the paths.
    "cpuset.cpus and cpuset.cpus.exclusive are empty": "echo CPUS > GROUP/cpuset.cpus",
    "cpuset.cpus is empty": "echo CPUS > GROUP/cpuset.cpus",
    "Invalid cpu list in cpuset.cpus.exclusive": "grep -H . PARENT/*/cpuset.cpus.exclusive  # take "
    "these CPUs out of every sibling, and give them to each ancestor's",
    "Parent is not a partition root": "echo root > PARENT/cpuset.cpus.partition  # or place "
    "the group directly below the root, or set cpuset.cpus.exclusive in each ancestor (Linux 6.7 "
    "and newer)",
    "Parent is an invalid partition root": "cat PARENT/cpuset.cpus.partition  # mend the parent's "
    "partition first",
    "Cpu list in cpuset.cpus not exclusive": "grep -H . PARENT/*/cpuset.cpus  # take these CPUs "
    "out of every sibling's",
    "Parent unable to distribute cpu downstream": "cat PARENT/cgroup.procs  # leave the parent a "
    "CPU of its own, or move its tasks into a child: a partition cannot take all CPUs of a parent "
    "that has tasks",
    "hotplug": "echo 1 > /sys/devices/system/cpu/cpuN/online  # bring the CPUs online",
    "Enable partition not permitted": "echo CPUS > PARENT/cpuset.cpus.exclusive  # in each "
    "ancestor first, as root of the initial user namespace",
    "Have remote partition underneath": "grep -rH . GROUP --include=cpuset.cpus.partition  # "
    "switch the remote partition below off first: echo member > it",
    "partition config conflicts with housekeeping setup": "echo member > "
    "GROUP/cpuset.cpus.partition  # or drop isolcpus=, which names these CPUs (nohz_full= may "
    "stay), and keep the partition",
}
"""What the kernel writes after `invalid`, and what helps."""


@check(
    "cgroup.version",
    "cgroup v2 with the cpuset controller",
    means="INFO when cgroup v1 holds the cpuset controller: partitions and cpuset.mems migration "
    "of v2 are not to be had.",
    why="On v1 a cpuset is placed by hand and nothing keeps other tasks off its CPUs; systemd's "
    "AllowedCPUs= needs v2.",
    prove="stat -fc %T /sys/fs/cgroup; cat /sys/fs/cgroup/cgroup.controllers",
    mend="systemd.unified_cgroup_hierarchy=1 on the command line.",
    source="Linux Documentation/admin-guide/cgroup-v2.rst, 'Cpuset'",
)
def version(s: Seen) -> Iterator[Judged]:
    """Which hierarchy."""
    text = s.snapshot.texts.get(CONTROLLERS)
    if text is None and not s.snapshot.why_unread(CONTROLLERS) and s.snapshot.complete:
        mounts = s.word("proc/mounts", absent="nothing is mounted")
        v1 = [m for m in mounts.splitlines() if m.split()[2:3] == ["cgroup"] and "cpuset" in m]
        if v1:
            yield info("cgroup", "the cpuset controller is in cgroup v1", saw("proc/mounts", v1[0]))
            return
        raise NotApplicable("no cgroup hierarchy is mounted")
    text = s.text(CONTROLLERS, absent="no cgroup v2 is mounted")
    if "cpuset" in text.split():
        yield ok("cgroup", "cgroup v2 has the cpuset controller", saw(CONTROLLERS, text))
    else:
        yield warn(
            "cgroup",
            "cgroup v2 is mounted without the cpuset controller",
            saw(CONTROLLERS, text),
            remedy="look for a cgroup v1 cpuset mount (grep cpuset /proc/mounts) or a kernel "
            "without CONFIG_CPUSETS",
        )


@check(
    "cgroup.partition",
    "cpuset partitions are valid",
    means="FAIL when a cpuset.cpus.partition reads back as invalid; the kernel adds the reason.",
    why="Writing `isolated` succeeds whatever becomes of it. Only reading back tells, and an "
    "invalid partition isolates nothing.",
    prove="grep . $(find /sys/fs/cgroup -name cpuset.cpus.partition)",
    mend="See the reason in brackets; `explain` of the finding translates it.",
    source="Linux Documentation/admin-guide/cgroup-v2.rst, cpuset.cpus.partition; "
    "kernel/cgroup/cpuset.c perr_strings",
)
def partition(s: Seen) -> Iterator[Judged]:
    """Each partition file that was read."""
    files = s.matching("", "cpuset.cpus.partition")
    if not files:
        s.whole(TOP, leaf="cpuset.cpus.partition")
        raise NotApplicable("no cpuset partition was read")
    bad = False
    for path, text in files:
        if "invalid" not in text:
            continue
        bad = True
        reason = text.partition("(")[2].rstrip(")")
        group = shown(path).removesuffix("cpuset.cpus.partition").rstrip("/") or "."
        help_ = next((r for k, r in REASONS.items() if k.lower() in reason.lower()), "")
        yield fail(
            group if group != "." else "cgroup",
            f"the cpuset partition is invalid: {reason or 'the kernel gives no reason'}",
            saw(path, text),
            remedy=(help_ or "grep -H . GROUP/cpuset.* PARENT/cpuset.*")
            .replace("GROUP", group)
            .replace("PARENT", group.rpartition("/")[0] or ".."),
        )
    s.whole(TOP, leaf="cpuset.cpus.partition")
    if not bad:
        yield ok("cgroup", f"{len(files)} cpuset partitions are valid or plain members")


@check(
    "cgroup.throttled",
    "no group is held back by its CPU quota",
    means="FAIL when a group with cpu.max was throttled in more than `percent` % of its periods, "
    "WARN when it was throttled at all: groups of engines, and pasted ones. Other groups of a "
    "machine are told in one line: INFO, or WARN above `percent` % where no engine was seen, so "
    "that any of them may be the workload's.",
    why="A throttled group stands still for the rest of each 100 ms period, all threads at once: "
    "12 tokens a second became 0.3 for one user.",
    prove="cat /sys/fs/cgroup/GROUP/cpu.max /sys/fs/cgroup/GROUP/cpu.stat",
    mend="Drop the quota (echo max > cpu.max, CPUQuota= empty, no cpu limit in Kubernetes) and "
    "hold the group by its cpuset instead: without either it takes what others run on.",
    source="Linux Documentation/scheduler/sched-bwc.rst",
    bounds={"percent": 20},
)
def throttled(s: Seen) -> Iterator[Judged]:
    """cpu.stat of each group that was read."""
    files = s.matching("", "cpu.stat")
    if not files:
        s.whole(TOP, leaf="cpu.stat")
        raise NotApplicable("no cpu.stat was read")
    judged = bad = 0
    engines = [f"{p.cgroup.strip('/')}/" for p in s.snapshot.processes or ()]
    others: list[tuple[float, str, Evidence]] = []
    for path, text in files:
        rows = dict(line.split(None, 1) for line in text.splitlines() if len(line.split()) == 2)
        periods, held = rows.get("nr_periods", ""), rows.get("nr_throttled", "")
        if not periods.isdigit() or not held.isdigit():
            continue
        judged += 1
        part = 100 * int(held) / int(periods) if int(periods) else 0.0
        group = shown(path).removesuffix("/cpu.stat")
        if "/pasted/" in path and any(t == text and p != path for p, t in files):
            continue  # the same file, once more without its group
        quota = s.snapshot.texts.get(path.removesuffix("cpu.stat") + "cpu.max", "")
        evidence = [saw(path, f"nr_periods {periods}, nr_throttled {held}")]
        if quota:
            evidence.append(saw(path.removesuffix("cpu.stat") + "cpu.max", quota))
        why = _why(s, path.removesuffix("cpu.stat"), quota, rows)
        bad += int(held) > 0
        if s.snapshot.pasted is None and not any(e.startswith(_folder(path)) for e in engines):
            if int(held):
                others.append((part, group, evidence[0]))
            continue
        if part > s.bounds["percent"]:
            yield fail(
                group,
                f"throttled in {part:.0f} % of its periods ({held} of {periods}){why}",
                *evidence,
                remedy=f"echo max > {group}/cpu.max  # drop the quota, and limit the group by its "
                "cpuset",
            )
        elif int(held):
            yield warn(
                group,
                f"throttled in {part:.3g} % of its periods ({held} of {periods}){why}",
                *evidence,
                remedy=f"echo max > {group}/cpu.max  # or a larger quota; a cpuset throttles "
                "nothing",
            )
    s.whole(TOP, leaf="cpu.stat")
    if others:
        yield _others(others, judged, loud=not engines and max(others)[0] > s.bounds["percent"])
    if not judged:
        raise NotApplicable("no cpu.stat tells of a quota")
    if not bad:
        yield ok("cgroup", f"{judged} groups with a quota were never held back")


def _folder(path: str) -> str:
    """The group's folder below its tree, `a/b/`; version 1 has a tree for each controller."""
    folder = path.removeprefix(f"{TOP}/").removesuffix("cpu.stat")
    tree, _, below = folder.partition("/")
    return below if tree in ("cpu", "cpu,cpuacct", "unified") else folder


def _others(others: list[tuple[float, str, Evidence]], judged: int, *, loud: bool) -> Judged:
    """Groups that hold no engine, in one line: the worst first."""
    worst = sorted(others, key=lambda o: (-o[0], o[1]))
    sentence = (
        f"{len(others)} of {judged} groups with a quota were throttled: "
        f"{some((f'{group} in {part:.0f} % of its periods' for part, group, _ in worst), 3)}"
    )
    evidence = [e for _, _, e in worst[:3]]
    if not loud:
        return info("cgroup", sentence, *evidence)
    return warn(
        worst[0][1],
        sentence,
        *evidence,
        remedy=f"systemd-cgls {worst[0][1]}  # whose it is; if it is a workload: echo max > "
        f"{worst[0][1]}/cpu.max, and limit it by its cpuset",
    )


def _why(s: Seen, group: str, quota: str, rows: dict[str, str]) -> str:
    """What the quota means beside the cpuset, and how long the group stood still."""
    said = ""
    words = quota.split()
    if words and words[0].isdigit():
        period = int(words[1]) if len(words) > 1 and words[1].isdigit() else 100_000
        limit = int(words[0]) / period if period else 0.0
        said = f": the quota is {limit:g} CPUs"
        cpus = s.snapshot.texts.get(f"{group}cpuset.cpus.effective", "")
        try:
            if cpus and len(CpuSet.parse(cpus)) <= limit:
                said += f" and so is the cpuset ({cpus}), so threads that spin use it up"
        except ParseError:
            pass
    for key, scale in (("throttled_usec", 1e6), ("throttled_time", 1e9)):
        if rows.get(key, "").isdigit() and int(rows[key]):
            said += f"; {int(rows[key]) / scale:.1f} s of standing still, summed over CPUs"
    return said
