"""PCIe links as `lspci -vv` prints them, without the device they belong to."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.model.pasted import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSample(Report):
    """One `LnkSta:` with the `LnkCap:` above it. `loaded`: what the file's name says of the
    moment; None: nothing."""

    line: int
    text: str
    speed_gts: float
    width: int
    max_speed_gts: float | None
    max_width: int | None
    speed_downgraded: bool = False
    width_downgraded: bool = False
    loaded: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLimit(Report):
    """The kernel's line on a device that could do more than the path to it."""

    line: int
    bdf: str
    gbps: float
    at: str
    """The port whose link is the narrowest."""
    speed_gts: float
    width: int
    able_speed_gts: float
    able_width: int
