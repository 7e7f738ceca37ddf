"""Groups that stand or fall together, and an answer to where they go, with what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nodeagent.place.pack import Given, cost_of
from nodeagent.place.room import Item, Taken

Cost = tuple[int, int, int, int]
Resource = tuple[str, int, int]
"""(memory or hugepages, NUMA node, page size): an amount that is promised once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Workloads that stand or fall together: a unit, or one alone. `sites` in order of choice."""

    name: str
    items: tuple[Item, ...]
    sites: tuple[int, ...]
    demand: Mapping[int, Mapping[Resource, int]]
    """By site: what it takes of what."""
    memory_bytes: int = 0

    @property
    def placed_now(self) -> int:
        """How many of its workloads have a place now."""
        return sum(i.now_site is not None for i in self.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The site of each group that has one, and what its workloads get."""

    sites: Mapping[str, int]
    given: Mapping[str, Given]
    out: frozenset[str]
    """Groups left out."""
    cost: Cost
    proven: bool
    """No answer costs less."""

    def taken(self) -> dict[str, Taken]:
        """By workload."""
        return {item.name: taken for given in self.given.values() for item, taken in given}


def stays(item: Item, taken: Taken, site: int) -> bool:
    """Whether a workload keeps what it has now."""
    return item.now_site == site and (item.shared or item.now == taken.pus)


def cost_of_all(groups: Sequence[Group], given: Mapping[str, Given]) -> Cost:
    """Of the whole: those left out, moved, L3 groups split, cores touched."""
    out = sum(len(g.items) for g in groups if g.name not in given)
    evicted = sum(g.placed_now for g in groups if g.name not in given)
    costs = [cost_of(x) for x in given.values()]
    return (
        out,
        evicted + sum(c[0] for c in costs),
        sum(c[1] for c in costs),
        sum(c[2] for c in costs),
    )


def uses(item: Item, taken: Taken) -> int:
    """PUs that a workload keeps busy: those of a pool count too."""
    return item.workload.cpus if item.shared else taken.gone.bit_count()
