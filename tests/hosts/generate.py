"""Writes the trees of /sys and /proc of machines that nobody here has, and what we say of them.

`python -m tests.hosts.generate` writes each of MACHINES as `NAME.capture` here, and for every
capture here what we say of it: `NAME.json` (topology), `NAME.check.txt` (findings), `NAME.tree.txt`
(the tree). Look at the difference before committing it. The shapes are those of real ones (DGX-like
switches, NPS4, memory-only nodes); names, addresses and counts are made up.
"""

from __future__ import annotations

import contextlib
import io
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from nodeagent.discover.store import Link
from tests.hosts import others, servers
from tests.hosts.tree import Table

if TYPE_CHECKING:
    from nodeagent.discover.root import Root

MACHINES: dict[str, Callable[[], Table]] = {
    "two-socket-8gpu": servers.two_socket_8gpu,
    "nps4-4gpu": servers.nps4_4gpu,
    "memory-only": others.memory_only,
    "hgx-10nic": servers.hgx_10nic,
    "mi300x-nps4": servers.mi300x_nps4,
    "gb200": others.gb200,
    "gh200": others.gh200,
    "power9": others.power9,
    "snc4": servers.snc4,
    "hybrid-desktop": others.hybrid_desktop,
    "flat-vm": others.flat_vm,
    "silent-firmware": others.silent_firmware,
}
BIG: dict[str, Callable[[], Table]] = {"giant": servers.giant}
"""Too big to be kept as a capture: made anew for each test."""


def write_tree(table: Table, folder: pathlib.Path) -> pathlib.Path:
    """The table as files and links below a folder."""
    for path, entry in table.items():
        at = folder / path
        if entry is None:
            at.mkdir(parents=True, exist_ok=True)
            continue
        at.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(entry, Link):
            target = entry.target
            if target.startswith("/"):
                target = "../" * path.count("/") + target.lstrip("/")
            at.symlink_to(target)
        elif isinstance(entry, bytes):
            at.write_bytes(entry)
    return folder


def answers(root: Root) -> dict[str, str]:
    """What we say of a machine, by the ending of the golden file that holds it."""
    import msgspec

    from nodeagent.check.judge import judge
    from nodeagent.check.policy import Policy
    from nodeagent.cli.render.topology_json import topology_json
    from nodeagent.cli.render.topology_tree import print_topology
    from nodeagent.discover.snapshot import read_snapshot
    from nodeagent.model.finding import Verdict

    snapshot = read_snapshot(root)
    findings = judge(snapshot, Policy(), 0)
    quiet = (Verdict.OK, Verdict.NA)
    lines = [
        f"{f.verdict} {f.id}  {f.subject}: {f.message}" for f in findings if f.verdict not in quiet
    ]
    shape = msgspec.json.format(msgspec.json.encode(topology_json(snapshot)), indent=1)
    tree = io.StringIO()
    with contextlib.redirect_stdout(tree):
        print_topology(snapshot)
    return {
        ".json": shape.decode() + "\n",
        ".check.txt": "\n".join(lines) + "\n",
        ".tree.txt": tree.getvalue(),
    }


def made(table: Table, name: str) -> Root:
    """The door to a tree that is nowhere but in memory."""
    from nodeagent.discover.root import Root
    from nodeagent.discover.store import TableStore

    return Root(TableStore(table), live=False, label=name)


def main() -> None:
    """Writes captures and golden answers."""
    from nodeagent.discover.capture import render
    from nodeagent.discover.root import Root

    here = pathlib.Path(__file__).parent
    for name, make in MACHINES.items():
        (here / f"{name}.capture").write_text(render(make()))
    roots = [Root.open(str(f)) for f in sorted(here.glob("*.capture"))]
    names = [f.stem for f in sorted(here.glob("*.capture"))]
    for name, root in zip([*names, *BIG], [*roots, *(made(BIG[n](), n) for n in BIG)], strict=True):
        with root:
            for ending, text in answers(root).items():
                (here / f"{name}{ending}").write_text(text)


if __name__ == "__main__":
    main()
