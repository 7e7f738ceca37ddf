"""place: a whole plan with its reasons, in process: from a topology and workloads to a placement.

`place.plan_*` places everything; `place.replan_*` asks again with the answer in force;
`place.refused_*` has workloads without room, whose advice is tried before it is given. The peer is
first fit: PUs of the device's node by number, with no rule but that none is given twice.
"""

from __future__ import annotations

import pathlib
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial

from row import Row, alternating, median_of

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2]))

from nodeagent.model.placement import Placement, Workload
from nodeagent.model.topology import Topology
from nodeagent.place.planner import plan
from tests.place.machines import gpu, machine, want

SMT = ("any", "whole-core", "any", "one-per-core")


def wanted(count: int, most: int) -> tuple[Workload, ...]:
    """Of 1 to `most` CPUs; three of four near one of 8 GPUs, 24 of them in 8 units, one in eight
    shared; every SMT rule, memory and roles."""
    made = []
    for i in range(count):
        w = want(
            f"w{i}",
            1 + i % most,
            near=f"gpu:{i % 8}" if i % 4 else None,
            smt=SMT[i % 4],
            unit=f"u{i % 8}" if i < 24 else None,
            memory_bytes=(i % 3) << 30,
            roles=(1,) if i % 2 else (),
        )
        made.append(w)
    return tuple(made)


def box(packages: int, nodes: int, l3: int, cores: int) -> Topology:
    """Two PUs a core, 8 GPUs over the nodes."""
    total = packages * nodes
    return machine(
        packages=packages,
        nodes=nodes,
        l3=l3,
        cores=cores,
        smt=2,
        pci=[gpu(f"0000:{i:02x}:00.0", i % total) for i in range(8)],
        memory=512 << 30,
    )


def first_fit(topology: Topology, workloads: tuple[Workload, ...]) -> dict[str, list[int]]:
    """What a short script would do."""
    free = {n.id: sorted(n.cpus.ids) for n in topology.nodes}
    gpus = topology.gpus
    given: dict[str, list[int]] = {}
    for w in workloads:
        near = gpus[int(w.near[4:])].numa_node if w.near is not None else None
        for node in free if near is None else (near,):
            if len(free[node]) >= w.cpus:
                given[w.name] = free[node][: w.cpus]
                del free[node][: w.cpus]
                break
    return given


def timed(work: Callable[[], object]) -> Callable[[], float]:
    """Milliseconds of CPU of one run: it waits for nothing, so other load is left out."""

    def once() -> float:
        start = time.process_time()
        work()
        return (time.process_time() - start) * 1e3

    return once


def rows(quick: bool) -> Iterable[Row]:
    """256 and 1,024 PUs: placed, planned again, and with refusals."""
    runs = 5 if quick else 25
    shapes = (
        ("256", "<= 20", box(2, 1, 4, 16), 3),
        ("256_nps4", "<= 20", box(2, 4, 2, 8), 3),
        ("1024", "<= 200", box(2, 4, 4, 16), 8),
        ("1024_32nodes", "<= 200", box(8, 4, 2, 8), 3),
    )
    for name, target, topology, most in shapes:
        workloads = wanted(64, most)
        answer = plan(topology, workloads)
        if answer.refused:
            raise AssertionError(f"{len(answer.refused)} of 64 found no room; this row has room")
        value, peer = alternating(
            timed(partial(plan, topology, workloads)),
            timed(partial(first_fit, topology, workloads)),
            runs,
        )
        nodes = len([n for n in topology.nodes if n.cpus])
        note = f"8 GPUs, 64 workloads, {len(topology.online)} PUs, {nodes} nodes"
        yield Row(
            name=f"place.plan_{name}",
            value=value,
            unit="ms CPU",
            target=target,
            peer="first fit without rules or reasons",
            peer_value=peer,
            note=note,
        )
        yield Row(
            name=f"place.replan_{name}",
            value=median_of(timed(partial(again, topology, workloads, answer)), runs),
            unit="ms CPU",
            target=target,
            note=f"{note}; nothing moves",
        )
    for name, topology in (("256", box(2, 1, 4, 16)), ("1024", box(2, 4, 4, 16))):
        workloads = (*wanted(56, 3), *(want(f"x{i}", 400, near=f"gpu:{i}") for i in range(8)))
        refused = len(plan(topology, workloads).refused)
        yield Row(
            name=f"place.refused_{name}",
            value=median_of(timed(partial(plan, topology, workloads)), 3),
            unit="ms CPU",
            note=f"{refused} of 64 refused, each advice tried by deciding again",
        )


def again(topology: Topology, workloads: tuple[Workload, ...], answer: Placement) -> None:
    """Plans with the answer in force."""
    if plan(topology, workloads, (), answer).placed != answer.placed:
        raise AssertionError("planned again, something moved")
