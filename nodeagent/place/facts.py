"""What the planner is told beside the topology: control groups, and devices' names. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.topology import Topology
from nodeagent.place.limits import NO_LIMITS, NOBODY, NOTHING, Cgroups, cgroups_of
from nodeagent.place.nics import data_nics


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Of one machine; the defaults: nothing is known."""

    cgroups: Cgroups = NO_LIMITS
    names: Mapping[str, str] = field(default_factory=dict)
    """BDF -> what people call it: GPU 0, eth2, nvme1."""
    nics: tuple[str, ...] | None = None
    """BDFs of the NICs that carry data; None: all that look like it."""

    def named(self, bdf: str) -> str:
        """A device for a sentence: eth2 (0000:19:00.0)."""
        name = self.names.get(bdf)
        return f"{name} ({bdf})" if name is not None else bdf

    def data_nics(self, topology: Topology) -> tuple[str, ...]:
        """The NICs that GPUs are paired with."""
        return self.nics if self.nics is not None else data_nics(topology)


def facts_of(
    snapshot: Snapshot,
    written: Mapping[str, CpuSet] = NOTHING,
    isolating: frozenset[str] = NOBODY,
) -> Facts:
    """From a snapshot. `written`: workload -> the CPUs that we set for its unit or container
    ourselves, by the journal; `isolating`: workloads that are to have a partition of ours."""
    computing = [p.bdf for p in snapshot.topology.gpus if p.computes]
    names = {bdf: f"GPU {i}" for i, bdf in enumerate(computing)}
    names |= {g.bdf: f"GPU {g.index}" for g in snapshot.gpus}
    names |= {n.bdf: n.name for n in snapshot.nics if n.bdf is not None}
    names |= {n.bdf: n.name for n in snapshot.nvmes if n.bdf is not None}
    return Facts(
        cgroups=cgroups_of(snapshot, written, isolating),
        names=names,
        nics=data_nics(snapshot.topology, snapshot),
    )
