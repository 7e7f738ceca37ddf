"""NVML by way of a child process of its own (nvml_child.py), with a deadline on every answer."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Protocol

import msgspec

from nodeagent.discover.pci import Links, normal_bdf
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.snapshot import GpuFacts, MigInstance, Nvml, Unread
from nodeagent.model.topology import PeerLink

DEADLINE_S = 5.0
"""For one reading; nvmlInit takes 1-2 s without persistence mode."""
RETRY_S = 60.0
"""After NVML said that it is not here, nobody is asked for so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """What the vendor's library said of all GPUs."""

    nvml: Nvml
    gpus: tuple[GpuFacts, ...] = ()
    links: Links = field(default_factory=dict)
    """NVLink counts by pair of BDFs; through NVSwitches every pair has as many as it can use."""
    unread: tuple[Unread, ...] = ()
    raw: str | None = None
    """The answer as it came, for a capture."""


class GpuSource(Protocol):
    """Who is asked about GPUs."""

    def start(self) -> None:
        """Begins asking, so that the answer is there when it is needed."""

    def read(self) -> GpuReading:
        """The answer, or why there is none; never raises, never waits past its deadline."""


@dataclass(frozen=True, slots=True)
class NoGpus:
    """Nobody is asked: a recorded machine, or a caller that does not want a child process."""

    reason: str = "not asked"

    def start(self) -> None:
        """Nothing to begin."""

    def read(self) -> GpuReading:
        """Unavailable, with the reason."""
        return GpuReading(nvml=Nvml(available=False, reason=self.reason))


class Gpus:
    """NVML of this machine. A child that hangs is left alone: the readings say why they lack."""

    def __init__(
        self, *, deadline_s: float = DEADLINE_S, env: Mapping[str, str] | None = None
    ) -> None:
        # Here, because a recorded machine needs no child, and some laptops have none to offer.
        from nodeagent.child import Child

        script = Path(__file__).with_name("nvml_child.py")
        self._child = Child([sys.executable, "-I", str(script)], env)
        self._deadline_s = deadline_s
        self._asked = False
        self._absent: str | None = None
        self._absent_until = 0.0

    @property
    def pid(self) -> int | None:
        """The child's pid while there is one."""
        return self._child.pid

    def start(self) -> None:
        """Puts the question."""
        if self._absent is not None and time.monotonic() < self._absent_until:
            return
        self._absent = None
        self._asked = self._child.send("read")

    def read(self) -> GpuReading:
        """Waits for the answer, at most the deadline."""
        if not self._asked:
            self.start()
        if self._absent is not None:
            return _unavailable(self._absent)
        answer = self._child.receive(self._deadline_s) if self._asked else None
        self._asked = False
        if not answer:
            return _unavailable(self._child.reason)
        reading = decode(answer[0])
        if not reading.nvml.available:
            self._absent = reading.nvml.reason
            self._absent_until = time.monotonic() + RETRY_S
            self._child.close()
        return reading

    def close(self) -> None:
        """Lets the child go; one that hangs ends by itself when its call returns."""
        self._child.close()


def _unavailable(reason: str) -> GpuReading:
    return GpuReading(nvml=Nvml(available=False, reason=reason))


# ---- the child's answer ------------------------------------------------------------------------


class _NvLink(msgspec.Struct):
    bdf: str | None
    switch: bool


class _Mig(msgspec.Struct):
    index: int
    uuid: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    memory: int | None = None
    slices: int | None = None


class _Gpu(msgspec.Struct):
    index: int
    bdf: str | None = None
    error: str | None = None
    name: str | None = None
    uuid: str | None = None
    memory: int | None = None
    numa_node: int | None = None
    cpus: list[int] | None = None
    mig: bool | None = None
    mig_instances: list[_Mig] = []
    links: list[_NvLink] = []


class _Answer(msgspec.Struct):
    available: bool
    reason: str | None = None
    driver: str | None = None
    gpus: list[_Gpu] = []


def decode(raw: str) -> GpuReading:
    """A reading from the child's line (or a capture's)."""
    try:
        answer = msgspec.json.decode(raw, type=_Answer)
    except (msgspec.DecodeError, RecursionError) as error:
        return _unavailable(f"the device child's answer cannot be read: {error}")
    if not answer.available:
        nvml = Nvml(available=False, reason=answer.reason or "no reason given")
        return GpuReading(nvml=nvml, raw=raw)
    unread = []
    gpus = []
    for gpu in answer.gpus:
        bdf = normal_bdf(gpu.bdf or "")
        if gpu.error is not None:
            unread.append(Unread(path=f"nvml/gpu/{gpu.index}", reason=gpu.error))
        if bdf is None:
            continue
        gpus.append(
            GpuFacts(
                bdf=bdf,
                index=gpu.index,
                name=gpu.name,
                uuid=gpu.uuid,
                numa_node=None if gpu.numa_node is None or gpu.numa_node < 0 else gpu.numa_node,
                cpu_affinity=CpuSet.of(gpu.cpus) if gpu.cpus is not None else None,
                memory_total_bytes=gpu.memory,
                mig=gpu.mig,
                mig_instances=tuple(
                    MigInstance(
                        index=m.index,
                        uuid=m.uuid,
                        gpu_instance=m.gpu_instance,
                        compute_instance=m.compute_instance,
                        memory_bytes=m.memory,
                        slices=m.slices,
                    )
                    for m in gpu.mig_instances
                ),
                error=gpu.error,
            )
        )
    return GpuReading(
        nvml=Nvml(available=True, reason=None, driver=answer.driver),
        gpus=tuple(gpus),
        links=_links(answer.gpus),
        unread=tuple(unread),
        raw=raw,
    )


def _links(gpus: list[_Gpu]) -> Links:
    bdfs = {bdf: g for g in gpus if (bdf := normal_bdf(g.bdf or ""))}
    switched = dict.fromkeys(bdfs, 0)
    pairs: dict[frozenset[str], int] = {}
    for bdf, gpu in bdfs.items():
        peers: dict[str, int] = {}
        for link in gpu.links:
            peer = normal_bdf(link.bdf or "")
            if peer in bdfs and peer != bdf:
                peers[peer] = peers.get(peer, 0) + 1
            elif link.switch:
                switched[bdf] += 1
        for peer, count in peers.items():
            # Both ends count the same links.
            pair = frozenset((bdf, peer))
            pairs[pair] = max(pairs.get(pair, 0), count)
    for a, b in combinations(bdfs, 2):
        through = min(switched[a], switched[b])
        if through:
            pairs[frozenset((a, b))] = pairs.get(frozenset((a, b)), 0) + through
    return {pair: (PeerLink(type="nvlink", count=count),) for pair, count in pairs.items()}
