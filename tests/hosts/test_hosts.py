"""Captured machines and what we say of them, to the letter: topology, findings, tree."""

from __future__ import annotations

import json
import pathlib
import tarfile

import pytest

from nodeagent.check.judge import judge
from nodeagent.check.policy import Policy
from nodeagent.cli.render.topology_json import topology_json
from nodeagent.discover.capture import render
from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.finding import Verdict
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.topology import NodeKind, Path, PeerLink
from tests.hosts.generate import BIG, MACHINES, answers, made, write_tree

HERE = pathlib.Path(__file__).parent
CAPTURES = sorted(HERE.glob("*.capture"))


def read(path: pathlib.Path) -> Snapshot:
    with Root.open(str(path)) as root:
        return read_snapshot(root)


RENEW = "python -m tests.hosts.generate writes them anew: look at the difference"


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda p: p.stem)
def test_answers_are_the_golden_ones(capture: pathlib.Path) -> None:
    with Root.open(str(capture)) as root:
        said = answers(root)
    golden = json.loads(capture.with_suffix(".json").read_text())
    assert json.loads(said[".json"]) == golden, RENEW
    for ending in (".check.txt", ".tree.txt"):
        assert said[ending] == capture.with_suffix(ending).read_text(), RENEW


@pytest.mark.parametrize("name", BIG)
def test_answers_about_a_machine_too_big_to_keep(name: str) -> None:
    with made(BIG[name](), name) as root:
        for ending, text in answers(root).items():
            assert text == (HERE / f"{name}{ending}").read_text(), RENEW


def test_there_are_machines_of_many_kinds() -> None:
    assert len(CAPTURES) >= 12
    # Booted by tests/vm/capture_hosts.py, read by a real kernel.
    assert sum(c.stem.startswith("qemu-") for c in CAPTURES) >= 4


@pytest.mark.parametrize("name", MACHINES)
def test_captures_are_what_the_generator_makes(name: str) -> None:
    assert (HERE / f"{name}.capture").read_text() == render(MACHINES[name]()), RENEW


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


def test_grace_blackwell_and_power9() -> None:
    """Nodes by kind and number; spot checks that do not come from our own output."""
    nodes = read(HERE / "gb200.capture").topology.nodes
    assert len(nodes) == 34
    assert [n.id for n in nodes if n.kind is NodeKind.GPU_MEMORY] == [2, 10, 18, 26]
    assert sum(n.kind is NodeKind.EMPTY for n in nodes) == 28
    power = read(HERE / "power9.capture").topology
    assert [n.id for n in power.nodes] == [0, 8, *range(250, 256)]
    assert [p.id for p in power.packages] == [0, 8]
    assert {len(c) for c in power.cores} == {4}
    assert [f.numa_node for f in power.gpus] == [0, 0, 0, 8, 8, 8]


def test_mi300x_links_and_partitions() -> None:
    snapshot = read(HERE / "mi300x-nps4.capture")
    pairs = [r for r in snapshot.topology.relations if r.links]
    assert len(pairs) == 28
    assert all(r.links == (PeerLink(type="xgmi", count=1),) for r in pairs)
    near = [r for r in snapshot.topology.relations if r.path is Path.PIX]
    # Each GPU's own two bridges are not a way between it and the NIC.
    assert len(near) == 8
    assert [g.memory_total_bytes for g in snapshot.gpus] == [192 << 30] * 8


def test_what_firmware_did_not_say_stays_unknown() -> None:
    for name in ("silent-firmware", "flat-vm", "hybrid-desktop"):
        topology = read(HERE / f"{name}.capture").topology
        assert {f.numa_node for f in topology.pci} == {None}
        assert {r.same_numa for r in topology.relations} == {None}


def test_a_kernel_in_qemu_read_what_was_asked_for() -> None:
    tiers = read(HERE / "qemu-hmat-tiers.capture").topology.nodes
    kinds = sorted(n.kind.value for n in tiers)
    assert kinds == ["cpu", "cpu+memory", "cpu+memory", "memory"]
    eight = read(HERE / "qemu-8socket.capture").topology
    assert (len(eight.packages), len(eight.nodes), len(eight.cores)) == (8, 8, 16)
    assert dict(eight.nodes[0].distances) == {0: 10, 1: 21} | dict.fromkeys(range(2, 8), 31)
    offline = read(HERE / "qemu-offline.capture").topology
    assert str(offline.present - offline.online) == "3,6"
    assert [len(c) for c in offline.cores] == [2, 1, 2, 1]
    switches = read(HERE / "qemu-2node-switches.capture")
    assert str(switches.topology.isolation.isolated) == "4-7,12-15"
    assert [n.hugepages[0].total for n in switches.topology.nodes] == [32, 16]
    drives = list(switches.topology.nvmes)
    assert [f.numa_node for f in drives] == [0, 0, 1, 1]
    near = {frozenset((r.a, r.b)): r.path for r in switches.topology.relations}
    assert near[frozenset((drives[0].bdf, drives[1].bdf))] is Path.PIX
    assert near[frozenset((drives[0].bdf, drives[2].bdf))] is Path.SYS


BOOTED = [c.stem for c in CAPTURES if c.stem.startswith("qemu-")]


@pytest.mark.parametrize("name", [n for n in BOOTED if n != "qemu-iommu-partition"])
def test_an_ordinary_boot_is_no_event(name: str) -> None:
    snapshot = read(HERE / f"{name}.capture")
    assert snapshot.events is not None, "the capture holds the kernel log"
    assert [e for e in snapshot.events if e.fault] == []


def test_virtual_functions_groups_and_partitions_of_a_real_kernel() -> None:
    snapshot = read(HERE / "qemu-iommu-partition.capture")
    drive, *virtual = snapshot.topology.nvmes
    assert [f.physfn for f in virtual] == [drive.bdf, drive.bdf] and drive.vfs == 2
    groups = {f.iommu_group for f in (drive, *virtual)}
    assert len(groups) == 3 and None not in groups
    assert {f.numa_node for f in (drive, *virtual)} == {1}
    # Virtual functions that nobody brought on-line: the kernel gave them up, and says so.
    assert snapshot.events is not None
    assert [e.kind for e in snapshot.events if e.fault and "nvme" in e.kind][:1] == ["nvme_dead"]
    found = judge(snapshot, Policy(), 0)
    bad = [f.subject for f in found if f.id == "cgroup.partition" and f.verdict is Verdict.FAIL]
    assert len(bad) == 2
