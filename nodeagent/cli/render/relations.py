"""How near GPUs and NICs are, as a matrix on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.cli.render.devices import gpu_names
from nodeagent.model.pci import PciFunction
from nodeagent.model.snapshot import Snapshot

if TYPE_CHECKING:
    from rich.console import Console

MAX_ROWS = 32
"""Rows and columns beyond this are not printed: `-o json` has all relations."""
CELL = 5
LEGEND = (
    "PIX one bridge, PXB several, PHB host bridge, NODE same node, SYS across nodes, NV# X# direct "
    "links"
)


def cells(snapshot: Snapshot) -> dict[tuple[str, str], str]:
    """What stands in the matrix for two BDFs, either way round; `?` where nothing is told."""
    near = {}
    for relation in snapshot.topology.relations:
        cell = "?" if relation.path.value == "UNKNOWN" else relation.path.value
        for link in relation.links:
            cell = f"{'NV' if link.type == 'nvlink' else 'X'}{link.count}"
        near[relation.a, relation.b] = near[relation.b, relation.a] = cell
    return near


def print_relations(out: Console, snapshot: Snapshot, width: int) -> None:
    """Rows are GPUs; GPUs and NICs are columns, in blocks that fit the width."""
    topology = snapshot.topology
    gpus = [f for f in topology.pci if f.computes]
    nics = [f for f in topology.nics if not f.physfn]
    if not gpus or len(gpus) + len(nics) < 2:
        return
    near = cells(snapshot)
    names = {f.bdf: "GPU" for f in gpus} | gpu_names(snapshot)
    names |= {f.bdf: f"NIC{i}" for i, f in enumerate(nics)}
    rows, columns = gpus[:MAX_ROWS], [*gpus[:MAX_ROWS], *nics[:MAX_ROWS]]
    first = max(6, *(len(names[f.bdf]) + 1 for f in rows))
    # GPU10 fills a cell of the usual width.
    cell = max(CELL, *(len(names[f.bdf]) + 1 for f in columns))
    fit = max(1, (width - first) // cell)
    if len(columns) > fit:
        # GPUs and NICs each begin a block of their own.
        blocks = [gpus[i : i + fit] for i in range(0, min(len(gpus), MAX_ROWS), fit)]
        blocks += [nics[i : i + fit] for i in range(0, min(len(nics), MAX_ROWS), fit)]
    else:
        blocks = [columns]
    for block in blocks:
        out.print()
        head = " " * first + "".join(names[f.bdf].ljust(cell) for f in block)
        out.print(head.rstrip(), style="bold", markup=False)
        for row in rows:
            line = ["X" if row is c else near.get((row.bdf, c.bdf), "?") for c in block]
            text = names[row.bdf].ljust(first) + "".join(path.ljust(cell) for path in line)
            out.print(text.rstrip(), markup=False)
    legend = _nic_names(snapshot, names, nics[:MAX_ROWS])
    if legend:
        _words(out, legend, width)
    left = len(gpus) + len(nics) - len(columns)
    if left > 0 or len(rows) < len(gpus):
        out.print(f"{left} more: -o json has all relations", style="dim", markup=False)
    out.print(LEGEND, style="dim", markup=False)
    if "?" in near.values():
        out.print("? the firmware tells too little", style="dim", markup=False)


def _nic_names(snapshot: Snapshot, names: dict[str, str], nics: list[PciFunction]) -> list[str]:
    called = {n.bdf: n.rdma or n.name for n in snapshot.nics if n.bdf is not None}
    return [f"{names[f.bdf]} {called.get(f.bdf, f.bdf)}" for f in nics]


def _words(out: Console, words: list[str], width: int) -> None:
    line = ""
    for i, word in enumerate(words):
        word += "," if i < len(words) - 1 else ""
        if line and len(line) + 1 + len(word) > width:
            out.print(line, style="dim", markup=False)
            line = ""
        line += (" " if line else "") + word
    out.print(line, style="dim", markup=False)
