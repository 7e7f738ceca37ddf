"""Who holds a process's CPUs: its systemd unit, its container's runtime, a cpuset of ours, or each
thread's own mask. Pure; every choice comes with its sentence.

The best holder is the one that owns the process's cgroup already: it keeps the value over a reload
and for children. A cgroup holds all that is in it, so it is chosen only where all of that belongs
to one workload; else each thread is pinned. What a kubelet or a batch system owns is left alone
(model/managers.py).
Source: docs/adr/0021.
"""

from __future__ import annotations

import bisect
import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from nodeagent.model.cgroup import unit_of
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.managers import manager_of
from nodeagent.model.placement import Consent, ProcessState


class Holder(enum.StrEnum):
    """What holds a process's CPUs."""

    UNIT = "unit"
    CONTAINER = "container"
    CPUSET = "cpuset"
    THREADS = "threads"
    NOBODY = "nobody"
    """It is somebody else's, or no class of consent reaches it: left as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What this host offers to hold processes with."""

    version: int | None = None
    """Of the cgroup hierarchy that has the cpuset controller; None: neither has it, or unknown."""
    systemd: bool = False
    """Whether systemd is process 1, and its bus is there."""
    controller: bool = False
    """v2: whether the root gives the cpuset controller to its children already."""
    runtimes: frozenset[str] = frozenset()
    """Container runtimes that [pin] runtimes consents to call."""
    isolating: frozenset[str] = frozenset()
    """Workloads that want isolated CPUs, where partitions are what isolates on this node."""
    partitions: Mapping[str, CpuSet] = field(default_factory=dict)
    """Name -> CPUs of the isolated partitions /nodeagent.NAME that are valid now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """The holder of one process. `subject`: the unit, or RUNTIME:ID of the container, or ""."""

    holder: Holder
    reason: str
    subject: str = ""
    workload: str = ""

    @property
    def worth_telling(self) -> bool:
        """Whether the sentence says more than the class of the act."""
        return self.reason != OURS and not self.reason.endswith(NO_CGROUP)


class Hosts:
    """The processes of a host, to be found by their cgroup."""

    def __init__(self, processes: Iterable[ProcessState]) -> None:
        self._given = processes
        self._sorted: list[ProcessState] = []
        self._paths: list[str] = []

    def below(self, path: str) -> Sequence[ProcessState]:
        """Those in a cgroup and in those below it."""
        if not self._paths:
            self._sorted = sorted(self._given, key=lambda p: (_folder(p.cgroup), p.pid))
            self._paths = [_folder(p.cgroup) for p in self._sorted]
        first = _folder(path)
        low = bisect.bisect_left(self._paths, first)
        # "0" follows "/": the first path that does not begin so.
        high = bisect.bisect_left(self._paths, f"{first[:-1]}0")
        return self._sorted[low:high]


def _folder(path: str) -> str:
    return f"{path.rstrip('/')}/"


NO_CGROUP = "[pin] allow does not name cgroup"
OURS = "held by a cpuset of its own below /nodeagent"
_SESSION = re.compile(r"session-[^/]*\.scope|user@\d+\.service|init\.scope")
_USERS_OWN = re.compile(r"/user@\d+\.service/")
"""Below it a user's own systemd names the units, and a runtime without root the containers."""


def holder(
    process: ProcessState,
    mine: AbstractSet[int],
    processes: Hosts,
    consents: AbstractSet[Consent],
    facts: Facts | None,
) -> Hold:
    """Who is to hold a process. `mine`: the pids of its workload; `processes`: the host's.

    `facts` None: nothing is known of the host.
    """
    owner = _owner(process)
    if owner is not None:
        return owner
    if Consent.CGROUP not in consents:
        return _threads(consents, NO_CGROUP)
    if facts is None:
        return Hold(holder=Holder.CPUSET, reason=OURS)
    if process.container is not None:
        return _container(process, mine, processes, consents, facts)
    unit = unit_of(process.cgroup)
    if facts.version == 2 and facts.systemd and unit is not None:
        return _unit(process, unit, mine, processes, consents, facts)
    if facts.version == 1 or (facts.version == 2 and facts.controller and unit is None):
        return Hold(holder=Holder.CPUSET, reason=OURS)
    if facts.version != 2:
        why = "the cpuset controller is not to be had"
    elif facts.controller:
        why = f"{unit} is a unit's, and systemd is not process 1 here"
    else:
        why = "it is off"
    return _threads(consents, f"no cpuset holds it: {why}")


def _owner(process: ProcessState) -> Hold | None:
    """A kubelet or a batch system places what is its own, and undoes what others write there."""
    manager = manager_of(process.cgroup)
    if manager is None:
        return None
    return Hold(
        holder=Holder.NOBODY,
        reason=f"{manager.name} owns {process.cgroup}: {manager.instead}",
    )


def _container(
    process: ProcessState,
    mine: AbstractSet[int],
    processes: Hosts,
    consents: AbstractSet[Consent],
    facts: Facts,
) -> Hold:
    assert process.container is not None
    box = process.container
    name = f"container {box.name or box.id[:12]}"
    if _USERS_OWN.search(box.cgroup):
        return _threads(consents, f"{name} belongs to a user's own runtime, which root's is not")
    if not box.runtime or box.runtime not in facts.runtimes:
        which = box.runtime or "a runtime that its cgroup does not name"
        return _threads(consents, f"{name} is of {which}, which [pin] runtimes does not name")
    stranger = _stranger(box.cgroup, mine, processes)
    if stranger is not None:
        return _threads(consents, f"{name} holds {_named(stranger)} too, of no such workload")
    return Hold(
        holder=Holder.CONTAINER,
        subject=f"{box.runtime}:{box.id}",
        reason=f"held by its {name}: {box.runtime} update --cpuset-cpus",
    )


def _unit(
    process: ProcessState,
    unit: str,
    mine: AbstractSet[int],
    processes: Hosts,
    consents: AbstractSet[Consent],
    facts: Facts,
) -> Hold:
    if _SESSION.fullmatch(unit):
        return _threads(consents, f"{unit} is a login's or the host's own")
    path = process.cgroup
    if _USERS_OWN.search(path):
        # The system's unit of that name, if there is one, is another.
        return _threads(consents, f"{unit} belongs to a user's own systemd, not to the system's")
    top = path[: f"{path}/".index(f"/{unit}/") + len(unit) + 1]
    stranger = _stranger(top, mine, processes)
    if stranger is not None:
        return _threads(
            consents, f"its unit {unit} holds {_named(stranger)} too, of no such workload"
        )
    if not facts.controller and Consent.HOST not in consents:
        return _threads(
            consents,
            "the cpuset controller is off, and turning it on for its unit resets affinities on "
            "the whole host before Linux 6.2, for which [pin] allow does not name host",
        )
    return Hold(holder=Holder.UNIT, subject=unit, reason=f"held by its unit {unit}: AllowedCPUs=")


def _stranger(path: str, mine: AbstractSet[int], processes: Hosts) -> ProcessState | None:
    """A process in that cgroup, or below it, that is none of the workload's."""
    return next((p for p in processes.below(path) if p.pid not in mine), None)


def _named(process: ProcessState) -> str:
    return f"{process.comm} ({process.pid})"


def _threads(consents: AbstractSet[Consent], why: str) -> Hold:
    if Consent.THREADS not in consents:
        return Hold(
            holder=Holder.NOBODY,
            reason=f"left as it is: {why}; and [pin] allow does not name threads",
        )
    return Hold(holder=Holder.THREADS, reason=f"held thread by thread: {why}")
