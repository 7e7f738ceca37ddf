"""What the kernel does on CPUs of its own accord: unbound work, idle states, NUMA balancing.

Source: kernel/workqueue.c workqueue_set_unbound_cpumask(), wq_cpumask_store();
drivers/base/power/sysfs.c pm_qos_resume_latency_us_store(); kernel/sched/core.c
sysctl_numa_balancing().
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from nodeagent.errors import ActError, NodeagentError, RightsError
from nodeagent.model.cpuset import CpuSet
from nodeagent.pin import sysfile
from nodeagent.pin.irq import some_cpus
from nodeagent.pin.proc import PROC, held

ALL_UNBOUND = "*"
"""Subject of the mask for all unbound workqueues."""
NO_LATENCY = "n/a"
"""Written for: this CPU must not take any time to wake."""
_MAX_US = (1 << 31) - 2
"""One below PM_QOS_RESUME_LATENCY_NO_CONSTRAINT, which the kernel refuses."""
CAP_SYS_ADMIN = 21
"""Source: include/uapi/linux/capability.h."""
_NAME = re.compile(r"(?!\.{1,2}$)[\w.:@-]{1,64}")


class Workqueue:
    """The door to the CPUs of unbound kernel workers, of all or of one workqueue."""

    def check(self, subject: str, value: str) -> None:
        """`*` or a plain name, and a cpulist that is not empty."""
        if subject != ALL_UNBOUND and not _NAME.fullmatch(subject):
            raise ActError(f"{subject!r} is no name of a workqueue")
        some_cpus(f"workqueue {subject}", value)

    def read(self, subject: str) -> str:
        """A cpulist."""
        return str(CpuSet.parse_mask(sysfile.read(self._path(subject), self._gone(subject))))

    def write(self, subject: str, value: str) -> None:
        """Workers in the middle of a work item finish it where they are."""

        def explain(error: OSError) -> NodeagentError | None:
            if error.errno == errno.EINVAL:
                return ActError(f"workqueue {subject}: the kernel takes none of CPU {value}")
            return None

        mask = CpuSet.parse(value).mask()
        sysfile.write(self._path(subject), mask, self._gone(subject), explain)

    def same(self, one: str, other: str) -> bool:
        """As sets of CPUs."""
        return CpuSet.parse(one) == CpuSet.parse(other)

    @staticmethod
    def _path(subject: str) -> Path:
        root = sysfile.SYS / "devices/virtual/workqueue"
        return root / "cpumask" if subject == ALL_UNBOUND else root / subject / "cpumask"

    @staticmethod
    def _gone(subject: str) -> str:
        if subject == ALL_UNBOUND:
            return "this kernel has no mask for unbound workqueues (Linux before 4.2)"
        return f"there is no workqueue {subject} whose mask can be set"


class WakeLatency:
    """The door to one CPU's bound on exit latencies. `0` is no bound, `n/a` is none at all."""

    def check(self, subject: str, value: str) -> None:
        """A CPU's number, and microseconds or `n/a`."""
        if not sysfile.number(subject, 5):
            raise ActError(f"{subject!r} is no CPU number")
        if value == NO_LATENCY:
            return
        if not sysfile.number(value, 10) or int(value) > _MAX_US:
            raise ActError(f"CPU {subject}: {value!r} is no latency, expected microseconds or n/a")

    def read(self, subject: str) -> str:
        """As the kernel says it."""
        return sysfile.read(self._path(subject), self._gone(subject))

    def write(self, subject: str, value: str) -> None:
        """From the next time the CPU is idle on."""
        sysfile.write(self._path(subject), value, self._gone(subject))

    def same(self, one: str, other: str) -> bool:
        """To the letter."""
        return one == other

    @staticmethod
    def _path(subject: str) -> Path:
        return sysfile.SYS / f"devices/system/cpu/cpu{subject}/power/pm_qos_resume_latency_us"

    @staticmethod
    def _gone(subject: str) -> str:
        return f"there is no CPU {subject}, or this kernel bounds no exit latency of one CPU"


class NumaBalancing:
    """The door to kernel.numa_balancing."""

    _path = PROC / "sys/kernel/numa_balancing"
    _gone = "this kernel does not balance memory between NUMA nodes (CONFIG_NUMA_BALANCING)"

    def check(self, subject: str, value: str) -> None:
        """The one subject, and 0 to 3."""
        if subject != "kernel" or value not in ("0", "1", "2", "3"):
            raise ActError(f"numa_balancing {subject!r} {value!r}: expected kernel, and 0 to 3")

    def lacks(self) -> str:
        """Why this process may not set it, whatever is allowed; "": it may. Source:
        sysctl_numa_balancing() asks for CAP_SYS_ADMIN."""
        if not self._path.exists():
            return ""
        if not held(CAP_SYS_ADMIN):
            return "the actor has no CAP_SYS_ADMIN, which nodeagent-actor.service leaves out"
        if not os.access(self._path, os.W_OK):
            return "/proc/sys is read-only for the actor (ReadOnlyPaths= of its unit)"
        return ""

    def read(self, subject: str) -> str:
        """A number."""
        return sysfile.read(self._path, self._gone)

    def write(self, subject: str, value: str) -> None:
        """For the whole host, from the next scan of a process on."""

        def explain(error: OSError) -> NodeagentError | None:
            if error.errno in (errno.EPERM, errno.EROFS):
                return RightsError(
                    f"kernel.numa_balancing may not be set: {error.strerror}; the kernel asks for "
                    "CAP_SYS_ADMIN, which nodeagent-actor.service leaves out",
                    f"sysctl -w kernel.numa_balancing={value}",
                )
            return None

        sysfile.write(self._path, value, self._gone, explain)

    def same(self, one: str, other: str) -> bool:
        """To the letter."""
        return one == other
