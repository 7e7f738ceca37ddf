"""CPUs of a container, by the update call of the runtime that owns its cgroup, and read back.

A runtime writes its cgroups again when it likes: what is set behind its back does not last. Which
one it is stands before the container's id in the subject; it is called only where [pin] runtimes
names it. Pods of a kubelet are the kubelet's.
Source: podman-update(1), docker container update, runc(8) and crun(1) update.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.errors import ActError, ParseError, RightsError
from nodeagent.model.cgroup import Container, container_of
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.managers import manager_of
from nodeagent.pin import calls, cpuset, groups, survey
from nodeagent.pin.affinity import GoneError
from nodeagent.pin.proc import PROC, Thread
from nodeagent.pin.step import step

if TYPE_CHECKING:
    from nodeagent.pin.bus import Bus

ALL = "all"
COMMANDS: dict[str, tuple[str, ...]] = {
    "podman": ("podman", "update"),
    "docker": ("docker", "update"),
    "containerd": ("nerdctl", "update"),
    "runc": ("runc", "update"),
    "crun": ("crun", "update"),
}
"""Runtime -> its call, before `--cpuset-cpus LIST ID`."""
_SUBJECT = re.compile(r"([a-z]{1,20}):([A-Za-z0-9][A-Za-z0-9_.-]{0,127})")


class ContainerCpus:
    """The door to it. `runtimes`: those that may be called, `deadline_s` for each call."""

    def __init__(
        self,
        runtimes: AbstractSet[str],
        connect: Callable[[], Bus],
        deadline_s: float = calls.DEADLINE_S,
    ) -> None:
        self._runtimes, self._connect, self._deadline_s = runtimes, connect, deadline_s

    def check(self, subject: str, value: str) -> None:
        """RUNTIME:ID of a runtime that may be called, and CPUs."""
        runtime, _ = _parts(subject)
        if runtime not in COMMANDS:
            raise ActError(f"{runtime} has no update call that is known here")
        if runtime not in self._runtimes:
            raise RightsError(
                f"[pin] runtimes does not name {runtime}, which is therefore not called",
                f'add "{runtime}" to it, and restart nodeagent-actor',
            )
        try:
            cpus = CpuSet.parse(value)
        except ParseError as error:
            raise ActError(f"{value[:80]!r} is no CPU list", "expected e.g. 4-7") from error
        if not cpus:
            raise ActError("no CPU is named to hold it on", "nodeagentctl place plan")

    def same(self, one: str, other: str) -> bool:
        """As sets; all is like itself only."""
        if ALL in (one, other):
            return one == other
        return CpuSet.parse(one) == CpuSet.parse(other)

    def read(self, subject: str) -> str:
        """What its cgroup says; `all`: nothing, or no less than its parent has."""
        group = self._group(subject)
        raw = groups.cpus_of(group / "cpuset.cpus")
        return ALL if not raw or raw >= _offered(group) else str(raw)

    def write(self, subject: str, value: str) -> None:
        """By the runtime. The kernel takes no empty set while processes are in it, so `all` is
        every CPU that its parent has."""
        runtime, number = _parts(subject)
        group = self._group(subject)
        offered = _offered(group)
        cpus = offered if value == ALL else CpuSet.parse(value)
        if not cpus <= offered:
            raise ActError(
                f"{group.parent} has {offered} to give, and {cpus} is asked for",
                "nodeagentctl place plan, on the machine as it is now",
            )
        name, *verb = COMMANDS[runtime]
        argv = [calls.find(name), *verb, "--cpuset-cpus", str(cpus), number]
        calls.run(argv, self._connect, self._deadline_s)
        step("container.set")
        now = groups.cpus_of(group / "cpuset.cpus")
        if now != cpus:
            raise ActError(
                f"{runtime} took {cpus} for {number[:12]}, and {group}/cpuset.cpus says {now}",
                f"{runtime} update --cpuset-cpus by hand tells why",
            )

    def await_calls(self, subject: str) -> None:
        """Until no update of that container is under way. Raises ActError."""
        calls.await_others("update", "--cpuset-cpus", _parts(subject)[1])

    def cpus(self, value: str) -> CpuSet | None:
        """As a set; None: all."""
        return None if value == ALL else CpuSet.parse(value)

    def in_force(self, subject: str, value: str) -> bool:
        """It was read from its cgroup."""
        return True

    def room(self, subject: str) -> CpuSet:
        """The CPUs that it may use now."""
        return _effective(self._group(subject))

    def threads(self, subject: str) -> tuple[list[Thread], list[Thread]]:
        """Of every process in it."""
        return survey.threads_below(self._group(subject)), []

    def settle(self, subject: str, before: str) -> None:
        """Nothing is left of ours: the runtime has it."""

    def _group(self, subject: str) -> Path:
        """Folder of its cgroup. Raises GoneError, ActError."""
        _, number = _parts(subject)
        tree = cpuset.find()
        for entry in PROC.iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                path = cpuset.path_of(tree, int(entry.name)) or ""
            except ActError:
                # Any user may give a group of theirs such a name; no runtime does.
                continue
            if number not in path:
                continue
            found = container_of(path) or _plain(path, number)
            if found is None or found.id != number:
                continue
            manager = manager_of(path)
            if manager is not None:
                raise ActError(
                    f"container {number[:12]} is in cgroup {path!r}, which {manager.name} owns and "
                    "places",
                    manager.instead,
                )
            group = tree.at(found.cgroup)
            # crun keeps a group of its own below the scope that systemd made, and sets that one.
            below = group / "container"
            return below if (below / "cpuset.cpus").exists() else group
        raise GoneError(f"container {subject[:32]} is not there any more")


def _parts(subject: str) -> tuple[str, str]:
    found = _SUBJECT.fullmatch(subject)
    if found is None:
        raise ActError(f"{subject[:80]!r} is no container", "expected RUNTIME:ID")
    return found[1], found[2]


def _plain(path: str, number: str) -> Container | None:
    """runc and crun called by hand: the id is any name, and a part of the path."""
    parts = path.split("/")
    for at, part in enumerate(parts):
        if part in (number, f"runc-{number}.scope", f"crun-{number}.scope"):
            return Container(runtime="", id=number, cgroup="/".join(parts[: at + 1]))
    return None


def _offered(group: Path) -> CpuSet:
    return _effective(group.parent)


def _effective(group: Path) -> CpuSet:
    """cgroup v2, or v1 by its older name."""
    file = group / "cpuset.cpus.effective"
    return groups.cpus_of(file if file.exists() else group / "cpuset.effective_cpus")
