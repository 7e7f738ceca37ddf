"""The CPUs that stay with the system: never empty, whoever asks. Pure."""

from __future__ import annotations

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.topology import Topology

SMALL_PUS = 6
"""Below this many online PUs nothing is exclusive: one shared pool."""

NOBODY = CpuSet()


def housekeeping_of(
    topology: Topology, told: CpuSet | None, held: CpuSet = NOBODY
) -> tuple[CpuSet, tuple[str, ...]]:
    """The CPUs that stay with the system, never empty on a machine with an online CPU; and notes.

    Unless told: the lowest core of each package that is not isolated, not `held` by somebody else's
    partition and not the package's only one. Below SMALL_PUS, or where that gives none, the lowest
    PU.
    """
    online = topology.online
    notes: list[str] = []
    if told is not None:
        inside = told & online
        if inside:
            if inside != told:
                notes.append(
                    f"housekeeping {told} names CPUs that are not online: {told - online}; "
                    f"{inside} is used"
                )
            return inside, tuple(notes)
        notes.append(
            f"housekeeping {str(told) or '(empty)'} names no online CPU; the default is used"
        )
    isolated = topology.isolation.isolated | held
    usual = online - isolated or online
    if len(online) < SMALL_PUS:
        return CpuSet.of(sorted(usual.ids)[:1]), tuple(notes)
    chosen: set[int] = set()
    core_of = dict(topology.smt_siblings)
    for package in topology.packages:
        lone = CpuSet.of(list(package.cpus)[:1])
        if not package.cpus - core_of.get(next(iter(lone), -1), lone):
            continue
        for cpu in package.cpus:
            core = core_of.get(cpu, CpuSet.of([cpu]))
            if core <= package.cpus and not core & isolated:
                chosen |= core.ids
                break
    if not chosen:
        first = next((c for c in topology.cores if c <= usual), None)
        whole = first if first is not None and first < online else CpuSet.of(list(usual)[:1])
        chosen |= whole.ids
    return CpuSet.of(chosen), tuple(notes)
