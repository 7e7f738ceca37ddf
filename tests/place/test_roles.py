"""Every thread has exactly one seat, and is acted upon only when it runs beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import (
    Action,
    Consent,
    Match,
    MoveToCpuset,
    Placed,
    Placement,
    ProcessState,
    Role,
    RolePlaced,
    SetAffinity,
    Sharing,
    ThreadState,
    Workload,
)
from nodeagent.model.topology import Isolation, Topology
from nodeagent.place.diff import MAX_TIDS, actions
from nodeagent.place.held import held, observed
from nodeagent.place.match import fits
from nodeagent.place.planner import plan as plan_for
from nodeagent.place.roles import inside, outside, rest_of, role_notes, seats
from tests.place.machines import machine

POLL = Role(name="poll", cpus=1, main=True)
POOL = Role(name="pool", cpus=2, comm="omp*")


def threads(*told: tuple[str, str]) -> tuple[ThreadState, ...]:
    """(comm, cpulist); the first is the main thread, 100."""
    return tuple(
        ThreadState(tid=100 + i, comm=comm, cpus=CpuSet.parse(cpus))
        for i, (comm, cpus) in enumerate(told)
    )


def process(*told: tuple[str, str], title: str = "index", parent: str = "sh") -> ProcessState:
    return ProcessState(
        pid=100,
        start_time=7,
        comm="index",
        title=title,
        cgroup="/",
        threads=threads(*told),
        parent_title=parent,
    )


def placed(cpus: str, *roles: tuple[Role, str]) -> Placed:
    return Placed(
        workload="index",
        unit=None,
        sharing=Sharing.EXCLUSIVE,
        cpus=CpuSet.parse(cpus),
        mems=CpuSet.parse("0"),
        node=0,
        gpu=None,
        reasons=(),
        match=Match(title="index"),
        roles=tuple(RolePlaced(role=r, cpus=CpuSet.parse(c)) for r, c in roles),
    )


def plan(p: Placed) -> Placement:
    return Placement(placed=(p,), refused=(), housekeeping=CpuSet())


@pytest.mark.parametrize(
    ("role", "fit"),
    [
        (Role(name="r", cpus=1), True),
        (Role(name="r", cpus=1, main=True), False),
        (Role(name="r", cpus=1, main=False), True),
        (Role(name="r", cpus=1, comm="omp*"), True),
        (Role(name="r", cpus=1, comm="omp"), False),
        (Role(name="r", cpus=1, comm="omp*", main=True), False),
        (Role(name="r", cpus=1, title="ind*", comm="omp-1"), True),
        (Role(name="r", cpus=1, title="vllm*", comm="omp-1"), False),
        (Role(name="r", cpus=1, parent="sh"), True),
        (Role(name="r", cpus=1, parent="bash"), False),
        (Role(name="r", cpus=1, parent="bash|sh"), True),
        (Role(name="r", cpus=1, comm="cuda*|omp-?"), True),
        (Role(name="r", cpus=1, comm="cuda*|pt_*"), False),
    ],
)
def test_every_criterion_of_a_role_must_fit(role: Role, fit: bool) -> None:
    one = process(("index", "0"), ("omp-1", "0"))
    assert fits(role, one, one.threads[1]) is fit


def test_a_title_that_is_not_known_fits_no_pattern() -> None:
    one = process(("index", "0"), title="", parent="")
    assert not fits(Role(name="r", cpus=1, title="*"), one, one.threads[0])
    assert not fits(Role(name="r", cpus=1, parent="*"), one, one.threads[0])


def test_the_rest_has_what_no_role_took() -> None:
    where = placed("2-9", (POLL, "2"), (POOL, "3-4"))
    one = process(("index", "0-9"), ("omp-1", "0-9"), ("cuda-EvtHandlr", "0-9"))
    told = {tid: (s.role, str(s.cpus)) for tid, s in seats(where, one).items()}
    assert told == {100: ("poll", "2"), 101: ("pool", "3-4"), 102: ("helpers", "5-9")}
    assert str(rest_of(placed("2-4", (POLL, "2"), (POOL, "3-4")))) == "2-4"
    bare = seats(placed("2-4"), one)
    assert [s.role for s in bare.values()] == ["main", "thread", "helpers"]
    assert {str(s.cpus) for s in bare.values()} == {"2-4"}


def test_one_action_for_each_role_names_the_threads_outside() -> None:
    where = placed("2-9", (POLL, "2"), (POOL, "3-4"))
    one = process(("index", "2-9"), ("omp-1", "3"), ("omp-2", "0"), ("x", "4-9"), ("y", "5"))
    found = actions(plan(where), [one])
    assert all(isinstance(a, SetAffinity) for a in found)
    assert [(str(a.cpus), a.tids) for a in found if isinstance(a, SetAffinity)] == [
        ("2", (100,)),
        ("3-4", (102,)),
        ("5-9", (103,)),
    ]
    assert [str(a.before) for a in found] == ["2-9", "0", "4-9"]


def test_what_its_program_bound_to_a_part_of_its_role_is_left_alone() -> None:
    where = placed("2-9", (POLL, "2"), (POOL, "3-4"))
    one = process(("index", "2"), ("omp-1", "3"), ("omp-2", "4"), ("x", "7"))
    assert actions(plan(where), [one]) == ()
    (row,) = held(plan(where), [one])
    assert row.held
    (row,) = held(plan(where), [process(("index", "2"), ("omp-1", "5"))])
    assert not row.held, "inside the workload, and beside its role"


def test_a_thread_that_is_given_a_role_later_is_moved_then() -> None:
    where = placed("2-9", (POLL, "2"), (POOL, "3-4"))
    young = process(("index", "2"), ("index", "2"))
    (act,) = actions(plan(where), [young])
    assert isinstance(act, SetAffinity) and (str(act.cpus), act.tids) == ("5-9", (101,))
    named = process(("index", "2"), ("omp-1", "5-9"))
    (act,) = actions(plan(where), [named])
    assert isinstance(act, SetAffinity) and (str(act.cpus), act.tids) == ("3-4", (101,))


def test_a_cpuset_holds_the_process_and_affinity_its_roles() -> None:
    where = placed("2-9", (POLL, "2"))
    one = process(("index", "0-9"), ("x", "0-9"))
    both = actions(plan(where), [one], {Consent.CGROUP, Consent.THREADS})
    assert [type(a) for a in both] == [MoveToCpuset, SetAffinity, SetAffinity]
    only = actions(plan(where), [one], {Consent.CGROUP})
    assert [type(a) for a in only] == [MoveToCpuset]
    inner = process(("index", "2-9"), ("x", "3-9"))
    assert [type(a) for a in actions(plan(where), [inner], {Consent.CGROUP, Consent.THREADS})] == [
        SetAffinity
    ], "its cpuset holds it already"
    assert actions(plan(where), [inner], {Consent.CGROUP}) == (), "a cpuset holds no role"


def test_roles_that_no_allowed_act_holds_are_said() -> None:
    where = plan(placed("2-9", (POLL, "2"), (POOL, "3-4")))
    assert role_notes(where, {Consent.CGROUP}) == (
        "roles of index (poll, pool) are held by affinity only: allow class threads too",
    )
    assert role_notes(where, {Consent.CGROUP, Consent.THREADS}) == ()
    assert role_notes(plan(placed("2-9")), {Consent.CGROUP}) == ()


def test_an_action_names_a_bounded_number_of_threads() -> None:
    where = placed("2-9", (POLL, "2"))
    many = process(*[("x", "0")] * (2 * MAX_TIDS + 2))
    found = [a for a in actions(plan(where), [many]) if isinstance(a, SetAffinity)]
    assert [len(a.tids) for a in found] == [1, MAX_TIDS, MAX_TIDS, 1]


def test_the_roles_in_force_are_read_off_the_threads() -> None:
    work = Workload(
        name="index", kind="custom", match=Match(title="index"), cpus=5, roles=(POLL, POOL)
    )
    everything = CpuSet.parse("0-9")
    topology = Topology(
        online=everything,
        possible=everything,
        present=everything,
        smt_siblings=(),
        packages=(),
        nodes=(),
        caches=(),
        pci=(),
        relations=(),
        isolation=Isolation(),
    )
    apart = process(("index", "2"), ("omp-1", "3-4"), ("x", "5-6"))
    (seen,) = observed(topology, [work], [apart]).placed
    assert [(r.role.name, str(r.cpus)) for r in seen.roles] == [("poll", "2"), ("pool", "3-4")]
    mixed = process(("index", "2-6"), ("omp-1", "3-4"), ("x", "5-6"))
    (seen,) = observed(topology, [work], [mixed]).placed
    assert seen.roles == () and str(seen.cpus) == "2-6"


COMMS = st.sampled_from(["index", "omp-1", "cuda-EvtHandlr", "x", ""])
MASKS = st.frozensets(st.integers(0, 11), max_size=5).map(CpuSet)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Placed, ProcessState]:
    cpus = sorted(draw(st.frozensets(st.integers(0, 11), min_size=3, max_size=10)))
    roles: list[RolePlaced] = []
    for i in range(draw(st.integers(0, 3))):
        take = draw(st.integers(1, 3))
        if len(cpus) < take:
            break
        mine, cpus = cpus[:take], cpus[take:]
        role = Role(
            name=f"r{i}",
            cpus=take,
            comm=draw(st.none() | st.sampled_from(["omp*", "cuda-*", "x"])),
            main=draw(st.none() | st.booleans()),
        )
        roles.append(RolePlaced(role=role, cpus=CpuSet.of(mine)))
    rest = CpuSet.of(cpus)
    where = dataclasses.replace(placed("0"), roles=tuple(roles))
    for one_role in roles:
        rest |= one_role.cpus
    told = draw(st.lists(st.tuples(COMMS, MASKS), min_size=1, max_size=8))
    one = dataclasses.replace(
        process(),
        threads=tuple(ThreadState(tid=100 + i, comm=c, cpus=m) for i, (c, m) in enumerate(told)),
    )
    return dataclasses.replace(where, cpus=rest), one


def done(one: ProcessState, acts: Sequence[Action]) -> ProcessState:
    """The process once the actions are made, as the actor makes them."""
    masks = {
        tid: a.cpus
        for a in acts
        if isinstance(a, SetAffinity)
        for tid in (a.tids or [t.tid for t in one.threads])
    }
    return dataclasses.replace(
        one,
        threads=tuple(
            dataclasses.replace(t, cpus=masks.get(t.tid, t.cpus))
            if not inside(t.cpus, masks.get(t.tid, t.cpus))
            else t
            for t in one.threads
        ),
    )


@given(worlds())
def test_no_thread_in_two_roles_and_all_are_seated_in_one_go(
    world: tuple[Placed, ProcessState],
) -> None:
    where, one = world
    found = seats(where, one)
    assert found.keys() == {t.tid for t in one.threads}
    assert all(s.cpus and s.cpus <= where.cpus for s in found.values())
    acts = actions(plan(where), [one])
    named = [tid for a in acts if isinstance(a, SetAffinity) for tid in a.tids]
    assert len(named) == len(set(named)), "no thread in two actions"
    after = done(one, acts)
    assert outside(where, after) == ()
    assert actions(plan(where), [after]) == (), "and then nothing is left to do"
    kept = {t.tid for t in one.threads} - {t.tid for t in outside(where, one)}
    before = {t.tid: t.cpus for t in one.threads}
    assert all(t.cpus == before[t.tid] for t in after.threads if t.tid in kept)


def test_a_pool_says_that_it_has_no_roles() -> None:
    work = Workload(name="index", kind="custom", match=Match(title="index"), cpus=1, roles=(POLL,))
    (where,) = plan_for(machine(cores=2), [work]).placed
    assert where.roles == () and where.sharing is Sharing.SHARED
    assert "a pool has no roles: threads of poll share it with the rest" in where.reasons
