"""`place plan --container`: how to start a workload where the plan has it, printed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from nodeagent.cli.main import Invocation
from nodeagent.cli.place import RUNTIMES
from nodeagent.cli.planned import Planned
from nodeagent.errors import NodeagentError, UsageError
from nodeagent.model.cgroup import unit_of
from nodeagent.model.placement import Match, Placed, ProcessState
from nodeagent.place.match import matching

PODS = "io.kubernetes."
MAX_TOLD = 8
"""Workloads of which it is said why that runtime."""


TOOLS = ("podman", "docker")
"""Programs that start containers; the first that is installed is meant where nothing else tells."""
_WRITTEN_AS = {"nerdctl": "docker", "containerd": "docker"}
"""Whose command line takes the options of another."""


def show(
    invocation: Invocation, found: Planned, named: str | None, runtimes: Sequence[str]
) -> None:
    """Prints the snippets of the workloads named (commas between them), or of all that are placed,
    for the runtime that each has; `runtimes`: for those. Raises UsageError for a name that the file
    does not have, NodeagentError for one that is refused."""
    from nodeagent.cli.output import emit_json, even_unheard, note
    from nodeagent.cli.render.launch import Launch, snippet
    from nodeagent.cli.render.placement import placement_json

    chosen = _chosen(found, named)
    tools = [t for t in TOOLS if invocation.host is None and shutil.which(t) is not None]
    socket, gid, groups = _ring(invocation)
    made, why = [], []
    for p in chosen:
        runtime, reason = runtime_of(p, matching(p.match, found.processes), tools)
        if not runtimes:
            why.append(f"{p.workload}: {runtime}, {reason}")
        launch = Launch(placed=p, ring_socket=socket, gid=gid, groups=groups)
        made += [(p.workload, r, snippet(launch, r)) for r in runtimes or (runtime,)]
    if why:
        note(f"{'; '.join(why[:MAX_TOLD])}. --runtime chooses another: {', '.join(RUNTIMES)}")
    with even_unheard():
        if invocation.output != "table":
            launch_json = [{"workload": w, "runtime": r, "text": text} for w, r, text in made]
            emit_json("placement", {**placement_json(found), "launch": launch_json})
            return
        # As it is, for pasting: no wrapping and no colour.
        print("\n".join(text for _, _, text in made), end="")


def runtime_of(
    placed: Placed, processes: Sequence[ProcessState], tools: Sequence[str]
) -> tuple[str, str]:
    """(one of RUNTIMES, why it): what runs its processes, else what its match says, else the tools
    that are installed."""
    match = placed.match or Match()
    boxes = [p.container for p in processes if p.container is not None]
    pods = [box for box in boxes if box.pod is not None and box.runtime != "podman"]
    if pods or (match.label or "").startswith(PODS):
        return "kubernetes", "it runs in a pod" if pods else "its match has a pod's label"
    if boxes:
        runtime = _WRITTEN_AS.get(boxes[0].runtime, boxes[0].runtime)
        if runtime in TOOLS:
            return runtime, f"which runs it ({boxes[0].name or boxes[0].id[:12]})"
    boxed = bool(boxes) or match.by_container
    units = [u for u in (unit_of(p.cgroup) for p in processes) if u is not None]
    units = [u for u in units if u.endswith(".service") and not u.startswith("user@")]
    if not boxed and units:
        return "systemd", f"which runs it ({units[0]})"
    if not boxed and match.unit is not None:
        return "systemd", "its match names a unit"
    if tools:
        return tools[0], "which is installed here"
    return TOOLS[0], "for none was found here"


def _chosen(found: Planned, named: str | None) -> tuple[Placed, ...]:
    if named is not None:
        return tuple(_one(found, name.strip()) for name in named.split(","))
    if not found.placement.placed:
        raise NodeagentError(
            f"no workload of {found.file} is placed, so there is nothing to launch",
            "nodeagentctl place plan says why",
        )
    return found.placement.placed


def _one(found: Planned, workload: str) -> Placed:
    placement = found.placement
    placed = placement.of(workload)
    if placed is not None:
        return placed
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
