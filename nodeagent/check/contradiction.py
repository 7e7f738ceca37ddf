"""contradiction: sources that disagree. Say who says what; guess nothing."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check.locality import data_nics, neighbours
from nodeagent.check.record import (
    ASK_OPERATOR,
    MEASURE,
    Judged,
    NotApplicable,
    Seen,
    check,
    ok,
    saw,
    some,
    warn,
)
from nodeagent.model.finding import Evidence


@check(
    "contradiction.gpu-node-unknown",
    "the firmware tells each GPU's and NIC's NUMA node",
    means="WARN when sysfs says numa_node -1 for a GPU or data NIC on a machine with "
    "several nodes. "
    "-1 is unknown, never node 0; what NVML says of that GPU is shown beside it. OK with one node.",
    why="Frameworks read -1 as 0 and put the worker on the wrong socket.",
    prove="cat /sys/bus/pci/devices/BDF/{numa_node,local_cpulist}; nvidia-smi topo -m",
    mend="Update the BIOS (its ACPI _PXM is missing on that root bridge); until then use NVML's "
    "affinity, and where neither knows pin no memory. In a virtual machine ask for pxb-pcie.",
    source="ACPI specification 6.5, section 6.2.15 (_PXM); Linux Documentation/ABI/testing/"
    "sysfs-bus-pci, numa_node",
)
def gpu_node_unknown(s: Seen) -> Iterator[Judged]:
    """Devices without a node."""
    s.devices()
    topology = s.snapshot.topology
    gpus = [p for p in topology.gpus if p.computes]
    devices = gpus + [p for p in data_nics(s) if gpus]
    if s.snapshot.pasted is not None:
        # Somebody who pastes a device's numa_node asks about it, whatever it is; a paste that does
        # not speak of nodes tells nothing of the firmware.
        devices = [p for p in devices if p.numa_node is not None]
        devices += [p for p in topology.pci if p.numa_node is None and _asked(s, p.bdf)]
    if not devices:
        raise NotApplicable("no GPU is here")
    s.device_nodes()
    untold = [p for p in devices if p.numa_node is None]
    if not untold:
        yield ok("pci", f"the nodes of {len(devices)} GPUs and NICs are told")
        return
    if len(topology.nodes) == 1:
        yield ok("pci", "there is one NUMA node only")
        return
    nvml = {g.bdf: g for g in s.snapshot.gpus}
    knows = [
        f"{p.bdf} on node {nvml[p.bdf].numa_node}"
        if nvml[p.bdf].numa_node is not None
        else f"{p.bdf} near CPUs {nvml[p.bdf].cpu_affinity}"
        for p in untold
        if p.bdf in nvml
        and (nvml[p.bdf].numa_node is not None or nvml[p.bdf].cpu_affinity is not None)
    ]
    yield warn(
        some((p.bdf for p in untold), 16),
        f"the firmware does not tell the NUMA node of {len(untold)} devices"
        + (
            f"; NVML says {some(knows)} (inferred)"
            if knows
            else "; nothing else that was read tells it"
        ),
        *(saw(f"sys/bus/pci/devices/{p.bdf}/numa_node", "-1") for p in untold[:3]),
        *(Evidence(path="NVML", text=k) for k in knows[:3]),
        remedy=f"{ASK_OPERATOR}; GPUs on a pxb-pcie of their node"
        if s.snapshot.host.virtual
        else "nvidia-smi topo -C -M -i N  # bind by what it says, or not at all; update the BIOS",
    )


def _asked(s: Seen, bdf: str) -> bool:
    return f"sys/bus/pci/devices/{bdf}/numa_node" in s.snapshot.texts


@check(
    "contradiction.local-cpus",
    "a device's local CPUs are its node's CPUs",
    means="WARN when local_cpulist of a GPU or data NIC shares no CPU with its own numa_node's "
    "cpulist.",
    why="One of the two is wrong, and different tools use different ones.",
    prove="cat /sys/bus/pci/devices/BDF/{numa_node,local_cpulist}; "
    "cat /sys/devices/system/node/node*/cpulist",
    mend="Measure (bandwidth from each node) before pinning; update the firmware.",
    source="Linux drivers/pci/pci-sysfs.c: local_cpulist comes from the device's node",
)
def local_cpus(s: Seen) -> Iterator[Judged]:
    """local_cpulist against the node's list."""
    s.devices()
    s.device_nodes()
    s.whole("sys/devices/system/node", leaf="cpu")
    for leaf in ("local_cpulist", "local_cpus"):
        s.whole("sys/devices/pci", "sys/bus/pci", leaf=leaf)
    topology = s.snapshot.topology
    judged = 0
    wrong = []
    for p in [*(g for g in topology.gpus if g.computes), *data_nics(s)]:
        node = topology.node(p.numa_node) if p.numa_node is not None else None
        if node is None or not node.cpus or not p.local_cpus:
            continue
        judged += 1
        if not p.local_cpus & node.cpus:
            wrong.append((p, node))
    if not judged:
        raise NotApplicable("no GPU or NIC tells both its node and its CPUs")
    for p, node in wrong:
        yield warn(
            p.bdf,
            f"{p.bdf} is on node {node.id} (CPUs {node.cpus}), but its local CPUs are "
            f"{p.local_cpus}",
            saw(f"sys/bus/pci/devices/{p.bdf}/numa_node", str(node.id)),
            saw(f"sys/bus/pci/devices/{p.bdf}/local_cpulist", str(p.local_cpus)),
            remedy=MEASURE,
        )
    if not wrong:
        yield ok("pci", f"{judged} GPUs and NICs agree with their nodes")


@check(
    "contradiction.nvml",
    "sysfs and NVML put each GPU on the same node",
    means="WARN when NVML's NUMA node or CPU affinity of a GPU differs from sysfs.",
    why="vLLM and NCCL go by NVML, the kernel and libnuma by sysfs; a worker's threads and memory "
    "then land on different sockets.",
    prove="nvidia-smi topo -m; cat /sys/bus/pci/devices/BDF/{numa_node,local_cpulist}",
    mend="Update driver and BIOS; until then bind by hand and measure.",
    source="NVML API reference, nvmlDeviceGetNumaNodeId, nvmlDeviceGetCpuAffinityWithinScope",
)
def nvml(s: Seen) -> Iterator[Judged]:
    """Two sources for each GPU."""
    s.whole("nvml/reading")
    s.device_nodes()
    topology = s.snapshot.topology
    judged = 0
    wrong = False
    # On Grace, NVML's node is the GPU's own memory node: it differs by design.
    memory_only = {n.id for n in s.memory_only}
    for gpu in s.snapshot.gpus:
        p = topology.function(gpu.bdf)
        if p is None or p.numa_node is None:
            continue
        node = topology.node(p.numa_node)
        said = gpu.numa_node if gpu.numa_node not in memory_only else None
        if said is not None:
            judged += 1
            if said != p.numa_node:
                wrong = True
                yield warn(
                    gpu.bdf,
                    f"sysfs says node {p.numa_node}, NVML says node {said}",
                    saw(f"sys/bus/pci/devices/{gpu.bdf}/numa_node", str(p.numa_node)),
                    Evidence(path="nvmlDeviceGetNumaNodeId", text=str(said)),
                    remedy=MEASURE,
                )
        elif gpu.cpu_affinity and node is not None and node.cpus:
            judged += 1
            if not gpu.cpu_affinity & node.cpus:
                wrong = True
                yield warn(
                    gpu.bdf,
                    f"sysfs says node {node.id} (CPUs {node.cpus}), NVML says CPUs "
                    f"{gpu.cpu_affinity}",
                    saw(f"sys/bus/pci/devices/{gpu.bdf}/numa_node", str(node.id)),
                    Evidence(path="nvmlDeviceGetCpuAffinity", text=str(gpu.cpu_affinity)),
                    remedy=MEASURE,
                )
    if not judged:
        raise NotApplicable("no GPU is described by both sysfs and NVML")
    if not wrong:
        yield ok("gpu", f"sysfs and NVML agree on {judged} GPUs")


def _nodes(a: int | None, b: int | None) -> str:
    return "" if a is None and b is None else f"; nodes {_said(a)} and {_said(b)}"


def _said(node: int | None) -> str:
    return "not told" if node is None else str(node)


@check(
    "contradiction.matrix",
    "the topology matrix agrees with itself",
    means="WARN when two devices of one NUMA node are printed as SYS, devices of "
    "different nodes as "
    "nearer than SYS, or a pair differently in its two rows. A finding says what is printed, not "
    "which of the two is right.",
    why="NCCL and schedulers go by the class, binding goes by the NUMA column; with a "
    "contradiction "
    "one of them is wrong, and peer-to-peer is often off.",
    prove="nvidia-smi topo -m; lspci -tv; cat /sys/bus/pci/devices/*/numa_node",
    mend="Read the root bridges in sysfs; update driver and BIOS; measure peer-to-peer before use "
    "(p2pBandwidthLatencyTest).",
    source="nvidia-smi topo -h",
)
def matrix(s: Seen) -> Iterator[Judged]:
    """Classes against nodes, and rows against columns."""
    m = s.snapshot.matrix
    if m is None or not m.gpus:
        raise NotApplicable("no topology matrix was pasted")
    n = neighbours(s)
    same: list[tuple[str, str]] = []
    apart: list[tuple[str, str]] = []
    skew: list[tuple[str, str]] = []
    for (a, b), c in m.links.items():
        back = m.links.get((b, a))
        if back is not None and back != c and a < b:
            skew.append((a, b))
        if a >= b or a not in n.node or b not in n.node:
            continue
        x, y = n.node[a], n.node[b]
        if x is None or y is None:
            continue
        if x == y and c == "SYS":
            same.append((a, b))
        elif x != y and c in ("PIX", "PXB", "PHB", "NODE"):
            apart.append((a, b))
    for pairs, sentence in (
        (same, "are on one NUMA node, yet the matrix says SYS (across sockets)"),
        (apart, "are on different NUMA nodes, yet the matrix says nearer than SYS"),
        (skew, "are printed differently in their two rows"),
    ):
        if pairs:
            yield warn(
                some((f"{a}-{b}" for a, b in pairs), 6),
                f"{len(pairs)} pairs {sentence}: trust neither",
                *(
                    Evidence(
                        path=m.source,
                        text=f"{a}-{b} {m.links[a, b]}, {b}-{a} "
                        f"{m.links.get((b, a), 'not printed')}"
                        + _nodes(n.node.get(a), n.node.get(b)),
                    )
                    for a, b in pairs[:3]
                ),
                remedy="lspci -tv and /sys/bus/pci/devices/*/numa_node show the real tree; measure "
                "peer-to-peer before use",
            )
    if not (same or apart or skew):
        yield ok(m.source, "classes and NUMA columns agree")
