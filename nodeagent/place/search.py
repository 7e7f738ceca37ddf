"""Which group goes to which site, and who gets which PUs: exact where it is small.

The cost of an answer, in order: workloads left out, workloads moved (those that had a place and
have none are moved too), L3 groups split, cores touched. The first answer is greedy, hardest first,
those who have a place before newcomers. Up to SMALL_GROUPS and SMALL_PUS_EXACT every way of dealing
the groups to the sites is then compared, each site packed as cheaply as it can be (pack.py), until
BUDGET choices are spent. On larger machines who is left out gets the room of one other that finds
another place. At equal cost, pools leave housekeeping alone, memory and PUs are spread over the
nodes, and workloads that are not of one unit keep out of each other's L3 group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nodeagent.place.machine import Machine, Piece
from nodeagent.place.pack import Budget, Given, cost_of, greedy, least, pack
from nodeagent.place.room import Item, Taken, chosen, pool_at, pool_holds

BUDGET = 10_000
"""Choices tried beyond the greedy answer."""
SMALL_GROUPS = 8
SMALL_PUS_EXACT = 64
MAX_EVICTED = 32
"""Others that are asked to go elsewhere for one that is left out."""
ROUNDS = 3

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


def assign(machine: Machine, groups: Sequence[Group], room: Mapping[Resource, int]) -> Answer:
    """The best answer found; deterministic, and asked again with itself as what is now the case it
    answers the same."""
    if not _is_small(machine, groups):
        return _large(machine, groups, room)
    answer = _small(machine, groups, room)
    for _ in range(ROUNDS):
        if answer.proven or not answer.out:
            break
        again = _small(machine, [_where(g, answer) for g in groups], room)
        if len(again.out) >= len(answer.out):
            break
        answer = _again(groups, again)
    return answer


def _where(group: Group, answer: Answer) -> Group:
    """As if the answer were the case."""
    site = answer.sites.get(group.name)
    taken = {item.name: t for item, t in answer.given.get(group.name, ())}
    return replace(
        group,
        items=tuple(
            replace(i, now=taken[i.name].pus, now_site=site)
            if site is not None
            else replace(i, now=0, now_site=None)
            for i in group.items
        ),
    )


def _again(groups: Sequence[Group], answer: Answer) -> Answer:
    """The answer with its cost counted from where the groups are really."""
    given: dict[str, Given] = {}
    for g in groups:
        if g.name in answer.given:
            items = {i.name: i for i in g.items}
            site = answer.sites[g.name]
            given[g.name] = tuple(
                (i, replace(t, moved=int(i.now_site is not None and not _stays(i, t, site))))
                for old, t in answer.given[g.name]
                for i in [items[old.name]]
            )
    return replace(answer, given=given, cost=_cost(groups, given))


def _stays(item: Item, taken: Taken, site: int) -> bool:
    return item.now_site == site and (item.shared or item.now == taken.pus)


def _cost(groups: Sequence[Group], given: Mapping[str, Given]) -> Cost:
    out = sum(len(g.items) for g in groups if g.name not in given)
    evicted = sum(g.placed_now for g in groups if g.name not in given)
    costs = [cost_of(x) for x in given.values()]
    return (
        out,
        evicted + sum(c[0] for c in costs),
        sum(c[1] for c in costs),
        sum(c[2] for c in costs),
    )


def _small(machine: Machine, groups: Sequence[Group], room: Mapping[Resource, int]) -> Answer:
    search = _greedy(machine, groups, room)
    answer = search.answer()
    if answer.cost <= search.bound():
        answer = replace(answer, proven=True)
    else:
        exact = _exact(machine, groups, room)
        if exact is not None and (exact.proven or exact.cost < answer.cost):
            answer = exact
            search = _Search(machine, groups, room)
            for g in groups:
                if g.name in answer.sites:
                    search.put(g, answer.sites[g.name], answer.given[g.name])
    search.apart()
    return replace(answer, given=dict(search.given))


def _greedy(machine: Machine, groups: Sequence[Group], room: Mapping[Resource, int]) -> _Search:
    """Those who have a place first, then the hardest first."""
    search = _Search(machine, groups, room)
    for g in sorted(search.hard, key=lambda g: not g.placed_now):
        search.place(g)
    return search


def _large(machine: Machine, groups: Sequence[Group], room: Mapping[Resource, int]) -> Answer:
    search = _greedy(machine, groups, room)
    search.settle()
    answer = search.answer()
    if answer.out and any(g.placed_now for g in groups):
        # Keeping everybody where they are leaves someone out: see whether moving helps.
        bare = [
            replace(g, items=tuple(replace(i, now=0, now_site=None) for i in g.items))
            for g in groups
        ]
        other = _greedy(machine, bare, room)
        other.settle()
        moved = _again(groups, other.answer())
        if moved.cost[0] < answer.cost[0]:
            return moved
    return answer


def _is_small(machine: Machine, groups: Sequence[Group]) -> bool:
    """Beyond this the budget would be spent in vain."""
    mems = [s.mems for s in machine.sites]
    return (
        len(groups) <= SMALL_GROUPS
        and sum(len(g.items) for g in groups) <= SMALL_GROUPS
        and len(machine.topology.online) <= SMALL_PUS_EXACT
        and len(set(mems)) == len(mems)
    )


def _difficulty(group: Group) -> tuple[bool, bool, bool, int, str]:
    """Fixed to a node first, exclusive before shared, cores before PUs, large before small."""
    return (
        len(group.sites) > 1,
        all(i.shared for i in group.items),
        all(i.workload.smt == "any" for i in group.items),
        -sum(i.workload.cpus for i in group.items if not i.shared),
        group.name,
    )


class _Search:
    """What is placed so far, and the room that is left."""

    def __init__(
        self, machine: Machine, groups: Sequence[Group], room: Mapping[Resource, int]
    ) -> None:
        self.machine, self.groups = machine, groups
        self.by_name = {g.name: g for g in groups}
        self.hard = sorted(groups, key=_difficulty)
        self.site_masks = [_mask(ps) for ps in machine.pieces]
        self.free = machine.givable
        self.left = dict(room)
        self.sites: dict[str, int] = {}
        self.given: dict[str, Given] = {}
        self.pooled: list[list[Item]] = [[] for _ in machine.sites]
        self.promised = [0] * len(machine.sites)
        self.used = [0] * len(machine.sites)

    def answer(self) -> Answer:
        """As it stands."""
        return Answer(
            sites=dict(self.sites),
            given=dict(self.given),
            out=frozenset(g.name for g in self.groups if g.name not in self.sites),
            cost=_cost(self.groups, self.given),
            proven=False,
        )

    def bound(self) -> Cost:
        """No answer costs less."""
        moved = splits = cores = 0
        for g in self.groups:
            for item in g.items:
                each = [least(self.machine, s, item) for s in g.sites]
                moved += min((c[0] for c in each), default=0)
                splits += min((c[1] for c in each), default=0)
                cores += min((c[2] for c in each), default=0)
        return (0, moved, splits, cores)

    def fits(self, group: Group, site: int) -> bool:
        """Whether what it takes of memory is there."""
        return all(self.left.get(k, n) >= n for k, n in group.demand[site].items())

    def try_at(self, group: Group, site: int) -> tuple[Given, int] | None:
        """What its workloads would get there, and what is free then."""
        if not self.fits(group, site):
            return None
        return greedy(self.machine, site, group.items, self.free, self.pooled[site])

    def place(self, group: Group) -> bool:
        """At the site where it costs least; at equal cost where most is left."""
        best: tuple[tuple[int, ...], int, Given] | None = None
        for rank, site in enumerate(group.sites):
            found = self.try_at(group, site)
            if found is None:
                continue
            if len(group.sites) == 1:
                best = ((), site, found[0])
                break
            pooled = [*self.pooled[site], *(i for i in group.items if i.shared)]
            joined = int(bool(pooled) and pool_at(self.machine, site, pooled, found[1])[1])
            memory = self.promised[site] if group.memory_bytes else 0
            used = self.used[site] - self._size(site, group)
            key = (*cost_of(found[0]), joined, memory, used, rank)
            if best is None or key < best[0]:
                best = (key, site, found[0])
        if best is None:
            return False
        self.put(group, best[1], best[2])
        return True

    def _size(self, site: int, group: Group) -> int:
        """PUs of a site that could go to such workloads."""
        item = next((i for i in group.items if not i.shared), group.items[0])
        groups = self.machine.usable(site, item.isolated, item.allowed)
        return sum(g[1].bit_count() for g in groups)

    def put(self, group: Group, site: int, given: Given) -> None:
        """Takes the room."""
        self.sites[group.name] = site
        self.given[group.name] = given
        for item, taken in given:
            self.free &= ~taken.gone
            self.used[site] += _uses(item, taken)
            if item.shared:
                self.pooled[site].append(item)
        for key, amount in group.demand[site].items():
            if key in self.left:
                self.left[key] -= amount
        self.promised[site] += group.memory_bytes

    def take_away(self, group: Group) -> tuple[int, Given]:
        """Gives the room back."""
        site, given = self.sites.pop(group.name), self.given.pop(group.name)
        for item, taken in given:
            self.free |= taken.gone
            self.used[site] -= _uses(item, taken)
            if item.shared:
                self.pooled[site].remove(item)
        for key, amount in group.demand[site].items():
            if key in self.left:
                self.left[key] += amount
        self.promised[site] -= group.memory_bytes
        return site, given

    def settle(self) -> None:
        """Room for those left out, and L3 groups of their own, until neither changes anything."""
        self.make_room()
        while self.apart() and self.make_room():
            pass

    def make_room(self) -> bool:
        """For each that is left out: one other goes elsewhere, if both find a place then."""
        some = False
        again = True
        while again:
            again = False
            for g in self.hard:
                if g.name not in self.sites and (self.place(g) or self._evict_for(g)):
                    some = again = True
        return some

    def _evict_for(self, group: Group) -> bool:
        for other in self._could_go(group)[:MAX_EVICTED]:
            site, given = self.take_away(other)
            if self.place(group):
                if self.place(other):
                    return True
                self.take_away(group)
            self.put(other, site, given)
        return False

    def _could_go(self, group: Group) -> list[Group]:
        """Who may give way, small ones first: as far as counting PUs tells, both would fit."""
        need = _need(group)
        found = []
        for name, site in self.sites.items():
            other = self.by_name[name]
            if site not in group.sites or all(i.fixed for i in other.items):
                continue
            gone = sum(t.gone.bit_count() for _, t in self.given[name])
            here = self._loose(site) + gone - need
            if here < 0:
                continue
            theirs = _need(other)
            if any((here if s == site else self._loose(s)) >= theirs for s in other.sites):
                found.append(other)
        return sorted(found, key=lambda g: (sum(i.workload.cpus for i in g.items), g.name))

    def _loose(self, site: int) -> int:
        """PUs of any kind that are free there."""
        return (self.free & self.site_masks[site]).bit_count()

    # L3 groups of one's own.

    def apart(self) -> bool:
        """Newly placed workloads go, at the same cost, where fewest strangers share their L3."""
        changed = False
        for g in self.hard:
            if g.name in self.sites:
                changed |= self._apart(g)
        return changed

    def _apart(self, group: Group) -> bool:
        site = self.sites[group.name]
        given = dict(self.given[group.name])
        changed = False
        for item in [i for i, _ in self.given[group.name]]:
            was = given[item]
            if item.shared or item.fixed or was.splits or _stays(item, was, site):
                continue
            if len(self.machine.usable(site, item.isolated, item.allowed)) < 2:
                continue
            here = self.free | was.gone
            own = _gone(given) & ~was.gone
            strangers = self.machine.givable & ~here & ~own
            best, crowd = was, self._crowd(site, was, strangers, own)
            for other in chosen(self.machine, site, item, here):
                there = self._crowd(site, other, strangers, own)
                if (other.splits, other.cores) > (0, was.cores) or there >= crowd:
                    continue
                if pool_holds(self.machine, site, self.pooled[site], here & ~other.gone):
                    best, crowd = replace(other, moved=was.moved), there
            if best is not was:
                given[item] = best
                self.free = here & ~best.gone
                changed = True
        if changed:
            self.given[group.name] = tuple(given.items())
        return changed

    def _crowd(self, site: int, taken: Taken, strangers: int, own: int) -> tuple[int, int]:
        """(PUs of strangers in the L3 group of a choice, minus those of its own unit)."""
        around = next(g[1] for g in self.machine.usable(site, None, -1) if g[1] & taken.pus)
        return ((around & strangers).bit_count(), -(around & own).bit_count())


def _mask(pieces: Sequence[Piece]) -> int:
    mask = 0
    for p in pieces:
        mask |= p.mask
    return mask


def _need(group: Group) -> int:
    """PUs of its own that a group needs at least."""
    return sum(i.workload.cpus for i in group.items if not i.shared)


def _gone(given: Mapping[Item, Taken]) -> int:
    mask = 0
    for taken in given.values():
        mask |= taken.gone
    return mask


def _uses(item: Item, taken: Taken) -> int:
    """PUs that a workload keeps busy: those of a pool count too."""
    return item.workload.cpus if item.shared else taken.gone.bit_count()


# Every way of dealing the groups to the sites.

SiteCost = tuple[int, int, int, int, int]
"""(moved, splits, cores, whether a pool takes in housekeeping, memory and PUs squared)."""


def _exact(
    machine: Machine, groups: Sequence[Group], room: Mapping[Resource, int]
) -> Answer | None:
    """None: not even one answer within the budget."""
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
        cost=_cost(groups, given),
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
                gone += _uses(item, taken)
                free &= ~taken.gone
            joined = int(bool(pooled) and pool_at(machine, site, pooled, free)[1])
            spread = (sum(g.memory_bytes for g in mine) >> 20) ** 2 + gone**2
            packed[subset] = ((*found.cost, joined, spread), found.given)
            sets.add(subset)
    return packed, sure and budget.left >= 0
