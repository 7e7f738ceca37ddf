"""`place plan --container`: how to start a workload where the plan has it, printed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nodeagent.cli.main import Invocation
from nodeagent.cli.planned import Planned
from nodeagent.errors import NodeagentError, UsageError
from nodeagent.model.placement import Placed


def show(
    invocation: Invocation, found: Planned, workload: str | None, runtimes: Sequence[str]
) -> None:
    """Prints the snippets of one workload, or of all that are placed. Raises UsageError for a
    name that the file does not have, NodeagentError for one that is refused."""
    from nodeagent.cli.output import emit_json, even_unheard
    from nodeagent.cli.render.launch import Launch, snippet
    from nodeagent.cli.render.placement import placement_json

    chosen = _chosen(found, workload)
    socket, gid, groups = _ring(invocation)
    made = [
        (
            p.workload,
            runtime,
            snippet(Launch(placed=p, ring_socket=socket, gid=gid, groups=groups), runtime),
        )
        for p in chosen
        for runtime in runtimes
    ]
    with even_unheard():
        if invocation.output != "table":
            launch = [{"workload": w, "runtime": r, "text": text} for w, r, text in made]
            emit_json("placement", {**placement_json(found), "launch": launch})
            return
        # As it is, for pasting: no wrapping and no colour.
        print("\n".join(text for _, _, text in made), end="")


def _chosen(found: Planned, workload: str | None) -> tuple[Placed, ...]:
    placement = found.placement
    if workload is None:
        if not placement.placed:
            raise NodeagentError(
                f"no workload of {found.file} is placed, so there is nothing to launch",
                "nodeagentctl place plan says why",
            )
        return placement.placed
    placed = placement.of(workload)
    if placed is not None:
        return (placed,)
    refused = next((r for r in placement.refused if r.workload == workload), None)
    if refused is not None:
        raise NodeagentError(
            f"workload {workload} is refused: {refused.reason}",
            f"it would fit if {refused.would_fit_if}",
        )
    known = ", ".join(w.name for w in found.workloads[:12])
    raise UsageError(f"{found.file} has no workload {workload!r}", f"it has: {known or 'none'}")


def _ring(invocation: Invocation) -> tuple[str, int | None, tuple[str, ...]]:
    """(ring.sock, number of the group that may read it, names of such groups)."""
    from nodeagent.cli.workloads import configuration

    if invocation.host is not None and invocation.config is None:
        return "/run/nodeagent/ring.sock", None, ("nodeagent",)
    config = configuration(invocation.config).config
    folder = config.daemon.run_dir
    if invocation.socket is not None and invocation.config is None:
        folder = str(Path(invocation.socket).parent)
    groups = tuple(config.ring.reader_groups)
    gid = None
    if invocation.host is None:
        import grp

        known = {g.gr_name: g.gr_gid for g in grp.getgrall()}
        gid = next((known[g] for g in groups if g in known), None)
    return f"{folder}/ring.sock", gid, groups
