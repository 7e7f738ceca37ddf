"""Cases of test_checks.py for what the machine's own readings tell: (name, machine, verdict)."""

from __future__ import annotations

import dataclasses

from nodeagent.check.baseline import shape
from nodeagent.model.baseline import Baseline
from nodeagent.model.finding import Verdict
from nodeagent.model.snapshot import Snapshot
from tests.check.machines import GIB, healthy, topo, unreadable, with_node

H = healthy()
V = Verdict


def accepted(s: Snapshot) -> Snapshot:
    """That machine, compared with the healthy one's baseline."""
    return dataclasses.replace(s, baseline=Baseline(accepted="2026-01-01", traits=shape(H)))


NO_PCI = dataclasses.replace(topo(H, pci=(), relations=()), gpus=())

CASES: dict[str, list[tuple[str, Snapshot, Verdict]]] = {
    "baseline.holds": [
        ("as accepted", accepted(H), V.OK),
        ("memory lost", accepted(with_node(H, 0, memory_bytes=GIB)), V.FAIL),
        ("bus not listed", accepted(unreadable(NO_PCI, "sys/bus/pci/devices")), V.UNKNOWN),
        ("none accepted", H, V.NA),
    ],
}
ALWAYS_SEE: set[str] = set()
"""These cannot be unable to see: they judge what is there, or it was never asked for."""
ONLY_TELL: set[str] = set()
"""These have nothing to approve of."""
ALWAYS_APPLY: set[str] = set()
