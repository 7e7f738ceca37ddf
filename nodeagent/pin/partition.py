"""An isolated partition of cgroup v2: a cpuset of ours whose CPUs nobody else is scheduled on.

The kernel takes the word and then says whether it holds: `cpuset.cpus.partition` is read back, with
its reason where it is invalid. It stands at the top of the tree, for before Linux 6.7 one could be
made only below another, and the root is one. Where the kernel has it,
`cpuset.cpus.exclusive` is set too. Isolation has one owner a node, isolcpus= or
partitions (docs/vm.md has what each kernel does else).
Source: Documentation/admin-guide/cgroup-v2.rst, "cpuset.cpus.partition" and
"cpuset.cpus.exclusive" (Linux 6.7).
"""

from __future__ import annotations

import contextlib
import errno
import re
from pathlib import Path

from nodeagent.errors import ActError, ParseError, UnavailableError
from nodeagent.model.cpuset import CpuSet
from nodeagent.pin import groups, survey
from nodeagent.pin.affinity import GoneError
from nodeagent.pin.proc import PROC, Thread
from nodeagent.pin.step import step

PREFIX = "nodeagent."
MEMBER = "member"
ISOLATED = "isolated"
_VALUE = re.compile(r"([0-9,-]*)(?: \(([a-z ]+)\))?")
"""The CPUs, and what the kernel says of them where that is not `isolated`."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
EXCLUSIVE = "cpuset.cpus.exclusive"


class Partition:
    """The door to it. `boot`: [pin] isolation names boot arguments as the node's one owner."""

    def __init__(self, *, boot: bool) -> None:
        self._boot = boot

    def check(self, subject: str, value: str) -> None:
        """NAME of /nodeagent.NAME, and CPUs."""
        if not _NAME.fullmatch(subject):
            raise ActError(f"{subject[:80]!r} is no name of a cpuset of ours")
        if value != MEMBER:
            try:
                cpus = CpuSet.parse(value)
            except ParseError as error:
                raise ActError(f"{value[:80]!r} is no CPU list", "expected e.g. 4-7") from error
            if not cpus:
                raise ActError("no CPU is named to isolate", "nodeagentctl place plan")
            self._may(subject)

    def _may(self, subject: str) -> None:
        _may(self._boot, "cpuset" in groups.given(self._at(subject).parent))

    def same(self, one: str, other: str) -> bool:
        """As sets."""
        return self.cpus(one) == self.cpus(other) and _root(one) == _root(other)

    def read(self, subject: str) -> str:
        """The CPUs that it isolates; `LIST (isolated invalid)`: those that it was to; `member`: it
        isolates none, or is not there."""
        group = self._at(subject)
        if not (group / "cpuset.cpus.partition").exists():
            return MEMBER
        verdict = groups.read(group / "cpuset.cpus.partition").partition(" (")[0]
        if verdict == MEMBER:
            return MEMBER
        cpus = groups.read(group / "cpuset.cpus")
        return cpus if verdict == ISOLATED else f"{cpus} ({verdict})"

    def write(self, subject: str, value: str) -> None:
        """Makes it and reads the kernel's verdict, or ends it."""
        group = self._at(subject)
        cpus = self.cpus(value)
        if cpus is None:
            self._end(group)
            return
        self._may(subject)
        with contextlib.suppress(FileExistsError):
            _mkdir(group)
        step("partition.made")
        groups.write(group / "cpuset.cpus", str(cpus))
        if (group / EXCLUSIVE).exists():
            groups.write(group / EXCLUSIVE, str(cpus))
        step("partition.filled")
        kind = "root" if _root(value) else ISOLATED
        groups.write(group / "cpuset.cpus.partition", kind)
        step("partition.isolated")
        verdict = groups.read(group / "cpuset.cpus.partition")
        if verdict != kind and "(" not in value:
            raise ActError(
                f"{group}/cpuset.cpus.partition: asked to isolate {value}, the kernel says "
                f"{verdict[:200]!r}",
                _remedy(verdict),
            )

    def cpus(self, value: str) -> CpuSet | None:
        """As a set; None: it is no partition."""
        found = _VALUE.fullmatch(value)
        return None if value == MEMBER or found is None else CpuSet.parse(found[1])

    def in_force(self, subject: str, value: str) -> bool:
        """It may have become invalid: a CPU went offline, or a sibling wants it too."""
        return "(" not in value

    def room(self, subject: str) -> CpuSet:
        """What is left for everybody else."""
        return groups.cpus_of(self._at(subject).parent / "cpuset.cpus.effective")

    def threads(self, subject: str) -> tuple[list[Thread], list[Thread]]:
        """Nobody is in it yet; all others that are bound anywhere may lose their masks."""
        return [], survey.bound_threads(frozenset())

    def settle(self, subject: str, before: str) -> None:
        """The group that was made for it goes with it, once nobody is in it."""
        if before == MEMBER:
            with contextlib.suppress(GoneError):
                self._end(self._at(subject))

    def _at(self, subject: str) -> Path:
        return groups.mount() / f"{PREFIX}{subject}"

    @staticmethod
    def _end(group: Path) -> None:
        if not group.exists():
            return
        groups.write(group / "cpuset.cpus.partition", MEMBER)
        step("partition.ended")
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
                # Somebody is in it: a plain cpuset stays, and holds whom it held.
                return
            raise groups.explained(group, "removed", error) from error


def _root(value: str) -> bool:
    """Whether somebody made it a partition whose CPUs are balanced."""
    return value.endswith(("(root)", "(root invalid)"))


def _may(boot: bool, given: bool) -> None:
    """Raises ActError, UnavailableError."""
    if boot:
        raise ActError(
            '[pin] isolation is "boot": CPUs are isolated by boot arguments on this node, and a '
            "second owner is refused",
            'set [pin] isolation = "partition" and restart nodeagent-actor',
        )
    if isolated_at_boot(groups.read(PROC / "cmdline")):
        raise ActError(
            f"{PROC}/cmdline: saw isolcpus= with its domain flag, and isolation has one owner a "
            "node: since Linux 6.12 a partition with such a CPU is invalid",
            'boot without isolcpus= (managed_irq alone may stay), or set [pin] isolation = "boot"',
        )
    if not given:
        raise UnavailableError(
            f"{groups.MOUNT}/cgroup.subtree_control: saw no cpuset, expected it there",
            "systemctl set-property --runtime nodeagentd.service AllowedCPUs=LIST turns it on; "
            "before Linux 6.2 that resets affinities on the whole host",
        )


def isolated_at_boot(cmdline: str) -> bool:
    """Whether the boot arguments take CPUs out of load balancing. Pure.

    Source: Documentation/admin-guide/kernel-parameters.rst, isolcpus=: `domain` is the default.
    """
    for word in cmdline.split():
        key, _, value = word.partition("=")
        if key == "isolcpus" and value:
            flags = [f for f in value.split(",") if f.isalpha() or f == "managed_irq"]
            if not flags or "domain" in flags:
                return True
    return False


def _remedy(verdict: str) -> str:
    if "not exclusive" in verdict:
        return "find the sibling: grep . /sys/fs/cgroup/*/cpuset.cpus"
    if "distribute" in verdict:
        return "leave CPUs to everybody else: not all of the host can be isolated"
    return "nodeagentctl place plan, on the machine as it is now"


def _mkdir(group: Path) -> None:
    try:
        group.mkdir()
    except FileExistsError:
        raise
    except OSError as error:
        raise groups.explained(group, "made", error) from error
