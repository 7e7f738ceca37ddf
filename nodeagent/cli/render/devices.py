"""GPUs, NICs and NVMe drives below their switches and PCIe roots, as nested items."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nodeagent.cli.render.item import Item
from nodeagent.cli.render.words import VENDORS, link_text
from nodeagent.model.pci import PciFunction
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.words import many


def shown(function: PciFunction) -> bool:
    """GPUs, NICs and NVMe drives; a virtual function is counted on its physical one."""
    return (function.is_gpu or function.is_nic or function.is_nvme) and not function.physfn


def gpu_names(snapshot: Snapshot) -> dict[str, str]:
    """GPU0, GPU1, ... by BDF: the driver's numbers, or address order where none is loaded."""
    known = {g.bdf: f"GPU{g.index}" for g in snapshot.gpus}
    computing = [f.bdf for f in snapshot.topology.pci if f.computes]
    return known or {bdf: f"GPU{i}" for i, bdf in enumerate(computing)}


def roots(snapshot: Snapshot, functions: Iterable[PciFunction]) -> list[Item]:
    """Root buses with devices to show, each a tree in which lone bridges are folded away."""
    names = gpu_names(snapshot)
    by_bus: dict[str, list[PciFunction]] = {}
    for function in functions:
        if shown(function):
            by_bus.setdefault(function.root_bus, []).append(function)
    return [
        Item(
            kind="root",
            title=f"PCIe root {bus}" if bus else "PCI devices, bridges not told",
            inside=tuple(_branches(snapshot, names, [(f.parents[::-1], f) for f in ends])),
        )
        for bus, ends in sorted(by_bus.items())
    ]


Branch = tuple[tuple[str, ...], PciFunction]
"""Bridges still to go, from the root downward, and the device."""


def _branches(snapshot: Snapshot, names: dict[str, str], branches: list[Branch]) -> list[Item]:
    groups: dict[str, list[Branch]] = {}
    for path, end in branches:
        groups.setdefault(path[0] if path else "", []).append((path[1:], end))
    found = []
    for bridge, below in groups.items():
        if bridge == "":
            found += [_device(snapshot, names, end) for _, end in below]
            continue
        inside = _branches(snapshot, names, below)
        # Several functions of one device under one port are no switch.
        boards = {end.bdf.rpartition(".")[0] for _, end in below}
        if len(inside) == 1 or len(boards) == 1:
            found += [replace(item, keys=item.keys | {bridge}) for item in inside]
            continue
        at = snapshot.topology.function(bridge)
        link, slow = link_text(at.link if at else None)
        found.append(
            Item(
                kind="switch",
                title="switch",
                at=bridge,
                link=link,
                slow=slow,
                keys=frozenset((bridge,)),
                inside=tuple(inside),
            )
        )
    return found


def _device(snapshot: Snapshot, names: dict[str, str], function: PciFunction) -> Item:
    link, slow = link_text(function.link)
    vendor = VENDORS.get(function.vendor, function.vendor and f"vendor {function.vendor}")
    facts, odd = [vendor], []
    kind, title = "nvme", "NVMe"
    if function.is_gpu:
        kind = "gpu" if function.computes else "other"
        title = names.get(function.bdf, "GPU") if function.computes else "display"
    elif function.is_nic:
        kind, title = "nic", "NIC"
    for gpu in snapshot.gpus:
        if gpu.bdf == function.bdf:
            # The vendor's name stands in its GPUs' names already.
            facts = [gpu.name] if gpu.name else facts
            if gpu.mig:
                facts.append("MIG")
            if gpu.error:
                odd.append(gpu.error)
    ports = [nic for nic in snapshot.nics if nic.bdf == function.bdf]
    for nic in ports[:2]:
        title += f" {nic.name}"
        more = [nic.rdma] if nic.rdma and nic.rdma not in facts else []
        if nic.speed_mbps and nic.speed_mbps > 0:
            more.append(f"{nic.speed_mbps / 1000:g} Gb/s")
        elif nic.operstate == "down":
            more.append("down")
        facts = more + facts
    if len(ports) > 2:
        facts.append(f"{len(ports)} interfaces")
    for drive in snapshot.nvmes:
        if drive.bdf == function.bdf:
            title = f"NVMe {drive.name}"
            if drive.model:
                facts = [drive.model]
    if function.vfs:
        facts.append(many(function.vfs, "VF"))
    if function.driver is None and any(f.driver for f in snapshot.topology.pci):
        facts.append("no driver")
    return Item(
        kind=kind,
        title=title,
        at=function.bdf,
        facts=tuple(f for f in facts if f),
        odd=tuple(odd),
        link=link,
        slow=slow,
        keys=frozenset((function.bdf,)),
    )
