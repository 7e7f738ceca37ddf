"""Which processes go into an isolated partition of ours, and why others do not. Pure.

A partition stands at the top of the tree of cgroup v2, one for each workload. Only a process that
nobody's manager holds can be moved there: systemd and a container's runtime lose sight of what
leaves their groups. Its workload's CPUs are exclusive, so no two partitions overlap.
Source: Documentation/admin-guide/cgroup-v2.rst, "cpuset.cpus.partition"; docs/adr/0021.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from nodeagent.model.placement import (
    PARTITION_ROOT,
    Consent,
    Knob,
    MoveToCpuset,
    Placed,
    Placement,
    ProcessState,
    SetValue,
    Sharing,
    Target,
    Workload,
)
from nodeagent.model.settings import Isolation
from nodeagent.place.holders import Facts, Hold, Holder

MEMBER = "member"
"""What the knob says of a group that isolates nothing."""
INSTEAD = 'boot arguments isolate for those too: [pin] isolation = "boot", nodeagentctl place boot'


def isolating(workloads: Sequence[Workload], owner: Isolation) -> tuple[str, ...]:
    """Names of those that are to have a partition. `owner`: [pin] isolation."""
    if owner is not Isolation.PARTITION:
        return ()
    return tuple(w.name for w in workloads if w.isolated)


def path_of(workload: str) -> str:
    """The cgroup of its partition."""
    return f"{PARTITION_ROOT}{workload}"


def wants(workload: str, facts: Facts | None) -> bool:
    """Whether it is to be isolated by a partition."""
    return facts is not None and workload in facts.isolating


def why_not(
    placed: Placed,
    placement: Placement,
    hold: Hold,
    consents: AbstractSet[Consent],
    facts: Facts,
) -> str | None:
    """Why a process of a workload that wants it is not moved into a partition; None: it is."""
    if placed.sharing is not Sharing.EXCLUSIVE or placed.pool is not None or not placed.cpus:
        return "its CPUs are shared"
    if placed.cpus & placement.housekeeping:
        return f"CPU {placed.cpus & placement.housekeeping} does housekeeping"
    if facts.version != 2:
        return "partitions are of cgroup v2, which has no cpuset controller here"
    missing = [c for c in (Consent.CGROUP, Consent.HOST) if c not in consents]
    if missing:
        return f"no consent for acts of class {missing[0]}, which a partition needs"
    if not facts.controller:
        return "the cpuset controller is off at the root of cgroup v2"
    if hold.holder is Holder.UNIT:
        return (
            f"the cgroup of {hold.subject} is systemd's to write, and its processes are not moved "
            f"out of it; {INSTEAD}"
        )
    if hold.holder is not Holder.CPUSET:
        return f"a process of a unit, a login or a container is not moved out of it; {INSTEAD}"
    return None


def told_of(hold: Hold, placed: Placed, why: str | None) -> Hold:
    """The holder's sentence, with what becomes of the isolation."""
    if why is None:
        return replace(hold, reason=f"isolated by partition {path_of(placed.workload)}")
    return replace(hold, reason=f"{hold.reason}; not isolated: {why}")


def acts(
    placed: Placed, process: ProcessState, facts: Facts
) -> tuple[SetValue | MoveToCpuset, ...]:
    """The partition first, then the process into it; what is so already is left out."""
    found: list[SetValue | MoveToCpuset] = []
    standing = facts.partitions.get(placed.workload)
    if standing != placed.cpus:
        found.append(
            SetValue(
                workload=placed.workload,
                knob=Knob.PARTITION,
                subject=placed.workload,
                value=str(placed.cpus),
                before=MEMBER if standing is None else str(standing),
                exclusive=True,
            )
        )
    if process.cgroup != path_of(placed.workload):
        found.append(
            MoveToCpuset(
                workload=placed.workload,
                target=Target(pid=process.pid, tid=0, start_time=process.start_time),
                cpuset=path_of(placed.workload),
                cpus=placed.cpus,
                mems=placed.mems,
                before=process.cgroup,
                exclusive=True,
            )
        )
    return tuple(found)


def status(workload: str, process: ProcessState, facts: Facts | None) -> str:
    """Whether a process that is to be isolated is, in words; empty: it is not to be."""
    if facts is None or not wants(workload, facts):
        return ""
    inside = f"{process.cgroup}/".startswith(f"{path_of(workload)}/")
    if inside and workload in facts.partitions:
        return f"isolated by partition {path_of(workload)}"
    return "not isolated: see place plan"
