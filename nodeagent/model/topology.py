"""The machine's shape: CPUs, caches, NUMA nodes, PCI tree, and how near devices are to one
another."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.pci import PciFunction


class NodeKind(enum.StrEnum):
    """What a NUMA node holds (contract: topology/v1)."""

    CPU_MEMORY = "cpu+memory"
    MEMORY = "memory"
    CPU = "cpu"
    GPU_MEMORY = "gpu-memory"
    EMPTY = "empty"


class Path(enum.StrEnum):
    """How far apart two devices are, nearest first, in nvidia-smi's words."""

    PIX = "PIX"
    """At most one PCIe bridge between them."""
    PXB = "PXB"
    """Several PCIe bridges, no host bridge."""
    PHB = "PHB"
    """A PCIe host bridge (usually the CPU)."""
    NODE = "NODE"
    """Different host bridges of one NUMA node."""
    SYS = "SYS"
    """The interconnect between NUMA nodes."""
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hugepages:
    """A pool of one page size on one node; counts of pages."""

    size_bytes: int
    total: int
    free: int
    surplus: int | None = None
    """Pages beyond the pool, given back when they are freed; None: not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """A NUMA node. `cpus` are its online CPUs; `memory_bytes` None: no meminfo was there."""

    id: int
    cpus: CpuSet
    memory_bytes: int | None
    distances: tuple[tuple[int, int], ...]
    """(node id, SLIT distance) pairs, ascending ids; 10 is local."""
    kind: NodeKind
    hugepages: tuple[Hugepages, ...] = ()
    memory_free_bytes: int | None = None
    memory_available_bytes: int | None = None
    """Free, or page cache that can be dropped at once; None: the node's meminfo does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A physical package (socket) and its online PUs."""

    id: int
    """-1: the firmware gave no number."""
    cpus: CpuSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """One cache and the online PUs that share it. `type`: Data, Instruction or Unified."""

    level: int
    type: str
    size_bytes: int | None
    cpus: CpuSet


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLink:
    """Direct links between two GPUs: `type` is nvlink or xgmi."""

    type: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """How near two devices (BDFs) are. `same_numa` None: a side's node is unknown."""

    a: str
    b: str
    path: Path
    same_numa: bool | None
    links: tuple[PeerLink, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """What is kept off which CPUs, in force (sysfs) or asked for (boot arguments)."""

    isolated: CpuSet = field(default_factory=CpuSet)
    nohz_full: CpuSet = field(default_factory=CpuSet)
    rcu_nocbs: CpuSet = field(default_factory=CpuSet)
    irqaffinity: CpuSet = field(default_factory=CpuSet)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The shape of one machine. CPU sets hold online CPUs only."""

    online: CpuSet
    possible: CpuSet
    present: CpuSet
    smt_siblings: tuple[tuple[int, CpuSet], ...]
    """One (CPU, its core's online CPUs) pair for each online CPU, ascending."""
    packages: tuple[Package, ...]
    nodes: tuple[NumaNode, ...]
    caches: tuple[Cache, ...]
    pci: tuple[PciFunction, ...]
    relations: tuple[Relation, ...]
    isolation: Isolation

    @property
    def cores(self) -> tuple[CpuSet, ...]:
        """Distinct sibling sets, by lowest PU."""
        return tuple(sorted({s for _, s in self.smt_siblings}, key=lambda s: min(s.ids)))

    @property
    def gpus(self) -> tuple[PciFunction, ...]:
        """GPU functions in address order."""
        return tuple(p for p in self.pci if p.is_gpu)

    @property
    def nics(self) -> tuple[PciFunction, ...]:
        """Network functions in address order."""
        return tuple(p for p in self.pci if p.is_nic)

    @property
    def nvmes(self) -> tuple[PciFunction, ...]:
        """NVMe functions in address order."""
        return tuple(p for p in self.pci if p.is_nvme)

    def node(self, node_id: int) -> NumaNode | None:
        """The node of that number, or None."""
        return next((n for n in self.nodes if n.id == node_id), None)

    def function(self, bdf: str) -> PciFunction | None:
        """The PCI function at that address, or None."""
        return next((p for p in self.pci if p.bdf == bdf), None)
