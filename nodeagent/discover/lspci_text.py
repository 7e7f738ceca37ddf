"""What `lspci -vv` prints below a function's first line, of all its versions.

Read here for pasted text, and for what `pci_config` says of this machine's configuration space.
Source: pciutils ls-caps.c (Express), ls-ecaps.c (AER, ACS, SR-IOV, Resizable BAR), lspci.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from nodeagent.model.pci import Acs, DeviceControl, ErrorBits, Link, ResizableBar

_LINK = re.compile(
    r"Speed (?:(\d+(?:\.\d+)?) ?GT/s|unknown)(?: \((\w+)\))?, Width x(\d+)(?: \((\w+)\))?",
    re.IGNORECASE,
)
_KEY = re.compile(r"([A-Z][A-Za-z]{2,10}\d?):")
_FLAG = re.compile(r"\b([A-Za-z]\w*)([+-])(?=[\s,]|$)")
_EXPRESS = re.compile(
    r"Express (?:\(v\d+\) )?((?:Legacy |Root Complex Integrated )?Endpoint|Root Port"
    r"|Upstream Port|Downstream Port|Root Complex Event Collector"
    r"|PCI-Express to PCI/PCI-X Bridge|PCI/PCI-X to PCI-Express Bridge)"
)
_CAPABILITY = re.compile(r"Capabilities: \[([0-9a-fA-F]+)")
_BAR = re.compile(r"BAR (\d): current size: (\d+[KMGTP]B)(?:, supported: (.*))?")
_REGION = re.compile(r"Memory at .*\[size=(\d+)([KMGT]?)\]")
_BUSES = re.compile(
    r"Bus: primary=([0-9a-fA-F]{2}), secondary=([0-9a-fA-F]{2}), subordinate=([0-9a-fA-F]{2})"
)
_VFS = re.compile(r"Total VFs: (\d+), Number of VFs: (\d+)")
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50}
_ACS_NAMES = frozenset(
    ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
)


_REGISTERS = {
    "ACSCap": "acs_able",
    "ACSCtl": "acs_on",
    "UESta": "uncorrectable",
    "CESta": "correctable",
}
"""Registers of flags, and the field that holds those which are set."""


def size_bytes(text: str) -> int | None:
    """`256MB`, `16G`, `4096`; None for anything else."""
    m = re.fullmatch(r"(\d{1,6})([KMGTP]?)B?", text.strip())
    return int(m[1]) << _UNITS[m[2]] if m else None


@dataclass(slots=True)
class Details:
    """What the lines of one function said; None: nothing."""

    port: str | None = None
    able: tuple[float | None, int] | None = None
    """LnkCap: speed in GT/s, width."""
    now: tuple[float | None, int] | None = None
    """LnkSta."""
    downgraded: tuple[str, ...] = ()
    """"speed", "width" where lspci itself says so."""
    node: int | None = None
    node_told: bool = False
    driver: str | None = None
    iommu_group: int | None = None
    buses: tuple[str, str] | None = None
    """Secondary and subordinate bus of a bridge."""
    vfs: tuple[int, int] | None = None
    """Total, switched on."""
    unseen: str | None = None
    """Why not all capabilities were listed."""
    extended: bool = False
    """Whether its extended capabilities were listed."""
    acs_named: bool = False
    """Whether the capability was listed, with or without its registers (`lspci -v`: without)."""
    acs_able: tuple[str, ...] | None = None
    acs_on: tuple[str, ...] | None = None
    bars: list[ResizableBar] = field(default_factory=list)
    virtual_bars: bool = False
    """Whether the BARs listed now are those of virtual functions."""
    region: int | None = None
    uncorrectable: tuple[str, ...] | None = None
    correctable: tuple[str, ...] | None = None
    device: tuple[str, ...] | None = None
    control: dict[str, int | bool | str] = field(default_factory=dict)

    @property
    def link(self) -> Link | None:
        """What LnkCap and LnkSta said; a width of 0 is a link that is down."""
        if self.able is None and self.now is None:
            return None
        return Link(
            speed_gts=self.now[0] if self.now else None,
            width=self.now[1] if self.now else None,
            max_speed_gts=self.able[0] if self.able else None,
            max_width=self.able[1] if self.able else None,
        )

    @property
    def acs(self) -> Acs | None:
        """None: not told, or not readable."""
        if self.acs_on is not None or self.acs_able is not None:
            # A control register that is not printed is not taken for "all off".
            if self.acs_on is None:
                return None
            return Acs(present=True, able=self.acs_able or (), on=self.acs_on)
        told = self.extended and self.unseen is None and not self.acs_named
        return Acs(present=False) if told else None

    @property
    def device_control(self) -> DeviceControl | None:
        """None: DevCtl and DevCap were not printed."""
        return DeviceControl(**self.control) if self.control else None  # type: ignore[arg-type]

    @property
    def errors(self) -> ErrorBits | None:
        """None: no status register was printed."""
        if self.uncorrectable is None and self.correctable is None and self.device is None:
            return None
        return ErrorBits(
            uncorrectable=self.uncorrectable or (),
            correctable=self.correctable or (),
            device=self.device or (),
        )


def read_details(lines: Iterable[str]) -> Details:
    """All lines of one function, in their order; indentation does not matter."""
    found = Details()
    key = ""
    for raw in lines:
        line = raw.strip()
        if not line:
            key = ""
        m = _KEY.match(line)
        # `MaxPayload 256 bytes, ...` continues the register named above it.
        if m:
            key = m[1]
        elif line.startswith(("Capabilities:", "Kernel", "NUMA", "IOMMU", "Region")):
            key = ""
        _line(found, key, line)
    return found


def _line(found: Details, key: str, line: str) -> None:
    if "Access Control Services" in line:
        found.acs_named = True
    if m := _CAPABILITY.match(line):
        found.virtual_bars = "Virtual Resizable BAR" in line
        if len(m[1]) <= 8 and int(m[1], 16) >= 0x100 and "not reachable" not in line:
            found.extended = True
        if "not reachable" in line:
            found.unseen = "extended configuration space is not reachable"
    elif line.startswith("Capabilities: <"):
        found.unseen = line[line.index("<") + 1 :].rstrip(">").removeprefix("not read: ")
    if m := _EXPRESS.search(line):
        found.port = m[1]
    elif key in ("LnkCap", "LnkSta") and (m := _LINK.search(line)):
        seen = (float(m[1]) if m[1] else None), int(m[3])
        if key == "LnkCap":
            found.able = seen
        else:
            found.now = seen
            found.downgraded = tuple(
                name
                for name, word in (("speed", m[2]), ("width", m[4]))
                if word and word.lower() == "downgraded"
            )
    elif key in ("DevCap", "DevCtl", "DevSta", "DevCtl2"):
        _device(found, key, line)
    elif key in _REGISTERS:
        # Newer versions wrap long registers: what follows belongs to the flags before it, and a
        # blank line takes none of them back.
        before = () if line.startswith(key) else getattr(found, _REGISTERS[key]) or ()
        setattr(found, _REGISTERS[key], (*before, *_set(line)))
    elif m := _BAR.match(line):
        now = size_bytes(m[2])
        able = tuple(s for w in (m[3] or "").split() if (s := size_bytes(w)) is not None)
        if now is not None and not found.virtual_bars:
            found.bars.append(
                ResizableBar(index=int(m[1]), size_bytes=now, able_bytes=tuple(sorted(able)))
            )
    elif m := _REGION.search(line):
        region = int(m[1]) << _UNITS[m[2]] if len(m[1]) <= 6 else None
        if region is not None:
            found.region = max(region, found.region or 0)
    elif m := _BUSES.search(line):
        found.buses = m[2].lower(), m[3].lower()
    elif m := _VFS.search(line):
        if len(m[1]) <= 6 and len(m[2]) <= 6:
            found.vfs = int(m[1]), int(m[2])
    elif line.startswith("NUMA node:"):
        value = line.partition(":")[2].strip()
        found.node_told = True
        found.node = int(value) if value.isascii() and value.isdigit() and len(value) < 6 else None
    elif line.startswith("Kernel driver in use:"):
        found.driver = line.partition(":")[2].strip() or None
    elif line.startswith("IOMMU group:"):
        value = line.partition(":")[2].strip()
        if value.isascii() and value.isdigit() and len(value) < 9:
            found.iommu_group = int(value)


def _set(line: str) -> tuple[str, ...]:
    return tuple(name for name, sign in _FLAG.findall(line) if sign == "+")


def _device(found: Details, key: str, line: str) -> None:
    flags = dict(_FLAG.findall(line))
    if key == "DevSta":
        found.device = tuple(n for n, sign in flags.items() if sign == "+" and n != "AuxPwr")
        return
    if key == "DevCtl2":
        if m := re.search(r"Completion Timeout: ([^,]+)", line):
            off = flags.get("TimeoutDis") == "+" or "TimeoutDis+" in line
            found.control["completion_timeout"] = "off" if off else m[1].strip()
        return
    payload = re.search(r"MaxPayload (\d{2,5}) bytes", line)
    request = re.search(r"MaxReadReq (\d{2,5}) bytes", line)
    if key == "DevCap" and request is None:
        if payload:
            found.control["max_payload_able_bytes"] = int(payload[1])
        return
    if payload:
        found.control["max_payload_bytes"] = int(payload[1])
    if request:
        found.control["max_read_request_bytes"] = int(request[1])
    if "RlxdOrd" in flags:
        found.control["relaxed_ordering"] = flags["RlxdOrd"] == "+"
    if "ExtTag" in flags:
        found.control["extended_tag"] = flags["ExtTag"] == "+"


def acs_flags(line: str) -> tuple[str, ...] | None:
    """Flags that are on in a bare `ACSCtl:` line; None when it is none."""
    flags = dict(_FLAG.findall(line))
    if "ACSCtl" not in line or not _ACS_NAMES.intersection(flags):
        return None
    return tuple(n for n, sign in flags.items() if sign == "+")
