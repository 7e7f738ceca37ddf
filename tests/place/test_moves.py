"""Whose memory is to move, where to, and what has no room."""

from __future__ import annotations

import dataclasses

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.memory import parse_by_node
from nodeagent.model.placement import Match, Placed, Placement, ProcessState, Sharing
from nodeagent.model.topology import Isolation, NodeKind, NumaNode, Topology
from nodeagent.place.moves import movable, move_of, source_of

GIB = 1 << 30


def node(number: int, available: int | None, free: int | None = None) -> NumaNode:
    return NumaNode(
        id=number,
        cpus=CpuSet.of([number]),
        memory_bytes=64 * GIB,
        distances=((0, 10), (1, 20)),
        kind=NodeKind.CPU_MEMORY,
        memory_available_bytes=available,
        memory_free_bytes=free,
    )


def machine(*nodes: NumaNode) -> Topology:
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


def placed(name: str = "w", move: str = "migrate", mems: str = "1") -> Placed:
    return Placed(
        workload=name,
        unit=None,
        sharing=Sharing.SHARED,
        cpus=CpuSet.of([1]),
        mems=CpuSet.parse(mems),
        node=1,
        gpu=None,
        reasons=(),
        match=Match(comm=name),
        memory_move=move,
    )


def process(pid: int, comm: str = "w") -> ProcessState:
    return ProcessState(pid=pid, start_time=pid, comm=comm, title=comm, cgroup="/", threads=())


def test_only_who_asks_for_it_is_moved() -> None:
    placement = Placement(
        placed=(placed("a", "launch"), placed("b"), placed("c", mems="")),
        refused=(),
        housekeeping=CpuSet(),
    )
    found = movable(placement, [process(1, "a"), process(2, "b"), process(3, "c")])
    assert [(p.workload, q.pid) for p, q in found] == [("b", 2)]


def test_nothing_elsewhere_is_no_move() -> None:
    here = machine(node(0, GIB), node(1, GIB))
    assert move_of(placed(), process(1), {1: GIB}, here) is None
    assert move_of(placed(), process(1), {}, here) is None


def test_what_lies_elsewhere_moves_to_the_planned_node() -> None:
    move = move_of(placed(), process(7), {0: GIB, 1: GIB}, machine(node(0, GIB), node(1, 2 * GIB)))
    assert move is not None and move.action is not None and move.bytes == GIB
    assert (move.action.to, str(move.action.nodes)) == (1, "1")
    assert (move.action.target.pid, move.action.target.start_time) == (7, 7)
    assert parse_by_node(move.action.before) == {0: GIB, 1: GIB}
    assert source_of({0: GIB, 1: GIB}, move.action) == 0


def test_of_several_planned_nodes_the_roomiest_takes_it() -> None:
    here = machine(node(0, 9 * GIB), node(1, 3 * GIB), node(2, 4 * GIB))
    move = move_of(placed(mems="1-2"), process(7), {0: GIB}, here)
    assert move is not None and move.action is not None and move.action.to == 2


def test_a_node_without_room_is_refused_with_figures() -> None:
    move = move_of(placed(), process(7), {0: GIB}, machine(node(0, GIB), node(1, GIB)))
    assert move is not None and move.action is None
    assert "node 1 has 1.0 GiB free or reclaimable" in move.reason
    assert "need 1.1 GiB there, with 10 % to spare" in move.reason


def test_free_memory_counts_where_the_cache_is_not_told() -> None:
    here = machine(node(0, None, GIB), node(1, None, GIB))
    move = move_of(placed(), process(7), {0: GIB}, here)
    assert move is not None and move.action is None
    unknown = move_of(placed(), process(7), {0: GIB}, machine(node(0, None), node(1, None)))
    assert unknown is not None and unknown.action is not None


def test_seconds_are_known_where_the_rate_is() -> None:
    move = move_of(placed(), process(7), {0: GIB}, machine(node(0, GIB), node(1, 2 * GIB)))
    assert move is not None and move.seconds is None
    assert dataclasses.replace(move, rate=GIB / 2).seconds == 2.0
