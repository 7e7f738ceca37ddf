"""Interrupt affinity: /proc/irq/N/smp_affinity_list.

Managed interrupts (NVMe queues) are the kernel's own: a write gives EIO, which is no fault.
Source: Documentation/core-api/irq/irq-affinity.rst; kernel/irq/proc.c (irq_can_set_affinity_usr).
"""

from __future__ import annotations

import errno
from pathlib import Path

from nodeagent.errors import ActError, ParseError, RightsError
from nodeagent.model.cpuset import CpuSet
from nodeagent.pin.affinity import GoneError
from nodeagent.pin.proc import PROC

_DIGITS = 9


class IrqAffinity:
    """The door to it."""

    def check(self, subject: str, value: str) -> None:
        """A number, and a cpulist that is not empty."""
        if not subject.isascii() or not subject.isdecimal() or len(subject) > _DIGITS:
            raise ActError(f"{subject!r} is no interrupt number")
        try:
            cpus = CpuSet.parse(value)
        except ParseError as error:
            raise ActError(f"IRQ {subject}: {value!r} is no cpulist") from error
        if not cpus:
            raise ActError(f"IRQ {subject}: no CPU is named", "nodeagentctl place plan")

    def read(self, subject: str) -> str:
        """A cpulist, without its line end."""
        try:
            return self._path(subject).read_text().strip()
        except FileNotFoundError as error:
            raise GoneError(f"IRQ {subject} is not there any more") from error
        except OSError as error:
            raise ActError(f"{self._path(subject)}: {error.strerror}") from error

    def write(self, subject: str, value: str) -> None:
        """For every later interrupt of it; one in flight may still come where it was."""
        path = self._path(subject)
        try:
            path.write_text(value)
        except FileNotFoundError as error:
            raise GoneError(f"IRQ {subject} is not there any more") from error
        except OSError as error:
            raise _explained(path, subject, value, error) from error

    def same(self, one: str, other: str) -> bool:
        """As sets of CPUs."""
        return CpuSet.parse(one) == CpuSet.parse(other)

    @staticmethod
    def _path(subject: str) -> Path:
        return PROC / "irq" / subject / "smp_affinity_list"


def _explained(path: Path, subject: str, value: str, error: OSError) -> ActError | RightsError:
    match error.errno:
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return RightsError(
                f"{path}: may not be set to {value}: {error.strerror}",
                "run the actor as root with a writable /proc",
            )
        case errno.EIO:
            return ActError(
                f"IRQ {subject} is managed by the kernel, which places it itself",
                "it is left alone; isolcpus=managed_irq keeps such interrupts off isolated CPUs",
            )
        case errno.ENOSPC:
            return ActError(
                f"IRQ {subject}: CPU {value} has no interrupt vector left",
                "choose other CPUs, or lower the number of queues of a device there",
            )
        case errno.EINVAL:
            return ActError(f"IRQ {subject}: none of CPU {value} is online")
        case _:
            return ActError(f"{path}: could not be set to {value}: {error.strerror}")
