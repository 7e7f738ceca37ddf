"""The doors to the host's values: one for each knob, and nothing is written but through them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from nodeagent.model.placement import Knob
from nodeagent.pin.irq import IrqAffinity, IrqDefault
from nodeagent.pin.irqbalance import Irqbalance
from nodeagent.pin.kernelwork import NumaBalancing, WakeLatency, Workqueue
from nodeagent.pin.queues import Queues


class Door(Protocol):
    """Reads and writes the values of one knob. Texts are the knob's own.

    Every method raises GoneError when the subject is not there any more, RightsError where a right
    is missing, ActError for everything else.
    """

    def check(self, subject: str, value: str) -> None:
        """Raises ActError for a subject or value that must never be written: the caller is not
        trusted, and a subject may name a path."""

    def read(self, subject: str) -> str:
        """The value now, to the byte that `write` would put back."""

    def write(self, subject: str, value: str) -> None:
        """Writes it. What the kernel refuses is an error; nothing is half done."""

    def same(self, one: str, other: str) -> bool:
        """Whether two texts say the same (0-3 and 0,1,2,3)."""


def doors() -> Mapping[Knob, Door]:
    """The doors of this host."""
    return {
        Knob.IRQ_AFFINITY: IrqAffinity(),
        Knob.IRQ_DEFAULT: IrqDefault(),
        Knob.XPS: Queues("xps"),
        Knob.RPS: Queues("rps"),
        Knob.IRQBALANCE: Irqbalance(),
        Knob.WORKQUEUE: Workqueue(),
        Knob.WAKE_LATENCY: WakeLatency(),
        Knob.NUMA_BALANCING: NumaBalancing(),
    }
