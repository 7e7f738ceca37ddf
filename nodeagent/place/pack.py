"""Workloads of one site into its L3 groups and cores: the best way there is, within a budget.

The cost of a packing, in order: workloads moved, L3 groups split, cores touched. Cores of one shape
stand for one another, and so do L3 groups: states are compared by shape. Of the PUs that a workload
with `smt = "any"` takes from one L3 group at most one core is taken in part: two cores in part can
always be exchanged for one, which leaves no fewer whole cores.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nodeagent.place.machine import Machine
from nodeagent.place.room import Item, Taken, exactly, needed, options, pool_holds

Given = tuple[tuple[Item, Taken], ...]
Cost = tuple[int, int, int]


class SpentError(Exception):
    """The budget is used up: what is known so far is what there is."""


@dataclass(slots=True)
class Budget:
    """Choices that may still be tried."""

    left: int

    def spend(self) -> None:
        """One more. Raises SpentError."""
        self.left -= 1
        if self.left < 0:
            raise SpentError


@dataclass(frozen=True, slots=True)
class Packing:
    """Where each item went."""

    given: Given
    cost: Cost
    proven: bool


def hardest_first(items: Sequence[Item]) -> list[Item]:
    """Fixed PUs, one L3 group, whole cores, then large before small, then by name; shared last."""
    return sorted(
        items,
        key=lambda i: (
            i.shared,
            not i.fixed,
            not i.one_l3,
            i.workload.smt == "any",
            -i.workload.cpus,
            i.name,
        ),
    )


def cost_of(given: Given) -> Cost:
    """(moved, splits, cores)."""
    taken = [t for _, t in given]
    return (
        sum(t.moved for t in taken),
        sum(t.splits for t in taken),
        sum(t.cores for t in taken),
    )


def greedy(
    machine: Machine, site: int, items: Sequence[Item], free: int, pooled: Sequence[Item] = ()
) -> tuple[Given, int] | None:
    """Each by its best choice, hardest first, and what is free then; None: some found no room.

    `pooled`: shared workloads that the site has already.
    """
    given: list[tuple[Item, Taken]] = []
    shared = [*pooled, *(i for i in items if i.shared)]
    for item in hardest_first(items):
        if item.shared:
            moved = int(item.now_site is not None and item.now_site != site)
            given.append((item, Taken(0, 0, moved=moved)))
            continue
        for taken in options(machine, site, item, free):
            if not shared or pool_holds(machine, site, shared, free & ~taken.gone):
                break
        else:
            return None
        free &= ~taken.gone
        given.append((item, taken))
    if not pool_holds(machine, site, shared, free):
        return None
    return tuple(given), free


def least(machine: Machine, site: int, item: Item) -> Cost:
    """What an item costs at least on that site, were it empty."""
    moved = int(item.now_site is not None and item.now_site != site)
    if item.shared or item.fixed:
        return (moved, 0, 0)
    groups = machine.usable(site, item.isolated, item.allowed)
    sizes = sorted((p.mask.bit_count() for g in groups for p in g[2]), reverse=True)
    rooms = sorted((g[1].bit_count() for g in groups), reverse=True)
    cpus = item.workload.cpus
    cores = cpus if item.workload.smt == "one-per-core" else _count(sizes, cpus)
    return (moved, _count(rooms, cpus) - 1, cores)


def _count(sizes: Sequence[int], need: int) -> int:
    """How many of these sizes, largest first, reach the need."""
    reached = (n for n, total in enumerate(itertools.accumulate(sizes), 1) if total >= need)
    return next(reached, len(sizes))


def pack(
    machine: Machine, site: int, items: Sequence[Item], free: int, budget: Budget
) -> Packing | None:
    """The cheapest packing; None: there is none. `proven` False: the budget ended before."""
    first = greedy(machine, site, items, free)
    best = Packing(first[0], cost_of(first[0]), False) if first is not None else None
    bounds = [least(machine, site, i) for i in items]
    bound = (sum(b[0] for b in bounds), sum(b[1] for b in bounds), sum(b[2] for b in bounds))
    if best is not None and best.cost <= bound:
        return Packing(best.given, best.cost, True)
    try:
        found = _Exact(machine, site, items, budget).run(free)
    except SpentError:
        return best
    if found is None:
        return None
    return Packing(found, cost_of(found), True)


Way = tuple[tuple[int, int], ...]
"""(PUs, what is gone with them) of each core."""


class _Exact:
    def __init__(self, machine: Machine, site: int, items: Sequence[Item], budget: Budget) -> None:
        self.machine, self.site, self.budget = machine, site, budget
        ordered = hardest_first(items)
        self.shared = [i for i in ordered if i.shared]
        self.fixed = [i for i in ordered if i.fixed and not i.shared]
        self.loose = [i for i in ordered if not i.fixed and not i.shared]
        self.masks = sorted({i.allowed for i in items})
        self.groups = [(g[1], g[2]) for g in machine.usable(site, None, -1)]
        self.known: dict[object, tuple[int, int] | None] = {}

    def run(self, free: int) -> Given | None:
        head: list[tuple[Item, Taken]] = []
        for item in self.fixed:
            taken = exactly(self.machine, self.site, item, item.fixed, free)
            if taken is None:
                return None
            free &= ~taken.gone
            head.append((item, taken))
        for item in self.shared:
            moved = int(item.now_site is not None and item.now_site != self.site)
            head.append((item, Taken(0, 0, moved=moved)))
        here = [i for i in self.loose if i.now and i.now_site == self.site]
        for moving in range(len(here) + 1):
            best: tuple[tuple[int, int], Given] | None = None
            for movers in itertools.combinations(here, moving):
                found = self._with(free, [i for i in here if i not in movers])
                if found is not None and (best is None or found[0] < best[0]):
                    best = found
            if best is not None:
                return (*head, *best[1])
        return None

    def _with(self, free: int, staying: Sequence[Item]) -> tuple[tuple[int, int], Given] | None:
        """Those stay where they are, all others are placed anew."""
        kept: list[tuple[Item, Taken]] = []
        for item in staying:
            taken = exactly(self.machine, self.site, item, item.now, free)
            if taken is None:
                return None
            free &= ~taken.gone
            kept.append((item, taken))
        self.known.clear()
        rest = tuple(i for i in self.loose if i not in staying)
        least = self._least(rest, free)
        if least is None:
            return None
        cost = (
            least[0] + sum(t.splits for _, t in kept),
            least[1] + sum(t.cores for _, t in kept),
        )
        return cost, (*kept, *self._cheapest(rest, free))

    def _least(self, rest: tuple[Item, ...], free: int) -> tuple[int, int] | None:
        """(splits, cores) of the cheapest packing of these; None: there is none."""
        if not rest:
            return (0, 0) if pool_holds(self.machine, self.site, self.shared, free) else None
        key = (len(rest), self._shape(free))
        if key in self.known:
            return self.known[key]
        best: tuple[int, int] | None = None
        for splits, cores, _, gone in self._ways(rest[0], free):
            self.budget.spend()
            if best is not None and (splits, cores) > best:
                break
            after = self._least(rest[1:], free & ~gone)
            if after is not None:
                cost = (splits + after[0], cores + after[1])
                best = cost if best is None else min(best, cost)
        self.known[key] = best
        return best

    def _cheapest(self, rest: tuple[Item, ...], free: int) -> Given:
        """The packing whose cost `_least` told."""
        given: list[tuple[Item, Taken]] = []
        while rest:
            item, aim = rest[0], self._least(rest, free)
            rest = rest[1:]
            assert aim is not None
            for splits, cores, pus, gone in self._ways(item, free):
                after = self._least(rest, free & ~gone)
                if after is not None and (splits + after[0], cores + after[1]) == aim:
                    moved = int(item.now_site is not None)
                    given.append((item, Taken(pus, gone, splits, cores, moved)))
                    free &= ~gone
                    break
        return tuple(given)

    def _shape(self, free: int) -> tuple[object, ...]:
        """What is free, up to exchanging cores of one shape and L3 groups of one shape."""
        shapes = []
        for _, pieces in self.groups:
            cores = [
                (
                    p.isolated,
                    p.mask == p.core and free & p.core == p.core,
                    tuple((p.mask & free & m).bit_count() for m in self.masks),
                )
                for p in pieces
                if p.mask & free
            ]
            shapes.append(tuple(sorted(cores)))
        return tuple(sorted(shapes))

    def _ways(self, item: Item, free: int) -> list[tuple[int, int, int, int]]:
        """(splits, cores, PUs, gone): every choice up to cores of one shape, cheapest first."""
        groups = self.machine.usable(self.site, item.isolated, item.allowed)
        need = item.workload.cpus
        smt = item.workload.smt
        per_group: list[list[tuple[int, Way]]] = []
        for _, _, pieces in groups:
            classes: dict[tuple[object, ...], list[int]] = {}
            for p in pieces:
                mask = p.mask & free
                whole = mask == p.core
                if mask and (whole or smt == "any"):
                    shape = (
                        whole,
                        mask.bit_count(),
                        tuple((mask & m).bit_count() for m in self.masks),
                    )
                    classes.setdefault(shape, []).append(mask)
            per_group.append(list(_from_group(tuple(classes.values()), smt, need, self.budget)))
        found: list[tuple[int, int, int, int]] = []
        for combo in self._combos(per_group, need, smt, item.one_l3):
            cores = [c for way in combo for c in way]
            pus = gone = 0
            for mine, with_it in cores:
                pus |= mine
                gone |= with_it
            found.append((len(combo) - 1, len(cores), pus, gone))
        return sorted(found)

    def _combos(
        self, per_group: list[list[tuple[int, Way]]], need: int, smt: str, one: bool
    ) -> Iterator[list[Way]]:
        def go(at: int, left: int, taken: list[Way]) -> Iterator[list[Way]]:
            if left <= 0:
                if smt != "whole-core" or _no_more_than_needed(taken, need):
                    yield taken
                return
            if at == len(per_group) or (one and taken):
                return
            yield from go(at + 1, left, taken)
            for amount, way in per_group[at]:
                self.budget.spend()
                if amount <= left or smt == "whole-core":
                    yield from go(at + 1, left - amount, [*taken, way])

        yield from go(0, need, [])


def _no_more_than_needed(ways: list[Way], need: int) -> bool:
    cores = [c for way in ways for c in way]
    return len(needed(cores, need)) == len(cores)


def _from_group(
    classes: tuple[list[int], ...], smt: str, need: int, budget: Budget
) -> Iterator[tuple[int, Way]]:
    """(PUs, cores): every amount that an L3 group's cores can give, up to cores of one shape."""
    sizes = [1 if smt == "one-per-core" else c[0].bit_count() for c in classes]
    most = [min(len(c), -(-need // size)) for c, size in zip(classes, sizes, strict=True)]
    for counts in itertools.product(*(range(n + 1) for n in most)):
        budget.spend()
        cores = [m for c, n in zip(classes, counts, strict=True) for m in c[:n]]
        if smt == "one-per-core":
            if 0 < len(cores) <= need:
                yield len(cores), tuple((m & -m, m) for m in cores)
            continue
        amount = sum(m.bit_count() for m in cores)
        whole: Way = tuple((m, m) for m in cores)
        if amount and (amount <= need or smt == "whole-core"):
            yield amount, whole
        if smt != "any" or amount >= need:
            continue
        for c, n in zip(classes, counts, strict=True):
            if n == len(c):
                continue
            for part in range(1, min(c[n].bit_count(), need - amount + 1)):
                mine = _low(c[n], part)
                yield amount + part, (*whole, (mine, mine))


def _low(mask: int, count: int) -> int:
    taken = 0
    for _ in range(count):
        low = mask & -mask
        taken |= low
        mask ^= low
    return taken
