"""How much of a process's memory lies on its planned nodes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.model.memory import MemorySeen, known_local, local_share
from nodeagent.model.placement import Placed, ProcessState
from nodeagent.model.topology import Topology
from nodeagent.place.match import matching


def memory_local(
    placed: Placed,
    process: ProcessState,
    processes: Sequence[ProcessState],
    seen: MemorySeen,
    topology: Topology | None,
) -> float | None:
    """0..1; None: not known. What was sampled of the process itself comes first; its cgroup's sum
    counts where everybody in it belongs to the workload. `processes`: all of the machine."""
    if topology is not None:
        known = known_local(placed.mems, [n.id for n in topology.nodes if n.memory_bytes])
        if known is not None:
            return known
    sampled = seen.by_pid.get(process.pid)
    if sampled is not None:
        return local_share(sampled, placed.mems)
    counted = seen.by_cgroup.get(process.cgroup)
    if counted is None or not _alone(placed, process.cgroup, processes):
        return None
    return local_share(counted, placed.mems)


def _alone(placed: Placed, cgroup: str, processes: Sequence[ProcessState]) -> bool:
    below = cgroup.rstrip("/") + "/"
    there = [p for p in processes if p.cgroup == cgroup or p.cgroup.startswith(below)]
    return len(matching(placed.match, there)) == len(there)
