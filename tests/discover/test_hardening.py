"""Trees that are not whole, and machines that are large, sparse or wide."""

from __future__ import annotations

import json
import pathlib
import subprocess

import pytest

from nodeagent.check.judge import judge
from nodeagent.check.policy import Policy
from nodeagent.cli.render.topology_json import topology_json
from nodeagent.discover import pci
from nodeagent.discover.masks import Masks
from nodeagent.discover.redact import redact
from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot
from nodeagent.discover.store import Entry, Failed, Link, TableStore
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.finding import Verdict, worst
from nodeagent.model.pci import PciFunction, parse_bdf
from nodeagent.model.snapshot import Snapshot
from tests.hosts.generate import MACHINES, write_tree
from tests.hosts.tree import CPU, GPU, NODE, Table, Tree


def read(table: Table) -> Snapshot:
    return read_snapshot(Root(TableStore(dict(table)), live=False, label="test"))


@pytest.mark.parametrize("top", ["sys", "proc"])
@pytest.mark.parametrize("name", ["two-socket-8gpu", "memory-only"])
def test_half_a_tree_is_read_and_never_called_healthy(
    name: str, top: str, tmp_path: pathlib.Path, bin_dir: pathlib.Path
) -> None:
    table = {p: e for p, e in MACHINES[name]().items() if p.startswith(top + "/")}
    if top == "sys":
        # What a capture keeps of configuration space.
        table |= {p: e for p, e in MACHINES[name]().items() if p.startswith("derived/pci/")}
    folder = write_tree(table, tmp_path / "half")
    whole, half = read(MACHINES[name]()), read(table)
    if top == "sys":
        # The shape is all in /sys.
        assert half.topology.pci == whole.topology.pci
        assert half.topology.smt_siblings == whole.topology.smt_siblings
        assert half.irqs == ()
    else:
        assert half.topology.pci == () and half.topology.nodes == ()
        assert half.boot_args == whole.boot_args
    done = subprocess.run(
        [bin_dir / "nodeagentctl", "--host", str(folder), "-o", "json", "topology", "check"],
        capture_output=True, text=True,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    assert done.stderr == "" and answer["verdict"] != "OK"
    assert done.returncode == {"WARN": 1, "FAIL": 2, "UNKNOWN": 3}[answer["verdict"]]
    shown = subprocess.run(
        [bin_dir / "nodeagentctl", "--host", str(folder), "topology", "show"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert "Traceback" not in shown.stderr
    # A machine without /sys still has its CPUs, by /proc/cpuinfo.
    assert shown.returncode == 0


def sparse(nodes: int, cores: int) -> Table:
    """Nodes numbered 0, 8, 16, ..., each with its CPUs and a hole in their numbers after it."""
    tree = Tree()
    ids = [8 * i for i in range(nodes)]
    online = CpuSet()
    for i, number in enumerate(ids):
        mine = CpuSet.of(range(i * 2 * cores, i * 2 * cores + cores))
        online |= mine
        tree.node(number, mine, 1_000_000, [10 if i == j else 20 + (i ^ j) for j in range(nodes)])
        for cpu in mine:
            at = f"{CPU}/cpu{cpu}"
            tree.put(f"{at}/topology/thread_siblings", f"{1 << cpu:x}")
            tree.put(f"{at}/topology/core_siblings_list", mine)
            tree.put(f"{at}/topology/physical_package_id", i)
    last = max(online.ids)
    tree.cpus = last + 1
    tree.put(f"{CPU}/online", online)
    tree.put(f"{CPU}/possible", f"0-{last}")
    tree.put(f"{CPU}/present", online)
    tree.put(f"{NODE}/has_memory", CpuSet.of(ids))
    return tree.finish("ro", {})


def test_sixty_four_sparse_nodes_of_a_thousand_cpus() -> None:
    table = sparse(64, 16)
    topology = read(table).topology
    assert len(topology.online) == 1024 and max(topology.online.ids) == 64 * 32 - 17
    assert [n.id for n in topology.nodes] == [8 * i for i in range(64)]
    assert [len(n.cpus) for n in topology.nodes] == [16] * 64
    assert dict(topology.nodes[3].distances)[8 * 3] == 10
    assert dict(topology.nodes[3].distances)[8 * 5] == 20 + (3 ^ 5)
    assert len(topology.packages) == 64 and len(topology.cores) == 1024
    json.dumps(topology_json(read(table)))
    findings = judge(read(table), Policy(), 0)
    assert worst(findings) in set(Verdict)
    # And once more out of its capture.
    root = Root(TableStore(dict(table)), live=False, label="x", keep=True)
    read_snapshot(root)
    assert root.kept is not None
    again = read_snapshot(
        Root(TableStore(redact(root.kept, Masks()), complete=True), live=False, label="y")
    )
    assert again.topology == topology


@pytest.mark.parametrize(
    ("domain", "printed"),
    [("0000", "0000"), ("0009", "0009"), ("10000", "10000"), ("abcdef01", "abcdef01")],
)
def test_domains_of_any_width(domain: str, printed: str) -> None:
    tree = Tree()
    path = f"pci{domain}:3a/{domain}:3a:00.0/{domain}:3b:00.0"
    table = tree.table
    tree.function(path.rpartition("/")[0], "060400", "8086:1", node=0, local=CpuSet.of([0]))
    tree.function(path, GPU, "10de:2330", node=0, local=CpuSet.of([0]), driver="nvidia")
    tree.put(f"{CPU}/online", "0")
    table["sys/class/net/eth0"] = Link(f"/sys/devices/{path}/net/eth0")
    tree.put(f"sys/devices/{path}/net/eth0/mtu", 1500)
    snapshot = read(tree.finish("ro", {}))
    gpu = snapshot.topology.gpus[0]
    assert gpu.bdf == f"{printed}:3b:00.0"
    assert gpu.parents == (f"{printed}:3a:00.0",)
    assert snapshot.nics[0].bdf == gpu.bdf
    assert parse_bdf(gpu.bdf) == gpu.bdf


@pytest.mark.parametrize(
    "path",
    [
        "sys/fs/cgroup/a/cpuset.cpus.partition",
        "sys/devices/system/cpu/cpu4/cpuidle/state1/latency",
        "proc/irq/24/spurious",
        "derived/kernel_log",
        "derived/processes",
        "derived/xdp_features",
        "sys/class/net/eth1/queues/rx-0/rps_cpus",
        "sys/class/net/eth1/statistics/rx_missed_errors",
    ],
)
@pytest.mark.parametrize("entry", [Failed("Input/output error"), b"\xff\xfe\x00", b""])
def test_what_is_read_besides_may_fail_too(path: str, entry: Entry) -> None:
    table: dict[str, Entry] = dict(MACHINES["nps4-4gpu"]())
    table["sys/fs/cgroup/cgroup.controllers"] = b"cpuset\n"
    for name, text in (("latency", b"133\n"), ("disable", b"0\n"), ("name", b"C6\n")):
        table[f"sys/devices/system/cpu/cpu4/cpuidle/state1/{name}"] = text
    device = next(p for p, e in table.items() if p.endswith("/net/eth1/mtu"))
    table[path.replace("sys/class/net/eth1", device.rpartition("/")[0])] = entry
    root = Root(TableStore(table), live=False, label="test")
    snapshot = read_snapshot(root)
    if entry != b"":
        named = {u.path.rpartition("/")[2] for u in snapshot.unread}
        assert path.rpartition("/")[2] in named, path
    assert worst(judge(snapshot, Policy(), 0)) is not Verdict.OK


@pytest.mark.parametrize(("gpus", "related"), [(1024, True), (1025, False)])
def test_more_gpus_than_any_machine_has_are_not_paired(gpus: int, related: bool) -> None:
    functions = tuple(
        PciFunction(
            bdf=f"{i // 256:04x}:{i % 256:02x}:00.0",
            class_code="0302",
            vendor="10de",
            device="2330",
            numa_node=None,
            local_cpus=None,
            parents=(),
            root_bus=f"{i // 256:04x}:00",
            driver=None,
            link=None,
        )
        for i in range(gpus)
    )
    assert bool(pci.relate(functions, {})) is related
    assert (pci.unrelated(functions) is None) is related
