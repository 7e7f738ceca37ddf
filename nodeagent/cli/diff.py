"""`nodeagentctl diff A B`: two machines, or one at two times."""

from __future__ import annotations

import click

from nodeagent.cli.main import Invocation

STYLE = {1: "bold red", 2: "red", 3: "red", 4: "yellow", 5: "yellow"}


@click.command(
    epilog="\b\nExamples:  nodeagentctl diff before.capture after.capture\n"
    "           nodeagentctl diff good-node.capture -      (- is this machine, now)"
)
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.pass_obj
def diff(invocation: Invocation, a: str, b: str) -> int:
    """Show what differs between A and B, what matters most first.

    Each is a capture, an archive, a directory, or - for this machine. Values that change by
    themselves (free memory, interrupt counts) are left out; counters of errors come last. What two
    machines differ in by nature (UUIDs, root=) is left out when GPUs or host names tell them apart.
    """
    from nodeagent.check.diff import diff as compare
    from nodeagent.check.diff import two_machines
    from nodeagent.cli.host import open_root, read_root
    from nodeagent.cli.output import console, emit_json

    snapshots = []
    for path in (a, b):
        with open_root(None if path == "-" else path) as root:
            snapshots.append(read_root(root))
    found = compare(*snapshots)
    two = two_machines(*snapshots)
    if invocation.output != "table":
        emit_json(
            "diff",
            {
                "a": a,
                "b": b,
                "same": not found,
                "machines": None if two is None else 1 + two,
                "differences": [
                    {
                        "weight": int(d.weight),
                        "kind": d.weight.name.lower(),
                        "subject": d.subject,
                        "what": d.what,
                        "a": d.a,
                        "b": d.b,
                    }
                    for d in found
                ],
            },
        )
        return 0
    out = console()
    if not found:
        out.print("no difference")
        return 0
    for d in found:
        style = STYLE.get(int(d.weight), "default")
        line = f"{d.subject}: {d.what}"
        if d.what not in ("missing", "added"):
            line += f" {_shown(d.a)} -> {_shown(d.b)}"
        elif d.a or d.b:
            line += f" ({d.a or d.b})"
        out.print(line, style=style)
    return 0


def _shown(text: str | None) -> str:
    if text is None:
        return "(not there)"
    first = text.splitlines()[0] if text else "(empty)"
    return first if len(first) <= 40 else first[:37] + "..."
