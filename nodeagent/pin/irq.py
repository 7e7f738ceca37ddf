"""Interrupt affinity: /proc/irq/N/smp_affinity_list, and default_smp_affinity for later ones.

Managed interrupts (NVMe queues) are the kernel's own: a write gives EIO, on newer kernels EPERM,
which is no fault; so it does where the controller cannot move an interrupt at all.
Source: Documentation/core-api/irq/irq-affinity.rst; kernel/irq/proc.c (irq_can_set_affinity_usr).
"""

from __future__ import annotations

import errno
from pathlib import Path

from nodeagent.errors import ActError, NodeagentError, ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.pin import sysfile
from nodeagent.pin.proc import PROC

LATER = "new"
"""Subject of the mask for interrupts that are set up later."""


class IrqAffinity:
    """The door to the mask of one interrupt."""

    def check(self, subject: str, value: str) -> None:
        """A number, and a cpulist that is not empty."""
        if not sysfile.number(subject):
            raise ActError(f"{subject!r} is no interrupt number")
        some_cpus(f"IRQ {subject}", value)

    def read(self, subject: str) -> str:
        """A cpulist, without its line end."""
        return sysfile.read(self._path(subject), _gone(subject))

    def write(self, subject: str, value: str) -> None:
        """For every later interrupt of it; one in flight may still come where it was."""

        def explain(error: OSError) -> NodeagentError | None:
            return _explained(subject, value, error)

        sysfile.write(self._path(subject), value, _gone(subject), explain)

    def same(self, one: str, other: str) -> bool:
        """As sets of CPUs."""
        return CpuSet.parse(one) == CpuSet.parse(other)

    @staticmethod
    def _path(subject: str) -> Path:
        return PROC / "irq" / subject / "smp_affinity_list"


class IrqDefault:
    """The door to the mask that interrupts get when they are set up. The file wants a mask in
    hexadecimal; its value here is a cpulist, as everywhere."""

    _path = PROC / "irq" / "default_smp_affinity"
    _gone = "this kernel has no default_smp_affinity"

    def check(self, subject: str, value: str) -> None:
        """The one subject, and a cpulist that is not empty."""
        if subject != LATER:
            raise ActError(f"{subject!r}: expected {LATER!r}, for interrupts set up later")
        some_cpus("new interrupts", value)

    def read(self, subject: str) -> str:
        """A cpulist."""
        return str(CpuSet.parse_mask(sysfile.read(self._path, self._gone)))

    def write(self, subject: str, value: str) -> None:
        """Interrupts that exist are left where they are."""

        def explain(error: OSError) -> NodeagentError | None:
            if error.errno == errno.EINVAL:
                return ActError(f"new interrupts: none of CPU {value} is online")
            return None

        sysfile.write(self._path, CpuSet.parse(value).mask(), self._gone, explain)

    def same(self, one: str, other: str) -> bool:
        """As sets of CPUs."""
        return CpuSet.parse(one) == CpuSet.parse(other)


def some_cpus(what: str, value: str) -> CpuSet:
    """The CPUs of a list that must name one. Raises ActError."""
    cpus = any_cpus(what, value)
    if not cpus:
        raise ActError(f"{what}: no CPU is named", "nodeagentctl place plan")
    return cpus


def any_cpus(what: str, value: str) -> CpuSet:
    """The CPUs of a list that may be empty. Raises ActError."""
    try:
        return CpuSet.parse(value)
    except ParseError as error:
        raise ActError(f"{what}: {value!r} is no cpulist") from error


def _gone(subject: str) -> str:
    return f"IRQ {subject} is not there any more"


def _explained(subject: str, value: str, error: OSError) -> NodeagentError | None:
    match error.errno:
        case errno.EIO | errno.EPERM:
            # EPERM was seen on Linux 6.12, as root with every capability. The kernel says the same
            # of an interrupt whose controller cannot move it: irq_can_set_affinity_usr().
            return ActError(
                f"IRQ {subject} is managed by the kernel, or its controller cannot move it",
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
            return None
