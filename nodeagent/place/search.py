"""Which group goes to which site, and who gets which PUs: exact where it is small.

The cost of an answer, in order: workloads left out, workloads moved (those that had a place and
have none are moved too), L3 groups split, cores touched. The first answer is greedy, hardest first,
those who have a place before newcomers. Up to SMALL_GROUPS and SMALL_PUS_EXACT every way of dealing
the groups to the sites is then compared (exact.py), each site packed as cheaply as it can be
(pack.py), until exact.BUDGET choices are spent. On larger machines who is left out gets the room of
one other that finds another place. At equal cost, pools leave housekeeping alone, memory and PUs
are spread over the nodes, and workloads that are not of one unit keep out of each other's L3 group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nodeagent.place.answer import Answer, Cost, Group, Resource, cost_of_all, stays, uses
from nodeagent.place.exact import exact
from nodeagent.place.machine import Machine, Piece
from nodeagent.place.pack import Given, cost_of, greedy, least
from nodeagent.place.room import Item, Taken, chosen, pool_at, pool_holds

SMALL_GROUPS = 8
SMALL_PUS_EXACT = 64
MAX_EVICTED = 32
"""Others that are asked to go elsewhere for one that is left out."""
ROUNDS = 3


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
                (i, replace(t, moved=int(i.now_site is not None and not stays(i, t, site))))
                for old, t in answer.given[g.name]
                for i in [items[old.name]]
            )
    return replace(answer, given=given, cost=cost_of_all(groups, given))


def _small(machine: Machine, groups: Sequence[Group], room: Mapping[Resource, int]) -> Answer:
    search = _greedy(machine, groups, room)
    answer = search.answer()
    if answer.cost <= search.bound():
        answer = replace(answer, proven=True)
    else:
        better = exact(machine, groups, room)
        if better is not None and (better.proven or better.cost < answer.cost):
            answer = better
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
            cost=cost_of_all(self.groups, self.given),
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
            self.used[site] += uses(item, taken)
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
            self.used[site] -= uses(item, taken)
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
            if item.shared or item.fixed or was.splits or stays(item, was, site):
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
