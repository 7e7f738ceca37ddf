"""One reading of one machine: its shape, its settings, and what could not be read.

A failed read is data (docs/adr/0001): `unread` names path and reason, and the field it would have
filled is None. `texts` keeps the short files verbatim, as evidence for findings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.model.baseline import Baseline
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.kernel_event import KernelEvent
from nodeagent.model.matrix import LinkMatrix
from nodeagent.model.pasted import Pasted
from nodeagent.model.process import ProcessFacts
from nodeagent.model.topology import Isolation, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A file that was asked for and could not be read or understood."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Who this machine is. None: not readable, or left out of a capture."""

    hostname: str | None
    boot_id: str | None
    kernel: str | None
    """Release as `uname -r` prints it."""
    virtual: str | None
    """Hypervisor as DMI or the CPU flags tell it ("kvm", "vmware", ...); None: none seen."""
    cpu_vendor: str | None = None
    cpu_model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Irq:
    """One interrupt line. `counts` per online CPU as /proc/interrupts prints them."""

    number: int
    name: str
    """Last column(s): the driver's name for it, e.g. mlx5_comp7@pci:0000:3b:00.0."""
    affinity: CpuSet | None
    effective: CpuSet | None
    node: int | None
    counts: tuple[tuple[int, int], ...] = ()
    bdf: str | None = None
    """Device this IRQ belongs to (msi_irqs of a PCI function)."""
    managed: bool | None = None
    """The kernel keeps the affinity to itself (a write gives EIO). None: nothing tells."""
    managed_by: str = ""
    """What told `managed`: a path below /sys/kernel/debug, or "name" (the driver's queue name)."""
    unhandled: int | None = None
    """Interrupts nobody claimed, of the last 100,000; None: not told, or it never fired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NicFacts:
    """A network interface on a PCI function or a virtual one (bdf None)."""

    name: str
    bdf: str | None
    operstate: str | None
    speed_mbps: int | None
    rx_queues: int
    tx_queues: int
    mtu: int | None
    default_route: bool = False
    rdma: str | None = None
    """RDMA device on the same function (mlx5_0)."""
    driver: str | None = None
    ptp_clock: int | None = None
    """N of /dev/ptpN on the same function; None: it has no hardware clock, or none was seen."""
    xdp: tuple[str, ...] | None = None
    """What the driver says of XDP (`basic`, `redirect`, `ndo-xmit`, `xsk-zerocopy`, ...; netdev
    family, Linux 6.3); None: the kernel was not asked or does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmeFacts:
    """An NVMe controller; `bdf` None: not a PCI function (NVMe over fabrics, Apple)."""

    name: str
    """Kernel's name, nvme0."""
    bdf: str | None
    model: str | None
    namespaces: tuple[str, ...]
    """Block devices, nvme0n1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """A MIG device of a GPU; None: NVML did not say."""

    index: int
    uuid: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    memory_bytes: int | None = None
    slices: int | None = None
    """GPU slices of seven (eight on some)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """What a vendor's library or driver says of one GPU; None: it did not say.

    Source: NVML through nvidia-ml-py (NVIDIA), sysfs of amdgpu and KFD (AMD).
    """

    bdf: str
    index: int
    name: str | None = None
    uuid: str | None = None
    numa_node: int | None = None
    cpu_affinity: CpuSet | None = None
    memory_total_bytes: int | None = None
    mig: bool | None = None
    mig_instances: tuple[MigInstance, ...] = ()
    error: str | None = None
    """What the library said instead of facts, "GPU is lost (NVML error 15)"; None: it answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvml:
    """Whether NVML could be asked, and its version; `reason` says why not."""

    available: bool
    reason: str | None
    driver: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything read from one machine in one go.

    `texts` maps the path below the root (`proc/cmdline`, no leading slash) to the stripped text of
    every short settings file that was read; absent key: the file was not there or not asked for.
    """

    topology: Topology
    host: Host
    boot_args: tuple[tuple[str, str | None], ...]
    """Kernel command line in order: (name, value or None for a flag)."""
    irqs: tuple[Irq, ...]
    nics: tuple[NicFacts, ...]
    gpus: tuple[GpuFacts, ...]
    nvml: Nvml
    unread: tuple[Unread, ...]
    texts: Mapping[str, str] = field(default_factory=dict)
    taken_ns: int = 0
    """CLOCK_REALTIME in nanoseconds when the reading began; 0 in a recorded machine."""
    live: bool = True
    """False: read from a capture or directory (`--host`)."""
    asked: Isolation = field(default_factory=Isolation)
    """What the boot arguments ask for; `topology.isolation` is what is in force."""
    nvmes: tuple[NvmeFacts, ...] = ()
    pasted: Pasted | None = None
    """Set when built from what somebody pasted; what is absent was then not asked for."""
    complete: bool = True
    """What is absent was not on the machine. False: a tree somebody recorded in part, in which an
    absent file tells nothing."""
    matrix: LinkMatrix | None = None
    """A pasted topology matrix; None on a machine that was read."""
    events: tuple[KernelEvent, ...] | None = None
    """What the kernel log said; None: no log was read."""
    processes: tuple[ProcessFacts, ...] | None = None
    """Engines and who moves others; None: nobody looked (the daemon's own reading, a tree)."""
    baseline: Baseline | None = None
    """What was accepted for this machine; None: nothing was."""

    def arg(self, name: str) -> str | None:
        """Value of the last boot argument of that name ("" for a flag), None when absent.

        `-` and `_` are the same in a name. Source: kernel/params.c dash2underscore().
        """
        name = name.replace("-", "_")
        found = [v or "" for n, v in self.boot_args if n.replace("-", "_") == name]
        return found[-1] if found else None

    def text(self, path: str) -> str | None:
        """The stripped text of a settings file, or None."""
        return self.texts.get(path)

    def why_unread(self, path: str) -> str | None:
        """Why a file could not be read, or None when it was read or never asked for."""
        return next((u.reason for u in self.unread if u.path.lstrip("/") == path), None)
