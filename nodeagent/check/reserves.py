"""shm and memory: how full, whose, and who took it away, from pasted texts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodeagent.check.declared import given
from nodeagent.check.logtext import UNUSED
from nodeagent.check.memory import size_of
from nodeagent.check.record import (
    Judged,
    NotApplicable,
    Seen,
    check,
    fail,
    info,
    ok,
    saw,
    share,
    some,
    warn,
)
from nodeagent.model.hostreport import Said
from nodeagent.model.memreport import (
    BoundDevice,
    EalArguments,
    Filesystem,
    HugePool,
    MemoryUse,
    ShmFile,
)

DEFAULT_BYTES = 64 << 20
ROOM = (
    "mount -o remount,size=16g /dev/shm  # on the host; a container: --shm-size=16g or --ipc=host"
)
_IGNORED = re.compile(r"^/snap|^/sys/|^/boot/efi|^/run/|^/media|^/mnt/(?:cd|iso)|^/var/lib/snapd")
_LEFT = re.compile(
    r"^(?:nccl-|psm_|torch_|vllm|sglang|sem\.mp|shm_|shmid "
    r"|plasma|wnsm_|pymp-|vader_)"
)


@check(
    "shm.usage",
    "/dev/shm and the other file systems have room",
    means="FAIL when a file system (or its inodes) is `fail_percent` % full, WARN at "
    "`warn_percent` %, and WARN when /dev/shm is smaller than `shm_bytes`.",
    why="tmpfs gives pages when they are touched: the process that touches the last one dies of "
    "SIGBUS, not of an error it could handle.",
    prove="df -h; df -i; ls -l /dev/shm",
    mend="--shm-size=16g or --ipc=host for a container; remove what dead processes left in "
    f"/dev/shm: {UNUSED}.",
    source="Linux Documentation/filesystems/tmpfs.rst; df(1)",
    bounds={"warn_percent": 80, "fail_percent": 95, "shm_bytes": 1 << 30},
)
def usage(s: Seen) -> Iterator[Judged]:
    """Rows of df."""
    rows = [
        f for f in given(s).of(Filesystem)
        if not _IGNORED.match(f.mount) and not f.device.startswith("/dev/loop")
    ]  # fmt: skip
    if not rows:
        raise NotApplicable("no output of df was pasted")
    bad = False
    for f in rows:
        what = "inodes" if f.inodes else "full"
        left = max(0, f.size - f.used)
        amount = f"{left} inodes" if f.inodes else f"{left >> 20} MiB"
        shm = f.mount == "/dev/shm"
        line = saw(f.source, f"{f.device} {f.mount}: {f.percent} %")
        if f.percent >= s.bounds["warn_percent"] and f.size:
            bad = True
            judged = fail if f.percent >= s.bounds["fail_percent"] else warn
            percent = f"{f.percent} % of its inodes used" if f.inodes else f"{f.percent} % {what}"
            yield judged(
                f.mount,
                f"{f.mount} is {percent}, {amount} left"
                + (": the next touch of shared memory may end in SIGBUS" if shm else ""),
                line,
                remedy=f"ls -lS /dev/shm | head; fuser -v /dev/shm/*  # "
                f"rm what no process maps; or: {ROOM}"
                if shm
                else f"du -xh {f.mount} | sort -h | tail; remove or move what is not needed",
            )
        if shm and not f.inodes and f.size < s.bounds["shm_bytes"]:
            bad = True
            default = " (the container default)" if f.size <= DEFAULT_BYTES else ""
            yield warn(
                f.mount,
                f"/dev/shm holds {f.size >> 20} MiB{default}: inference servers and NCCL need more",
                line,
                remedy=ROOM,
            )
    if not bad:
        yield ok("file systems", f"{len(rows)} have room; the fullest is "
                 f"{max(f.percent for f in rows)} % full")  # fmt: skip


@check(
    "shm.files",
    "shared memory belongs to somebody and fits",
    means="FAIL when the files in /dev/shm are declared larger than it is; WARN when files of "
    "NCCL, "
    "PyTorch or Python are mapped by no process. Files whose users were not pasted are told, not "
    "judged.",
    why="A killed rank never unlinks its segments: they stay until the reboot, and the next start "
    "runs out. A file larger than the tmpfs was made by ftruncate() and dies on touch.",
    prove="ls -l /dev/shm; fuser -v /dev/shm/*; ipcs -mp",
    mend=f"As root {UNUSED}; ipcrm -m ID for SysV segments without processes.",
    source="shm_overview(7); Linux Documentation/filesystems/tmpfs.rst",
)
def files(s: Seen) -> Iterator[Judged]:
    """Sizes against the mount; owners."""
    rows = given(s).of(ShmFile)
    if not rows:
        raise NotApplicable("no files of shared memory were pasted")
    declared = sum(f.size for f in rows if not f.name.startswith("shmid"))
    limit, where = _limit(s)
    bad = False
    if limit is not None and declared > limit:
        bad = True
        biggest = max(rows, key=lambda f: f.size)
        yield fail(
            "/dev/shm",
            f"files of {declared >> 20} MiB are declared in a /dev/shm of {limit >> 20} MiB: the "
            "first full use ends in SIGBUS",
            saw(biggest.source, f"{biggest.name}: {biggest.size} bytes"),
            saw(*where),
            remedy=ROOM,
        )
    orphans = [f for f in rows if f.mapped_by == "" and _LEFT.match(f.name)]
    if orphans:
        bad = True
        size = sum(f.size if f.allocated is None else f.allocated for f in orphans)
        yield warn(
            "/dev/shm",
            f"{len(orphans)} segments of {size >> 20} MiB are mapped by no process: left over by "
            "killed ranks",
            *(saw(f.source, f"{f.name}: {f.size} bytes, mapped by nobody") for f in orphans[:3]),
            remedy=f"ipcrm -m {orphans[0].name.split()[-1]}  # each of them"
            if orphans[0].name.startswith("shmid")
            else UNUSED,
        )  # fmt: skip
    untold = [f for f in rows if f.mapped_by is None and _LEFT.match(f.name)]
    if untold:
        size = sum(f.size for f in untold)
        yield info(
            "/dev/shm",
            f"{len(untold)} segments of {size >> 20} MiB ({some((f.name for f in untold), 3)}); "
            f"who "
            "maps them was not pasted",
            saw(untold[0].source, f"{untold[0].name}: {untold[0].size} bytes"),
            remedy="fuser -v /dev/shm/*",
        )
    if not bad:
        yield ok("/dev/shm", f"{len(rows)} files, {declared >> 20} MiB")


def _limit(s: Seen) -> tuple[int | None, tuple[str, str]]:
    """Size of /dev/shm by df, else by its mount."""
    for f in given(s).of(Filesystem):
        if f.mount == "/dev/shm" and not f.inodes:
            return f.size, (f.source, f"{f.device} {f.size >> 20} MiB /dev/shm")
    for line in s.snapshot.texts.get("proc/mounts", "").splitlines():
        words = line.split()
        if words[1:3] == ["/dev/shm", "tmpfs"] and (m := re.search(r"size=(\w+)", line)):
            return size_of(m[1]), ("proc/mounts", line)
    return None, ("", "")


@check(
    "memory.hugepages-changed",
    "nobody took the huge pages away",
    means="FAIL when a pool of huge pages is smaller the second time it was read.",
    why="Start scripts write nr_hugepages as if they were alone: 16 pages were meant to be of 1 "
    "GiB "
    "and became 16 of 2 MiB, and what was reserved at boot is gone.",
    prove="grep . /sys/devices/system/node/node*/hugepages/hugepages-*/nr_hugepages, before and "
    "after the start",
    mend="Reserve at boot and take the line out of the start script; grep -r nr_hugepages "
    "/etc /opt /usr/local.",
    source="Linux Documentation/admin-guide/mm/hugetlbpage.rst",
)
def hugepages_changed(s: Seen) -> Iterator[Judged]:
    """Two readings of a pool."""
    pools = given(s).of(HugePool)
    first = {(p.node, p.size_bytes): p for p in pools if p.later is False}
    last = {(p.node, p.size_bytes): p for p in pools if p.later}
    both = [(first[k], last[k]) for k in first if k in last]
    both = [(a, b) for a, b in both if "nr" in a.values and "nr" in b.values]
    if not both:
        raise NotApplicable("no pool of huge pages was pasted twice")
    for a, b in both:
        before, after = a.values["nr"], b.values["nr"]
        where = "" if a.node is None else f" on node {a.node}"
        if after < before:
            yield fail(
                f"huge pages{where}",
                f"the pool went from {before} to {after} huge pages{where}: somebody rewrote "
                "nr_hugepages in between",
                saw(a.source, f"nr_hugepages {before}"),
                saw(b.source, f"nr_hugepages {after}"),
                remedy="grep -r nr_hugepages /etc /opt /usr/local; reserve at boot: "
                f"hugepages={before}",
            )
        else:
            yield ok(f"huge pages{where}", f"{before} then {after}")


@check(
    "memory.dpdk",
    "each DPDK core has huge pages on its node",
    means="FAIL when lcores run on a node without free huge pages; WARN when DPDK's log says that "
    "a node has none and another node has some; FAIL when --socket-mem asks for "
    "more than a node (or the machine) has free.",
    why="DPDK allocates on the node of each lcore: with pages on node 0 only, a thread of node 1 "
    "fails or gets remote memory, whatever the totals in /proc/meminfo say.",
    prove="grep . /sys/devices/system/node/node*/hugepages/hugepages-*/free_hugepages; lscpu",
    mend="Reserve for each node: hugepages=0:N,1:N at boot, or keep the lcores on one node.",
    source="DPDK, Linux getting started guide, 'Use of Hugepages'; EAL parameters",
)
def dpdk(s: Seen) -> Iterator[Judged]:
    """Lcores and asked-for memory against free pages by node."""
    p = given(s)
    runs = p.of(EalArguments)
    lines = [x for x in p.of(Said) if x.kind == "memory/eal-no-pages" and "node" in x.values]
    if not runs and not lines:
        raise NotApplicable("no DPDK command line was pasted")
    pools = [x for x in p.of(HugePool) if x.later is not False]
    nodes = {n.id: n.cpus for n in s.cpu_nodes}
    free: dict[int, int] = {}
    for x in pools:
        if x.node is not None:
            pages = x.values.get("free", x.values.get("nr", 0))
            free[x.node] = free.get(x.node, 0) + pages * (x.size_bytes or 2 << 20)
    if not free and not pools:
        raise NotApplicable("no huge pages were pasted")
    bad = False
    for line in lines:
        node, size = int(line.values["node"]), int(line.values["kb"]) << 10
        here = {x.node: x.values.get("free", x.values.get("nr", 0)) for x in pools
                if x.node is not None and x.size_bytes == size}  # fmt: skip
        if here.get(node) == 0 and any(here.values()):
            bad = True
            have = some(f"node {n}: {c}" for n, c in sorted(here.items()) if n is not None)
            yield warn(
                f"node {node}",
                f"node {node} has none of the huge pages of {size >> 10} kB ({have} free): lcores "
                "and ports there find no memory of their own node",
                saw(line.source, line.line),
                saw(f"sys/devices/system/node/node*/hugepages/hugepages-{size >> 10}kB", have),
                remedy=f"echo {max(here.values())} > {line.values['pool']}/nr_hugepages  # at "
                f"boot: hugepagesz={size >> 20}M hugepages={node}:{max(here.values())}",
            )
    for run in runs:
        used = {n: cpus & run.lcores for n, cpus in nodes.items() if cpus & run.lcores}
        for node, cpus in used.items():
            if free and not free.get(node):
                bad = True
                have = some(f"node {n}: {b >> 20} MiB free" for n, b in sorted(free.items()))
                yield fail(
                    f"node {node}",
                    f"lcores {cpus} are on node {node}, which has no free huge pages ({have})",
                    saw(run.source, run.text or str(run.lcores)),
                    saw("sys/devices/system/node", have),
                    remedy="hugepages=0:N,1:N at boot, or keep the lcores on "
                    f"node {max(free, key=lambda n: free[n])}",
                )
        total = sum(
            x.values.get("free", x.values.get("nr", 0)) * (x.size_bytes or 2 << 20)
            for x in pools if x.node is None
        )  # fmt: skip
        for node, mb in enumerate(run.socket_mem_mb):
            room = free.get(node) if free else None
            if mb and room is not None and mb << 20 > room:
                bad = True
                yield fail(
                    f"node {node}",
                    f"--socket-mem asks for {mb} MiB on node {node}, {room >> 20} MiB are free "
                    f"there",
                    saw(run.source, run.text),
                    remedy=f"echo {mb // 2} > /sys/devices/system/node/node{node}/hugepages/"
                    "hugepages-2048kB/nr_hugepages",
                )
        asked = sum(run.socket_mem_mb) << 20
        if not free and asked > total:
            bad = True
            yield fail(
                "huge pages",
                f"--socket-mem asks for {asked >> 20} MiB, {total >> 20} MiB of huge pages are "
                f"free",
                saw(run.source, run.text),
                remedy="reserve them at boot for each node: hugepages=0:N,1:N",
            )
    if not bad:
        yield ok("DPDK", "its cores have huge pages on their nodes")


@check(
    "memory.use",
    "memory is not exhausted and nothing is swapped out",
    means="FAIL when less than `fail_percent` % of memory is available, WARN below `warn_percent` "
    "% "
    "and when more than `swap_percent` % of the swap is used.",
    why="The next allocation reclaims page cache or kills a process; what was swapped out comes "
    "back with a disk read.",
    prove="free -h; swapon --show; vmstat 1 5",
    mend="Find who holds it: ps aux --sort=-rss | head; swapoff -a && swapon -a after memory is "
    "free again.",
    source="proc(5), MemAvailable; free(1)",
    bounds={"warn_percent": 5, "fail_percent": 1, "swap_percent": 1},
)
def use(s: Seen) -> Iterator[Judged]:
    """`free`, /proc/meminfo."""
    rows = given(s).of(MemoryUse)
    if not rows:
        raise NotApplicable("no output of free was pasted")
    for row in rows:
        bad = False
        if row.available is not None and row.total:
            part = share(row.available, row.total)
            if part < s.bounds["warn_percent"]:
                bad = True
                judged = fail if part < s.bounds["fail_percent"] else warn
                yield judged(
                    "memory",
                    f"only {part:.1f} % of memory is available",
                    saw(row.source, f"available {row.available} of {row.total}"),
                    remedy="ps aux --sort=-rss | head; ls -lS /dev/shm | head; grep -i huge "
                    "/proc/meminfo",
                )
        if row.swap_total and share(row.swap_used, row.swap_total) > s.bounds["swap_percent"]:
            bad = True
            yield warn(
                "swap",
                f"{share(row.swap_used, row.swap_total):.0f} % of the swap is used",
                saw(row.source, f"swap {row.swap_used} of {row.swap_total}"),
                remedy="grep VmSwap /proc/*/status; sysctl -w vm.swappiness=1  # swapoff -a only "
                "while more memory is available than swapped out (free -m)",
            )
        if not bad:
            yield ok("memory", "enough is available, nothing much is swapped out")


@check(
    "feed.dpdk-ports",
    "the feed's NIC is bound for DPDK",
    means="WARN when no network device is bound to a driver that DPDK uses; INFO for uio drivers. "
    "Mellanox NICs keep mlx5_core.",
    why="Without vfio-pci (or mlx5_core) the data plane finds no port.",
    prove="dpdk-devbind.py --status-dev net",
    mend="dpdk-devbind.py -b vfio-pci BDF (never the interface of your SSH session).",
    source="DPDK, Linux drivers",
)
def dpdk_ports(s: Seen) -> Iterator[Judged]:
    """Rows of dpdk-devbind."""
    rows = given(s).of(BoundDevice)
    if not rows:
        raise NotApplicable("no output of dpdk-devbind was pasted")
    usable = [r for r in rows if r.driver in ("vfio-pci", "igb_uio", "uio_pci_generic", "mlx5_core",
                                              "mlx4_core", "mana", "hv_netvsc")]  # fmt: skip
    if not usable:
        spare = next((r.bdf for r in rows if not r.active), "BDF")
        yield warn(
            "DPDK",
            f"none of {len(rows)} devices is bound to a driver that DPDK uses",
            *(saw(r.source, f"{r.bdf} drv={r.driver}") for r in rows[:3]),
            remedy=f"dpdk-devbind.py -b vfio-pci {spare}",
        )
        return
    if old := [r for r in usable if r.driver and "uio" in r.driver]:
        yield info(
            some(r.bdf for r in old), "uio gives the device all of memory: vfio-pci is safer",
            saw(old[0].source, f"{old[0].bdf} drv={old[0].driver}"),
        )  # fmt: skip
    yield ok("DPDK", some(f"{r.bdf} {r.driver}" for r in usable))
