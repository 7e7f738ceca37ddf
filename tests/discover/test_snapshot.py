"""The live machine, and directories made here."""

from __future__ import annotations

import os
import pathlib

import pytest

from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot
from nodeagent.errors import UsageError


def test_live_machine_agrees_with_the_kernel() -> None:
    with Root.live() as root:
        snapshot = read_snapshot(root, None, 7)
    topology = snapshot.topology
    assert topology.online.ids >= os.sched_getaffinity(0)
    assert {c for c, _ in topology.smt_siblings} == topology.online.ids
    assert sum(len(c) for c in topology.cores) == len(topology.online)
    memory = [n.memory_bytes for n in topology.nodes]
    assert memory and all(memory)
    assert snapshot.text("proc/cmdline") == pathlib.Path("/proc/cmdline").read_text().strip()
    assert snapshot.live and snapshot.taken_ns == 7
    assert snapshot.host.kernel == os.uname().release


def test_irqs_of_the_live_machine_have_counts_and_affinity() -> None:
    with Root.live() as root:
        irqs = read_snapshot(root).irqs
    assert irqs
    assert any(count for irq in irqs for _, count in irq.counts)
    assert any(irq.affinity for irq in irqs)


def test_a_path_that_is_not_there_is_usage_and_points_to_fleet_node() -> None:
    with pytest.raises(UsageError) as caught:
        Root.open("/nowhere/at/all")
    assert "fleet node" in caught.value.remedy


def test_a_directory_without_sys_and_proc_is_usage(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UsageError):
        Root.open(str(tmp_path))
