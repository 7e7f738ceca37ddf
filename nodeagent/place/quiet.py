"""The CPUs that nothing but their workload may disturb, and the room beside them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Placement, Sharing
from nodeagent.model.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """`cpus`: isolated ones, and those of exclusive workloads. `rest`: the other online ones."""

    cpus: CpuSet
    rest: CpuSet
    housekeeping: CpuSet
    topology: Topology

    def near(self, node: int | None) -> CpuSet:
        """The CPUs of a node that are not quiet; of no node or one without CPUs: none."""
        found = self.topology.node(node) if node is not None else None
        return found.cpus & self.rest if found is not None else CpuSet()

    def kept(self, node: int | None) -> CpuSet:
        """Where what is moved away from quiet CPUs goes: housekeeping of that node, else its
        other CPUs, else housekeeping, else anything that is not quiet."""
        near = self.near(node)
        keep = self.housekeeping & self.rest
        return near & keep or near or keep or self.rest


def quiet(topology: Topology, placement: Placement) -> Quiet:
    """Of a machine and the plan for it."""
    cpus = topology.isolation.isolated & topology.online
    for placed in placement.placed:
        if placed.sharing is Sharing.EXCLUSIVE:
            cpus |= placed.cpus & topology.online
    return Quiet(
        cpus=cpus,
        rest=topology.online - cpus,
        housekeeping=placement.housekeeping & topology.online,
        topology=topology,
    )
