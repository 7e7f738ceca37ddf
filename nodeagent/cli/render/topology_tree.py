"""The machine as a tree on a terminal, and how near its devices are as a matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.cli.render.machine import Item, gpu_names, machine
from nodeagent.model.pci import NVIDIA, PciFunction
from nodeagent.model.snapshot import Snapshot

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

STYLE = {
    "machine": "bold",
    "package": "bold",
    "node": "bold cyan",
    "l3": "dim",
    "root": "dim",
    "switch": "blue",
    "gpu": "bold green",
    "nic": "bold magenta",
    "nvme": "bold yellow",
    "other": "",
}
MAX_COLUMNS = 18
"""Columns of the matrix that fit into 100 characters."""
WIDTH = 100


def print_topology(snapshot: Snapshot) -> None:
    """Prints it, at most WIDTH columns wide."""
    from nodeagent.cli.output import console

    out = console()
    width = min(WIDTH, out.width)
    out.print(_tree(machine(snapshot), width), width=width)
    _matrix(out, snapshot)
    _rest(out, snapshot)


def _tree(top: Item, width: int) -> Tree:
    from rich.tree import Tree

    def add(branch: Tree, item: Item, depth: int) -> None:
        node = branch.add(_label(item, width - 4 * depth))
        for child in item.inside:
            add(node, child, depth + 1)

    tree = Tree(_label(top, width, apart=True), guide_style="dim")
    for child in top.inside:
        add(tree, child, 1)
    return tree


def _label(item: Item, width: int, *, apart: bool = False) -> Text:
    """Title and facts; facts that do not fit go to lines of their own."""
    from rich.text import Text

    text = Text(item.title, style=STYLE[item.kind])
    used = len(item.title)
    for fact in item.facts:
        style = "yellow" if item.odd and _is_odd(fact) else "default not bold"
        if apart or used + 2 + len(fact) > width:
            text.append("\n  " + fact, style=style)
            used = 2 + len(fact)
        else:
            text.append("  " + fact, style=style)
            used += 2 + len(fact)
    return text


def _is_odd(fact: str) -> bool:
    return " of " in fact or "lost" in fact or fact in ("no memory", "empty")


def _matrix(out: Console, snapshot: Snapshot) -> None:
    """Rows: GPUs. Columns: GPUs and NICs, as far as they fit."""
    topology = snapshot.topology
    gpus = [f for f in topology.pci if f.computes]
    nics = [f for f in topology.nics if not f.physfn]
    columns = (gpus + nics)[:MAX_COLUMNS]
    if not gpus or len(columns) < 2:
        return
    near = {}
    for relation in topology.relations:
        cell = relation.path.value
        for link in relation.links:
            cell = f"{'NV' if link.type == 'nvlink' else 'X'}{link.count}"
        near[relation.a, relation.b] = near[relation.b, relation.a] = cell
    names = _names(snapshot, gpus, nics)
    wide = max(5, *(len(names[f.bdf]) + 1 for f in columns))
    legend = ""
    if wide * (len(columns) + 1) > WIDTH:
        wide = 5
        short = {f.bdf: f"NIC{i}" for i, f in enumerate(nics)}
        legend = ", ".join(f"{short[f.bdf]} {names[f.bdf]}" for f in nics if f in columns)
        names |= short
    out.print()
    head = " " * wide + "".join(names[f.bdf].ljust(wide) for f in columns)
    out.print(head.rstrip(), style="bold", markup=False)
    for row in gpus[:MAX_COLUMNS]:
        cells = ["X" if row is c else near.get((row.bdf, c.bdf), "?") for c in columns]
        line = names[row.bdf].ljust(wide) + "".join(c.ljust(wide) for c in cells)
        out.print(line.rstrip(), markup=False)
    if legend:
        out.print(legend, style="dim", markup=False)
    left = len(gpus) + len(nics) - len(columns)
    if left > 0:
        out.print(f"{left} more columns: -o json has all relations", style="dim", markup=False)
    out.print(
        "PIX one bridge, PXB several, PHB host bridge, NODE same node, SYS across nodes, NV# X# "
        "direct links",
        style="dim",
        markup=False,
    )


def _names(snapshot: Snapshot, gpus: list[PciFunction], nics: list[PciFunction]) -> dict[str, str]:
    names = {f.bdf: "GPU" for f in gpus} | gpu_names(snapshot)
    names |= {f.bdf: f"NIC{i}" for i, f in enumerate(nics)}
    names |= {n.bdf: n.rdma or n.name for n in snapshot.nics if n.bdf is not None}
    return names


def _rest(out: Console, snapshot: Snapshot) -> None:
    nvidia = any(f.vendor == NVIDIA and f.computes for f in snapshot.topology.pci)
    if nvidia and not snapshot.nvml.available:
        out.print(f"NVML: {snapshot.nvml.reason}", style="yellow", markup=False)
    if snapshot.unread:
        first = snapshot.unread[0]
        more = len(snapshot.unread) - 1
        out.print(
            f"not read: {first.path}: {first.reason}"
            + (f", and {more} more (-o json lists them)" if more else ""),
            style="dim",
            markup=False,
        )
