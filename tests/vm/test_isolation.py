"""Partitions that nodeagent makes: made and read back, refused beside isolcpus=, undone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

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


def test_with_isolation_by_boot_arguments_none_is_made(machine: Callable[[str], Guest]) -> None:
    node = Node(machine("isolcpus-6-1"))
    node.configure(allow='"threads", "cgroup", "host"', workloads="")
    before = _root(node)
    outcome, message = node.ask("partition", "quiet", "1,5")
    assert outcome == "refused" and 'isolation is "boot"' in message, message
    assert _root(node) == before
    node.guest.check("systemctl stop nodeagent-actor")
