"""What a control group's path tells of a process: its systemd unit, its container.

Every runtime writes the container's id into the path; which one it was stands in the path only
where the runtime puts its name before the id. Names of images and labels are read elsewhere
(discover/containers.py).

Source: runc libcontainer/cgroups (PREFIX-ID.scope, or PARENT/ID with cgroupfs); podman
libpod/container_internal_linux.go and libpod/runtime_ctr.go (libpod-ID, libpod-conmon-ID,
libpod-payload-ID); kubernetes pkg/kubelet/cm (kubepods, podUID); systemd docs/CGROUP_DELEGATION.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container, as its cgroup and (name, image, labels) its runtime tell."""

    runtime: str
    """podman, docker, containerd, crio, lxc, nspawn, or another's own prefix; "": the path does
    not say which."""
    id: str
    cgroup: str
    """Path of the container's own cgroup: what a runtime's update call changes."""
    pod: str | None = None
    """UID of the Kubernetes pod, or id of Podman's; None: it is in no pod."""
    name: str | None = None
    """None, like `image`: its runtime was not asked, or did not answer."""
    image: str | None = None
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def kubernetes(self) -> bool:
        """Whether a kubelet owns it: then its cgroup is the kubelet's to write."""
        return "kubepods" in self.cgroup


_ID = r"[0-9a-f]{64}"
_RUNTIMES = {
    "libpod": "podman",
    "libpod-payload": "podman",
    "docker": "docker",
    "cri-containerd": "containerd",
    "nerdctl": "containerd",
    "crio": "crio",
}
_NAMED = re.compile(rf"([a-z][a-z0-9_-]*)-({_ID})(?:\.scope)?")
_COLONS = re.compile(rf"[^:]*:([a-z][a-z0-9_-]*):({_ID})")
"""containerd's cgroupfs driver given a systemd path: SLICE:PREFIX:ID is one directory's name."""
_BARE = re.compile(_ID)
_TASK = re.compile(r"([0-9a-f]{32})-\d+")
"""A container of Amazon ECS on Fargate: TASK-NUMBER."""
_LXC = re.compile(r"lxc\.payload\.(.+)")
_NSPAWN = re.compile(r"systemd-nspawn@(.+)\.service")
_UUID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}"
_POD = re.compile(rf"(?:.*-)?pod({_UUID}|[0-9a-f]{{32}})(?:\.slice)?(?::.*)?")
"""The static pods' UID is a hash without dashes. In a slice's name `-` is written `_`."""
_LIBPOD_POD = re.compile(rf"(?:[a-z]+-)?libpod_pod_({_ID})\.slice")
_UNIT = re.compile(r".+\.(?:service|scope)")
_USER = re.compile(r"user@\d+\.service")


def container_of(path: str) -> Container | None:
    """The innermost container that a cgroup path names; None: it names none.

    A runtime's monitor (conmon) beside the container is none. A process of rootless Podman with
    cgroups of version 1 stays in its user's session, where nothing tells.
    """
    parts = path.split("/")
    found: tuple[str, str, int] | None = None
    for at, part in enumerate(parts):
        told = _told(parts, at, part)
        if told is not None:
            found = (*told, at)
    if found is None or any("conmon" in p for p in parts[found[2] :]):
        return None
    runtime, number, at = found
    return Container(
        runtime=runtime, id=number, cgroup="/".join(parts[: at + 1]), pod=_pod(parts[: at + 1])
    )


def _told(parts: list[str], at: int, part: str) -> tuple[str, str] | None:
    """(runtime, id) of one part of a path."""
    before = parts[at - 1] if at else ""
    named = _NAMED.fullmatch(part) or _COLONS.fullmatch(part)
    if named is not None:
        return _RUNTIMES.get(named[1], named[1]), named[2]
    if _BARE.fullmatch(part):
        if at + 1 < len(parts) and parts[at + 1].startswith("libpod-"):
            return None  # a pod of Podman's with cgroupfs
        return ("docker" if before == "docker" else ""), part
    task = _TASK.fullmatch(part)
    if task is not None and "ecs" in parts[:at]:
        return "", part
    lxc = _LXC.fullmatch(part)
    if lxc is not None:
        return "lxc", lxc[1]
    if before in ("lxc", "lxc.payload") and part:
        return "lxc", part
    nspawn = _NSPAWN.fullmatch(part)
    return None if nspawn is None else ("nspawn", nspawn[1])


def _pod(parts: list[str]) -> str | None:
    for part in reversed(parts):
        kube = _POD.fullmatch(part)
        if kube is not None:
            return kube[1].replace("_", "-")
        podman = _LIBPOD_POD.fullmatch(part)
        if podman is not None:
            return podman[1]
    if len(parts) > 1 and parts[-1].startswith("libpod-") and _BARE.fullmatch(parts[-2]):
        return parts[-2]
    return None


def unit_of(path: str) -> str | None:
    """The systemd unit (a service or a scope) that a cgroup path lies in; None: in none.

    The outermost counts, for what is below it may be a container's own; only below a user's
    manager (user@1000.service) it is the next one.
    """
    units = [p for p in path.split("/") if _UNIT.fullmatch(p)]
    ours = [u for u in units if not _USER.fullmatch(u)]
    return next(iter(ours or units), None)
