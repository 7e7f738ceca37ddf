"""What eBPF can see here, and what it measured."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.model.histogram import Histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One kind of attachment, judged by a trial load."""

    kind: str
    """tp_btf, raw_tp, tp, fentry, fexit, fmod_ret, kprobe, lsm, uprobe, perf, iter, ringbuf,
    task_storage, mmap_array, xdp."""
    works: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadDelay:
    """Run-queue latency of one watched process's threads, in nanoseconds; and where they ran."""

    pid: int
    runq: Histogram
    run_ns_by_cpu: tuple[tuple[int, int], ...]
    """(CPU, nanoseconds run there) since the watch began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStatus:
    """The probe's state: available, or the sentence why not."""

    available: bool
    reason: str | None
    capabilities: tuple[Capability, ...]
    delays: tuple[ThreadDelay, ...] = ()
    samples: int = 0
    dropped: int = 0
    run_ns: int | None = None
    """Time spent in our BPF programs; None: not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuDelay:
    """Run-queue latency of every task on one watched CPU, in nanoseconds."""

    cpu: int
    runq: Histogram
