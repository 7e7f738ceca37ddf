"""Which role each thread of a placed process has, and so which PUs. Pure.

Every thread has exactly one seat: that of the first role that fits it, else the rest's. The rest
has the workload's PUs that no role took, or all of them where none is left.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Consent, Placed, Placement, ProcessState, ThreadState
from nodeagent.place.engines import part_of
from nodeagent.place.match import fits

MAIN = "main"
REST = "thread"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where one thread belongs."""

    role: str
    """Name of its role; of no role: what its engine calls it, else `main` or `thread`."""
    cpus: CpuSet


def rest_of(placed: Placed) -> CpuSet:
    """The PUs of the threads that no role fits."""
    left = placed.cpus
    for given in placed.roles:
        left -= given.cpus
    return left or placed.cpus


def seats(placed: Placed, process: ProcessState) -> dict[int, Seat]:
    """Thread number -> its seat, for each thread of one of the workload's processes."""
    rest = rest_of(placed)
    # A pool has one name and hundreds of threads, and all else is the process's.
    known: dict[tuple[str, bool], Seat] = {}
    found = {}
    for thread in process.threads:
        key = thread.comm, thread.tid == process.pid
        if key not in known:
            known[key] = _seat(placed, process, thread, rest)
        found[thread.tid] = known[key]
    return found


def _seat(placed: Placed, process: ProcessState, thread: ThreadState, rest: CpuSet) -> Seat:
    given = next((g for g in placed.roles if fits(g.role, process, thread)), None)
    if given is not None:
        return Seat(role=given.role.name, cpus=given.cpus)
    usual = MAIN if thread.tid == process.pid else REST
    return Seat(role=part_of(process, thread) or usual, cpus=rest)


def inside(mask: CpuSet, planned: CpuSet) -> bool:
    """Whether a thread with that mask runs within the plan; an unread (empty) mask does not."""
    return bool(mask) and mask <= planned


def outside(placed: Placed, process: ProcessState) -> tuple[ThreadState, ...]:
    """The threads that may run beside their seat."""
    where = seats(placed, process)
    return tuple(t for t in process.threads if not inside(t.cpus, where[t.tid].cpus))


def role_notes(placement: Placement, consents: AbstractSet[Consent]) -> tuple[str, ...]:
    """Roles that the allowed classes of acts cannot hold: a cpuset holds whole processes."""
    if Consent.THREADS in consents:
        return ()
    with_roles = [p for p in placement.placed if p.roles]
    return tuple(
        f"roles of {p.workload} ({', '.join(r.role.name for r in p.roles)}) are held by affinity "
        "only: allow class threads too"
        for p in with_roles
    )
