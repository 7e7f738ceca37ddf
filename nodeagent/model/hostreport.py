"""What tools and files of a host's configuration say: isolation, interrupts, control groups,
pinning, memory. Each is a Report; checks take their kind with `Pasted.of`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.pasted import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Said(Report):
    """A line of a log with a known meaning. `kind` is the row of the catalogue that knows it,
    `values` what the line names (path, node, unit, ...)."""

    kind: str
    line: str
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Report):
    """A kernel file that was pasted twice, at two times. `at_s`: seconds as the name tells them
    (t0, t10); None: only the order is known (before, after)."""

    path: str
    text: str
    later: bool
    at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedActive(Report):
    """`tuned-adm active`; profile None: none is active."""

    profile: str | None
    verified: bool | None = None
    """`tuned-adm verify`: True in order, False not; None: not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConfig(Report):
    """A kernel's build configuration: CONFIG_NAME -> y, m, a value, or "n" for "is not set".
    `release` is the kernel's as the file's name tells it, None: it does not."""

    release: str | None
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BootFile(Report):
    """Boot arguments that a boot loader's file wants: /etc/default/grub, a BLS entry, grubby."""

    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFile(Report):
    """Settings of a systemd unit or of systemd itself: name -> every value in order."""

    unit: str
    settings: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Irqbalance(Report):
    """What `irqbalance --debug` prints of itself; None: the line is not there."""

    isolated: CpuSet | None
    nohz_full: CpuSet | None
    banned: CpuSet | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadState(Report):
    """A process or thread: where it may run, where it may take memory, where it ran. None: not
    said."""

    pid: int | None = None
    comm: str | None = None
    allowed: CpuSet | None = None
    mems: CpuSet | None = None
    psr: int | None = None
    run_ns: int | None = None
    wait_ns: int | None = None
    busy_percent: float | None = None
    """Of one CPU, as top, ps and pidstat print it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace(Report):
    """One rank or worker of a job: its GPU, its CPUs, its memory by node in bytes."""

    rank: str
    bdf: str | None = None
    gpu_node: int | None = None
    allowed: CpuSet | None = None
    bytes_by_node: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Syscall(Report):
    """A placement call as strace prints it; `error` None: it succeeded."""

    name: str
    arguments: str
    error: str | None
    pid: int | None = None
    cpus: CpuSet | None = None
    """The mask or node set that was handed over, where it is printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRules(Report):
    """Rules of a device control group, `c 195:* rw` lines, or a unit's DeviceAllow=."""

    rules: tuple[str, ...]
    later: bool | None = None
    """True after, False before, None: one listing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerOptions(Report):
    """What a container was started with: docker inspect, docker run, a Kubernetes pod. None: not
    said there."""

    name: str
    cpus: CpuSet | None = None
    mems: CpuSet | None = None
    quota: float | None = None
    """CPUs as --cpus or a limit asks for them."""
    shm_bytes: int | None = None
    ipc: str | None = None
    memlock: str | None = None
    cap_add: tuple[str, ...] = ()
    privileged: bool | None = None
    guaranteed: bool | None = None
    """Kubernetes: requests equal limits, whole CPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuGrant(Report):
    """CPUs that a manager handed out or keeps back. `what`: reserved, assigned, default."""

    what: str
    owner: str
    cpus: CpuSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted(Report):
    """CPUs that somebody asked for. `irq` None: without saying for what."""

    cpus: CpuSet
    irq: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Count(Report):
    """A number that somebody counted: cpus (nproc), host-cpus, threads."""

    what: str
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPresence(Report):
    """`which TOOL`; path None: it is not installed."""

    tool: str
    path: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates(Report):
    """One measured figure before and after a change, or by CPU set: label -> (before, after)."""

    label: str
    unit: str
    before: float
    after: float
    higher_is_better: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSetTiming(Report):
    """A benchmark's time or rate on one CPU set."""

    cpus: CpuSet
    unit: str
    value: float
    higher_is_better: bool
