"""What tools of GPU vendors say of each GPU, its links and who uses it, as people paste it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.pasted import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process on a GPU, as nvidia-smi lists it. None: the column was not printed."""

    pid: int | None
    name: str
    used_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState(Report):
    """One GPU at one moment. None: the tool did not say, or said N/A.

    Source: nvidia-smi -q, nvidia-smi --help-query-gpu; amd-smi metric.
    """

    line: int
    tool: str
    index: int | None = None
    name: str | None = None
    bdf: str | None = None
    uuid: str | None = None
    vendor: str = "nvidia"
    loaded: bool | None = None
    """What the paste itself calls the sample: under load (True), idle (False)."""
    pstate: int | None = None
    util_percent: int | None = None
    gen: int | None = None
    """PCIe generation now."""
    gen_max: int | None = None
    """PCIe generation that card and slot both can do."""
    gen_device_max: int | None = None
    gen_host_max: int | None = None
    width: int | None = None
    width_max: int | None = None
    replays: int | None = None
    """PCIe replays since the last reset."""
    used_mib: float | None = None
    total_mib: float | None = None
    used_percent: int | None = None
    """Memory used, where a tool prints the share only."""
    bar1_total_mib: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    temp_c: float | None = None
    slowdown_c: float | None = None
    max_c: float | None = None
    margin_c: float | None = None
    """T.Limit: degrees left until the GPU slows down."""
    memory_temp_c: float | None = None
    memory_max_c: float | None = None
    reasons: frozenset[str] = frozenset()
    """Clocks event (throttle) reasons that are active, in `REASONS`' words."""
    ecc_uncorrected: int | None = None
    """Uncorrectable errors since the driver was loaded (volatile)."""
    ecc_uncorrected_total: int | None = None
    """Uncorrectable errors of the card's life (aggregate)."""
    ecc_corrected: int | None = None
    ecc_threshold: bool | None = None
    """SRAM threshold exceeded."""
    ecc_mode: str | None = None
    ecc_pending: str | None = None
    retired_pages: int | None = None
    retired_pending: bool | None = None
    remap_uncorrectable: int | None = None
    remap_correctable: int | None = None
    remap_pending: bool | None = None
    remap_failure: bool | None = None
    mig: str | None = None
    mig_pending: str | None = None
    fabric_state: str | None = None
    fabric_status: str | None = None
    fabric_ill: tuple[str, ...] = ()
    """Fields of the fabric's health that say something is wrong, `Route Unhealthy: True`."""
    persistence: bool | None = None
    compute_mode: str | None = None
    virtualization: str | None = None
    reset_required: bool | None = None
    drain: bool | None = None
    """Drain and reset recommended."""
    recovery: str | None = None
    """Recovery action the driver asks for (None, Reset, Reboot, Drain P2P, Drain and Reset)."""
    c2c: str | None = None
    processes: tuple[GpuProcess, ...] | None = None
    """None: the tool lists no processes; (): it says there are none."""
    process_count: int | None = None
    errors: tuple[str, ...] = ()
    """What stood where a value should be: ERR!, GPU is lost, Unknown Error."""

    @property
    def label(self) -> str:
        """How the paste calls this GPU."""
        if self.index is not None:
            return f"GPU {self.index}"
        return self.bdf or self.uuid or self.name or "GPU"

    @property
    def busy(self) -> bool | None:
        """Whether the GPU works: P0 to P2 with use, or what the paste says. None: not told."""
        if self.loaded is not None:
            return self.loaded
        if self.util_percent is not None and self.util_percent >= 10:
            return True
        if self.pstate is not None:
            # P0 alone is no load: data-centre cards stay in P0 while a context is open.
            return False if self.pstate >= 5 or self.util_percent is not None else None
        return None if self.util_percent is None else False

    @property
    def count(self) -> int | None:
        """Processes on it; None: not told."""
        return len(self.processes) if self.processes is not None else self.process_count


REASONS = {
    "hw slowdown": "HW Slowdown",
    "hw thermal slowdown": "HW Thermal Slowdown",
    "hw power brake slowdown": "HW Power Brake Slowdown",
    "sw thermal slowdown": "SW Thermal Slowdown",
    "sw power cap": "SW Power Cap",
    "sync boost": "Sync Boost",
    "idle": "Idle",
    "gpu idle": "Idle",
    "applications clocks setting": "Applications Clocks Setting",
    "application clocks setting": "Applications Clocks Setting",
    "display clock setting": "Display Clock Setting",
}
"""Names of the clocks event reasons. Source: nvidia-smi -q; NVML nvmlClocksEventReasons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """A slice of a GPU. It has no PCI address and no NUMA node of its own: its GPU's count."""

    profile: str
    device: int
    uuid: str | None

    @property
    def memory_gb(self) -> int | None:
        """The slice's memory by its profile (2g.20gb)."""
        size = self.profile.partition(".")[2].partition("gb")[0]
        return int(size) if size.isascii() and size.isdigit() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuListed(Report):
    """A line of `nvidia-smi -L` with its MIG devices."""

    line: int
    index: int
    name: str
    uuid: str | None
    mig: tuple[MigDevice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlinkState(Report):
    """One GPU in `nvidia-smi nvlink`. A rate of None: the link is inactive."""

    line: int
    index: int
    name: str
    links: Mapping[int, float | None]
    all_inactive: bool = False
    """The tool printed no single link: none is there, or none is up."""
    errors: Mapping[tuple[int, str], int] = field(default_factory=dict)
    """(link, Replay, Recovery or CRC) -> count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerMatrix(Report):
    """`nvidia-smi topo -p2p r|w|n|a|p`: OK, CNS, GNS, TNS, NS, DR, U for each pair."""

    line: int
    capability: str
    cells: Mapping[tuple[str, str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFailure(Report):
    """A vendor's tool or library that did not answer, with its sentence."""

    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Version(Report):
    """The version of one component: driver, library, fabricmanager, cuda, kernel-module."""

    line: int
    component: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState(Report):
    """A systemd unit of the GPU stack: its state (active, inactive, failed) and details."""

    line: int
    unit: str
    state: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricParts(Report):
    """How many NVSwitches or bridges a person or `lspci` says are there."""

    line: int
    what: str
    count: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHolder(Report):
    """A process that has a GPU's device file open."""

    line: int
    path: str
    pid: int
    process: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Environ(Report):
    """Environment variables, with the line each stands on."""

    values: Mapping[str, str]
    lines: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaPort(Report):
    """A port in `ibstat`, `ibdev2netdev`, `rdma link`. None: not told."""

    line: int
    device: str
    port: int
    state: str
    physical: str | None = None
    rate_gbps: float | None = None
    link_layer: str | None = None
    netdev: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed(Report):
    """What /proc/PID/status says of the CPUs and memory nodes a process may use."""

    line: int
    cpus: CpuSet | None
    mems: CpuSet | None
