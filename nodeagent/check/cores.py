"""cpu: cores that are not all alike, and how they are numbered."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodeagent.check.isolation import quiet
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
from nodeagent.model.cpuset import CpuSet

CPU = "sys/devices/system/cpu"
P_CORES, E_CORES = "sys/devices/cpu_core/cpus", "sys/devices/cpu_atom/cpus"


def _by_value(s: Seen, leaf: str) -> dict[int, CpuSet]:
    """CPUs by the number in a file of each. Raises Missing for damage."""
    s.whole(f"{CPU}/cpu", leaf=leaf.rpartition("/")[2])
    found: dict[int, set[int]] = {}
    for path, text in s.matching(f"{CPU}/cpu", f"/{leaf}"):
        m = re.fullmatch(rf"{CPU}/cpu(\d+)/{leaf}", path)
        if m is None:
            continue
        if not text.isdigit():
            raise Missing(path, f"saw {text[:40]!r}, expected a number", READ_BY_HAND)
        found.setdefault(int(text), set()).add(int(m[1]))
    return {value: CpuSet.of(ids) for value, ids in sorted(found.items())}


def _by_policy(s: Seen) -> dict[int, CpuSet]:
    """CPUs by their guaranteed frequency in kHz, as each frequency policy tells both."""
    s.whole(f"{CPU}/cpufreq", leaf="base_frequency")
    s.whole(f"{CPU}/cpufreq", leaf="affected_cpus")
    found: dict[int, CpuSet] = {}
    for path, text in s.matching(f"{CPU}/cpufreq/policy", "/base_frequency"):
        cpus = s.snapshot.texts.get(path.replace("base_frequency", "affected_cpus"), "")
        if not text.isdigit():
            raise Missing(path, f"saw {text[:40]!r}, expected kHz", READ_BY_HAND)
        ids = [int(word) for word in cpus.split() if word.isdigit()]
        found[int(text)] = found.get(int(text), CpuSet()) | CpuSet.of(ids)
    return dict(sorted(found.items()))


@check(
    "cpu.hybrid",
    "latency-critical CPUs are cores of one kind",
    means="WARN when the isolated CPUs mix performance and efficiency cores (Intel hybrid, ARM "
    "big.LITTLE), or are efficiency cores only. INFO names the kinds when nothing is isolated. NA "
    "where all cores are of one kind.",
    why="An efficiency core runs the same loop at a half to a third of the speed; a pool that has "
    "one waits for it.",
    prove="cat /sys/devices/cpu_core/cpus /sys/devices/cpu_atom/cpus; grep . "
    "/sys/devices/system/cpu/cpu*/cpu_capacity",
    mend="Isolate performance cores only, and leave the efficiency cores to the system.",
    source="Linux Documentation/ABI/testing/sysfs-devices-system-cpu, cpu_capacity; "
    "drivers of PMUs cpu_core and cpu_atom (perf-intel-hybrid)",
)
def hybrid(s: Seen) -> Iterator[Judged]:
    """Kinds of cores against the isolated set."""
    capacity = _by_value(s, "cpu_capacity")
    if P_CORES in s.snapshot.texts or s.snapshot.why_unread(P_CORES):
        fast = s.cpus(P_CORES, absent="")
        slow = s.cpus(E_CORES, absent="no efficiency cores are here")
        seen = saw(E_CORES, str(slow))
    elif capacity and min(capacity) * 100 < max(capacity) * 85:
        # A few percent are how chips are graded; another kind of core is far slower.
        fast = CpuSet.of(
            c for v, ids in capacity.items() if v * 100 >= max(capacity) * 85 for c in ids
        )
        slow = CpuSet.of(
            c for v, ids in capacity.items() if v * 100 < max(capacity) * 85 for c in ids
        )
        seen = saw(f"{CPU}/cpu{min(slow.ids)}/cpu_capacity", str(min(capacity)))
    else:
        raise NotApplicable("all cores are of one kind, as far as the kernel tells")
    if not slow or not fast:
        raise NotApplicable("all cores are of one kind")
    try:
        cpus, (path, text) = quiet(s)
    except NotApplicable:
        yield info(
            f"cpu {slow}",
            f"CPUs {slow} are slower cores than {fast}: keep latency-critical threads on {fast}",
            seen,
        )
        return
    if both := cpus & slow:
        yield warn(
            f"cpu {both}",
            f"of the isolated CPUs {cpus}, CPUs {both} are efficiency cores",
            saw(path, text),
            seen,
            remedy=f"isolcpus={(cpus & fast) or fast}  # and nohz_full=, rcu_nocbs= alike",
        )
    else:
        yield ok(f"cpu {cpus}", "the isolated CPUs are performance cores", seen)


@check(
    "cpu.priority-cores",
    "the fastest cores are given to the latency-critical job",
    means="INFO when some cores reach a higher frequency than others (SST-BF base frequency, CPPC "
    "highest performance) and isolated CPUs are not among them. NA where all cores are alike or "
    "nothing is isolated.",
    why="A single busy loop runs 5 to 20 % faster there; the system's own threads do not need it.",
    prove="grep . /sys/devices/system/cpu/cpu*/acpi_cppc/highest_perf "
    "/sys/devices/system/cpu/cpufreq/policy*/base_frequency",
    mend="Isolate cores of the fast group.",
    source="Linux Documentation/admin-guide/pm/intel-speed-select.rst, SST-BF; "
    "Documentation/admin-guide/acpi/cppc_sysfs.rst, highest_perf",
)
def priority_cores(s: Seen) -> Iterator[Judged]:
    """Speed groups against the isolated set."""
    cpus, (path, text) = quiet(s)
    for leaf in ("base_frequency", "highest_perf"):
        groups = _by_policy(s) if leaf == "base_frequency" else _by_value(s, f"acpi_cppc/{leaf}")
        # A few steps of difference are how chips are graded; 5 % is a group.
        if len(groups) < 2 or max(groups) * 100 < min(groups) * 105:
            continue
        top = CpuSet.of(
            c for value, ids in groups.items() if value * 105 > max(groups) * 100 for c in ids
        )
        other = cpus - top
        files = [p for p, value in s.matching(CPU, f"/{leaf}") if value == str(max(groups))]
        seen = saw(files[0], str(max(groups)))
        if other:
            yield info(
                f"cpu {other}",
                f"CPUs {top} are the fastest; the isolated CPUs {other} are not among them",
                seen,
                saw(path, text),
                remedy=f"isolcpus={top - CpuSet.of((0,))}  # choose among these",
            )
        else:
            yield ok(f"cpu {cpus}", "the isolated CPUs are the fastest cores", seen)
        return
    raise NotApplicable("all cores reach the same frequency, as far as the kernel tells")


@check(
    "cpu.numbering",
    "CPU lists fit how this machine numbers its CPUs",
    means="WARN when the isolated CPUs would be whole cores if siblings were numbered the other "
    "way (n and n+1, or n and n+cores) and are not: the list was made for another machine. INFO "
    "when CPU numbers alternate between nodes, so that each range takes CPUs of every node. NA "
    "without isolation.",
    why="Numbering differs by vendor, BIOS version and SMT state; a list copied from another model "
    "isolates halves of cores on both sockets.",
    prove="lscpu -e=CPU,CORE,SOCKET,NODE",
    mend="Write the list from lscpu -e of this machine, or let nodeagentctl place boot --plan "
    "compute it.",
    source="Linux Documentation/admin-guide/cputopology.rst, thread_siblings_list",
)
def numbering(s: Seen) -> Iterator[Judged]:
    """The isolated list under both numberings, and against the nodes' lists."""
    cpus, (path, text) = quiet(s)
    cores = s.snapshot.topology.cores
    if not cores:
        raise s.gone(f"{CPU}/cpu0/topology/thread_siblings_list", "no sibling lists are there")
    online = s.snapshot.topology.online
    pairs = [c for c in cores if len(c) == 2]
    split = [c for c in cores if c & cpus and c - cpus]
    half = len(online) // 2
    if pairs and split and len(pairs) == len(cores):
        adjacent = all(max(c.ids) - min(c.ids) == 1 for c in pairs)
        other = CpuSet.of(
            x
            for c in cpus
            for x in (c, (c + half if c < half else c - half) if adjacent else c ^ 1)
        )
        if other == cpus:
            here = "n and n+1" if adjacent else f"n and n+{max(pairs[0].ids) - min(pairs[0].ids)}"
            there = f"n and n+{half}" if adjacent else "n and n+1"
            whole = CpuSet.of(x for c in cores if c & cpus for x in c)
            yield warn(
                f"cpu {cpus}",
                f"siblings are numbered {here} here; the list {cpus} fits a machine that numbers "
                f"them {there}",
                saw(path, text),
                saw(f"{CPU}/cpu{min(pairs[0].ids)}/topology/thread_siblings_list", str(pairs[0])),
                remedy=f"isolcpus={whole}  # and nohz_full=, rcu_nocbs= alike; then reboot",
            )
            return
    nodes = [n for n in s.cpu_nodes if n.cpus]
    runs = [len(str(n.cpus).split(",")) for n in nodes]
    mixed = [n.id for n in nodes if n.cpus & cpus]
    if len(nodes) > 1 and min(runs) > 4 and len(mixed) > 1:
        yield info(
            f"cpu {cpus}",
            f"CPU numbers alternate between nodes here: {cpus} takes CPUs of nodes {some(mixed)}",
            saw(path, text),
            saw(f"sys/devices/system/node/node{nodes[0].id}/cpulist", str(nodes[0].cpus)),
            remedy=f"isolcpus={nodes[0].cpus & cpus}  # one node's share, written as strides",
        )
    else:
        yield ok(f"cpu {cpus}", "the list fits the numbering of this machine", saw(path, text))
