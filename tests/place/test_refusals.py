"""Every sentence that refuses: what is told, with which figures, and what would help."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.model.placement import Match, ProcessState, Sharing, ThreadState, Workload
from nodeagent.model.topology import Topology
from nodeagent.place.advice import NONE_HELPS
from nodeagent.place.planner import plan
from tests.place.machines import cpus, gpu, machine, nic, want

GIB = 1 << 30
SHARED = Sharing.SHARED
TWO = machine(packages=2, cores=4, pci=[gpu("0000:3b:00.0", 1)])
ONE = machine(cores=8)


CASES: dict[str, tuple[Topology, tuple[Workload, ...], str, str]] = {
    "more PUs than the machine": (
        ONE,
        (want("a", 9),),
        "it wants 9 PUs and this machine has 8 online",
        "cpus = 7",
    ),
    "more PUs than a small machine": (
        machine(cores=2),
        (want("a", 9),),
        "it wants 9 PUs and this machine has 2 online",
        "cpus = 2",
    ),
    "other PUs than a small machine's": (
        machine(cores=2),
        (want("a", 4, cpu_list=cpus("4-7")),),
        "cpu_list names CPU 4-7, which is not online here",
        "cpu_list named only CPUs of 0-1",
    ),
    "more memory than the machine": (
        machine(cores=8, memory=10 * GIB),
        (want("a", 1, memory_bytes=11 * GIB),),
        "it wants 11,264 MiB of memory and this machine has 10,240 MiB",
        'memory = "10240MiB"',
    ),
    "no room near a device": (
        TWO,
        (want("a", 4, near="gpu:0"),),
        "gpu:0 (0000:3b:00.0) is on node 1; node 1 has 3 PUs free, the request needs 4",
        "cpus = 3",
    ),
    "no room anywhere": (
        TWO,
        (want("a", 4),),
        "no node has the room: node 0 has 3 PUs free, the request needs 4",
        "cpus = 3",
    ),
    "whole cores": (
        machine(cores=4, smt=2),
        (want("a", 8, smt="whole-core"),),
        "node 0 has 6 PUs in whole cores free, the request needs 8",
        "cpus = 6",
    ),
    "one PU a core": (
        machine(cores=4, smt=2),
        (want("a", 4, smt="one-per-core"),),
        "node 0 has 3 whole cores free, the request needs 4",
        'smt = "any"',
    ),
    "isolated ones": (
        machine(cores=8, isolated="6-7"),
        (want("a", 3, isolated=True),),
        "node 0 has 2 isolated PUs free, the request needs 3",
        "isolated = false",
    ),
    "outside the isolated set": (
        machine(cores=12, isolated="4-11"),
        (want("a", 5),),
        "node 0 has 3 PUs free outside the isolated set 4-11, the request needs 5",
        "cpus = 3",
    ),
    "one L3 group": (
        machine(l3=2, cores=4),
        (want("a", 5, l3="one"),),
        "node 0 has 7 PUs free, but no L3 group has more than 4 of them, and the request needs 5 "
        'with l3 = "one"',
        'l3 = "any"',
    ),
    "memory promised to others": (
        machine(cores=8, memory=10 * GIB),
        (want("a", 1, memory_bytes=8 * GIB), want("b", 1, memory_bytes=8 * GIB)),
        "node 0 has 2,048 MiB of memory not promised to others, the request needs 8,192 MiB",
        'memory = "2048MiB"',
    ),
    "memory that others use": (
        machine(cores=8, memory=64 * GIB, available=6 * GIB),
        (want("a", 1, memory_bytes=8 * GIB),),
        "node 0 has 6,144 MiB of memory available, the request needs 8,192 MiB",
        'memory = "6144MiB"',
    ),
    "memory that others use, and that is promised": (
        machine(cores=8, memory=64 * GIB, available=6 * GIB),
        (want("a", 1, memory_bytes=4 * GIB), want("b", 1, memory_bytes=3 * GIB)),
        "node 0 has 6,144 MiB of memory available, 4,096 MiB of it promised to others, the request "
        "needs 3,072 MiB",
        'memory = "2048MiB"',
    ),
    "hugepages that are not free": (
        machine(cores=8, pages=(1024, 100)),
        (want("a", 1, hugepages=((2 << 20, 1 * GIB),)),),
        "node 0 has 100 free pages of 2 MiB, the request needs 512",
        'hugepages = { "2MiB" = "200MiB" }',
    ),
    "hugepages of no such size": (
        machine(cores=8, pages=(1024, 100)),
        (want("a", 1, hugepages=((1 << 30, 1 * GIB),)),),
        "node 0 has no pool of 1 GiB pages, the request needs 1,024 MiB",
        "hugepages = {  }",
    ),
    "a pool": (
        ONE,
        (want("a", 7), want("api", 2, sharing=SHARED)),
        "node 0 has 7 PUs free, the request needs 7, and shared workloads need some of them (api)",
        "cpus = 6",
    ),
    "a place in a pool": (
        TWO,
        (want("api", 5, sharing=SHARED, near="node:0"),),
        "node 0 is asked for; node 0 has 4 PUs for shared workloads, housekeeping's included, the "
        "request needs 5",
        "cpus = 4",
    ),
    "no such node": (
        TWO,
        (want("a", 1, near="node:7"),),
        "near = node:7, but this machine has no NUMA node 7 (nodes: 0, 1)",
        "near named a node of this machine",
    ),
    "no such device": (
        TWO,
        (want("a", 1, near="gpu:3"),),
        "near = gpu:3, and no such device is on this machine (GPUs: 1, NICs: 0, NVMe: 0)",
        "near named a device that `nodeagentctl topology show` lists",
    ),
    "a device of no node": (
        machine(packages=2, cores=4, pci=[gpu("0000:3b:00.0", None)]),
        (want("a", 1, near="gpu:0"),),
        "the firmware does not say which NUMA node gpu:0 (0000:3b:00.0) is on",
        "near = node:N, with the node from the board's manual",
    ),
    "cpu_list offline": (
        machine(cores=8, offline="7"),
        (want("a", 1, cpu_list=cpus("7")),),
        "cpu_list names CPU 7, which is not online here",
        "cpu_list named only CPUs of 0-6",
    ),
    "cpu_list of housekeeping": (
        ONE,
        (want("a", 2, cpu_list=cpus("0-1")),),
        "cpu_list names CPU 0, which is kept for housekeeping",
        "housekeeping were elsewhere, or cpu_list left out CPU 0",
    ),
    "cpu_list over nodes": (
        TWO,
        (want("a", 2, cpu_list=cpus("3,5")),),
        "cpu_list 3,5 lies on several NUMA nodes",
        "it named CPUs of one node",
    ),
    "cpu_list elsewhere": (
        TWO,
        (want("a", 2, cpu_list=cpus("2-3"), near="gpu:0"),),
        "its near and its cpu_list are on different nodes (a: gpu:0 (0000:3b:00.0) is on node 1; "
        "a: cpu_list 2-3 is on node 0)",
        "cpu_list named CPUs of that node, or near were left out",
    ),
    "cpu_list against its own rule": (
        machine(cores=4, smt=2),
        (want("a", 1, cpu_list=cpus("1"), smt="whole-core"),),
        'cpu_list 1 does not keep smt = "whole-core"',
        'smt = "any"',
    ),
    "cpu_list that another has": (
        ONE,
        (want("a", 2, cpu_list=cpus("2-3")), want("b", 2, cpu_list=cpus("3-4"))),
        "CPUs of cpu_list 3-4 are given to a",
        "cpus = 2 stood in place of cpu_list",
    ),
    "nothing helps": (
        machine(cores=6),
        (want("a", 5, cpu_list=cpus("1-5")), want("b", 2, roles=(1, 1), smt="whole-core")),
        "CPUs of cpu_list 1-5 are given to b",
        NONE_HELPS,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_refused_with_figures_and_a_way_out(name: str) -> None:
    topology, wanted, reason, change = CASES[name]
    (refused,) = plan(topology, wanted).refused
    assert (refused.reason, refused.would_fit_if) == (reason, change)


def test_units_are_told_whole() -> None:
    unit = (want("llm", 3, near="gpu:0", unit="r"), want("index", 2, unit="r"))
    llm, index = plan(TWO, unit).refused
    assert llm.reason == (
        "unit r needs 5 exclusive PUs on one node: gpu:0 (0000:3b:00.0) is on node 1; node 1 has 3 "
        "PUs free, the request needs 5"
    )
    assert (llm.would_fit_if, index.would_fit_if) == ("cpus = 1", "llm had cpus = 1")
    bad = (want("llm", 3, near="gpu:9", unit="r"), want("a", 1, unit="r"), want("b", 1, unit="r"))
    _, a, b = plan(TWO, bad).refused
    assert a.reason == b.reason
    assert a.reason == (
        "unit r is placed whole or not at all, and llm cannot be: near = gpu:9, and no such device "
        "is on this machine (GPUs: 1, NICs: 0, NVMe: 0)"
    )
    assert b.would_fit_if.startswith("llm: near named")


def test_a_unit_of_two_nodes() -> None:
    topology = machine(packages=2, cores=5, pci=[gpu("0000:3b:00.0", 1), nic("0000:01:00.0", 0)])
    unit = (want("llm", 2, near="gpu:0", unit="r"), want("feed", 1, near="nic:0", unit="r"))
    for refused in plan(topology, unit).refused:
        assert refused.reason == (
            "unit r shares one NUMA node, but its members need several (llm: gpu:0 (0000:3b:00.0) "
            "is on node 1; feed: nic:0 (0000:01:00.0) is on node 0)"
        )


def test_what_runs_already_has_its_memory() -> None:
    """It took what it needs; only a newcomer is held against what is free."""
    topology = machine(cores=8, memory=64 * GIB, available=50 * GIB)
    wanted = (want("a", 2, memory_bytes=40 * GIB),)
    before = plan(topology, wanted)
    later = machine(cores=8, memory=64 * GIB, available=10 * GIB)
    thread = ThreadState(tid=7, comm="a", cpus=before.placed[0].cpus)
    running = ProcessState(pid=7, start_time=1, comm="a", title="a", cgroup="/", threads=(thread,))
    assert plan(later, wanted, (running,), before).placed == before.placed
    other = replace(running, comm="b", pid=8)
    (refused,) = plan(later, wanted, (other,), before).refused
    assert "10,240 MiB of memory available" in refused.reason
    both = (*wanted, replace(want("b", 2, memory_bytes=12 * GIB), match=Match(comm="nobody")))
    (second,) = plan(later, both, (running,), before).refused
    assert second.workload == "b" and second.would_fit_if == 'memory = "10240MiB"'
