"""cgroup v2 folders as an act sees them: the CPUs of a group, of its parent, and the controller.

Source: Documentation/admin-guide/cgroup-v2.rst, "Cpuset Interface Files" and "Enabling and
Disabling".
"""

from __future__ import annotations

import errno
from pathlib import Path

from nodeagent.errors import ActError, ParseError, RightsError, UnavailableError
from nodeagent.model.cpuset import CpuSet
from nodeagent.pin.affinity import GoneError

MOUNT = Path("/sys/fs/cgroup")


def mount() -> Path:
    """The unified hierarchy. Raises UnavailableError on cgroup v1."""
    if not (MOUNT / "cgroup.controllers").exists():
        raise UnavailableError(
            f"{MOUNT}: no cgroup v2 is mounted there, and systemd and the container runtimes hold "
            "CPUs on v2 only",
            'use [pin] allow = ["threads"]',
        )
    return MOUNT


def folder(path: str) -> Path:
    """Of a cgroup path. Raises UnavailableError, ActError for a path that leads out."""
    if not path.startswith("/") or ".." in path.split("/"):
        raise ActError(f"{path!r} is no cgroup path", "expected /NAME or /NAME/NAME")
    return mount() / path.lstrip("/")


def read(path: Path) -> str:
    """One control file. Raises GoneError, ActError."""
    try:
        return path.read_text().strip()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise GoneError(f"{path} is not there any more") from error
    except OSError as error:
        if error.errno == errno.ENODEV:
            raise GoneError(f"{path} is not there any more") from error
        raise ActError(f"{path}: {error.strerror}") from error


def write(path: Path, text: str) -> None:
    """One value into one control file. Raises GoneError, RightsError, ActError."""
    try:
        path.write_text(text or "\n")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise GoneError(f"{path} is not there any more") from error
    except OSError as error:
        raise explained(path, text, error) from error


def explained(path: Path, text: str, error: OSError) -> ActError | RightsError:
    """What the kernel's answer to a write means."""
    match error.errno:
        case errno.ENODEV:
            return GoneError(f"{path} is not there any more")
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return RightsError(
                f"{path}: may not be set to {text or 'nothing'}: {error.strerror}",
                "run the actor as root with a writable cgroup mount",
            )
        case errno.EINVAL | errno.ERANGE:
            why = "the kernel does not take that value there"
        case errno.ENOSPC:
            why = "its processes would be left without a CPU"
        case errno.EBUSY:
            why = "it is in use"
        case _:
            why = error.strerror or str(error)
    return ActError(f"{path}: could not be set to {text or 'nothing'}: {why}")


def cpus_of(path: Path) -> CpuSet:
    """A cpulist file. Raises GoneError, ActError."""
    text = read(path)
    try:
        return CpuSet.parse(text)
    except ParseError as error:
        raise ActError(f"{path}: saw {text[:80]!r}, expected a CPU list") from error


def controlled(group: Path) -> bool:
    """Whether the cpuset controller is on for that group."""
    return (group / "cpuset.cpus").exists()


def given(group: Path) -> list[str]:
    """Controllers that a group gives to its children. Raises GoneError, ActError."""
    return read(group / "cgroup.subtree_control").split()


def offered(group: Path) -> CpuSet:
    """CPUs that a group's parent has to give. Raises GoneError, ActError."""
    return cpus_of(group.parent / "cpuset.cpus.effective")


def clear(group: Path, raw: str) -> None:
    """`cpuset.cpus` back to `raw`; nothing may be written as nothing only while nobody is in the
    group, so otherwise every CPU of the parent is named, which means the same.

    Raises GoneError, RightsError, ActError.
    """
    file = group / "cpuset.cpus"
    if not controlled(group) or read(file) == raw:
        return
    if raw:
        write(file, raw)
        return
    try:
        write(file, "")
    except ActError as error:
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.ENOSPC:
            raise
        write(file, str(offered(group)))
