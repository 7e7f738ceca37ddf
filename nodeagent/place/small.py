"""A machine with fewer than SMALL_PUS: one pool for all that is placed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Placed, Refused, Sharing, Workload
from nodeagent.model.topology import Topology
from nodeagent.place.housekeeping import SMALL_PUS
from nodeagent.place.limits import Limit
from nodeagent.place.machine import Machine, memory_near
from nodeagent.place.near import Near

SHARED_POOL = "shared"


def small(
    machine: Machine,
    workloads: Sequence[Workload],
    near: Mapping[str, Near],
    limits: Mapping[str, Limit],
    taken: CpuSet,
) -> tuple[dict[str, Placed], dict[str, Refused], tuple[str, ...]]:
    """(placed, refused, notes). `taken`: CPUs that others hold."""
    topology, kept = machine.topology, machine.housekeeping
    online = topology.online
    beside = online - kept - taken
    pool = beside - topology.isolation.isolated or beside or kept
    placed: dict[str, Placed] = {}
    refused: dict[str, Refused] = {}
    for w in workloads:
        bound = limits[w.name].cpus
        if bound is not None and not bound.allowed & pool:
            inside = str(bound.allowed) or "no CPU"
            refused[w.name] = Refused(
                workload=w.name,
                reason=f"its cgroup may use {inside} ({bound.file}), and pool {SHARED_POOL!r} is "
                f"{pool}",
                would_fit_if=f"{bound.file} held a CPU of {pool}",
            )
            continue
        placed[w.name] = _placed(machine, w, near[w.name], limits[w.name], pool)
    wanted = [w.name for w in workloads if w.sharing is Sharing.EXCLUSIVE and w.name in placed]
    notes: tuple[str, ...] = ()
    if wanted:
        notes = (
            f"{', '.join(wanted)} asked to be exclusive and share pool {SHARED_POOL!r} "
            f"({pool}): this machine has {len(online)} PUs, exclusive ones need {SMALL_PUS}; "
            f"housekeeping keeps {kept}",
        )
    return placed, refused, notes


def _placed(machine: Machine, w: Workload, wish: Near, limit: Limit, pool: CpuSet) -> Placed:
    topology, kept = machine.topology, machine.housekeeping
    cpus, reasons = pool, []
    if limit.cpus is not None and not pool <= limit.cpus.allowed:
        cpus = pool & limit.cpus.allowed
        reasons.append(f"its cgroup may use {limit.cpus.allowed} ({limit.cpus.file})")
    if w.cpu_list is not None and w.cpu_list & cpus:
        cpus = w.cpu_list & cpus
    for site in wish.sites or ():
        if machine.sites[site].cpus & cpus:
            cpus = machine.sites[site].cpus & cpus
            break
    if wish.reason is not None:
        reasons.append(wish.reason)
    asked = "asked to be exclusive, " if w.sharing is Sharing.EXCLUSIVE else ""
    reasons.append(
        f"{asked}shares pool {SHARED_POOL!r} ({pool}): {len(topology.online)} PUs online, "
        f"exclusive ones need {SMALL_PUS}"
    )
    if w.cpus > len(cpus):
        reasons.append(f"wants {w.cpus} PUs, the pool has {len(cpus)}")
    if w.roles:
        names = ", ".join(r.name for r in w.roles)
        reasons.append(f"a pool has no roles: threads of {names} share it with the rest")
    if cpus & kept:
        reasons.append("this machine has no PU beside that of housekeeping")
    node, mems = _node_of(topology, cpus)
    return Placed(
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


def _node_of(topology: Topology, cpus: CpuSet) -> tuple[int | None, CpuSet]:
    """(the node that holds them all or None, the nodes whose memory goes with them)."""
    nodes = [n for n in topology.nodes if n.cpus & cpus]
    mems = CpuSet()
    for n in nodes:
        mems |= memory_near(topology, n.id)
    return (nodes[0].id if len(nodes) == 1 else None), mems
