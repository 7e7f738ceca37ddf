"""What a line of TOML becomes: processors, nodes, memory, buses; no machine is booted."""

from __future__ import annotations

import pytest

from tests.vm.machine import MAX_SLOTS, Machine, expand, machines

NAMES = sorted(machines())


def _values(words: list[str], key: str) -> list[str]:
    return [words[i + 1] for i, word in enumerate(words) if word == key]


@pytest.mark.parametrize("name", NAMES)
def test_each_cpu_is_on_one_node(name: str) -> None:
    machine = machines()[name]
    nodes = [v for v in _values(machine.arguments("/x"), "-numa") if v.startswith("node,")]
    given = [
        cpu
        for node in nodes
        for part in node.split(",")
        if part.startswith("cpus=")
        for cpu in expand(part.removeprefix("cpus="))
    ]
    assert sorted(given) == list(range(machine.cpus))
    assert len(nodes) == machine.nodes + machine.memory_only


@pytest.mark.parametrize("name", NAMES)
def test_memory_of_the_nodes_is_the_machines(name: str) -> None:
    machine = machines()[name]
    words = machine.arguments("/x")
    sizes = [
        int(part.removeprefix("size=").removesuffix("M"))
        for value in _values(words, "-object")
        for part in value.split(",")
        if part.startswith("size=")
    ]
    assert _values(words, "-m") == [f"{sum(sizes)}M"]


@pytest.mark.parametrize("name", NAMES)
def test_no_id_slot_or_bus_twice(name: str) -> None:
    devices = _values(machines()[name].arguments("/x"), "-device")
    for key in ("id", "slot", "bus_nr"):
        found = [p for d in devices for p in d.split(",") if p.startswith(f"{key}=")]
        assert len(found) == len(set(found)), key
    places = [
        (parts["bus"], parts["addr"])
        for d in devices
        if "addr" in (parts := dict(p.split("=", 1) for p in d.split(",") if "=" in p))
    ]
    assert len(places) == len(set(places))


def test_isolated_cpus_and_housekeeping_are_all_cpus() -> None:
    machine = machines()["isolcpus"]
    words = dict(w.split("=", 1) for w in machine.boot().split() if "=" in w)
    house, isolated = expand(words["irqaffinity"]), expand(words["nohz_full"])
    assert house | isolated == set(range(machine.cpus)) and not house & isolated
    assert words["isolcpus"] == f"domain,managed_irq,{words['nohz_full']}"


def test_every_kind_of_machine_is_there() -> None:
    found = machines().values()
    assert {m.kernel for m in found} == {"6.1", "6.12"}
    assert any(m.nodes == 2 for m in found)
    assert any(m.nodes == 4 and m.threads == 2 for m in found)
    assert any(m.nodes == 8 and m.sockets == 2 for m in found)
    assert any(m.memory_only for m in found)
    assert any(m.gpus and m.nvmes and m.nics for m in found)
    assert {m.kernel for m in found if m.isolated} == {"6.1", "6.12"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('kernel = "6.1", nodes = 9, cores = 1', "9 nodes"),
        ('kernel = "6.1", nodes = 3, sockets = 2, cores = 1', "3 nodes on 2 sockets"),
        (f'kernel = "6.1", nodes = 1, cores = 1, gpus = {MAX_SLOTS + 1}', f"over {MAX_SLOTS}"),
        ('kernel = "6.1", nodes = 1, cores = 1, gpu = 1', "unknown keys ['gpu']"),
    ],
)
def test_a_line_that_makes_no_machine_is_refused(line: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("[", r"\[").replace("]", r"\]")):
        machines(f"[machine]\nx = {{ {line} }}")


def test_machines_differ() -> None:
    texts = {(" ".join(m.arguments("/x")), m.boot(), m.kernel) for m in machines().values()}
    assert len(texts) == len(machines())


def test_one_line_is_one_machine() -> None:
    made = machines('[machine]\nx = { kernel = "6.1", nodes = 1, cores = 2, threads = 2 }')
    assert made == {"x": Machine(name="x", kernel="6.1", nodes=1, cores=2, threads=2)}
    assert made["x"].cpus == 4 and made["x"].boot() == ""
