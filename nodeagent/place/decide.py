"""From workloads to an answer of the search: groups, what bounds them, where each may go. Pure.

`decide` is the whole decision without its words: the planner asks it once, and the advice
(advice.py) asks it again for each change that it thinks of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Placement, ProcessState, Sharing, Workload
from nodeagent.place.answer import Answer, Group, Resource
from nodeagent.place.facts import Facts
from nodeagent.place.limits import Limit, limit_of
from nodeagent.place.machine import Machine, mask_of
from nodeagent.place.memory import added, demand_of, room_of, size
from nodeagent.place.near import Near, NotHere, near_of
from nodeagent.place.room import Item
from nodeagent.place.search import assign


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What does not change while changes to workloads are thought of."""

    machine: Machine
    facts: Facts
    processes: Sequence[ProcessState]
    running: frozenset[str]
    """Workloads that have a process."""
    current: Placement | None
    contested: Mapping[str, str] = field(default_factory=dict)
    """Workload -> why it may not have its processes."""
    limits: dict[str, Limit] = field(default_factory=dict)
    """Answers of `limit`, kept."""
    nears: dict[str | None, Near | NotHere] = field(default_factory=dict)
    masks: dict[CpuSet, int] = field(default_factory=dict)

    def limit(self, workload: Workload) -> Limit:
        """What its groups let it use."""
        if workload.name not in self.limits:
            self.limits[workload.name] = limit_of(self.facts.cgroups, workload, self.processes)
        return self.limits[workload.name]

    def near(self, near: str | None) -> Near | NotHere:
        """Where that is."""
        if near not in self.nears:
            self.nears[near] = near_of(self.machine, near, self.facts)
        return self.nears[near]

    def mask(self, cpus: CpuSet) -> int:
        """Its bits."""
        if cpus not in self.masks:
            self.masks[cpus] = mask_of(cpus)
        return self.masks[cpus]

    @property
    def foreign(self) -> CpuSet:
        """CPUs of other people's partitions."""
        held = CpuSet()
        for p in self.facts.cgroups.foreign:
            held |= p.cpus
        return held


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Why a workload is refused. `help` None: to be looked for."""

    reason: str
    help: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Who goes where; `refused` holds those that the search was not asked about."""

    groups: tuple[Group, ...]
    near: Mapping[str, Near]
    refused: Mapping[str, Why]
    room: Mapping[Resource, int]
    answer: Answer

    @property
    def left_out(self) -> frozenset[str]:
        """Every workload without a place."""
        names = {i.name for g in self.groups if g.name in self.answer.out for i in g.items}
        return frozenset(names | self.refused.keys())


def decide(case: Case, workloads: Sequence[Workload]) -> Decision:
    """The decision; deterministic."""
    near, refused, groups = gather(case, workloads)
    room = room_of(case.machine.topology, workloads)
    return Decision(
        groups=groups,
        near=near,
        refused=refused,
        room=room,
        answer=assign(case.machine, groups, room),
    )


def gather(
    case: Case, workloads: Sequence[Workload]
) -> tuple[dict[str, Near], dict[str, Why], tuple[Group, ...]]:
    """Where each may go, those that can be nowhere, and the groups that are left to be placed."""
    near, refused = _wishes(case, workloads)
    groups: list[Group] = []
    for name, members in grouped([w for w in workloads if w.name not in refused]).items():
        made = _group(case, name, members, near)
        if isinstance(made, Group):
            groups.append(made)
        else:
            refused |= made
    return near, refused, tuple(groups)


def _wishes(case: Case, workloads: Sequence[Workload]) -> tuple[dict[str, Near], dict[str, Why]]:
    """A unit with a member that can be nowhere is nowhere at all."""
    near: dict[str, Near] = {}
    refused: dict[str, Why] = {}
    for w in workloads:
        where = case.near(w.near)
        if w.name in case.contested:
            refused[w.name] = Why(
                reason=case.contested[w.name],
                help="its match were narrower, so that each process fits one workload",
            )
        elif isinstance(where, NotHere):
            refused[w.name] = Why(reason=where.reason, help=where.would_fit_if)
        else:
            why = _impossible(case, w)
            if why is not None:
                refused[w.name] = why
            near[w.name] = where
    worst: dict[str, Workload] = {}
    for w in workloads:
        if w.unit is not None and w.name in refused:
            worst.setdefault(w.unit, w)
    for w in workloads:
        bad = worst.get(w.unit) if w.unit is not None else None
        if bad is not None and w.name not in refused:
            why = refused[bad.name]
            refused[w.name] = Why(
                reason=f"unit {w.unit} is placed whole or not at all, and {bad.name} cannot be: "
                f"{why.reason}",
                help=f"{bad.name}: {why.help}" if why.help is not None else None,
            )
    return near, refused


def _impossible(case: Case, w: Workload) -> Why | None:
    machine = case.machine
    online = machine.topology.online
    if w.cpus > len(online) and (w.cpu_list is None or w.cpu_list <= online):
        return Why(reason=f"it wants {w.cpus} PUs and this machine has {len(online)} online")
    memory = [n.memory_bytes for n in machine.topology.nodes if n.memory_bytes is not None]
    if memory and w.memory_bytes > sum(memory):
        return Why(
            reason=f"it wants {size(w.memory_bytes)} of memory and this machine has "
            f"{size(sum(memory))}"
        )
    if w.cpu_list is None:
        return None
    offline = w.cpu_list - online
    if offline:
        return Why(
            reason=f"cpu_list names CPU {offline}, which is not online here",
            help=f"cpu_list named only CPUs of {online}",
        )
    system = w.cpu_list & machine.housekeeping
    if system:
        return Why(
            reason=f"cpu_list names CPU {system}, which is kept for housekeeping",
            help=f"housekeeping were elsewhere, or cpu_list left out CPU {system}",
        )
    held = next((p for p in case.facts.cgroups.foreign if p.cpus & w.cpu_list), None)
    if held is not None and case.limit(w).partition != held.cgroup:
        return Why(
            reason=f"cpu_list names CPU {held.cpus & w.cpu_list}, which partition {held.cgroup} "
            f"holds ({held.file})",
            help=f"cpu_list left out CPU {held.cpus & w.cpu_list}",
        )
    return None


def grouped(workloads: Sequence[Workload]) -> dict[str, tuple[Workload, ...]]:
    """Units, and single workloads; a unit's name cannot meet a workload's: it gets a mark."""
    groups: dict[str, list[Workload]] = {}
    for w in workloads:
        groups.setdefault(f"unit {w.unit}" if w.unit is not None else w.name, []).append(w)
    return {name: tuple(members) for name, members in groups.items()}


def _group(
    case: Case, name: str, members: tuple[Workload, ...], near: Mapping[str, Near]
) -> Group | dict[str, Why]:
    """Or why no node suits all members, by workload."""
    machine = case.machine
    sites = tuple(range(len(machine.sites)))
    told: list[str] = []
    for w in members:
        where = near[w.name].sites
        if where is not None:
            sites = tuple(s for s in sites if s in where)
            told.append(f"{w.name}: {near[w.name].reason}")
        if w.cpu_list is not None:
            holding = machine.sites_of(w.cpu_list)
            if len(holding) != 1:
                help_ = "it named CPUs of one node"
                why = Why(reason=f"cpu_list {w.cpu_list} lies on several NUMA nodes", help=help_)
                return _all(members, w.name, why)
            sites = tuple(s for s in sites if s in holding)
            told.append(f"{w.name}: cpu_list {w.cpu_list} is on {machine.sites[holding[0]].name}")
    if not sites:
        if len(members) == 1:
            why = Why(
                reason=f"its near and its cpu_list are on different nodes ({'; '.join(told)})",
                help="cpu_list named CPUs of that node, or near were left out",
            )
            return {members[0].name: why}
        why = Why(
            reason=f"{name} shares one NUMA node, but its members need several ({'; '.join(told)})",
            help="the devices were on one node, or the unit were two",
        )
        return {w.name: why for w in members}
    for w in members:
        bound = case.limit(w).mems
        if bound is None:
            continue
        able = tuple(s for s in sites if machine.sites[s].mems <= bound.allowed)
        if not able:
            names = ", ".join(machine.sites[s].name for s in sites)
            mems = " or ".join(dict.fromkeys(str(machine.sites[s].mems) for s in sites))
            why = Why(
                reason=f"its cgroup may use memory of node {bound.allowed or '(none)'} only "
                f"({bound.file}), and on {names} it would have that of node {mems}",
                help=f"{bound.file} held node {mems}",
            )
            return _all(members, w.name, why)
        sites = able
    items = tuple(_item(case, w) for w in members)
    return Group(
        name=name,
        items=items,
        sites=sites,
        demand={s: _demand(case, items, s) for s in sites},
        memory_bytes=sum(w.memory_bytes for w in members),
    )


def _all(members: Sequence[Workload], name: str, why: Why) -> dict[str, Why]:
    return {
        w.name: why
        if w.name == name
        else Why(
            reason=f"unit {w.unit} is placed whole or not at all, and {name} cannot be: "
            f"{why.reason}",
            help=f"{name}: {why.help}",
        )
        for w in members
    }


def _demand(case: Case, items: Sequence[Item], site: int) -> dict[Resource, int]:
    mems = case.machine.sites[site].mems
    return added(
        demand_of(i.workload, mems, i.now_site == site and i.name in case.running)
        for i in items
        if i.workload.memory_bytes or i.workload.hugepages
    )


def _item(case: Case, w: Workload) -> Item:
    machine = case.machine
    allowed = allowed_of(case, w)
    isolated = w.isolated and machine.isolates
    fixed = case.mask(w.cpu_list) if w.cpu_list is not None else 0
    now, now_site, hint = _now(case, w, allowed)
    return Item(
        workload=w,
        allowed=allowed,
        isolated=isolated,
        one_l3=w.l3 == "one",
        fixed=fixed,
        now=now,
        now_site=now_site,
        hint=hint,
    )


def allowed_of(case: Case, w: Workload) -> int:
    """PUs that nobody else's partition holds and that its own groups let it use."""
    limit = case.limit(w)
    if limit.partition is not None and limit.cpus is not None:
        return case.mask(limit.cpus.allowed)
    allowed = anybodys(case)
    return allowed if limit.cpus is None else allowed & case.mask(limit.cpus.allowed)


def anybodys(case: Case) -> int:
    """PUs that nobody else's partition holds, and that are not hidden from us."""
    machine = case.machine
    allowed = (machine.givable | case.mask(machine.housekeeping)) & ~case.mask(case.foreign)
    hidden = case.facts.cgroups.hidden
    return allowed if hidden is None else allowed & case.mask(hidden.allowed)


def _now(case: Case, w: Workload, allowed: int) -> tuple[int, int | None, int]:
    """(the PUs that it has and may keep, the site it has them on, PUs that it had)."""
    machine = case.machine
    placed = case.current.of(w.name) if case.current is not None else None
    if placed is None or placed.sharing is not w.sharing or not placed.cpus:
        return 0, None, 0
    if w.sharing is Sharing.SHARED:
        site = machine.site_of(placed.node) if placed.node is not None else 0
        return 0, site if site is None or site < len(machine.sites) else None, 0
    mask = case.mask(placed.cpus)
    sites = machine.sites_of(placed.cpus)
    more = len(placed.cpus) - w.cpus
    right = 0 <= more < (machine.largest_core if w.smt == "whole-core" else 1)
    if len(sites) != 1 or not right or mask & ~(machine.givable & allowed):
        return 0, None, mask & machine.givable & allowed
    return mask, sites[0], mask
