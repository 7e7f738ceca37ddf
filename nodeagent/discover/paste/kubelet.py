"""CPUs that Kubernetes' managers hand out, and what containers are started with.

Source: Kubernetes pkg/kubelet/cm/cpumanager/state (cpu_manager_state), kubelet.config.k8s.io
reservedSystemCPUs; docker inspect HostConfig; docker run reference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from nodeagent.discover.paste.names import stem_of
from nodeagent.discover.paste.part import Part, cpulist_or_none
from nodeagent.model.hostreport import ContainerOptions, CpuGrant
from nodeagent.model.pasted import Report

_RESERVED = re.compile(
    r"(?:reservedSystemCPUs[\"']?\s*:|--reserved-cpus[= ]|reserved(?:-cpus)?\s*=)\s*[\"']?([\d,-]+)"
)
_RUN = re.compile(r"\b(?:docker|podman|nerdctl)\s+(?:container\s+)?(?:run|create)\b")
_OPTION = re.compile(
    r"--(cpuset-cpus|cpuset-mems|cpus|shm-size|ipc|ulimit|cap-add"
    r"|privileged)(?:[= ]+(\S+))?"
)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.I)
DEFAULT_SHM = 64 << 20
"""Of Docker, Podman and containerd."""


def read_kubelet(text: str, name: str) -> Part | None:
    """All of these in a text; None when it has none."""
    reports: list[Report] = []
    leaf = stem_of(name)[0].rpartition("/")[2]
    for m in _RESERVED.finditer(text):
        cpus = cpulist_or_none(m[1])
        if cpus is not None:
            reports.append(CpuGrant(source=name, what="reserved", owner="system", cpus=cpus))
    if re.fullmatch(r"reserved(?:[-_]?(?:system)?[-_]?cpus)?", leaf, re.I):
        cpus = cpulist_or_none(text.strip()) if len(text) < 4096 else None
        if cpus is not None:
            reports.append(CpuGrant(source=name, what="reserved", owner="system", cpus=cpus))
    if text.lstrip()[:1] in ("{", "["):
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            data = None
        reports += _json(data, name)
    joined = re.sub(r"\\\s*\n", " ", text)
    for line in joined.split("\n"):
        if _RUN.search(line):
            reports.append(_run(line, name))
    reports += _pod_yaml(text, name)
    return Part(kind="containers", reports=tuple(reports)) if reports else None


def size_of(text: str) -> int | None:
    """`64m`, `16g`, `16Gi`, bytes; None for anything else."""
    m = _SIZE.fullmatch(text.strip().strip("\"'"))
    if m is None or m[1].count(".") > 1 or m[1] == ".":
        return None
    return int(float(m[1]) * (1 << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[m[2].lower()]))


def _json(data: object, name: str) -> Iterator[Report]:
    if isinstance(data, list):
        for item in data[:1000]:
            yield from _json(item, name)
        return
    if not isinstance(data, dict):
        return
    if ("policyName" in data and "entries" in data) or "defaultCpuSet" in data:
        default = cpulist_or_none(str(data.get("defaultCpuSet") or ""))
        if default is not None:
            yield CpuGrant(source=name, what="default", owner="shared pool", cpus=default)
        entries = data.get("entries")
        for pod, containers in entries.items() if isinstance(entries, dict) else ():
            for container, cpus in containers.items() if isinstance(containers, dict) else ():
                found = cpulist_or_none(str(cpus))
                if found is not None:
                    owner = f"{str(pod)[:13]}/{container}"
                    yield CpuGrant(source=name, what="assigned", owner=owner, cpus=found)
    host = data.get("HostConfig")
    if isinstance(host, dict):
        yield _inspect(data, host, name)


def _inspect(data: Mapping[str, object], host: Mapping[str, object], name: str) -> ContainerOptions:
    nano, shm, caps = host.get("NanoCpus"), host.get("ShmSize"), host.get("CapAdd")
    limits = host.get("Ulimits")
    memlock = next(
        (str(u.get("Soft")) for u in limits if isinstance(u, dict) and u.get("Name") == "memlock"),
        None,
    ) if isinstance(limits, list) else None  # fmt: skip
    return ContainerOptions(
        source=name,
        name=str(data.get("Name") or "container").lstrip("/"),
        cpus=cpulist_or_none(str(host.get("CpusetCpus") or "")),
        mems=cpulist_or_none(str(host.get("CpusetMems") or "")),
        quota=nano / 1e9 if isinstance(nano, int) and nano else None,
        shm_bytes=shm if isinstance(shm, int) else None,
        ipc=str(host.get("IpcMode") or "") or None,
        memlock=memlock,
        cap_add=tuple(str(c) for c in caps) if isinstance(caps, list) else (),
        privileged=bool(host.get("Privileged")),
    )


def _run(line: str, name: str) -> ContainerOptions:
    options: dict[str, list[str]] = {}
    for m in _OPTION.finditer(line):
        options.setdefault(m[1], []).append((m[2] or "").strip("\"'"))
    last = {k: v[-1] for k, v in options.items()}
    memlock = next((u.partition("=")[2] for u in options.get("ulimit", ()) if "memlock" in u), None)
    quota = last.get("cpus", "")
    given = size_of(last["shm-size"]) if "shm-size" in last else None
    ipc = last.get("ipc")
    return ContainerOptions(
        source=name,
        name="docker run",
        cpus=cpulist_or_none(last.get("cpuset-cpus", "")),
        mems=cpulist_or_none(last.get("cpuset-mems", "")),
        quota=float(quota) if re.fullmatch(r"\d+(?:\.\d+)?", quota) else None,
        shm_bytes=given if given is not None or ipc == "host" else DEFAULT_SHM,
        ipc=ipc,
        memlock=memlock,
        cap_add=tuple(options.get("cap-add", ())),
        privileged="privileged" in options,
    )


def _pod_yaml(text: str, name: str) -> Iterator[ContainerOptions]:
    """A pod's manifest: resources of its containers, and whether memory stands under /dev/shm."""
    if not re.search(
        r"^[ \t]*kind:\s*[\"']?(?:Pod|Deployment|StatefulSet|Job"
        r"|DaemonSet)\b",
        text,
        re.M,
    ):
        return
    if not re.search(r"^[ \t]*-?\s*containers:", text, re.M):
        return
    limits = _block(text, "limits")
    requests = _block(text, "requests") or limits
    cpu = limits.get("cpu", "")
    whole = re.fullmatch(r"\d+(?:000m)?", cpu) is not None
    same = all(requests.get(k) == v for k, v in limits.items() if k in ("cpu", "memory"))
    shm = re.search(r"mountPath:\s*[\"']?/dev/shm", text)
    in_memory = re.search(r"medium:\s*[\"']?Memory", text)
    size = re.search(r"sizeLimit:\s*[\"']?([\w.]+)", text)
    asked = size_of(size[1]) if size else None
    bytes_ = asked if shm and in_memory else DEFAULT_SHM
    yield ContainerOptions(
        source=name,
        name="pod",
        shm_bytes=bytes_,
        ipc="host" if re.search(r"hostIPC:\s*true", text) else None,
        guaranteed=whole and same and "memory" in limits if limits or requests else False,
    )


def _block(text: str, key: str) -> dict[str, str]:
    m = re.search(rf"^(\s*){key}:\s*\n((?:\1\s+\S.*\n?)+)", text, re.M)
    if m is None:
        return {}
    pairs = re.findall(r"^[ \t]*([\w./-]+):\s*[\"']?([\w.]+)", m[2], re.M)
    return dict(pairs)
