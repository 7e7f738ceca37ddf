"""What tools say about latency: how late threads woke, what held them, what interrupted whom.

Units are in the names. A value that the tool did not print is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.model.pasted import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyRow:
    """One CPU or one thread; `what` names the quantity when a tool prints several (IRQ, thread)."""

    cpu: int | None
    max_us: float
    what: str = ""
    task: str = ""
    avg_us: float | None = None
    samples: int | None = None
    overflows: int = 0
    """Samples beyond the histogram's end: their size is not known, only that it is more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies(Report):
    """A measurement of latency: cyclictest, rtla timerlat, oslat, sysjitter, hwlatdetect, ..."""

    tool: str
    rows: tuple[LatencyRow, ...]
    hardware: bool = False
    """The tool sees only what the operating system cannot cause: SMI, firmware, hypervisor."""
    smi: int | None = None
    """System management interrupts during the run, where the tool counts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What took time from a thread, and how long. `kind`: irq, softirq, nmi, thread, blocking."""

    kind: str
    name: str
    us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis(Report):
    """One auto-analysis of rtla timerlat: why one wake-up was late."""

    cpu: int
    thread_us: float | None = None
    irq_delay_us: float | None = None
    irq_us: float | None = None
    held: tuple[Held, ...] = ()
    stack: tuple[str, ...] = ()
    from_idle: bool = False
    """rtla says that the worst latency was the way out of an idle state."""
    from_idle_us: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRow:
    """One CPU of rtla osnoise: time taken from a busy loop, and how often by whom."""

    cpu: int
    available_percent: float
    max_single_us: float
    noise_us: float | None = None
    runtime_us: float | None = None
    """How long it was looked at; the counts below are of this time."""
    hardware: int = 0
    nmi: int = 0
    irq: int = 0
    softirq: int = 0
    thread: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise(Report):
    """A run of rtla osnoise."""

    rows: tuple[NoiseRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """`high_us` is the largest value that falls in."""

    low_us: float
    high_us: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Times(Report):
    """A histogram of durations by BCC, libbpf-tools or bpftrace.

    `about`: run-queue, on-cpu, off-cpu, block, irq, softirq, function; "" when neither a heading
    nor the file's name says what was measured.
    """

    about: str
    name: str
    """The function, disk, interrupt or key; "" for all together."""
    buckets: tuple[Bucket, ...]
    avg_us: float | None = None
    total_us: float | None = None

    @property
    def count(self) -> int:
        """Number of samples."""
        return sum(b.count for b in self.buckets)

    def beyond(self, us: float) -> int:
        """Samples in buckets that begin at `us` or later."""
        return sum(b.count for b in self.buckets if b.low_us >= us)

    @property
    def worst_us(self) -> tuple[float, float]:
        """Bounds of the highest bucket that holds a sample; (0, 0) without samples."""
        filled = [(b.low_us, b.high_us) for b in self.buckets if b.count]
        return max(filled, default=(0.0, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A task that was ready and waited for a CPU."""

    task: str
    pid: int | None
    max_us: float | None = None
    """The longest single wait."""
    wait_us: float | None = None
    """All waits of the run together."""
    run_us: float | None = None
    wait_percent: float | None = None
    """Share of the time that it waited."""
    cpu: int | None = None
    before: str = ""
    """What ran on the CPU meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits(Report):
    """Run-queue waits: runqslower, perf sched latency, pidstat, schedstat."""

    tool: str
    rows: tuple[Wait, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches(Report):
    """How often a task was taken off its CPU or moved, a second: perf stat, pidstat -w."""

    task: str
    involuntary_per_s: float | None = None
    switches_per_s: float | None = None
    migrations_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts(Report):
    """Counters by CPU at one time: /proc/interrupts, /proc/softirqs, /proc/stat."""

    kind: str
    """interrupts, softirqs, stat."""
    rows: Mapping[str, Mapping[int, int]]
    """Counter name -> CPU -> value."""
    titles: Mapping[str, str] = field(default_factory=dict)
    """What a line says at its end: the device or the reason."""
    at_s: float | None = None
    """When, where the file's name or a line tells; only differences mean something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates(Report):
    """Events a second by CPU, as mpstat -I prints them."""

    rows: Mapping[str, Mapping[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUse:
    """One CPU's line of turbostat or mpstat; `cpu` None: all together."""

    cpu: int | None
    busy_percent: float | None = None
    busy_mhz: float | None = None
    tsc_mhz: float | None = None
    smi: int | None = None
    deep_percent: float | None = None
    """Time in C6 or deeper."""
    throttled: int | None = None
    """Thermal throttling events (CoreThr)."""
    celsius: float | None = None
    steal_percent: float | None = None
    soft_percent: float | None = None
    irq_percent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUses(Report):
    """How CPUs spent their time: turbostat, mpstat, vmstat."""

    tool: str
    rows: tuple[CpuUse, ...]
    runnable: int | None = None
    """Most tasks that ran or waited to run (vmstat r)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """A canary thread that should have run and did not."""

    at_ms: float
    cpu: int
    us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spikes(Report):
    """Stalls of canary threads on several CPUs."""

    rows: tuple[Spike, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls(Report):
    """When a process called something (NVML, an ioctl, a firmware command)."""

    what: str
    rows: tuple[tuple[float, int | None], ...]
    """(milliseconds on the canaries' clock, pid)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota(Report):
    """A CPU quota; `label` tells several of one group apart (before, after)."""

    quota_us: int | None
    """None: no limit."""
    period_us: int
    label: str = ""

    @property
    def cpus(self) -> float | None:
        """The quota in CPUs."""
        return None if self.quota_us is None else self.quota_us / self.period_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes(Report):
    """How many threads a workload has, or how many CPUs a machine."""

    threads: int | None = None
    machine_cpus: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure(Report):
    """Pressure stall information of one resource: share of time that tasks stood still."""

    resource: str
    """cpu, memory, io, irq; "" when the file's name does not tell."""
    some_percent: float
    """Highest of avg10, avg60, avg300."""
    full_percent: float | None = None
