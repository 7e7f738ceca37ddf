"""The doors to the host's values: one for each knob, and nothing is written but through them."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Consent, Knob
from nodeagent.pin.containers import ContainerCpus
from nodeagent.pin.irq import IrqAffinity, IrqDefault
from nodeagent.pin.irqbalance import Irqbalance
from nodeagent.pin.kernelwork import NumaBalancing, WakeLatency, Workqueue
from nodeagent.pin.partition import Partition
from nodeagent.pin.proc import Thread
from nodeagent.pin.queues import Queues
from nodeagent.pin.timeleft import TimeLeft
from nodeagent.pin.units import unit_cpus, unit_mems

if TYPE_CHECKING:
    from nodeagent.pin.bus import Bus


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


@runtime_checkable
class Holder(Door, Protocol):
    """A door to the CPUs of a group of processes: a change of them may take their threads' masks,
    and what others leave behind is cleared afterwards. Raises as Door does."""

    def cpus(self, value: str) -> CpuSet | None:
        """The value as a set; None: it is no set of CPUs, or names none."""

    def in_force(self, subject: str, value: str) -> bool:
        """Whether what was read is what the kernel does, too."""

    def room(self, subject: str) -> CpuSet:
        """The CPUs that the group may use now."""

    def threads(self, subject: str) -> tuple[list[Thread], list[Thread]]:
        """(of the group, elsewhere): those whose masks `write` may take."""

    def settle(self, subject: str, before: str) -> None:
        """After the former value was written, or found: removes what is left of ours. Any number
        of times, also when the subject is gone."""


@runtime_checkable
class Caller(Door, Protocol):
    """A door that writes by another program, which may outlive the actor."""

    def await_calls(self, subject: str) -> None:
        """Returns once none of them runs any more. Raises ActError when one does not end."""


@runtime_checkable
class Bounded(Door, Protocol):
    """A door that asks for a right which the actor may be started without."""

    def lacks(self) -> str:
        """Why this process may not write through it, whatever is allowed; "": it may."""


def lacking(doors: Mapping[Knob, Door]) -> dict[str, str]:
    """Knob -> why the actor, as it was started, may not set it."""
    found = {str(k): door.lacks() for k, door in doors.items() if isinstance(door, Bounded)}
    return {knob: why for knob, why in found.items() if why}


def doors(
    allow: AbstractSet[Consent] = frozenset(),
    *,
    partitions: bool = False,
    runtimes: AbstractSet[str] = frozenset(),
    left: TimeLeft | None = None,
) -> Mapping[Knob, Door]:
    """The doors of this host. `allow`: some reach further where `host` is in it; `partitions`:
    [pin] isolation says so; `runtimes`: those that may be called; `left`: what waits, waits no
    longer."""
    host, left = Consent.HOST in allow, left or TimeLeft()

    def system_bus() -> Bus:
        # Imported when it is asked for: most actors never need a loop.
        from nodeagent.pin.bus import Bus

        return Bus(left=left)

    return {
        Knob.UNIT_CPUS: unit_cpus(system_bus, host=host),
        Knob.UNIT_MEMS: unit_mems(system_bus, host=host),
        Knob.CONTAINER_CPUS: ContainerCpus(runtimes, system_bus, left=left),
        Knob.PARTITION: Partition(boot=not partitions),
        Knob.IRQ_AFFINITY: IrqAffinity(),
        Knob.IRQ_DEFAULT: IrqDefault(),
        Knob.XPS: Queues("xps"),
        Knob.RPS: Queues("rps"),
        Knob.IRQBALANCE: Irqbalance(),
        Knob.WORKQUEUE: Workqueue(),
        Knob.WAKE_LATENCY: WakeLatency(),
        Knob.NUMA_BALANCING: NumaBalancing(),
    }
