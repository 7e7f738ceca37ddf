"""cgroup cpusets of ours, below /nodeagent: made, filled, read back, emptied, removed. v1 and v2.

On v2 the cpuset controller must already be on at the root: turning it on is a change to the whole
host (it resets affinities), and on v2 `cpuset.mems` is not written, because the kernel would move
the pages of a running process (docs/adr/0003). On v1 nothing migrates unless memory_migrate is set.
Source: cpuset(7), Documentation/admin-guide/cgroup-v2.rst "Cpuset".
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

from nodeagent.errors import ActError, RightsError, UnavailableError
from nodeagent.model.placement import PARTITION_ROOT
from nodeagent.pin.proc import PROC

PREFIX = "/nodeagent"
_NAME = re.compile(r"/nodeagent[/.][A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OWNED = re.compile(r"kubepods|docker|libpod|crio|containerd|slurm|lxc", re.IGNORECASE)
_SYSTEMD = re.compile(r"\.(?:service|scope)(?:/|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """Where cpusets are mounted, and as which version."""

    version: int
    mount: Path

    def at(self, path: str) -> Path:
        """Folder of a cgroup path."""
        return self.mount / path.lstrip("/")


def find() -> Hierarchy:
    """The mounted hierarchy with the cpuset controller. Raises UnavailableError."""
    # Any user can mount something at a path that is no UTF-8.
    text = os.fsdecode((PROC / "self/mountinfo").read_bytes())
    unified: Path | None = None
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        where = Path(fields[4].replace("\\040", " "))
        if kind[0] == "cgroup" and "cpuset" in kind[-1].split(","):
            return Hierarchy(version=1, mount=where)
        if kind[0] == "cgroup2":
            unified = where
    if unified is not None and "cpuset" in _words(unified / "cgroup.controllers"):
        if "cpuset" in _words(unified / "cgroup.subtree_control"):
            return Hierarchy(version=2, mount=unified)
        raise UnavailableError(
            f"{unified}/cgroup.subtree_control: saw no cpuset, and turning it on would reset "
            "affinities on the whole host",
            'turn it on at a quiet time, or use [pin] allow = ["threads"]',
        )
    raise UnavailableError(
        "no cgroup hierarchy with the cpuset controller is mounted",
        'use [pin] allow = ["threads"]',
    )


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def path_of(hierarchy: Hierarchy, pid: int) -> str | None:
    """cgroup path of a process in that hierarchy; None: it has ended. Raises ActError."""
    try:
        data = (PROC / str(pid) / "cgroup").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ActError(
            f"process {pid} is in a cgroup whose name is no UTF-8: {data[:200]!r}",
            "it is left where it is",
        ) from error
    for line in text.split("\n")[:-1]:
        _, controllers, path = line.split(":", 2)
        if hierarchy.version == 2 and controllers == "":
            return path
        if hierarchy.version == 1 and "cpuset" in controllers.split(","):
            return path
    return None


def check_ours(path: str) -> None:
    """Raises ActError unless `path` is /nodeagent/NAME, or the partition /nodeagent.NAME."""
    if not _NAME.fullmatch(path):
        raise ActError(
            f"cpuset {path!r} is none of ours", f"expected {PREFIX}/NAME or {PARTITION_ROOT}NAME"
        )


def is_partition(path: str) -> bool:
    """Whether it is that of a partition, which another act makes, fills and ends
    (pin/partition.py)."""
    return path.startswith(PARTITION_ROOT)


def check_isolated(hierarchy: Hierarchy, path: str) -> None:
    """Raises ActError unless the partition is there and valid."""
    file = hierarchy.at(path) / "cpuset.cpus.partition"
    try:
        verdict = file.read_text().strip()
    except FileNotFoundError:
        verdict = "no such file"
    if verdict != "isolated":
        raise ActError(
            f"{file}: saw {verdict[:200]!r}, expected 'isolated'; nobody is moved there",
            "nodeagentctl events tells why the partition was not made",
        )


def check_free(hierarchy: Hierarchy, path: str) -> None:
    """Raises ActError when a process in `path` is somebody else's to place."""
    if ".." in path.split("/"):
        # cgroup_namespaces(7): how a cgroup above our own root is shown.
        raise ActError(
            f"cgroup {path} is outside the cgroup namespace of the actor",
            "run the actor in the host's cgroup namespace",
        )
    if _OWNED.search(path):
        raise ActError(
            f"cgroup {path} belongs to a container runtime or scheduler, which would undo a move",
            "place it through that runtime; nodeagent leaves it alone",
        )
    if hierarchy.version == 2 and _SYSTEMD.search(path):
        raise ActError(
            f"cgroup {path} belongs to systemd, which would lose sight of the process",
            'set AllowedCPUs= on that unit, or use [pin] allow = ["threads"]',
        )


def values(hierarchy: Hierarchy, path: str) -> tuple[str, str] | None:
    """(cpus, mems) as written; None: there is no such cpuset."""
    folder = hierarchy.at(path)
    try:
        return (
            (folder / "cpuset.cpus").read_text().strip(),
            (folder / "cpuset.mems").read_text().strip(),
        )
    except FileNotFoundError:
        return None


def make(hierarchy: Hierarchy, path: str) -> None:
    """The cpuset and its parent, the parent as wide as the root. Raises ActError, RightsError."""
    check_ours(path)
    if is_partition(path):
        check_isolated(hierarchy, path)
        return
    parent = hierarchy.at(PREFIX)
    _mkdir(parent)
    if hierarchy.version == 1:
        for name in ("cpuset.cpus", "cpuset.mems"):
            wide = (hierarchy.mount / name).read_text().strip()
            if (parent / name).read_text().strip() != wide:
                write(parent / name, wide)
    elif "cpuset" not in _words(parent / "cgroup.subtree_control"):
        write(parent / "cgroup.subtree_control", "+cpuset")
    _mkdir(hierarchy.at(path))


def fill(hierarchy: Hierarchy, path: str, cpus: str, mems: str) -> None:
    """Writes the values. On v2 `mems` is left to be inherited."""
    if is_partition(path):
        return
    folder = hierarchy.at(path)
    write(folder / "cpuset.cpus", cpus)
    if hierarchy.version == 1:
        write(folder / "cpuset.mems", mems or (hierarchy.mount / "cpuset.mems").read_text().strip())


def move(hierarchy: Hierarchy, path: str, pid: int) -> None:
    """The process with all its threads. Raises ProcessLookupError, ActError, RightsError."""
    write(hierarchy.at(path) / "cgroup.procs", str(pid))


def members(hierarchy: Hierarchy, path: str) -> list[int]:
    """Processes in a cpuset; empty when it is not there."""
    try:
        return [int(w) for w in (hierarchy.at(path) / "cgroup.procs").read_text().split()]
    except FileNotFoundError:
        return []


def remove(hierarchy: Hierarchy, path: str) -> None:
    """The cpuset if nobody is in it, and its parent if that was the last one."""
    check_ours(path)
    if is_partition(path):
        return
    for folder in (hierarchy.at(path), hierarchy.at(PREFIX)):
        if not folder.exists():
            # Asked first: a read-only mount refuses to remove what is not there, too.
            continue
        try:
            folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
                return
            if folder == hierarchy.at(PREFIX) and error.errno == errno.EROFS:
                # Another's leaving, from when it could be written: empty, and nobody is held by it.
                return
            raise ActError(f"{folder}: could not be removed: {error.strerror}") from error


def _mkdir(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise _explained(folder, "made", error) from error


def write(path: Path, text: str) -> None:
    """One value into one control file. Raises ProcessLookupError, ActError, RightsError."""
    try:
        path.write_text(text)
    except ProcessLookupError:
        raise
    except OSError as error:
        raise _explained(path, f"set to {text}", error) from error


def _explained(path: Path, what: str, error: OSError) -> ActError | RightsError:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        why = "read-only" if error.errno == errno.EROFS else "no right to write there"
        return RightsError(
            f"{path}: may not be {what}: {why}",
            'run the actor as root with a writable cgroup mount, or use [pin] allow = ["threads"]',
        )
    words = {
        errno.ENOSPC: "the cpuset has no CPUs or no memory nodes yet",
        errno.EBUSY: "processes are in it",
        errno.EINVAL: "the CPUs or nodes are not there",
        errno.ERANGE: "a number is out of range",
    }
    why = words.get(error.errno or 0, error.strerror or str(error))
    return ActError(f"{path}: could not be {what}: {why}")
