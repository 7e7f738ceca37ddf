"""The planner against brute force that knows the rules and the cost, and nothing of the search."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Placement, Sharing, Workload
from nodeagent.model.topology import Topology
from nodeagent.place.planner import plan
from tests.place.machines import check, machine, want

Cost = tuple[int, int, int, int]
"""(left out, moved, L3 groups split, cores touched)."""


def brute(
    topology: Topology,
    kept: CpuSet,
    wanted: tuple[Workload, ...],
    current: Placement | None = None,
) -> Cost:
    """The least cost of any assignment at all: every set of PUs is tried for every workload."""
    givable = topology.online - kept
    isolated = topology.isolation.isolated
    isolates = bool(givable & isolated)
    core_of = dict(topology.smt_siblings)
    nodes = [n for n in topology.nodes if n.cpus]
    l3 = [c.cpus for c in topology.caches if c.level == 3]
    groups: dict[str, list[Workload]] = {}
    for w in wanted:
        groups.setdefault(f"unit {w.unit}" if w.unit else w.name, []).append(w)
    order = list(groups.values())

    def whole(core: CpuSet, node: CpuSet, kind: bool) -> bool:
        """Nothing of it is housekeeping's, elsewhere or of the other kind."""
        return core <= givable & node and all((c in isolated) is kind for c in core)

    def sets(w: Workload, node: CpuSet) -> Iterator[tuple[CpuSet, CpuSet]]:
        """(the PUs, all that is gone with them) that keep the workload's own rules."""
        kind = w.isolated and isolates
        usable = [c for c in givable & node if (c in isolated) is kind]
        if w.smt == "any":
            for chosen in itertools.combinations(usable, w.cpus):
                yield CpuSet.of(chosen), CpuSet.of(chosen)
            return
        cores = [c for c in dict.fromkeys(core_of[u] for u in usable) if whole(c, node, kind)]
        for count in range(1, len(cores) + 1):
            for some in itertools.combinations(cores, count):
                gone = CpuSet.of(c for core in some for c in core)
                if w.smt == "one-per-core":
                    if count == w.cpus:
                        yield CpuSet.of(min(core.ids) for core in some), gone
                elif len(gone) - min(map(len, some)) < w.cpus <= len(gone):
                    yield gone, gone

    def price(w: Workload, pus: CpuSet, node: int) -> tuple[int, int, int]:
        before = current.of(w.name) if current is not None else None
        moved = 0
        if before is not None:
            stays = before.node == node if w.sharing is Sharing.SHARED else before.cpus == pus
            moved = int(not stays)
        if w.sharing is Sharing.SHARED:
            return moved, 0, 0
        return moved, sum(bool(g & pus) for g in l3) - 1, len({core_of[c] for c in pus})

    def pool_holds(free: CpuSet, need: tuple[int, ...]) -> bool:
        return all(
            len(((free & givable) | kept) & n.cpus - isolated) >= m
            for n, m in zip(nodes, need, strict=True)
            if m
        )

    @functools.cache
    def best(at: int, free: CpuSet, memory: tuple[int, ...], need: tuple[int, ...]) -> Cost | None:
        if at == len(order):
            return (0, 0, 0, 0) if pool_holds(free, need) else None
        members = order[at]
        had = sum(current is not None and current.of(w.name) is not None for w in members)
        rest = best(at + 1, free, memory, need)
        found = None if rest is None else (rest[0] + len(members), rest[1] + had, *rest[2:])
        amount = sum(w.memory_bytes for w in members)
        for i, node in enumerate(nodes):
            if any(w.near not in (None, f"node:{node.id}") for w in members):
                continue
            if amount > memory[i]:
                continue
            less = (*memory[:i], memory[i] - amount, *memory[i + 1 :])
            shared = max((w.cpus for w in members if w.sharing is Sharing.SHARED), default=0)
            more = (*need[:i], max(need[i], shared), *need[i + 1 :])
            for gone, moved, splits, cores in deal(tuple(members), i, free):
                after = best(at + 1, free - gone, less, more)
                if after is not None:
                    total = (after[0], after[1] + moved, after[2] + splits, after[3] + cores)
                    found = total if found is None else min(found, total)
        return found

    @functools.cache
    def deal(
        members: tuple[Workload, ...], i: int, free: CpuSet
    ) -> tuple[tuple[CpuSet, int, int, int], ...]:
        if not members:
            return ((CpuSet(), 0, 0, 0),)
        w, rest = members[0], members[1:]
        choices = [(CpuSet(), CpuSet())] if w.sharing is Sharing.SHARED else []
        if w.sharing is Sharing.EXCLUSIVE:
            choices = [c for c in sets(w, nodes[i].cpus) if c[1] <= free]
        least: dict[CpuSet, tuple[int, int, int]] = {}
        for pus, gone in choices:
            moved, splits, cores = price(w, pus, nodes[i].id)
            if w.l3 == "one" and splits > 0:
                continue
            for more, m, s, c in deal(rest, i, free - gone):
                cost = (moved + m, splits + s, cores + c)
                both = gone | more
                if both not in least or cost < least[both]:
                    least[both] = cost
        return tuple((gone, *cost) for gone, cost in least.items())

    answer = best(0, givable, tuple(n.memory_bytes or 0 for n in nodes), tuple(0 for _ in nodes))
    assert answer is not None
    return answer


def cost_of(
    topology: Topology,
    wanted: tuple[Workload, ...],
    placement: Placement,
    current: Placement | None = None,
) -> Cost:
    """The cost of the planner's answer, counted anew."""
    core_of = dict(topology.smt_siblings)
    moved = splits = cores = 0
    for w in wanted:
        before = current.of(w.name) if current is not None else None
        now = placement.of(w.name)
        if before is not None:
            if now is None:
                moved += 1
            elif w.sharing is Sharing.SHARED:
                moved += before.node != now.node
            else:
                moved += before.cpus != now.cpus
        if now is not None and w.sharing is Sharing.EXCLUSIVE:
            splits += sum(bool(c.cpus & now.cpus) for c in topology.caches if c.level == 3) - 1
            cores += len({core_of[c] for c in now.cpus})
    return len(placement.refused), moved, splits, cores


@st.composite
def small_machines(draw: st.DrawFn, most: int = 12) -> Topology:
    shape = draw(
        st.sampled_from(
            [
                # packages, nodes, l3, cores, smt
                (1, 1, 1, 8, 1),
                (1, 1, 2, 4, 1),
                (1, 1, 3, 3, 1),
                (1, 1, 2, 2, 2),
                (1, 1, 1, 5, 2),
                (2, 1, 1, 2, 2),
                (1, 2, 1, 2, 2),
                (1, 2, 2, 2, 1),
                (1, 1, 1, 3, 4),
                (2, 1, 1, 5, 1),
                (1, 1, 1, 2, 8),
                (1, 4, 1, 2, 1),
                (2, 2, 1, 3, 1),
            ]
        )
    )
    packages, nodes, l3, cores, smt = shape
    total = packages * nodes * l3 * cores * smt
    off = draw(st.sets(st.integers(1, total - 1), max_size=2)) | set(range(most + 1, total))
    isolated = draw(st.sets(st.integers(1, total - 1), max_size=total // 2))
    topology = machine(
        packages=packages,
        nodes=nodes,
        l3=l3,
        cores=cores,
        smt=smt,
        offline=str(CpuSet.of(off)),
        isolated=draw(st.sampled_from(["", str(CpuSet.of(isolated))])),
        memory=64 << 30,
    )
    assume(len(topology.online) >= 6 and all(n.cpus for n in topology.nodes))
    return topology


@st.composite
def few_workloads(draw: st.DrawFn, most: int = 4) -> tuple[Workload, ...]:
    made = []
    for i in range(draw(st.integers(1, most))):
        shared = draw(st.integers(0, 4)) == 0
        made.append(
            want(
                f"w{i}",
                draw(st.integers(1, 5)),
                sharing=Sharing.SHARED if shared else Sharing.EXCLUSIVE,
                near=draw(st.sampled_from([None, None, None, "node:0", "node:1"])),
                unit=draw(st.sampled_from([None, None, "a"])),
                smt="any"
                if shared
                else draw(st.sampled_from(["any", "any", "whole-core", "one-per-core"])),
                isolated=not shared and draw(st.integers(0, 3)) == 0,
                l3="any" if shared else draw(st.sampled_from(["any", "any", "one"])),
                memory_bytes=draw(st.sampled_from([0, 0, 20 << 30, 40 << 30])),
            )
        )
    return tuple(made)


@settings(max_examples=250, deadline=None)
@given(small_machines(), few_workloads())
def test_as_good_as_brute_force(topology: Topology, wanted: tuple[Workload, ...]) -> None:
    placement = plan(topology, wanted)
    check(topology, wanted, placement)
    ours = cost_of(topology, wanted, placement)
    assert ours == brute(topology, placement.housekeeping, wanted)


@settings(max_examples=150, deadline=None)
@given(small_machines(10), few_workloads(), few_workloads(3))
def test_moves_as_few_as_brute_force(
    topology: Topology, wanted: tuple[Workload, ...], more: tuple[Workload, ...]
) -> None:
    """Newcomers, in the first's units too, and one that was there is gone."""
    before = plan(topology, wanted)
    names = {w.name for w in wanted[1:]}
    later = wanted[1:] + tuple(
        want(f"x{w.name}", w.cpus, smt=w.smt, unit=w.unit, isolated=w.isolated, l3=w.l3)
        for w in more
        if w.sharing is Sharing.EXCLUSIVE
    )
    assume(len(later) <= 5)
    after = plan(topology, later, (), before)
    check(topology, later, after)
    there = Placement(
        placed=tuple(p for p in before.placed if p.workload in names),
        refused=(),
        housekeeping=before.housekeeping,
    )
    ours = cost_of(topology, later, after, there)
    assert ours == brute(topology, after.housekeeping, later, there)


@settings(max_examples=150, deadline=None)
@given(small_machines(), few_workloads(5))
def test_asked_again_it_answers_the_same(topology: Topology, wanted: tuple[Workload, ...]) -> None:
    first = plan(topology, wanted)
    assert plan(topology, wanted) == first
    again = plan(topology, wanted, (), first)
    assert again.placed == first.placed and again.refused == first.refused
