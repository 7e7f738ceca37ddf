"""PUs of roles: whole cores and L3 groups kept together, and kept when planned again."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.model.placement import Role, Sharing
from nodeagent.place.planner import plan
from tests.place.machines import cpus, machine, want


def test_roles_take_whole_cores() -> None:
    topology = machine(cores=8, smt=2)
    (placed,) = plan(topology, (want("a", 8, roles=(2, 4)),)).placed
    cores = dict(topology.smt_siblings)
    for role, count in zip(placed.roles, (1, 2), strict=True):
        assert len({cores[c] for c in role.cpus}) == count


def test_a_role_is_not_split_over_l3_groups_if_it_fits() -> None:
    topology = machine(l3=2, cores=5)
    (placed,) = plan(topology, (want("a", 9, roles=(4, 4)),)).placed
    for role in placed.roles:
        assert sum(bool(c.cpus & role.cpus) for c in topology.caches) == 1


def test_what_no_role_takes_is_left() -> None:
    (placed,) = plan(machine(cores=8), (want("a", 4, roles=(1,)),)).placed
    assert len(placed.cpus - placed.roles[0].cpus) == 3


def test_shared_workloads_have_none() -> None:
    shared = want("a", 2, sharing=Sharing.SHARED)
    (placed,) = plan(machine(cores=8), (replace(shared, roles=(Role(name="x", cpus=1),)),)).placed
    assert placed.roles == ()


def test_a_role_more_moves_no_other() -> None:
    topology = machine(cores=8)
    before = plan(topology, (want("a", 4, roles=(1, 1)),))
    had = {r.role.name: r.cpus for r in before.placed[0].roles}
    roles = (Role(name="new", cpus=2), *(r.role for r in before.placed[0].roles))
    after = plan(topology, (replace(want("a", 4), roles=roles),), (), before)
    now = {r.role.name: r.cpus for r in after.placed[0].roles}
    assert {n: now[n] for n in had} == had and len(now["new"]) == 2


def test_roles_inside_a_cpu_list() -> None:
    topology = machine(cores=8, isolated="6-7")
    fixed = want("a", 4, cpu_list=cpus("4-7"), roles=(2, 2))
    (placed,) = plan(topology, (fixed,)).placed
    assert {c for r in placed.roles for c in r.cpus} == {4, 5, 6, 7}
