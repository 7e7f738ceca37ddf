"""Partitions that nodeagent makes: made and read back, refused beside isolcpus=, undone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.vm.machine import expand
from tests.vm.node import Node
from tests.vm.qemu import Guest

pytestmark = [pytest.mark.vm_long, pytest.mark.timeout(3000)]
GROUP = "/sys/fs/cgroup/nodeagent.quiet"


def _partition(node: Node) -> dict[str, str]:
    told = node.guest.check(f"cd {GROUP}; grep -s . cpuset.cpus cpuset.cpus.partition")
    return dict(line.split(":", 1) for line in told.splitlines())


def _root(node: Node) -> str:
    """Everything that a partition may change at the top of the tree."""
    return node.guest.check(
        "cd /sys/fs/cgroup; cat cpuset.cpus.effective cgroup.subtree_control; ls -d nodeagent*"
        " 2>/dev/null; true"
    )


@pytest.mark.parametrize("name", ["two-nodes", "two-nodes-6-1"])
def test_a_partition_is_made_read_back_and_undone(
    machine: Callable[[str], Guest], name: str
) -> None:
    node = Node(machine(name))
    node.guest.check("echo +cpuset > /sys/fs/cgroup/cgroup.subtree_control")
    node.configure(
        allow='"threads", "cgroup", "host"', workloads="", more='isolation = "partition"'
    )
    before = _root(node)
    outcome, message = node.ask("partition", "quiet", "2-3")
    assert outcome == "done", message
    assert _partition(node) == {"cpuset.cpus": "2-3", "cpuset.cpus.partition": "isolated"}
    # Nobody else is scheduled there.
    assert _root(node).splitlines()[0] == "0-1,4-7"
    undone = node.ctl("undo")
    assert undone.rc == 0, undone.stdout + undone.stderr
    assert _root(node) == before
    node.guest.check("systemctl stop nodeagent-actor")


@pytest.mark.parametrize("cpus", ["2-3", "1-2", "1,5"])
@pytest.mark.parametrize("name", ["isolcpus", "isolcpus-6-1"])
def test_beside_isolcpus_none_is_made(
    machine: Callable[[str], Guest], name: str, cpus: str
) -> None:
    """On 6.1, which would take it, as on 6.12; whole, mixed or apart: one owner a node."""
    node = Node(machine(name))
    node.guest.check("echo +cpuset > /sys/fs/cgroup/cgroup.subtree_control")
    node.configure(
        allow='"threads", "cgroup", "host"', workloads="", more='isolation = "partition"'
    )
    before = _root(node)
    outcome, message = node.ask("partition", "quiet", cpus)
    assert outcome == "refused" and "isolcpus=" in message, message
    assert _root(node) == before
    node.guest.check("systemctl stop nodeagent-actor")


@pytest.mark.parametrize("name", ["isolcpus-6-1"])
def test_with_isolation_by_boot_arguments_none_is_made(
    machine: Callable[[str], Guest], name: str
) -> None:
    node = Node(machine(name))
    node.configure(allow='"threads", "cgroup", "host"', workloads="")
    before = _root(node)
    outcome, message = node.ask("partition", "quiet", "1,5")
    assert outcome == "refused" and 'isolation is "boot"' in message, message
    assert _root(node) == before
    node.guest.check("systemctl stop nodeagent-actor")


WORKLOAD = """
[[workload]]
name = "quiet"
match = { cmdline = 'sleep 7777$' }
cpus = 2
near = "node:0"
isolated = true
"""


def _bare(node: Node) -> int:
    """A process that no unit holds, in a cgroup of its own."""
    said = node.guest.check(
        "mkdir -p /sys/fs/cgroup/mine; setsid sleep 7777 </dev/null >/dev/null 2>&1 & "
        "echo $! > /sys/fs/cgroup/mine/cgroup.procs; echo $!"
    )
    return int(said)


def _cgroup(node: Node, pid: int) -> str:
    return node.guest.check(f"cat /proc/{pid}/cgroup").strip().rpartition(":")[2]


@pytest.mark.parametrize("name", ["two-nodes", "two-nodes-6-1"])
def test_a_workload_is_planned_into_a_partition(machine: Callable[[str], Guest], name: str) -> None:
    """Made, moved into, held by a second plan, refused in the kernel's words, undone."""
    node = Node(machine(name))
    node.guest.check("echo +cpuset > /sys/fs/cgroup/cgroup.subtree_control")
    node.configure(
        allow='"threads", "cgroup", "host"', workloads=WORKLOAD, more='isolation = "partition"'
    )
    # A value of the host that the actor's unit may not write, and that is not the matter here.
    node.guest.check("sysctl -w kernel.numa_balancing=0")
    before, pid = _root(node), _bare(node)
    masks = node.masks(pid)
    try:
        # A sibling that has these CPUs: the kernel says so, and nothing has changed.
        node.guest.check("cd /sys/fs/cgroup && mkdir rival && echo 0-3 > rival/cpuset.cpus")
        refused = node.ctl("place apply --yes")
        assert refused.rc == 1, refused.stdout + refused.stderr
        said = " ".join((refused.stdout + refused.stderr).split())
        assert "not exclusive" in said or "could not be set" in said, said
        assert _cgroup(node, pid) == "/mine" and node.masks(pid) == masks
        node.guest.check("rmdir /sys/fs/cgroup/rival")
        assert _root(node) == before

        plan = node.ctl("place plan").stdout
        made, moved = plan.find("isolated partition /nodeagent.quiet"), plan.find("into partition")
        assert 0 <= made < moved, plan
        applied = node.ctl("place apply --yes")
        assert applied.rc == 0, applied.stdout + applied.stderr
        held = node.guest.check(f"cat {GROUP}/cpuset.cpus.partition {GROUP}/cgroup.procs").split()
        assert held == ["isolated", str(pid)]
        cpus = expand(node.guest.check(f"cat {GROUP}/cpuset.cpus").strip())
        assert len(cpus) == 2 and cpus < {1, 2, 3} and node.masks(pid)[pid] == cpus
        left = expand(_root(node).splitlines()[0])
        assert left == set(range(8)) - cpus and 0 in left
        again = node.ctl("place plan")
        assert "isolated by partition /nodeagent.quiet" in " ".join(again.stdout.split())
        assert node.ctl("place plan --detailed-exitcode").rc == 0, again.stdout

        undone = node.ctl("undo")
        # An emulated CPU may take longer than the command waits; the actor goes on by itself.
        assert undone.rc == 0 or "no answer within" in undone.stderr, undone.stdout + undone.stderr
        node.until("everything is put back", lambda: _root(node) == before)
        assert _cgroup(node, pid) == "/mine" and node.masks(pid) == masks
    finally:
        node.guest.run(f"kill {pid}; sleep 1; rmdir /sys/fs/cgroup/mine /sys/fs/cgroup/rival")
        node.guest.check("sysctl -w kernel.numa_balancing=1")


@pytest.mark.parametrize("name", ["two-nodes", "two-nodes-6-1"])
def test_a_units_process_is_not_moved_out_of_it(machine: Callable[[str], Guest], name: str) -> None:
    node = Node(machine(name))
    node.configure(
        allow='"threads", "cgroup", "host"', workloads=WORKLOAD, more='isolation = "partition"'
    )
    node.service("held", "sleep 7777")
    plan = " ".join(node.ctl("place plan").stdout.split())
    assert "not isolated: the cgroup of held.service is systemd's to write" in plan, plan
    assert "/nodeagent.quiet" not in plan, plan
    node.guest.check("systemctl stop held nodeagent-actor")
