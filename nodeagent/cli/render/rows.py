"""A plan as rows: each workload with its processes and its changes, and alike ones folded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nodeagent.cli.planned import Planned
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Placed, ProcessState, places, subject_of
from nodeagent.place.changes import Change, by_workload
from nodeagent.place.match import matching
from nodeagent.place.roles import outside

UNFOLDED = 12
"""Workloads that are shown each by itself."""
MAX_FOLDS = 30
"""Folds that are shown, before they are folded further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One placed workload as it is now."""

    placed: Placed
    processes: tuple[ProcessState, ...]
    changes: tuple[Change, ...]

    @property
    def mark(self) -> str:
        """~ something changes, = all in place, ? no process."""
        if self.changes:
            return "~"
        return "=" if self.processes else "?"

    @property
    def astray(self) -> bool:
        """Whether threads are outside that no action brings in."""
        return any(outside(self.placed, p) for p in self.processes) and not self.changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Rows that are alike, shown as one."""

    rows: tuple[Row, ...]

    @property
    def mark(self) -> str:
        """Of all of them; those that change first."""
        marks = {r.mark for r in self.rows}
        return next(m for m in "~?=" if m in marks)

    @property
    def processes(self) -> tuple[ProcessState, ...]:
        """Of all of them."""
        return tuple(p for r in self.rows for p in r.processes)

    @property
    def planned(self) -> CpuSet:
        """CPUs of all of them."""
        return CpuSet.of(c for r in self.rows for c in r.placed.cpus)

    @property
    def now(self) -> CpuSet:
        """CPUs on which the threads are that will be moved; of all threads where none is."""
        moving = {c.pid for r in self.rows for c in r.changes if c.pid is not None}
        found: set[int] = set()
        for process in self.processes:
            if not moving or process.pid in moving:
                for thread in process.threads:
                    found |= thread.cpus.ids
        return CpuSet.of(found)

    @property
    def reasons(self) -> tuple[str, ...]:
        """What all of them give."""
        common = list(self.rows[0].placed.reasons)
        for row in self.rows[1:]:
            common = [r for r in common if r in row.placed.reasons]
        return tuple(common)


def rows(planned: Planned) -> tuple[Row, ...]:
    """In the file's order; a process is the first one's that it fits, as in place/diff.py."""
    changes = by_workload([c for c in planned.changes if c.pid is not None or places(c.action)])
    seen: set[int] = set()
    found = []
    for placed in planned.placement.placed:
        mine = [p for p in matching(placed.match, planned.processes) if p.pid not in seen]
        seen.update(p.pid for p in mine)
        found.append(
            Row(placed=placed, processes=tuple(mine), changes=changes.get(placed.workload, ()))
        )
    return tuple(found)


_KEYS: tuple[Callable[[Row], tuple[object, ...]], ...] = (
    lambda r: (r.mark, r.placed.kind, r.placed.sharing, r.placed.pool, r.placed.node, r.placed.gpu),
    lambda r: (r.mark, r.placed.kind, r.placed.sharing, r.placed.node),
    lambda r: (r.mark, r.placed.sharing, r.placed.node),
    lambda r: (r.mark,),
)


def folds(found: Sequence[Row], *, unfold: bool) -> tuple[Fold, ...]:
    """Few rows each by itself; many folded by what they have in common, coarser while there are
    more than MAX_FOLDS."""
    if unfold or len(found) <= UNFOLDED:
        return tuple(Fold(rows=(r,)) for r in found)
    groups: dict[tuple[object, ...], list[Row]] = {}
    for key in _KEYS:
        groups = {}
        for row in found:
            groups.setdefault(key(row), []).append(row)
        if len(groups) <= MAX_FOLDS:
            break
    return tuple(Fold(rows=tuple(g)) for g in groups.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Of a plan: processes and values of the host to change, processes in place, workloads without
    a process, refused workloads."""

    change: int
    place: int
    waiting: int
    refused: int


def counts(planned: Planned) -> Counts:
    """What the last line of a plan says."""
    place = waiting = 0
    for row in rows(planned):
        waiting += not row.processes
        place += sum(not outside(row.placed, p) for p in row.processes)
    return Counts(
        change=len({subject_of(a) for a in planned.actions}),
        place=place,
        waiting=waiting,
        refused=len(planned.placement.refused),
    )
