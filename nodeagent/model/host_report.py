"""What tools around the machine say of its layout: hypervisors, schedulers, DMI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.pasted import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestNuma(Report):
    """The NUMA layout that a hypervisor gives a guest (libvirt domain XML, QEMU's -numa)."""

    line: int
    cells: Mapping[int, CpuSet | None]
    """Cell -> the guest's CPUs; None: not told."""
    threads: int | None = None
    """Threads of a core in the guest's CPU topology."""
    passthrough: tuple[str, ...] = ()
    """PCI devices of the host that the guest gets."""
    expanders: frozenset[int] = frozenset()
    """Cells that have a PCIe expander bridge."""
    pinned: int = 0
    """Virtual CPUs that are pinned."""
    memory_bound: bool = False
    """Whether the guest's memory is bound to nodes (numatune memnode, host-nodes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GresLine(Report):
    """A line of Slurm's gres.conf for GPUs. `cores` are Slurm's own core numbers."""

    line: int
    files: tuple[str, ...]
    cores: CpuSet | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmComplaint(Report):
    """A line of slurmd's log about GPUs, cores or the node's layout."""

    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode(Report):
    """A node as `scontrol show node` or slurm.conf tells it."""

    line: int
    name: str
    sockets: int | None
    cores_per_socket: int | None
    threads_per_core: int | None
    cpus: int | None
    state: str | None
    reason: str | None
    gpus: int | None
    params: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimm(Report):
    """A memory slot in `dmidecode -t memory`. `size_bytes` 0: empty."""

    line: int
    locator: str
    socket: str | None
    size_bytes: int
    speed_mts: int | None = None
    configured_mts: int | None = None
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(Report):
    """The mean of a measurement for each placement that was tried."""

    line: int
    metric: str
    means: Mapping[str, float]
