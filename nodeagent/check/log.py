"""What log lines and error outputs say of isolation, interrupts, groups, pinning, memory and feeds:
one check a topic, over the lines that the paste reader knows."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check.logtext import MEANINGS, Meaning
from nodeagent.check.pinning import group_cpus
from nodeagent.check.record import Check, Judged, NotApplicable, Seen, check, saw, some
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.finding import Verdict
from nodeagent.model.hostreport import Said, ThreadState


class _Values(dict[str, str]):
    """Values of a line for its sentence; one that the line left out reads "?"."""

    def __missing__(self, key: str) -> str:
        return "?"


def meaning(said: Said) -> Meaning | None:
    """What a line means: by kind and error, else by kind."""
    error = said.values.get("error", "").lower()
    return MEANINGS.get(f"{said.kind}: {error}") or MEANINGS.get(said.kind)


def _judged(s: Seen, topic: str) -> Iterator[Judged]:
    if s.snapshot.pasted is None:
        raise NotApplicable("nothing was pasted")
    lines = [x for x in s.snapshot.pasted.of(Said) if x.kind.startswith(topic + "/")]
    groups: dict[str, list[Said]] = {}
    for line in lines:
        what = meaning(line)
        if what is not None:
            groups.setdefault(what.sentence.format_map(_Values(line.values)), []).append(line)
    if not groups:
        raise NotApplicable("no pasted line tells of it")
    for sentence, found in groups.items():
        what = meaning(found[0])
        if what is None:
            continue
        values = _Values(found[0].values)
        times = f" ({len(found)} lines)" if len(found) > 1 else ""
        evidence = [saw(x.source, x.line) for x in found[:3]]
        remedy = what.remedy.format_map(values)
        allowed = _allowed(s) if found[0].kind == "pinning/setaffinity" else None
        if allowed is not None:
            evidence.append(saw(allowed[1], str(allowed[0])))
            remedy = f"taskset -c {allowed[0]} COMMAND  (name CPUs of {allowed[0]} only)"
        yield Judged(
            verdict=what.verdict,
            subject=what.subject.format_map(values),
            message=sentence + times,
            evidence=tuple(evidence),
            remedy=remedy,
        )


def _allowed(s: Seen) -> tuple[CpuSet, str] | None:
    """The CPUs that a pasted process or group may use, and where they stand."""
    group = group_cpus(s)
    if group is not None or s.snapshot.pasted is None:
        return group
    return next(
        ((t.allowed, t.source) for t in s.snapshot.pasted.of(ThreadState) if t.allowed), None
    )


def _topic(topic: str, title: str, why: str, prove: str, source: str) -> Check:
    mine = [(k, m) for k, m in MEANINGS.items() if k.startswith(topic + "/")]
    worst = {v: [k.partition("/")[2] for k, m in mine if m.verdict is v] for v in Verdict}

    @check(
        f"{topic}.log",
        title,
        means="Judges pasted logs and error outputs line by line. "
        + "; ".join(
            f"{v.value}: {some(sorted(set(worst[v])), 30)}"
            for v in (Verdict.FAIL, Verdict.WARN, Verdict.INFO)
            if worst[v]
        )
        + ".",
        why=why,
        prove=prove,
        mend="Each finding carries its own remedy.",
        source=source,
    )
    def run(s: Seen) -> Iterator[Judged]:
        yield from _judged(s, topic)

    return run


isolation = _topic(
    "isolation", "the kernel log does not speak against the isolation",
    "The kernel drops an argument it cannot use with one line and boots on.",
    "dmesg | grep -iE 'isolcpus|nohz|housekeeping|throttl'",
    "Linux kernel/sched/isolation.c, kernel/time/tick-sched.c, kernel/sched/rt.c",
)  # fmt: skip
irq = _topic(
    "irq", "interrupts could be moved where they were asked to go",
    "A refused write leaves the interrupt where it was, often on the pinned CPU.",
    "dmesg | grep -iE 'irq|vector'; cat /proc/irq/N/effective_affinity_list",
    "Linux kernel/irq/manage.c, arch/x86/kernel/apic/vector.c; irqbalance activate.c",
)  # fmt: skip
cgroup = _topic(
    "cgroup", "control groups took the CPUs and nodes they were given",
    "systemd and container runtimes log a refused cpuset and go on: the group keeps its old one.",
    "journalctl -b | grep -iE 'cpuset|cgroup|CPUAFFINITY'",
    "Linux kernel/cgroup/cpuset.c validate_change(); systemd src/core/cgroup.c",
)  # fmt: skip
pinning = _topic(
    "pinning", "binding calls succeeded",
    "Most programs print one warning and run unbound; some die.",
    "strace -f -e trace=sched_setaffinity,set_mempolicy,mbind CMD; "
    "grep allowed_list /proc/self/status",
    "numactl(8), set_mempolicy(2), sched_setaffinity(2), OpenMP runtimes of GCC and LLVM",
)  # fmt: skip
memory = _topic(
    "memory", "huge pages and locked memory were there when asked for",
    "A data plane without huge pages on its node does not start, or starts on remote memory.",
    "grep . /sys/devices/system/node/node*/hugepages/hugepages-*/*_hugepages; ulimit -l",
    "DPDK lib/eal/linux; Linux mm/hugetlb.c; DPDK Linux guide, 'Use of Hugepages'",
)  # fmt: skip
shm = _topic(
    "shm", "shared memory could be allocated",
    "tmpfs gives pages when they are touched: ftruncate() succeeds, and the touch kills the "
    "process with SIGBUS.",
    "df -h /dev/shm; ls -l /dev/shm",
    "Linux Documentation/filesystems/tmpfs.rst; NCCL src/misc/shmutils.cc",
)  # fmt: skip
feed = _topic(
    "feed", "sockets, XDP programs and clocks of the feed were set up",
    "A feed that falls back to copy mode or to software time stamps says so once, at start.",
    "dmesg; journalctl -u ptp4l; xdp-loader status",
    "Linux Documentation/networking/af_xdp.rst, timestamping.rst; linuxptp ptp4l(8)",
)  # fmt: skip
