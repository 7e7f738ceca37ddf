"""Which processes' memory is to move, where to, and whether there is room. Pure.

Only workloads that say `memory_move = "migrate"`; what lies on their planned nodes already stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nodeagent.model.memory import (
    by_node_text,
    outside,
    room_needed,
    size,
)
from nodeagent.model.placement import (
    MigrateMemory,
    Placed,
    Placement,
    ProcessState,
    Target,
)
from nodeagent.model.topology import NumaNode, Topology
from nodeagent.place.match import matching


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One process's memory that lies elsewhere. `action` None: `reason` says why it is not
    moved."""

    workload: str
    pid: int
    bytes: int
    """To move: on other nodes than planned."""
    action: MigrateMemory | None
    reason: str = ""
    rate: float | None = None
    """Bytes a second, measured; None: not known."""
    how: str = ""
    """How the rate was measured, or why it was not."""

    @property
    def seconds(self) -> float | None:
        """Estimated; None: not known."""
        return None if not self.rate else self.bytes / self.rate


def movable(
    placement: Placement, processes: Sequence[ProcessState]
) -> tuple[tuple[Placed, ProcessState], ...]:
    """Processes of workloads whose memory may be moved while they run."""
    found: list[tuple[Placed, ProcessState]] = []
    seen: set[int] = set()
    for placed in placement.placed:
        for process in matching(placed.match, processes):
            if process.pid not in seen:
                seen.add(process.pid)
                if placed.memory_move == "migrate" and placed.mems:
                    found.append((placed, process))
    return tuple(found)


def move_of(
    placed: Placed, process: ProcessState, by_node: Mapping[int, int], topology: Topology
) -> Move | None:
    """What is to move of one process; None: nothing lies elsewhere."""
    bytes_ = outside(by_node, placed.mems)
    if bytes_ == 0:
        return None
    to = _roomiest(placed, topology)
    room = _available(to)
    move = Move(
        workload=placed.workload,
        pid=process.pid,
        bytes=bytes_,
        action=MigrateMemory(
            workload=placed.workload,
            target=Target(pid=process.pid, tid=0, start_time=process.start_time),
            nodes=placed.mems,
            to=to.id if to is not None else min(placed.mems.ids),
            before=by_node_text(by_node),
        ),
    )
    if room is None or to is None or room >= room_needed(bytes_):
        # What is not known here is looked up by the actor before it begins.
        return move
    return Move(
        workload=placed.workload,
        pid=process.pid,
        bytes=bytes_,
        action=None,
        reason=f"node {to.id} has {size(room)} free or reclaimable, the {size(bytes_)} on other "
        f"nodes need {size(room_needed(bytes_))} there, with 10 % to spare",
    )


def source_of(by_node: Mapping[int, int], move: MigrateMemory) -> int | None:
    """The node that most of it comes from."""
    others = [(bytes_, node) for node, bytes_ in by_node.items() if node not in move.nodes]
    return max(others)[1] if others else None


def _roomiest(placed: Placed, topology: Topology) -> NumaNode | None:
    nodes = [n for n in topology.nodes if n.id in placed.mems]
    return max(nodes, key=lambda n: (_available(n) or 0, -n.id), default=None)


def _available(node: NumaNode | None) -> int | None:
    if node is None:
        return None
    known = node.memory_available_bytes
    return known if known is not None else node.memory_free_bytes
