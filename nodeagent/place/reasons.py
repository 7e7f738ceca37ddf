"""Why each workload is where it is, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Workload
from nodeagent.model.topology import Path, Topology
from nodeagent.place.answer import Group
from nodeagent.place.facts import Facts
from nodeagent.place.limits import Limit
from nodeagent.place.machine import Machine, Site
from nodeagent.place.near import Near
from nodeagent.place.nics import Pairing

MAX_NAMED = 3
"""Devices named one by one in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What sentences are made from."""

    machine: Machine
    facts: Facts
    near: Mapping[str, Near]
    nics: Mapping[str, Pairing]
    paths: Mapping[tuple[str, str], Path]


def paths_of(topology: Topology) -> dict[tuple[str, str], Path]:
    """Path of each pair of devices, both ways round."""
    found: dict[tuple[str, str], Path] = {}
    for r in topology.relations:
        found[r.a, r.b] = found[r.b, r.a] = r.path
    return found


def reasons_of(
    words: Words, group: Group, workload: Workload, limit: Limit, site: Site, pus: int, pool: str
) -> tuple[str, ...]:
    """Of a workload that has `pus`; `pool` names the pool that it shares, "" none."""
    machine, wish = words.machine, words.near[workload.name]
    reasons: list[str] = []
    if wish.reason is not None:
        reasons.append(wish.reason)
    if wish.gpu is not None and wish.gpu in words.nics:
        reasons.append(_nic(words, words.nics[wish.gpu]))
    if workload.unit is not None and len(group.items) > 1:
        reasons += _unit(words, group, workload, site)
    if pool:
        reasons.append(pool)
    elif workload.cpu_list is not None:
        reasons.append("these CPUs are named by cpu_list")
    else:
        if wish.reason is None and len(machine.sites) > 1 and workload.unit is None:
            reasons.append(f"{site.name} has the room")
        reasons.append(_shape(machine, machine.sites.index(site), workload, pus))
        reasons += _isolated(words, workload, pus)
    if limit.cpus is not None and not site.cpus <= limit.cpus.allowed:
        reasons.append(f"its cgroup may use CPU {limit.cpus.allowed} only ({limit.cpus.file})")
    if site.node is not None and not CpuSet.of([site.node]) <= site.mems:
        reasons.append(
            f"{site.name} has no memory; the nearest with host memory is node {site.mems}"
            if site.mems
            else f"{site.name} has no memory, and no node with host memory is known"
        )
    return tuple(reasons)


def _nic(words: Words, pair: Pairing) -> str:
    name = words.facts.named(pair.nic)
    if pair.path is Path.SYS:
        return f"no NIC is on its GPU's node; the nearest is {name}, across nodes (SYS)"
    text = f"its GPU's NIC is {name}, {pair.path}"
    if pair.ties:
        others = [words.facts.named(n) for n in pair.ties[:MAX_NAMED]]
        more = len(pair.ties) - len(others)
        also = f" and {more} more" if more else ""
        verb = "is" if len(pair.ties) == 1 else "are"
        text += f" ({', '.join(others)}{also} {verb} as near: NICs are dealt out evenly)"
    if pair.with_gpus:
        others = [words.facts.named(g) for g in pair.with_gpus[:MAX_NAMED]]
        more = len(pair.with_gpus) - len(others)
        also = f" and {more} more" if more else ""
        verb = "has" if len(pair.with_gpus) == 1 else "have"
        text += f"; {', '.join(others)}{also} {verb} it too"
    return text


def _unit(words: Words, group: Group, workload: Workload, site: Site) -> list[str]:
    others = [i.workload for i in group.items if i.name != workload.name]
    found = [f"unit {workload.unit}: on {site.name} with {', '.join(w.name for w in others)}"]
    mine = words.near[workload.name].bdf
    for w in others:
        theirs = words.near[w.name].bdf
        if mine is None or theirs is None or mine == theirs:
            continue
        path = words.paths.get((mine, theirs))
        if path is not None:
            found.append(
                f"{words.facts.named(mine)} and {words.facts.named(theirs)} are {path} to one "
                "another"
            )
    return found


def _isolated(words: Words, workload: Workload, pus: int) -> list[str]:
    if not workload.isolated:
        return []
    if workload.name in words.facts.cgroups.isolating:
        return ["wants isolated CPUs, and partitions of cgroup v2 isolate on this node"]
    if not words.machine.isolates:
        return ["wants isolated CPUs, and this machine isolates none"]
    found = ["isolated CPUs, as wanted"]
    if pus.bit_count() > 1:
        found.append(
            "the kernel balances no load between isolated CPUs: the program must bind its own "
            "threads"
        )
    return found


def _shape(machine: Machine, site: int, workload: Workload, pus: int) -> str:
    pieces = [p for p in machine.pieces[site] if p.mask & pus]
    cores = len({p.core for p in pieces})
    groups = {p.l3 for p in pieces}
    count = pus.bit_count()
    pu_word = "PU" if count == 1 else "PUs"
    core_word = "core" if cores == 1 else "cores"
    if not machine.topology.smt_siblings:
        text = f"{count} {pu_word}; which are siblings is not told here"
    elif workload.smt == "one-per-core" and count == 1:
        (piece,) = pieces
        text = "1 PU, its core's siblings left idle" if piece.core & ~pus else "1 PU, a whole core"
    elif workload.smt == "one-per-core":
        beside = sum(p.core.bit_count() for p in pieces) > count
        idle = ", siblings left idle" if beside else ""
        text = f"{count} {pu_word}, one on each of {cores} {core_word}{idle}"
    elif all(p.core & ~pus == 0 for p in pieces):
        text = f"{count} {pu_word}: {cores} whole {core_word}"
        if workload.smt == "whole-core" and count > workload.cpus:
            text += f" ({workload.cpus} asked for, rounded up)"
    else:
        text = f"{count} {pu_word} on {cores} {core_word}"
    if not any(c.level == 3 for c in machine.topology.caches):
        return f"{text}; no L3 cache is told here" if workload.l3 == "one" else text
    if len(groups) == 1:
        asked = ", as wanted" if workload.l3 == "one" else ""
        return f"{text}, within one L3 group ({machine.l3_groups[min(groups)]}){asked}"
    return f"{text}, over {len(groups)} L3 groups"
