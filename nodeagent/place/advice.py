"""The cheapest change that would make a refused workload fit. Pure.

A change is a line of the workload file: `cpus = 6`, or `index0 had smt = "any"` for another
workload. Each is tried before it is named: with it, and nothing else changed, the whole decision is
made again, and it counts when the workload has its place and nobody else lost one. They are thought
of in this order, which is what makes one cheaper than another: a rule dropped (l3, smt, isolated),
an amount lowered (memory, hugepages, then CPUs, by as little as does), a share in the pool,
the isolated CPUs, another workload's CPUs, another node, memory and CPUs both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nodeagent.model.placement import Role, Sharing, Workload
from nodeagent.place.answer import Group, Resource
from nodeagent.place.decide import Case, Decision, decide, gather
from nodeagent.place.engines import ENGINES, usual_roles
from nodeagent.place.memory import page, short_of
from nodeagent.place.pack import greedy
from nodeagent.place.refusal import left_after
from nodeagent.place.room import Item, lowest

MAX_TRIALS = 12
"""Decisions made again for one plan."""
NONE_HELPS = "more than one thing changed: of the single changes that were tried none makes it fit"
NOT_LOOKED_FOR = (
    "a change were found: none was looked for, after those for the workloads that are refused "
    "before it"
)


_TIGHT = ""
"""Between figure and unit, as the workload file has it."""

Maker = Callable[[Workload], Iterator[tuple[str, Workload]]]
"""(the line, the workload with it) of each change of one kind."""


@dataclass(frozen=True, slots=True)
class Change:
    """What would be written, and the workloads with it."""

    text: str
    workloads: tuple[Workload, ...]


class Adviser:
    """Thinks of changes and tries them, MAX_TRIALS in all."""

    def __init__(self, case: Case, workloads: Sequence[Workload], decision: Decision) -> None:
        self.case, self.workloads, self.decision = case, tuple(workloads), decision
        self.free, self.left = left_after(case, decision)
        self.trials = MAX_TRIALS
        self.pooled: list[list[Item]] = [[] for _ in case.machine.sites]
        for name, site in decision.answer.sites.items():
            self.pooled[site] += [i for i, _ in decision.answer.given[name] if i.shared]

    def change_for(self, workload: Workload) -> str:
        """The cheapest change for it, in the words of the file, or why none is named."""
        for change in self._changes(workload):
            if self.trials <= 0:
                return NOT_LOOKED_FOR
            if self._helps(change, workload):
                return change.text
        return NONE_HELPS

    def _helps(self, change: Change, workload: Workload) -> bool:
        self.trials -= 1
        after = decide(self.case, change.workloads)
        return workload.name not in after.left_out and after.left_out <= self.decision.left_out

    # What might help, as far as the room that is left tells without deciding again.

    def _changes(self, workload: Workload) -> Iterator[Change]:
        unit = [
            w
            for w in self.workloads
            if w is workload or (workload.unit is not None and w.unit == workload.unit)
        ]
        unit.sort(key=lambda w: w is not workload)
        for make in (self._rules, self._memory, self._pages, self._cpus, _pool, _isolate):
            yield from self._of_one(workload, unit, make)
            if len(unit) > 1:
                yield from self._of_all(workload, unit, make)
        yield from self._others(workload)
        yield from self._of_one(workload, unit, self._nodes)
        for w in unit:
            for text, new in self._memory(w):
                for more, newer in self._cpus(new):
                    if self._might(workload, (newer,)):
                        yield self._change(workload, w, f"{text} and {more}", newer)

    def _rules(self, w: Workload) -> Iterator[tuple[str, Workload]]:
        if w.l3 == "one":
            yield 'l3 = "any"', replace(w, l3="any")
        # In a partition, cores are whole whatever the file says.
        if w.smt != "any" and w.name not in self.case.facts.cgroups.isolating:
            yield 'smt = "any"', replace(w, smt="any")
        if w.isolated:
            yield "isolated = false", replace(w, isolated=False)

    def _of_one(
        self, workload: Workload, unit: Sequence[Workload], make: Maker
    ) -> Iterator[Change]:
        for w in unit:
            for text, new in make(w):
                if self._might(workload, (new,)):
                    yield self._change(workload, w, text, new)

    def _of_all(
        self, workload: Workload, unit: Sequence[Workload], make: Maker
    ) -> Iterator[Change]:
        """The same line in each workload of a unit that has no such line."""
        made: dict[str, list[Workload]] = {}
        for w in unit:
            for text, new in make(w):
                made.setdefault(text, []).append(new)
        for text, news in made.items():
            if len(news) > 1 and self._might(workload, news):
                names = [n.name for n in news]
                said = f"{text} for {', '.join(names[:-1])} and {names[-1]}"
                yield Change(said, self._with(*news))

    def _change(self, workload: Workload, w: Workload, text: str, new: Workload) -> Change:
        said = text if w is workload else f"{w.name} had {text}"
        return Change(said, self._with(new))

    def _with(self, *news: Workload) -> tuple[Workload, ...]:
        by_name = {n.name: n for n in news}
        return tuple(by_name.get(w.name, w) for w in self.workloads)

    def _might(self, workload: Workload, news: Sequence[Workload]) -> bool:
        """Whether its group would find room in what is left."""
        group = self._group(workload, self._with(*news))
        return group is not None and self._fits(group, self.free, self.left)

    def _group(self, workload: Workload, workloads: Sequence[Workload]) -> Group | None:
        mine = [
            w
            for w in workloads
            if w.name == workload.name or (workload.unit is not None and w.unit == workload.unit)
        ]
        return next(iter(gather(self.case, mine)[2]), None)

    def _fits(self, group: Group, free: int, left: Mapping[Resource, int]) -> bool:
        return any(
            short_of(group.demand[s], left) is None
            and greedy(self.case.machine, s, group.items, free, self.pooled[s]) is not None
            for s in group.sites
        )

    def _sites(self, w: Workload) -> tuple[int, ...]:
        near = self.case.near(w.near)
        sites = getattr(near, "sites", None)
        return sites if sites is not None else tuple(range(len(self.case.machine.sites)))

    def _memory(self, w: Workload) -> Iterator[tuple[str, Workload]]:
        if not w.memory_bytes:
            return
        group = self._group(w, self.workloads)
        most = 0
        for s in self._sites(w):
            mems = self.case.machine.sites[s].mems
            demand = group.demand.get(s, {}) if group is not None else {}
            rooms = [
                n - demand.get(k, w.memory_bytes) + w.memory_bytes
                for k, n in self.left.items()
                if k[1] in mems and not k[2]
            ]
            most = max(most, min(rooms, default=0))
        mib = min(most, w.memory_bytes - 1) >> 20
        if mib > 0:
            line = f'"{mib}MiB"'
            if w.memory_move != "launch":
                line = f'{{ size = {line}, move = "{w.memory_move}" }}'
            yield f"memory = {line}", replace(w, memory_bytes=mib << 20)

    def _pages(self, w: Workload) -> Iterator[tuple[str, Workload]]:
        for at, (size, amount) in enumerate(w.hugepages):
            most = 0
            for s in self._sites(w):
                mems = self.case.machine.sites[s].mems
                rooms = [n for k, n in self.left.items() if k[1] in mems and k[2] == size]
                most = max(most, min(rooms, default=0))
            if most >= amount:
                continue
            fewer = most // size * size
            rest = list(w.hugepages)
            rest[at : at + 1] = [(size, fewer)] if fewer else []
            table = ", ".join(f'"{page(s, _TIGHT)}" = "{page(n, _TIGHT)}"' for s, n in rest)
            yield f"hugepages = {{ {table} }}", replace(w, hugepages=tuple(rest))

    def _cpus(self, w: Workload) -> Iterator[tuple[str, Workload]]:
        """As many as there is room for, roles kept."""
        if w.cpu_list is not None:
            free = replace(w, cpu_list=None)
            yield f"cpus = {w.cpus} stood in place of cpu_list", free
            return
        low, high, found = _fewest(w), w.cpus - 1, 0
        while low <= high:
            middle = (low + high + 1) // 2
            if self._might(w, (_with_cpus(w, middle),)):
                found, low = middle, middle + 1
            else:
                high = middle - 1
        if found:
            yield f"cpus = {found}", _with_cpus(w, found)

    def _nodes(self, w: Workload) -> Iterator[tuple[str, Workload]]:
        if w.near is None or w.queues is not None:
            return
        for site in self.case.machine.sites:
            if site.node is not None:
                yield f'near = "node:{site.node}"', replace(w, near=f"node:{site.node}")

    def _others(self, workload: Workload) -> Iterator[Change]:
        """Another exclusive workload of its sites with fewer CPUs, the largest first."""
        group = self._group(workload, self.workloads)
        if group is None:
            return
        givers = [
            (item, taken)
            for name, site in self.decision.answer.sites.items()
            if site in group.sites
            for item, taken in self.decision.answer.given[name]
            if not item.shared and not item.fixed
        ]
        for item, taken in sorted(givers, key=lambda g: (-g[0].workload.cpus, g[0].name)):
            w = item.workload
            if not self._fits(group, self.free | taken.gone, self.left):
                continue
            for cpus in range(w.cpus - 1, _fewest(w) - 1, -1):
                freed = lowest(taken.gone, w.cpus - cpus)
                if self._fits(group, self.free | freed, self.left):
                    fewer = self._with(_with_cpus(w, cpus))
                    yield Change(f"{w.name} had cpus = {cpus}", fewer)
                    break


def _engines_roles(w: Workload, cpus: int) -> tuple[Role, ...] | None:
    """Roles that its engine gives it at that number of CPUs; None: it has its own, or no engine."""
    engine = next((e for e in ENGINES if e.name == w.engine), None)
    if engine is None or w.roles != usual_roles(engine, w.cpus):
        return None
    return usual_roles(engine, cpus)


def _fewest(w: Workload) -> int:
    """CPUs that it needs for its roles at least."""
    if _engines_roles(w, w.cpus) is not None:
        return 1
    return max(1, sum(r.cpus for r in w.roles))


def _with_cpus(w: Workload, cpus: int) -> Workload:
    """As the file would have it with that number."""
    roles = _engines_roles(w, cpus)
    return replace(w, cpus=cpus, roles=w.roles if roles is None else roles)


def _pool(w: Workload) -> Iterator[tuple[str, Workload]]:
    """Only of one that a pool can hold as it is written."""
    plain = w.smt == "any" and w.l3 == "any" and not w.isolated
    if w.sharing is Sharing.EXCLUSIVE and plain and w.cpu_list is None and not w.roles:
        yield 'sharing = "shared"', replace(w, sharing=Sharing.SHARED)


def _isolate(w: Workload) -> Iterator[tuple[str, Workload]]:
    if w.sharing is Sharing.EXCLUSIVE and not w.isolated and w.cpu_list is None:
        yield "isolated = true", replace(w, isolated=True)
