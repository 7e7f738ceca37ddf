"""Run-queue latency of watched processes, read from shared memory: a turn makes no system call."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.histogram import BUCKETS, Histogram
from nodeagent.model.probe import Capability, CpuDelay, ProbeStatus, ThreadDelay
from nodeagent.probe.memory import MAPS, Memory, close_all

STAT_START = 19
"""Field 22 of /proc/PID/stat, counted from the state that follows the name: start, clock ticks
since boot. Source: proc_pid_stat(5)."""


@dataclass(slots=True)
class _Watch:
    """One watched process."""

    pid: int
    slot: int
    generation: int
    began_ns: int
    samples: int
    runq: Histogram
    run_ns: dict[int, int]


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None: there is no such process."""
    try:
        # Its name is any bytes.
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    if len(fields) <= STAT_START:
        raise ParseError(f"/proc/{pid}/stat", text, "at least 22 fields")
    return int(fields[STAT_START])


class ProbeReader:
    """What the daemon holds: steers the gate and reads what the programs counted.

    At most 64 processes; `read().reason` says how many were left out.
    """

    def __init__(
        self,
        memory: Memory | None,
        *,
        reason: str | None = None,
        capabilities: tuple[Capability, ...] = (),
    ) -> None:
        self._memory = memory
        self._reason = reason
        self._capabilities = capabilities
        self._wanted: frozenset[int] = frozenset()
        self._watched: dict[int, _Watch] = {}
        self._free: list[int] = []
        self._left_out = 0
        self._cpus = CpuSet()
        self._generation = self._dropped = 0
        if memory is not None:
            self._free = list(range(memory.slots))
            self._generation = memory.forget()
            self._dropped = memory.dropped()

    @classmethod
    def from_fds(cls, description: Mapping[str, Any], fds: Sequence[int]) -> Self:
        """From what `serve.load` answered, here or in the actor. Maps the memory, closes the fds.

        Raises OSError where the kernel refuses the mapping.
        """
        capabilities = tuple(Capability(**c) for c in description["capabilities"])
        if not description["available"]:
            close_all(fds)
            return cls(None, reason=description["reason"], capabilities=capabilities)
        try:
            assert tuple(description["maps"]) == MAPS
            memory = Memory(
                dict(zip(MAPS, fds, strict=True)),
                cpus=description["cpus"],
                shards=description["shards"],
            )
        finally:
            close_all(fds)
        return cls(memory, capabilities=capabilities)

    @classmethod
    def unavailable(cls, reason: str) -> Self:
        """A reader that says why there is nothing to read."""
        return cls(None, reason=reason)

    @property
    def available(self) -> bool:
        """Whether programs are attached."""
        return self._memory is not None

    def watch(self, pids: Iterable[int]) -> None:
        """Exactly these processes, every thread of theirs, those to come too.

        A process already watched keeps its counts. One that is gone is left out; a pid that was
        given to another process starts anew. Reads /proc/PID/stat of new ones only.
        """
        memory = self._memory
        if memory is None:
            return
        wanted = frozenset(pids)
        stale = [w.pid for w in self._watched.values() if memory.stale(w.slot)]
        if wanted == self._wanted and not stale and wanted == self._watched.keys():
            return
        self._wanted = wanted
        for pid in [*stale, *(self._watched.keys() - wanted)]:
            if watch := self._watched.pop(pid, None):
                memory.remove(pid)
                # To the end: a handler still under way adds to the old slot, which nobody reads.
                self._free.append(watch.slot)
        self._left_out = 0
        for pid in sorted(wanted - self._watched.keys()):
            ticks = start_ticks(pid)
            if ticks is None:
                continue
            if not self._free or not self._add(pid, ticks):
                self._left_out += 1

    def _add(self, pid: int, ticks: int) -> bool:
        memory = self._memory
        assert memory is not None
        slot, began = self._free[0], time.monotonic_ns()
        self._generation = self._generation + 1 & 0xFFFFFFFF or 1
        if not memory.add(
            slot, pid, start_ns=ticks * 10_000_000, began_ns=began, generation=self._generation
        ):
            return False
        self._free.pop(0)
        self._watched[pid] = _Watch(
            pid=pid,
            slot=slot,
            generation=self._generation,
            began_ns=began,
            samples=0,
            runq=Histogram(counts=(0,) * BUCKETS),
            run_ns={},
        )
        return True

    def watch_cpus(self, cpus: CpuSet) -> None:
        """The wait of every task on these CPUs; `read_cpus()` then has a histogram for each."""
        if self._memory is not None and cpus != self._cpus:
            self._memory.watch_cpus(cpus)
            self._cpus = cpus

    def arm(self, cpus: CpuSet) -> None:
        """The programs act on these CPUs only: takes CPUs out (or in) without a reload."""
        if self._memory is not None:
            self._memory.arm(cpus)

    def read(self) -> ProbeStatus:
        """What was counted since each watch began."""
        if self._memory is None:
            return ProbeStatus(
                available=False, reason=self._reason, capabilities=self._capabilities
            )
        self._read_runs(self._memory)
        delays = tuple(self._delay(self._memory, watch) for watch in self._watched.values())
        left_out = (
            f"{self._left_out} of {len(self._wanted)} processes are not watched: at most "
            f"{self._memory.slots} can be"
        )
        return ProbeStatus(
            available=True,
            reason=left_out if self._left_out else None,
            capabilities=self._capabilities,
            delays=delays,
            dropped=self._memory.dropped() - self._dropped,
            samples=sum(watch.samples for watch in self._watched.values()),
        )

    def read_cpus(self) -> tuple[CpuDelay, ...]:
        """What every task waited on each watched CPU since that watch began."""
        memory = self._memory
        if memory is None:
            return ()
        return tuple(
            CpuDelay(cpu=cpu, runq=memory.cpu_histogram(cpu))
            for cpu in self._cpus
            if cpu < memory.cpus
        )

    def _delay(self, memory: Memory, watch: _Watch) -> ThreadDelay:
        samples = memory.samples(watch.slot)
        if samples != watch.samples:
            watch.runq = memory.histogram(watch.slot)
            watch.samples = watch.runq.samples
        return ThreadDelay(
            pid=watch.pid, runq=watch.runq, run_ns_by_cpu=tuple(sorted(watch.run_ns.items()))
        )

    def _read_runs(self, memory: Memory) -> None:
        """Ended runs, and the one under way: a pinned thread may not be switched for hours."""
        for cpu in range(memory.cpus):
            words = memory.row(cpu)
            now = time.monotonic_ns()
            running, since, _, which = words[:4]
            generation, slot = which & 0xFFFFFFFF, which >> 32
            armed = memory.armed(cpu)
            for watch in self._watched.values():
                ran = words[memory.runs + watch.slot]
                if not armed:
                    pass
                elif generation == watch.generation and slot == watch.slot:
                    ran += max(0, now - since)
                elif generation == 0 and running >> 32 == watch.pid:
                    # It came before the watch began and was not switched since.
                    ran += now - watch.began_ns
                # The run under way is by the wall clock; the kernel's own count, which replaces it
                # at its end, leaves out stolen time and may be less. Nobody wants time to go back.
                if ran and ran > watch.run_ns.get(cpu, 0):
                    watch.run_ns[cpu] = ran

    def close(self) -> None:
        """Watches nothing any more and unmaps."""
        if self._memory is not None:
            self._memory.forget()
            self._memory.close()
            self._memory = None
            self._reason = "the reader is closed"
            self._watched.clear()
