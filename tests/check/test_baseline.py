"""The baseline: what is lost, what changed, what cannot be told; counters never."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.check.baseline import SCHEMA, compare, decode, encode, shape, verdict
from nodeagent.check.judge import judge
from nodeagent.check.policy import Policy
from nodeagent.errors import ConfigError
from nodeagent.model.baseline import Baseline, Trait, unusable
from nodeagent.model.finding import Verdict
from nodeagent.model.pci import Aer, Link
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.topology import Isolation, PeerLink
from tests.check.machines import (
    GIB,
    cpus,
    function,
    healthy,
    topo,
    unreadable,
    with_node,
    with_pci,
    with_texts,
)

H = healthy()
GPU0, NIC0, GPU1 = "0000:11:00.0", "0000:13:00.0", "0000:81:00.0"
ACCEPTED = Baseline(accepted="2026-01-01T00:00:00+00:00", traits=shape(H))


def without(s: Snapshot, bdf: str) -> Snapshot:
    """The machine after that device fell off the bus."""
    s = topo(
        s,
        pci=tuple(p for p in s.topology.pci if p.bdf != bdf),
        relations=tuple(r for r in s.topology.relations if bdf not in (r.a, r.b)),
    )
    return dataclasses.replace(s, gpus=tuple(g for g in s.gpus if g.bdf != bdf))


def link(**fields: object) -> Link:
    whole: dict[str, object] = {"speed_gts": 32.0, "width": 16, "max_speed_gts": 32.0,
                                "max_width": 16}  # fmt: skip
    return Link(**{**whole, **fields})  # type: ignore[arg-type]  # test data


def fewer_nvlinks(count: int) -> Snapshot:
    links = (PeerLink(type="nvlink", count=count),)
    return topo(
        H,
        relations=tuple(
            dataclasses.replace(r, links=links if r.links else ()) for r in H.topology.relations
        ),
    )


def kernel(release: str) -> Snapshot:
    return dataclasses.replace(H, host=dataclasses.replace(H.host, kernel=release))


MOVED = topo(
    H,
    pci=tuple(
        dataclasses.replace(p, bdf="0000:91:00.0") if p.bdf == GPU1 else p for p in H.topology.pci
    ),
    relations=tuple(r for r in H.topology.relations if GPU1 not in (r.a, r.b)),
)
V = Verdict
ROWS: dict[str, tuple[Snapshot, Verdict, str]] = {
    "same": (H, V.OK, ""),
    "gpu lost": (without(H, GPU0), V.FAIL, f"gpu {GPU0} is missing"),
    "nic lost": (without(H, NIC0), V.FAIL, f"nic {NIC0} is missing"),
    "bus not readable": (unreadable(without(H, GPU0), "sys/bus/pci/devices"), V.UNKNOWN, GPU0),
    "gpu has another address": (MOVED, V.WARN, f"gpu {GPU1} is now gpu 0000:91:00.0"),
    "gpu new": (topo(H, pci=(*H.topology.pci, function("0000:a1:00.0", "0302", "10de", 1))),
                V.WARN, "gpu 0000:a1:00.0 is new"),
    "narrower": (with_pci(H, GPU0, link=link(width=8)), V.FAIL, "link width x16 -> x8"),
    "idle": (with_pci(H, GPU0, link=link(speed_gts=2.5)), V.OK, ""),
    "slower slot": (with_pci(H, GPU0, link=link(max_speed_gts=16.0)), V.FAIL, "16.0 GT/s"),
    "memory lost": (with_node(H, 1, memory_bytes=224 * GIB), V.FAIL, "256.0 GiB -> 224.0 GiB"),
    "memory grew": (with_node(H, 1, memory_bytes=288 * GIB), V.WARN, "288.0 GiB"),
    "memory of a boot": (with_node(H, 1, memory_bytes=256 * GIB - (900 << 20)), V.OK, ""),
    "memory not readable": (with_node(H, 1, memory_bytes=None), V.FAIL, "memory"),
    "CPUs lost": (topo(H, online=cpus("0-14")), V.FAIL, "online CPUs 16 -> 15"),
    "NVLinks lost": (fewer_nvlinks(12), V.FAIL, "direct links 18 -> 12"),
    "isolation gone": (topo(H, isolation=Isolation(isolated=cpus("2-3"))), V.WARN, "isolated"),
    "kernel": (kernel("6.13.0"), V.WARN, "kernel 6.12.0 -> 6.13.0"),
    "counters": (with_pci(H, GPU0, aer=Aer(correctable=9, nonfatal=1, fatal=0)), V.OK, ""),
    "settings": (with_texts(H, {"proc/sys/vm/swappiness": "60"}), V.OK, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_each_kind_of_change(name: str) -> None:
    from nodeagent.check.baseline import sentence

    machine, expected, words = ROWS[name]
    departures = compare(ACCEPTED, machine)
    said = "; ".join(map(sentence, departures))
    assert (verdict(departures), words in said) == (expected, True), said


def test_a_memory_file_that_cannot_be_read_is_no_loss() -> None:
    s = unreadable(with_node(H, 1, memory_bytes=None), "sys/devices/system/node/node1/meminfo")
    assert verdict(compare(ACCEPTED, s)) is Verdict.UNKNOWN


def test_a_lost_gpu_comes_before_everything() -> None:
    s = with_node(with_pci(without(kernel("6.13.0"), GPU0), NIC0, link=link(width=4)), 1,
                  memory_bytes=GIB)  # fmt: skip
    subjects = [d.difference.subject for d in compare(ACCEPTED, s)]
    assert subjects[0] == f"gpu {GPU0}"
    assert subjects[-1] == "machine"
    assert subjects.index(f"nic {NIC0}") < subjects.index("machine", 3)


def test_another_nps_mode_is_a_change_and_no_loss() -> None:
    half = [dataclasses.replace(n, memory_bytes=128 * GIB) for n in H.topology.nodes]
    four = [dataclasses.replace(n, id=n.id + 2) for n in half]
    departures = compare(ACCEPTED, topo(H, nodes=tuple(half + four)))
    assert [d.difference.what for d in departures] == ["NUMA nodes"]
    assert verdict(departures) is Verdict.WARN


def findings(s: Snapshot, baseline: Baseline | None = ACCEPTED) -> list[tuple[str, str]]:
    found = judge(dataclasses.replace(s, baseline=baseline), Policy(), 10**18)
    return [(f.verdict.value, f.subject) for f in found if f.id == "baseline.holds"]


def test_the_check_fails_for_a_lost_gpu_only() -> None:
    assert findings(H) == [("OK", "baseline")]
    assert findings(H, None)[0][0] == "NA"
    assert findings(without(H, GPU0)) == [("FAIL", f"gpu {GPU0}")]
    assert findings(kernel("6.13.0")) == [("INFO", "machine")]
    assert findings(topo(H, isolation=Isolation(isolated=cpus("2")))) == [("WARN", "isolation")]


def test_the_file_is_read_back() -> None:
    text = encode(ACCEPTED)
    assert decode(text.encode(), "x") == dataclasses.replace(ACCEPTED, source="x")
    assert len(text.splitlines()) == len(ACCEPTED.traits) + 2


@given(
    st.lists(
        st.builds(
            Trait,
            subject=st.text(max_size=9),
            what=st.sampled_from(["device", "memory", "link width", "kernel", "direct links"]),
            value=st.one_of(st.text(max_size=5), st.integers(0, 1 << 50), st.just(2.5)),
        ),
        max_size=9,
    )
)
def test_any_baseline_is_read_back_and_compared(traits: list[Trait]) -> None:
    made = Baseline(accepted="x", traits=tuple(traits))
    again = decode(encode(made).encode(), "")
    assert again == made
    compare(again, H)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"\xff", b'{"schema":"nodeagent.baseline/v9","accepted":"","traits":[]}',
     b'{"schema":"%s","accepted":"","traits":[{"subject":1}]}' % SCHEMA.encode()],
)  # fmt: skip
def test_a_damaged_file_is_a_sentence(data: bytes) -> None:
    with pytest.raises(ConfigError) as caught:
        decode(data, "some.json")
    assert "some.json" in str(caught.value) and caught.value.remedy


def test_a_file_that_cannot_be_used_is_unknown() -> None:
    broken = unusable("/x/baseline.json", "/x/baseline.json: no baseline (truncated)", "mend it")
    s = dataclasses.replace(healthy(), baseline=broken)
    (found,) = (f for f in judge(s, Policy(), 0) if f.id == "baseline.holds")
    assert (found.verdict, found.remedy) == (Verdict.UNKNOWN, "mend it")
    assert found.evidence[0].path == "/x/baseline.json"
