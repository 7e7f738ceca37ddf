"""What hypervisors, schedulers and DMI say of the machine's layout, as it is pasted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from nodeagent.check.record import (
    Judged,
    NotApplicable,
    Seen,
    check,
    fail,
    info,
    ok,
    saw,
    some,
    warn,
)
from nodeagent.model.host_report import Dimm, GresLine, GuestNuma, SlurmComplaint, SlurmNode
from nodeagent.model.pasted import Pasted


def _pasted(s: Seen) -> Pasted:
    if s.snapshot.pasted is None:
        raise NotApplicable("nothing was pasted")
    return s.snapshot.pasted


@check(
    "numa.guest-cells",
    "a guest's NUMA cells match the devices and cores it gets",
    means="WARN when a guest has several NUMA cells and no PCIe expander bridge for each of them "
    "(its GPUs and NICs then have numa_node -1 or sit on the wrong cell), when cells split the "
    "guest's cores, or when neither virtual CPUs nor memory are bound to the host's nodes. OK when "
    "all of it is described. What a guest sees is the hypervisor's description, not the hardware.",
    why="A placement by invented nodes is no better than chance: NCCL and vLLM bind to the wrong "
    "half of the host.",
    prove="virsh dumpxml DOMAIN | grep -E '<cell|vcpupin|memnode|expander'; "
    "cat /sys/bus/pci/devices/*/numa_node",
    mend="On the host: a pcie-expander-bus with <node> for each cell, passed devices below it; "
    "vcpupin and memnode for each cell; <topology threads=> as the cells are cut.",
    source="libvirt domain XML format, CPU model and topology, NUMA tuning, controllers; QEMU "
    "docs/pcie_pci_bridge (pxb-pcie)",
)
def guest_cells(s: Seen) -> Iterator[Judged]:
    """Each described guest."""
    guests = _pasted(s).of(GuestNuma)
    if not guests:
        raise NotApplicable("no hypervisor's NUMA cells were pasted")
    for g in guests:
        text = some(
            f"cell {i}: {'no CPUs' if c is None else c}" for i, c in sorted(g.cells.items())
        )
        evidence = saw(g.source, f"line {g.line}: {text}")
        bad = False
        bare = sorted(set(g.cells) - g.expanders)
        if len(g.cells) > 1 and bare:
            bad = True
            who = f"its {len(g.passthrough)} passed devices" if g.passthrough else "its PCI devices"
            yield warn(
                f"cell {some(bare)}",
                f"this is a guest's layout as the hypervisor describes it: cells {some(bare)} have "
                f"no PCIe expander bridge, so {who} show no node (numa_node -1); it is not the "
                "host's hardware",
                evidence,
                remedy="on the host: add <controller type='pci' model='pcie-expander-bus'> with "
                "<target><node>N</node></target> for each cell, the passed devices below it; "
                "until then ask the host's operator for the NUMA map and pin no memory",
            )
        if len(g.cells) == 1 and len(g.passthrough) > 1:
            bad = True
            yield warn(
                "cell",
                f"{len(g.passthrough)} devices are passed into a guest with one flat NUMA cell: "
                "which of them are near each other is hidden",
                evidence,
                remedy="virsh edit DOMAIN  # on the host: describe its nodes as cells, each with a "
                "pcie-expander-bus",
            )
        if split := _split(g):
            bad = True
            yield warn(
                "cell",
                f"the cells cut cores in two: CPUs {split} are siblings in the guest",
                evidence,
                remedy="virsh edit DOMAIN  # on the host: give each cell whole cores, numbered as "
                "the guest numbers "
                "them (siblings adjacent)",
            )
        if len(g.cells) > 1 and g.passthrough and not (g.pinned and g.memory_bound):
            bad = True
            yield warn(
                "cell",
                "the cells are not bound to nodes of the host: "
                + ("no vcpupin" if not g.pinned else "no memnode"),
                evidence,
                remedy="on the host: <cputune><vcpupin .../></cputune> and <numatune><memnode "
                "cellid='N' mode='strict' nodeset='N'/></numatune>",
            )
        if not bad:
            yield ok("cells", f"{len(g.cells)} NUMA cells, each with a bridge for its devices")


def _split(g: GuestNuma) -> str | None:
    """A pair of siblings in two cells. A guest numbers siblings side by side."""
    if not g.threads or g.threads < 2:
        return None
    of = {c: i for i, cpus in g.cells.items() if cpus is not None for c in cpus}
    for cpu in sorted(of):
        first = cpu - cpu % g.threads
        if of.get(first, of[cpu]) != of[cpu]:
            return f"{first}-{first + g.threads - 1}"
    return None


@check(
    "numa.guest-flat",
    "a guest is told how its GPUs lie",
    means="WARN in a virtual machine whose matrix shows several GPUs without direct links all "
    "alike (PHB everywhere, one NUMA node): the hypervisor hides the host's layout. INFO where "
    "the guest is told some. NA on hardware, and without a pasted matrix.",
    why="Every group of GPUs then looks as good as any other, and half of them cross sockets.",
    prove="systemd-detect-virt; lscpu | grep -E 'Hypervisor|NUMA'; nvidia-smi topo -m",
    mend="Ask the host's operator for the NUMA map of these GPUs, or for pcie-expander-bus and "
    "vNUMA cells; give NCCL the real layout with NCCL_TOPO_FILE.",
    source="NCCL user guide, NCCL_TOPO_FILE; libvirt domain XML format, controllers",
)
def guest_flat(s: Seen) -> Iterator[Judged]:
    """The matrix of a guest."""
    virtual, m = s.snapshot.host.virtual, s.snapshot.matrix
    if virtual is None or m is None or len(m.gpus) < 2:
        raise NotApplicable("no guest's matrix with several GPUs was pasted")
    classes = {c for (a, b), c in m.links.items() if a in m.gpus and b in m.gpus}
    nodes = {str(n) for n in m.numa_affinity.values() if n}
    evidence = saw(m.source, f"classes {some(sorted(classes))}; nodes {some(sorted(nodes)) or '-'}")
    if classes <= {"PHB", "SYS"} and len(classes) == 1 and len(nodes) < 2:
        yield warn(
            f"gpu {some(m.gpus)}",
            f"this is a guest ({virtual}), and its {len(m.gpus)} GPUs look all alike "
            f"({some(classes)}): the hypervisor hides how they lie, locality is not to be trusted",
            evidence,
            remedy="ask the host's operator (virsh dumpxml GUEST) for the NUMA map of these GPUs "
            "(pxb-pcie), or set "
            "NCCL_TOPO_FILE to the cloud's topology file",
        )
    else:
        yield info(f"gpu {some(m.gpus)}", f"this is a guest ({virtual}): locality as it is told",
                   evidence)  # fmt: skip


@check(
    "gpu.slurm-gres",
    "Slurm's GPU lines fit the machine",
    means="FAIL when Slurm drained the node for missing GPUs or cores, or gres.conf names cores "
    "that Slurm's node does not have; WARN when slurmd complains about core affinity and socket "
    "boundaries, when lines and GPUs differ in number, or a GPU has another's cores.",
    why="Slurm numbers cores itself, socket by socket, without SMT siblings: CPU numbers of the "
    "kernel there bind a job to cores far from its GPU, or to none.",
    prove="scontrol show node NODE; slurmd -C; slurmd -G; nvidia-smi topo -m",
    mend="AutoDetect=nvml and no Cores=; with NPS4 or SNC: "
    "SlurmdParameters=numa_node_as_socket (or l3cache_as_socket) in slurm.conf, or NPS1.",
    source="Slurm gres.conf(5), Cores; slurm.conf(5), SlurmdParameters",
)
def slurm_gres(s: Seen) -> Iterator[Judged]:
    """Complaints, drained nodes, core numbers."""
    p = _pasted(s)
    lines, complaints, nodes = p.of(GresLine), p.of(SlurmComplaint), p.of(SlurmNode)
    if not lines and not complaints and not nodes:
        raise NotApplicable("nothing of Slurm was pasted")
    found = [*_complaints(complaints), *_nodes(nodes), *_lines(s, lines, nodes)]
    yield from found
    if not found:
        yield ok("slurm", f"{len(lines)} GPU lines, {len(nodes)} nodes: nothing contradicts")


def _complaints(complaints: tuple[SlurmComplaint, ...]) -> Iterator[Judged]:
    if not complaints:
        return
    text = " ".join(c.text for c in complaints)
    boundary = "boundar" in text or "abs_to_mac" in text or "Invalid GRES" in text
    yield warn(
        "slurmd",
        "slurmd rejects the cores of GPUs: they are no part of what it calls a socket, or are "
        "CPU numbers of the kernel (SMT siblings) where it wants its own core numbers"
        if boundary
        else f"slurmd complains {len(complaints)} times: {complaints[0].text[:120]}",
        *(saw(c.source, f"line {c.line}: {c.text}") for c in complaints[:3]),
        remedy="SlurmdParameters=numa_node_as_socket  # or l3cache_as_socket, in slurm.conf; "
        "then scontrol reconfigure; in gres.conf use AutoDetect=nvml and leave Cores= out"
        if boundary
        else "slurmd -C; slurmd -G  # then correct slurm.conf or gres.conf",
    )


def _nodes(nodes: tuple[SlurmNode, ...]) -> Iterator[Judged]:
    for n in nodes:
        reason = n.reason or ""
        down = re.search(r"DRAIN|DOWN|FAIL|INVAL", n.state or "")
        if down and re.search(r"gres/gpu|[Ll]ow |GPU|gpu|nvidia|Xid|ECC|NVLink", reason):
            yield fail(
                n.name,
                f"Slurm took {n.name} out ({n.state}): {reason[:120]}",
                saw(n.source, f"line {n.line}: State={n.state} Reason={reason}"),
                remedy=f"nvidia-smi -L; dmesg | grep -i xid; when mended: scontrol update NodeName="
                f"{n.name} State=RESUME",
            )
        elif down:
            yield warn(
                n.name,
                f"Slurm took {n.name} out ({n.state})" + (f": {reason[:120]}" if reason else ""),
                saw(n.source, f"line {n.line}: State={n.state} Reason={reason}"),
                remedy=f"sinfo -R; when mended: scontrol update NodeName={n.name} State=RESUME",
            )


def _lines(s: Seen, lines: tuple[GresLine, ...], nodes: tuple[SlurmNode, ...]) -> Iterator[Judged]:
    cores = next(
        (n.sockets * n.cores_per_socket for n in nodes if n.sockets and n.cores_per_socket), None
    )
    beyond = [x for x in lines if cores and x.cores and max(x.cores.ids) >= cores]
    if beyond:
        yield fail(
            "gres.conf",
            f"gres.conf names core {max(max(x.cores.ids) for x in beyond if x.cores)}; Slurm "
            f"numbers this node's cores 0 to {(cores or 1) - 1}",
            *(saw(x.source, f"line {x.line}: {x.text}") for x in beyond[:3]),
            remedy="AutoDetect=nvml in gres.conf, without Cores=; slurmd -G shows what it finds",
        )
    matrix = s.snapshot.matrix
    files = [f for x in lines for f in x.files if re.search(r"nvidia\d+$", f)]
    if files and matrix is not None and matrix.gpus and len(files) != len(matrix.gpus):
        yield warn(
            "gres.conf",
            f"gres.conf names {len(files)} GPUs, the machine has {len(matrix.gpus)}",
            *(saw(x.source, f"line {x.line}: {x.text}") for x in lines[:3]),
            remedy="AutoDetect=nvml  # in gres.conf; then Gres=gpu:N in slurm.conf as it finds",
        )


@check(
    "memory.dimms",
    "memory slots of all sockets are filled alike",
    means="FAIL when a socket has no DIMM at all; WARN when sockets have different numbers or "
    "sizes of DIMMs, or DIMMs run slower than they can. Sockets are told by the slots' names; NA "
    "where the names do not tell.",
    why="A socket without memory makes every access of its cores remote; an empty channel halves "
    "the bandwidth of those that interleave with it.",
    prove="dmidecode -t memory | grep -E 'Locator|Size|Speed'; numactl -H",
    mend="Fill the same slots of each socket with the same DIMMs, by the board's manual; look in "
    "the BMC for a DIMM that was mapped out.",
    source="SMBIOS specification 3.7, type 17; the board's population guide",
)
def dimms(s: Seen) -> Iterator[Judged]:
    """DIMMs by socket."""
    slots = _pasted(s).of(Dimm)
    if not slots:
        raise NotApplicable("no memory slots were pasted")
    filled = [d for d in slots if d.size_bytes]
    by: dict[str, list[Dimm]] = {}
    for d in slots:
        if d.socket is not None:
            by.setdefault(d.socket, []).append(d)
    counts = {k: sum(bool(d.size_bytes) for d in v) for k, v in sorted(by.items())}
    bad = False
    text = some(f"{k}: {n} DIMMs" for k, n in counts.items())
    if by and len(counts) > 1 and len(set(counts.values())) > 1:
        bad = True
        fewest = [k for k, n in counts.items() if n == min(counts.values())]
        none = min(counts.values()) == 0
        gaps = [d.locator for k in fewest for d in by[k] if not d.size_bytes]
        make = fail if none else warn
        what = "no memory" if none else "fewer DIMMs than the others"
        yield make(
            some(fewest),
            f"{some(fewest)} has {what} ({text}); empty slots: {some(gaps, 12)}",
            saw(slots[0].source, f"line {by[fewest[0]][0].line}: {text}"),
            remedy="fill the same slots of each socket; look in the BMC's log for DIMMs that were "
            "mapped out: ipmitool sel list | grep -i memory",
        )
    sizes = Counter(d.size_bytes for d in filled)
    if len(sizes) > 1:
        bad = True
        odd = min(sizes, key=lambda x: sizes[x])
        where = [d.locator for d in filled if d.size_bytes == odd]
        what = some(f"{n} x {b >> 30} GiB" for b, n in sizes.items())
        yield warn(
            some(where, 4),
            f"DIMMs of {len(sizes)} sizes: {what}",
            saw(slots[0].source, f"{some(where, 4)}: {odd >> 30} GiB"),
            remedy="dmidecode -t memory  # use DIMMs of one size, or fill channels by the board's "
            "manual",
        )
    slow = [d for d in filled if d.speed_mts and d.configured_mts
            and d.configured_mts < d.speed_mts]  # fmt: skip
    if slow:
        yield info(
            some((d.locator for d in slow), 4),
            f"{len(slow)} DIMMs run at {slow[0].configured_mts} MT/s, they can do "
            f"{slow[0].speed_mts}: usual with two DIMMs on a channel",
            saw(slow[0].source, f"line {slow[0].line}: {slow[0].configured_mts} MT/s"),
        )
    if not bad:
        by_socket = f" ({text})" if text else ""
        yield ok("memory", f"{len(filled)} of {len(slots)} slots are filled{by_socket}")
