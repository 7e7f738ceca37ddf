"""Proof by effect: what disturbed CPUs that should be one workload's alone, over some seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.finding import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRun:
    """One thread at one time."""

    pid: int
    comm: str
    kernel: bool
    """A kernel thread."""
    start_time: int
    """Clock ticks since boot: tells a reused number."""
    run_ns: int
    """On any CPU since it began (first number of schedstat)."""
    cpu: int
    """Where it runs, or ran last."""
    allowed: CpuSet | None = None
    """Its affinity; None: not read, it is not on a CPU that is asked about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Everything at one time. Rows map a name to CPU -> count since boot."""

    at_ns: int
    """CLOCK_MONOTONIC."""
    interrupts: Mapping[str, Mapping[int, int]]
    softirqs: Mapping[str, Mapping[int, int]]
    titles: Mapping[str, str]
    """Interrupt -> device or reason, as the kernel prints it."""
    tasks: Mapping[int, TaskRun]
    """By thread number."""
    online: CpuSet
    busy_ns: Mapping[int, int] = field(default_factory=dict)
    """CPU -> time that threads have run on it since boot, whoever they were; in steps of the
    kernel's tick where it is sampled. Empty: not told."""
    unread: tuple[str, ...] = ()
    """Sentences about what could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """What disturbed a CPU."""

    what: str
    """`IRQ 86 nvme1q3`, `softirq NET_RX`, `ksoftirqd/3 (pid 40)`."""
    kind: str
    """irq, ipi, tick, softirq, kernel-thread, process or gone: whoever is not there any more."""
    count: int | None = None
    """How often; None: not counted, but timed."""
    run_ns: int | None = None
    exact: bool = True
    """False: the time may have been spent on another CPU in part."""
    verdict: Verdict = Verdict.INFO


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuProof:
    """One CPU, judged."""

    cpu: int
    owner: str
    """Workload it belongs to; empty: isolated, and nobody's."""
    tickless: bool
    """nohz_full: the tick should be off while one thread runs."""
    ticks: int | None
    """None: the row is missing."""
    own_ns: int
    """Run time of the owner's threads whose last place it was."""
    culprits: tuple[Culprit, ...] = ()
    """The worst first, bounded."""
    more: int = 0
    """Culprits left out."""
    verdict: Verdict = Verdict.OK
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadProof:
    """Where a thread of a workload was met, and how often it was looked at."""

    workload: str
    pid: int
    tid: int
    comm: str
    planned: CpuSet
    seen: tuple[tuple[int, int], ...]
    """(CPU, times it was met there)."""
    run_ns: int
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The whole, over `seconds`."""

    seconds: float
    verdict: Verdict
    cpus: tuple[CpuProof, ...]
    threads: tuple[ThreadProof, ...]
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """A workload with CPUs of its own."""

    workload: str
    cpus: CpuSet
    pids: frozenset[int]
    seats: Mapping[int, CpuSet] = field(default_factory=dict)
    """Thread -> its own CPUs, where a role gives it some."""
