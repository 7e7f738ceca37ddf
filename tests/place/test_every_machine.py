"""Every machine that is recorded: the corpus beside this checkout, and tests/hosts.

Sparse numbers, offline CPUs, clusters, SMT 1 to 8, nodes without CPUs, pasted lists of CPUs only.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent.discover.paste.part import Text
from nodeagent.discover.paste.read import read_paste
from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Sharing, Workload
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.topology import NodeKind
from nodeagent.place.facts import facts_of
from nodeagent.place.planner import plan
from tests.place.machines import check, want
from tests.place.test_advice import changed

ROOT = Path(__file__).resolve().parents[2]
HOSTS = sorted((ROOT / "tests" / "hosts").glob("*.capture"))
MACHINES = ROOT.parent / "shared" / "corpus" / "machines"
TREES = ("snapshot.tar.xz",)
TEXTS = ("lscpu.txt", "topo.xml")


def recorded() -> list[Path]:
    """Captures of ours, and every machine of the corpus that tells CPUs."""
    found = list(HOSTS)
    if MACHINES.is_dir():
        for item in json.loads((MACHINES / "INDEX.json").read_text())["items"]:
            folder = MACHINES / item["dir"]
            found += [folder / n for n in (*TREES, *TEXTS) if (folder / n).exists()]
    return found


@functools.cache
def snapshot_of(path: Path) -> Snapshot | None:
    """As read; None: no CPU is known there."""
    if path.name in TEXTS:
        found = read_paste([Text(name=path.name, text=path.read_text())], None).snapshot
    else:
        with Root.open(str(path)) as root:
            found = read_snapshot(root)
    return found if found.topology.online else None


def usual(snapshot: Snapshot) -> tuple[Workload, ...]:
    """Something for each GPU and node, units, isolation, a pool, one that is too large."""
    topology = snapshot.topology
    return (
        *(want(f"near{i}", 2, near=p.bdf) for i, p in enumerate(topology.pci) if p.is_gpu),
        *(
            want(f"whole{n.id}", 3, near=f"node:{n.id}", smt="whole-core", roles=(1, 1))
            for n in topology.nodes[:4]
        ),
        want("index", 2, unit="r"),
        want("llm", 4, unit="r", smt="one-per-core", memory_bytes=1 << 30),
        want("poll", 1, isolated=True, l3="one"),
        want("many", len(topology.online) // 3 + 1),
        want("api", 2, sharing=Sharing.SHARED),
    )


def held(snapshot: Snapshot, wanted: tuple[Workload, ...]) -> None:
    """Every rule, whatever the machine."""
    topology, facts = snapshot.topology, facts_of(snapshot)
    placement = plan(topology, wanted, facts=facts)
    check(topology, wanted, placement)
    foreign = CpuSet()
    for p in facts.cgroups.foreign:
        foreign |= p.cpus
    for placed in placement.placed:
        w = next(w for w in wanted if w.name == placed.workload)
        assert not placed.cpus & foreign
        function = topology.function(w.near) if w.near is not None else None
        if function is not None and function.numa_node is not None and len(topology.online) >= 6:
            node = topology.node(function.numa_node)
            if node is not None and node.cpus and node.kind is not NodeKind.GPU_MEMORY:
                assert placed.node == function.numa_node
    assert plan(topology, wanted, facts=facts) == placement
    again = plan(topology, wanted, (), placement, facts=facts)
    assert again.placed == placement.placed


@pytest.mark.parametrize("path", HOSTS, ids=lambda p: p.stem)
def test_our_captures(path: Path) -> None:
    snapshot = snapshot_of(path)
    assert snapshot is not None
    held(snapshot, usual(snapshot))


def test_every_machine_of_the_corpus(shared: Path) -> None:
    planned = large = 0
    for path in recorded():
        snapshot = snapshot_of(path)
        if snapshot is None or path in HOSTS:
            continue
        held(snapshot, usual(snapshot))
        planned += 1
        large += len(snapshot.topology.online) >= 6
    assert planned > 60 and large > 45


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_drawn_workloads_on_recorded_machines(data: st.DataObject) -> None:
    snapshot = snapshot_of(data.draw(st.sampled_from(recorded())))
    if snapshot is None:
        return
    topology = snapshot.topology
    near: list[str | None] = [None, None]
    near += [f"node:{n.id}" for n in topology.nodes[:8]]
    near += [p.bdf for p in (*topology.gpus, *topology.nics)[:12]]
    wanted = []
    for i in range(data.draw(st.integers(1, 9))):
        shared_pool = data.draw(st.integers(0, 4)) == 0
        wanted.append(
            want(
                f"w{i}",
                data.draw(st.integers(1, 12)),
                sharing=Sharing.SHARED if shared_pool else Sharing.EXCLUSIVE,
                near=data.draw(st.sampled_from(near)),
                unit=data.draw(st.sampled_from([None, None, "a", "b"])),
                smt="any"
                if shared_pool
                else data.draw(st.sampled_from(["any", "whole-core", "one-per-core"])),
                isolated=not shared_pool and data.draw(st.booleans()),
                l3="any" if shared_pool else data.draw(st.sampled_from(["any", "one"])),
                memory_bytes=data.draw(st.sampled_from([0, 0, 8 << 30, 300 << 30])),
                hugepages=data.draw(st.sampled_from([(), (), ((2 << 20, 1 << 30),)])),
            )
        )
    held(snapshot, tuple(wanted))
    placement = plan(topology, wanted, facts=facts_of(snapshot))
    out = {r.workload for r in placement.refused}
    for r in placement.refused if len(topology.online) >= 6 else ():
        made = changed(tuple(wanted), r.workload, r.would_fit_if)
        if made is not None:
            after = plan(topology, made, facts=facts_of(snapshot))
            assert after.of(r.workload) is not None, r
            assert {x.workload for x in after.refused} < out
