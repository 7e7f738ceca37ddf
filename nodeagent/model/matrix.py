"""A topology matrix as a vendor's tool prints it: kept apart from what was read from sysfs, since
the two can contradict each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.model.cpuset import CpuSet


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMatrix:
    """`nvidia-smi topo -m` or `rocm-smi --showtopo` (contract: facts, Matrix).

    `links` maps (row, column) to the printed class (NV18, PIX, PXB, PHB, NODE, SYS; PCIE, XGMI);
    nothing is mirrored, no X. Affinities have a key for each printed GPU row; None: the cell was
    blank or N/A.
    """

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    links: Mapping[tuple[str, str], str]
    cpu_affinity: Mapping[str, CpuSet | None] = field(default_factory=dict)
    numa_affinity: Mapping[str, CpuSet | None] = field(default_factory=dict)
    """NUMA nodes, as a set: GB200 prints lists."""
    gpu_numa_id: Mapping[str, CpuSet | None] = field(default_factory=dict)
    nic_names: Mapping[str, str] = field(default_factory=dict)
    weight: Mapping[tuple[str, str], int] = field(default_factory=dict)
    hops: Mapping[tuple[str, str], int] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    """Further column headings that were printed (CPU Affinity, ...)."""
    rows: tuple[str, ...] = ()
    """Devices whose row was printed."""
    truncated: bool = False
    """A GPU of the header has no row."""
    source: str = "nvidia-smi topo -m"

    def between(self, a: str, b: str) -> str | None:
        """The class printed for a pair, in whichever direction was printed; None: neither."""
        return self.links.get((a, b)) or self.links.get((b, a))
