"""The machine as a tree on a terminal."""

from __future__ import annotations

from nodeagent.model.snapshot import Snapshot


def print_topology(snapshot: Snapshot) -> None:
    """Prints it."""
    from nodeagent.cli.output import console

    out = console()
    for node in snapshot.topology.nodes:
        out.print(f"node {node.id}: CPUs {node.cpus or 'none'}")
