"""Which CPUs and memory nodes a workload's control group lets it use, and who holds others. Pure.

A partition takes its CPUs away from every group beside it, so what somebody else's holds is
nobody's to give; what a group may use is the `effective` list of the nearest group that has one.

Source: Documentation/admin-guide/cgroup-v2.rst, "Cpuset"; cgroup-v1/cpusets.rst.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import PARTITION_ROOT, ProcessState, Workload
from nodeagent.model.snapshot import Snapshot
from nodeagent.place.diff import CPUSET_ROOT
from nodeagent.place.match import matching

TOP = "sys/fs/cgroup"
_CPUS = ("cpuset.cpus.effective", "cpuset.effective_cpus")
_MEMS = ("cpuset.mems.effective", "cpuset.effective_mems")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A set that something limits a workload to, and the file that says so."""

    allowed: CpuSet
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A cpuset partition that is in force."""

    cgroup: str
    cpus: CpuSet
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What a workload's groups let it use. None: everything."""

    cpus: Bound | None = None
    mems: Bound | None = None
    partition: str | None = None
    """The partition that its group is in; None: in none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroups:
    """The tree, as far as it bounds anybody. Paths are as in /proc/PID/cgroup, the root is "/"."""

    cpus: Mapping[str, Bound] = field(default_factory=dict)
    mems: Mapping[str, Bound] = field(default_factory=dict)
    partitions: tuple[Partition, ...] = ()
    written: Mapping[str, CpuSet] = field(default_factory=dict)
    """Workload -> the CPUs that we set for its unit or container ourselves: such a list follows
    the plan and does not bound it."""
    isolating: frozenset[str] = frozenset()
    """Workloads that want a partition of ours. What we made for another one, that wants it no
    more, holds its CPUs as a stranger's does, until it is released."""

    def is_ours(self, cgroup: str) -> bool:
        """Whether that group is one of our own: a cpuset, or a partition (pin/partition.py)."""
        return f"{cgroup}/".startswith((f"{CPUSET_ROOT}/", f"{CPUSET_ROOT}."))

    @property
    def foreign(self) -> tuple[Partition, ...]:
        """Partitions of others, and those of ours that no workload wants any more."""
        wanted = {f"{PARTITION_ROOT}{name}" for name in self.isolating}
        return tuple(
            p
            for p in self.partitions
            if not self.is_ours(p.cgroup)
            or (p.cgroup.startswith(PARTITION_ROOT) and p.cgroup not in wanted)
        )

    @property
    def hidden(self) -> Bound | None:
        """What the root of the tree that we see may use, with what its partitions took; None: not
        told."""
        top = self.cpus.get("/")
        if top is None:
            return None
        allowed = top.allowed
        for p in self.partitions:
            allowed |= p.cpus
        return Bound(allowed=allowed, file=top.file)

    def limit(self, cgroup: str, workload: str) -> Limit:
        """Of a workload's process in that group."""
        inside = next((p.cgroup for p in self.foreign if _below(cgroup, p.cgroup)), None)
        cpus = self._nearest(self.cpus, cgroup, self.written.get(workload))
        if cpus is not None and workload in self.isolating:
            # A process that was started anew is outside yet, where its partition's CPUs are gone.
            mine = f"{PARTITION_ROOT}{workload}"
            for own in (p.cpus for p in self.partitions if p.cgroup == mine):
                cpus = replace(cpus, allowed=cpus.allowed | own)
        return Limit(
            cpus=cpus,
            mems=self._nearest(self.mems, cgroup, None),
            partition=inside,
        )

    def _nearest(
        self, table: Mapping[str, Bound], cgroup: str, written: CpuSet | None
    ) -> Bound | None:
        """The list of the nearest group that has one; named by the highest with the same list."""
        path = cgroup.rstrip("/")
        while path and (self.is_ours(path) or path not in table or table[path].allowed == written):
            path = path.rpartition("/")[0]
        if not path:
            return None
        found = table[path]
        while True:
            path = path.rpartition("/")[0]
            above = table.get(path)
            if not path or above is None or above.allowed != found.allowed:
                return found
            found = above


def _below(cgroup: str, top: str) -> bool:
    return f"{cgroup}/".startswith(f"{top.rstrip('/')}/")


NOTHING: Mapping[str, CpuSet] = {}
NO_LIMITS = Cgroups()
NOBODY: frozenset[str] = frozenset()


def cgroups_of(
    snapshot: Snapshot,
    written: Mapping[str, CpuSet] = NOTHING,
    isolating: frozenset[str] = NOBODY,
) -> Cgroups:
    """From the snapshot's settings. `written`, `isolating`: as in Cgroups."""
    texts = snapshot.texts
    top = f"{TOP}/cpuset" if any(t.startswith(f"{TOP}/cpuset/") for t in texts) else TOP
    if f"{TOP}/unified/cgroup.controllers" in texts and top == TOP:
        top = f"{TOP}/unified"
    cpus: dict[str, Bound] = {}
    mems: dict[str, Bound] = {}
    partitions: list[Partition] = []
    for path, text in texts.items():
        if not path.startswith(f"{top}/cpuset.") and not path.startswith(f"{top}/"):
            continue
        folder, _, name = path.rpartition("/")
        cgroup = folder[len(top) :] or "/"
        if name in _CPUS or name in _MEMS:
            listed = _parsed(text)
            if listed is not None:
                table = cpus if name in _CPUS else mems
                table[cgroup] = Bound(allowed=listed, file=f"/{path}")
        elif name == "cpuset.cpus.partition" and text in ("root", "isolated") and cgroup != "/":
            held = CpuSet()
            for part in ("cpuset.cpus.effective", "cpuset.cpus.exclusive.effective"):
                held |= _parsed(texts.get(f"{folder}/{part}", "")) or CpuSet()
            partitions.append(Partition(cgroup=cgroup, cpus=held, file=f"/{path}"))
    partitions.sort(key=lambda p: p.cgroup)
    return Cgroups(
        cpus=cpus,
        mems=mems,
        partitions=tuple(partitions),
        written=written,
        isolating=isolating,
    )


def _parsed(text: str) -> CpuSet | None:
    try:
        return CpuSet.parse(text)
    except ParseError:
        return None


def limit_of(cgroups: Cgroups, workload: Workload, processes: Sequence[ProcessState]) -> Limit:
    """What all of a workload's processes may use; of one that has none, what its group may."""
    if not cgroups.cpus and not cgroups.mems:
        return Limit()
    groups = dict.fromkeys(p.cgroup for p in matching(workload.match, processes))
    if not groups:
        groups = dict.fromkeys(_named(cgroups, workload))
    limits = [cgroups.limit(g, workload.name) for g in groups]
    return Limit(
        cpus=_narrowest([x.cpus for x in limits]),
        mems=_narrowest([x.mems for x in limits]),
        partition=next((x.partition for x in limits if x.partition is not None), None),
    )


def _named(cgroups: Cgroups, workload: Workload) -> list[str]:
    """The one group that the match names, if it stands already."""
    match = workload.match
    found = [
        g
        for g in cgroups.cpus
        if (match.cgroup is not None and g == match.cgroup)
        or (match.unit is not None and fnmatchcase(g.rpartition("/")[2], match.unit))
    ]
    return found if len(found) == 1 else []


def _narrowest(bounds: Sequence[Bound | None]) -> Bound | None:
    """What all allow; the file is that of the smallest."""
    told = [b for b in bounds if b is not None]
    if not told:
        return None
    allowed = told[0].allowed
    for b in told:
        allowed &= b.allowed
    return Bound(allowed=allowed, file=min(told, key=lambda b: (len(b.allowed), b.file)).file)
