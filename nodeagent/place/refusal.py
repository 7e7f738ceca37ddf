"""Why a workload has no place: what is missing, with the figures of the finished plan. Pure."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.model.placement import Workload
from nodeagent.place.answer import Group, Resource
from nodeagent.place.decide import Case, Decision, anybodys
from nodeagent.place.machine import Machine
from nodeagent.place.memory import added, short_of
from nodeagent.place.pack import greedy
from nodeagent.place.room import Item, capacity_of


def left_after(case: Case, decision: Decision) -> tuple[int, dict[Resource, int]]:
    """(PUs, bytes) that the answer leaves."""
    free = case.machine.givable
    demands = []
    for g in decision.groups:
        site = decision.answer.sites.get(g.name)
        if site is not None:
            demands.append(g.demand[site])
            for _, taken in decision.answer.given[g.name]:
                free &= ~taken.gone
    gone = added(demands)
    return free, {k: n - gone.get(k, 0) for k, n in decision.room.items()}


def why_out(case: Case, decision: Decision, group: Group, workload: Workload) -> str:
    """Why the search found no room for a group, told for one of its workloads."""
    free, left = left_after(case, decision)
    text = _missing(case, decision, group, workload, free, left)
    exclusive = sum(i.workload.cpus for i in group.items if not i.shared)
    if len(group.items) > 1 and exclusive:
        return f"{group.name} needs {exclusive} exclusive PUs on one node: {text}"
    return text


def _missing(
    case: Case,
    decision: Decision,
    group: Group,
    workload: Workload,
    free: int,
    left: dict[Resource, int],
) -> str:
    machine = case.machine
    item = next(i for i in group.items if i.name == workload.name)
    near = decision.near[workload.name].reason
    best = max(group.sites, key=lambda s: (_have(machine, s, item, free), -s))
    site = machine.sites[best]
    alone = len(group.sites) == 1
    lead = f"{near}; " if alone and near is not None else ""
    short = [short_of(group.demand[s], left) for s in group.sites]
    if all(s is not None for s in short):
        roomiest = max(
            range(len(short)), key=lambda n: (x.left if (x := short[n]) is not None else 0, -n)
        )
        lacks = short[roomiest]
        assert lacks is not None
        where = machine.sites[group.sites[roomiest]].name
        text = lead + lacks.sentence(machine.topology, where)
        return text if alone else f"no node has the memory: {text}"
    if workload.cpu_list is not None:
        return lead + _fixed(case, decision, workload)
    if item.shared:
        held = _pool(machine, best, item, free)
        text = (
            f"{lead}{site.name} has {held} PUs for shared workloads, housekeeping's included, the "
            f"request needs {workload.cpus}"
        )
        return text if alone else f"no node has the room: {text}"
    exclusive = [i for i in group.items if not i.shared]
    need = sum(i.workload.cpus for i in exclusive)
    have = _have(machine, best, item, free)
    kind = "isolated PUs" if item.isolated else "PUs"
    smt = workload.smt
    if smt != "any":
        kind = {"whole-core": f"{kind} in whole cores", "one-per-core": "whole cores"}[smt]
    outside = "" if item.isolated else _isolated_words(machine, best)
    text = f"{lead}{site.name} has {have} {kind} free{outside}, the request needs {need}"
    if have >= need and item.one_l3:
        most = max(
            (capacity_of(g, smt, free) for g in machine.usable(best, item.isolated, item.allowed)),
            default=0,
        )
        text = (
            f"{lead}{site.name} has {have} {kind} free{outside}, but no L3 group has more than "
            f'{most} of them, and the request needs {workload.cpus} with l3 = "one"'
        )
    elif have >= need:
        pooled = [
            i
            for name, s in decision.answer.sites.items()
            if s == best
            for i, _ in decision.answer.given[name]
            if i.shared
        ]
        if pooled and greedy(machine, best, group.items, free) is not None:
            names = ", ".join(i.name for i in pooled)
            text += f", and shared workloads need some of them ({names})"
        else:
            text += ", and they do not lie as its rules want them"
    text += _bound_words(case, machine, best, item, free)
    return text if alone else f"no node has the room: {text}"


def _bound_words(case: Case, machine: Machine, site: int, item: Item, free: int) -> str:
    """Names the file that keeps a workload from PUs that are free."""
    limit = case.limit(item.workload).cpus
    more = _have(machine, site, replace(item, allowed=machine.givable), free)
    if limit is not None and more > _have(machine, site, item, free):
        inside = f"CPU {limit.allowed} only" if limit.allowed else "no CPU"
        return f"; its cgroup may use {inside} ({limit.file})"
    if more > _have(machine, site, replace(item, allowed=anybodys(case)), free):
        held = [
            f"{p.cgroup} holds {p.cpus} ({p.file})"
            for p in case.facts.cgroups.foreign
            if p.cpus & machine.sites[site].cpus
        ]
        hidden = case.facts.cgroups.hidden
        if held:
            return f"; partition {', '.join(held)}"
        if hidden is not None:
            return f"; we may use CPU {hidden.allowed} only ({hidden.file})"
    return ""


def _have(machine: Machine, site: int, item: Item, free: int) -> int:
    """PUs (one-per-core: cores) free there that its rules let it have."""
    groups = machine.usable(site, item.isolated, item.allowed)
    return sum(capacity_of(g, item.workload.smt, free) for g in groups)


def _pool(machine: Machine, site: int, item: Item, free: int) -> int:
    return ((free & machine.usual[site] | machine.pools[site]) & item.allowed).bit_count()


def _fixed(case: Case, decision: Decision, workload: Workload) -> str:
    """What stands in the way of a cpu_list."""
    assert workload.cpu_list is not None
    mask = case.mask(workload.cpu_list)
    for given in decision.answer.given.values():
        for other, taken in given:
            if taken.gone & mask and other.name != workload.name:
                if taken.pus & mask:
                    return f"CPUs of cpu_list {workload.cpu_list} are given to {other.name}"
                return (
                    f"CPUs of cpu_list {workload.cpu_list} are siblings that {other.name} wants "
                    "left idle"
                )
    limit = case.limit(workload).cpus
    if limit is not None and not workload.cpu_list <= limit.allowed:
        return (
            f"cpu_list {workload.cpu_list} has CPUs that its cgroup may not use: it may use "
            f"{limit.allowed or 'no CPU'} ({limit.file})"
        )
    if workload.smt != "any":
        return f'cpu_list {workload.cpu_list} does not keep smt = "{workload.smt}"'
    if workload.l3 == "one":
        return f'cpu_list {workload.cpu_list} spans L3 groups, and l3 = "one"'
    return f"CPUs of cpu_list {workload.cpu_list} are not to be had"


def _isolated_words(machine: Machine, site: int) -> str:
    isolated = machine.sites[site].cpus & machine.topology.isolation.isolated
    return f" outside the isolated set {isolated}" if isolated else ""
