"""The planner: properties on random machines, and cases in words."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Match, ProcessState, Sharing, ThreadState, Workload
from nodeagent.model.topology import Isolation, NodeKind, NumaNode, Topology
from nodeagent.place.planner import plan
from tests.place.machines import check, cpus, function, gpu, machine, machines, nic, want, workloads


@settings(max_examples=200, deadline=None)
@given(machines(), workloads())
def test_constraints_determinism_and_stability(
    topology: Topology, wanted: tuple[Workload, ...]
) -> None:
    first = plan(topology, wanted)
    check(topology, wanted, first)
    assert plan(topology, wanted) == first
    again = plan(topology, wanted, (), first)
    assert again.placed == first.placed
    assert {r.workload for r in again.refused} == {r.workload for r in first.refused}


@settings(max_examples=100, deadline=None)
@given(machines(), workloads(4), workloads(2), st.integers(0, 4))
def test_one_more_or_one_less_moves_nobody_without_need(
    topology: Topology, wanted: tuple[Workload, ...], more: tuple[Workload, ...], gone: int
) -> None:
    assume(len(topology.online) >= 6)
    wanted = tuple(dataclasses.replace(w, unit=None) for w in wanted)
    before = plan(topology, wanted)
    less = wanted[:gone] + wanted[gone + 1 :]
    after = plan(topology, less, (), before)
    check(topology, less, after)
    if len(after.refused) == len(
        [r for r in before.refused if r.workload in {w.name for w in less}]
    ):
        for p in after.placed:
            old = before.of(p.workload)
            if old is not None and p.sharing is Sharing.EXCLUSIVE:
                assert p.cpus == old.cpus
    extra = tuple(dataclasses.replace(w, name=f"x{w.name}", unit=None) for w in more)
    grown = plan(topology, wanted + extra, (), before)
    check(topology, wanted + extra, grown)
    if not grown.refused:
        for p in before.placed:
            if p.sharing is Sharing.EXCLUSIVE:
                now = grown.of(p.workload)
                moved = [q for q in before.placed if grown.of(q.workload) != q]
                # Someone moves only when a newcomer would have no place otherwise.
                assert (now is not None and now.cpus == p.cpus) or extra, moved


@settings(max_examples=100, deadline=None)
@given(machines(), workloads(4), st.sets(st.integers(0, 40), max_size=6))
def test_told_housekeeping_is_never_given(
    topology: Topology, wanted: tuple[Workload, ...], told: set[int]
) -> None:
    placement = plan(topology, wanted, housekeeping=CpuSet.of(told))
    inside = CpuSet.of(told) & topology.online
    assert placement.housekeeping == inside or not inside
    if inside == topology.online and len(inside) < 6:
        return  # Told to keep all of a small machine: the pool is then all of it as well.
    check(topology, wanted, placement)


# Cases an SRE will meet.


def test_two_pus_share_one_named_pool() -> None:
    placement = plan(machine(cores=2), (want("vwap", 1), want("vector", 1)))
    assert placement.housekeeping == cpus("0")
    assert [str(p.cpus) for p in placement.placed] == ["1", "1"]
    assert {p.pool for p in placement.placed} == {"shared"}
    assert "vwap, vector" in placement.notes[0] and "'shared' (1)" in placement.notes[0]
    assert "2 PUs" in placement.notes[0]


def test_two_siblings_of_one_core_are_still_two_pus() -> None:
    placement = plan(machine(cores=1, smt=2), (want("vwap", 1),))
    assert (str(placement.housekeeping), str(placement.placed[0].cpus)) == ("0", "1")


def test_one_pu_says_that_nothing_is_left() -> None:
    placement = plan(machine(cores=1), (want("vwap", 1),))
    assert str(placement.placed[0].cpus) == "0"
    assert any("no PU beside" in r for r in placement.placed[0].reasons)


def test_near_a_gpu_in_one_l3_group_by_whole_cores() -> None:
    topology = machine(packages=2, l3=4, cores=8, smt=2, pci=[gpu("0000:3b:00.0", 1)])
    placement = plan(topology, (want("rank0", 8, near="gpu:0"),))
    (p,) = placement.placed
    assert p.node == 1 and str(p.mems) == "1" and p.gpu == "0000:3b:00.0"
    assert len({core for cpu, core in topology.smt_siblings if cpu in p.cpus}) == 4
    assert sum(bool(c.cpus & p.cpus) for c in topology.caches) == 1
    assert p.reasons[0] == "gpu:0 (0000:3b:00.0) is on node 1"


def test_default_housekeeping_is_the_lowest_core_of_each_package() -> None:
    topology = machine(packages=2, cores=4, smt=2)
    assert str(plan(topology, ()).housekeeping) == "0,4,8,12"


def test_virtual_machine_with_one_core_per_socket_keeps_one_core() -> None:
    topology = machine(packages=8, cores=1)
    assert str(plan(topology, ()).housekeeping) == "0"


def test_isolated_cpus_only_when_wanted_and_first_then() -> None:
    topology = machine(cores=12, isolated="8-11")
    placement = plan(topology, (want("poll", 2, isolated=True), want("other", 7)))
    assert str(placement.placed[0].cpus) == "8-9"
    assert any("own threads" in r for r in placement.placed[0].reasons)
    assert str(placement.placed[1].cpus) == "1-7"
    refused = plan(topology, (want("other", 9),)).refused[0]
    assert refused.reason.endswith(
        "has 7 PUs free outside the isolated set 8-11, the request needs 9"
    )
    assert refused.would_fit_if == "cpus = 7"
    assert (
        plan(topology, (want("other", 5, isolated=True),))
        .refused[0]
        .would_fit_if.startswith("isolated = false")
    )


def test_one_isolated_cpu_needs_no_word_about_balancing() -> None:
    topology = machine(cores=12, isolated="8-11")
    (placed,) = plan(topology, (want("poll", 1, isolated=True),)).placed
    assert str(placed.cpus) == "8" and "isolated CPUs, as wanted" in placed.reasons
    assert not any("own threads" in r for r in placed.reasons)


@pytest.mark.parametrize("near", ["gpu:0000:3b:00.0", "0000:3b:00.0", "3b:00.0", "gpu:0"])
def test_a_device_is_found_by_number_and_by_address(near: str) -> None:
    topology = machine(packages=2, cores=4, pci=[gpu("0000:3b:00.0", 1)])
    (placed,) = plan(topology, (want("rank0", 2, near=near),)).placed
    assert placed.node == 1


@pytest.mark.parametrize("near", ["gpu:1", "gpu:x", "gpu:", "nic:0", "gpu:0000:3b:00.1"])
def test_a_device_that_is_not_there_is_refused(near: str) -> None:
    topology = machine(packages=2, cores=4, pci=[gpu("0000:3b:00.0", 1)])
    (refused,) = plan(topology, (want("rank0", 2, near=near),)).refused
    assert near in refused.reason


def test_all_of_the_memory_may_be_wanted_and_no_byte_more() -> None:
    topology = machine(cores=4)
    whole = sum(n.memory_bytes or 0 for n in topology.nodes)
    said = "and this machine has"
    for memory, refused in ((whole, False), (whole + 1, True)):
        answer = plan(topology, (want("x", 1, memory_bytes=memory),))
        assert any(said in r.reason for r in answer.refused) is refused


def test_refusal_names_device_node_and_figures() -> None:
    topology = machine(packages=2, cores=4, pci=[gpu("0000:3b:00.0", 1)])
    (refused,) = plan(topology, (want("rank0", 6, near="gpu:0"),)).refused
    assert refused.reason == (
        "gpu:0 (0000:3b:00.0) is on node 1; node 1 has 3 PUs free, the request needs 6"
    )
    assert refused.would_fit_if == "cpus = 3"


def test_unit_goes_whole_or_not_at_all() -> None:
    topology = machine(packages=2, cores=5, pci=[gpu("0000:3b:00.0", 1)])
    unit = (want("llm", 2, near="gpu:0", unit="r"), want("index", 2, unit="r"))
    assert {p.node for p in plan(topology, unit).placed} == {1}
    large = (*unit, want("ring", 1, unit="r"))
    placement = plan(topology, large)
    assert not placement.placed and len(placement.refused) == 3
    assert "unit r needs 5 exclusive PUs on one node" in placement.refused[0].reason


def test_unit_over_two_devices_on_two_nodes_is_refused_with_both() -> None:
    topology = machine(packages=2, cores=5, pci=[gpu("0000:3b:00.0", 1), nic("0000:01:00.0", 0)])
    unit = (want("llm", 2, near="gpu:0", unit="r"), want("feed", 1, near="nic:0", unit="r"))
    placement = plan(topology, unit)
    assert not placement.placed
    assert "node 1" in placement.refused[0].reason and "node 0" in placement.refused[0].reason


def test_gpu_memory_node_gets_no_cpus_and_no_host_memory() -> None:
    topology = machine(packages=2, cores=4, memory_nodes=1, pci=[gpu("0009:01:00.0", 2)])
    (p,) = plan(topology, (want("rank0", 2, near="gpu:0"),)).placed
    assert (p.node, str(p.mems)) == (1, "1")
    assert "which has no CPUs; the nearest that has is node 1" in p.reasons[0]


def test_unknown_device_node_is_no_guess() -> None:
    topology = machine(packages=2, cores=4, pci=[gpu("0000:3b:00.0", None)])
    (refused,) = plan(topology, (want("rank0", 2, near="gpu:0"),)).refused
    assert "firmware does not say" in refused.reason
    local = machine(packages=2, cores=4, pci=[gpu("0000:3b:00.0", None, cpus("4-7"))])
    assert plan(local, (want("rank0", 2, near="gpu:0"),)).placed[0].node == 1
    alone = machine(cores=8, pci=[gpu("0000:3b:00.0", None)])
    assert plan(alone, (want("rank0", 2, near="gpu:0"),)).placed[0].node == 0


def test_display_chip_is_no_gpu() -> None:
    vga = function("0000:03:00.0", "0300", "102b", 0)
    topology = machine(packages=2, cores=4, pci=[vga, gpu("0000:3b:00.0", 1)])
    assert plan(topology, (want("rank0", 2, near="gpu:0"),)).placed[0].node == 1


def test_pool_joins_housekeeping_only_when_it_must() -> None:
    topology = machine(cores=8)
    shared = want("api", 1, sharing=Sharing.SHARED)
    roomy = plan(topology, (want("x", 6), shared))
    assert str(roomy.placed[1].cpus) == "7" and not roomy.notes
    full = plan(topology, (want("x", 7), shared))
    assert str(full.placed[1].cpus) == "0" and "housekeeping" in full.notes[0]


def test_memory_is_promised_once() -> None:
    topology = machine(cores=8, memory=10 << 30)
    placement = plan(
        topology, (want("a", 1, memory_bytes=8 << 30), want("b", 1, memory_bytes=8 << 30))
    )
    assert [p.workload for p in placement.placed] == ["a"]
    assert placement.refused[0].would_fit_if == 'memory = "2048MiB"'


def test_cpu_list_is_taken_literally_or_refused() -> None:
    topology = machine(cores=8)
    fixed = want("x", 2, cpu_list=cpus("5,7"))
    assert str(plan(topology, (want("y", 5), fixed)).of("x").cpus) == "5,7"  # type: ignore[union-attr]
    assert "housekeeping" in plan(topology, (want("x", 1, cpu_list=cpus("0")),)).refused[0].reason
    assert "not online" in plan(topology, (want("x", 1, cpu_list=cpus("9")),)).refused[0].reason


def test_a_process_has_one_workload() -> None:
    process = ProcessState(
        pid=7,
        start_time=1,
        comm="a",
        title="a b",
        cgroup="/",
        threads=(ThreadState(tid=7, comm="a", cpus=cpus("0-7")),),
    )
    both = (want("a", 1), dataclasses.replace(want("b", 1), match=Match(title="a *")))
    placement = plan(machine(cores=8), both, (process,))
    assert [p.workload for p in placement.placed] == ["a"]
    assert "process 7 (a), which workload a matches too" in placement.refused[0].reason


def test_machine_without_numa_nodes_and_without_online_cpus() -> None:
    bare = dataclasses.replace(machine(cores=8), nodes=())
    (p,) = plan(bare, (want("x", 2),)).placed
    assert (p.node, str(p.mems), str(p.cpus)) == (None, "", "1-2")
    none = dataclasses.replace(
        bare, online=CpuSet(), smt_siblings=(), packages=(), caches=(), isolation=Isolation()
    )
    assert plan(none, (want("x", 2),)).refused


def test_node_with_cpus_and_no_memory_takes_the_nearest() -> None:
    topology = machine(packages=2, cores=4)
    nodes = tuple(
        dataclasses.replace(n, kind=NodeKind.CPU, memory_bytes=0) if n.id == 1 else n
        for n in topology.nodes
    )
    topology = dataclasses.replace(topology, nodes=nodes)
    (p,) = plan(topology, (want("x", 2, near="node:1"),)).placed
    assert (p.node, str(p.mems)) == (1, "0")
    assert isinstance(topology.nodes[1], NumaNode)


@pytest.mark.parametrize("packages", [2, 8])
def test_many_workloads_on_a_large_machine(packages: int) -> None:
    topology = machine(
        packages=packages,
        nodes=4,
        l3=4,
        cores=4,
        smt=2,
        pci=[gpu(f"0000:{i:02x}:00.0", i) for i in range(8)],
    )
    wanted = tuple(
        want(f"w{i}", 1 + i % 4, near=f"gpu:{i % 8}", unit=f"u{i % 8}" if i < 24 else None)
        for i in range(64)
    )
    placement = plan(topology, wanted)
    check(topology, wanted, placement)
    assert len(placement.placed) == 64
    assert plan(topology, wanted, (), placement) == placement
