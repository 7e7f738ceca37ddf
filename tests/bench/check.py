"""check: all checks over a two-socket, 8-GPU machine, over the largest, and the dearest check."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterable

from row import Row, median_of

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2]))

from nodeagent.check.judge import CHECKS, judge
from nodeagent.check.policy import Policy, Rule
from nodeagent.discover.capture import render
from nodeagent.discover.pci import relate
from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.pci import PciFunction
from nodeagent.model.snapshot import Irq, Snapshot
from tests.check.machines import (
    CPU,
    function,
    isolated,
    port,
    topo,
    with_cmdline,
    with_texts,
)
from tests.hosts.servers import giant

PUS = 224
PER_SOCKET = 4
QUEUES = 64


def big() -> Snapshot:
    """224 PUs; each socket has four switches, each with two GPUs' worth of ports: a GPU, a NIC and
    an NVMe drive; 64 interrupts a NIC; a quarter of the PUs isolated."""
    pci: list[PciFunction] = []
    irqs: list[Irq] = []
    for socket in range(2):
        for slot in range(PER_SOCKET):
            bus = 0x10 + 0x80 * socket + 8 * slot
            root, up = f"0000:{bus:02x}:00.0", f"0000:{bus + 1:02x}:00.0"
            pci += [port(root, socket), dataclasses.replace(port(up, socket), parents=(root,))]
            for i, (code, vendor) in enumerate(
                (("0302", "10de"), ("0200", "15b3"), ("0108", "144d"))
            ):
                down = f"0000:{bus + 2:02x}:{i:02x}.0"
                bdf = f"0000:{bus + 3 + i:02x}:00.0"
                pci.append(dataclasses.replace(port(down, socket), parents=(up, root)))
                pci.append(function(bdf, code, vendor, socket, parents=(down, up, root)))
                if vendor == "15b3":
                    irqs += [
                        Irq(
                            number=1000 + len(irqs) + n,
                            name=f"mlx5_comp{n}@pci:{bdf}",
                            affinity=CpuSet.of((socket * 112 + n,)),
                            effective=CpuSet.of((socket * 112 + n,)),
                            node=socket,
                            counts=tuple((c, c) for c in range(PUS)),
                            bdf=bdf,
                        )
                        for n in range(QUEUES)
                    ]
    s = isolated()
    everything = CpuSet.of(range(PUS))
    nodes = tuple(
        dataclasses.replace(n, cpus=CpuSet.of(range(n.id * 112, n.id * 112 + 112)))
        for n in s.topology.nodes
    )
    functions = tuple(sorted(pci, key=lambda p: p.bdf))
    s = topo(
        s,
        online=everything,
        possible=everything,
        present=everything,
        smt_siblings=tuple((c, CpuSet.of((c ^ 1, c))) for c in range(PUS)),
        nodes=nodes,
        pci=functions,
        relations=relate(functions, {}),
    )
    texts = {f"{CPU}/cpu{c}/cpufreq/scaling_governor": "performance" for c in range(PUS)}
    quiet = "56-111"
    line = f"isolcpus={quiet} nohz_full={quiet} rcu_nocbs={quiet} irqaffinity=0-55,112-223"
    return with_cmdline(with_texts(dataclasses.replace(s, irqs=tuple(irqs)), texts), line)


def once(snapshot: Snapshot, policy: Policy = Policy()) -> float:  # noqa: B008  # a frozen value
    """Milliseconds of CPU for one judgement: it waits for nothing, so other load is left out."""
    start = time.process_time()
    judge(snapshot, policy, 0)
    return (time.process_time() - start) * 1e3


def rows(quick: bool) -> Iterable[Row]:
    """All checks over the machine above, over the largest one, and the dearest of them there."""
    snapshot = big()
    value = median_of(lambda: once(snapshot), 5 if quick else 50)
    note = f"{len(CHECKS)} checks, {PUS} PUs, {len(snapshot.irqs)} interrupts"
    yield Row(name="check.judge", value=value, unit="ms CPU", target="<= 20", note=note)
    with tempfile.TemporaryDirectory(prefix="nodeagent-bench-check-") as folder:
        capture = pathlib.Path(folder) / "machine.capture"
        capture.write_text(render(giant()))
        with Root.open(str(capture)) as root:
            snapshot = read_snapshot(root)
    yield Row(
        name="check.judge_large",
        value=median_of(lambda: once(snapshot), 5 if quick else 20),
        unit="ms CPU",
        target="<= 100",
        note=f"{len(CHECKS)} checks, 1,024 PUs, 64 nodes, {len(snapshot.irqs)} interrupts",
    )
    slowest, value = dearest(snapshot)
    yield Row(
        name="check.dearest", value=value, unit="ms CPU", target="<= 10", note=f"{slowest}, there"
    )


def dearest(snapshot: Snapshot) -> tuple[str, float]:
    """The check that takes longest by itself, and its milliseconds of CPU (the least of three)."""
    off = {c.id: Rule(enabled=False) for c in CHECKS}
    alone = {c.id: Policy(rules=off | {c.id: Rule()}) for c in CHECKS}
    return max(
        ((id, min(once(snapshot, policy) for _ in range(3))) for id, policy in alone.items()),
        key=lambda found: found[1],
    )
