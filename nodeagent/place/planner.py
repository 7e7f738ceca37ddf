"""`plan`: where every workload belongs, or why it cannot be placed. Pure and deterministic.

Hard constraints, in the order in which a refusal names them: one process has one workload, the
device's NUMA node, isolated CPUs, memory, whole cores, CPUs enough on one node, units whole or not
at all, housekeeping never empty, no PU twice. Then cost (search.py). A workload that is well where
it is stays there: planning again with the last answer as `current` moves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.pci import parse_bdf
from nodeagent.model.placement import (
    Placed,
    Placement,
    ProcessState,
    Refused,
    Sharing,
    Workload,
)
from nodeagent.model.topology import Path, Topology
from nodeagent.place.machine import (
    SMALL_PUS,
    Machine,
    Site,
    housekeeping_of,
    machine_of,
    memory_near,
    nearest_site,
)
from nodeagent.place.match import claims
from nodeagent.place.search import Assignment, Group, Room, assign, pool_of, replay

SHARED_POOL = "shared"


def plan(
    topology: Topology,
    workloads: Sequence[Workload],
    processes: Sequence[ProcessState] = (),
    current: Placement | None = None,
    housekeeping: CpuSet | None = None,
) -> Placement:
    """Where things belong. `current`: the placement in force, to move as little as possible;
    `housekeeping`: the CPUs kept for the system, None for the lowest core of each package.

    `placed` and `refused` come in the workloads' order.
    """
    kept, notes = housekeeping_of(topology, housekeeping)
    machine = machine_of(topology, kept)
    if not topology.online:
        why = "no CPU of this machine is known to be online"
        return Placement(
            placed=(),
            refused=tuple(
                Refused(workload=w.name, reason=why, would_fit_if="the topology could be read")
                for w in workloads
            ),
            housekeeping=kept,
            notes=notes,
        )
    owned, contested = claims(workloads, processes)
    refused: dict[str, Refused] = {
        name: Refused(
            workload=name,
            reason=why,
            would_fit_if="its match were narrower, so that each process fits one workload",
        )
        for name, why in contested.items()
    }
    idle = [n for n, found in owned.items() if not found] if processes else []
    if idle:
        notes += (f"no process now matches: {', '.join(idle)}",)
    wishes = {w.name: _wish(w, machine) for w in workloads}
    for w in workloads:
        wish = wishes[w.name]
        if w.name not in refused and isinstance(wish, Refused):
            refused[w.name] = wish
    _units_whole(workloads, refused)
    near = {n: wish for n, wish in wishes.items() if isinstance(wish, _Near)}
    open_ = [w for w in workloads if w.name not in refused]
    if len(topology.online) < SMALL_PUS:
        placed, more = _small(machine, open_, near, refused)
    else:
        placed, more = _large(machine, open_, near, refused, current)
    return Placement(
        placed=tuple(placed[w.name] for w in workloads if w.name in placed),
        refused=tuple(refused[w.name] for w in workloads if w.name in refused),
        housekeeping=kept,
        notes=notes + more,
    )


# Which nodes a workload may go to.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Near:
    """What `near` means here. `site` None: anywhere."""

    site: int | None
    bdf: str | None
    gpu: str | None
    reason: str | None


def _wish(workload: Workload, machine: Machine) -> _Near | Refused:
    topology = machine.topology

    def refuse(reason: str, would_fit_if: str) -> Refused:
        return Refused(workload=workload.name, reason=reason, would_fit_if=would_fit_if)

    if workload.cpus > len(topology.online):
        return refuse(
            f"it wants {workload.cpus} PUs and this machine has {len(topology.online)} online",
            f"cpus = {len(topology.online - machine.housekeeping) or 1}",
        )
    memory = [n.memory_bytes for n in topology.nodes if n.memory_bytes is not None]
    if memory and workload.memory_bytes > sum(memory):
        return refuse(
            f"it wants {workload.memory_bytes >> 20} MiB of memory and this machine has "
            f"{sum(memory) >> 20} MiB",
            f'memory = "{max(memory) >> 20}MiB"',
        )
    if workload.cpu_list is not None:
        offline = workload.cpu_list - topology.online
        if offline:
            return refuse(
                f"cpu_list names CPU {offline}, which is not online here",
                f"cpu_list named only CPUs of {topology.online}",
            )
        system = workload.cpu_list & machine.housekeeping
        if system and len(topology.online) >= SMALL_PUS:
            return refuse(
                f"cpu_list names CPU {system}, which is kept for housekeeping",
                f"housekeeping were elsewhere, or cpu_list left out CPU {system}",
            )
    near = workload.near
    if near is None:
        return _Near(site=None, bdf=None, gpu=None, reason=None)
    if near.startswith("node:"):
        number = int(near[5:])
        if topology.node(number) is None:
            known = ", ".join(str(n.id) for n in topology.nodes) or "none"
            return refuse(
                f"near = {near}, but this machine has no NUMA node {number} (nodes: {known})",
                "near named a node of this machine",
            )
        return _on_node(machine, number, f"node {number}", None, None)
    bdf = _device(topology, near)
    function = topology.function(bdf) if bdf is not None else None
    if function is None:
        return refuse(
            f"near = {near}, and no such device is on this machine ({_devices(topology)})",
            "near named a device that `nodeagentctl topology show` lists",
        )
    named = f"{near} ({function.bdf})" if near != function.bdf else near
    gpu = function.bdf if function.is_gpu else None
    if function.numa_node is not None:
        return _on_node(machine, function.numa_node, named, function.bdf, gpu)
    if function.local_cpus:
        site = _site_of_cpus(machine, function.local_cpus)
        if site is not None:
            name = machine.sites[site].name
            return _Near(
                site=site,
                bdf=function.bdf,
                gpu=gpu,
                reason=f"{named} is local to CPUs {function.local_cpus}, which are {name}'s",
            )
    if len(machine.sites) == 1:
        return _Near(
            site=0, bdf=function.bdf, gpu=gpu, reason=f"{named}, and this machine has one node"
        )
    return refuse(
        f"the firmware does not say which NUMA node {named} is on",
        "near = node:N, with the node from the board's manual",
    )


def _on_node(machine: Machine, number: int, named: str, bdf: str | None, gpu: str | None) -> _Near:
    site = machine.site_of(number)
    where = f"{named} is on node {number}" if bdf is not None else f"{named} is asked for"
    if site is None:
        nearest = nearest_site(machine.topology, machine.sites, number)
        if nearest is not None:
            site = machine.sites.index(nearest)
            where += f", which has no CPUs; the nearest that has is {nearest.name}"
        elif machine.sites:
            site, where = 0, where + ", and no NUMA node with CPUs is known"
    return _Near(site=site, bdf=bdf, gpu=gpu, reason=where)


def _site_of_cpus(machine: Machine, cpus: CpuSet) -> int | None:
    """The one site that holds these CPUs; None when several do."""
    holding = [i for i, s in enumerate(machine.sites) if s.cpus & cpus]
    return holding[0] if len(holding) == 1 else None


def _device(topology: Topology, near: str) -> str | None:
    kind, _, rest = near.partition(":")
    tables = {
        "gpu": tuple(p for p in topology.gpus if p.computes),
        "nic": topology.nics,
        "nvme": topology.nvmes,
    }
    if kind in tables and not rest.startswith("0000:"):
        found = tables[kind]
        return found[int(rest)].bdf if rest.isdecimal() and int(rest) < len(found) else None
    try:
        return parse_bdf(rest if kind in tables else near)
    except ParseError:
        return None


def _devices(topology: Topology) -> str:
    computing = sum(p.computes for p in topology.gpus)
    return f"GPUs: {computing}, NICs: {len(topology.nics)}, NVMe: {len(topology.nvmes)}"


def _units_whole(workloads: Sequence[Workload], refused: dict[str, Refused]) -> None:
    """One member refused: the whole unit is."""
    for w in workloads:
        if w.unit is None or w.name in refused:
            continue
        bad = next((o for o in workloads if o.unit == w.unit and o.name in refused), None)
        if bad is not None:
            why = refused[bad.name]
            refused[w.name] = Refused(
                workload=w.name,
                reason=f"unit {w.unit} is placed whole or not at all, and {bad.name} cannot be: "
                f"{why.reason}",
                would_fit_if=f"{bad.name}: {why.would_fit_if}",
            )


# A machine with fewer than SMALL_PUS.


def _small(
    machine: Machine,
    workloads: Sequence[Workload],
    near: dict[str, _Near],
    refused: dict[str, Refused],
) -> tuple[dict[str, Placed], tuple[str, ...]]:
    topology, kept = machine.topology, machine.housekeeping
    online = topology.online
    pool = online - kept - topology.isolation.isolated or online - kept or online
    placed: dict[str, Placed] = {}
    wanted_exclusive = [w.name for w in workloads if w.sharing is Sharing.EXCLUSIVE]
    for w in workloads:
        wish = near[w.name]
        cpus, reasons = pool, []
        if w.cpu_list is not None and w.cpu_list & pool:
            cpus = w.cpu_list & pool
        if wish.site is not None and machine.sites[wish.site].cpus & cpus:
            cpus = machine.sites[wish.site].cpus & cpus
        if wish.reason is not None:
            reasons.append(wish.reason)
        asked = "asked to be exclusive, " if w.sharing is Sharing.EXCLUSIVE else ""
        reasons.append(
            f"{asked}shares pool {SHARED_POOL!r} ({pool}): {len(online)} PUs online, exclusive "
            f"ones need {SMALL_PUS}"
        )
        if w.cpus > len(cpus):
            reasons.append(f"wants {w.cpus} PUs, the pool has {len(cpus)}")
        if cpus & kept:
            reasons.append("this machine has no PU beside that of housekeeping")
        node, mems = _node_of(topology, cpus)
        placed[w.name] = Placed(
            workload=w.name,
            unit=w.unit,
            sharing=Sharing.SHARED,
            cpus=cpus,
            mems=mems,
            node=node,
            gpu=wish.gpu,
            reasons=tuple(reasons),
            pool=SHARED_POOL,
            kind=w.kind,
            match=w.match,
            memory_bytes=w.memory_bytes,
            memory_move=w.memory_move,
            rollback=w.rollback,
        )
    notes: tuple[str, ...] = ()
    if wanted_exclusive:
        notes = (
            f"{', '.join(wanted_exclusive)} asked to be exclusive and share pool {SHARED_POOL!r} "
            f"({pool}): this machine has {len(online)} PUs, exclusive ones need {SMALL_PUS}; "
            f"housekeeping keeps {kept}",
        )
    return placed, notes


def _node_of(topology: Topology, cpus: CpuSet) -> tuple[int | None, CpuSet]:
    """(the node that holds them all or None, the nodes whose memory goes with them)."""
    nodes = [n for n in topology.nodes if n.cpus & cpus]
    mems = CpuSet()
    for n in nodes:
        mems |= memory_near(topology, n.id)[0]
    return (nodes[0].id if len(nodes) == 1 else None), mems


# A machine with room for exclusive CPUs.


def _large(
    machine: Machine,
    workloads: Sequence[Workload],
    near: dict[str, _Near],
    refused: dict[str, Refused],
    current: Placement | None,
) -> tuple[dict[str, Placed], tuple[str, ...]]:
    groups = [
        g
        for name, members in _grouped(workloads).items()
        for g in [_group(machine, name, members, near, refused, current)]
        if g is not None
    ]
    fresh = sorted(groups, key=_difficulty)
    keep = sorted(fresh, key=lambda g: not g.current)
    answer = assign(machine, keep)
    if answer.out and any(g.current for g in groups):
        # Keeping everybody where they are leaves someone out: see whether moving helps.
        bare = [
            Group(name=g.name, members=g.members, sites=g.sites, current={}, current_site=None)
            for g in fresh
        ]
        other = assign(machine, bare)
        if len(other.out) < len(answer.out):
            answer = other
    room = replay(machine, groups, answer)
    for g in groups:
        if g.name not in answer.sites:
            for w in g.members:
                refused[w.name] = _no_room(machine, room, g, w, near)
    return _placed(machine, groups, answer, room, near)


def _grouped(workloads: Sequence[Workload]) -> dict[str, tuple[Workload, ...]]:
    """Units, and single workloads; a unit's name cannot meet a workload's: it gets a mark."""
    groups: dict[str, tuple[Workload, ...]] = {}
    for w in workloads:
        name = f"unit {w.unit}" if w.unit is not None else w.name
        groups[name] = (*groups.get(name, ()), w)
    return groups


def _difficulty(group: Group) -> tuple[bool, bool, bool, int, str]:
    """Fixed to a node first, exclusive before shared, cores before PUs, large before small."""
    return (
        len(group.sites) > 1,
        all(w.sharing is Sharing.SHARED for w in group.members),
        all(w.smt == "any" for w in group.members),
        -sum(w.cpus for w in group.members if w.sharing is Sharing.EXCLUSIVE),
        group.name,
    )


def _group(
    machine: Machine,
    name: str,
    members: tuple[Workload, ...],
    near: dict[str, _Near],
    refused: dict[str, Refused],
    current: Placement | None,
) -> Group | None:
    """None: no node suits all members; then they are refused."""
    fixed = {near[w.name].site for w in members} - {None}
    for w in members:
        if w.cpu_list is not None:
            site = _site_of_cpus(machine, w.cpu_list)
            if site is None:
                refused[w.name] = Refused(
                    workload=w.name,
                    reason=f"cpu_list {w.cpu_list} lies on several NUMA nodes",
                    would_fit_if="it named CPUs of one node",
                )
                _units_whole(members, refused)
                return None
            fixed.add(site)
    if len(fixed) > 1:
        told = "; ".join(
            f"{w.name}: {near[w.name].reason or f'cpu_list {w.cpu_list}'}"
            for w in members
            if near[w.name].site is not None or w.cpu_list is not None
        )
        for w in members:
            refused[w.name] = Refused(
                workload=w.name,
                reason=f"{name} shares one NUMA node, but its members need several ({told})",
                would_fit_if="the devices were on one node, or the unit were two",
            )
        return None
    where, at = _now(machine, members, current)
    first = next(iter(fixed), None)
    if first is not None:
        sites: tuple[int, ...] = (first,)
        if at != first:
            where, at = {}, None
    else:
        sites = tuple(
            sorted(
                range(len(machine.sites)),
                key=lambda i: (i != at, -_site_pus(machine, i, members), i),
            )
        )
    return Group(name=name, members=members, sites=sites, current=where, current_site=at)


def _site_pus(machine: Machine, site: int, members: tuple[Workload, ...]) -> int:
    """PUs of a site that could go to such members: the roomier node spreads memory too."""
    isolated = any(w.isolated for w in members)
    return sum(
        len(core)
        for b in machine.bins
        if b.site == site and (b.isolated == isolated)
        for core in b.cores
    )


def _now(
    machine: Machine, members: tuple[Workload, ...], current: Placement | None
) -> tuple[dict[str, tuple[int, ...]], int | None]:
    """Where members are now, if they are on one site and wish for what they have."""
    where: dict[str, tuple[int, ...]] = {}
    sites: set[int] = set()
    for w in members:
        placed = current.of(w.name) if current is not None else None
        if placed is None or placed.sharing is not w.sharing or not placed.cpus:
            continue
        if w.sharing is Sharing.SHARED:
            site = machine.site_of(placed.node) if placed.node is not None else 0
            if site is not None:
                sites.add(site)
                where[w.name] = ()
            continue
        site = _site_of_cpus(machine, placed.cpus)
        largest = max(map(len, machine.topology.cores), default=1)
        more = len(placed.cpus) - w.cpus
        wrong_size = not 0 <= more < (largest if w.smt == "whole-core" else 1)
        if site is None or wrong_size or not placed.cpus <= machine.topology.online:
            continue
        sites.add(site)
        where[w.name] = tuple(placed.cpus)
    if len(sites) != 1:
        return {}, None
    return where, next(iter(sites))


def _placed(
    machine: Machine,
    groups: Sequence[Group],
    answer: Assignment,
    room: Room,
    near: dict[str, _Near],
) -> tuple[dict[str, Placed], tuple[str, ...]]:
    placed: dict[str, Placed] = {}
    notes: list[str] = []
    pools: dict[int, tuple[CpuSet, str]] = {}
    for g in groups:
        index = answer.sites.get(g.name)
        if index is None:
            continue
        site = machine.sites[index]
        for w in g.members:
            if w.sharing is Sharing.SHARED and index not in pools:
                cpus, with_system = pool_of(machine, room, index)
                name = SHARED_POOL if len(machine.sites) == 1 else f"{SHARED_POOL}-node{site.node}"
                pools[index] = (cpus, name)
                if with_system:
                    notes.append(
                        f"pool {name!r} ({cpus}) holds housekeeping CPUs of {site.name}: exclusive "
                        "workloads have the others"
                    )
            cpus, pool = (
                pools[index]
                if w.sharing is Sharing.SHARED
                else (CpuSet.of(answer.given[w.name]), None)
            )
            placed[w.name] = Placed(
                workload=w.name,
                unit=w.unit,
                sharing=w.sharing,
                cpus=cpus,
                mems=site.mems,
                node=site.node,
                gpu=near[w.name].gpu,
                reasons=_reasons(machine, g, w, site, cpus, pool, near),
                pool=pool,
                kind=w.kind,
                match=w.match,
                memory_bytes=w.memory_bytes,
                memory_move=w.memory_move,
                rollback=w.rollback,
            )
    return placed, tuple(notes)


def _reasons(
    machine: Machine,
    group: Group,
    workload: Workload,
    site: Site,
    cpus: CpuSet,
    pool: str | None,
    near: dict[str, _Near],
) -> tuple[str, ...]:
    reasons: list[str] = []
    wish = near[workload.name]
    if wish.reason is not None:
        reasons.append(wish.reason)
    if workload.unit is not None and len(group.members) > 1:
        others = [w for w in group.members if w.name != workload.name]
        reasons.append(
            f"unit {workload.unit}: on {site.name} with {', '.join(w.name for w in others)}"
        )
        for w in others:
            path = _path(machine.topology, wish.bdf, near[w.name].bdf)
            if path is not None:
                reasons.append(f"{wish.bdf} and {near[w.name].bdf} are {path} to one another")
    if pool is not None:
        reasons.append(f"shares pool {pool!r} ({cpus}) of {site.name}")
    elif workload.cpu_list is not None:
        reasons.append("these CPUs are named by cpu_list")
    else:
        if wish.reason is None and len(machine.sites) > 1 and workload.unit is None:
            reasons.append(f"{site.name} has the room")
        reasons.append(_shape(machine, workload, cpus))
        isolated = machine.topology.isolation.isolated
        if workload.isolated and cpus <= isolated:
            reasons.append("isolated CPUs, as wanted")
            if len(cpus) > 1:
                reasons.append(
                    "the kernel balances no load between isolated CPUs: the program must bind "
                    "its own threads"
                )
        elif workload.isolated:
            reasons.append("wants isolated CPUs, and this machine isolates none")
    if site.node is not None and not CpuSet.of([site.node]) <= site.mems:
        reasons.append(
            f"{site.name} has no memory; the nearest with host memory is node {site.mems}"
        )
    return tuple(reasons)


def _path(topology: Topology, a: str | None, b: str | None) -> Path | None:
    if a is None or b is None or a == b:
        return None
    return next((r.path for r in topology.relations if {r.a, r.b} == {a, b}), None)


def _shape(machine: Machine, workload: Workload, cpus: CpuSet) -> str:
    cores = [c for c in machine.topology.cores if c & cpus]
    whole = [c for c in cores if c <= cpus]
    groups = [g for g in machine.l3_groups if g & cpus]
    core_word = "core" if len(cores) == 1 else "cores"
    if workload.smt == "one-per-core":
        text = f"{len(cpus)} PUs, one on each of {len(cores)} {core_word}, siblings left idle"
    elif len(whole) == len(cores):
        text = f"{len(cpus)} PUs: {len(cores)} whole {core_word}"
        if workload.smt == "whole-core" and len(cpus) > workload.cpus:
            text += f" ({workload.cpus} asked for, rounded up)"
    else:
        text = f"{len(cpus)} PUs on {len(cores)} {core_word}"
    if len(groups) == 1:
        return f"{text}, within one L3 group ({groups[0]})"
    return f"{text}, over {len(groups)} L3 groups: no one has enough free"


def _no_room(
    machine: Machine, room: Room, group: Group, workload: Workload, near: dict[str, _Near]
) -> Refused:
    """Why, with figures of the finished plan, and the cheapest change that would make it fit."""
    reason, change = _figures(machine, room, group, workload, near)
    if len(group.members) > 1:
        total = sum(w.cpus for w in group.members if w.sharing is Sharing.EXCLUSIVE)
        reason = f"{group.name} needs {total} exclusive PUs on one node: {reason}"
    return Refused(workload=workload.name, reason=reason, would_fit_if=change)


def _figures(
    machine: Machine, room: Room, group: Group, workload: Workload, near: dict[str, _Near]
) -> tuple[str, str]:
    wants_isolated = workload.isolated and any(b.isolated for b in machine.bins)

    def free(site: int, *, isolated: bool, smt: str) -> int:
        count = 0
        for i, b in enumerate(machine.bins):
            if b.site != site or b.isolated is not isolated:
                continue
            for core in room.cores[i]:
                full = any(len(core) == len(c) for c in machine.topology.cores if core[0] in c)
                count += (
                    len(core) if smt == "any" else full * (len(core) if smt == "whole-core" else 1)
                )
        return count

    need = sum(w.cpus for w in group.members if w.sharing is Sharing.EXCLUSIVE) or workload.cpus
    best = max(
        group.sites,
        key=lambda i: (free(i, isolated=wants_isolated, smt=workload.smt), -i),
    )
    site = machine.sites[best]
    have = free(best, isolated=wants_isolated, smt=workload.smt)
    left = room.memory[best]
    asked = sum(w.memory_bytes for w in group.members)
    where = site.name if len(group.sites) > 1 or near[workload.name].reason is None else ""
    where = where or f"{near[workload.name].reason}; {site.name}"
    if left is not None and asked > left:
        return (
            f"{where} has {left >> 20} MiB of memory not promised to others, the request needs "
            f"{asked >> 20} MiB",
            f'memory = "{max(0, left >> 20)}MiB"',
        )
    if workload.cpu_list is not None:
        return (
            f"CPUs of cpu_list {workload.cpu_list} are given to others or split a wanted core",
            "cpu_list named free CPUs, or cpus = N left the choice to the planner",
        )
    kind = "isolated PUs" if wants_isolated else "PUs"
    if workload.smt != "any":
        kind = {"whole-core": f"{kind} in whole cores", "one-per-core": "whole cores"}[workload.smt]
    outside = "" if wants_isolated else _isolated_words(machine, best)
    reason = f"{where} has {have} {kind} free{outside}, the request needs {need}"
    if len(group.sites) > 1:
        reason = f"no node has the room: {reason}"
    elsewhere = free(best, isolated=not wants_isolated, smt=workload.smt)
    loose = free(best, isolated=wants_isolated, smt="any")
    if elsewhere >= need:
        change = (
            f"isolated = {'false' if wants_isolated else 'true'}: {elsewhere} PUs are free there"
        )
    elif workload.smt != "any" and loose >= need:
        change = f'smt = "any": {loose} PUs are free singly'
    elif have > need - workload.cpus:
        change = f"cpus = {have - (need - workload.cpus)}"
    elif have >= need:
        change = "the shared workloads of that node needed fewer PUs"
    else:
        change = 'sharing = "shared", or another workload gave up CPUs there'
    return reason, change


def _isolated_words(machine: Machine, site: int) -> str:
    isolated = machine.sites[site].cpus & machine.topology.isolation.isolated
    return f" outside the isolated set {isolated}" if isolated else ""
