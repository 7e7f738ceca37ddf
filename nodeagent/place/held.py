"""What was planned, joined with what is: the rows of `place status`, and a placement read off the
processes themselves. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import (
    MAX_HELD_THREADS,
    Held,
    Placed,
    Placement,
    ProcessState,
    RolePlaced,
    Sharing,
    ThreadState,
    Workload,
)
from nodeagent.model.topology import Topology
from nodeagent.place.match import claims, fits, matching
from nodeagent.place.roles import outside


def held(
    placement: Placement,
    processes: Sequence[ProcessState],
    before: Mapping[int, CpuSet] | None = None,
    run_ns_by_cpu: Mapping[int, Sequence[tuple[int, int]]] | None = None,
) -> tuple[Held, ...]:
    """One row for each process of each placed workload, and one without a pid for a workload that
    has none.

    `before`: mask of a process before it was pinned, by pid (from the journal; absent: never
    pinned). `run_ns_by_cpu`: where a process ran, by pid: (CPU, nanoseconds) pairs as the probe
    counts them. `held`: every thread's mask lies inside its role's set. `cpus_actual` is the
    union of the threads' masks.
    """
    before = before or {}
    ran = run_ns_by_cpu or {}
    rows: list[Held] = []
    seen: set[int] = set()
    for placed in placement.placed:
        found = [p for p in matching(placed.match, processes) if p.pid not in seen]
        seen.update(p.pid for p in found)
        if not found:
            rows.append(_row(placed, None, None, None))
        rows.extend(
            _row(placed, p, before.get(p.pid), ran_inside(placed.cpus, ran.get(p.pid, ())))
            for p in found
        )
    return tuple(rows)


def _row(
    placed: Placed, process: ProcessState | None, before: CpuSet | None, share: float | None
) -> Held:
    threads = process.threads if process is not None else ()
    actual = CpuSet()
    for mask in {t.cpus for t in threads}:
        actual |= mask
    strays = outside(placed, process) if process is not None else ()
    return Held(
        workload=placed.workload,
        kind=placed.kind,
        pid=process.pid if process is not None else None,
        sharing=placed.sharing,
        cpus_before=before,
        cpus_planned=placed.cpus,
        cpus_actual=actual if threads else None,
        node_planned=placed.node,
        ran_inside=share,
        held=process is not None and bool(threads) and not strays,
        threads=_some(threads, strays),
        thread_count=len(threads),
    )


def _some(
    threads: tuple[ThreadState, ...], strays: tuple[ThreadState, ...]
) -> tuple[ThreadState, ...]:
    """At most MAX_HELD_THREADS of them, ascending; the strays first."""
    if len(threads) <= MAX_HELD_THREADS:
        return threads
    away = {t.tid for t in strays}
    rest = (t for t in threads if t.tid not in away)
    return tuple(sorted([*strays, *rest][:MAX_HELD_THREADS], key=lambda t: t.tid))


def ran_inside(planned: CpuSet, run_ns: Sequence[tuple[int, int]]) -> float | None:
    """Share of run time inside the planned set, 0..1; None: it did not run, or was not watched."""
    total = sum(ns for _, ns in run_ns)
    if total <= 0:
        return None
    return sum(ns for cpu, ns in run_ns if cpu in planned) / total


def observed(
    topology: Topology, workloads: Sequence[Workload], processes: Sequence[ProcessState]
) -> Placement:
    """The placement in force as the processes show it, for `plan`'s `current`.

    A workload is placed where all its threads are, when that is fewer CPUs than are online; so
    nothing has to be stored to plan again after a restart without moving anybody. Its roles are
    known where the threads of each are on PUs of their own.
    """
    owned, _ = claims(workloads, processes)
    by_pid = {p.pid: p for p in processes}
    placed: list[Placed] = []
    for w in workloads:
        mine = [by_pid[t.pid] for t in owned.get(w.name, ())]
        cpus = CpuSet()
        for thread in (t for p in mine for t in p.threads):
            cpus |= thread.cpus
        if not cpus or not cpus < topology.online:
            continue
        nodes = [n.id for n in topology.nodes if n.cpus & cpus]
        placed.append(
            Placed(
                workload=w.name,
                unit=w.unit,
                sharing=Sharing(w.sharing),
                cpus=cpus,
                mems=CpuSet(),
                node=nodes[0] if len(nodes) == 1 else None,
                gpu=None,
                reasons=("as its threads are now",),
                kind=w.kind,
                match=w.match,
                roles=_roles(w, mine),
            )
        )
    return Placement(placed=tuple(placed), refused=(), housekeeping=CpuSet())


def _roles(workload: Workload, processes: Sequence[ProcessState]) -> tuple[RolePlaced, ...]:
    """Where the threads of each role are; none unless the roles and the rest are apart."""
    where = {role.name: CpuSet() for role in workload.roles}
    rest = CpuSet()
    for process, thread in ((p, t) for p in processes for t in p.threads):
        role = next((r for r in workload.roles if fits(r, process, thread)), None)
        if role is None:
            rest |= thread.cpus
        else:
            where[role.name] |= thread.cpus
    sets = [*where.values(), rest]
    if sum(map(len, sets)) != len(CpuSet.of(c for s in sets for c in s)):
        return ()
    return tuple(RolePlaced(role=r, cpus=where[r.name]) for r in workload.roles if where[r.name])
