"""Which CPUs a NIC's queues are steered to: XPS of transmit queues, RPS of receive queues.

Values are cpulists; the files hold masks in hexadecimal. The kernel keeps online CPUs only, and of
RPS none that isolcpus= took out, so values are compared among the CPUs that are online.
Source: Documentation/networking/scaling.rst; net/core/net-sysfs.c xps_cpus_store(),
store_rps_map(), rps_cpumask_housekeeping().
"""

from __future__ import annotations

import errno
import re
from pathlib import Path

from nodeagent.errors import ActError, NodeagentError, RightsError
from nodeagent.model.cpuset import CpuSet
from nodeagent.pin import affinity, sysfile
from nodeagent.pin.irq import any_cpus

_INTERFACE = re.compile(r"(?!\.{1,2}/)[^/:\s\0]{1,15}")
"""Source: net/core/dev.c dev_valid_name()."""


class Queues:
    """The door to one side's queues. `kind`: `xps` (tx-N) or `rps` (rx-N)."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._side = "tx" if kind == "xps" else "rx"

    def check(self, subject: str, value: str) -> None:
        """IF/tx-N or IF/rx-N, and a cpulist; an empty one turns steering off."""
        if not re.fullmatch(rf"{_INTERFACE.pattern}/{self._side}-[0-9]{{1,5}}", subject):
            raise ActError(f"{subject!r} is no queue, expected INTERFACE/{self._side}-N")
        any_cpus(subject, value)

    def read(self, subject: str) -> str:
        """A cpulist; empty: not steered."""

        def explain(error: OSError) -> NodeagentError | None:
            # Opened and yet not readable: net-sysfs.c says so of a device with one queue.
            if error.errno in (errno.ENOENT, errno.EINVAL):
                return ActError(f"{subject}: its device has one queue, there is nothing to steer")
            return None

        return str(CpuSet.parse_mask(sysfile.read(self._path(subject), _gone(subject), explain)))

    def write(self, subject: str, value: str) -> None:
        """From the next packet on."""

        def explain(error: OSError) -> NodeagentError | None:
            match error.errno:
                case errno.EPERM:
                    return RightsError(
                        f"{self._kind} {subject}: may not be set: {error.strerror}",
                        "the actor needs CAP_NET_ADMIN",
                    )
                case errno.ENOENT:
                    said = "its device has one queue, there is nothing to steer"
                    return ActError(f"{self._kind} {subject}: {said}")
                case errno.EINVAL:
                    return ActError(
                        f"{self._kind} {subject}: the kernel takes none of CPU {value}",
                        "RPS refuses CPUs that isolcpus= took out; name housekeeping CPUs",
                    )
                case _:
                    return None

        mask = CpuSet.parse(value).mask()
        sysfile.write(self._path(subject), mask, _gone(subject), explain)

    def same(self, one: str, other: str) -> bool:
        """As sets of online CPUs."""
        up = affinity.online()
        first, second = CpuSet.parse(one), CpuSet.parse(other)
        return first == second if up is None else first & up == second & up

    def _path(self, subject: str) -> Path:
        interface, _, queue = subject.partition("/")
        folder = sysfile.SYS / "class/net" / interface / "queues" / queue
        return folder / f"{self._kind}_cpus"


def _gone(subject: str) -> str:
    return f"queue {subject} is not there any more, or this kernel does not steer it"
