"""`nodeagentctl exec`: start a program on its CPUs and memory nodes; the policy survives exec."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from nodeagent.cli.main import Invocation
from nodeagent.cli.place import complete_workload
from nodeagent.errors import ActError, NodeagentError, RightsError, UsageError
from nodeagent.model.cpuset import CpuSet

if TYPE_CHECKING:
    from nodeagent.model.placement import Placed, Workload

EXIT_NOT_FOUND, EXIT_NOT_RUN = 127, 126


@click.command(
    name="exec",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="\b\nExamples:  nodeagentctl exec --mems 0 --cpus 4-7 -- python3 -m vllm serve\n"
    "           nodeagentctl exec --workload rank0 -- ./start-rank0\n"
    "\b\nExit codes: those of CMD; 126 it could not be run, 127 it was not found,\n"
    "            3 the CPUs or nodes are not to be had (CMD is not started then),\n"
    "            64 wrong usage",
)
@click.option(
    "--workload",
    metavar="NAME",
    shell_complete=complete_workload,
    help="CPUs and memory as the plan has them for NAME.",
)
@click.option("--workloads", "file", metavar="FILE", help="Workload file for --workload.")
@click.option("--mems", metavar="LIST", help="NUMA nodes to take memory from.")
@click.option("--cpus", metavar="LIST", help="CPUs to run on.")
@click.option(
    "--policy",
    type=click.Choice(["bind", "preferred", "interleave", "weighted-interleave"]),
    default="bind",
    show_default=True,
    help="bind: from these nodes or not at all; preferred: from them first; interleave: by turns; "
    "weighted-interleave: by turns as the kernel's weights say (Linux 6.9).",
)
@click.option("--force", is_flag=True, help="Start it although its memory is not free there.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="-- CMD...")
@click.pass_obj
def exec_command(
    invocation: Invocation,
    workload: str | None,
    file: str | None,
    mems: str | None,
    cpus: str | None,
    policy: str,
    force: bool,
    command: tuple[str, ...],
) -> None:
    """Set memory policy and CPU affinity, then become CMD.

    Memory policy belongs to a thread and cannot be set from outside later: this is the moment. A
    node or CPU that is not there is an error, never ignored; with --workload so is a node without
    the memory and huge pages that the workload wants. Nothing is recorded for undo: the program
    was never anywhere else.
    """
    if invocation.host is not None:
        raise UsageError(
            "exec starts a program on this machine, and --host names another", "leave --host out"
        )
    from nodeagent.cli.workloads import cpu_list

    nodes = cpu_list("--mems", mems) if mems is not None else None
    wanted = cpu_list("--cpus", cpus) if cpus is not None else None
    planned = None if workload is None else _planned(workload, file, invocation.config)
    if planned is not None:
        placed = planned[1]
        wanted = placed.cpus if wanted is None else wanted
        nodes = placed.mems if nodes is None and placed.mems else nodes
    if nodes is None and wanted is None:
        raise UsageError(
            "exec without --workload, --mems or --cpus changes nothing",
            "say what to set, or run the program itself",
        )
    if nodes is not None:
        from nodeagent.cli.nodes import allowed_here, check_nodes, check_room, nodes_here
        from nodeagent.pin.memory import set_launch_policy

        here = nodes_here()
        check_nodes(nodes, here, allowed_here())
        # Any other policy takes the rest from elsewhere.
        if planned is not None and policy == "bind" and not force:
            asks = planned[0]
            check_room(asks.name, asks.memory_bytes, asks.hugepages, nodes, here)
        set_launch_policy(policy, nodes)
    if wanted is not None:
        _set_cpus(wanted)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvp(command[0], list(command))
    except FileNotFoundError as error:
        raise _NotStartedError(command[0], "not found", EXIT_NOT_FOUND) from error
    except OSError as error:
        raise _NotStartedError(command[0], error.strerror or str(error), EXIT_NOT_RUN) from error


class _NotStartedError(NodeagentError):
    def __init__(self, program: str, why: str, code: int) -> None:
        super().__init__(f"{program}: {why}", "give the program's full path after --")
        self.exit_code = code


def _set_cpus(cpus: CpuSet) -> None:
    if not cpus:
        raise UsageError("--cpus: saw an empty list, expected CPUs such as 4-7", "name some")
    try:
        os.sched_setaffinity(0, cpus.ids)
    except PermissionError as error:
        raise RightsError(
            f"CPU {cpus} may not be set: {error.strerror}", "see man 2 sched_setaffinity"
        ) from error
    except OSError as error:
        raise ActError(
            f"none of CPU {cpus} may be used here: {error.strerror}",
            "nodeagentctl topology show lists the online CPUs",
        ) from error
    got = CpuSet.of(os.sched_getaffinity(0))
    if got != cpus:
        raise ActError(
            f"CPU {cpus - got} is offline or outside this cpuset: only {got} is to be had",
            "name only CPUs that are online and in the cpuset",
        )


def _planned(name: str, file: str | None, config: str | None) -> tuple[Workload, Placed]:
    from nodeagent.cli.workloads import plan_here, wanted

    want = wanted(file, None, live=True, config=config)
    asked = next((w for w in want.workloads if w.name == name), None)
    if asked is None:
        known = ", ".join(w.name for w in want.workloads) or "none"
        raise UsageError(f"{want.path} has no workload {name!r} (it has: {known})", "correct NAME")
    placement = plan_here(want, None).placement
    placed = placement.of(name)
    if placed is None:
        why = next(r for r in placement.refused if r.workload == name)
        raise ActError(
            f"workload {name} cannot be placed: {why.reason}", f"it would fit if {why.would_fit_if}"
        )
    return asked, placed
