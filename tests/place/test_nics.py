"""Which NIC is whose: nearest first, dealt out as evenly as can be."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot
from nodeagent.model.topology import Path, Relation, Topology
from nodeagent.place.facts import facts_of
from nodeagent.place.nics import deal, pairings
from nodeagent.place.planner import plan
from nodeagent.place.workloads import resolve
from tests.place.machines import gpu, machine, nic, want


def related(paths: dict[tuple[str, str], Path], gpus: int, nics: int) -> Topology:
    """GPUs and NICs on node 0 with these paths; NODE for a pair that is not named."""
    pci = [gpu(f"0000:{10 + i}:00.0", 0) for i in range(gpus)]
    pci += [nic(f"0000:{50 + i}:00.0", 0) for i in range(nics)]
    relations = [
        Relation(
            a=f"0000:{10 + g}:00.0",
            b=f"0000:{50 + n}:00.0",
            path=paths.get((str(g), str(n)), Path.NODE),
            same_numa=True,
        )
        for g in range(gpus)
        for n in range(nics)
    ]
    return replace(machine(cores=8, pci=pci), relations=tuple(relations))


def owners(topology: Topology) -> list[str]:
    found = pairings(topology, tuple(p.bdf for p in topology.nics))
    return [found[p.bdf].nic for p in topology.gpus]


def test_the_nearer_path_wins() -> None:
    order = [Path.PIX, Path.PXB, Path.PHB, Path.NODE, Path.SYS]
    for near, far in itertools.combinations(order, 2):
        topology = related({("0", "0"): far, ("0", "1"): near}, 1, 2)
        assert owners(topology) == ["0000:51:00.0"]


def test_ties_are_dealt_out_evenly() -> None:
    assert owners(related({}, 2, 2)) == ["0000:50:00.0", "0000:51:00.0"]
    assert Counter(owners(related({}, 4, 2))) == {"0000:50:00.0": 2, "0000:51:00.0": 2}


def test_who_has_a_choice_gives_way_to_who_has_none() -> None:
    paths = {("1", "0"): Path.PIX, ("0", "0"): Path.PIX, ("0", "1"): Path.PIX}
    assert owners(related(paths, 2, 2)) == ["0000:51:00.0", "0000:50:00.0"]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sets(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=5).map(
        lambda rows: {f"g{i}": tuple(f"n{c}" for c in sorted(r)) for i, r in enumerate(rows)}
    )
)
def test_no_deal_is_more_even(choices: dict[str, tuple[str, ...]]) -> None:
    dealt = deal(choices)
    assert all(dealt[who] in own for who, own in choices.items())

    def squares(loads: Counter[str]) -> int:
        return sum(n * n for n in loads.values())

    every = itertools.product(*choices.values())
    assert squares(Counter(dealt.values())) == min(squares(Counter(d)) for d in every)


def test_reasons_say_whose_nic_it_is() -> None:
    with Root.open("tests/hosts/hgx-10nic.capture") as root:
        snapshot = read_snapshot(root)
    wanted = resolve(
        (want("a", 2, near="gpu:0", isolated=True), want("b", 2, near="gpu:1", isolated=True)),
        snapshot,
    )
    placement = plan(snapshot.topology, wanted, facts=facts_of(snapshot))
    told = [r for p in placement.placed for r in p.reasons if "NIC" in r]
    assert told == [
        "its GPU's NIC is ib0 (0000:15:00.0), PIX (ib1 (0000:16:00.0) is as near: NICs are dealt "
        "out evenly)",
        "its GPU's NIC is ib1 (0000:16:00.0), PIX (ib0 (0000:15:00.0) is as near: NICs are dealt "
        "out evenly)",
    ]


def test_a_node_without_a_nic_is_said() -> None:
    with Root.open("tests/hosts/nps4-4gpu.capture") as root:
        snapshot = read_snapshot(root)
    wanted = resolve((want("a", 2, near="gpu:1", isolated=True),), snapshot)
    (placed,) = plan(snapshot.topology, wanted, facts=facts_of(snapshot)).placed
    assert any("no NIC is on its GPU's node" in r and "(SYS)" in r for r in placed.reasons)
