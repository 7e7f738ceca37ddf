"""Whose memory counts as local, and what cannot be known."""

from __future__ import annotations

import pytest

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.memory import MemorySeen
from nodeagent.model.placement import Match, Placed, ProcessState, Sharing
from nodeagent.model.topology import Isolation, NodeKind, NumaNode, Topology
from nodeagent.place.locality import memory_local


def machine(*memory: int | None) -> Topology:
    nodes = tuple(
        NumaNode(
            id=i,
            cpus=CpuSet.of([i]),
            memory_bytes=bytes_,
            distances=(),
            kind=NodeKind.CPU_MEMORY if bytes_ else NodeKind.CPU,
        )
        for i, bytes_ in enumerate(memory)
    )
    cpus = CpuSet.of(range(len(nodes)))
    return Topology(
        online=cpus,
        possible=cpus,
        present=cpus,
        smt_siblings=(),
        packages=(),
        nodes=nodes,
        caches=(),
        pci=(),
        relations=(),
        isolation=Isolation(),
    )


def process(pid: int, cgroup: str, comm: str = "w") -> ProcessState:
    return ProcessState(pid=pid, start_time=pid, comm=comm, title=comm, cgroup=cgroup, threads=())


def placed(mems: str = "1") -> Placed:
    return Placed(
        workload="w",
        unit=None,
        sharing=Sharing.SHARED,
        cpus=CpuSet.of([1]),
        mems=CpuSet.parse(mems),
        node=1,
        gpu=None,
        reasons=(),
        match=Match(comm="w"),
    )


TWO = machine(1 << 30, 1 << 30)
ONE = process(11, "/a")


def test_nothing_seen_is_not_known() -> None:
    assert memory_local(placed(), ONE, [ONE], MemorySeen(), TWO) is None


@pytest.mark.parametrize(
    "topology", [machine(1 << 30), machine(1 << 30, 0), machine(1 << 30, None)]
)
def test_with_one_node_of_memory_it_is_all_local_without_a_look(topology: Topology) -> None:
    assert memory_local(placed("0"), ONE, [ONE], MemorySeen(), topology) == 1.0


def test_a_workload_without_a_node_has_no_share() -> None:
    seen = MemorySeen(by_pid={11: {0: 100}})
    assert memory_local(placed(""), ONE, [ONE], seen, TWO) is None


def test_a_sample_of_the_process_comes_first() -> None:
    seen = MemorySeen(by_pid={11: {0: 25, 1: 75}}, by_cgroup={"/a": {0: 1}})
    assert memory_local(placed(), ONE, [ONE], seen, TWO) == 0.75


def test_a_cgroup_counts_when_it_is_the_workloads_alone() -> None:
    seen = MemorySeen(by_cgroup={"/a": {0: 1, 1: 3}})
    child = process(12, "/a/b")
    assert memory_local(placed(), ONE, [ONE, child], seen, TWO) == 0.75
    # Somebody else in it, or below it: whose bytes they are cannot be told.
    for other in (process(3, "/a", "x"), process(3, "/a/b", "x")):
        assert memory_local(placed(), ONE, [ONE, child, other], seen, TWO) is None
    # A neighbour whose name begins alike is not below it.
    beside = process(3, "/ab", "x")
    assert memory_local(placed(), ONE, [ONE, beside], seen, TWO) == 0.75
