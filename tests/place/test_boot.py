"""Boot arguments computed from a machine: what they isolate is where the plan then goes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from nodeagent.discover.boot import isolcpus, parse_cmdline
from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Sharing, Workload
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.topology import Isolation, Topology
from nodeagent.place.boot import Boot, Change, boot
from nodeagent.place.planner import plan
from tests.check.machines import healthy, with_texts
from tests.place.machines import gpu, machine, machines, want, workloads

HOSTS = Path(__file__).resolve().parents[1] / "hosts"


def snapshot(topology: Topology, line: str = "") -> Snapshot:
    """A machine with that command line, in force as far as lists of CPUs go."""
    asked = {n: v or "" for n, v in parse_cmdline(line)}
    lists = Isolation(
        isolated=isolcpus(asked.get("isolcpus", ""), max(topology.possible.ids))[1],
        nohz_full=CpuSet.parse(asked.get("nohz_full", "")),
        rcu_nocbs=CpuSet.parse(asked.get("rcu_nocbs", asked.get("nohz_full", ""))),
        irqaffinity=CpuSet.parse(asked.get("irqaffinity", "")),
    )
    base = replace(healthy(), texts={"proc/cmdline": line}, irqs=(), nics=(), gpus=())
    return replace(
        base,
        topology=replace(topology, isolation=lists),
        boot_args=parse_cmdline(line),
        asked=lists,
    )


def texts(found: Boot) -> list[str]:
    return [a.text for a in found.arguments]


POLL = want("poll", 2, isolated=True)


def test_all_four_lists_with_siblings_nobody_else_has() -> None:
    found = boot(snapshot(machine(cores=8, smt=2)), (want("poll", 1, isolated=True),))
    assert texts(found) == [
        "isolcpus=managed_irq,domain,1,9",
        "nohz_full=1,9",
        "rcu_nocbs=1,9",
        "irqaffinity=0,2-8,10-15",
    ]
    assert {a.change for a in found.arguments} == {Change.ADD}


def test_what_stands_there_already_is_kept() -> None:
    line = "ro isolcpus=managed_irq,domain,6-7 nohz_full=6-7 rcu_nocbs=6-7 irqaffinity=0-5"
    found = boot(snapshot(machine(cores=8), line), (POLL,))
    assert not found.changes and str(found.isolated) == "6-7"
    short = boot(snapshot(machine(cores=8), "isolcpus=6-7 nohz_full=6-7"), (POLL,))
    assert [a.text for a in short.changes] == ["irqaffinity=0-5"]


def test_too_few_are_changed_and_the_old_text_is_told() -> None:
    found = boot(snapshot(machine(cores=8), "isolcpus=7 nohz_full=7"), (POLL,))
    first = found.arguments[0]
    assert (first.change, first.before) == (Change.CHANGE, "isolcpus=7")
    assert (
        first.text == f"isolcpus=managed_irq,domain,{found.isolated}" and len(found.isolated) == 2
    )


def test_too_many_give_way_to_who_has_no_place() -> None:
    line = "isolcpus=2-7 nohz_full=2-7 irqaffinity=0-1"
    found = boot(snapshot(machine(cores=8), line), (POLL, want("rank", 4)))
    assert len(found.isolated) == 2
    assert found.notes == ("with CPU 2-7 isolated as now, rank has no place",)


def test_a_partition_owns_isolation() -> None:
    found = boot(snapshot(machine(cores=8)), (POLL,), by_partition=True)
    assert texts(found)[0] == f"isolcpus=managed_irq,{found.isolated}"
    kept = boot(snapshot(machine(cores=8), f"{texts(found)[0]}"), (POLL,), by_partition=True)
    assert kept.arguments[0].change is Change.KEEP
    other = boot(snapshot(machine(cores=8), f"{texts(found)[0]}"), (POLL,))
    assert other.arguments[0].change is Change.CHANGE


def test_nobody_wants_isolation() -> None:
    assert not boot(snapshot(machine(cores=8)), (want("a", 2),)).arguments
    found = boot(snapshot(machine(cores=8), "isolcpus=7"), (want("a", 2),))
    assert found.notes == ("CPU 7 is isolated, and no workload wants isolated CPUs",)
    small = boot(snapshot(machine(cores=4)), (POLL,))
    assert small.notes == ("this machine has 4 PUs: none can be isolated",)
    assert not small.arguments


def test_pools_cover_what_workloads_take_on_their_node() -> None:
    topology = machine(packages=2, cores=4, pages=(100, 100))
    asks = (
        want("a", 1, near="node:1", hugepages=((2 << 20, 1 << 30),)),
        want("b", 1, near="node:1", hugepages=((2 << 20, 3 << 20),)),
    )
    line = "hugepagesz=1G hugepages=4 hugepages=200"
    (found,) = boot(snapshot(topology, line), asks).arguments
    assert found.text == "hugepagesz=2M hugepages=0:100,1:514"
    assert (found.before, found.change) == ("hugepages=200", Change.CHANGE)
    assert "514 on node 1; node 1 has 100" in found.why
    enough = machine(packages=2, cores=4, pages=(600, 10))
    assert not boot(snapshot(enough), asks).arguments
    other = boot(snapshot(topology), (want("a", 1, hugepages=((1 << 30, 1 << 30),)),))
    assert other.notes == ("this kernel has no pool for pages of 1 GiB",)


@pytest.mark.parametrize(
    ("vendor", "text"), [("GenuineIntel", "iommu=pt"), ("ARM", "iommu.passthrough=1")]
)
def test_passthrough_where_a_gpu_is_translated(vendor: str, text: str) -> None:
    card = replace(gpu("0000:3b:00.0", 0), iommu_group=7)
    base = snapshot(machine(cores=8, pci=[card]))
    base = replace(base, host=replace(base.host, cpu_vendor=vendor, virtual=None))
    path = "sys/kernel/iommu_groups/7/type"
    found = boot(with_texts(base, {path: "DMA-FQ"}), ())
    assert texts(found) == [text]
    assert not boot(with_texts(base, {path: "identity"}), ()).arguments
    assert not boot(base, ()).arguments
    guest = replace(base, host=replace(base.host, virtual="kvm"))
    assert not boot(with_texts(guest, {path: "DMA"}), ()).arguments


@settings(max_examples=120, deadline=None)
@given(machines(), workloads())
def test_booted_with_them_who_wants_isolation_has_it(
    topology: Topology, wanted: tuple[Workload, ...]
) -> None:
    base = snapshot(replace(topology, isolation=Isolation()))
    found = boot(base, wanted)
    if not found.isolated:
        return
    kept = plan(base.topology, wanted).housekeeping
    assert not found.isolated & kept
    assert found.isolated < topology.online
    line = " ".join(texts(found))
    after = boot(snapshot(topology, line), wanted)
    assert not [a for a in after.changes if a.name != "hugepages"], (found, after)
    booted = snapshot(topology, line).topology
    bare = tuple(replace(w, hugepages=()) for w in wanted)
    placement = plan(booted, bare)
    for w in bare:
        placed = placement.of(w.name)
        if placed is not None and w.isolated and w.sharing is Sharing.EXCLUSIVE:
            assert placed.cpus <= found.isolated


@pytest.mark.parametrize("path", sorted(HOSTS.glob("*.capture")), ids=lambda p: p.stem)
def test_recorded_machines(path: Path) -> None:
    with Root.open(str(path)) as root:
        here = read_snapshot(root)
    found = boot(here, (want("poll", 2, isolated=True), want("rank", 4)))
    assert not found.isolated or found.isolated < here.topology.online
    for a in found.arguments:
        assert a.why and a.text and (a.change is Change.ADD) is (a.before is None)
