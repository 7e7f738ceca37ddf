"""Every way of dealing the groups to the sites, each site packed as cheaply as it can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nodeagent.place.answer import Answer, Group, Resource, cost_of_all, uses
from nodeagent.place.machine import Machine
from nodeagent.place.pack import Budget, Given, pack
from nodeagent.place.room import pool_at

BUDGET = 10_000
"""Choices tried beyond the greedy answer."""
SiteCost = tuple[int, int, int, int, int]
"""(moved, splits, cores, whether a pool takes in housekeeping, memory and PUs squared)."""


def exact(machine: Machine, groups: Sequence[Group], room: Mapping[Resource, int]) -> Answer | None:
    """The best of them; None: not even one answer within the budget."""
    budget = Budget(BUDGET)
    everything = (1 << len(groups)) - 1
    best: dict[int, tuple[tuple[int, ...], tuple[tuple[int, int, Given], ...]]] = {
        0: ((0,) * 5, ())
    }
    proven = True
    for site in range(len(machine.sites)):
        packed, sure = _at_site(machine, site, groups, room, budget)
        proven &= sure
        grown = dict(best)
        for have, (cost, parts) in best.items():
            for more, (extra, packing) in packed.items():
                if have & more:
                    continue
                both = have | more
                total = tuple(a + b for a, b in zip(cost, extra, strict=True))
                if both not in grown or total < grown[both][0]:
                    grown[both] = (total, (*parts, (site, more, packing)))
        best = grown
    if budget.left < 0:
        proven = False

    def whole(have: int) -> tuple[int, ...]:
        left = [g for i, g in enumerate(groups) if not have >> i & 1]
        cost = best[have][0]
        out = sum(len(g.items) for g in left)
        return (
            out,
            cost[0] + sum(g.placed_now for g in left),
            *cost[1:3],
            -(everything & ~have),
            *cost[3:],
        )

    chosen_mask = min(best, key=whole)
    given: dict[str, Given] = {}
    sites: dict[str, int] = {}
    for site, subset, packing in best[chosen_mask][1]:
        by_name = {item.name: (item, taken) for item, taken in packing}
        for i, g in enumerate(groups):
            if subset >> i & 1:
                sites[g.name] = site
                given[g.name] = tuple(by_name[item.name] for item in g.items)
    return Answer(
        sites=sites,
        given=given,
        out=frozenset(g.name for g in groups if g.name not in sites),
        cost=cost_of_all(groups, given),
        proven=proven,
    )


def _at_site(
    machine: Machine,
    site: int,
    groups: Sequence[Group],
    room: Mapping[Resource, int],
    budget: Budget,
) -> tuple[dict[int, tuple[SiteCost, Given]], bool]:
    """Each set of groups that fits the site: what it costs, and the packing.

    What does not fit does not fit with more either.
    """
    able = [i for i, g in enumerate(groups) if site in g.sites]
    packed: dict[int, tuple[SiteCost, Given]] = {}
    sets = {0}
    sure = True
    for i in able:
        for below in sorted(sets):
            subset = below | 1 << i
            if any(below >> j & 1 and subset & ~(1 << j) not in sets for j in able):
                continue
            mine = [g for k, g in enumerate(groups) if subset >> k & 1]
            wanted: dict[Resource, int] = {}
            for g in mine:
                for key, amount in g.demand[site].items():
                    wanted[key] = wanted.get(key, 0) + amount
            if any(room.get(k, n) < n for k, n in wanted.items()):
                continue
            items = [item for g in mine for item in g.items]
            found = pack(machine, site, items, machine.givable, budget)
            if found is None:
                continue
            sure &= found.proven
            pooled = [i for i in items if i.shared]
            gone, free = 0, machine.givable
            for item, taken in found.given:
                gone += uses(item, taken)
                free &= ~taken.gone
            joined = int(bool(pooled) and pool_at(machine, site, pooled, free)[1])
            spread = (sum(g.memory_bytes for g in mine) >> 20) ** 2 + gone**2
            packed[subset] = ((*found.cost, joined, spread), found.given)
            sets.add(subset)
    return packed, sure and budget.left >= 0
