"""A process that is ours to place, or that moves others, as a person's command reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodeagent.model.cpuset import CpuSet

if TYPE_CHECKING:
    # For commands that meet no process: what a placement is takes a while to be defined.
    from nodeagent.model.placement import ThreadState


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """One process with its threads, and what bounds it. None: it could not be read."""

    pid: int
    role: str
    """What it is: vllm, sglang, triton, ray, irqbalance, ... (discover/engines.py)."""
    comm: str
    title: str
    """Its command line; in a capture the program and the values of known flags only."""
    cgroup: str
    threads: tuple[ThreadState, ...]
    thread_count: int
    """Of all its threads; `threads` holds at most MAX_THREADS of them."""
    mems_allowed: CpuSet | None = None
    memlock_bytes: int | None = None
    """Soft limit on locked memory; UNLIMITED where there is none."""
    memory_by_node: tuple[tuple[int, int], ...] | None = None
    """(NUMA node, bytes resident there); None: `memory_reason` says why."""
    memory_reason: str = ""

    @property
    def cpus(self) -> CpuSet:
        """All CPUs that any of its threads may use."""
        return CpuSet.of(c for t in self.threads for c in t.cpus)


UNLIMITED = -1
