"""What network tools say: ethtool, ip, ss, chrony, ptp4l."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.model.pasted import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class NicDriver(Report):
    """`ethtool -i`."""

    nic: str | None
    driver: str
    version: str | None
    firmware: str | None = None
    bdf: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NicAmounts(Report):
    """`ethtool -l` (channels) or `-g` (rings): name -> value; what: channels, rings."""

    nic: str | None
    what: str
    maximum: Mapping[str, int]
    current: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters(Report):
    """Counters of a NIC, a protocol, a ring or an application: `of` says whose (nic, udp, softnet,
    socket, ring, capture)."""

    of: str
    name: str | None
    values: Mapping[str, int]
    later: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NicSettings(Report):
    """`ethtool -k`, `-c`, `-a`, `-T`, `-x` or the plain link summary: setting -> value as
    printed."""

    nic: str | None
    what: str
    values: Mapping[str, str]
    lists: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class XdpProgram(Report):
    """An XDP program on an interface, by `bpftool net`, `ip link` or `xdp-loader status`; mode:
    native, generic, offload."""

    nic: str
    mode: str
    program: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockState(Report):
    """Time synchronisation as chronyc, ptp4l or phc2sys report it. Offsets in nanoseconds."""

    tool: str
    offset_ns: float | None
    rms_ns: float | None = None
    synchronised: bool | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups(Report):
    """Multicast groups that an interface has joined."""

    nic: str
    groups: tuple[str, ...]
