"""Machines of other shapes, planned and pinned for real: SMT, NPS4, memory-only nodes, switches.

What the planner's own tests show on captures is done here: the stock kernel's topology, processes
that run, every thread's mask read from the kernel before, under the pin and after undo.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.vm.machine import expand
from tests.vm.node import Node
from tests.vm.qemu import Guest

pytestmark = [pytest.mark.vm_long, pytest.mark.timeout(3000)]
Get = Callable[[str], Guest]
Measured = Callable[[str, str], None]


def _workload(name: str, keys: str) -> str:
    return (
        f'[[workload]]\nname = "{name}"\n{keys}\n'
        f"match = {{ cmdline = 'sleep {_seconds(name)}$' }}\n"
    )


def _seconds(name: str) -> int:
    """A duration that is the workload's own: what its process is known by."""
    return 500_000 + int.from_bytes(name.encode()[:8]) % 400_000


class Placed:
    """Sleeping processes, one a workload; planned, applied and undone on one machine."""

    def __init__(self, node: Node, workloads: dict[str, str], more: str = "") -> None:
        self.node = node
        node.configure(
            allow='"threads"',
            workloads=more + "".join(_workload(*item) for item in workloads.items()),
        )
        self.pids: dict[str, int] = {}
        for name in workloads:
            self.pids[name] = node.program(f"shape-{name}", f"sleep {_seconds(name)}")

    def masks(self) -> dict[str, set[int]]:
        """CPUs of each workload's process, as the kernel has them."""
        found = {}
        for name, pid in self.pids.items():
            (found[name],) = self.node.masks(pid).values()
        return found

    def applied(self) -> dict[str, Any]:
        """The plan, which is what the kernel says after it was applied; undone again at the end.

        Raises AssertionError where an act, its read-back or the way back is not as planned.
        """
        before = self.masks()
        plan = self.node.json("place plan")
        assert self.masks() == before, "a plan changes nothing"
        wanted = {p["workload"]: expand(p["cpus"]) for p in plan["placements"]}
        refused = {r["workload"] for r in plan["refused"]}
        assert set(wanted) | refused == set(self.pids) and not set(wanted) & refused
        own = [cpu for p in plan["placements"] if p["sharing"] == "exclusive"
               for cpu in wanted[p["workload"]]]  # fmt: skip
        assert len(own) == len(set(own)), "an exclusive PU was given twice"
        done = self.node.ctl("place apply --yes")
        assert done.rc in (0, 1), done.stdout + done.stderr
        assert self.masks() == before | wanted, done.stdout + done.stderr
        assert self.node.json("place plan")["actions"] == [], "planned again, nothing moves"
        undone = self.node.ctl("undo")
        assert undone.rc == 0, undone.stdout + undone.stderr
        assert self.masks() == before
        return plan

    def end(self) -> None:
        names = " ".join(f"shape-{name}" for name in self.pids)
        self.node.guest.run(f"systemctl stop {names} nodeagent-actor")


def _rows(plan: dict[str, Any]) -> str:
    """For docs/vm.md: what was placed where, and what was refused in which words."""
    lines = [
        f"- {p['workload']}: CPU {p['cpus']}, node {p['node']}, {p['sharing']}"
        for p in plan["placements"]
    ]
    for r in plan["refused"]:
        fits = f"; would fit if {r['would_fit_if']}" if r["would_fit_if"] else ""
        lines.append(f"- {r['workload']} refused: {r['reason']}{fits}")
    return "\n".join(lines)


def _cpus(plan: dict[str, Any]) -> dict[str, set[int]]:
    return {p["workload"]: expand(p["cpus"]) for p in plan["placements"]}


def _reasons(plan: dict[str, Any], name: str) -> str:
    (found,) = (p["reasons"] for p in plan["placements"] if p["workload"] == name)
    return " ".join(found)


def _refusal(plan: dict[str, Any], name: str) -> tuple[str, str]:
    (found,) = (r for r in plan["refused"] if r["workload"] == name)
    return found["reason"], found["would_fit_if"] or ""


def test_four_nodes_with_smt(machine: Get, measured: Measured) -> None:
    """4 nodes of 2 cores with 2 threads each; the lowest core of each package is the system's."""
    placed = Placed(
        Node(machine("smt")),
        {
            "whole": 'cpus = 1\nnear = "node:1"\nsmt = "whole-core"',
            "alone": 'cpus = 1\nnear = "node:2"\nsmt = "one-per-core"',
            "beside": 'cpus = 1\nnear = "node:2"',
            "big": 'cpus = 3\nnear = "node:3"',
            "any": 'cpus = 2\nnear = "node:0"',
        },
    )
    try:
        plan = placed.applied()
    finally:
        placed.end()
    measured("Planned and pinned: 4 nodes, 2 threads a core", _rows(plan))
    given = _cpus(plan)
    assert given["whole"] == {6, 7}, "rounded up to the core"
    assert given["any"] == {2, 3}
    # One of the node's only free core; its sibling stays idle, so the other one has no room.
    assert len({"alone", "beside"} & set(given)) == 1
    (one,) = {"alone", "beside"} & set(given)
    assert given[one] < {10, 11} and len(given[one]) == 1
    reason, fits = _refusal(plan, "big")
    assert "node 3 has 2" in reason and "needs 3" in reason and fits, (reason, fits)


def test_eight_nodes_as_nps4(machine: Get, measured: Measured) -> None:
    """8 nodes of 2 cores, 4 in a socket; GPUs on nodes 1, 3, 4 and 6, NICs on 0 and 4."""
    guest = machine("nps4")
    told = Node(guest).json("topology show")
    at = {f["bdf"]: f["numa_node"] for f in told["pci"]}
    nodes = [at[bdf] for bdf in told["gpus"]]
    assert sorted(nodes) == [1, 3, 4, 6]
    first, tight = nodes.index(1), nodes.index(4)
    placed = Placed(
        Node(guest),
        {
            "rank0": f'cpus = 1\nunit = "pair-0"\nnear = "gpu:{first}"',
            "index0": 'cpus = 1\nunit = "pair-0"',
            "rank2": f'cpus = 1\nunit = "pair-2"\nnear = "gpu:{tight}"',
            "index2": 'cpus = 1\nunit = "pair-2"',
            "rank3": f'cpus = 2\nnear = "gpu:{nodes.index(6)}"',
            "far": 'cpus = 2\nnear = "node:7"',
        },
    )
    try:
        plan = placed.applied()
    finally:
        placed.end()
    measured("Planned and pinned: 8 nodes as NPS4, 2 cores each", _rows(plan))
    given = _cpus(plan)
    assert given["rank0"] | given["index0"] == {2, 3}
    assert given["rank3"] == {12, 13} and given["far"] == {14, 15}
    # CPU 8, the lowest of its package, is the system's: node 4 has one PU, and no half unit.
    assert not {"rank2", "index2"} & set(given)
    reason, _ = _refusal(plan, "rank2")
    assert "node 4" in reason and "1 PU" in reason, reason


def test_a_node_of_memory_only_gets_no_cpus(machine: Get, measured: Measured) -> None:
    """2 nodes of 4 cores and a third of memory only, nearer to node 0."""
    placed = Placed(
        Node(machine("memory-only")),
        {
            "there": 'cpus = 2\nnear = "node:2"',
            "one": 'cpus = 3\nnear = "node:1"',
            "big": 'cpus = 4\nnear = "node:2"',
        },
    )
    try:
        plan = placed.applied()
    finally:
        placed.end()
    measured("Planned and pinned: 2 nodes and one of memory only", _rows(plan))
    given = _cpus(plan)
    assert given["one"] == {5, 6, 7}
    assert len(given["there"]) == 2 and given["there"] < {1, 2, 3}
    assert "node 2" in _reasons(plan, "there"), "the plan says why it is not there"
    reason, _ = _refusal(plan, "big")
    assert "4" in reason, reason


def test_units_beside_gpus_behind_switches(machine: Get, measured: Measured) -> None:
    """3 GPUs behind a switch on each of 2 nodes: a unit each side, and one that has no room."""
    guest = machine("gpus")
    told = Node(guest).json("topology show")
    at = {f["bdf"]: f["numa_node"] for f in told["pci"]}
    nodes = [at[bdf] for bdf in told["gpus"]]
    assert sorted(nodes) == [0, 0, 0, 1, 1, 1]
    left, right = nodes.index(0), nodes.index(1)
    placed = Placed(
        Node(guest),
        {
            "rank0": 'cpus = 2\nunit = "reasoning-0"\nkind = "vllm"',
            "index0": 'cpus = 1\nunit = "reasoning-0"\nkind = "vector-index"',
            "eyes1": 'cpus = 2\nunit = "vision-1"\nkind = "vision"',
            "eyes2": f'cpus = 2\nnear = "gpu:{nodes.index(1, right + 1)}"',
        },
        more=f'[[unit]]\nname = "reasoning-0"\nkind = "reasoning"\nnear = "gpu:{left}"\n'
        f'ring = "itch"\n[[unit]]\nname = "vision-1"\nkind = "vision"\nnear = "gpu:{right}"\n',
    )
    try:
        plan = placed.applied()
    finally:
        placed.end()
    measured("Planned and pinned: units beside GPUs behind switches", _rows(plan))
    given = _cpus(plan)
    assert given["rank0"] | given["index0"] == {1, 2, 3}
    # Two that want 2 of node 1's 3 PUs: one is placed, the other refused with what would fit.
    assert len({"eyes1", "eyes2"} & set(given)) == 1
    (lost,) = {"eyes1", "eyes2"} - set(given)
    reason, fits = _refusal(plan, lost)
    assert "node 1" in reason and fits, (reason, fits)
