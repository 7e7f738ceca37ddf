"""memory: what the kernel does with pages by itself, and what a job may lock or needs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodeagent.check.memory import chosen
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

KSM = "sys/kernel/mm/ksm/run"
DEFRAG = "sys/kernel/mm/transparent_hugepage/defrag"
LIMITS = "proc/self/limits"
SIZES = {"mib_2m": 2 << 20, "mib_1g": 1 << 30, "mib_512m": 512 << 20, "mib_16m": 16 << 20}


@check(
    "memory.hugepages-need",
    "each node has the huge pages that the policy asks for",
    means="FAIL when a node with CPUs and memory has fewer huge pages of a size than the policy's "
    "bounds ask for on each node (`mib_2m`, `mib_1g`, and `mib_16m`, `mib_512m` on other "
    "architectures; MiB, 0 asks for nothing). NA without such a bound.",
    why="Feeder, ring and index map them at start: on a node with too few they die with ENOMEM, or "
    "take remote ones.",
    prove="grep . /sys/devices/system/node/node*/hugepages/hugepages-*/nr_hugepages",
    mend="hugepagesz=1G hugepages=0:N,1:N at boot; 2 MiB ones also later: echo N > "
    "/sys/devices/system/node/nodeX/hugepages/hugepages-2048kB/nr_hugepages.",
    source="Linux Documentation/admin-guide/mm/hugetlbpage.rst",
    bounds=dict.fromkeys(SIZES, 0),
)
def hugepages_need(s: Seen) -> Iterator[Judged]:
    """Pools of each node against bounds."""
    wanted = {size: s.bounds[name] for name, size in SIZES.items() if s.bounds[name] > 0}
    if not wanted:
        raise NotApplicable("the policy asks for no huge pages")
    s.nodes()
    s.whole("sys/devices/system/node", leaf="nr_hugepages")
    nodes = [n for n in s.cpu_nodes if n.memory_bytes]
    if not nodes:
        raise NotApplicable("no node with CPUs and memory is known")
    for size, mib in wanted.items():
        need = -(-int(mib) * (1 << 20) // size)
        have = {n.id: sum(h.total for h in n.hugepages if h.size_bytes == size) for n in nodes}
        short = {i: total for i, total in have.items() if total < need}
        at = f"sys/devices/system/node/node*/hugepages/hugepages-{size >> 10}kB/nr_hugepages"
        seen = saw(at, some(f"node {i}: {total}" for i, total in have.items()))
        subject = f"hugepages {size >> 10} kB"
        if short:
            node = min(short)
            yield fail(
                subject,
                f"{need} huge pages of {size >> 10} kB are needed on each node; "
                + some(f"node {i} has {total}" for i, total in short.items()),
                seen,
                remedy=f"echo {need} > {at.replace('node*', f'node{node}', 1)}".replace(
                    "> sys", "> /sys"
                )
                if size < 1 << 30
                else f"hugepagesz=1G hugepages={','.join(f'{i}:{need}' for i in have)}  # boot "
                "arguments: later memory is too fragmented",
            )
        else:
            yield ok(subject, f"each node has {need} or more", seen)


@check(
    "memory.ksm",
    "the kernel does not merge pages",
    means="WARN when KSM runs on a machine with GPUs or isolated CPUs; INFO elsewhere.",
    why="ksmd reads all merged memory again and again, and the first write to a merged page takes "
    "a fault and a copy, perhaps from the other node.",
    prove="cat /sys/kernel/mm/ksm/run /sys/kernel/mm/ksm/pages_sharing",
    mend="echo 2 > /sys/kernel/mm/ksm/run (stops it and takes the pages apart); systemctl disable "
    "ksmtuned.",
    source="Linux Documentation/admin-guide/mm/ksm.rst",
)
def ksm(s: Seen) -> Iterator[Judged]:
    """One switch."""
    run = s.number(KSM, absent="this kernel merges no pages")
    if run != 1:
        yield ok("ksm", "the kernel merges no pages", saw(KSM, str(run)))
    elif s.latency_matters:
        yield warn(
            "ksm",
            "KSM merges pages: writes to them fault and copy",
            saw(KSM, "1"),
            remedy="echo 2 > /sys/kernel/mm/ksm/run",
        )
    else:
        yield info("ksm", "KSM merges pages", saw(KSM, "1"))


@check(
    "memory.thp-defrag",
    "page faults do not compact memory",
    means="WARN when transparent huge pages' defrag is `always` on a machine with GPUs or isolated "
    "CPUs, INFO elsewhere. With `madvise` or `defer` a fault waits only where it was asked for.",
    why="Each fault of a process that wants huge pages reclaims and compacts memory before it "
    "returns: 1 to 100 ms, in the middle of a request.",
    prove="cat /sys/kernel/mm/transparent_hugepage/defrag; grep compact_stall /proc/vmstat",
    mend="echo defer+madvise > /sys/kernel/mm/transparent_hugepage/defrag",
    source="Linux Documentation/admin-guide/mm/transhuge.rst, 'defrag'",
)
def thp_defrag(s: Seen) -> Iterator[Judged]:
    """One settings file."""
    text = s.text(DEFRAG, absent="this kernel has no transparent huge pages")
    mode = chosen(text)
    if mode is None:
        raise Missing(DEFRAG, f"saw {text[:40]!r}, expected a word in brackets", READ_BY_HAND)
    remedy = "echo defer+madvise > /sys/kernel/mm/transparent_hugepage/defrag"
    if mode == "always" and s.latency_matters:
        yield warn(
            "transparent huge pages",
            "defrag is `always`: page faults wait for compaction",
            saw(DEFRAG, text),
            remedy=remedy,
        )
    elif mode == "always":
        yield info("transparent huge pages", "defrag is `always`", saw(DEFRAG, text))
    else:
        yield ok("transparent huge pages", f"defrag is {mode}", saw(DEFRAG, text))


_MEMLOCK = re.compile(r"^Max locked memory\s+(\S+)\s+(\S+)", re.MULTILINE)


@check(
    "memory.memlock",
    "memory may be locked",
    means="INFO when the process that read this machine may lock less than `mib` MiB and the "
    "machine has RDMA NICs; WARN when a person pasted the limits of a process. What a service or "
    "container may lock is its own limit.",
    why="RDMA, GPUDirect and AF_XDP register memory by locking it: with the default of 8 MiB "
    "ibv_reg_mr fails with ENOMEM on a machine with a terabyte free.",
    prove="ulimit -l; grep 'locked memory' /proc/PID/limits",
    mend="LimitMEMLOCK=infinity in the service; --ulimit memlock=-1 for a container; a line in "
    "/etc/security/limits.d for shells.",
    source="getrlimit(2), RLIMIT_MEMLOCK; systemd.exec(5), LimitMEMLOCK=",
    bounds={"mib": 1024},
)
def memlock(s: Seen) -> Iterator[Judged]:
    """One row of /proc/self/limits."""
    if s.snapshot.pasted is None and not any(n.rdma for n in s.snapshot.nics):
        raise NotApplicable("no RDMA NIC is here")
    text = s.word(LIMITS, absent="the limits of this process are not told")
    m = _MEMLOCK.search(text)
    if m is None or not (m[1] == "unlimited" or m[1].isdigit()):
        raise Missing(LIMITS, "no row `Max locked memory`", READ_BY_HAND)
    if m[1] == "unlimited" or int(m[1]) >= int(s.bounds["mib"]) << 20:
        yield ok("memlock", f"{m[1]} may be locked", saw(LIMITS, m[0]))
        return
    sentence = f"this process may lock {int(m[1]) >> 10} KiB; RDMA registers memory by locking it"
    remedy = "ulimit -l unlimited  # LimitMEMLOCK=infinity in a unit, --ulimit memlock=-1"
    if s.snapshot.pasted is not None:
        yield warn("memlock", sentence, saw(LIMITS, m[0]), remedy=remedy)
    else:
        yield info("memlock", sentence, saw(LIMITS, m[0]), remedy=remedy)
