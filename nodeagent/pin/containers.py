"""CPUs of a container, by the update call of the runtime that owns its cgroup, and read back.

A runtime writes its cgroups again when it likes: what is set behind its back does not last. Which
one it is stands before the container's id in the subject; it is called only where [pin] runtimes
names it. Pods of a kubelet are the kubelet's.

Any user may name a cgroup of theirs like a container's. So only one that root made counts (every
folder above it is root's), and before the runtime is told anything it is asked for the container's
process, which must be in that very cgroup.
Source: podman-update(1), docker container update, runc(8) and crun(1) update; podman-inspect(1),
docker container inspect, nerdctl inspect, runc(8) and crun(1) state; cgroups(7), "Cgroups
delegation".
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.errors import ActError, ParseError, RightsError, visible
from nodeagent.model.cgroup import Container, container_of
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.deadlines import RUNTIME_CALL_S
from nodeagent.model.managers import manager_of
from nodeagent.pin import calls, cpuset, groups, survey
from nodeagent.pin.affinity import GoneError
from nodeagent.pin.proc import PROC, Thread
from nodeagent.pin.step import step
from nodeagent.pin.timeleft import TimeLeft

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
_INSPECT = ("inspect", "--type", "container", "--format", "{{.State.Pid}}")
QUESTIONS: dict[str, tuple[str, ...]] = {
    "podman": ("podman", *_INSPECT),
    "docker": ("docker", *_INSPECT),
    "containerd": ("nerdctl", *_INSPECT),
    "runc": ("runc", "state"),
    "crun": ("crun", "state"),
}
"""Runtime -> what tells a container's process, before its ID: a number, or JSON with a `pid`."""
SERVED = {"docker": "dockerd", "containerd": "containerd"}
"""Runtimes whose call is done by a server, which goes on when the call is stopped."""
_SUBJECT = re.compile(r"([a-z]{1,20}):([A-Za-z0-9][A-Za-z0-9_.-]{0,127})")


class ContainerCpus:
    """The door to it. `runtimes`: those that may be called, `deadline_s` for each call and no more
    than `left` says; `folders`: where their programs are."""

    def __init__(
        self,
        runtimes: AbstractSet[str],
        connect: Callable[[], Bus],
        deadline_s: float = RUNTIME_CALL_S,
        *,
        left: TimeLeft | None = None,
        folders: Sequence[str] = calls.FOLDERS,
    ) -> None:
        self._runtimes, self._connect, self._deadline_s = runtimes, connect, deadline_s
        self._left, self._folders = left or TimeLeft(), folders

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
        self._check_known(subject)

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
        try:
            self._call(COMMANDS[runtime], "--cpuset-cpus", str(cpus), number)
        except calls.LateCallError as error:
            if runtime not in SERVED:
                raise
            raise ActError(
                f"{error}; {SERVED[runtime]}, which was asked, may still do it",
                "nodeagentctl place status, once it answers again",
            ) from error
        step("container.set")
        now = groups.cpus_of(group / "cpuset.cpus")
        if now != cpus:
            raise ActError(
                f"{runtime} took {cpus} for {number[:12]}, and {group}/cpuset.cpus says {now}",
                f"{runtime} update --cpuset-cpus by hand tells why",
            )

    def await_calls(self, subject: str) -> None:
        """Until no update of that container is under way. Raises ActError."""
        calls.await_others(
            *("update", "--cpuset-cpus", _parts(subject)[1]),
            connect=self._connect,
            deadline_s=self._left.of(self._deadline_s),
        )

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

    def _call(self, command: Sequence[str], *more: str) -> bytes:
        name, *verb = command
        argv = [calls.find(name, self._folders), *verb, *more]
        return calls.run(argv, self._connect, self._left.of(self._deadline_s))

    def _check_known(self, subject: str) -> None:
        """Raises ActError unless the runtime's container of that id is in the cgroup that has its
        name."""
        runtime, number = _parts(subject)
        group, tree = self._group(subject), cpuset.find()
        pid = _pid_of(self._call(QUESTIONS[runtime], number), runtime, number)
        path = cpuset.path_of(tree, pid)
        if path is None:
            raise GoneError(f"container {subject[:32]} has ended: process {pid} is not there")
        if not f"{tree.at(path)}/".startswith(f"{group}/"):
            raise ActError(
                f"{group} has the name of container {number[:12]}, but {runtime} says that its "
                f"process is {pid}, which is in {path}",
                f"find out who made that cgroup: ls -ld {group}; systemd-cgls",
            )

    def _group(self, subject: str) -> Path:
        """Folder of its cgroup. Raises GoneError, ActError."""
        _, number = _parts(subject)
        tree = cpuset.find()
        faked: ActError | None = None
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
            owner = _others(tree.mount, group)
            if owner is not None:
                # The one that root's runtime made may be there, too.
                faked = owner
                continue
            # crun keeps a group of its own below the scope that systemd made, and sets that one.
            below = group / "container"
            return below if (below / "cpuset.cpus").exists() else group
        raise faked or GoneError(f"container {subject[:32]} is not there any more")


def _others(mount: Path, group: Path) -> ActError | None:
    """Why a cgroup is not believed to be a container of root's runtime; None: it is. Its own owner
    does not count: a runtime gives a container with a user namespace its cgroup."""
    for folder in group.parents:
        if folder == mount:
            return None
        try:
            seen = folder.stat()
        except FileNotFoundError:
            return GoneError(f"{group} is not there any more")
        if seen.st_uid != 0 or seen.st_mode & stat.S_IWOTH:
            return ActError(
                f"{group} has a container's name, but {folder} is user {seen.st_uid}'s, who may "
                "name what is below it at will: root's runtime is not asked",
                'pin it thread by thread: [pin] allow = ["threads"]',
            )
    return None


def _pid_of(answer: bytes, runtime: str, number: str) -> int:
    """A container's process, as its runtime tells it. Raises ActError."""
    text = answer.decode("utf-8", "replace").strip()
    try:
        told = json.loads(text) if text.startswith("{") else {"pid": int(text)}
        pid = told["pid"]
        if isinstance(pid, int) and pid > 0:
            return pid
    except (ValueError, KeyError, RecursionError):
        pid = None
    if pid == 0:
        raise GoneError(f"container {number[:12]} does not run: {runtime} names no process of it")
    raise ActError(
        f"{runtime} was asked for the process of container {number[:12]}: saw "
        f"{visible(text[:80]) or 'nothing'}, expected a number",
        f"{' '.join(QUESTIONS[runtime])} {number[:12]} by hand tells why",
    )


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
