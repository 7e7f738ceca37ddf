"""What `near` means on this machine: the sites a workload may go to, and why. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.errors import ParseError
from nodeagent.model.pci import parse_bdf
from nodeagent.model.topology import Topology
from nodeagent.place.facts import Facts
from nodeagent.place.machine import Machine, nearest_sites


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """Where it may go. `sites` None: anywhere."""

    sites: tuple[int, ...] | None = None
    bdf: str | None = None
    gpu: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotHere:
    """Why the machine has no such place, and what would help."""

    reason: str
    would_fit_if: str


def near_of(machine: Machine, near: str | None, facts: Facts) -> Near | NotHere:
    """The sites of a device or node."""
    topology = machine.topology
    if near is None:
        return Near()
    if near.startswith("node:"):
        number = int(near[5:])
        if topology.node(number) is None:
            known = ", ".join(str(n.id) for n in topology.nodes) or "none"
            return NotHere(
                reason=f"near = {near}, but this machine has no NUMA node {number} "
                f"(nodes: {known})",
                would_fit_if="near named a node of this machine",
            )
        return _on_node(machine, number, f"node {number}", None, None)
    bdf = _device(topology, near)
    function = topology.function(bdf) if bdf is not None else None
    if function is None:
        return NotHere(
            reason=f"near = {near}, and no such device is on this machine ({_devices(topology)})",
            would_fit_if="near named a device that `nodeagentctl topology show` lists",
        )
    named = f"{near} ({function.bdf})" if near != function.bdf else facts.named(near)
    gpu = function.bdf if function.is_gpu else None
    if function.numa_node is not None:
        return _on_node(machine, function.numa_node, named, function.bdf, gpu)
    local = machine.sites_of(function.local_cpus) if function.local_cpus else ()
    if local:
        names = " and ".join(f"{machine.sites[i].name}'s" for i in local)
        return Near(
            sites=local,
            bdf=function.bdf,
            gpu=gpu,
            reason=f"{named} is local to CPUs {function.local_cpus}, which are {names}",
        )
    if len(machine.sites) == 1:
        return Near(
            sites=(0,),
            bdf=function.bdf,
            gpu=gpu,
            reason=f"{named}, and this machine has one node with CPUs",
        )
    return NotHere(
        reason=f"the firmware does not say which NUMA node {named} is on",
        would_fit_if="near = node:N, with the node from the board's manual",
    )


def _on_node(machine: Machine, number: int, named: str, bdf: str | None, gpu: str | None) -> Near:
    site = machine.site_of(number)
    where = f"{named} is on node {number}" if bdf is not None else f"{named} is asked for"
    if site is not None:
        return Near(sites=(site,), bdf=bdf, gpu=gpu, reason=where)
    sites = nearest_sites(machine.topology, machine.sites, number)
    if len(sites) == 1:
        where += f", which has no CPUs; the nearest that has is {machine.sites[sites[0]].name}"
    elif sites:
        names = ", ".join(machine.sites[i].name for i in sites)
        where += f", which has no CPUs; as near as each other are {names}"
    return Near(sites=sites, bdf=bdf, gpu=gpu, reason=where)


def _device(topology: Topology, near: str) -> str | None:
    kind, _, rest = near.partition(":")
    tables = {
        "gpu": tuple(p for p in topology.gpus if p.computes),
        "nic": topology.nics,
        "nvme": topology.nvmes,
    }
    if kind in tables and rest.isdecimal():
        found = tables[kind]
        return found[int(rest)].bdf if int(rest) < len(found) else None
    try:
        return parse_bdf(rest if kind in tables else near)
    except ParseError:
        return None


def _devices(topology: Topology) -> str:
    computing = sum(p.computes for p in topology.gpus)
    return f"GPUs: {computing}, NICs: {len(topology.nics)}, NVMe: {len(topology.nvmes)}"
