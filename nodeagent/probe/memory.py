"""The array maps that programs and reader share, mapped: no system call to read or to steer.

Layout: bpf/runq_abi.h. Little-endian machines only, as everything that carries a GPU is.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Mapping

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.histogram import BUCKETS, Histogram
from nodeagent.probe import loader

MAPS = ("gate", "cpus", "slots")
"""What travels from the loader to the reader, in this order."""

REMOVED = 0xFFFFFFFF
"""Entry of the tgid table whose process is watched no more; probing goes on past it."""

RUNNING, WHICH, SEQUENCE, DROPPED = 0, 3, 4, 6
"""Words of a CPU's row; WHICH is generation and slot."""

READ_ATTEMPTS = 8
"""A row that changes during each of so many readings is taken as it is."""


def home(tgid: int) -> int:
    """First entry a tgid is looked for at; the same arithmetic stands in bpf/gate.h."""
    return (tgid * 2654435769 & 0xFFFFFFFF) >> 24


class Memory:
    """Gate, CPU rows and histograms, as words of 8 bytes. Takes no ownership of descriptors."""

    def __init__(self, fds: Mapping[str, int], *, cpus: int, shards: int) -> None:
        bpf = loader.native()
        ffi, self._lib = bpf.ffi, bpf.lib
        self.cpus, self.shards = cpus, shards
        self.slots: int = self._lib.NA_SLOTS
        self._row: int = ffi.sizeof("struct na_cpu") // 8
        self._hist: int = ffi.sizeof("struct na_hist") // 8
        self._runs: int = ffi.offsetof("struct na_cpu", "run_ns") // 8
        self._waits: int = ffi.offsetof("struct na_cpu", "runq") // 8
        self._head = self._runs + self.slots
        assert self._lib.NA_BUCKETS == BUCKETS
        sizes = {
            "gate": ffi.sizeof("struct na_gate"),
            "cpus": self._row * 8 * cpus,
            "slots": self._hist * 8 * self.slots * shards,
        }
        self._maps = {
            name: mmap.mmap(fds[name], size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            for name, size in sizes.items()
        }
        self._buffer = ffi.from_buffer("struct na_gate[]", self._maps["gate"])
        self.gate = self._buffer[0]
        self._release = ffi.release
        self._cpu_words = memoryview(self._maps["cpus"]).cast("Q")
        self._slot_words = memoryview(self._maps["slots"]).cast("Q")

    def close(self) -> None:
        """Unmaps; the programs go on with what stands in the gate."""
        self._release(self._buffer)
        self._cpu_words.release()
        self._slot_words.release()
        for region in self._maps.values():
            region.close()

    def arm(self, cpus: CpuSet) -> None:
        """The programs act on these CPUs only. What ran on one that was off is forgotten first."""
        for cpu in range(self.cpus):
            if cpu in cpus and not self.armed(cpu):
                self._cpu_words[cpu * self._row + RUNNING] = 0
                self._cpu_words[cpu * self._row + WHICH] = 0
        self._mask(self.gate.armed, cpus)

    def armed(self, cpu: int) -> bool:
        """Whether the programs act on a CPU; on one that is off nobody notes who runs."""
        return bool(self.gate.armed[cpu >> 6] >> (cpu & 63) & 1)

    def watch_cpus(self, cpus: CpuSet) -> None:
        """Every task's wait on these CPUs is measured; a CPU that is new here starts from zero."""
        for cpu in range(self.cpus):
            if cpu in cpus and not self.gate.watched[cpu >> 6] >> (cpu & 63) & 1:
                base = cpu * self._row + self._waits
                for word in range(base, base + self._hist):
                    self._cpu_words[word] = 0
        self._mask(self.gate.watched, cpus)

    def _mask(self, words: object, cpus: Iterable[int]) -> None:
        values = [0] * self._lib.NA_CPU_WORDS
        for cpu in cpus:
            if cpu < min(self.cpus, self._lib.NA_MAX_CPUS):
                values[cpu >> 6] |= 1 << (cpu & 63)
        for index, value in enumerate(values):
            words[index] = value  # type: ignore[index]  # cffi's array

    def add(self, slot: int, tgid: int, *, start_ns: int, began_ns: int, generation: int) -> bool:
        """Watches a process in a free slot; False: no entry near its home is free."""
        for at in range(self._lib.NA_TGID_PROBES):
            index = home(tgid) + at & self._lib.NA_TGIDS - 1
            if self.gate.tgids[index] in (0, REMOVED):
                break
        else:
            return False
        base = slot * self.shards * self._hist
        for word in range(base, base + self.shards * self._hist):
            self._slot_words[word] = 0
        for cpu in range(self.cpus):
            self._cpu_words[cpu * self._row + self._runs + slot] = 0
        entry = self.gate.slots[slot]
        entry.start_ns, entry.began_ns = start_ns, began_ns
        entry.stale, entry.generation = 0, generation
        self.gate.slot_of[index] = slot
        # Last: from here on the programs see it.
        self.gate.tgids[index] = tgid
        return True

    def remove(self, tgid: int) -> None:
        """Watches a process no more."""
        for at in range(self._lib.NA_TGID_PROBES):
            index = home(tgid) + at & self._lib.NA_TGIDS - 1
            if self.gate.tgids[index] == tgid:
                self.gate.tgids[index] = REMOVED
                return

    def forget(self) -> int:
        """Watches nothing; the highest generation ever used (a former reader's)."""
        for index in range(self._lib.NA_TGIDS):
            self.gate.tgids[index] = 0
        self._mask(self.gate.watched, ())
        highest: int = max(self.gate.slots[slot].generation for slot in range(self.slots))
        return highest

    def stale(self, slot: int) -> bool:
        """Whether the slot's pid was met with another start time."""
        return bool(self.gate.slots[slot].stale)

    def samples(self, slot: int) -> int:
        """Samples of a slot so far; cheap, to tell whether its histogram changed."""
        total: int = sum(
            self._slot_words[(slot * self.shards + shard) * self._hist + BUCKETS]
            for shard in range(self.shards)
        )
        return total

    def histogram(self, slot: int) -> Histogram:
        """A slot's waits, nanoseconds."""
        parts = (
            self._histogram(self._slot_words, (slot * self.shards + shard) * self._hist)
            for shard in range(self.shards)
        )
        return sum(parts, start=Histogram(counts=(0,) * BUCKETS))

    def cpu_histogram(self, cpu: int) -> Histogram:
        """A watched CPU's waits, nanoseconds."""
        return self._histogram(self._cpu_words, cpu * self._row + self._waits)

    def dropped(self) -> int:
        """Waits whose beginning was lost, on all CPUs, since the programs were loaded."""
        total: int = sum(self._cpu_words[DROPPED :: self._row].tolist())
        return total

    def row(self, cpu: int) -> list[int]:
        """One CPU's first words, of one moment: running, since_ns, exec_in, generation and slot,
        sequence, switches, dropped, mended; run_ns by slot from word `runs` on."""
        base = cpu * self._row
        for _ in range(READ_ATTEMPTS):
            before = self._cpu_words[base + SEQUENCE]
            words = self._cpu_words[base : base + self._head].tolist()
            if not before & 1 and before == self._cpu_words[base + SEQUENCE]:
                break
        return words

    @property
    def runs(self) -> int:
        """Index of slot 0's run time in `row`."""
        return self._runs

    @staticmethod
    def _histogram(words: memoryview, base: int) -> Histogram:
        values = words[base : base + BUCKETS + 3].tolist()
        return Histogram(
            counts=tuple(values[:BUCKETS]), total=values[BUCKETS + 1], maximum=values[BUCKETS + 2]
        )


def close_all(fds: Iterable[int]) -> None:
    """Closes descriptors that were handed over."""
    for fd in fds:
        os.close(fd)
