"""What tools say of memory that is shared or reserved: file systems, /dev/shm, huge pages, DPDK."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.pasted import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Filesystem(Report):
    """A line of `df`. Sizes in bytes, or counts with `inodes`; percent as printed."""

    device: str
    mount: str
    size: int
    used: int
    percent: int
    inodes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShmFile(Report):
    """A file in /dev/shm or a SysV segment. `allocated` None: not said; `mapped_by` "": nobody,
    None: not said."""

    name: str
    size: int
    allocated: int | None = None
    mapped_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HugePool(Report):
    """Huge-page counters, one pool: total, free, reserved, surplus. `node` None: the whole machine;
    `size_bytes` None: not said; `later` None: one reading."""

    node: int | None
    size_bytes: int | None
    values: Mapping[str, int]
    later: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EalArguments(Report):
    """A DPDK command line: lcores, memory asked for by socket in MiB."""

    lcores: CpuSet
    socket_mem_mb: tuple[int, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundDevice(Report):
    """A line of `dpdk-devbind -s`."""

    bdf: str
    name: str
    driver: str | None
    interface: str | None
    active: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse(Report):
    """`free`, in whatever unit it printed; `available` None: an old version does not say."""

    total: int
    available: int | None
    swap_total: int
    swap_used: int
