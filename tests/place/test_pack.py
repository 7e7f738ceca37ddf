"""Packing one site: what an item costs at least there, and that the first good choice is not taken
for the best."""

from __future__ import annotations

import pytest

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Sharing
from nodeagent.place.machine import machine_of
from nodeagent.place.pack import cost_of as cost_of_given
from nodeagent.place.pack import greedy, least
from nodeagent.place.planner import plan
from nodeagent.place.room import Item
from tests.place.machines import check, machine, want
from tests.place.test_optimal import brute, cost_of

Told = tuple[int, str, str]
"""(PUs, smt, l3) of a workload."""


@pytest.mark.parametrize(
    ("l3", "cores", "smt", "offline", "told"),
    [
        (3, 5, 1, "5,10,14", [(1, "any", "any"), (5, "whole-core", "any"), (4, "any", "any")]),
        (
            2, 5, 1, "",
            [(3, "any", "any"), (4, "any", "any"), (5, "any", "one"), (2, "whole-core", "any")],
        ),
        (
            2, 3, 2, "5,9",
            [(1, "any", "any"), (4, "any", "any"), (4, "any", "any"), (1, "any", "one")],
        ),
    ],
)  # fmt: skip
def test_what_is_dearer_for_one_may_be_cheaper_for_all(
    l3: int, cores: int, smt: int, offline: str, told: list[Told]
) -> None:
    topology = machine(l3=l3, cores=cores, smt=smt, offline=offline)
    wanted = tuple(want(f"w{i}", n, smt=s, l3=one) for i, (n, s, one) in enumerate(told))
    placement = plan(topology, wanted)
    check(topology, wanted, placement)
    assert cost_of(topology, wanted, placement) == brute(topology, placement.housekeeping, wanted)


def item(cpus: int, **more: object) -> Item:
    given = {k: v for k, v in more.items() if k in ("smt", "sharing")}
    rest = {k: v for k, v in more.items() if k not in given}
    return Item(
        workload=want(f"w{cpus}", cpus, **given),  # type: ignore[arg-type]
        allowed=-1,
        isolated=None,
        one_l3=False,
        **rest,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("cpus", "smt", "splits", "cores"),
    [(6, "any", 0, 3), (8, "any", 0, 4), (9, "any", 1, 5), (12, "any", 1, 6),
     (3, "one-per-core", 0, 3)],
)  # fmt: skip
def test_the_least_that_an_item_costs_on_an_empty_site(
    cpus: int, smt: str, splits: int, cores: int
) -> None:
    """Two L3 groups of 4 cores with 2 PUs each, of which one core is housekeeping's."""
    found = machine_of(machine(l3=2, cores=4, smt=2), CpuSet.parse("0,8"))
    sizes = sorted(g[1].bit_count() for g in found.usable(0, None, -1))
    assert sizes == [6, 8]
    # The larger group has 8 PUs: what does not fit there is split at least once.
    assert least(found, 0, item(cpus, smt=smt)) == (0, splits, cores)


def test_a_site_that_is_not_where_it_was_is_a_move_for_shared_ones_too() -> None:
    found = machine_of(machine(packages=2, cores=4), CpuSet.of([0, 4]))
    for sharing in Sharing:
        one = item(2, sharing=sharing, now_site=1, now=0)
        assert least(found, 0, one)[0] == 1 and least(found, 1, one)[0] == 0
    shared = item(2, sharing=Sharing.SHARED, now_site=1)
    for site in (0, 1):
        packed = greedy(found, site, [shared], found.givable)
        assert packed is not None and cost_of_given(packed[0]) == (int(site != 1), 0, 0)
