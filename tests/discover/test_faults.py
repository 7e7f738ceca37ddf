"""Each file of a machine spoiled in turn: nothing raises, and what failed is recorded."""

from __future__ import annotations

import os
import pathlib
import socket
from collections.abc import Callable

import msgspec
import pytest

from nodeagent.cli.render.topology_json import topology_json
from nodeagent.cli.render.topology_svg import topology_svg
from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot
from nodeagent.discover.store import Entry, Failed, Link, TableStore
from nodeagent.model.snapshot import Snapshot
from tests.hosts.generate import MACHINES, write_tree
from tests.hosts.tree import Table

HUGE = bytes(65) * (1 << 20)
SPOILS: dict[str, Callable[[str], Entry]] = {
    "unreadable": lambda path: Failed("Permission denied"),
    "huge": lambda path: HUGE,
    "binary": lambda path: b"\x7fELF\x00\xff\xfe",
    "not-utf8": lambda path: b"\xff\xfe1",
    "loop": lambda path: Link("/" + path),
    "empty": lambda path: b"",
    "nonsense": lambda path: b"-7 fnord \xe2\x82\xac,,--:9/0",
}
ALWAYS_RECORDED = ("unreadable", "huge", "binary", "not-utf8", "loop")


def read(table: Table) -> Snapshot:
    return read_snapshot(Root(TableStore(table), live=False, label="test"))


def files_read(table: Table) -> list[str]:
    """The files that a reading takes, not those that merely lie there."""
    root = Root(TableStore(table), live=False, label="test", keep=True)
    read_snapshot(root)
    assert root.kept is not None
    return [p for p, e in root.kept.items() if isinstance(e, bytes) and p in table]


@pytest.mark.parametrize(
    ("name", "spoil"),
    [("memory-only", spoil) for spoil in SPOILS]
    + [("nps4-4gpu", spoil) for spoil in ("unreadable", "empty", "nonsense")],
)
def test_each_file_spoiled(name: str, spoil: str) -> None:
    table = MACHINES[name]()
    paths = files_read(table)
    assert len(paths) > 100
    if name != "memory-only":
        # CPUs repeat: the first one stands for the others.
        paths = [p for p in paths if "/cpu/cpu" not in p or "/cpu/cpu0/" in p]
    for path in paths:
        snapshot = read({**table, path: SPOILS[spoil](path)})
        msgspec.json.encode(topology_json(snapshot))
        if spoil in ("empty", "nonsense"):
            topology_svg(snapshot)
        if spoil in ALWAYS_RECORDED and path != "proc/cpuinfo":
            assert snapshot.why_unread(path), path


def test_everything_unreadable_at_once() -> None:
    table = MACHINES["memory-only"]()
    spoiled = {
        p: Failed("Input/output error") if isinstance(e, bytes) else e for p, e in table.items()
    }
    snapshot = read(dict(spoiled))
    assert snapshot.unread
    assert all(n.memory_bytes is None for n in snapshot.topology.nodes)


def test_nothing_there_at_all() -> None:
    snapshot = read({"proc/x": b""})
    assert not snapshot.topology.online
    assert {u.path for u in snapshot.unread} >= {"/sys/devices/system/cpu", "/proc/cmdline"}


def test_odd_files_on_disk(tmp_path: pathlib.Path) -> None:
    """FIFO, socket, directory, loop, link out of the tree, sparse giant: none blocks or leaks."""
    folder = write_tree(MACHINES["memory-only"](), tmp_path / "root")
    secret = tmp_path / "secret"
    secret.write_text("do not read")
    vm = folder / "proc/sys/vm"
    vm.mkdir(parents=True, exist_ok=True)
    (vm / "swappiness").unlink()
    os.mkfifo(vm / "swappiness")
    with socket.socket(socket.AF_UNIX) as listener:
        here = pathlib.Path.cwd()
        os.chdir(vm)
        try:
            listener.bind("overcommit_memory")
        finally:
            os.chdir(here)
        (vm / "zone_reclaim_mode").unlink(missing_ok=True)
        (vm / "zone_reclaim_mode").symlink_to("zone_reclaim_mode")
        (vm / "nr_hugepages").symlink_to("../../../../../secret")
        (vm / "stat_interval").symlink_to(secret)
        (vm / "max_map_count").mkdir()
        with (vm / "compaction_proactiveness").open("wb") as file:
            file.truncate(1 << 40)
        with Root.open(str(folder)) as root:
            snapshot = read_snapshot(root)
    for name in ("swappiness", "overcommit_memory", "max_map_count"):
        assert snapshot.why_unread(f"proc/sys/vm/{name}") == "not a regular file"
    assert "symbolic links" in (snapshot.why_unread("proc/sys/vm/zone_reclaim_mode") or "")
    assert "larger" in (snapshot.why_unread("proc/sys/vm/compaction_proactiveness") or "")
    assert "do not read" not in snapshot.texts.values()
    assert snapshot.text("proc/sys/vm/nr_hugepages") is None
    assert snapshot.text("proc/sys/vm/stat_interval") is None


def test_reading_a_machine_leaves_no_descriptor(tmp_path: pathlib.Path) -> None:
    folder = write_tree(MACHINES["memory-only"](), tmp_path / "root")
    before = len(list(pathlib.Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with Root.open(str(folder)) as root:
            read_snapshot(root)
    assert len(list(pathlib.Path("/proc/self/fd").iterdir())) == before
