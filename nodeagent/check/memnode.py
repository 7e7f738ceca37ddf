"""numa: memory that is missing, used up or moved; nodes that are hidden or in odd order."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from nodeagent.check.isolation import CMDLINE
from nodeagent.check.numa import NODE, mib
from nodeagent.check.record import (
    READ_BY_HAND,
    Judged,
    Missing,
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
from nodeagent.check.unit import home_of
from nodeagent.model.finding import Evidence

EDAC = "sys/devices/system/edac/mc"
DEMOTION = "sys/kernel/mm/numa/demotion_enabled"


@check(
    "numa.exhausted",
    "every node has memory left",
    means="WARN when a node with CPUs has less than `percent` % of its memory free or in page "
    "cache that can be dropped at once; INFO when little is free and the cache is not told "
    "(numactl -H). NA where nothing of it is told.",
    why="The next allocation of a thread bound there fails (membind: the OOM killer, though the "
    "other node has gigabytes), or silently goes to the other node.",
    prove="numastat -m | grep -E 'MemTotal|MemFree|File|SReclaimable'; numactl -H",
    mend="Find who fills it (numastat -p PID), move that process's memory (migratepages PID FROM "
    "TO) or reserve fewer huge pages on it.",
    source="Linux Documentation/admin-guide/mm/numa_memory_policy.rst; "
    "Documentation/filesystems/proc.rst, MemAvailable",
    bounds={"percent": 3},
)
def exhausted(s: Seen) -> Iterator[Judged]:
    """What is available on each node."""
    s.nodes()
    told = [n for n in s.cpu_nodes if n.memory_bytes and n.memory_available_bytes is not None]
    full = [
        n
        for n in s.cpu_nodes
        if n.memory_bytes
        and n.memory_available_bytes is None
        and n.memory_free_bytes is not None
        and n.memory_free_bytes * 100 < n.memory_bytes * s.bounds["percent"]
    ]
    for n in full:
        yield info(
            f"node {n.id}",
            f"node {n.id} has {mib(n.memory_free_bytes or 0)} of {mib(n.memory_bytes or 0)} free; "
            "how much of the rest is page cache that can be dropped is not told",
            saw(f"{NODE}/node{n.id}/meminfo", f"MemFree: {(n.memory_free_bytes or 0) >> 10} kB"),
            remedy="numastat -m | grep -E 'MemFree|FilePages|SReclaimable'",
        )
    if not told and full:
        return
    if not told:
        raise NotApplicable("no node tells how much of its memory is available")
    low = [
        n
        for n in told
        if (n.memory_available_bytes or 0) * 100 < (n.memory_bytes or 0) * s.bounds["percent"]
    ]
    for n in low:
        pages = sum(h.size_bytes * h.total for h in n.hugepages)
        held = f"; {mib(pages)} of it are reserved as huge pages" if pages else ""
        yield warn(
            f"node {n.id}",
            f"node {n.id} has {mib(n.memory_available_bytes or 0)} of {mib(n.memory_bytes or 0)} "
            f"left{held}",
            saw(
                f"{NODE}/node{n.id}/meminfo",
                f"MemTotal {(n.memory_bytes or 0) >> 10} kB, MemFree "
                f"{(n.memory_free_bytes or 0) >> 10} kB, with page cache "
                f"{(n.memory_available_bytes or 0) >> 10} kB",
            ),
            remedy=f"numastat -p $(pgrep -d' ' .)  | sort -k{n.id + 2} -n | tail  # who holds it",
        )
    if not low:
        least = min(told, key=lambda n: (n.memory_available_bytes or 0) / (n.memory_bytes or 1))
        yield ok(
            "numa", f"node {least.id} has least: {mib(least.memory_available_bytes or 0)} available"
        )


@check(
    "numa.dimms",
    "every memory controller has alike DIMMs",
    means="WARN when EDAC sees fewer DIMMs, or less memory, on one memory controller than on "
    "another; the empty slots are named. NA without an EDAC driver, in virtual machines, and with "
    "one controller.",
    why="A DIMM that failed its training at boot is left out with one line in the BMC's log: its "
    "channel, and the bandwidth of its node, are gone.",
    prove="grep . /sys/devices/system/edac/mc/mc*/dimm*/{dimm_label,size}; dmidecode -t memory",
    mend="Reseat or replace the named DIMM; the BMC's event log says whether it was there before.",
    source="Linux Documentation/admin-guide/RAS/main.rst, 'EDAC'",
)
def dimms(s: Seen) -> Iterator[Judged]:
    """Sizes by controller."""
    sizes: dict[str, list[tuple[str, int]]] = defaultdict(list)
    s.whole(EDAC, leaf="size")
    for path, text in s.matching(EDAC, "/size"):
        m = re.fullmatch(rf"{EDAC}/(mc\d+)/(dimm\d+)/size", path)
        if m is None:
            continue
        if not text.isdigit():
            raise Missing(path, f"saw {text[:40]!r}, expected MiB", READ_BY_HAND)
        sizes[m[1]].append((m[2], int(text)))
    filled = {mc: [(d, n) for d, n in rows if n] for mc, rows in sizes.items()}
    if len(filled) < 2 or s.snapshot.host.virtual:
        raise NotApplicable("EDAC tells of fewer than two memory controllers")
    totals = {mc: sum(n for _, n in rows) for mc, rows in filled.items()}
    whole = max(totals.values())
    short = {mc: total for mc, total in totals.items() if total < whole}
    if not short:
        yield ok("dimm", f"{len(totals)} memory controllers have {whole} MiB each or more")
        return
    evidence = [
        saw(f"{EDAC}/{mc}/dimm*/size", some((f"{_label(s, mc, d)}: {n} MiB" for d, n in rows), 6))
        for mc, rows in list(filled.items())
        if mc in short
    ]
    empty = [_label(s, mc, dimm) for mc in short for dimm, size in sizes[mc] if not size]
    yield warn(
        some(short),
        f"{some(f'{mc} has {total >> 10} GiB' for mc, total in short.items())}, the others "
        f"{whole >> 10} GiB" + (f"; empty: {some(empty, 4)}" if empty else ""),
        *evidence[:3],
        remedy="sudo dmidecode -t memory | grep -E 'Locator|Size'; ipmitool sel list | grep -i mem",
    )


def _label(s: Seen, mc: str, dimm: str) -> str:
    return s.snapshot.texts.get(f"{EDAC}/{mc}/{dimm}/dimm_label") or f"{mc}/{dimm}"


@check(
    "memory.ecc",
    "memory errors are few and corrected",
    means="FAIL when EDAC counted an uncorrected memory error since boot, WARN when it counted "
    "more than `corrected` corrected ones; the DIMM is named where the driver tells it. NA without "
    "an EDAC driver.",
    why="A DIMM corrects bits for weeks before it kills the machine; each correction by firmware "
    "stops all CPUs for milliseconds (SMI).",
    prove="grep . /sys/devices/system/edac/mc/mc*/{ce_count,ue_count} "
    "/sys/devices/system/edac/mc/mc*/dimm*/dimm_*e_count",
    mend="Plan the exchange of that DIMM: ras-mc-ctl --errors, ipmitool sel list.",
    source="Linux Documentation/ABI/testing/sysfs-devices-edac",
    bounds={"corrected": 100},
)
def ecc(s: Seen) -> Iterator[Judged]:
    """Counters of each controller, and of the DIMM that has most."""
    s.whole(EDAC, leaf="ce_count")
    s.whole(EDAC, leaf="ue_count")
    counts: dict[str, dict[str, int]] = {"ue_count": {}, "ce_count": {}}
    for leaf, found in counts.items():
        for path, text in s.matching(EDAC, f"/{leaf}"):
            if not text.isdigit():
                raise Missing(path, f"saw {text[:40]!r}, expected a number", READ_BY_HAND)
            found[path.split("/")[5]] = int(text)
    uncorrected, corrected = counts["ue_count"], counts["ce_count"]
    if not uncorrected and not corrected:
        raise NotApplicable("no EDAC driver counts memory errors here")
    remedy = "ras-mc-ctl --errors; ipmitool sel list | grep -i mem  # then exchange that DIMM"
    bad = False
    for mc, count in uncorrected.items():
        if count:
            bad = True
            where = _worst(s, mc, "dimm_ue_count")
            yield fail(
                where or mc,
                f"{count} uncorrected memory errors since boot{f' at {where}' if where else ''}",
                saw(f"{EDAC}/{mc}/ue_count", str(count)),
                remedy=remedy,
            )
    for mc, count in corrected.items():
        if count > s.bounds["corrected"]:
            bad = True
            where = _worst(s, mc, "dimm_ce_count")
            yield warn(
                where or mc,
                f"{count} corrected memory errors since boot{f' at {where}' if where else ''}",
                saw(f"{EDAC}/{mc}/ce_count", str(count)),
                remedy=remedy,
            )
    if not bad:
        total = sum(corrected.values())
        yield ok("edac", f"{total} corrected and no uncorrected memory errors since boot")


def _worst(s: Seen, mc: str, leaf: str) -> str | None:
    """The DIMM with most errors."""
    rows = [
        (int(text), path.split("/")[6])
        for path, text in s.matching(f"{EDAC}/{mc}/dimm", f"/{leaf}")
        if text.isdigit() and int(text)
    ]
    return _label(s, mc, max(rows)[1]) if rows else None


@check(
    "numa.demotion",
    "pages of pinned processes are not demoted to slow memory",
    means="WARN when demotion is on and a memory-only node (CXL, persistent memory) exists on a "
    "machine with GPUs or isolated CPUs. NA without such a node.",
    why="Reclaim then moves cold pages of any process to memory that answers two to four times "
    "slower; the next touch of a ring or index pays it.",
    prove="cat /sys/kernel/mm/numa/demotion_enabled; grep . "
    "/sys/devices/virtual/memory_tiering/memory_tier*/nodelist",
    mend="echo false > /sys/kernel/mm/numa/demotion_enabled",
    source="Linux Documentation/ABI/testing/sysfs-kernel-mm-numa; "
    "Documentation/ABI/testing/sysfs-kernel-mm-memory-tiers",
)
def demotion(s: Seen) -> Iterator[Judged]:
    """One switch, where there is something to be demoted to."""
    s.nodes()
    slow = [n for n in s.memory_only if n.kind.value == "memory"]
    if not slow:
        raise NotApplicable("no memory-only node is here")
    text = s.word(DEMOTION, absent="this kernel demotes no pages")
    ids = some(n.id for n in slow)
    if text in ("true", "1") and s.latency_matters:
        yield warn(
            f"node {ids}",
            f"pages may be demoted to node {ids}, which has no CPUs",
            saw(DEMOTION, text),
            remedy="echo false > /sys/kernel/mm/numa/demotion_enabled",
        )
    else:
        yield ok(f"node {ids}", f"demotion is {text}", saw(DEMOTION, text))


@check(
    "numa.interleaved",
    "each socket has a NUMA node of its own",
    means="WARN when numa=off is on the command line of a machine with several sockets, or when "
    "such a machine with GPUs or isolated CPUs shows one node only (node interleaving is on in the "
    "BIOS). INFO without either, since old machines have one memory bus. Not for virtual machines: "
    "see contradiction.vnuma.",
    why="Memory is then spread over both sockets page by page: half of all accesses are remote, "
    "nothing can be placed, and every tool says that all is one node.",
    prove="lscpu | grep -E 'Socket|NUMA'; cat /proc/cmdline",
    mend="Switch Node Interleaving off in the BIOS (Dell: Memory Settings; HPE: Node Interleaving; "
    "AMD: NPS1, not NPS0), and drop numa=off.",
    source="Linux Documentation/arch/x86/x86_64/boot-options.rst, numa=off; AMD 56338, NPS0",
)
def interleaved(s: Seen) -> Iterator[Judged]:
    """Sockets against nodes."""
    if s.snapshot.host.virtual:
        raise NotApplicable("a virtual machine; contradiction.vnuma judges it")
    if (s.snapshot.host.cpu_vendor or "").startswith("IBM/S390"):
        raise NotApplicable("s390 has no NUMA nodes of its own")
    s.nodes()
    sockets = len(s.packages())
    if sockets < 2 or not s.cpu_nodes:
        raise NotApplicable("one socket, or the sockets are not known")
    nodes = len(s.cpu_nodes)
    evidence = [
        Evidence(path="/sys/devices/system/cpu", text=f"{sockets} packages"),
        saw(f"{NODE}/node{s.cpu_nodes[0].id}/cpulist", str(s.cpu_nodes[0].cpus)),
    ]
    off = s.snapshot.arg("numa") == "off"
    if off:
        evidence.append(saw(CMDLINE, "numa=off"))
    sentence = f"{sockets} sockets, but one NUMA node"
    if nodes > 1:
        yield ok("numa", f"{sockets} sockets have {nodes} NUMA nodes")
    elif off:
        yield warn(
            "numa",
            f"{sentence}: numa=off hides the rest",
            *evidence,
            remedy="drop numa=off in /etc/default/grub, then update-grub and reboot",
        )
    elif s.latency_matters and s.snapshot.pasted is None:
        yield warn(
            "numa",
            f"{sentence}: memory is interleaved over the sockets",
            *evidence,
            remedy="set Node Interleaving = Disabled (AMD: NPS1) in the BIOS",
        )
    elif sockets > 2 and all(len(p.cpus) == 1 for p in s.packages()):
        what = "each PU is a socket, as hypervisors make them up"
        yield info("numa", f"{sentence}: {what}", *evidence)
    else:
        yield info("numa", f"{sentence}: interleaved by the firmware, or one memory bus", *evidence)


@check(
    "numa.flat-distances",
    "the distance table tells near from far",
    means="INFO when packages are split into several nodes each, and all remote distances are "
    "alike: the table cannot tell the other half of a socket from the other socket.",
    why="The kernel's fallback order then takes the far socket as soon as the near node, and so "
    "does every planner that goes by this table.",
    prove="numactl -H; cat /sys/devices/system/node/node*/distance",
    mend="Update the BIOS (its SLIT). Until then plan by package: lscpu -e=CPU,NODE,SOCKET.",
    source="ACPI specification 6.5, section 5.2.17 (SLIT); Linux mm/page_alloc.c build_zonelists()",
)
def flat_distances(s: Seen) -> Iterator[Judged]:
    """Remote distances inside a package against those across."""
    nodes = s.nodes()
    packages = s.packages()
    home = {
        n.id: next((p.id for p in packages if n.cpus and n.cpus <= p.cpus), None) for n in nodes
    }
    within: list[tuple[int, int, int]] = []
    across: list[tuple[int, int, int]] = []
    for n in nodes:
        for to, d in n.distances:
            if to <= n.id or home.get(n.id) is None or home.get(to) is None:
                continue
            (within if home[n.id] == home[to] else across).append((d, n.id, to))
    if not within or not across:
        raise NotApplicable("no package of several is split into nodes, or distances are not known")
    near, far = max(within), min(across)
    evidence = (
        saw(f"{NODE}/node{near[1]}/distance", f"to node {near[2]}: {near[0]}"),
        saw(f"{NODE}/node{far[1]}/distance", f"to node {far[2]}: {far[0]}"),
    )
    if near[0] >= far[0]:
        yield info(
            "numa",
            f"nodes {near[1]} and {near[2]} of one package are as far apart ({near[0]}) as nodes "
            f"{far[1]} and {far[2]} of two ({far[0]})",
            *evidence,
            remedy="lscpu -e=CPU,NODE,SOCKET  # plan by socket, not by distance",
        )
    else:
        yield ok("numa", f"{near[0]} inside a package, {far[0]} and more across", *evidence)


@check(
    "numa.gpu-order",
    "GPU numbers and NUMA nodes run the same way",
    means="INFO when the GPUs in bus order are not on ascending nodes (GPU 0 on node 3, as on many "
    "EPYC boards): a rule such as node = rank / 4 is wrong here. NA with one node or untold nodes.",
    why="Launch scripts bind rank 0 to node 0 and so on; on such a board every rank is remote.",
    prove="nvidia-smi topo -m; cat /sys/bus/pci/devices/*/numa_node",
    mend="Bind each rank by its GPU's node: numactl -N NODE -m NODE, or nodeagentctl place plan.",
    source="nvidia-smi topo -h; CUDA_DEVICE_ORDER=PCI_BUS_ID, CUDA C++ programming guide",
)
def gpu_order(s: Seen) -> Iterator[Judged]:
    """Nodes of the GPUs in bus order."""
    s.devices()
    s.device_nodes()
    s.whole(NODE)
    gpus = [p for p in s.snapshot.topology.gpus if p.computes and p.physfn is None]
    homes = [home_of(s, p) for p in gpus]
    order = [h.id for h in homes if h is not None]
    if len(gpus) < 2 or len(order) < len(gpus) or len(set(order)) < 2:
        raise NotApplicable("fewer than two GPUs on known, different nodes are here")
    said = some((f"GPU {i} on node {n}" for i, n in enumerate(order)), 16)
    evidence = saw(f"sys/bus/pci/devices/{gpus[0].bdf}/numa_node", str(gpus[0].numa_node))
    if order == sorted(order):
        yield ok("gpu", said, evidence)
    else:
        yield info(
            "gpu",
            f"GPUs do not follow the node numbers: {said}",
            evidence,
            remedy=f"numactl -N {order[0]} -m {order[0]} PROGRAM  # for GPU 0; likewise the others",
        )
