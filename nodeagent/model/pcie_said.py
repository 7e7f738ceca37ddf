"""What people paste about PCIe that no kernel file holds: samples of links, bare registers, GDS."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.model.pasted import Report

SPEEDS_GTS = (2.5, 5.0, 8.0, 16.0, 32.0, 64.0)
"""GT/s of the PCIe generations 1 to 6."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReading(Report):
    """A link at one moment. None: not told."""

    device: str | None
    """A BDF, or what the table calls it ("GPU 0")."""
    loaded: bool | None
    """Whether the device was busy; None: nobody says."""
    speed_gts: float | None
    width: int | None
    max_speed_gts: float | None
    max_width: int | None
    parent: str | None = None
    """The bridge above, in a table of paths; "root" for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcsReading(Report):
    """An ACSCtl line without its device."""

    on: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AerCounters(Report):
    """Totals of one function's AER files; a file that was not pasted counts nothing."""

    device: str | None
    correctable: int
    nonfatal: int
    fatal: int
    names: tuple[str, ...] = ()
    """Errors whose own counter is not zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GdsReport(Report):
    """`gdscheck -p`: what GPUDirect Storage says of itself."""

    drivers: tuple[tuple[str, str], ...]
    """(NVMe P2PDMA, Unsupported), in the order printed."""
    iommu: str | None = None
    """"enabled" or "disabled"."""
    compat: bool | None = None
    """properties.use_compat_mode or force_compat_mode."""
    troubles: tuple[str, ...] = ()
    """Lines in which it names an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePaths(Report):
    """Where devices hang, from links into /sys/devices: (name, root bus, BDFs from the top)."""

    paths: tuple[tuple[str, str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IommuLog(Report):
    """What a kernel log says of the IOMMU."""

    faults: tuple[tuple[int, str | None, str], ...] = ()
    """(line, BDF or None, the line's text)."""
    mode: str | None = None
    """Default domain type as printed, Translated or Passthrough."""
    on: str | None = None
    """The line that says that an IOMMU is on."""
