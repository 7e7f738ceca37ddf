"""Who gets which PUs: depth-first over workloads, best first, exact on small machines.

The cost of an assignment, in order: workloads left out, workloads moved, L3 groups split, cores
touched. The first descent is greedy (best fit); on small inputs the search then goes on until the
cost cannot be beaten or SEARCH_STEPS are spent, so its answer is never worse than the greedy one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Sharing, Workload
from nodeagent.place.machine import Core, Machine

SEARCH_STEPS = 6_000
"""Bound on placements tried beyond the greedy answer."""
SMALL_WORKLOADS = 8
SMALL_MACHINE_PUS = 64

Given = dict[str, tuple[int, ...]]
"""Workload -> the PUs it gets (those of a shared one are the pool's, and not here)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Workloads that stand or fall together: a unit, or one alone. `sites` in order of choice."""

    name: str
    members: tuple[Workload, ...]
    sites: tuple[int, ...]
    current: dict[str, tuple[int, ...]]
    """Where members are now, when that still satisfies every hard constraint."""
    current_site: int | None


@dataclass(slots=True)
class Room:
    """What is still free. One mutable value, changed and changed back by the search."""

    cores: list[tuple[Core, ...]]
    pool_need: list[int]
    """PUs that the shared workloads of a site need, by site."""
    housekeeping: list[int]
    memory: list[int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """An answer: PUs of each exclusive workload, the site of each group, those left out."""

    given: Given = field(default_factory=dict)
    sites: dict[str, int] = field(default_factory=dict)
    out: frozenset[str] = frozenset()
    cost: tuple[int, int, int, int] = (0, 0, 0, 0)


def room_of(machine: Machine) -> Room:
    """The empty machine."""
    return Room(
        cores=[b.cores for b in machine.bins],
        pool_need=[0] * len(machine.sites),
        housekeeping=[len(s.cpus & machine.poolable) for s in machine.sites],
        memory=[s.memory_bytes for s in machine.sites],
    )


def assign(machine: Machine, groups: Sequence[Group]) -> Assignment:
    """The best assignment found; deterministic. Groups are tried in the order given."""
    return _Search(machine, groups).run()


@dataclass(frozen=True, slots=True)
class _Choice:
    pus: tuple[int, ...]
    """What the workload gets."""
    changes: tuple[tuple[int, tuple[Core, ...]], ...]
    """(bin, its cores afterwards)."""
    splits: int
    cores: int
    moved: int = 0


_Undo = list[tuple[int, tuple[Core, ...]]]
"""(bin, its cores before); (-1 - PUs needed before, ()) for the site's pool."""


def _by_size(members: Sequence[Workload]) -> list[Workload]:
    """Fixed PUs, then whole cores, then large before small, then by name; shared ones last."""
    return sorted(
        members,
        key=lambda w: (
            w.sharing is Sharing.SHARED,
            w.cpu_list is None,
            w.smt == "any",
            -w.cpus,
            w.name,
        ),
    )


class _Search:
    def __init__(self, machine: Machine, groups: Sequence[Group]) -> None:
        self.machine = machine
        self.groups = list(groups)
        self.room = room_of(machine)
        self.steps = 0
        self.best: Assignment | None = None
        # Beyond this the recursion would be deep and the steps spent in vain.
        self.exact = (
            sum(len(g.members) for g in self.groups) <= SMALL_WORKLOADS
            and len(machine.topology.online) <= SMALL_MACHINE_PUS
        )
        self.bins_at: dict[tuple[int, bool], list[int]] = {}
        for i, b in enumerate(machine.bins):
            self.bins_at.setdefault((b.site, b.isolated), []).append(i)
        self.core_size = {cpu: len(core) for core in machine.topology.cores for cpu in core.ids}
        self.isolates = any(b.isolated for b in machine.bins)
        self.given: Given = {}
        self.sites: dict[str, int] = {}
        self.out: set[str] = set()
        self.cost = [0, 0, 0, 0]

    def run(self) -> Assignment:
        self._greedy()
        assert self.best is not None
        if self.exact and any(self.best.cost[:3]):
            self.room = room_of(self.machine)
            self._reset()
            self._group(0)
        return self.best

    def _reset(self) -> None:
        self.given, self.sites, self.out, self.cost = {}, {}, set(), [0, 0, 0, 0]

    def _keep_best(self) -> None:
        self.best = Assignment(
            given=dict(self.given),
            sites=dict(self.sites),
            out=frozenset(self.out),
            cost=(self.cost[0], self.cost[1], self.cost[2], self.cost[3]),
        )

    def _greedy(self) -> None:
        self._reset()
        for group in self.groups:
            site = next((s for s in group.sites if self._whole_group(group, s)), None)
            if site is None:
                self.out.update(w.name for w in group.members)
                self.cost[0] += len(group.members)
            else:
                self.sites[group.name] = site
        self._keep_best()

    def _whole_group(self, group: Group, site: int) -> bool:
        """Every member by its best choice, or nothing."""
        done: list[tuple[_Undo, Workload, _Choice]] = []
        for member in _by_size(group.members):
            choice = next(iter(self.options(member, group, site)), None)
            if choice is None:
                for undo, placed, _ in reversed(done):
                    self.give_back(undo, site, placed)
                    self.given.pop(placed.name)
                return False
            done.append((self.take(choice, site, member), member, choice))
            self.given[member.name] = choice.pus
        for _, _, choice in done:
            self._count(choice, 1)
        return True

    def _count(self, choice: _Choice, sign: int) -> None:
        self.cost[1] += sign * choice.moved
        self.cost[2] += sign * choice.splits
        self.cost[3] += sign * choice.cores

    # The exact search: one group after the other, one member after the other.

    def _group(self, index: int) -> bool:
        """True: stop, the answer cannot be beaten or the steps are spent."""
        assert self.best is not None
        if tuple(self.cost) >= self.best.cost:
            return False
        if index == len(self.groups):
            self._keep_best()
            return not any(self.cost[:3])
        group = self.groups[index]
        members = _by_size(group.members)
        for site in group.sites:
            self.sites[group.name] = site
            stop = self._member(index, members, 0, site)
            del self.sites[group.name]
            if stop:
                return True
        self.out.update(w.name for w in members)
        self.cost[0] += len(members)
        stop = self._group(index + 1)
        self.cost[0] -= len(members)
        self.out.difference_update(w.name for w in members)
        return stop

    def _member(self, index: int, members: list[Workload], at: int, site: int) -> bool:
        if at == len(members):
            return self._group(index + 1)
        member = members[at]
        for choice in self.options(member, self.groups[index], site):
            self.steps += 1
            if self.steps > SEARCH_STEPS:
                return True
            undo = self.take(choice, site, member)
            self.given[member.name] = choice.pus
            self._count(choice, 1)
            stop = self._member(index, members, at + 1, site)
            self._count(choice, -1)
            del self.given[member.name]
            self.give_back(undo, site, member)
            if stop:
                return True
        return False

    def take(self, choice: _Choice, site: int, member: Workload) -> _Undo:
        """Changes the room; `give_back` with the answer changes it back."""
        undo: _Undo = [(i, self.room.cores[i]) for i, _ in choice.changes]
        for i, cores in choice.changes:
            self.room.cores[i] = cores
        left = self.room.memory[site]
        if left is not None:
            self.room.memory[site] = left - member.memory_bytes
        if member.sharing is Sharing.SHARED:
            undo.append((-1 - self.room.pool_need[site], ()))
            self.room.pool_need[site] = max(self.room.pool_need[site], member.cpus)
        return undo

    def give_back(self, undo: _Undo, site: int, member: Workload) -> None:
        """The room as before that `take`."""
        left = self.room.memory[site]
        if left is not None:
            self.room.memory[site] = left + member.memory_bytes
        for i, cores in undo:
            if i < 0:
                self.room.pool_need[site] = -1 - i
            else:
                self.room.cores[i] = cores

    # What a workload could get on a site.

    def pool_pus(self, site: int) -> int:
        """PUs that a shared pool of the site could have now, housekeeping included."""
        return self.room.housekeeping[site] + sum(
            len(core) for i in self.bins_at.get((site, False), ()) for core in self.room.cores[i]
        )

    def options(self, member: Workload, group: Group, site: int) -> Iterator[_Choice]:
        """Choices that satisfy every hard constraint, best first."""
        left = self.room.memory[site]
        if left is not None and member.memory_bytes > left:
            return
        now = group.current.get(member.name)
        has_now = member.name in group.current
        if member.sharing is Sharing.SHARED:
            if self.pool_pus(site) >= max(member.cpus, self.room.pool_need[site]):
                moved = int(group.current_site is not None and group.current_site != site)
                yield _Choice((), (), 0, 0, moved if has_now else 0)
            return
        first: _Choice | None = None
        fixed = tuple(member.cpu_list) if member.cpu_list is not None else now
        if fixed is not None:
            first = self._exactly(member, site, fixed)
            if first is not None and self._leaves_pool(first, site):
                yield first
            else:
                first = None
            if member.cpu_list is not None:
                return
        for choice in self._chosen(member, site):
            if first is not None and choice.pus == first.pus:
                continue
            if self._leaves_pool(choice, site):
                if has_now:
                    choice = _Choice(choice.pus, choice.changes, choice.splits, choice.cores, 1)
                yield choice

    def _leaves_pool(self, choice: _Choice, site: int) -> bool:
        need = self.room.pool_need[site]
        if need == 0:
            return True
        lost = sum(
            sum(map(len, self.room.cores[i])) - sum(map(len, cores))
            for i, cores in choice.changes
            if not self.machine.bins[i].isolated
        )
        return self.pool_pus(site) - lost >= need

    def wants_isolated(self, member: Workload) -> bool:
        """Isolated CPUs where wanted and where this machine isolates any."""
        return member.isolated and self.isolates

    def _exactly(self, member: Workload, site: int, pus: tuple[int, ...]) -> _Choice | None:
        """These PUs, when free; with one-per-core the siblings go too."""
        wanted = set(pus)
        changes: list[tuple[int, tuple[Core, ...]]] = []
        splits = touched = 0
        any_class = member.cpu_list is not None
        for isolated in (False, True):
            if not any_class and isolated != self.wants_isolated(member):
                continue
            for i in self.bins_at.get((site, isolated), ()):
                kept: list[Core] = []
                hit = 0
                for core in self.room.cores[i]:
                    mine = wanted.intersection(core)
                    if not mine:
                        kept.append(core)
                        continue
                    hit += 1
                    wanted -= mine
                    rest = tuple(cpu for cpu in core if cpu not in mine)
                    full = len(core) == self.core_size[core[0]]
                    if member.smt != "any" and not full:
                        return None
                    if member.smt == "whole-core" and rest:
                        return None
                    if rest and member.smt == "any":
                        kept.append(rest)
                if hit:
                    changes.append((i, tuple(kept)))
                    splits += 1
                    touched += hit
        if wanted:
            return None
        return _Choice(pus, tuple(changes), splits - 1, touched)

    def _chosen(self, member: Workload, site: int) -> Iterator[_Choice]:
        where = self.bins_at.get((site, self.wants_isolated(member)), [])
        capacity = [(self._capacity(member, i), i) for i in where]
        need = member.cpus
        single = sorted((c, i) for c, i in capacity if c >= need)
        seen: set[tuple[tuple[int, int], ...]] = set()
        for _, i in single:
            shape = tuple((len(core), self.core_size[core[0]]) for core in self.room.cores[i])
            if self.exact:
                # Two L3 groups of one shape are the same choice: the lower one stands for both.
                if shape in seen:
                    continue
                seen.add(shape)
            choice = self._from(member, (i,), need)
            if choice is not None:
                yield choice
        if single:
            return
        large_first = sorted(capacity, key=lambda c: (-c[0], c[1]))
        sums = itertools.accumulate(c for c, _ in large_first)
        count = next((n for n, total in enumerate(sums, 1) if total >= need), None)
        if count is None:
            return
        combos: Iterator[tuple[tuple[int, int], ...]] = iter([tuple(large_first[:count])])
        if self.exact:
            combos = itertools.combinations(large_first, count)
        for combo in itertools.islice(combos, 64):
            if sum(c for c, _ in combo) >= need:
                choice = self._from(member, tuple(i for _, i in combo), need)
                if choice is not None:
                    yield choice

    def _capacity(self, member: Workload, i: int) -> int:
        """PUs (one-per-core: cores) that a bin could give this workload."""
        cores = self.room.cores[i]
        if member.smt == "any":
            return sum(map(len, cores))
        full = [len(c) for c in cores if len(c) == self.core_size[c[0]]]
        return sum(full) if member.smt == "whole-core" else len(full)

    def _from(self, member: Workload, where: tuple[int, ...], need: int) -> _Choice | None:
        got: list[int] = []
        changes: list[tuple[int, tuple[Core, ...]]] = []
        touched = 0
        for i in where:
            left = need - len(got)
            if left <= 0:
                break
            take = self._pick(member, i, left)
            cores: list[Core] = []
            for core in self.room.cores[i]:
                mine = take.get(core)
                if mine is None:
                    cores.append(core)
                    continue
                touched += 1
                got.extend(mine)
                if member.smt == "any" and len(mine) < len(core):
                    cores.append(tuple(cpu for cpu in core if cpu not in mine))
            changes.append((i, tuple(cores)))
        if len(got) < need:
            return None
        return _Choice(tuple(sorted(got)), tuple(changes), len(changes) - 1, touched)

    def _pick(self, member: Workload, i: int, need: int) -> dict[Core, Core]:
        """At most `need` PUs of one bin (whole cores round up): core -> its PUs taken."""
        cores = self.room.cores[i]
        taken: dict[Core, Core] = {}
        if member.smt != "any":
            for core in cores:
                if need <= 0:
                    break
                if len(core) == self.core_size[core[0]]:
                    taken[core] = core if member.smt == "whole-core" else core[:1]
                    need -= len(taken[core])
            return taken
        tainted = self.machine.bins[i].tainted
        # Whole cores first, beside no housekeeping; the rest from the fullest use of a touched one.
        for core in sorted(cores, key=lambda c: (c[0] in tainted, -len(c), c)):
            if len(core) == self.core_size[core[0]] and len(core) <= need:
                taken[core] = core
                need -= len(core)
        while need > 0:
            rest = [c for c in cores if c not in taken]
            if not rest:
                break
            core = min(
                rest,
                key=lambda c: (
                    c[0] in tainted,
                    len(c) < need,
                    len(c) if len(c) >= need else -len(c),
                    c,
                ),
            )
            taken[core] = core[:need]
            need -= len(taken[core])
        return taken


def pool_of(machine: Machine, room: Room, site: int) -> tuple[CpuSet, bool]:
    """The PUs of a site's shared pool, and whether housekeeping had to be joined to it."""
    free = CpuSet.of(
        cpu
        for i, b in enumerate(machine.bins)
        if b.site == site and not b.isolated
        for core in room.cores[i]
        for cpu in core
    )
    if free and len(free) >= room.pool_need[site]:
        return free, False
    return free | (machine.sites[site].cpus & machine.poolable), True


def replay(machine: Machine, groups: Sequence[Group], answer: Assignment) -> Room:
    """The room that an answer leaves."""
    search = _Search(machine, ())
    for group in groups:
        site = answer.sites.get(group.name)
        if site is None:
            continue
        for member in group.members:
            if member.sharing is Sharing.SHARED:
                choice: _Choice | None = _Choice((), (), 0, 0)
            else:
                choice = search._exactly(member, site, answer.given[member.name])
            assert choice is not None
            search.take(choice, site, member)
    return search.room
