"""Captured machines and what `topology show` says of them, to the letter."""

from __future__ import annotations

import json
import pathlib
import tarfile

import pytest

from nodeagent.cli.render.topology_json import topology_json
from nodeagent.discover.capture import render
from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.topology import NodeKind, Path, PeerLink
from tests.hosts.generate import MACHINES, write_tree

HERE = pathlib.Path(__file__).parent
CAPTURES = sorted(HERE.glob("*.capture"))


def read(path: pathlib.Path) -> Snapshot:
    with Root.open(str(path)) as root:
        return read_snapshot(root)


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda p: p.stem)
def test_topology_is_the_golden_one(capture: pathlib.Path) -> None:
    golden = json.loads(capture.with_suffix(".json").read_text())
    assert json.loads(json.dumps(topology_json(read(capture)))) == golden


@pytest.mark.parametrize("name", MACHINES)
def test_captures_are_what_the_generator_makes(name: str) -> None:
    assert (HERE / f"{name}.capture").read_text() == render(MACHINES[name]())


@pytest.mark.parametrize("name", MACHINES)
def test_directory_archive_and_capture_say_the_same(name: str, tmp_path: pathlib.Path) -> None:
    folder = write_tree(MACHINES[name](), tmp_path / "root")
    captured = topology_json(read(HERE / f"{name}.capture"))
    assert topology_json(read(folder)) == captured
    for kind in ("xz", "gz"):
        archive = tmp_path / f"machine.tar.{kind}"
        with (
            tarfile.open(archive, f"w:{kind}", preset=0)
            if kind == "xz"
            else tarfile.open(archive, "w:gz") as tar
        ):
            tar.add(folder, arcname="machine")
        assert topology_json(read(archive)) == captured


def test_two_socket_server() -> None:
    """Spot checks that do not come from our own output."""
    snapshot = read(HERE / "two-socket-8gpu.capture")
    topology = snapshot.topology
    assert (len(topology.packages), len(topology.cores), len(topology.online)) == (2, 16, 32)
    assert [str(n.cpus) for n in topology.nodes] == ["0-7,16-23", "8-15,24-31"]
    gpus = [f for f in topology.pci if f.computes]
    assert len(gpus) == 8
    near = {frozenset((r.a, r.b)): r for r in topology.relations}
    for gpu in gpus:
        nics = [f.bdf for f in topology.nics if near[frozenset((gpu.bdf, f.bdf))].path is Path.PIX]
        drives = [
            f.bdf for f in topology.nvmes if near[frozenset((gpu.bdf, f.bdf))].path is Path.PIX
        ]
        assert len(nics) == len(drives) == 1
    first, last = gpus[0].bdf, gpus[-1].bdf
    assert near[frozenset((first, last))].path is Path.SYS
    assert near[frozenset((first, last))].links == (PeerLink(type="nvlink", count=18),)
    assert near[frozenset((first, gpus[1].bdf))].path is Path.NODE
    assert snapshot.host.virtual is None
    eth0 = next(n for n in snapshot.nics if n.name == "eth0")
    assert (eth0.rdma, eth0.rx_queues, eth0.speed_mbps) == ("mlx5_0", 8, 400_000)
    assert [n.name for n in snapshot.nics if n.default_route] == ["eno1"]
    mine = [i for i in snapshot.irqs if i.bdf == eth0.bdf]
    assert len(mine) == 4
    for i, irq in enumerate(mine):
        assert irq.affinity == irq.effective == CpuSet.of([i])
        assert irq.counts == ((i, 1000 + i),)
        assert irq.name == f"mlx5_comp{i}"


def test_nps4_is_isolated_as_asked() -> None:
    snapshot = read(HERE / "nps4-4gpu.capture")
    isolation = snapshot.topology.isolation
    assert str(isolation.isolated) == str(isolation.nohz_full) == "4-15,20-31"
    assert str(isolation.rcu_nocbs) == "4-15,20-31"
    assert str(isolation.irqaffinity) == "0-3,16-19"
    assert isolation == snapshot.asked
    assert [f.numa_node for f in snapshot.topology.gpus] == [3, 2, 1, 0]


def test_kinds_of_nodes() -> None:
    nodes = read(HERE / "memory-only.capture").topology.nodes
    assert [n.kind for n in nodes] == [
        NodeKind.CPU_MEMORY,
        NodeKind.CPU,
        NodeKind.MEMORY,
        NodeKind.MEMORY,
        NodeKind.GPU_MEMORY,
    ]
    assert [str(n.cpus) for n in nodes[2:]] == ["", "", ""]
