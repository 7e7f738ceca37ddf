"""memory: huge pages, transparent huge pages, swap, overcommit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from nodeagent.check.isolation import CMDLINE
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
from nodeagent.model.finding import Evidence
from nodeagent.model.memreport import HugePool

THP = "sys/kernel/mm/transparent_hugepage/enabled"
SWAPPINESS = "proc/sys/vm/swappiness"
SWAPS = "proc/swaps"
OVERCOMMIT = "proc/sys/vm/overcommit_memory"
_SIZE = re.compile(r"(\d+)([KMGkmg]?)")


def size_of(text: str) -> int | None:
    """`1G`, `2M`, `2048k` in bytes, None for anything else."""
    m = _SIZE.fullmatch(text)
    return None if m is None else int(m[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[m[2].lower()]


def chosen(text: str) -> str | None:
    """The word in brackets of `always [madvise] never`."""
    m = re.search(r"\[(\S+)\]", text)
    return m[1] if m else None


@check(
    "memory.hugepages-reserved",
    "as many huge pages as the command line asks for",
    means="FAIL when fewer huge pages of a size exist than hugepages= asks for; OK when all are "
    "there. A reservation that a script changed later shows up here too.",
    why="The kernel reserves what it finds and says nothing about the rest; the feeder or the "
    "index that maps them dies at start with ENOMEM, or with SIGBUS later.",
    prove="cat /proc/cmdline; grep . /sys/kernel/mm/hugepages/*/nr_hugepages",
    mend="Reserve at boot, before memory is fragmented (1 GiB pages only there); find the script "
    "that writes nr_hugepages.",
    source="Linux Documentation/admin-guide/mm/hugetlbpage.rst",
)
def hugepages_reserved(s: Seen) -> Iterator[Judged]:
    """hugepagesz=/hugepages= pairs against the pools."""
    s.arg("hugepages")
    size = size_of(s.snapshot.arg("default_hugepagesz") or "") or 2 << 20
    wanted: dict[int, tuple[int, str]] = {}
    for name, value in s.snapshot.boot_args:
        if name == "hugepagesz" and value:
            size = size_of(value) or size
        elif name == "hugepages" and value:
            # By node: hugepages=0:512,1:512 (Linux b5389086ad7b, v5.16).
            parts = [p.rpartition(":")[2] for p in value.split(",")]
            if all(p.isdigit() for p in parts):
                wanted[size] = (sum(map(int, parts)), f"hugepagesz={size >> 10}K hugepages={value}")
    if not wanted:
        raise NotApplicable("the command line reserves no huge pages")
    nodes = s.nodes()
    for size, (count, text) in sorted(wanted.items()):
        pools = [(n.id, h) for n in nodes for h in n.hugepages if h.size_bytes == size]
        path = f"sys/devices/system/node/node*/hugepages/hugepages-{size >> 10}kB/nr_hugepages"
        if not pools:
            raise s.gone(path, "this kernel has no pool of that size")
        have = sum(h.total for _, h in pools)
        by_node = some(f"node {i}: {h.total}" for i, h in pools)
        if have < count:
            yield fail(
                f"hugepages {size >> 10} kB",
                f"{count} huge pages of {size >> 10} kB are asked for, {have} are there",
                saw(CMDLINE, text),
                saw(path, by_node),
                remedy="grep -rs nr_hugepages /etc/sysctl.d /etc/rc.local /etc/systemd  # who "
                f"writes it later; at boot: {text.split()[0]} hugepages={count}",
            )
        else:
            yield ok(
                f"hugepages {size >> 10} kB", f"{have} of {count} are there", saw(path, by_node)
            )


@check(
    "memory.hugepages-per-node",
    "huge pages are on every node that has GPUs",
    means="WARN when huge pages are reserved, but none on a node that has CPUs and a GPU or NIC; "
    "INFO when a node without devices has none.",
    why="A thread on a node without huge pages fails to allocate, or gets remote ones; the totals "
    "of /proc/meminfo look fine.",
    prove="grep . /sys/devices/system/node/node*/hugepages/hugepages-*/nr_hugepages",
    mend="Reserve for each node: hugepages=0:N,1:N on the command line, or write each node's "
    "nr_hugepages.",
    source="Linux Documentation/admin-guide/mm/hugetlbpage.rst, 'per node hstate attributes'",
)
def hugepages_per_node(s: Seen) -> Iterator[Judged]:
    """Pools by node."""
    if s.snapshot.pasted is not None and not any(n.hugepages for n in s.cpu_nodes):
        yield from _pasted_pools(s.snapshot.pasted.of(HugePool))
        return
    s.nodes()
    nodes = [n for n in s.cpu_nodes if n.hugepages]
    sizes = sorted({h.size_bytes for n in nodes for h in n.hugepages if h.total})
    if not sizes or len(nodes) < 2:
        raise NotApplicable("no huge pages are reserved, or one node has CPUs")
    busy = {p.numa_node for p in s.snapshot.topology.pci if (p.computes or p.is_nic)}
    for size in sizes:
        count = {n.id: sum(h.total for h in n.hugepages if h.size_bytes == size) for n in nodes}
        bare = [i for i, total in count.items() if not total]
        path = f"sys/devices/system/node/node*/hugepages/hugepages-{size >> 10}kB/nr_hugepages"
        evidence = saw(path, some(f"node {i}: {total}" for i, total in sorted(count.items())))
        subject = f"hugepages {size >> 10} kB"
        if needed := [i for i in bare if i in busy or s.snapshot.pasted]:
            yield warn(
                subject,
                f"node {some(needed)} has no huge pages of {size >> 10} kB; other nodes have "
                f"{sum(count.values())}",
                evidence,
                remedy=f"echo {max(count.values())} > /sys/devices/system/node/node{needed[0]}/"
                f"hugepages/hugepages-{size >> 10}kB/nr_hugepages",
            )
        elif bare:
            yield info(subject, f"node {some(bare)} has no huge pages and no devices", evidence)
        else:
            yield ok(subject, f"each of {len(nodes)} nodes has some", evidence)


def _pasted_pools(pools: Iterable[HugePool]) -> Iterator[Judged]:
    """Pools of nodes that were pasted alone: by name, without CPU lists."""
    rows: dict[int | None, dict[int, tuple[int, str]]] = {}
    for x in pools:
        total = x.values.get("nr", x.values.get("free"))
        if x.node is not None and total is not None and x.later is not False:
            rows.setdefault(x.size_bytes, {})[x.node] = (total, x.source)
    rows = {size: by for size, by in rows.items() if len(by) > 1 and any(n for n, _ in by.values())}
    if not rows:
        raise NotApplicable("no huge pages of several nodes were pasted")
    for size, by in rows.items():
        bare = [n for n, (total, _) in sorted(by.items()) if not total]
        kind = f"hugepages {size >> 10} kB" if size else "hugepages"
        evidence = [saw(source, str(total)) for total, source in by.values()][:4]
        if not bare:
            yield ok(kind, f"each of {len(by)} nodes has some", *evidence)
            continue
        most = max(total for total, _ in by.values())
        yield warn(
            kind,
            f"node {some(bare)} has no huge pages; "
            + some(f"node {n} has {t}" for n, (t, _) in sorted(by.items()) if t),
            *evidence,
            remedy=f"echo {most} > /sys/devices/system/node/node{bare[0]}/hugepages/"
            f"hugepages-{(size or 2 << 20) >> 10}kB/nr_hugepages",
        )


@check(
    "memory.thp",
    "transparent huge pages are not forced on",
    means="WARN when THP is `always` on a machine with GPUs or isolated CPUs, INFO elsewhere.",
    why="The fault path then compacts memory and khugepaged copies pages of running processes: "
    "outliers of 10 to 50 ms.",
    prove="cat /sys/kernel/mm/transparent_hugepage/{enabled,defrag}",
    mend="echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, and "
    "transparent_hugepage=madvise at boot.",
    source="Linux Documentation/admin-guide/mm/transhuge.rst",
)
def thp(s: Seen) -> Iterator[Judged]:
    """One settings file."""
    text = s.text(THP, absent="this kernel has no transparent huge pages")
    mode = chosen(text)
    if mode is None:
        raise Missing(THP, f"saw {text[:40]!r}, expected a word in brackets", READ_BY_HAND)
    if mode == "always" and s.latency_matters:
        yield warn(
            "transparent huge pages",
            "transparent huge pages are `always`: faults compact memory, khugepaged moves pages",
            saw(THP, text),
            remedy="echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )
    elif mode == "always":
        yield info("transparent huge pages", "transparent huge pages are `always`", saw(THP, text))
    else:
        yield ok("transparent huge pages", mode, saw(THP, text))


@check(
    "memory.swap",
    "nothing latency-critical is swapped",
    means="WARN when swap is configured and vm.swappiness is above `swappiness` on a machine with "
    "GPUs or isolated CPUs; INFO elsewhere. When /proc/swaps was not pasted, swap counts as "
    "configured, and the finding says that this is not known.",
    why="A page of a pinned process that was swapped out comes back after a disk read, while the "
    "message waits.",
    prove="cat /proc/swaps; sysctl vm.swappiness",
    mend="sysctl -w vm.swappiness=1, and a file in /etc/sysctl.d; swapoff -a on such nodes while "
    "more memory is available than swapped out (free -m), else processes are killed.",
    source="Linux Documentation/admin-guide/sysctl/vm.rst, swappiness",
    bounds={"swappiness": 10},
)
def swap(s: Seen) -> Iterator[Judged]:
    """Swap areas and the eagerness to use them."""
    value = s.number(SWAPPINESS, absent="this kernel has no swap")
    evidence: tuple[Evidence, ...] = (saw(SWAPPINESS, str(value)),)
    state = "swap is on"
    try:
        areas = s.word(SWAPS, absent="this kernel has no swap").splitlines()[1:]
    except NotApplicable:
        if not s.snapshot.pasted:
            raise
        areas, state = ["not said"], "whether swap is on was not said"
    if not areas:
        yield ok("swap", "no swap is configured")
        return
    evidence += (saw(SWAPS, areas[0]),)
    if value > s.bounds["swappiness"] and s.latency_matters:
        yield warn(
            "vm.swappiness",
            f"{state} and vm.swappiness is {value}",
            *evidence,
            remedy="sysctl -w vm.swappiness=1  # swapoff -a only while more memory is available "
            "than swapped out (free -m): it reads all of it back in",
        )
    elif value > s.bounds["swappiness"]:
        yield info("vm.swappiness", f"{state} and vm.swappiness is {value}", *evidence)
    else:
        yield ok("vm.swappiness", f"vm.swappiness is {value}", *evidence)


@check(
    "memory.overcommit",
    "memory may be reserved ahead of use",
    means="WARN when vm.overcommit_memory is 2 on a machine with GPUs.",
    why="CUDA and ROCm reserve virtual addresses for all GPU memory in every process; with strict "
    "accounting cuInit() and large mmaps fail with out-of-memory on an empty machine.",
    prove="sysctl vm.overcommit_memory; grep Commit /proc/meminfo",
    mend="sysctl -w vm.overcommit_memory=0 (or 1).",
    source="Linux Documentation/mm/overcommit-accounting.rst; CUDA C++ programming guide, unified "
    "virtual addressing",
)
def overcommit(s: Seen) -> Iterator[Judged]:
    """One sysctl."""
    mode = s.number(OVERCOMMIT, absent="this kernel has no overcommit setting")
    if mode == 2 and s.gpus_compute:
        yield warn(
            "vm.overcommit_memory",
            "strict memory accounting is on: GPU processes reserve far more than they use",
            saw(OVERCOMMIT, "2"),
            remedy="sysctl -w vm.overcommit_memory=0",
        )
    elif mode == 2:
        yield info("vm.overcommit_memory", "strict memory accounting is on", saw(OVERCOMMIT, "2"))
    else:
        yield ok("vm.overcommit_memory", str(mode), saw(OVERCOMMIT, str(mode)))
