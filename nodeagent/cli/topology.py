"""`nodeagentctl topology`: show the machine, or check it."""

from __future__ import annotations

import click

from nodeagent.cli.check import POLICY
from nodeagent.cli.main import Invocation, LazyGroup

SUBCOMMANDS: dict[str, tuple[str, str]] = {
    # name: (module:attribute, short help), as COMMANDS in cli/main.py
    "show": ("nodeagent.cli.topology:show", "The machine as a tree, a picture or JSON."),
    "check": ("nodeagent.cli.check:check", "The machine, judged: verdict, evidence, remedy."),
}


@click.group(
    cls=LazyGroup,
    commands_at=SUBCOMMANDS,
    epilog="\b\nExample:  nodeagentctl topology show --svg machine.svg",
)
def topology() -> None:
    """The machine: what it is, and what is wrong with it."""


@click.command(
    epilog="\b\nExamples:  nodeagentctl topology show\n"
    "           nodeagentctl --host machine.tar.xz -o json topology show\n"
    "           nodeagentctl topology show --svg machine.svg"
)
@click.option("--svg", metavar="FILE", help="Draw it into FILE (- is stdout) instead.")
@POLICY
@click.pass_obj
def show(invocation: Invocation, svg: str | None, policy: str | None) -> int:
    """Show packages, NUMA nodes, L3 groups and the PCIe tree with GPUs, NICs and NVMe drives.

    What `topology check` finds stands beside the device it is about. Works without root; what
    could not be read is listed at the end. Exit 3 when nothing could.
    """
    import time

    from nodeagent.check.judge import judge
    from nodeagent.cli.host import read_host
    from nodeagent.cli.output import emit_json
    from nodeagent.cli.policy import read_policy

    rules = read_policy(policy)
    snapshot = read_host(invocation)
    drawn = svg is not None or invocation.output == "table"
    findings = judge(snapshot, rules, time.time_ns()) if drawn else ()
    if svg is not None:
        from nodeagent.cli.output import write_whole
        from nodeagent.cli.render.topology_svg import topology_svg

        write_whole(svg, topology_svg(snapshot, findings))
    elif invocation.output != "table":
        from nodeagent.cli.render.topology_json import topology_json

        emit_json("topology", topology_json(snapshot))
    else:
        from nodeagent.cli.render.topology_tree import print_topology

        print_topology(snapshot, findings)
    return 0 if snapshot.topology.online or snapshot.topology.pci else 3
