"""Memory in the commands about placement: what is to move, and where it lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nodeagent.errors import NodeagentError
from nodeagent.model.memory import parse_by_node, size
from nodeagent.model.placement import Placement, ProcessState
from nodeagent.model.topology import Topology
from nodeagent.place.moves import Move, movable, move_of, source_of

if TYPE_CHECKING:
    from nodeagent.pin.mover import Mover


def moves(
    placement: Placement, processes: Sequence[ProcessState], topology: Topology
) -> tuple[Move, ...]:
    """What is to move, read page by page from the processes that ask for it, with the time that is
    estimated from moving 16 MiB of our own. Nothing is read, or moved, where none asks for it."""
    wanted = movable(placement, processes)
    if not wanted:
        return ()
    from nodeagent.pin.mover import Mover

    mover, found = Mover(), list[Move]()
    rates: dict[tuple[int, int], tuple[float | None, str]] = {}
    try:
        for placed, process in wanted:
            try:
                by_node = mover.look_all(process.pid).by_node
            except NodeagentError as error:
                found.append(
                    Move(
                        workload=placed.workload,
                        pid=process.pid,
                        bytes=0,
                        action=None,
                        reason=f"{error}; {error.remedy}",
                    )
                )
                continue
            move = move_of(placed, process, by_node, topology)
            if move is None:
                continue
            if move.action is not None:
                pair = source_of(by_node, move.action) or 0, move.action.to
                if pair not in rates:
                    rates[pair] = _rate(mover, *pair)
                move = replace(move, rate=rates[pair][0], how=rates[pair][1])
            found.append(move)
    finally:
        mover.close()
    return tuple(found)


def _rate(mover: Mover, source: int, target: int) -> tuple[float | None, str]:
    try:
        rate = mover.speed(source, target)
    except NodeagentError as error:
        return None, f"it could not be measured: {error}"
    return rate, f"measured now: 16 MiB of our own from node {source} to node {target}"


def progress_words(facts: Mapping[str, object]) -> str:
    """`120.0 MiB of 256.0 MiB moved, 812 MB/s`, from the answer to one step."""
    wanted, moved, took_ns = (
        value if isinstance(value := facts.get(key), int) else 0
        for key in ("wanted_bytes", "moved_bytes", "moving_ns")
    )
    if not wanted:
        return "looking where its pages are"
    rate = f", {moved * 1e3 / took_ns:.0f} MB/s" if took_ns and moved else ""
    return f"{size(moved)} of {size(wanted)} moved{rate}"


def move_line(move: Move) -> str:
    """One line of a plan."""
    what = f"{size(move.bytes)} of memory on other nodes"
    if move.action is None:
        return f"memory is not moved: {move.reason}"
    where = ", ".join(
        f"node {node}: {size(bytes_)}"
        for node, bytes_ in sorted(parse_by_node(move.action.before).items())
        if bytes_
    )
    seconds = move.seconds
    if seconds is None:
        told = f"how long it takes is not known ({move.how})"
    else:
        told = f"about {seconds:.1f} s at {(move.rate or 0) / 1e6:.0f} MB/s ({move.how})"
    return (
        f"{what} ({where}) -> node {move.action.to}, {told}; undo leaves it there; what other "
        "processes share, and what is pinned for DMA, stays"
    )
