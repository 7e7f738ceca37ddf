"""Isolated partitions that a plan asks for: whose, of which CPUs, in which order, and why not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.model.cgroup import container_of
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import (
    Consent,
    Knob,
    MoveToCpuset,
    Placement,
    ProcessState,
    SetValue,
    Sharing,
    ThreadState,
    Workload,
)
from nodeagent.model.settings import Isolation
from nodeagent.model.topology import Isolation as Isolated
from nodeagent.model.topology import Topology
from nodeagent.place import isolate
from nodeagent.place.changes import changes
from nodeagent.place.diff import actions, holds
from nodeagent.place.facts import Facts as Known
from nodeagent.place.holders import Facts
from nodeagent.place.limits import Bound, Cgroups, Partition
from nodeagent.place.planner import plan
from tests.place.machines import cpus, machine, machines, want, workloads

ALL = frozenset({Consent.THREADS, Consent.CGROUP, Consent.HOST})
BARE = "/mine"


def process(pid: int, comm: str, cgroup: str = BARE, mask: str = "0-7") -> ProcessState:
    return ProcessState(
        pid=pid,
        start_time=pid,
        comm=comm,
        title=comm,
        cgroup=cgroup,
        threads=(ThreadState(tid=pid, comm=comm, cpus=CpuSet.parse(mask)),),
        container=container_of(cgroup),
    )


def host(*names: str, **more: CpuSet) -> Facts:
    return Facts(
        version=2, systemd=True, controller=True, isolating=frozenset(names), partitions=more
    )


def placed(*names: str, machine_: Topology | None = None) -> Placement:
    wanted = [want(n, 2, isolated=True) for n in names]
    known = Known(cgroups=Cgroups(isolating=frozenset(names)))
    return plan(machine_ or machine(cores=8), wanted, facts=known)


@settings(max_examples=200, deadline=None)
@given(machines(), workloads(), st.data())
def test_no_partition_overlaps_another_nor_housekeeping(
    topology: Topology, wanted: tuple[Workload, ...], data: st.DataObject
) -> None:
    """Neither one of somebody else, whose CPUs are out of the plan; and cores are whole."""
    topology = replace(topology, isolation=Isolated())
    names = frozenset(isolate.isolating(wanted, Isolation.PARTITION))
    taken = CpuSet.of(data.draw(st.sets(st.sampled_from(sorted(topology.online.ids)), max_size=3)))
    theirs = Partition(cgroup="/theirs", cpus=taken, file="/theirs")
    known = Known(cgroups=Cgroups(isolating=names, partitions=(theirs,)))
    placement = plan(topology, wanted, facts=known)
    running = [process(i + 2, w.name) for i, w in enumerate(wanted)]
    found = actions(placement, running, ALL, host(*names))
    given_: list[CpuSet] = [placement.housekeeping, taken]
    for action in found:
        if isinstance(action, SetValue) and action.knob is Knob.PARTITION:
            mine = CpuSet.parse(action.value)
            assert mine and not any(mine & other for other in given_[:1] + given_[2:])
            assert not mine & taken
            given_.append(mine)
            assert action.workload in names and action.subject == action.workload
            wish = next(w for w in wanted if w.name == action.workload)
            if wish.smt != "one-per-core":
                assert all(
                    core & topology.online <= mine
                    for cpu, core in topology.smt_siblings
                    if cpu in mine
                )
    for n, action in enumerate(found):
        if isinstance(action, MoveToCpuset) and action.cpuset.startswith("/nodeagent."):
            assert any(
                isinstance(a, SetValue) and a.subject == action.workload for a in found[:n]
            ), "a partition is made before anybody is moved into it"
    for p in placement.placed:
        if p.workload in names and p.sharing is Sharing.EXCLUSIVE:
            assert any(isinstance(a, SetValue) and a.subject == p.workload for a in found)


def test_one_act_makes_it_and_each_process_is_moved_into_it() -> None:
    placement = placed("a")
    where = placement.placed[0].cpus
    running = [process(5, "a"), process(6, "a")]
    made, first, second = actions(placement, running, ALL, host("a"))
    assert isinstance(made, SetValue)
    assert (made.knob, made.subject, made.value) == (Knob.PARTITION, "a", str(where))
    assert made.before == "member"
    assert isinstance(first, MoveToCpuset) and isinstance(second, MoveToCpuset)
    assert [a.target.pid for a in (first, second)] == [5, 6]
    assert {a.cpuset for a in (first, second)} == {"/nodeagent.a"}
    said = changes((made, first), placement, running, cpus("0-7"), ())
    assert said[0].what == "isolated partition /nodeagent.a" and said[0].before == "none"
    assert said[0].consent is Consent.HOST and said[1].consent is Consent.CGROUP
    assert said[1].how == "1 thread into partition /nodeagent.a" and said[1].before == "0-7"


def test_what_is_so_already_is_left() -> None:
    placement = placed("a")
    where = placement.placed[0].cpus
    inside = process(5, "a", "/nodeagent.a", str(where))
    assert actions(placement, [inside], ALL, host("a", a=where)) == ()
    assert isolate.status("a", inside, host("a", a=where)) == "isolated by partition /nodeagent.a"
    # On its very CPUs, and outside: bound is not isolated.
    (moved,) = actions(placement, [process(5, "a", BARE, str(where))], ALL, host("a", a=where))
    assert isinstance(moved, MoveToCpuset)
    assert isolate.status("a", process(5, "a"), host("a", a=where)).startswith("not isolated")
    # Invalid or of other CPUs: made anew, nobody has to be moved.
    (made,) = actions(placement, [inside], ALL, host("a", a=cpus("7")))
    assert isinstance(made, SetValue) and made.before == "7"
    assert isolate.status("a", inside, host("a")).startswith("not isolated")
    assert isolate.status("a", inside, host()) == "" == isolate.status("a", inside, None)


@pytest.mark.parametrize(
    ("cgroup", "consents", "facts", "words"),
    [
        ("/system.slice/a.service", ALL, host("a"), "cgroup of a.service is systemd's to write"),
        ("/user.slice/user-0.slice/session-3.scope", ALL, host("a"), "is not moved out of it"),
        (f"/docker/{'a' * 64}", ALL, host("a"), "is not moved out of it"),
        ("/slurm/uid_1/job_7", ALL, host("a"), "is not moved out of it"),
        (BARE, ALL - {Consent.HOST}, host("a"), "no consent for acts of class host"),
        (BARE, ALL - {Consent.CGROUP}, host("a"), "no consent for acts of class cgroup"),
        (BARE, ALL, replace(host("a"), version=1), "partitions are of cgroup v2"),
        (BARE, ALL, replace(host("a"), controller=False), "the cpuset controller is off"),
    ],
)
def test_why_it_is_not_isolated_is_said(
    cgroup: str, consents: frozenset[Consent], facts: Facts, words: str
) -> None:
    placement, one = placed("a"), process(5, "a", cgroup)
    reason = holds(placement, [one], consents, facts)[5].reason
    assert "; not isolated: " in reason and words in reason
    found = actions(placement, [one], consents, facts)
    assert not any(isinstance(a, SetValue) and a.knob is Knob.PARTITION for a in found)
    assert not any(isinstance(a, MoveToCpuset) and a.cpuset == "/nodeagent.a" for a in found)


def test_nobody_on_housekeeping_or_in_a_pool_is_isolated() -> None:
    placement, one = placed("a"), process(5, "a")
    place = placement.placed[0]
    for other in (
        replace(placement, housekeeping=place.cpus),
        replace(placement, placed=(replace(place, sharing=Sharing.SHARED, pool="shared"),)),
    ):
        found = actions(other, [one], ALL, host("a"))
        assert not any(isinstance(a, SetValue) for a in found)


def test_only_partitions_ask_for_it() -> None:
    wanted = [want("a", 2, isolated=True), want("b", 2)]
    assert isolate.isolating(wanted, Isolation.BOOT) == ()
    assert isolate.isolating(wanted, Isolation.PARTITION) == ("a",)
    (one, *_) = placed("a").placed
    assert any("partitions of cgroup v2 isolate" in r for r in one.reasons)
    found = actions(placed("a"), [process(5, "a")], ALL, host())
    assert all(isinstance(a, MoveToCpuset) and a.cpuset == "/nodeagent/a" for a in found)


def test_cores_are_whole() -> None:
    one = placed("a", machine_=machine(cores=8, smt=2)).placed[0]
    low = min(one.cpus)
    assert one.cpus == CpuSet.of([low, low + 8])


def test_its_own_partition_is_no_bound_and_a_leftover_is() -> None:
    """Started anew outside, it returns to its CPUs; of one that wants it no more, they are held."""
    topology, mine = machine(cores=8), cpus("4-5")
    tree = Cgroups(
        cpus={
            "/mine": Bound(allowed=cpus("0-3,6-7"), file="f"),
            "/": Bound(allowed=cpus("0-3,6-7"), file="f"),
        },
        partitions=(Partition(cgroup="/nodeagent.a", cpus=mine, file="g"),),
        isolating=frozenset({"a"}),
    )
    wanted = [want("a", 2, isolated=True), want("b", 4)]
    running = [process(5, "a"), process(6, "b")]
    first = plan(topology, wanted, running, facts=Known(cgroups=tree))
    stays = replace(first.placed[0], cpus=mine)
    current = replace(first, placed=(stays,))
    again = plan(topology, wanted, running, current, facts=Known(cgroups=tree))
    assert [p.cpus & mine for p in again.placed] == [mine, CpuSet()]
    left = Known(cgroups=replace(tree, isolating=frozenset()))
    other = plan(topology, wanted, running, current, facts=left)
    assert not any(p.cpus & mine for p in other.placed)
    assert any("/nodeagent.a" in n for n in other.notes)
