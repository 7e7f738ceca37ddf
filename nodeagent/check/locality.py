"""locality: are GPUs near the NICs, drives and GPUs they talk to?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nodeagent.check.record import (
    Judged,
    NotApplicable,
    Seen,
    check,
    info,
    ok,
    saw,
    some,
    warn,
)
from nodeagent.model.finding import Evidence
from nodeagent.model.pci import AMD, MELLANOX, PciFunction
from nodeagent.model.topology import Path

ORDER = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Nearest first; a class not listed here (UNKNOWN) is farther than all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """GPUs and NICs with the path between each pair, from sysfs or from a pasted matrix."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    paths: Mapping[frozenset[str], str]
    node: Mapping[str, int | None]
    """NUMA node; None: nobody says."""
    direct: frozenset[frozenset[str]]
    """GPU pairs with NVLink or XGMI."""
    source: str

    def path(self, a: str, b: str) -> str:
        """Class of a pair."""
        return self.paths.get(frozenset((a, b)), "UNKNOWN")

    def nearest(self, gpu: str) -> tuple[str, tuple[str, ...]]:
        """The best class from a GPU to a NIC, and the NICs that have it."""
        by = {nic: self.path(gpu, nic) for nic in self.nics}
        best = min(by.values(), key=rank)
        return best, tuple(n for n in self.nics if by[n] == best)


def rank(path: str) -> int:
    """Position in the order of nearness."""
    return ORDER.index(path) if path in ORDER else len(ORDER)


def data_nics(s: Seen) -> tuple[PciFunction, ...]:
    """The NICs that carry data: those with RDMA, else those of a vendor of such cards, else all.
    Virtual functions are their physical function's."""
    nics = [p for p in s.snapshot.topology.nics if p.physfn is None]
    rdma = {n.bdf for n in s.snapshot.nics if n.rdma}
    return (
        tuple(p for p in nics if p.bdf in rdma)
        or tuple(p for p in nics if p.vendor == MELLANOX)
        or tuple(nics)
    )


def neighbours(s: Seen) -> Neighbours:
    """From the matrix when one was pasted, else from the PCI tree. Raises NotApplicable without
    GPUs."""
    matrix = s.snapshot.matrix
    if matrix is not None and matrix.gpus:
        nodes = {}
        for gpu in matrix.gpus:
            said = matrix.numa_affinity.get(gpu)
            # GB200 lists the memory nodes too; the CPU node is the lowest.
            nodes[gpu] = min(said.ids) if said else None
        return Neighbours(
            gpus=matrix.gpus,
            nics=matrix.nics,
            paths={
                frozenset(pair): c
                for pair, c in matrix.links.items()
                if not c.startswith("NV") and c != "XGMI"
            },
            node=nodes,
            direct=frozenset(
                frozenset(pair)
                for pair, c in matrix.links.items()
                if c.startswith("NV") or c == "XGMI"
            ),
            source=matrix.source,
        )
    s.devices()
    s.device_nodes()
    topology = s.snapshot.topology
    gpus = [p for p in topology.gpus if p.computes and p.physfn is None]
    if not gpus:
        raise NotApplicable("no GPU that computes is here")
    return Neighbours(
        gpus=tuple(p.bdf for p in gpus),
        nics=tuple(p.bdf for p in data_nics(s)),
        paths={
            frozenset((r.a, r.b)): r.path.value
            for r in topology.relations
            if r.path is not Path.UNKNOWN
        },
        node={p.bdf: p.numa_node for p in topology.pci},
        direct=frozenset(frozenset((r.a, r.b)) for r in topology.relations if r.links),
        source="/sys/bus/pci/devices",
    )


def pairing(n: Neighbours) -> dict[str, str]:
    """A NIC for each GPU, nearest first and ties shared fairly: two GPUs on one switch with two
    NICs get one each. Deterministic."""
    used: Counter[str] = Counter()
    found: dict[str, str] = {}
    for gpu in n.gpus:
        best, nics = n.nearest(gpu)
        if rank(best) >= rank("SYS"):
            continue
        nic = min(nics, key=lambda x: (used[x], n.nics.index(x)))
        used[nic] += 1
        found[gpu] = nic
    return found


def same_package(s: Seen, a: int | None, b: int | None) -> bool:
    """Whether two nodes are parts of one package, by their CPUs."""
    topology = s.snapshot.topology
    x = topology.node(a) if a is not None else None
    y = topology.node(b) if b is not None else None
    if x is None or y is None or not x.cpus or not y.cpus:
        return False
    return any(x.cpus <= p.cpus and y.cpus <= p.cpus for p in topology.packages)


def _in_socket(s: Seen, n: Neighbours, gpu: str) -> bool:
    """Whether some nearest NIC is on the GPU's own socket, behind another memory controller (NPS,
    SNC)."""
    here = n.node.get(gpu)
    return any(same_package(s, here, n.node.get(nic)) for nic in n.nearest(gpu)[1])


@check(
    "locality.gpu-nic",
    "every GPU has a NIC on its NUMA node",
    means="WARN for GPUs whose nearest NIC is across the socket interconnect (SYS), INFO "
    "when there "
    "are fewer NICs than nodes with GPUs, or the nearest one is on another node of the same socket "
    "(NPS, SNC); OK tells each GPU's nearest NIC, ties shared "
    "fairly. Only NICs that carry data count: those with "
    "RDMA where there are any. NA without GPUs or NICs; UNKNOWN when the nodes are not told.",
    why="GPUDirect across the socket link runs at a fraction of the NIC's rate and takes bandwidth "
    "from every thread of both sockets.",
    prove="nvidia-smi topo -m; cat /sys/bus/pci/devices/*/numa_node; lspci -tv",
    mend="Move the NIC to a slot of that socket, or give the GPU's traffic to a rank on the NIC's "
    "socket and tell NCCL (NCCL_IB_HCA, NCCL_NET_GDR_LEVEL).",
    source="NCCL user guide, NCCL_NET_GDR_LEVEL; nvidia-smi topo -h",
)
def gpu_nic(s: Seen) -> Iterator[Judged]:
    """Nearest NIC of each GPU."""
    n = neighbours(s)
    if not n.nics:
        raise NotApplicable("no NIC is here")
    near = {g: n.nearest(g) for g in n.gpus}
    far = [g for g in n.gpus if near[g][0] == "SYS"]
    untold = [g for g in n.gpus if near[g][0] not in ORDER]
    pairs = pairing(n)
    homes = {n.node.get(g) for g in n.gpus} - {None}
    beside = [g for g in far if _in_socket(s, n, g)]
    if beside:
        nodes = sorted({x for g in beside if (x := n.node.get(g)) is not None})
        yield info(
            f"gpu {some(beside)}",
            f"GPUs {some(beside)} (node {some(nodes)}) have no NIC on their node; the nearest is "
            "on another node of the same socket",
            Evidence(path=n.source, text=f"{beside[0]} to {n.nearest(beside[0])[1][0]}: SYS"),
        )
    far = [g for g in far if g not in beside]
    if far:
        nodes = sorted({x for g in far if (x := n.node.get(g)) is not None})
        where = f" (node {some(nodes)})" if nodes else ""
        none_near = len(far) == len(n.gpus)
        who = "no GPU has a" if none_near else f"GPUs {some(far)}{where} have no"
        sentence = f"{who} NIC on their node: the nearest is across the socket interconnect (SYS)"
        evidence = Evidence(path=n.source, text=f"{far[0]} to {n.nearest(far[0])[1][0]}: SYS")
        remedy = s.mend(
            "export NCCL_NET_GDR_LEVEL=PHB  # no GPUDirect across sockets; or move a NIC to a slot "
            "of that socket",
            "export NCCL_NET_GDR_LEVEL=PHB  # no GPUDirect across sockets",
        )
        # One NIC cannot be near the GPUs of two sockets: that machine is as it was bought.
        if none_near or len(n.nics) >= len(homes) > 0:
            yield warn(f"gpu {some(far)}", sentence, evidence, remedy=remedy)
        else:
            yield info(f"gpu {some(far)}", sentence, evidence, remedy=remedy)
    if pairs:
        yield ok(
            f"gpu {some(pairs)}",
            "nearest NIC: "
            + some((f"{g} -> {nic} ({near[g][0]})" for g, nic in pairs.items()), 16),
        )
    if untold and not far and not beside and not pairs:
        # The nodes are not told: contradiction.gpu-node-unknown says who should have.
        raise NotApplicable("nobody tells how far GPUs and NICs are apart")


def _visible(s: Seen) -> str:
    """The variable that chooses GPUs: AMD's where GPUs of AMD are, and none of another maker."""
    makers = {p.vendor for p in s.snapshot.topology.gpus if p.computes}
    pasted = s.snapshot.pasted
    amd = makers == {AMD} or (not makers and pasted is not None and "rocm" in pasted.kinds)
    return "HIP_VISIBLE_DEVICES" if amd else "CUDA_VISIBLE_DEVICES"


@check(
    "locality.gpu-peers",
    "GPUs form even groups",
    means="WARN when GPUs without NVLink or XGMI between them are spread unevenly over the NUMA "
    "nodes (one alone, three together); OK tells the groups. Direct links make the "
    "spread harmless.",
    why="A tensor-parallel group that spans sockets runs at the pace of its farthest member, and "
    "one rank is always last.",
    prove="nvidia-smi topo -m; rocm-smi --showtopo",
    mend="Choose groups inside one node (CUDA_VISIBLE_DEVICES, for AMD HIP_VISIBLE_DEVICES), or "
    "move a card.",
    source="nvidia-smi topo -h; NCCL user guide, NCCL_P2P_LEVEL",
)
def gpu_peers(s: Seen) -> Iterator[Judged]:
    """GPUs by node, where no direct link joins them."""
    n = neighbours(s)
    if len(n.gpus) < 2:
        raise NotApplicable("fewer than two GPUs are here")
    groups: dict[int, list[str]] = {}
    for gpu in n.gpus:
        node = n.node.get(gpu)
        if node is None:
            raise NotApplicable("the NUMA node of a GPU is not told")
        groups.setdefault(node, []).append(gpu)
    text = "; ".join(f"node {node}: {some(g)}" for node, g in sorted(groups.items()))
    crossing = [
        (a, b)
        for i, a in enumerate(n.gpus)
        for b in n.gpus[i + 1 :]
        if n.node[a] != n.node[b] and frozenset((a, b)) not in n.direct
    ]
    sizes = {len(g) for g in groups.values()}
    if crossing and len(sizes) > 1:
        a, b = crossing[0]
        yield warn(
            f"gpu {some(n.gpus, 16)}",
            f"GPUs are spread unevenly over the nodes and have no direct link: {text}",
            Evidence(path=n.source, text=f"{a} to {b}: {n.path(a, b)}"),
            remedy=f"export {_visible(s)}="
            + ",".join(str(n.gpus.index(g)) for g in max(groups.values(), key=len))
            + "  # a group inside one node; or move a card",
        )
    else:
        yield ok(f"gpu {some(n.gpus, 16)}", text)


@check(
    "locality.gpu-nvme",
    "every GPU's node has an NVMe drive",
    means="INFO when drives exist, but none on the node of some GPU: GPUDirect Storage from there "
    "crosses the interconnect.",
    why="Loading weights through the other socket halves the rate and disturbs its threads.",
    prove="cat /sys/class/nvme/nvme*/numa_node; nvidia-smi topo -m",
    mend="Stage weights on a drive of the GPU's node, or load once and copy over NVLink.",
    source="NVIDIA GPUDirect storage best practices guide, 'PCIe topology'",
)
def gpu_nvme(s: Seen) -> Iterator[Judged]:
    """Nodes of drives against nodes of GPUs."""
    s.devices()
    s.device_nodes()
    topology = s.snapshot.topology
    gpus = [p for p in topology.gpus if p.computes and p.numa_node is not None]
    drives = [p for p in topology.nvmes if p.numa_node is not None]
    if not gpus or not drives:
        raise NotApplicable("no GPU and NVMe drive with known nodes are here")
    bare = sorted({p.numa_node or 0 for p in gpus} - {p.numa_node or 0 for p in drives})
    if bare:
        yield info(
            f"node {some(bare)}",
            f"node {some(bare)} has GPUs and no NVMe drive",
            saw(f"sys/bus/pci/devices/{drives[0].bdf}/numa_node", str(drives[0].numa_node)),
        )
    else:
        yield ok("nvme", f"{len(drives)} drives, at least one on each GPU's node")


@check(
    "locality.alone",
    "GPUs and NICs are on nodes with CPUs",
    means="WARN when a GPU or data NIC is on a node without CPUs; the nearest CPUs are then on "
    "another node.",
    why="Every thread that serves the device is remote from it.",
    prove="cat /sys/bus/pci/devices/*/{numa_node,local_cpulist}; numactl -H",
    mend="Look at the firmware's NPS/SNC setting; bind to local_cpulist where it is given.",
    source="Linux Documentation/ABI/testing/sysfs-bus-pci, numa_node, local_cpulist",
)
def alone(s: Seen) -> Iterator[Judged]:
    """Device nodes against CPU nodes."""
    s.devices()
    s.device_nodes()
    s.whole("sys/devices/system/node")
    topology = s.snapshot.topology
    devices = [p for p in topology.gpus if p.computes] + list(data_nics(s))
    placed = [p for p in devices if p.numa_node is not None]
    with_cpus = {n.id for n in s.cpu_nodes}
    if not placed or not with_cpus:
        raise NotApplicable("no GPU or NIC with a known node is here")
    bare = [p for p in placed if p.numa_node not in with_cpus]
    if bare:
        yield warn(
            some(p.bdf for p in bare),
            f"{len(bare)} devices are on nodes without CPUs "
            f"({some(sorted({p.numa_node or 0 for p in bare}))})",
            *(saw(f"sys/bus/pci/devices/{p.bdf}/numa_node", str(p.numa_node)) for p in bare[:3]),
            remedy=f"taskset -c $(cat /sys/bus/pci/devices/{bare[0].bdf}/local_cpulist) PROGRAM",
        )
    else:
        yield ok("pci", f"{len(placed)} GPUs and NICs are on nodes with CPUs")
