"""The PCI tree: functions with their bridges, links, error counters, and how near they are.

Source: Documentation/ABI/testing/sysfs-bus-pci, sysfs-bus-pci-devices-aer_stats.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain, combinations, product

from nodeagent.discover.lspci_text import Details, read_details
from nodeagent.discover.pci_config import WHOLE, describe
from nodeagent.discover.root import Root, brief, is_number
from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.pci import AMD, INTEL, Aer, Link, PciFunction, parse_bdf
from nodeagent.model.topology import Path, PeerLink, Relation

DEVICES = "sys/bus/pci/devices"
MAX_GPUS = 1024
"""Pairs are made of this many at most: half a million."""
MAX_RELATED = 256
"""With more devices than this (SR-IOV) NIC-NIC and NVMe-NVMe pairs are left out."""
_BDF = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_ROOT = re.compile(r"pci([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2})")
_GTS = re.compile(r"(\d+(?:\.\d+)?) ?GT/s")
_LINK = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
_AER = ("aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal")
_WANTED = re.compile(
    "|".join(
        (
            *("class", "vendor", "device", "subsystem_vendor", "subsystem_device", "numa_node"),
            *("local_cpulist", "local_cpus", "driver", "iommu_group", "physfn", "sriov_numvfs"),
            *("sriov_totalvfs", "config"),
            *_LINK,
            *_AER,
        )
    )
)
_AMD_CPU = "1022"
CONFIG = "derived/pci"
"""`derived/pci/BDF`: what a function's configuration space says, in lspci's words."""
ASLEEP = "Capabilities: <not read: the device sleeps>"
_TOLD = ("02", "03", "0108", "0604", "12")
"""Classes (their first digits) whose configuration space is looked at."""


def read_pci(root: Root, online: CpuSet) -> tuple[PciFunction, ...]:
    """Every function, in address order; `local_cpus` holds online CPUs."""
    found = []
    for name in root.names(DEVICES, _BDF):
        function = _function(root, name, online)
        if function is not None:
            found.append(function)
    return tuple(sorted(found, key=lambda f: f.bdf))


def _function(root: Root, name: str, online: CpuSet) -> PciFunction | None:
    at = root.resolve(f"{DEVICES}/{name}")
    if at is None:
        return None
    there = frozenset(root.names(at, _WANTED))

    def hexadecimal(file: str) -> str:
        number = root.number(f"{at}/{file}", 16, expected=True)
        return "" if number is None else f"{number:04x}"

    code = root.number(f"{at}/class", 16, expected=True)
    vendor, device = hexadecimal("vendor"), hexadecimal("device")
    node = root.number(f"{at}/numa_node") if "numa_node" in there else None
    cpus = root.cpus(f"{at}/local_cpulist") if "local_cpulist" in there else None
    if cpus is None and "local_cpus" in there:
        cpus = root.mask(f"{at}/local_cpus")
    parents, root_bus = _above(at)
    group = root.target(f"{at}/iommu_group") if "iommu_group" in there else None
    physfn = root.target(f"{at}/physfn") if "physfn" in there else None
    class_code = "" if code is None else f"{code:06x}"[:4]
    told = Details()
    if physfn is None and class_code.startswith(_TOLD):
        told = _config(root, at, parse_bdf(name), there)
    subsystem = None
    if "subsystem_vendor" in there and "subsystem_device" in there:
        subsystem = f"{hexadecimal('subsystem_vendor')}:{hexadecimal('subsystem_device')}"
    return PciFunction(
        bdf=parse_bdf(name),
        class_code=class_code,
        vendor=vendor,
        device=device,
        numa_node=None if node is None or node < 0 else node,
        local_cpus=(cpus & online or None) if cpus else None,
        parents=parents,
        root_bus=root_bus,
        driver=root.target(f"{at}/driver") if "driver" in there else None,
        link=_link(root, at) if there.intersection(_LINK) else told.link,
        subsystem=subsystem,
        iommu_group=int(group) if group and is_number(group) else None,
        physfn=physfn if physfn and _BDF.fullmatch(physfn) else None,
        vfs=root.number(f"{at}/sriov_numvfs") if "sriov_numvfs" in there else None,
        aer=_aer(root, at) if there.issuperset(_AER) else None,
        total_vfs=root.number(f"{at}/sriov_totalvfs") if "sriov_totalvfs" in there else None,
        port=told.port,
        acs=told.acs,
        control=told.device_control,
        bars=tuple(told.bars),
        region_bytes=told.region,
        errors=told.errors,
        unseen=told.unseen,
    )


def _config(root: Root, at: str, bdf: str, there: frozenset[str]) -> Details:
    """What configuration space says; a recorded machine brings the text, not the bytes."""
    text = None if root.is_live else root.text(f"{CONFIG}/{bdf}", 1 << 16)
    if text is None and "config" in there:
        # Reading it would wake a device that sleeps.
        asleep = root.is_live and root.peek(f"{at}/power/runtime_status", 64) == b"suspended\n"
        data = None if asleep else root.opaque(f"{at}/config", WHOLE)
        text = ASLEEP if asleep else describe(data) if data is not None else None
        if data is not None and text is None:
            root.fail(f"{at}/config", "all ones or cut: the device does not answer")
    if not text:
        return Details()
    root.note(f"{CONFIG}/{bdf}", text)
    return read_details(text.splitlines())


def _above(path: str) -> tuple[tuple[str, ...], str]:
    """Bridges from the nearest upward, and the root bus, as the device's path tells them.

    A function behind a VMD or a hypervisor's bus has a root bus inside another one: the inner one
    counts. Without a `pciDDDD:BB` component (a flattened copy of sysfs) nothing is known.
    """
    parents: list[str] = []
    root_bus = ""
    for part in path.split("/")[:-1]:
        m = _ROOT.fullmatch(part)
        if m:
            parents, root_bus = [], m[1].lower()
        elif _BDF.fullmatch(part):
            parents.append(parse_bdf(part))
    return (tuple(reversed(parents)), root_bus) if root_bus else ((), "")


def _link(root: Root, at: str) -> Link:
    def speed(file: str) -> float | None:
        text = root.text(f"{at}/{file}", 64, quiet=True)
        if text is None or text.startswith("Unknown"):
            return None
        m = _GTS.match(text)
        if m is None:
            root.fail(f"{at}/{file}", f"{brief(text)}, expected a speed in GT/s")
        return float(m[1]) if m else None

    def width(file: str) -> int | None:
        number = root.number(f"{at}/{file}", quiet=True)
        # 255: the register could not be read (the device does not answer).
        return None if number == 255 else number

    return Link(
        speed_gts=speed("current_link_speed"),
        width=width("current_link_width"),
        max_speed_gts=speed("max_link_speed"),
        max_width=width("max_link_width"),
    )


def _aer(root: Root, at: str) -> Aer | None:
    totals = []
    for file in _AER:
        text = root.text(f"{at}/{file}")
        last = text.splitlines()[-1].split() if text else []
        if len(last) != 2 or not last[0].startswith("TOTAL_ERR_") or not is_number(last[1]):
            if text is not None:
                root.fail(f"{at}/{file}", "no TOTAL_ERR_ line at its end")
            return None
        totals.append(int(last[1]))
    return Aer(correctable=totals[0], nonfatal=totals[1], fatal=totals[2])


# ---- how near ----------------------------------------------------------------------------------

Links = dict[frozenset[str], tuple[PeerLink, ...]]
"""Direct links by pair of BDFs."""


def relate(functions: tuple[PciFunction, ...], links: Links) -> tuple[Relation, ...]:
    """One relation for each pair of computing GPUs, NICs and NVMe drives; none at all where
    `unrelated` says why."""
    if unrelated(functions) is not None:
        return ()
    by_bdf = {f.bdf: f for f in functions}
    # A GPU whose vendor could not be read may compute; a board's display chip does not.
    ends = [f for f in functions if _computes(f) or f.is_nic or f.is_nvme]
    upward = {f.bdf: _outside(f, by_bdf) for f in ends}
    found = []
    for a, b in _pairs(ends):
        same = None
        if a.numa_node is not None and b.numa_node is not None:
            same = a.numa_node == b.numa_node
        found.append(
            Relation(
                a=a.bdf,
                b=b.bdf,
                path=_path(a, b, upward[a.bdf], upward[b.bdf], same),
                same_numa=same,
                links=links.get(frozenset((a.bdf, b.bdf)), ()) if links else (),
            )
        )
    return tuple(found)


def _pairs(ends: list[PciFunction]) -> Iterable[tuple[PciFunction, PciFunction]]:
    if len(ends) <= MAX_RELATED:
        return combinations(ends, 2)
    computing = [f for f in ends if _computes(f)]
    return chain(
        combinations(computing, 2), product(computing, [f for f in ends if not _computes(f)])
    )


def unrelated(functions: tuple[PciFunction, ...]) -> str | None:
    """Why devices are not paired: more GPUs than any machine has; None: they are."""
    count = sum(1 for f in functions if _computes(f))
    if count <= MAX_GPUS:
        return None
    return f"{count} GPUs, expected at most {MAX_GPUS}: how near they are is not worked out"


def _computes(function: PciFunction) -> bool:
    # Those of Intel's CPUs compute for nobody here, yet a person asks how near they are.
    return function.computes or (function.is_gpu and function.vendor in ("", AMD, INTEL))


def _outside(function: PciFunction, by_bdf: dict[str, PciFunction]) -> tuple[str, ...]:
    """The bridges above a device's board: an AMD GPU brings a two-port switch of its own."""
    parents = function.parents
    if function.vendor != AMD:
        return parents
    own = 0
    while own < 2 and own < len(parents) - 1:
        bridge = by_bdf.get(parents[own])
        if bridge is None or bridge.vendor not in (AMD, _AMD_CPU):
            break
        own += 1
    return parents[own:]


def _path(
    a: PciFunction, b: PciFunction, up_a: tuple[str, ...], up_b: tuple[str, ...], same: bool | None
) -> Path:
    for i, bridge in enumerate(up_a):
        if bridge in up_b:
            # Ports below the nearest common bridge: one on each side is one switch.
            return Path.PIX if i <= 1 and up_b.index(bridge) <= 1 else Path.PXB
    if a.root_bus and a.root_bus == b.root_bus:
        return Path.PHB
    if same is False:
        return Path.SYS
    if same and a.root_bus and b.root_bus:
        return Path.NODE
    return Path.UNKNOWN


def normal_bdf(text: str) -> str | None:
    """A PCI address in its one form, or None for anything else."""
    try:
        return parse_bdf(text)
    except ParseError:
        return None
