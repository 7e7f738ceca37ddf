"""Launch snippets: a placed workload as docker, podman, compose, Kubernetes and systemd take it.

Source: docker run and podman run manuals; the Compose specification (services: cpuset, shm_size,
ipc; it has no key for memory nodes); Kubernetes "Control CPU Management Policies on the Node";
moby profiles/seccomp/default.json (mempolicy calls need CAP_SYS_NICE); systemd.resource-control(5)
(AllowedCPUs=, AllowedMemoryNodes=), systemd.exec(5) (NUMAPolicy=).
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from dataclasses import dataclass

from nodeagent.errors import visible
from nodeagent.model.placement import Placed

GIB = 1 << 30
SHM_BYTES = {"llm": 16 * GIB, "vllm": 16 * GIB}
"""Limit of /dev/shm by kind: ranks of one engine pass tensors through it."""
SHM_OTHER_BYTES = 1 * GIB
_PLAIN_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]+\.service")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_AN_ID = re.compile(r"[0-9a-f]{12}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a snippet is made of. `gid` None: the group's number is not known here."""

    placed: Placed
    ring_socket: str
    gid: int | None
    groups: tuple[str, ...]

    @property
    def shm_gib(self) -> int:
        """Size of /dev/shm."""
        return SHM_BYTES.get(self.placed.kind, SHM_OTHER_BYTES) // GIB

    @property
    def container(self) -> str | None:
        """The container's name that the workload is known by; None: a pattern, an id, or none."""
        name = self.placed.match.container if self.placed.match is not None else None
        plain = name is not None and _PLAIN_NAME.fullmatch(name) and not _AN_ID.fullmatch(name)
        return name if plain else None

    @property
    def label(self) -> str | None:
        """The label that it is known by; None: a pattern, or none."""
        label = self.placed.match.label if self.placed.match is not None else None
        return label if label and not set(label) & set("*?[") else None


def snippet(launch: Launch, runtime: str) -> str:
    """The text for one of docker, podman, compose, kubernetes, systemd; ends with a newline."""
    make = {
        "docker": _docker,
        "podman": _podman,
        "compose": _compose,
        "kubernetes": _kubernetes,
        "systemd": _systemd,
    }[runtime]
    return "\n".join(make(launch)) + "\n"


def _docker(launch: Launch) -> list[str]:
    return _run(launch, "docker")


def _podman(launch: Launch) -> list[str]:
    return _run(launch, "podman")


def _run(launch: Launch, tool: str) -> list[str]:
    placed = launch.placed
    socket = launch.ring_socket
    words = [[tool, "run"], ["--name", launch.container or placed.workload]]
    if launch.label is not None:
        words.append(["--label", launch.label])
    words.append([f"--cpuset-cpus={placed.cpus}"])
    if placed.mems:
        words[-1].append(f"--cpuset-mems={placed.mems}")
    words += [
        ["--cap-add=SYS_NICE"],
        ["--ipc=private", f"--shm-size={launch.shm_gib}g"],
        ["--mount", _csv("type=bind", f"source={socket}", f"target={socket}")],
    ]
    if launch.gid is not None:
        words.append([f"--group-add={launch.gid}"])
    lines = [" ".join(map(shlex.quote, w)) for w in words] + ["IMAGE"]
    first, *rest = lines
    joined = [f"{first} \\"] + [f"  {line} \\" for line in rest[:-1]] + [f"  {rest[-1]}"]
    user = placed.match.user if placed.match is not None else None
    known = (
        [f"#   Its match wants user {visible(user)}: --user, or the image's USER."] if user else []
    )
    return [*_title(launch, tool), *_why(launch), *known, *joined, ""]


def _csv(*fields: str) -> str:
    """`--mount` takes one line of CSV: a path may hold a comma or a quote."""
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(fields)
    return out.getvalue()


def _title(launch: Launch, what: str) -> list[str]:
    placed = launch.placed
    near = f", near {placed.gpu}" if placed.gpu else ""
    node = f"node {placed.node}{near}" if placed.node is not None else "any node"
    return [f"# {placed.workload} ({placed.kind}) with {what}: CPU {placed.cpus}, {node}"]


def _why(launch: Launch) -> list[str]:
    gid = launch.gid
    names = " or ".join(launch.groups) or "root"
    group = (
        f"#   {gid} is group {names}, which may read rings; root in the container needs it not."
        if gid is not None
        else f"#   Not root in it? Add --group-add=GID of group {names}: getent group {names}"
    )
    return [
        "#   SYS_NICE: without it the default seccomp profile forbids set_mempolicy and mbind.",
        "#   shm-size is a limit, not a reservation; the usual 64 MiB end NCCL in SIGBUS.",
        "#   ring.sock: leave it out where no ring is read. After a restart of nodeagentd it is a",
        "#   new file: restart the container to attach anew (rings that are attached go on).",
        group,
    ]


def _quoted(text: str) -> str:
    """As YAML's double-quoted style, of which JSON's strings are a part."""
    return json.dumps(text)


def _compose(launch: Launch) -> list[str]:
    placed = launch.placed
    socket = _quoted(launch.ring_socket)
    lines = [
        *_title(launch, "compose"),
        "services:",
        f"  {_quoted(placed.workload)}:",
        "    image: IMAGE",
        *([f"    container_name: {_quoted(launch.container)}"] if launch.container else []),
        *([f"    labels: [{_quoted(launch.label)}]"] if launch.label else []),
        f"    cpuset: {_quoted(str(placed.cpus))}",
        "    cap_add: [SYS_NICE]",
        "    ipc: private",
        f"    shm_size: {launch.shm_gib}gb",
    ]
    if launch.gid is not None:
        lines.append(f'    group_add: ["{launch.gid}"]')
    lines += [
        "    volumes:",
        "      - type: bind",
        f"        source: {socket}",
        f"        target: {socket}",
    ]
    if placed.mems:
        lines += [
            "    # Compose has no key for memory nodes. To bind them, start the program in the",
            f"    # image by: numactl --membind={placed.mems} PROGRAM",
        ]
    return [*lines, ""]


def _kubernetes(launch: Launch) -> list[str]:
    placed = launch.placed
    count = len(placed.cpus)
    socket = _quoted(launch.ring_socket)
    memory = placed.memory_bytes or 8 * GIB
    mib = max(1, memory >> 20)
    guess = "" if placed.memory_bytes else "  # a guess: the workload says no memory"
    lines = [
        *_title(launch, "kubernetes"),
        "# A pod cannot name CPUs: the kubelet's static policy gives it whole ones of one node.",
        "# The node's kubelet needs, in its KubeletConfiguration:",
        "#   cpuManagerPolicy: static",
        # An odd number would not be admitted with it where cores have two threads.
        *(['#   cpuManagerPolicyOptions: {full-pcpus-only: "true"}'] if count % 2 == 0 else []),
        "#   memoryManagerPolicy: Static",
        "#   topologyManagerPolicy: single-numa-node",
        "# and nodeagent leaves a kubelet's cgroups alone: keep its CPUs out of this plan.",
        "apiVersion: v1",
        "kind: Pod",
        "metadata:",
        f"  name: {_quoted(_dns(placed.workload))}",
        "spec:",
    ]
    if launch.gid is not None:
        lines += ["  securityContext:", f"    supplementalGroups: [{launch.gid}]"]
    lines += [
        "  containers:",
        f"    - name: {_quoted(_dns(placed.workload))}",
        "      image: IMAGE",
        "      securityContext:",
        "        capabilities:",
        "          add: [SYS_NICE]",
        "      resources:",
        "        # Requests equal to limits, whole CPUs: class Guaranteed, or it is not pinned.",
        f'        requests: {{cpu: "{count}", memory: "{mib}Mi"}}{guess}',
        f'        limits: {{cpu: "{count}", memory: "{mib}Mi"}}',
        "      volumeMounts:",
        "        - {name: shm, mountPath: /dev/shm}",
        f"        - {{name: ring, mountPath: {socket}}}",
        "  volumes:",
        "    - name: shm",
        f"      emptyDir: {{medium: Memory, sizeLimit: {launch.shm_gib}Gi}}",
        "    - name: ring",
        f"      hostPath: {{path: {socket}, type: Socket}}",
    ]
    return [*lines, ""]


def _dns(name: str) -> str:
    """A workload's name as a label of RFC 1123, which is what Kubernetes takes."""
    return re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:63].rstrip("-") or "workload"


def _systemd(launch: Launch) -> list[str]:
    placed = launch.placed
    match = placed.match.unit if placed.match is not None else None
    unit = match if match and _PLAIN_UNIT.fullmatch(match) else f"{placed.workload}.service"
    lines = [
        *_title(launch, "systemd"),
        f"# systemctl edit {shlex.quote(unit)}   (a drop-in; in force at its next start)",
        "[Service]",
        "# With cgroup v2. With v1, instead: CPUAffinity=" + str(placed.cpus),
        f"AllowedCPUs={placed.cpus}",
    ]
    if placed.mems:
        lines += [
            f"AllowedMemoryNodes={placed.mems}",
            "NUMAPolicy=bind",
            f"NUMAMask={placed.mems}",
        ]
    if launch.groups:
        lines.append(f"SupplementaryGroups={launch.groups[0]}")
    return [*lines, ""]
