"""CPUs taken offline for real: planned around, under a pin, over an undo, and back again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from nodeagent.model.cpuset import CpuSet
from tests.vm.machine import expand
from tests.vm.node import Node
from tests.vm.qemu import Guest

pytestmark = [pytest.mark.vm_long, pytest.mark.timeout(3000)]
WORKLOADS = """
[[workload]]
name = "pair"
cpus = 2
near = "node:1"
match = { cmdline = 'sleep 616161$' }

[[workload]]
name = "named"
cpu_list = "6"
match = { cmdline = 'sleep 626262$' }
"""


@pytest.fixture(params=["two-nodes", "two-nodes-6-1"])
def node(request: pytest.FixtureRequest, machine: Callable[[str], Guest]) -> Iterator[Node]:
    """CPU 6 of node 1 (4 to 7, of which 4 is the system's) is offline; two workloads run."""
    made = Node(machine(request.param))
    made.configure(allow='"threads"', workloads=WORKLOADS)
    _switch(made, 6, on=False)
    made.program("off-pair", "sleep 616161")
    made.program("off-named", "sleep 626262")
    yield made
    for cpu in (5, 6, 7):
        _switch(made, cpu, on=True)
    made.guest.run(
        "nodeagentctl undo; systemctl stop off-pair off-named off-control nodeagent-actor"
    )


def _control(node: Node, mask: str) -> int:
    """A process whose mask is set by taskset now: what the kernel itself makes of it later."""
    pid = node.program("off-control", "sleep 636363")
    node.guest.check(f"taskset -cp {mask} {pid}")
    return pid


def _switch(node: Node, cpu: int, *, on: bool) -> None:
    """As an operator does; what is so already stays."""
    node.guest.check(f"echo {int(on)} > /sys/devices/system/cpu/cpu{cpu}/online")


def _kernel(node: Node) -> str:
    return node.guest.check("uname -r").strip()


def _list(cpus: set[int]) -> str:
    return str(CpuSet.of(cpus))


def _mask(node: Node, pid: int) -> set[int]:
    (mask,) = node.masks(pid).values()
    return mask


def test_a_plan_leaves_out_what_is_offline_and_undo_puts_back_what_was(
    node: Node, measured: Callable[[str, str], None]
) -> None:
    everything = set(range(8))
    (pair,) = node.pids("sleep 616161$")
    (named,) = node.pids("sleep 626262$")
    assert expand(node.guest.check("cat /sys/devices/system/cpu/offline").strip()) == {6}
    # Where cpuset is on, the kernel leaves what is offline out of what it says of a mask.
    assert _mask(node, pair) | {6} == everything

    plan = node.json("place plan")
    (placed,) = plan["placements"]
    assert placed["workload"] == "pair" and expand(placed["cpus"]) == {5, 7}
    (refused,) = plan["refused"]
    assert refused["workload"] == "named"
    assert "CPU 6, which is not online here" in refused["reason"]
    done = node.ctl("place apply --yes")
    assert _mask(node, pair) == {5, 7}, done.stdout + done.stderr
    assert _mask(node, named) | {6} == everything

    undone = node.ctl("undo")
    assert undone.rc == 0, undone.stdout + undone.stderr
    control = _control(node, "0-7")
    _switch(node, 6, on=True)
    assert _mask(node, pair) == _mask(node, control) == everything, undone.stdout
    measured(
        f"A mask put back while one of its CPUs is offline, kernel {_kernel(node)}",
        f"0-7 before CPU 6 went offline; set again by undo meanwhile, and by taskset to another "
        f"process: with CPU 6 back both have {_list(_mask(node, pair))}.",
    )

    # Back online it is given again.
    plan = node.json("place plan")
    assert {p["workload"]: expand(p["cpus"]) for p in plan["placements"]}["named"] == {6}


def test_a_pinned_cpu_goes_offline_and_comes_back(node: Node) -> None:
    everything = set(range(8))
    (pair,) = node.pids("sleep 616161$")
    node.ctl("place apply --yes")
    assert _mask(node, pair) == {5, 7}

    # One of its two: it runs on the other. The plan says that the node has too few.
    _switch(node, 7, on=False)
    told = node.guest.check(f"taskset -cp {pair}").rpartition(":")[2].strip()
    # Before Linux 6.2 that forgets the pin, where cpuset is on.
    widened = _kernel(node).startswith("6.1.")
    assert expand(told) == (everything - {6, 7} if widened else {5})
    plan = node.json("place plan")
    (reason,) = (r["reason"] for r in plan["refused"] if r["workload"] == "pair")
    assert "node 1 has 1 PU" in reason and "needs 2" in reason, reason
    assert node.ctl("place status").rc in (0, 1)

    # Undone while two are offline; once they are back, nothing is missing.
    undone = node.ctl("undo")
    assert undone.rc == 0, undone.stdout + undone.stderr
    control = _control(node, "0-7")
    for cpu in (6, 7):
        _switch(node, cpu, on=True)
    assert _mask(node, pair) == _mask(node, control) == everything, undone.stdout
    assert node.json("undo")["results"] == []


def test_both_pinned_cpus_go_offline(node: Node) -> None:
    """The kernel lets the threads run anywhere then; undo takes that for what it is."""
    everything = set(range(8))
    (pair,) = node.pids("sleep 616161$")
    node.ctl("place apply --yes")
    for cpu in (5, 7):
        _switch(node, cpu, on=False)
    status = node.ctl("place status")
    assert status.rc in (0, 1) and "pair" in status.stdout
    undone = node.ctl("undo")
    assert undone.rc in (0, 1), undone.stdout + undone.stderr
    for cpu in (5, 6, 7):
        _switch(node, cpu, on=True)
    assert _mask(node, pair) == everything, undone.stdout
    assert node.json("undo")["results"] == []
