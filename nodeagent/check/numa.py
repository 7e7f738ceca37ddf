"""numa: nodes, what they hold, how far apart they say they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
from nodeagent.model.topology import NodeKind, NumaNode
from nodeagent.model.words import many

NODE = "sys/devices/system/node"
BALANCING = "proc/sys/kernel/numa_balancing"
RECLAIM = "proc/sys/vm/zone_reclaim_mode"


def mib(size: int) -> str:
    """Bytes for a sentence."""
    return f"{size >> 30} GiB" if size >= 1 << 30 else f"{size >> 20} MiB"


@check(
    "numa.memoryless",
    "every node with CPUs has memory",
    means="FAIL when nodes with CPUs have no memory and half or more of the CPUs, or a whole "
    "package's, are on such nodes; WARN when it is fewer. A node counts as memoryless when it "
    "reports 0 bytes; a node whose size is not known is UNKNOWN.",
    why="Its CPUs reach all of their memory over the interconnect, and `numactl --membind` to it "
    "fails. On a server it usually means that DIMMs are missing, dead, or in the wrong slots.",
    prove="numactl -H; grep MemTotal /sys/devices/system/node/node*/meminfo; dmidecode -t memory",
    mend="Populate every memory channel group the board manual names, or choose NPS1/SNC off so "
    "that nodes and DIMMs match. Until then bind by CPU list, and memory to nodes that have some.",
    source="Linux Documentation/mm/numa.rst, 'memoryless nodes'; AMD 56766, NPS and DIMM "
    "population",
)
def memoryless(s: Seen) -> Iterator[Judged]:
    """CPU nodes of zero size."""
    s.nodes()
    nodes = s.cpu_nodes
    if not nodes:
        raise NotApplicable("no NUMA node has CPUs here")
    untold = [n for n in nodes if n.memory_bytes is None]
    empty = [n for n in nodes if n.memory_bytes == 0]
    if untold and not empty:
        raise s.gone(f"{NODE}/node{untold[0].id}/meminfo", "no node tells its memory")
    if not empty:
        told = sum(n.memory_bytes or 0 for n in nodes)
        yield ok("numa", f"{len(nodes)} nodes with CPUs have memory, {mib(told)} in all")
        return
    evidence = [saw(f"{NODE}/node{n.id}/meminfo", "MemTotal: 0 kB") for n in empty[:4]]
    evidence += [saw(f"{NODE}/node{n.id}/cpulist", str(n.cpus)) for n in empty[:4]]
    ids = some(n.id for n in empty)
    lost, whole = sum(len(n.cpus) for n in empty), sum(len(n.cpus) for n in nodes)
    usable = [n for n in nodes if n.memory_bytes]
    sentence = (
        f"node{'s' if len(empty) > 1 else ''} {ids} {'have' if len(empty) > 1 else 'has'} {lost} "
        f"of {whole} PUs and no memory: every access of these PUs is remote"
    )
    to = some(n.id for n in usable) or "none"
    remedy = s.mend(
        "populate the DIMM slots of these nodes (dmidecode -t memory); until then: numactl "
        f"-m {to.replace(' ', '')} -C CPUS PROGRAM"
    )
    # Half of the dies may have no memory controller by design; a socket always has one.
    by_design = len(nodes) > 2 and len(usable) * 2 >= len(nodes)
    if by_design:
        yield warn(f"node {ids}", sentence, *evidence, remedy=remedy)
    else:
        yield fail(f"node {ids}", sentence, *evidence, remedy=remedy)


def _kinds(s: Seen, nodes: Sequence[NumaNode]) -> str:
    """What kind of memory each node is, as far as HMAT and the CXL and DAX buses tell."""
    said = {n.id: kind for n in nodes if (kind := _kind(s, n)) is not None}
    return f" ({some(f'node {i}: {kind}' for i, kind in said.items())})" if said else ""


def _kind(s: Seen, node: NumaNode) -> str | None:
    if node.kind is NodeKind.GPU_MEMORY:
        return None
    texts = s.snapshot.texts
    if any(text == str(node.id) for _, text in s.matching("sys/bus/cxl/devices/", "/numa_node")):
        return "CXL"
    if any(text == str(node.id) for _, text in s.matching("sys/bus/dax/devices/", "/target_node")):
        return "device memory (DAX)"

    def figure(number: int, leaf: str) -> int | None:
        text = texts.get(f"{NODE}/node{number}/access0/initiators/{leaf}", "")
        return int(text) if text.isdigit() and int(text) else None

    def beside(leaf: str) -> int | None:
        known = [f for n in s.cpu_nodes if (f := figure(n.id, leaf)) is not None]
        return max(known, default=None)

    bandwidth, usual = figure(node.id, "read_bandwidth"), beside("read_bandwidth")
    if bandwidth is not None and usual is not None and bandwidth >= 2 * usual:
        return f"HBM, {bandwidth} MB/s"
    latency, usual = figure(node.id, "read_latency"), beside("read_latency")
    if latency is not None and usual is not None and latency * 2 >= usual * 3:
        return f"slow memory, {latency} ns"
    return None


@check(
    "numa.memory-only",
    "nodes without CPUs",
    means="INFO: lists nodes that have memory and no CPUs (GPU memory on Grace, HBM, CXL), each "
    "with its kind where the firmware's HMAT or the CXL and DAX buses tell it.",
    why="`numactl --cpunodebind` and host allocations must not go there: on Grace it is the GPU's "
    "own memory, and a tool that starts one worker a node starts too many.",
    prove="numactl -H; grep . /sys/devices/system/node/has_{cpu,memory}",
    mend="Nothing to mend. Bind CPUs and host memory to nodes with CPUs only.",
    source="NVIDIA Grace performance tuning guide, 'NUMA nodes'; Linux Documentation/mm/numa.rst",
)
def memory_only(s: Seen) -> Iterator[Judged]:
    """Nodes to leave alone."""
    s.nodes()
    found = [n for n in s.memory_only if s.cpu_nodes]
    if not found:
        raise NotApplicable("every node with memory has CPUs")
    gpu = sum(n.kind is NodeKind.GPU_MEMORY for n in found)
    yield info(
        f"node {some(n.id for n in found)}",
        f"{many(len(found), 'node')} with memory and no CPUs"
        f"{f' ({gpu} of them GPU memory)' if gpu else ''}{_kinds(s, found)}"
        f"; nodes with CPUs: {some(n.id for n in s.cpu_nodes)}",
    )


@check(
    "numa.no-whole-node",
    "some node has both CPUs and memory",
    means="FAIL when nodes with CPUs have no memory and nodes with memory have no CPUs.",
    why="No placement can then keep a thread near its memory; the firmware's SRAT is wrong.",
    prove="numactl -H; dmesg | grep -i srat",
    mend="Update the firmware or set its memory interleaving to the default.",
    source="ACPI specification 6.5, section 5.2.16 (SRAT)",
)
def no_whole_node(s: Seen) -> Iterator[Judged]:
    """At least one node must be complete."""
    nodes = s.nodes()
    if len(nodes) < 2 or any(n.memory_bytes is None for n in nodes if n.cpus) or not s.cpu_nodes:
        raise NotApplicable("fewer than two nodes, or their memory is not known")
    whole = [n for n in s.cpu_nodes if n.memory_bytes]
    if whole:
        yield ok("numa", f"{len(whole)} nodes have both CPUs and memory")
    else:
        yield fail(
            "numa",
            "no node has both CPUs and memory: locality cannot be planned",
            *(saw(f"{NODE}/node{n.id}/cpulist", str(n.cpus)) for n in s.cpu_nodes[:4]),
            remedy=s.mend("update the firmware; dmesg | grep -i srat shows what it described"),
        )


@check(
    "numa.uneven",
    "nodes with CPUs have alike memory",
    means="WARN when a node with CPUs has less than `percent` % of the largest one's memory and "
    "lacks at least `gib` GiB of it: that is a DIMM or more, while kernels and firmware keep a few "
    "GiB for themselves. Each such node is named. INFO in a virtual "
    "machine or partition.",
    why="A missing or dead DIMM takes its channel's bandwidth from its node and lets allocations "
    "spill to the other one.",
    prove="grep MemTotal /sys/devices/system/node/node*/meminfo; dmidecode -t memory",
    mend="Find the missing DIMM (dmidecode -t memory, BMC log, numa.dimms) and fill the channels "
    "evenly.",
    source="AMD 56301 and Intel platform design guides: populate all channels alike",
    bounds={"percent": 94, "gib": 4},
)
def uneven(s: Seen) -> Iterator[Judged]:
    """Sizes against the largest one."""
    s.nodes()
    nodes = [n for n in s.cpu_nodes if n.memory_bytes]
    if len(nodes) < 2:
        raise NotApplicable("fewer than two nodes have both CPUs and memory")
    largest = max(nodes, key=lambda n: n.memory_bytes or 0)
    large = largest.memory_bytes or 0
    smallest = min(nodes, key=lambda n: n.memory_bytes or 0)
    low = [
        n
        for n in nodes
        if (n.memory_bytes or 0) * 100 < large * s.bounds["percent"]
        and large - (n.memory_bytes or 0) >= s.bounds["gib"] * (1 << 30)
    ]
    evidence = [
        saw(f"{NODE}/node{n.id}/meminfo", f"MemTotal: {(n.memory_bytes or 0) >> 10} kB")
        for n in (low[:3] or [smallest]) + [largest]
    ]
    if low:
        sizes = some((f"node {n.id} has {mib(n.memory_bytes or 0)}" for n in low), 6)
        subject = f"node {some(n.id for n in low)}"
        most = f"node {largest.id} has {mib(large)}"
        # Partitions of a POWER or mainframe host get what they are given, and name no vendor.
        half = (smallest.memory_bytes or 0) * 100 < large * 60
        given = s.snapshot.pasted is None and s.snapshot.host.cpu_vendor is None and not half
        if s.snapshot.host.virtual or given:
            yield info(subject, f"{sizes}, {most}", *evidence)
        else:
            yield warn(
                subject,
                f"{sizes}, {most}: are DIMMs missing?",
                *evidence,
                remedy="sudo dmidecode -t memory | grep -E 'Locator|Size'  # compare the sockets",
            )
    else:
        yield ok(
            "numa",
            f"{len(nodes)} nodes have {mib(smallest.memory_bytes or 0)} to {mib(large)}",
            *evidence,
        )


@check(
    "numa.distances",
    "NUMA distances are plausible",
    means="WARN when a node's distance to itself is not 10, a remote one is not larger, "
    "or a pair's "
    "two distances differ.",
    why="The kernel's fallback order, NUMA balancing and every planner go by this table. Firmware "
    "that leaves it out makes all remote nodes look alike.",
    prove="numactl -H; cat /sys/devices/system/node/node*/distance",
    mend="Update the firmware; the table is its SLIT.",
    source="ACPI specification 6.5, section 5.2.17 (SLIT)",
)
def distances(s: Seen) -> Iterator[Judged]:
    """Diagonal, order, symmetry."""
    nodes = s.nodes()
    table = {(n.id, to): d for n in nodes for to, d in n.distances}
    if len(nodes) < 2 or not table:
        raise NotApplicable("fewer than two nodes, or no distances are given")
    odd = []
    for (a, b), d in sorted(table.items()):
        if a == b and d != 10:
            odd.append(f"node {a} to itself {d}")
        elif a != b and d <= 10:
            odd.append(f"node {a} to node {b} {d}")
        elif a < b and table.get((b, a), d) != d:
            odd.append(f"{a}->{b} is {d}, {b}->{a} is {table[b, a]}")
    evidence = [
        saw(f"{NODE}/node{n.id}/distance", " ".join(str(d) for _, d in n.distances))
        for n in nodes[:4]
    ]
    if odd:
        yield warn(
            "numa",
            f"implausible distances: {some(odd, 4)}",
            *evidence,
            remedy=s.mend(
                "update the firmware (its SLIT); until then measure: mlc --latency_matrix"
            ),
        )
    else:
        spread = sorted({d for (a, b), d in table.items() if a != b})
        yield ok("numa", f"remote distances {some(spread)}", *evidence[:2])


@check(
    "numa.balancing",
    "automatic NUMA balancing is off where things are pinned",
    means="WARN when kernel.numa_balancing is on and this is a machine with GPUs or isolated CPUs "
    "and more than one node.",
    why="It unmaps pages of running tasks to see who touches them. A pinned worker gains nothing "
    "and stalls 5 to 15 ms at a time in task_numa_work.",
    prove="sysctl kernel.numa_balancing; grep numa_pte_updates /proc/vmstat",
    mend="sysctl -w kernel.numa_balancing=0, and a file in /etc/sysctl.d, or "
    "numa_balancing=disable "
    "at boot.",
    source="Linux Documentation/admin-guide/sysctl/kernel.rst, numa_balancing",
)
def balancing(s: Seen) -> Iterator[Judged]:
    """One sysctl, where it matters."""
    on = s.number(BALANCING, absent="this kernel has no NUMA balancing")
    if len(s.cpu_nodes) < 2 and not s.snapshot.pasted:
        s.whole(NODE)
        raise NotApplicable("one NUMA node")
    if on & 1 and s.latency_matters:
        yield warn(
            "kernel.numa_balancing",
            "automatic NUMA balancing is on: it scans and unmaps pages of pinned processes",
            saw(BALANCING, str(on)),
            remedy="sysctl -w kernel.numa_balancing=0",
        )
    elif on & 1:
        yield info(
            "kernel.numa_balancing",
            "automatic NUMA balancing is on; nothing is pinned here",
            saw(BALANCING, str(on)),
        )
    else:
        yield ok("kernel.numa_balancing", "off", saw(BALANCING, str(on)))


@check(
    "numa.zone-reclaim",
    "zone reclaim is off",
    means="WARN when vm.zone_reclaim_mode is not 0.",
    why="With it a node that runs full evicts page cache (staged model weights) and stalls the "
    "allocating thread, instead of using the other node.",
    prove="sysctl vm.zone_reclaim_mode",
    mend="sysctl -w vm.zone_reclaim_mode=0, and a file in /etc/sysctl.d.",
    source="Linux Documentation/admin-guide/sysctl/vm.rst, zone_reclaim_mode",
)
def zone_reclaim(s: Seen) -> Iterator[Judged]:
    """One sysctl."""
    mode = s.number(RECLAIM, absent="this kernel has one memory zone")
    if mode:
        yield warn(
            "vm.zone_reclaim_mode",
            f"vm.zone_reclaim_mode is {mode}: a full node evicts page cache and stalls allocations",
            saw(RECLAIM, str(mode)),
            remedy="sysctl -w vm.zone_reclaim_mode=0",
        )
    else:
        yield ok("vm.zone_reclaim_mode", "off", saw(RECLAIM, "0"))


@check(
    "numa.subnodes",
    "sub-NUMA mode",
    means="INFO when a package is split into several NUMA nodes (NPS2/NPS4, SNC), with advice when "
    "GPUs are then on nodes without a NIC.",
    why="Then a GPU's node has only a part of its socket's cores and memory channels, and often no "
    "NIC: plans made for one node a socket do not fit.",
    prove="lscpu; numactl -H",
    mend="NPS1 or SNC off, unless the workload was measured to gain.",
    source="AMD 56338, NPS; Intel, Sub-NUMA Clustering",
)
def subnodes(s: Seen) -> Iterator[Judged]:
    """Nodes for each package."""
    s.nodes()
    nodes, packages = s.cpu_nodes, s.packages()
    if not packages or len(nodes) <= len(packages):
        raise NotApplicable("one NUMA node a package, or fewer")
    split = [
        (p.id, sum(1 for n in nodes if n.cpus <= p.cpus))
        for p in packages
        if sum(1 for n in nodes if n.cpus <= p.cpus) > 1
    ]
    if not split:
        raise NotApplicable("no package holds several NUMA nodes")
    topology = s.snapshot.topology
    nics = {p.numa_node for p in topology.nics if p.physfn is None}
    homes = {p.numa_node for p in topology.gpus if p.computes and p.numa_node is not None}
    bare = sorted(h for h in homes - nics if h is not None) if nics else []
    sizes = some(sorted({n for _, n in split}))
    kind = "NPS" if (s.snapshot.host.cpu_vendor or "") == "AuthenticAMD" else "SNC"
    if (s.snapshot.host.cpu_vendor or "") not in ("AuthenticAMD", "GenuineIntel"):
        kind = "NPS or SNC"
    yield info(
        f"package {some(p for p, _ in split)}",
        f"{'each of ' if len(split) > 1 else ''}{many(len(split), 'package')} is split into "
        f"{sizes} NUMA nodes ({kind})"
        + (f"; GPUs are on node {some(bare)}, where no NIC is" if bare else ""),
        saw(f"{NODE}/node{nodes[0].id}/cpulist", str(nodes[0].cpus)),
        remedy=""
        if not bare or s.snapshot.host.virtual
        else "set NUMA nodes per socket = NPS1 in the BIOS"
        if kind == "NPS"
        else "set SNC (Sub-NUMA Clustering) = Disabled in the BIOS",
    )
