"""What a workload could get on one site, given what is still free: the choices, best first. Pure.

Room is a plain int (the free PUs), so that trying and going back cost nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nodeagent.model.placement import Sharing, Workload
from nodeagent.place.machine import L3Pieces, Machine, Piece

MAX_COMBOS = 64
"""Sets of L3 groups tried for a workload that fits into no single one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Item:
    """A workload as the search sees it; compared by identity."""

    workload: Workload
    allowed: int
    """PUs that its cgroup may use, and nobody else's partition holds."""
    isolated: bool | None
    """Wants isolated PUs, on a machine that isolates any; None: either."""
    one_l3: bool
    fixed: int = 0
    """The PUs of its cpu_list; 0: the planner chooses."""
    now: int = 0
    """The PUs that it has, when it may keep them; 0: none, or a shared one."""
    now_site: int | None = None
    hint: int = 0
    """PUs that it had: taken again where there is a choice."""

    @property
    def name(self) -> str:
        """The workload's."""
        return self.workload.name

    @property
    def shared(self) -> bool:
        """Whether it shares a pool."""
        return self.workload.sharing is Sharing.SHARED


@dataclass(frozen=True, slots=True)
class Taken:
    """A choice: `pus` are the workload's, `gone` what nobody else may have (siblings left idle
    too). `splits`: L3 groups beyond the first; `cores`: cores touched."""

    pus: int
    gone: int
    splits: int = 0
    cores: int = 0
    moved: int = 0


def options(machine: Machine, site: int, item: Item, free: int) -> Iterator[Taken]:
    """Choices of an exclusive workload that satisfy its own hard constraints, best first."""
    if item.fixed:
        fixed = exactly(machine, site, item, item.fixed, free)
        if fixed is not None:
            yield fixed
        return
    moved = int(item.now_site is not None)
    if item.now and item.now_site == site:
        kept = exactly(machine, site, item, item.now, free)
        if kept is not None:
            yield kept
    for taken in chosen(machine, site, item, free):
        if taken.pus != item.now:
            yield Taken(taken.pus, taken.gone, taken.splits, taken.cores, moved)


def exactly(machine: Machine, site: int, item: Item, pus: int, free: int) -> Taken | None:
    """These PUs, when they are free and keep the workload's rules; else None."""
    if pus & ~free or pus & ~item.allowed:
        return None
    smt = item.workload.smt
    either = None if item.fixed else item.isolated
    gone = cores = groups = 0
    for _, all_here, pieces in machine.usable(site, either, item.allowed):
        if not all_here & pus:
            continue
        groups += 1
        for p in pieces:
            mine = p.mask & pus
            if not mine:
                continue
            cores += 1
            whole = p.mask == p.core and free & p.core == p.core
            if smt != "any" and not whole:
                return None
            if smt == "whole-core" and mine != p.core:
                return None
            if smt == "one-per-core" and mine & (mine - 1):
                return None
            gone |= mine if smt == "any" else p.core
    if pus & ~gone or (item.one_l3 and groups > 1):
        return None
    return Taken(pus, gone, groups - 1, cores)


def chosen(machine: Machine, site: int, item: Item, free: int) -> Iterator[Taken]:
    """Choices of the planner's own: one L3 group, the fullest that fits; else the fewest."""
    groups = machine.usable(site, item.isolated, item.allowed)
    need = item.workload.cpus
    capacity = [capacity_of(g, item.workload.smt, free) for g in groups]
    single = sorted(
        (-(groups[i][1] & item.hint).bit_count(), c, i) for i, c in enumerate(capacity) if c >= need
    )
    for _, _, i in single:
        yield _from(groups, (i,), item, free)
    if single or item.one_l3:
        return
    large_first = sorted(range(len(groups)), key=lambda i: (-capacity[i], i))
    sums = itertools.accumulate(capacity[i] for i in large_first)
    count = next((n for n, total in enumerate(sums, 1) if total >= need), None)
    if count is None:
        return
    for combo in itertools.islice(itertools.combinations(large_first, count), MAX_COMBOS):
        if sum(capacity[i] for i in combo) >= need:
            yield _from(groups, combo, item, free)


def capacity_of(group: tuple[int, int, tuple[Piece, ...]], smt: str, free: int) -> int:
    """PUs (one-per-core: cores) that an L3 group could give to a workload of that rule."""
    if smt == "any":
        return (free & group[1]).bit_count()
    whole = [p.core for p in group[2] if p.mask == p.core and free & p.core == p.core]
    return len(whole) if smt == "one-per-core" else sum(c.bit_count() for c in whole)


def _from(groups: L3Pieces, where: Sequence[int], item: Item, free: int) -> Taken:
    """From those L3 groups, which have enough; each gives all that it can but the last."""
    need = left = item.workload.cpus
    cores: list[tuple[int, int]] = []
    used = 0
    for i in where:
        if left <= 0:
            break
        used += 1
        more = pick(groups[i][2], item, free, left)
        cores += more
        left -= sum(mine.bit_count() for mine, _ in more)
    if item.workload.smt == "whole-core":
        cores = needed(cores, need)
    pus = gone = 0
    for mine, with_it in cores:
        pus |= mine
        gone |= with_it
    return Taken(pus, gone, used - 1, len(cores))


def needed(cores: list[tuple[int, int]], need: int) -> list[tuple[int, int]]:
    """Without the cores that rounding up made superfluous, small ones first."""
    over = sum(mine.bit_count() for mine, _ in cores) - need
    for core in sorted(cores, key=lambda c: c[0].bit_count()) if over > 0 else ():
        if core[0].bit_count() <= over:
            over -= core[0].bit_count()
            cores = [c for c in cores if c != core]
    return cores


def pick(pieces: Sequence[Piece], item: Item, free: int, need: int) -> list[tuple[int, int]]:
    """(PUs, what is gone with them) of each core, at most `need` PUs (whole cores round up)."""
    smt, hint = item.workload.smt, item.hint
    found: list[tuple[int, int]] = []
    if hint:
        pieces = sorted(pieces, key=lambda p: -(p.mask & hint).bit_count())
    if smt != "any":
        for p in pieces:
            if need <= 0:
                break
            if p.mask == p.core and free & p.core == p.core:
                mine = p.core if smt == "whole-core" else p.core & -p.core
                found.append((mine, p.core))
                need -= mine.bit_count()
        return found
    # Whole cores first; the rest from the part of a core that it fills best. Beside housekeeping
    # last.
    parts: list[tuple[bool, int, int]] = []
    for p in pieces:
        mask = p.mask & free
        if not mask:
            continue
        size = mask.bit_count()
        if mask == p.core and size <= need:
            found.append((mask, mask))
            need -= size
        else:
            parts.append((p.tainted, size, mask))
    while need > 0 and parts:
        best = min(
            parts, key=lambda c: (c[0], c[1] < need, c[1] if c[1] >= need else -c[1], c[2] & -c[2])
        )
        parts.remove(best)
        mine = lowest(best[2], need, hint)
        found.append((mine, mine))
        need -= mine.bit_count()
    return found


def lowest(mask: int, count: int, hint: int = 0) -> int:
    """At most `count` bits of a mask, hinted ones first, then the lowest."""
    taken = 0
    for part in (mask & hint, mask & ~hint):
        while part and count > 0:
            low = part & -part
            taken |= low
            part ^= low
            count -= 1
    return taken


def pool_at(machine: Machine, site: int, items: Sequence[Item], free: int) -> tuple[int, bool]:
    """PUs of a site's shared pool, and whether housekeeping had to be joined to it."""
    alone = free & machine.usual[site]
    if alone and all((alone & i.allowed).bit_count() >= i.workload.cpus for i in items):
        return alone, False
    return alone | machine.pools[site], True


def pool_holds(machine: Machine, site: int, items: Sequence[Item], free: int) -> bool:
    """Whether that pool has PUs enough for each of its workloads."""
    if not items:
        return True
    pool = free & machine.usual[site] | machine.pools[site]
    return all((pool & i.allowed).bit_count() >= i.workload.cpus for i in items)
