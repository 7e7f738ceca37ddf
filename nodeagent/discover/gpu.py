"""NVML by way of a child process of its own, with a deadline on every answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from nodeagent.discover.pci import Links
from nodeagent.model.snapshot import GpuFacts, Nvml


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """What the vendor's library said of all GPUs."""

    nvml: Nvml
    gpus: tuple[GpuFacts, ...] = ()
    links: Links = field(default_factory=dict)
    """NVLink counts by pair of BDFs."""


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
