"""locality: a GPU and all that serves it as one unit, and how fairly NICs are shared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nodeagent.check.irq import lands, moved
from nodeagent.check.locality import data_nics, neighbours, pairing, same_package
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
from nodeagent.model.pci import PciFunction
from nodeagent.model.topology import NumaNode

DEVICES = "sys/bus/pci/devices"


def home_of(s: Seen, gpu: PciFunction) -> NumaNode | None:
    """The node whose CPUs serve a GPU: its own, or the nearest with CPUs when it has none."""
    nodes = {n.id: n for n in s.snapshot.topology.nodes}
    own = nodes.get(gpu.numa_node) if gpu.numa_node is not None else None
    if own is None or own.cpus:
        return own
    near = sorted((d, to) for to, d in own.distances if to in nodes and nodes[to].cpus)
    return nodes[near[0][1]] if near else None


@check(
    "locality.unit",
    "each GPU has its NIC, drive, interrupts and huge pages on its node",
    means="One verdict for each GPU. WARN when its NIC's interrupts all go to other nodes, when "
    "huge pages are reserved but none on its node, or when every NIC is far although there are "
    "enough for each node. INFO when only a drive is far, the NIC is on another node of the same "
    "socket, or there are fewer NICs than nodes with GPUs. What the whole machine lacks is not "
    "missed. NA without GPUs, with one node, and where the GPU's node is not told. The ring's "
    "memory is not seen here: `nodeagentctl ring stat` tells it.",
    why="A token crosses NIC, ring, CPU and GPU. One part on the other socket makes every message "
    "cross the interconnect, and each part alone looks fine.",
    prove="cat /sys/bus/pci/devices/*/numa_node; nvidia-smi topo -m; grep . "
    "/proc/irq/*/effective_affinity_list; grep . "
    "/sys/devices/system/node/node*/hugepages/*/nr_hugepages",
    mend="Move what is far to the GPU's node: the card to a slot of that socket, the interrupts by "
    "smp_affinity_list, huge pages by the node's own nr_hugepages.",
    source="NVIDIA GPUDirect RDMA documentation, 'Supported systems'; Linux "
    "Documentation/admin-guide/mm/hugetlbpage.rst; Documentation/networking/scaling.rst",
)
def unit(s: Seen) -> Iterator[Judged]:
    """GPU, NIC and its queues, NVMe, huge pages against the GPU's node."""
    if s.snapshot.pasted is not None:
        raise NotApplicable("a paste tells no whole machine")
    s.devices()
    topology = s.snapshot.topology
    gpus = [p for p in topology.gpus if p.computes and p.physfn is None]
    if not gpus:
        raise NotApplicable("no GPU that computes is here")
    s.nodes()
    s.device_nodes()
    if len(s.cpu_nodes) < 2:
        raise NotApplicable("one NUMA node has CPUs: nothing is far from it")
    homes = {p.bdf: home_of(s, p) for p in gpus}
    if None in homes.values():
        raise NotApplicable("the NUMA node of a GPU is not told; contradiction says so")
    s.whole("proc/irq", leaf="effective_affinity")
    s.whole("proc/interrupts")
    parts = _Parts(s, len({h.id for h in homes.values() if h}))
    quiet: dict[str, list[str]] = {}
    for gpu in gpus:
        home = homes[gpu.bdf]
        assert home is not None
        good, bad, minor, evidence = parts.of(gpu, home)
        here = saw(f"{DEVICES}/{gpu.bdf}/numa_node", str(gpu.numa_node))
        if bad:
            yield warn(
                f"gpu {gpu.bdf}",
                f"GPU {gpu.bdf} is on node {home.id}, but {'; '.join(b for b, _ in bad)}",
                here,
                *evidence,
                remedy=bad[0][1],
            )
        elif minor:
            quiet.setdefault(f"node {home.id}: {'; '.join(minor)}", []).append(gpu.bdf)
        else:
            yield ok(f"gpu {gpu.bdf}", f"node {home.id} has {some(good) or 'it alone'}", here)
    if quiet:
        yield info(
            f"gpu {some((b for bdfs in quiet.values() for b in bdfs), 16)}",
            "; ".join(f"{some(bdfs)} on {said}" for said, bdfs in list(quiet.items())[:4]),
        )


class _Parts:
    """What serves GPUs on this machine, looked up once for all of them."""

    def __init__(self, s: Seen, homes: int) -> None:
        self.s = s
        topology = s.snapshot.topology
        self.nics = [p for p in data_nics(s) if p.numa_node is not None]
        self.enough_nics = len({p.numa_node for p in self.nics}) > 1 or len(self.nics) >= homes
        self.drives = [p for p in topology.nvmes if p.numa_node is not None]
        self.pools = sorted({h.size_bytes for n in s.cpu_nodes for h in n.hugepages if h.total})
        self.pairs = pairing(neighbours(s)) if self.nics else {}
        self.names = {n.bdf: n.name for n in s.snapshot.nics if n.bdf}

    def of(
        self, gpu: PciFunction, home: NumaNode
    ) -> tuple[list[str], list[tuple[str, str]], list[str], list[Evidence]]:
        """(what is near, (what is far, remedy), what is far and matters less, evidence)."""
        good: list[str] = []
        bad: list[tuple[str, str]] = []
        minor: list[str] = []
        evidence: list[Evidence] = []
        near = [p for p in self.nics if p.numa_node == home.id]
        if near:
            bdf = self.pairs.get(gpu.bdf, near[0].bdf)
            nic = next((p for p in near if p.bdf == bdf), near[0])
            good.append(f"NIC {self.names.get(nic.bdf, nic.bdf)}")
            self._queues(nic, home, good, bad, evidence)
        elif self.nics:
            where = sorted({p.numa_node for p in self.nics if p.numa_node is not None})
            said = f"every data NIC is on node {some(where)}"
            if self.enough_nics and not any(same_package(self.s, home.id, w) for w in where):
                bad.append(
                    (
                        said,
                        self.s.mend(
                            "export NCCL_NET_GDR_LEVEL=PHB, or move a NIC to a slot of the socket "
                            f"of node {home.id}",
                            "export NCCL_NET_GDR_LEVEL=PHB",
                        ),
                    )
                )
                evidence.append(saw(f"{DEVICES}/{self.nics[0].bdf}/numa_node", str(where[0])))
            else:
                minor.append(said)
        if self.drives:
            if any(p.numa_node == home.id for p in self.drives):
                good.append("an NVMe drive")
            else:
                minor.append("no NVMe drive is on it")
        for size in self.pools:
            pages = sum(h.total for h in home.hugepages if h.size_bytes == size)
            path = f"sys/devices/system/node/node{home.id}/hugepages/hugepages-{size >> 10}kB"
            if pages:
                good.append(f"{pages} huge pages of {size >> 10} kB")
            else:
                bad.append(
                    (
                        f"no huge page of {size >> 10} kB is there",
                        f"echo PAGES > /{path}/nr_hugepages  # or hugepages={home.id}:PAGES at "
                        "boot",
                    )
                )
                evidence.append(saw(f"{path}/nr_hugepages", "0"))
        return good, bad, minor, evidence

    def _queues(
        self,
        nic: PciFunction,
        home: NumaNode,
        good: list[str],
        bad: list[tuple[str, str]],
        evidence: list[Evidence],
    ) -> None:
        irqs = [i for i in self.s.snapshot.irqs if i.bdf == nic.bdf and lands(i)]
        far = [i for i in irqs if not lands(i) & home.cpus]
        if far and len(far) == len(irqs):
            name = self.names.get(nic.bdf, nic.bdf)
            bad.append(
                (
                    f"all {len(far)} interrupts of its NIC {name} go to CPUs of other nodes "
                    f"({lands(far[0])})",
                    moved(far, home.cpus),
                )
            )
            evidence.append(
                saw(f"proc/irq/{far[0].number}/effective_affinity_list", str(lands(far[0])))
            )
        elif irqs:
            good.append(f"{len(irqs) - len(far)} of its {len(irqs)} interrupts")


@check(
    "locality.nic-share",
    "NICs are shared evenly among the GPUs",
    means="INFO when, with ties shared fairly, some NIC is the nearest of more GPUs than an even "
    "share would be while another NIC has none: the first one carries their traffic alone. NA with "
    "fewer than two data NICs or two GPUs.",
    why="GPUDirect traffic of all those GPUs goes through one NIC and one switch port; the "
    "collective runs at that port's rate.",
    prove="nvidia-smi topo -m",
    mend="Move cards so that each switch or socket has as many NICs as its GPUs need, or name the "
    "NICs of each rank: NCCL_IB_HCA.",
    source="NCCL user guide, NCCL_IB_HCA and NCCL_CROSS_NIC",
)
def nic_share(s: Seen) -> Iterator[Judged]:
    """How many GPUs each NIC is nearest to."""
    n = neighbours(s)
    if len(n.gpus) < 2 or len(n.nics) < 2:
        raise NotApplicable("fewer than two GPUs or two data NICs are here")
    pairs = pairing(n)
    if len(pairs) < len(n.gpus):
        raise NotApplicable("not every GPU has a NIC near; locality.gpu-nic says so")
    load = Counter(pairs.values())
    idle = [nic for nic in n.nics if not load[nic]]
    fair = -(-len(n.gpus) // len(n.nics))
    over = {nic: count for nic, count in load.items() if count > fair}
    if over and idle:
        yield info(
            f"nic {some(over)}",
            f"{some(f'{nic} is the nearest NIC of {count} GPUs' for nic, count in over.items())}; "
            f"no GPU is nearest to {some(idle)}",
            Evidence(path=n.source, text=some(f"{g} -> {nic}" for g, nic in pairs.items())),
            remedy="export NCCL_IB_HCA=" + ",".join(n.nics[:8]) + "  (name each rank's NICs), or "
            "move a card",
        )
    else:
        yield ok("nic", f"each NIC serves at most {max(load.values())} of {len(n.gpus)} GPUs")
