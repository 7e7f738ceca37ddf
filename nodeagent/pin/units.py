"""AllowedCPUs= and AllowedMemoryNodes= of a systemd unit, at run time, through systemd itself.

`SetUnitProperties(runtime=true)` leaves a drop-in in /run that holds the value over every
daemon-reload. Measured on systemd 252: an answer without error does not mean that the kernel took
the value, so it is read back from the cgroup; and setting it to nothing leaves both the drop-in and
`cpuset.cpus` as they were, so undo clears the one and removes the other. RevertUnitFiles is never
used: it removes what others put there too.
Source: systemd.resource-control(5), org.freedesktop.systemd1(5).
"""

from __future__ import annotations

import contextlib
import errno
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.errors import ActError, ParseError, RightsError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.managers import manager_of
from nodeagent.pin import groups, survey, unitfiles
from nodeagent.pin.affinity import GoneError
from nodeagent.pin.proc import Thread
from nodeagent.pin.step import step

if TYPE_CHECKING:
    from nodeagent.pin.bus import Bus

SYSTEMD = "org.freedesktop.systemd1"
MANAGER = "/org/freedesktop/systemd1"
RUNTIME = Path("/run/systemd/system.control")
TRANSIENT = Path("/run/systemd/transient")
SETTLE_S = 2.0
"""systemd answers before it has written the cgroup."""
MAX_CPUS = 8192
_NAME = re.compile(r"[A-Za-z0-9:_.@\\-]{1,240}\.(service|scope|slice)")
_VALUE = re.compile(r"(none|[0-9,-]+)( by drop-in)?(?: over ([0-9,-]+))?")
_HOST = re.compile(r"-\.slice|(?:system|user|machine|init)\.slice|init\.scope|user-\d+\.slice")
_OWNED = re.compile(r"(?:kubepods|slurm|libpod|docker-|crio|cri-containerd|nerdctl-|runc-|crun-).*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """What is set: `ids` None is nothing. `drop_in`: by the runtime drop-in of this property.
    `raw`: what its cgroup's file says although nothing is set."""

    ids: CpuSet | None
    drop_in: bool = False
    raw: str = ""

    def __str__(self) -> str:
        told = "none" if self.ids is None else str(self.ids)
        return told + " by drop-in" * self.drop_in + f" over {self.raw}" * bool(self.raw)

    @classmethod
    def parse(cls, text: str) -> Value:
        """Raises ActError."""
        found = _VALUE.fullmatch(text)
        try:
            ids = None if not found or found[1] == "none" else CpuSet.parse(found[1])
        except ParseError:
            found = None
        if found is None or (ids is not None and (not ids or max(ids) >= MAX_CPUS)):
            raise ActError(f"{text[:80]!r} is no value of a unit", "expected a list such as 4-7")
        return cls(ids=ids, drop_in=bool(found[2]), raw=found[3] or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A loaded unit. `cgroup` None: it does not run."""

    name: str
    cgroup: str | None
    transient: bool
    ids: CpuSet | None
    at: str
    """Its object on the bus."""


class UnitProperty:
    """The door to one of the two. `host`: whether the controller may be turned on for it."""

    def __init__(
        self, bus: Callable[[], Bus], name: str, file: str, *, host: bool, moves_memory: bool
    ) -> None:
        # Made when it is needed: a loop and a library that most actors never use.
        self._connect, self._name, self._file = bus, name, file
        self._host, self._moves_memory = host, moves_memory

    # What Values asks for.

    def check(self, subject: str, value: str) -> None:
        """A unit's name and a list; none of the units that are the host itself, or that somebody
        else places; nothing that a file of somebody's says otherwise."""
        if not _NAME.fullmatch(subject):
            raise ActError(f"{subject[:80]!r} is no name of a service, scope or slice")
        if _HOST.fullmatch(subject):
            raise ActError(f"{subject} is a part of the host itself", "name a unit of your own")
        if _OWNED.match(subject):
            raise ActError(
                f"{subject} belongs to a container runtime or scheduler, which would undo it",
                "place it through that runtime; nodeagent leaves it alone",
            )
        ids = Value.parse(value).ids
        if ids is None or Value.parse(value) != Value(ids=ids):
            raise ActError(f"{subject}: {value[:80]!r} is no list", "nodeagentctl place plan")
        unit = self._unit(subject)
        manager = manager_of(unit.cgroup or "")
        if manager is not None:
            raise ActError(
                f"{unit.name} is in cgroup {unit.cgroup!r}, which {manager.name} owns and places",
                manager.instead,
            )
        self._check_files(unit, ids)

    def same(self, one: str, other: str) -> bool:
        """As sets; how they came to be set is no difference."""
        return Value.parse(one).ids == Value.parse(other).ids

    def read(self, subject: str) -> str:
        """What systemd says is set, by which file, and what the cgroup says beside it."""
        unit = self._unit(subject)
        raw = ""
        if unit.cgroup is not None and unit.ids is None:
            file = groups.folder(unit.cgroup) / self._file
            with contextlib.suppress(GoneError):
                raw = groups.read(file)
        return str(Value(ids=unit.ids, drop_in=self._drop_in(unit).exists(), raw=raw))

    def write(self, subject: str, value: str) -> None:
        """Sets it, and waits until the cgroup shows it."""
        wanted, unit = Value.parse(value), self._unit(subject)
        if wanted.ids is not None:
            self._check(unit, wanted.ids)
        self._set(unit, wanted.ids)
        step("unit.set")
        if wanted.ids is not None and unit.cgroup is not None:
            self._await(unit, wanted.ids)

    def settle(self, subject: str, before: str) -> None:
        """After undo: what systemd leaves behind, put back as it was. Any number of times."""
        former = Value.parse(before)
        try:
            unit = self._unit(subject)
        except GoneError:
            _remove(self._path(RUNTIME, subject))
            return
        if unit.cgroup is not None and unit.ids is None and not self._moves_memory:
            with contextlib.suppress(GoneError):
                groups.clear(groups.folder(unit.cgroup), former.raw)
        step("unit.cleared")
        if not former.drop_in:
            _remove(self._drop_in(unit))

    def threads(self, subject: str) -> tuple[list[Thread], list[Thread]]:
        """(of the unit, elsewhere and bound): whose masks a write may take."""
        unit = self._unit(subject)
        if unit.cgroup is None:
            return [], []
        group = groups.folder(unit.cgroup)
        mine = survey.threads_below(group)
        if groups.controlled(group):
            return mine, []
        return mine, survey.bound_threads(frozenset(t.tid for t in mine))

    def cpus(self, value: str) -> CpuSet | None:
        """As a set; None: nothing is set, or it is none of CPUs."""
        return None if self._moves_memory else Value.parse(value).ids

    def in_force(self, subject: str, value: str) -> bool:
        """What systemd has may not be what its cgroup has. Of memory nodes nothing is asked: the
        unit must be stopped to set them."""
        unit, ids = self._unit(subject), Value.parse(value).ids
        if unit.cgroup is None or ids is None or self._moves_memory:
            return True
        now = self.room(subject)
        return bool(now) and now <= ids

    def room(self, subject: str) -> CpuSet:
        """The CPUs that its cgroup may use now; empty: it does not run, or nothing holds it."""
        unit = self._unit(subject)
        if unit.cgroup is None or not groups.controlled(groups.folder(unit.cgroup)):
            return CpuSet()
        return groups.cpus_of(groups.folder(unit.cgroup) / "cpuset.cpus.effective")

    # How.

    def _unit(self, subject: str) -> Unit:
        bus = self._connect()
        (path,) = bus.call(MANAGER, f"{SYSTEMD}.Manager", "LoadUnit", "s", (subject,), returns="o")
        assert isinstance(path, str)  # the signature says so
        general, kind = f"{SYSTEMD}.Unit", f"{SYSTEMD}.{subject.rpartition('.')[2].capitalize()}"
        if bus.get(path, general, "LoadState") != "loaded":
            raise GoneError(f"{subject} is no unit of this host any more")
        name = bus.get(path, general, "Id")
        if name != subject:
            raise ActError(f"{subject} is another name of {str(name)[:80]}", "name it by that one")
        ids = bus.get(path, kind, self._name)
        cgroup = bus.get(path, kind, "ControlGroup")
        return Unit(
            name=subject,
            cgroup=cgroup if isinstance(cgroup, str) and cgroup else None,
            transient=bus.get(path, general, "Transient") is True,
            ids=_ids(ids, self._name),
            at=path,
        )

    def _path(self, folder: Path, subject: str) -> Path:
        return folder / f"{subject}.d" / f"50-{self._name}.conf"

    def _drop_in(self, unit: Unit) -> Path:
        return self._path(TRANSIENT if unit.transient else RUNTIME, unit.name)

    def _check(self, unit: Unit, wanted: CpuSet) -> None:
        if unit.cgroup is None:
            return
        group = groups.folder(unit.cgroup)
        if self._moves_memory and any(survey.pids_below(group)):
            raise ActError(
                f"{unit.name} has processes, whose memory the kernel would move at once",
                "set it while the unit is stopped; a running process's memory is moved in steps",
            )
        if not groups.controlled(group):
            # Below the root it touches one slice, whose threads' masks are kept (survey.py).
            if not self._host and "cpuset" not in groups.given(groups.mount()):
                raise RightsError(
                    f"{groups.mount()}/cgroup.subtree_control: saw no cpuset, and turning it on "
                    "resets affinities on the whole host before Linux 6.2",
                    'add "host" to [pin] allow, or use [pin] allow = ["threads"]',
                )
            return
        above = groups.cpus_of(group.parent / f"{self._file}.effective")
        if not wanted <= above:
            raise ActError(
                f"{group.parent} has {above} to give, and {wanted} is asked for",
                "nodeagentctl place plan, on the machine as it is now",
            )

    def _check_files(self, unit: Unit, wanted: CpuSet) -> None:
        """Raises ActError where what somebody wrote into a file says otherwise."""
        bus, ours = self._connect(), self._drop_in(unit)
        told = bus.get(unit.at, f"{SYSTEMD}.Unit", "DropInPaths")
        read = [p for p in _paths(told if isinstance(told, list) else []) if p != ours]
        every = [p for p in unitfiles.drop_ins(unit.name, read) if p != ours]
        later = unitfiles.setting(self._name, (p for p in every if p.name >= ours.name))
        if later is not None:
            raise ActError(
                f"{later.path} sets {self._name}= and would win at the next daemon-reload",
                f"set {wanted} there, or take the line out",
            )
        files = (*_paths([bus.get(unit.at, f"{SYSTEMD}.Unit", "FragmentPath")]), *every)
        theirs = unitfiles.setting(self._name, files)
        if theirs is not None and theirs.text and not (theirs.ids and wanted <= theirs.ids):
            raise ActError(
                f"{theirs.path} sets {self._name}={theirs.text[:80]}, and {wanted} is not within "
                "it; what a file of somebody's says is not overruled",
                f"set {wanted} there, or take the line out; or name some of its CPUs by cpu_list",
            )
        if self._moves_memory or not unit.name.endswith(".service"):
            return
        bound = _ids(bus.get(unit.at, f"{SYSTEMD}.Service", "CPUAffinity"), "CPUAffinity")
        if bound is None or wanted <= bound:
            return
        line = unitfiles.setting("CPUAffinity", files)
        raise ActError(
            f"{line.path if line else unit.name} sets CPUAffinity={bound}, and {wanted} is not "
            "within it; what a file of somebody's says is not overruled",
            "take the line out and restart the unit, or name some of its CPUs by cpu_list",
        )

    def _set(self, unit: Unit, ids: CpuSet | None) -> None:
        from dbus_fast import Variant

        self._connect().call(
            *(MANAGER, f"{SYSTEMD}.Manager", "SetUnitProperties", "sba(sv)"),
            (unit.name, True, [[self._name, Variant("ay", _bytes(ids or ()))]]),
        )

    def _await(self, unit: Unit, wanted: CpuSet) -> None:
        assert unit.cgroup is not None
        file = groups.folder(unit.cgroup) / f"{self._file}.effective"
        end = time.monotonic() + SETTLE_S
        while True:
            now = groups.cpus_of(file) if file.exists() else None
            if now == wanted:
                return
            if time.monotonic() > end:
                raise ActError(
                    f"systemd took {self._name}={wanted} for {unit.name}, and {file} says "
                    f"{'nothing, for the controller is off there' if now is None else now}",
                    "journalctl -u init.scope tells why systemd could not set it",
                )
            time.sleep(0.02)


def _paths(values: Iterable[object]) -> tuple[Path, ...]:
    return tuple(Path(value) for value in values if isinstance(value, str) and value)


def _ids(value: object, name: str) -> CpuSet | None:
    if not isinstance(value, bytes) or len(value) > MAX_CPUS // 8:
        raise ActError(f"systemd: {name} is {str(value)[:80]!r}, expected up to 1,024 bytes")
    found = CpuSet.of(i * 8 + b for i, v in enumerate(value) for b in range(8) if v >> b & 1)
    return found or None


def _bytes(ids: Iterable[int]) -> bytes:
    ids = list(ids)
    out = bytearray((max(ids, default=-1) + 8) // 8)
    for i in ids:
        out[i // 8] |= 1 << i % 8
    return bytes(out)


def _remove(path: Path) -> None:
    """The drop-in, and its folder if that was the last one. systemd forgets it at its next reload.

    Raises RightsError, ActError.
    """
    try:
        path.unlink(missing_ok=True)
        step("unit.removed")
        path.parent.rmdir()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise RightsError(
                f"{path}: may not be removed: {error.strerror}",
                "let the actor write in /run/systemd/system.control and /run/systemd/transient",
            ) from error
        raise ActError(f"{path}: could not be removed: {error.strerror}") from error


def unit_cpus(bus: Callable[[], Bus], *, host: bool) -> UnitProperty:
    """The door to AllowedCPUs=."""
    return UnitProperty(bus, "AllowedCPUs", "cpuset.cpus", host=host, moves_memory=False)


def unit_mems(bus: Callable[[], Bus], *, host: bool) -> UnitProperty:
    """The door to AllowedMemoryNodes=: of a unit without processes only."""
    return UnitProperty(bus, "AllowedMemoryNodes", "cpuset.mems", host=host, moves_memory=True)
