"""`plan`: where every workload belongs, or why it cannot be placed. Pure and deterministic.

Hard constraints, in the order in which a refusal names them: one process has one workload, the
device's NUMA node, memory, what its control group allows, isolated CPUs, whole cores and one L3
where asked for, CPUs enough on one node, units whole or not at all, housekeeping never empty, no PU
twice. Then cost (search.py). A workload that is well where it is stays there: planning again with
the last answer as `current` moves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Placed, Placement, ProcessState, Refused, Workload
from nodeagent.model.topology import Topology
from nodeagent.place.advice import Adviser
from nodeagent.place.answer import Group
from nodeagent.place.decide import Case, Decision, Why, decide, gather
from nodeagent.place.facts import Facts
from nodeagent.place.housekeeping import SMALL_PUS, housekeeping_of
from nodeagent.place.limits import NO_LIMITS
from nodeagent.place.machine import cpus_of, machine_of
from nodeagent.place.match import claims, unmatched
from nodeagent.place.nics import pairings
from nodeagent.place.reasons import Words, paths_of, reasons_of
from nodeagent.place.refusal import left_after, why_out
from nodeagent.place.role_pus import role_pus
from nodeagent.place.room import pool_at
from nodeagent.place.small import SHARED_POOL, small

NOTHING_KNOWN = Facts(cgroups=NO_LIMITS)


def plan(
    topology: Topology,
    workloads: Sequence[Workload],
    processes: Sequence[ProcessState] = (),
    current: Placement | None = None,
    housekeeping: CpuSet | None = None,
    facts: Facts = NOTHING_KNOWN,
) -> Placement:
    """Where things belong. `current`: the placement in force, to move as little as possible;
    `housekeeping`: the CPUs kept for the system, None for the lowest core of each package.

    `placed` and `refused` come in the workloads' order. What is to be isolated by a partition gets
    whole cores: on a sibling, somebody else would run.
    """
    workloads = [
        replace(w, smt="whole-core")
        if w.name in facts.cgroups.isolating and w.smt == "any" and w.cpu_list is None
        else w
        for w in workloads
    ]
    foreign = CpuSet()
    for p in facts.cgroups.foreign:
        foreign |= p.cpus
    kept, notes = housekeeping_of(topology, housekeeping, foreign)
    if not topology.online:
        why = "no CPU of this machine is known to be online"
        help_ = "the topology could be read"
        return Placement(
            placed=(),
            refused=tuple(
                Refused(workload=w.name, reason=why, would_fit_if=help_) for w in workloads
            ),
            housekeeping=kept,
            notes=notes,
        )
    owned, contested = claims(workloads, processes)
    idle = [n for n, found in owned.items() if not found] if processes else []
    if idle:
        notes += unmatched(workloads, idle, processes)
    notes += tuple(
        f"CPU {p.cpus} belongs to partition {p.cgroup} ({p.file}) and is given to nobody outside it"
        for p in facts.cgroups.foreign
        if p.cpus
    )
    case = Case(
        machine=machine_of(topology, kept),
        facts=facts,
        processes=processes,
        running=frozenset(name for name, found in owned.items() if found),
        current=current,
        contested=contested,
    )
    if len(topology.online) < SMALL_PUS:
        placed, refused, more = _small(case, workloads, foreign)
    else:
        placed, refused, more = _large(case, workloads)
    return Placement(
        placed=tuple(placed[w.name] for w in workloads if w.name in placed),
        refused=tuple(refused[w.name] for w in workloads if w.name in refused),
        housekeeping=kept,
        notes=notes + more,
    )


Plan = tuple[dict[str, Placed], dict[str, Refused], tuple[str, ...]]


def _small(case: Case, workloads: Sequence[Workload], foreign: CpuSet) -> Plan:
    near, refused, _ = gather(case, workloads)
    open_ = [w for w in workloads if w.name not in refused]
    placed, more, notes = small(
        case.machine, open_, near, {w.name: case.limit(w) for w in open_}, foreign
    )
    online = len(case.machine.topology.online)
    many = {w.name for w in workloads if w.cpus > online}
    said = {
        name: Refused(
            workload=name,
            reason=why.reason,
            would_fit_if=why.help
            or (f"cpus = {online}" if name in many else "it wanted what this machine has"),
        )
        for name, why in refused.items()
    }
    return placed, said | more, notes


def _large(case: Case, workloads: Sequence[Workload]) -> Plan:
    decision = decide(case, workloads)
    placed, notes = _placed(case, decision)
    why = dict(decision.refused)
    for g in decision.groups:
        if g.name in decision.answer.out:
            for item in g.items:
                why[item.name] = Why(reason=why_out(case, decision, g, item.workload))
    adviser = Adviser(case, workloads, decision)
    refused: dict[str, Refused] = {}
    for w in workloads:
        if w.name in why:
            help_ = why[w.name].help
            refused[w.name] = Refused(
                workload=w.name,
                reason=why[w.name].reason,
                would_fit_if=help_ if help_ is not None else adviser.change_for(w),
            )
    return placed, refused, notes


def _placed(case: Case, decision: Decision) -> tuple[dict[str, Placed], tuple[str, ...]]:
    machine, answer = case.machine, decision.answer
    topology = machine.topology
    free, _ = left_after(case, decision)
    gpus = any(n.gpu is not None for n in decision.near.values())
    words = Words(
        machine=machine,
        facts=case.facts,
        near=decision.near,
        nics=pairings(topology, case.facts.data_nics(topology)) if gpus else {},
        paths=paths_of(topology) if gpus else {},
    )
    pools, notes = _pools(case, decision, free)
    placed: dict[str, Placed] = {}
    for g in decision.groups:
        at = answer.sites.get(g.name)
        if at is None:
            continue
        site = machine.sites[at]
        for item, taken in answer.given[g.name]:
            w = item.workload
            pus, pool, said = taken.pus, None, ""
            if item.shared:
                all_of_it, pool = pools[at]
                pus = all_of_it & item.allowed
                said = f"shares pool {pool!r} ({cpus_of(all_of_it)}) of {site.name}"
            before = case.current.of(w.name) if case.current is not None else None
            placed[w.name] = Placed(
                workload=w.name,
                unit=w.unit,
                sharing=w.sharing,
                cpus=cpus_of(pus),
                mems=site.mems,
                node=site.node,
                gpu=decision.near[w.name].gpu,
                reasons=reasons_of(words, g, w, case.limit(w), site, pus, said),
                pool=pool,
                kind=w.kind,
                match=w.match,
                roles=role_pus(machine, at, w, pus, before),
                memory_bytes=w.memory_bytes,
                memory_move=w.memory_move,
                rollback=w.rollback,
            )
    return placed, notes


def _pools(
    case: Case, decision: Decision, free: int
) -> tuple[dict[int, tuple[int, str]], tuple[str, ...]]:
    """By site: the PUs of its shared pool and the pool's name; and notes."""
    machine = case.machine
    sharing: dict[int, list[Group]] = {}
    for g in decision.groups:
        at = decision.answer.sites.get(g.name)
        if at is not None and any(i.shared for i in g.items):
            sharing.setdefault(at, []).append(g)
    pools: dict[int, tuple[int, str]] = {}
    notes: list[str] = []
    for at, groups in sharing.items():
        site = machine.sites[at]
        items = [i for g in groups for i in g.items if i.shared]
        pus, with_system = pool_at(machine, at, items, free & ~case.mask(case.foreign))
        name = SHARED_POOL if len(machine.sites) == 1 else f"{SHARED_POOL}-node{site.node}"
        pools[at] = (pus, name)
        if with_system:
            notes.append(
                f"pool {name!r} ({cpus_of(pus)}) holds housekeeping CPUs of {site.name}: "
                "exclusive workloads have the others"
            )
    return pools, tuple(notes)
