"""Every machine comes up, and nodeagent sees in it what its line of TOML says."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.vm.machine import expand, machines
from tests.vm.qemu import Guest

pytestmark = [pytest.mark.vm_long, pytest.mark.timeout(3000)]
NAMES = sorted(machines(), key=lambda name: (name != "two-nodes", name))


@pytest.mark.parametrize("name", NAMES)
def test_the_machine_is_what_its_line_says(machine: Callable[[str], Guest], name: str) -> None:
    guest = machine(name)
    wanted = guest.machine
    assert guest.check("uname -r").startswith(f"{wanted.kernel}.")
    told = json.loads(guest.check("nodeagentctl -o json topology show", 600))
    assert told["pus"] == wanted.cpus and told["cores"] == wanted.nodes * wanted.cores
    nodes = {node["id"]: node for node in told["numa_nodes"]}
    each = wanted.cores * wanted.threads
    assert len(nodes) == wanted.nodes + wanted.memory_only
    for number, node in nodes.items():
        has = number < wanted.nodes
        cpus = set(range(number * each, (number + 1) * each)) if has else set()
        assert (expand(node["cpus"]) if node["cpus"] else set()) == cpus
        assert node["kind"] == ("cpu+memory" if has else "memory")
    assert len(told["packages"]) == (wanted.sockets or wanted.nodes)
    siblings = {frozenset(expand(v)) for v in told["smt_siblings"].values()}
    assert {len(s) for s in siblings} == {wanted.threads}
    devices = {function["bdf"]: function for function in told["pci"]}
    here = range(wanted.nodes) if wanted.device_nodes is None else wanted.device_nodes
    for kind, count in (("gpus", wanted.gpus), ("nvmes", wanted.nvmes)):
        at = sorted(devices[bdf]["numa_node"] for bdf in told[kind])
        assert at == sorted(node for node in here for _ in range(count)), kind
    # Behind the port of a switch: downstream, upstream, root port.
    assert all(len(devices[bdf]["parents"]) == 3 for bdf in told["gpus"])
    isolated = told["isolation"]["isolated"]
    assert isolated == wanted.isolated
