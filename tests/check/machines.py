"""Small snapshots for the checks' tests: a healthy two-socket machine, and how to spoil it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.pci import Acs, Aer, Link, PciFunction
from nodeagent.model.snapshot import GpuFacts, Host, Irq, NicFacts, Nvml, Snapshot, Unread
from nodeagent.model.topology import (
    Cache,
    Hugepages,
    Isolation,
    NodeKind,
    NumaNode,
    Package,
    Path,
    PeerLink,
    Relation,
    Topology,
)

GIB = 1 << 30
CPU = "sys/devices/system/cpu"

TEXTS = {
    "proc/cmdline": "BOOT_IMAGE=/vmlinuz ro iommu=pt",
    f"{CPU}/isolated": "",
    f"{CPU}/nohz_full": "",
    f"{CPU}/smt/control": "on",
    f"{CPU}/cpufreq/policy0/scaling_governor": "performance",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc",
    "proc/sys/kernel/numa_balancing": "0",
    "proc/sys/kernel/watchdog": "1",
    "proc/sys/kernel/watchdog_cpumask": "0-15",
    "proc/sys/vm/zone_reclaim_mode": "0",
    "proc/sys/vm/swappiness": "60",
    "proc/sys/vm/overcommit_memory": "0",
    "proc/swaps": "Filename\tType\tSize\tUsed\tPriority",
    "proc/mounts": "tmpfs /dev/shm tmpfs rw,nosuid,nodev 0 0",
    "proc/irq/default_smp_affinity": "ffff",
    "proc/sys/net/core/rmem_max": str(64 << 20),
    "proc/sys/net/ipv4/conf/all/rp_filter": "2",
    "sys/devices/virtual/workqueue/cpumask": "ffff",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory",
    "sys/kernel/iommu_groups/1/type": "identity",
    "sys/kernel/iommu_groups/2/type": "identity",
}
"""Settings of the healthy machine."""


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def args(text: str) -> tuple[tuple[str, str | None], ...]:
    parts = (word.partition("=") for word in text.split())
    return tuple((name, value if eq else None) for name, eq, value in parts)


def function(bdf: str, class_code: str, vendor: str, node: int | None, **more: Any) -> PciFunction:
    """A PCI function with a x16 32 GT/s link below a root port of its own."""
    defaults: dict[str, Any] = {
        "device": "2330",
        "local_cpus": None if node is None else cpus(f"{node * 8}-{node * 8 + 7}"),
        "parents": (f"{bdf[:5]}{int(bdf[5:7], 16) - 1:02x}:00.0",),
        "root_bus": f"0000:{bdf[5:6]}0",
        "driver": "nvidia" if vendor == "10de" else "mlx5_core",
        "link": Link(speed_gts=32.0, width=16, max_speed_gts=32.0, max_width=16),
        "aer": Aer(correctable=0, nonfatal=0, fatal=0),
    }
    return PciFunction(
        bdf=bdf,
        class_code=class_code,
        vendor=vendor,
        numa_node=node,
        **{**defaults, **more},
    )


def port(bdf: str, node: int | None) -> PciFunction:
    return function(bdf, "0604", "8086", node, parents=(), driver="pcieport", acs=Acs(present=True))


def healthy() -> Snapshot:
    """Two sockets of four cores with SMT (siblings n, n+4 within a socket), a GPU and a NIC on
    each, NVLink between the GPUs, nothing isolated."""
    online = cpus("0-15")
    siblings = tuple((c, CpuSet.of((c & 8 | c & 3, c & 8 | c & 3 | 4))) for c in range(16))
    nodes = tuple(
        NumaNode(
            id=n,
            cpus=cpus(f"{n * 8}-{n * 8 + 7}"),
            memory_bytes=256 * GIB,
            distances=((0, 10 + 11 * n), (1, 21 - 11 * n)),
            kind=NodeKind.CPU_MEMORY,
            hugepages=(Hugepages(size_bytes=2 << 20, total=0, free=0),),
        )
        for n in range(2)
    )
    pci = (
        port("0000:10:00.0", 0),
        function("0000:11:00.0", "0302", "10de", 0, iommu_group=1),
        port("0000:12:00.0", 0),
        function("0000:13:00.0", "0200", "15b3", 0),
        port("0000:80:00.0", 1),
        function("0000:81:00.0", "0302", "10de", 1, iommu_group=2),
        port("0000:82:00.0", 1),
        function("0000:83:00.0", "0200", "15b3", 1),
    )
    devices = [p for p in pci if not p.is_bridge]
    relations = tuple(
        Relation(
            a=a.bdf,
            b=b.bdf,
            path=Path.NODE if a.numa_node == b.numa_node else Path.SYS,
            same_numa=a.numa_node == b.numa_node,
            links=(PeerLink(type="nvlink", count=18),) if a.is_gpu and b.is_gpu else (),
        )
        for i, a in enumerate(devices)
        for b in devices[i + 1 :]
    )
    topology = Topology(
        online=online,
        possible=online,
        present=online,
        smt_siblings=siblings,
        packages=tuple(Package(id=n.id, cpus=n.cpus) for n in nodes),
        nodes=nodes,
        caches=tuple(
            Cache(level=3, type="Unified", size_bytes=32 << 20, cpus=n.cpus) for n in nodes
        ),
        pci=pci,
        relations=relations,
        isolation=Isolation(),
    )
    return Snapshot(
        topology=topology,
        host=Host(hostname="node1", boot_id=None, kernel="6.12.0", virtual=None),
        boot_args=args(TEXTS["proc/cmdline"]),
        irqs=(
            Irq(number=40, name="mlx5_comp0", affinity=cpus("1"), effective=cpus("1"), node=0,
                counts=((0, 0), (1, 7)), bdf="0000:13:00.0"),
            Irq(number=41, name="mlx5_comp0", affinity=cpus("9"), effective=cpus("9"), node=1,
                counts=((9, 7),), bdf="0000:83:00.0"),
        ),
        nics=(
            NicFacts(name="eth0", bdf="0000:13:00.0", operstate="up", speed_mbps=100000,
                     rx_queues=8, tx_queues=8, mtu=1500, rdma="mlx5_0"),
            NicFacts(name="eth1", bdf="0000:83:00.0", operstate="up", speed_mbps=100000,
                     rx_queues=8, tx_queues=8, mtu=1500, rdma="mlx5_1"),
        ),
        gpus=(
            GpuFacts(bdf="0000:11:00.0", index=0, numa_node=0),
            GpuFacts(bdf="0000:81:00.0", index=1, numa_node=1),
        ),
        nvml=Nvml(available=True, reason=None, driver="570.1"),
        unread=(),
        texts=TEXTS,
        taken_ns=1,
        live=True,
    )  # fmt: skip


def isolated(
    cmdline: str = "isolcpus=2,3,6,7 nohz_full=2,3,6,7 rcu_nocbs=2,3,6,7 irqaffinity=0,1,4,5,8-15",
) -> Snapshot:
    """The healthy machine with two whole cores of node 0 isolated, everything else kept off."""
    quiet = cpus("2,3,6,7")
    rest = cpus("0-15") - quiet
    s = with_texts(
        healthy(),
        {
            f"{CPU}/isolated": str(quiet),
            f"{CPU}/nohz_full": str(quiet),
            "proc/sys/kernel/watchdog_cpumask": str(rest),
            "proc/irq/default_smp_affinity": "ff33",
            "sys/devices/virtual/workqueue/cpumask": "ff33",
            f"{CPU}/cpu2/cpuidle/state1/latency": "2",
        },
    )
    s = topo(s, isolation=Isolation(isolated=quiet, nohz_full=quiet, rcu_nocbs=quiet))
    return with_cmdline(s, cmdline)


def bare() -> Snapshot:
    """A small virtual machine: two PUs, one node, no GPU."""
    s = healthy()
    online = cpus("0-1")
    node = NumaNode(id=0, cpus=online, memory_bytes=8 * GIB, distances=((0, 10),),
                    kind=NodeKind.CPU_MEMORY)  # fmt: skip
    s = topo(
        s, online=online, possible=online, present=online, nodes=(node,), pci=(), relations=(),
        packages=(Package(id=0, cpus=online),), caches=(),
        smt_siblings=((0, cpus("0")), (1, cpus("1"))),
    )  # fmt: skip
    texts = {k: v for k, v in TEXTS.items() if "cpufreq" not in k and "iommu" not in k}
    return dataclasses.replace(
        s, gpus=(), nics=(), irqs=(), texts=texts, nvml=Nvml(available=False, reason="no library"),
        host=Host(hostname="vm", boot_id=None, kernel="6.1.0", virtual="kvm"),
    )  # fmt: skip


def with_texts(s: Snapshot, texts: Mapping[str, str | None]) -> Snapshot:
    """With these settings; None takes one away."""
    merged = {**s.texts, **texts}
    return dataclasses.replace(s, texts={k: v for k, v in merged.items() if v is not None})


def with_cmdline(s: Snapshot, line: str) -> Snapshot:
    return dataclasses.replace(s, boot_args=args(line), texts={**s.texts, "proc/cmdline": line})


def topo(s: Snapshot, **fields: Any) -> Snapshot:
    """With these fields of the topology changed."""
    return dataclasses.replace(s, topology=dataclasses.replace(s.topology, **fields))


def with_pci(s: Snapshot, bdf: str, **fields: Any) -> Snapshot:
    """With these fields of one PCI function changed."""
    return topo(
        s,
        pci=tuple(dataclasses.replace(p, **fields) if p.bdf == bdf else p for p in s.topology.pci),
    )


def with_node(s: Snapshot, node: int, **fields: Any) -> Snapshot:
    """With these fields of one NUMA node changed."""
    return topo(
        s,
        nodes=tuple(
            dataclasses.replace(n, **fields) if n.id == node else n for n in s.topology.nodes
        ),
    )


def unreadable(s: Snapshot, *paths: str, reason: str = "Permission denied") -> Snapshot:
    """With these files there and not readable."""
    return dataclasses.replace(
        with_texts(s, dict.fromkeys(paths)),
        unread=tuple(Unread(path=f"/{p}", reason=reason) for p in paths),
    )


def recorded(s: Snapshot, without: Iterable[str] = ()) -> Snapshot:
    """As read from a recording that lacks these files."""
    return dataclasses.replace(with_texts(s, dict.fromkeys(without)), live=False, complete=False)
