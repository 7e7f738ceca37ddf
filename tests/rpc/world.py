"""A StatusSource with real values, and small statuses, for the tests of both ends."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.event import Event, Severity
from nodeagent.model.finding import Evidence, Finding, Verdict
from nodeagent.model.placement import Held, Placed, Placement, Sharing
from nodeagent.model.probe import ProbeStatus
from nodeagent.model.status import ControllerLink, NodeStatus, SelfCost
from nodeagent.model.topology import Isolation, NodeKind, NumaNode, Package, Topology


def topology() -> Topology:
    cpus = CpuSet.parse("0-3")
    return Topology(
        online=cpus,
        possible=cpus,
        present=cpus,
        smt_siblings=tuple((i, CpuSet.of([i])) for i in range(4)),
        packages=(Package(id=0, cpus=cpus),),
        nodes=(
            NumaNode(
                id=0,
                cpus=cpus,
                memory_bytes=1 << 34,
                distances=((0, 10),),
                kind=NodeKind.CPU_MEMORY,
            ),
        ),
        caches=(),
        pci=(),
        relations=(),
        isolation=Isolation(),
    )


def status(
    hostname: str = "gpu-1", agent_uuid: str = "u", verdict: Verdict = Verdict.WARN
) -> NodeStatus:
    finding = Finding(
        id="isolation.irqaffinity-overlap",
        verdict=verdict,
        subject="cpu 2-3",
        message="interrupts may run on isolated CPUs",
        evidence=(Evidence(path="/proc/cmdline", text="irqaffinity=0-3"),),
        remedy="boot with irqaffinity=0-1",
    )
    placed = Placed(
        workload="vwap",
        unit=None,
        sharing=Sharing.SHARED,
        cpus=CpuSet.of([1]),
        mems=CpuSet.of([0]),
        node=0,
        gpu=None,
        reasons=("a shared pool of one PU",),
    )
    held = Held(
        workload="vwap",
        kind="agent",
        pid=4711,
        sharing=Sharing.SHARED,
        cpus_before=CpuSet.parse("0-3"),
        cpus_planned=CpuSet.of([1]),
        cpus_actual=CpuSet.of([1]),
        node_planned=0,
        ran_inside=0.998,
        held=True,
    )
    return NodeStatus(
        agent_uuid=agent_uuid,
        epoch=1,
        hostname=hostname,
        version="0.1.0",
        started_ns=1,
        at_ns=time.time_ns(),
        turns=1,
        sentence="1 workload is where it belongs",
        verdict=verdict,
        findings=(finding,),
        placement=Placement(placed=(placed,), refused=(), housekeeping=CpuSet.of([0])),
        held=(held,),
        rings=(),
        feeds=(),
        probe=ProbeStatus(available=False, reason="no BTF", capabilities=()),
        controller=ControllerLink(
            configured=False, connected=False, address="", reports=0, unacknowledged=0, dropped=0
        ),
        cost=(SelfCost(part="daemon", pid=1, cpu_seconds=0.5, pss_bytes=30 << 20),),
    )


def event(n: int, *, seq: int = 0) -> Event:
    return Event(
        seq=seq,
        kind="test.tick",
        subject=f"n {n}",
        severity=Severity.INFO,
        message=f"tick {n}",
        at_ns=time.time_ns(),
    )


class Source:
    """A StatusSource that the test moves."""

    def __init__(self, now: NodeStatus | None = None, shape: Topology | None = None) -> None:
        self.version = 1
        self.now = now or status()
        self.shape = shape
        self.kept: list[Event] = []
        self._moved = asyncio.Event()

    @property
    def last_seq(self) -> int:
        return self.kept[-1].seq if self.kept else 0

    def status(self) -> NodeStatus:
        return self.now

    def topology(self) -> Topology | None:
        return self.shape

    def events(self, since: int, limit: int) -> tuple[Event, ...]:
        return tuple(e for e in self.kept if e.seq > since)[:limit]

    async def changed(self, seen: int) -> int:
        while self.version == seen:
            await self._moved.wait()
        return self.version

    def move(self, **fields: object) -> None:
        self.now = replace(self.now, turns=self.now.turns + 1, **fields)  # type: ignore[arg-type]
        self._bump()

    def happen(self, event: Event) -> None:
        self.kept.append(replace(event, seq=self.last_seq + 1))
        self._bump()

    def _bump(self) -> None:
        self.version += 1
        self._moved.set()
        self._moved = asyncio.Event()
