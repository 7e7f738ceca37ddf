"""PCI addresses, functions and links."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet

_BDF = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")

NVIDIA, AMD, INTEL, MELLANOX = "10de", "1002", "8086", "15b3"
BOARD_DISPLAYS = frozenset(
    (
        # Chips of server boards: ATI Rage XL, ES1000
        *("4752", "4758", "515e", "5969"),
        # Graphics inside CPUs that stand in servers too: Raven, Picasso, Renoir, Cezanne, Raphael
        *("15dd", "15d8", "1636", "1638", "164e", "13c0"),
    )
)
"""Device numbers of AMD that show a console and compute nothing. Source: pci.ids."""


def parse_bdf(text: str) -> str:
    """A PCI address in its one form: lower case, four digits of domain (more only where needed).

    Raises ParseError. Source: Linux Documentation/PCI/sysfs-pci.rst; NVML prints eight digits of
    domain.
    """
    m = _BDF.fullmatch(text.strip())
    if m is None:
        raise ParseError("PCI address", text, "domain:bus:device.function such as 0000:3b:00.0")
    domain = (m[1] or "0").lstrip("0").lower().rjust(4, "0")
    return f"{domain}:{m[2].lower()}:{m[3].lower()}.{m[4]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A PCIe link: what it runs at and what this end can do. None: the file was not there."""

    speed_gts: float | None
    width: int | None
    max_speed_gts: float | None
    max_width: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Aer:
    """Totals of Advanced Error Reporting since boot. Source: sysfs-bus-pci-devices-aer_stats."""

    correctable: int
    nonfatal: int
    fatal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acs:
    """Access Control Services of one function, flags by lspci's names (SrcValid, ReqRedir, ...).

    Source: PCI Express Base Specification 6.0, section 7.7.11; pciutils ls-ecaps.c cap_acs().
    """

    present: bool
    """False: its configuration space was read and holds no such capability."""
    able: tuple[str, ...] = ()
    """ACSCap: what could be switched on; () also where only the control register is told."""
    on: tuple[str, ...] = ()
    """ACSCtl: what is switched on."""

    @property
    def redirects(self) -> bool:
        """Whether requests or completions between peers are sent up to the root."""
        return bool({"ReqRedir", "CmpltRedir"}.intersection(self.on))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceControl:
    """Device Control and what it may be set to. None: not told.

    Source: PCI Express Base Specification 6.0, sections 7.5.3.3 and 7.5.3.4.
    """

    max_payload_bytes: int | None = None
    max_payload_able_bytes: int | None = None
    max_read_request_bytes: int | None = None
    relaxed_ordering: bool | None = None
    extended_tag: bool | None = None
    completion_timeout: str | None = None
    """Range as lspci prints it, "50us to 50ms"; "off" when it is disabled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizableBar:
    """A base address register that can be resized. Source: PCI Express Base Specification 6.0,
    section 7.8.6."""

    index: int
    size_bytes: int
    able_bytes: tuple[int, ...]
    """Sizes that the device supports, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBits:
    """Error status bits that are set, by lspci's names; they stay until somebody clears them."""

    uncorrectable: tuple[str, ...] = ()
    correctable: tuple[str, ...] = ()
    device: tuple[str, ...] = ()
    """Device Status: CorrErr, NonFatalErr, FatalErr, UnsupReq."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PciFunction:
    """One PCI function. `class_code` is four hex digits (0302 = 3D controller).

    `class_code`, `vendor` and `device` are "" where they could not be read.

    `numa_node` and `local_cpus` are None where firmware said nothing (-1, file missing): never a
    guess.
    `parents` go from the nearest bridge upward; `root_bus` is the `pciDDDD:BB` directory,
    `DDDD:BB`.
    """

    bdf: str
    class_code: str
    vendor: str
    device: str
    numa_node: int | None
    local_cpus: CpuSet | None
    parents: tuple[str, ...]
    root_bus: str
    driver: str | None = None
    link: Link | None = None
    subsystem: str | None = None
    iommu_group: int | None = None
    physfn: str | None = None
    """BDF of the physical function when this is an SR-IOV virtual function."""
    vfs: int | None = None
    """SR-IOV virtual functions switched on; None: not a physical function of that kind."""
    aer: Aer | None = None
    total_vfs: int | None = None
    """SR-IOV virtual functions it could have."""
    port: str | None = None
    """PCIe type as lspci prints it: Endpoint, Root Port, Upstream Port, Downstream Port, ..."""
    acs: Acs | None = None
    """None: not told (configuration space needs root)."""
    control: DeviceControl | None = None
    bars: tuple[ResizableBar, ...] = ()
    region_bytes: int | None = None
    """Its largest memory region; None: not told."""
    errors: ErrorBits | None = None
    unseen: str | None = None
    """Why its configuration space was seen in part only ("access denied"); None: it was seen, or
    nobody looked."""

    @property
    def is_gpu(self) -> bool:
        """A display, 3D or processing accelerator function (classes 03xx and 12xx)."""
        return self.class_code[:2] in ("03", "12")

    @property
    def computes(self) -> bool:
        """A GPU that computes: a board's display chip and the graphics in a CPU do not."""
        if not self.is_gpu or self.vendor not in (NVIDIA, AMD, INTEL):
            return False
        if self.vendor == AMD:
            return self.device not in BOARD_DISPLAYS
        return self.vendor == NVIDIA or not self._in_cpu

    @property
    def _in_cpu(self) -> bool:
        """Intel's graphics in the CPU: device 2 of the first bus, or a VGA on the root bus."""
        return self.bdf.partition(":")[2].startswith("00:02.") or (
            self.class_code == "0300" and bool(self.root_bus) and not self.parents
        )

    @property
    def is_nic(self) -> bool:
        """A network controller (class 02xx)."""
        return self.class_code[:2] == "02"

    @property
    def is_nvme(self) -> bool:
        """A non-volatile memory controller (class 0108)."""
        return self.class_code == "0108"

    @property
    def is_bridge(self) -> bool:
        """A PCI bridge (class 0604)."""
        return self.class_code == "0604"
