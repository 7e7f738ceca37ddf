"""`nodeagentctl place boot --plan`: boot arguments computed from the machine and its workloads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nodeagent.cli.main import Invocation
from nodeagent.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from nodeagent.place.boot import Boot

MARKS = {"add": ("+", "green"), "change": ("~", "yellow"), "keep": ("=", "dim")}


@click.command(
    epilog="\b\nExamples:  nodeagentctl place boot --plan\n"
    "           nodeagentctl --host m.tar.xz place boot --plan --workloads w.toml\n"
    "\b\nExit codes: 0 shown; 1 with --detailed-exitcode when the command line would\n"
    "            change",
    short_help="Boot arguments that the workloads need; changes nothing.",
)
@click.option("--plan", "planned", is_flag=True, help="Show them (they are never written).")
@click.option(
    "--workloads", "file", metavar="FILE", help="Workload file [default: the configured one]."
)
@click.option(
    "--housekeeping", metavar="LIST", help="CPUs kept for the system [default: lowest cores]."
)
@click.option("--detailed-exitcode", is_flag=True, help="Exit 1 when something would change.")
@click.pass_obj
def boot(
    invocation: Invocation,
    planned: bool,
    file: str | None,
    housekeeping: str | None,
    detailed_exitcode: bool,
) -> int:
    """Show isolcpus=, nohz_full=, rcu_nocbs=, irqaffinity=, hugepages= and iommu= as the workloads
    need them on this machine, why, and what differs from the kernel's command line now.

    Nothing is changed: a boot loader's configuration is yours. + is added, ~ changed, = kept.
    """
    from nodeagent.cli.output import console, emit_json, even_unheard
    from nodeagent.cli.workloads import configuration, plan_here, wanted
    from nodeagent.model.settings import Isolation
    from nodeagent.place.boot import boot as computed

    if not planned:
        raise UsageError("place boot only shows, and --plan was not given", "add --plan")
    live = invocation.host is None
    want = wanted(file, housekeeping, live=live, config=invocation.config)
    here = plan_here(want, invocation.host)
    named = live or invocation.config is not None
    owner = configuration(invocation.config).config.pin.isolation if named else Isolation.BOOT
    found = computed(
        here.snapshot,
        here.workloads,
        want.housekeeping,
        by_partition=owner is Isolation.PARTITION,
    )
    line = here.snapshot.text("proc/cmdline")
    with even_unheard():
        if invocation.output != "table":
            emit_json("boot", boot_json(found, line))
        else:
            print_boot(console(), found, line)
    return 1 if detailed_exitcode and found.changes else 0


def boot_json(found: Boot, line: str | None) -> dict[str, object]:
    """Body of nodeagent.boot/v1."""
    return {
        "arguments": [
            {
                "name": a.name,
                "text": a.text,
                "before": a.before,
                "change": a.change,
                "why": a.why,
            }
            for a in found.arguments
        ],
        "isolated": str(found.isolated),
        "set": " ".join(a.text for a in found.arguments),
        "cmdline": line,
        "notes": list(found.notes),
    }


def print_boot(out: Console, found: Boot, line: str | None) -> None:
    """One argument a paragraph, then what to write where."""
    from rich.padding import Padding
    from rich.text import Text

    from nodeagent.cli.render.flow import say
    from nodeagent.errors import visible

    if line is None:
        out.print("The kernel's command line is not known here: every argument is shown as added.")
    for a in found.arguments:
        mark, style = MARKS[a.change]
        out.print(Text.assemble((f"  {mark} ", style), (visible(a.text), "bold")))
        if a.before is not None and a.change != "keep":
            out.print(Padding(Text(f"now {visible(a.before)}"), (0, 0, 0, 6)))
        out.print(Padding(Text(f"because {visible(a.why)}"), (0, 0, 0, 6)), style="dim")
    for note in found.notes:
        say(out, f"note: {visible(note)}", hang=6)
    if not found.changes:
        out.print("The command line has what the workloads need: nothing to change.")
        return
    old = " ".join(a.before for a in found.changes if a.before is not None)
    new = " ".join(a.text for a in found.changes)
    out.print()
    if old:
        out.print(Text(f"Take out:  {visible(old)}"), soft_wrap=True)
    out.print(Text(f"Put in:    {visible(new)}"), soft_wrap=True)
    out.print(
        "Where: GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub (or grub2-mkconfig -o "
        "/boot/grub2/grub.cfg) and a reboot."
    )
