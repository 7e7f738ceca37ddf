"""Control groups bound the plan, and the file that does it is named."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Match, ProcessState, Refused, ThreadState
from nodeagent.place.facts import Facts, facts_of
from nodeagent.place.limits import Cgroups, Limit, cgroups_of, limit_of
from nodeagent.place.planner import plan
from tests.check.machines import healthy, with_texts
from tests.place.machines import check, cpus, machine, want

TOP = "sys/fs/cgroup"


def facts(texts: dict[str, str], written: dict[str, CpuSet] | None = None) -> Facts:
    """Of a machine whose control groups are these files, with the root's beside them."""
    snapshot = replace(healthy(), texts={})
    below = {f"{TOP}/{path}": text for path, text in texts.items()}
    return facts_of(with_texts(snapshot, below), written or {})


def process(cgroup: str, pid: int = 7, comm: str = "a") -> ProcessState:
    thread = ThreadState(tid=pid, comm=comm, cpus=cpus("0-7"))
    return ProcessState(
        pid=pid, start_time=1, comm=comm, title=comm, cgroup=cgroup, threads=(thread,)
    )


def one(refused: tuple[Refused, ...]) -> Refused:
    (found,) = refused
    return found


def test_a_workload_gets_only_what_its_group_may_use() -> None:
    topology = machine(cores=8)
    told = facts(
        {
            "cpuset.cpus.effective": "0-7",
            "a.slice/cpuset.cpus": "4-6",
            "a.slice/cpuset.cpus.effective": "4-6",
            "a.slice/a.service/cpuset.cpus.effective": "4-6",
        }
    )
    running = (process("/a.slice/a.service"),)
    (placed,) = plan(topology, (want("a", 3),), running, facts=told).placed
    assert str(placed.cpus) == "4-6"
    file = "/sys/fs/cgroup/a.slice/cpuset.cpus.effective"
    assert f"its cgroup may use CPU 4-6 only ({file})" in placed.reasons
    refused = one(plan(topology, (want("a", 4),), running, facts=told).refused)
    assert refused.reason == (
        f"node 0 has 3 PUs free, the request needs 4; its cgroup may use CPU 4-6 only ({file})"
    )
    assert refused.would_fit_if == "cpus = 3"


def test_a_group_without_any_cpu_is_said() -> None:
    told = facts({"a.service/cpuset.cpus.effective": ""})
    refused = one(
        plan(machine(cores=8), (want("a", 1),), (process("/a.service"),), facts=told).refused
    )
    assert "its cgroup may use no CPU (/sys/fs/cgroup/a.service/cpuset.cpus.effective)" in (
        refused.reason
    )


def test_a_group_is_known_before_its_process_is() -> None:
    told = facts({"system.slice/a.service/cpuset.cpus.effective": "5-7"})
    wanted = replace(want("a", 3), match=Match(unit="a.service"))
    (placed,) = plan(machine(cores=8), (wanted,), facts=told).placed
    assert str(placed.cpus) == "5-7"


def test_memory_nodes_that_a_group_hides() -> None:
    topology = machine(packages=2, cores=4)
    told = facts({"a.service/cpuset.mems.effective": "1"})
    running = (process("/a.service"),)
    (placed,) = plan(topology, (want("a", 2),), running, facts=told).placed
    assert placed.node == 1
    refused = one(plan(topology, (want("a", 2, near="node:0"),), running, facts=told).refused)
    file = "/sys/fs/cgroup/a.service/cpuset.mems.effective"
    assert refused.reason == (
        f"its cgroup may use memory of node 1 only ({file}), and on node 0 it would have that of "
        "node 0"
    )
    assert refused.would_fit_if == f"{file} held node 0"


def partitioned(kind: str = "isolated") -> dict[str, str]:
    return {
        "cpuset.cpus.effective": "0-3",
        "other.slice/cpuset.cpus.partition": kind,
        "other.slice/cpuset.cpus.effective": "4-7",
    }


def test_somebody_elses_partition_is_nobodys_to_give() -> None:
    topology = machine(cores=8)
    told = facts(partitioned())
    placement = plan(topology, (want("a", 3),), facts=told)
    assert str(placement.placed[0].cpus) == "1-3"
    assert any(
        "CPU 4-7 belongs to partition /other.slice "
        "(/sys/fs/cgroup/other.slice/cpuset.cpus.partition)" in n
        for n in placement.notes
    )
    refused = one(plan(topology, (want("a", 4),), facts=told).refused)
    assert "partition /other.slice holds 4-7" in refused.reason
    fixed = one(plan(topology, (want("a", 1, cpu_list=cpus("5")),), facts=told).refused)
    assert fixed.reason == (
        "cpu_list names CPU 5, which partition /other.slice holds "
        "(/sys/fs/cgroup/other.slice/cpuset.cpus.partition)"
    )
    # An invalid partition holds nothing.
    invalid = facts({"x/cpuset.cpus.partition": "root invalid (Parent is not a partition root)"})
    assert plan(topology, (want("a", 7),), facts=invalid).placed


def test_who_lives_in_the_partition_has_its_cpus() -> None:
    placement = plan(
        machine(cores=8), (want("a", 2),), (process("/other.slice/a"),), facts=facts(partitioned())
    )
    assert placement.placed[0].cpus <= cpus("4-7")


def test_housekeeping_is_not_in_somebody_elses_partition() -> None:
    told = facts(
        {
            "other.slice/cpuset.cpus.partition": "root",
            "other.slice/cpuset.cpus.effective": "0-3",
        }
    )
    placement = plan(machine(cores=8), (want("a", 3),), facts=told)
    assert placement.housekeeping <= cpus("4-7") and placement.housekeeping
    check(machine(cores=8), (want("a", 3),), placement)


def test_our_own_cpusets_bound_nobody() -> None:
    topology = machine(cores=8)
    told = facts(
        {
            "cpuset.cpus.effective": "0-5",
            "nodeagent/a/cpuset.cpus.partition": "isolated",
            "nodeagent/a/cpuset.cpus.effective": "6-7",
        }
    )
    assert plan(topology, (want("a", 5),), (process("/nodeagent/a"),), facts=told).placed
    unit = {"system.slice/a.service/cpuset.cpus.effective": "6-7"}
    running = (process("/system.slice/a.service"),)
    assert plan(topology, (want("a", 5),), running, facts=facts(unit)).refused
    ours = facts(unit, {"a": cpus("6-7")})
    assert plan(topology, (want("a", 5),), running, facts=ours).placed
    # What somebody set there after us bounds it.
    assert plan(topology, (want("a", 5),), running, facts=facts(unit, {"a": cpus("5-7")})).refused


def test_cpus_that_are_hidden_from_us() -> None:
    told = facts({"cpuset.cpus.effective": "0-3"})
    refused = one(plan(machine(cores=8), (want("a", 4),), facts=told).refused)
    assert "we may use CPU 0-3 only (/sys/fs/cgroup/cpuset.cpus.effective)" in refused.reason


def test_version_1_and_several_processes() -> None:
    told = facts(
        {
            "cpuset/cpuset.effective_cpus": "0-7",
            "cpuset/a/cpuset.effective_cpus": "2-6",
            "cpuset/b/cpuset.effective_cpus": "4-7",
        }
    )
    both = (process("/a", 7), process("/b", 8))
    (placed,) = plan(machine(cores=8), (want("a", 3),), both, facts=told).placed
    assert str(placed.cpus) == "4-6"


def test_a_small_machine_keeps_to_the_group_too() -> None:
    told = facts({"a.service/cpuset.cpus.effective": "2"})
    running = (process("/a.service"),)
    (placed,) = plan(machine(cores=4), (want("a", 1),), running, facts=told).placed
    assert str(placed.cpus) == "2"
    none = facts({"a.service/cpuset.cpus.effective": "0"})
    refused = one(plan(machine(cores=4), (want("a", 1),), running, facts=none).refused)
    file = "/sys/fs/cgroup/a.service/cpuset.cpus.effective"
    assert refused.reason == f"its cgroup may use 0 ({file}), and pool 'shared' is 1-3"


def test_partitions_that_the_kernel_refused_hold_nothing() -> None:
    with Root.open("tests/hosts/qemu-iommu-partition.capture") as root:
        snapshot = read_snapshot(root)
    assert any("invalid" in t for p, t in snapshot.texts.items() if p.endswith(".partition"))
    tree = cgroups_of(snapshot)
    assert tree.cpus and not tree.foreign


def tree(texts: dict[str, str], top: str = TOP) -> Cgroups:
    snapshot = with_texts(
        replace(healthy(), texts={}), {f"{top}/{path}": text for path, text in texts.items()}
    )
    below = {k: v for k, v in snapshot.texts.items() if k.removeprefix(f"{top}/") in texts}
    return cgroups_of(replace(snapshot, texts=below))


def test_whose_a_group_is() -> None:
    told = tree({})
    ours = ("/nodeagent", "/nodeagent/a", "/nodeagent.a")
    assert [g for g in (*ours, "/nodeagents", "/a/nodeagent", "/") if told.is_ours(g)] == [*ours]


def test_what_partitions_took_is_not_hidden_from_us() -> None:
    told = tree(
        {
            "cpuset.cpus.partition": "root",
            "cpuset.cpus.effective": "0-3",
            "a/cpuset.cpus.partition": "isolated",
            "a/cpuset.cpus.effective": "4",
            "a/cpuset.cpus.exclusive.effective": "4-5",
        }
    )
    # The root is no partition of somebody's; what one keeps for those below it is its own too.
    assert [(p.cgroup, str(p.cpus)) for p in told.foreign] == [("/a", "4-5")]
    assert told.hidden is not None and str(told.hidden.allowed) == "0-5"


def test_two_groups_of_one_name_tell_nothing_of_a_workload_that_is_not_there() -> None:
    wanted = replace(want("a", 3), match=Match(unit="a.service"))
    one_group = {"system.slice/a.service/cpuset.cpus.effective": "5-7"}
    both = one_group | {"other.slice/a.service/cpuset.cpus.effective": "2-3"}
    assert limit_of(tree(both), wanted, ()) == Limit()
    bound = limit_of(tree(one_group), wanted, ()).cpus
    assert bound is not None and str(bound.allowed) == "5-7"


def test_the_hybrid_layout_is_read_where_it_is() -> None:
    told = tree(
        {"cgroup.controllers": "cpuset", "a/cpuset.cpus.effective": "2"}, top=f"{TOP}/unified"
    )
    assert {g: str(b.allowed) for g, b in told.cpus.items()} == {"/a": "2"}
