"""cgroup: what a group was given, and whether it is what it asked for."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check.record import Judged, NotApplicable, Seen, check, ok, saw, shown, warn
from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet

TOP = "sys/fs/cgroup"


def _parsed(text: str | None) -> CpuSet | None:
    try:
        return None if text is None else CpuSet.parse(text)
    except ParseError:
        return None


def _groups(s: Seen, file: str) -> Iterator[tuple[str, str, CpuSet]]:
    """(group's folder, text, its set) of each file of that name that names anything."""
    for path, text in s.matching("", f"/{file}"):
        cpus = _parsed(text)
        if cpus:
            yield path[: -len(file) - 1], text, cpus


def _partitions_below(s: Seen, group: str) -> CpuSet:
    """CPUs that partitions below a group have taken out of it."""
    taken = CpuSet()
    for path, text in s.matching(f"{group}/", "/cpuset.cpus.partition"):
        if text in ("root", "isolated"):
            below = path.removesuffix("cpuset.cpus.partition")
            texts = s.snapshot.texts
            taken |= _parsed(texts.get(f"{below}cpuset.cpus.exclusive.effective")) or CpuSet()
            taken |= _parsed(texts.get(f"{below}cpuset.cpus.effective")) or CpuSet()
    return taken


@check(
    "cgroup.effective",
    "groups have the CPUs they asked for",
    means="WARN when cpuset.cpus of a group names CPUs that are not in its cpuset.cpus.effective "
    "and that no partition below it has taken.",
    why="The kernel accepts CPUs that the parent does not have, or that are offline, and leaves "
    "them out without a word; the workload then shares fewer CPUs than its configuration says. A "
    "daemon-reload or a new partition beside it does the same to a running group.",
    prove="grep -H . /sys/fs/cgroup/GROUP/cpuset.cpus{,.effective}",
    mend="Give the missing CPUs to every parent up to the root (cpuset.cpus, AllowedCPUs=), bring "
    "them online, or take them out of a sibling partition.",
    source="Linux Documentation/admin-guide/cgroup-v2.rst, cpuset.cpus.effective",
)
def effective(s: Seen) -> Iterator[Judged]:
    """What each group asked for against what it has."""
    judged = short = 0
    for group, text, asked in _groups(s, "cpuset.cpus"):
        path = f"{group}/cpuset.cpus.effective"
        found = s.snapshot.texts.get(path)
        if found is None:
            # Version 1 has another name for it.
            path = f"{group}/cpuset.effective_cpus"
            found = s.snapshot.texts.get(path)
        have = _parsed(found)
        if have is None:
            s.whole(path)
            s.whole(f"{group}/cpuset.cpus.effective")
            continue
        judged += 1
        lost = asked - have - _partitions_below(s, group)
        if not lost:
            continue
        short += 1
        offline = lost - s.snapshot.topology.online if s.snapshot.topology.online else CpuSet()
        why = f" ({offline} offline)" if offline else ""
        yield warn(
            shown(group),
            f"it asked for CPUs {text} and has {have}: CPUs {lost} are missing{why}",
            saw(f"{group}/cpuset.cpus", text),
            saw(path, str(have)),
            remedy=f"grep -H . {shown(group.rpartition('/')[0])}/cpuset.cpus*  # each parent needs "
            f"{lost}; a sibling partition may hold them",
        )
    for leaf in ("cpuset.cpus", "cpuset.effective_cpus"):
        s.whole(TOP, leaf=leaf)
    if not judged:
        raise NotApplicable("no group names its CPUs")
    if not short:
        yield ok("cgroup", f"{judged} groups have the CPUs they asked for")


@check(
    "cgroup.mems",
    "groups have memory where their CPUs are",
    means="WARN when a group's CPUs are all on nodes that its cpuset.mems leaves out, although "
    "those nodes have memory. Needs two nodes with CPUs.",
    why="Every page of every process in the group is then remote: 1.5 to 2 times the latency, and "
    "the interconnect's bandwidth for all of them together.",
    prove="grep -H . /sys/fs/cgroup/GROUP/cpuset.{cpus,mems}.effective; numactl -H",
    mend="Write the CPUs' node into cpuset.mems (AllowedMemoryNodes=), or give it CPUs there.",
    source="Linux Documentation/admin-guide/cgroup-v2.rst, cpuset.mems",
)
def mems(s: Seen) -> Iterator[Judged]:
    """Nodes of each group's CPUs against its memory nodes."""
    nodes = s.nodes()
    if len(s.cpu_nodes) < 2:
        raise NotApplicable("one NUMA node has CPUs")
    judged = far = 0
    for group, text, memory in _groups(s, "cpuset.mems"):
        cpus = _parsed(s.snapshot.texts.get(f"{group}/cpuset.cpus.effective")) or _parsed(
            s.snapshot.texts.get(f"{group}/cpuset.cpus")
        )
        if not cpus:
            continue
        judged += 1
        own = [n for n in nodes if n.cpus & cpus and n.memory_bytes]
        if own and not any(n.id in memory for n in own):
            far += 1
            yield warn(
                shown(group),
                f"its CPUs {cpus} are on node {', '.join(str(n.id) for n in own)}, its memory "
                f"comes from node {text} only",
                saw(f"{group}/cpuset.mems", text),
                saw(f"{group}/cpuset.cpus.effective", str(cpus)),
                remedy=f"echo {own[0].id} > {shown(group)}/cpuset.mems  # this moves its "
                "pages: the group stalls meanwhile",
            )
    for leaf in ("cpuset.cpus", "cpuset.mems"):
        s.whole(TOP, leaf=leaf)
    if not judged:
        raise NotApplicable("no group names its memory nodes")
    if not far:
        yield ok("cgroup", f"{judged} groups have memory where their CPUs are")
