"""pcie: links, errors, and what stands between two devices that talk to each other."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check.isolation import CMDLINE
from nodeagent.check.record import (
    READ_BY_HAND,
    Judged,
    Missing,
    NotApplicable,
    Seen,
    check,
    fail,
    info,
    ok,
    saw,
    some,
    warn,
)
from nodeagent.model.pci import Link, PciFunction
from nodeagent.model.topology import Path


def gb_s(speed_gts: float, width: int) -> float:
    """Bandwidth of a link in GB/s each way: 8b/10b below 8 GT/s, 128b/130b up to 32 GT/s, flits
    above. Source: PCI Express Base Specification 6.0, sections 4.2.1, 4.2.2 and 4.2.3."""
    coded = 0.8 if speed_gts < 8 else 128 / 130 if speed_gts <= 32 else 242 / 256
    return speed_gts * width * coded / 8


def _path(p: PciFunction, leaf: str) -> str:
    return f"sys/bus/pci/devices/{p.bdf}/{leaf}"


def what(p: PciFunction) -> str:
    """A word for a device."""
    return "GPU" if p.is_gpu else "NIC" if p.is_nic else "NVMe" if p.is_nvme else "device"


def serious(s: Seen) -> list[PciFunction]:
    """The GPUs that compute, the NICs and the NVMe drives; virtual functions have no link."""
    s.devices()
    return [
        p
        for p in s.snapshot.topology.pci
        if (p.computes or p.is_nic or p.is_nvme) and p.physfn is None
    ]


def linked(s: Seen) -> list[tuple[PciFunction, Link]]:
    """Those of them whose link is known. Raises NotApplicable, or Missing where links were not
    readable."""
    found = [(p, p.link) for p in serious(s) if p.link is not None and p.link.width]
    if not found:
        for leaf in ("current_link", "max_link", "config"):
            s.whole("sys/bus/pci/devices", "sys/devices/pci", leaf=leaf)
        raise NotApplicable("no GPU, NIC or NVMe drive tells its PCIe link")
    return found


def reach(s: Seen, p: PciFunction, link: Link) -> tuple[int | None, float | None]:
    """Width and speed that both ends of the device's own link can do; None: not told."""
    up = s.snapshot.topology.function(p.parents[0]) if p.parents else None
    widths = [link.max_width, up.link.max_width if up and up.link else None]
    speeds = [link.max_speed_gts, up.link.max_speed_gts if up and up.link else None]
    return (
        min((w for w in widths if w), default=None),
        min((v for v in speeds if v), default=None),
    )


@check(
    "pcie.width",
    "PCIe links have all lanes that both ends can do",
    means="WARN when a GPU, NIC or NVMe drive has fewer lanes than it and its port both can do. "
    "Width does not depend on load. In a virtual machine the numbers are the hypervisor's "
    "invention: INFO.",
    why="Half the lanes is half the bandwidth: a bad riser, a dirty or half-seated card, a "
    "bifurcation setting.",
    prove="lspci -vv -s BDF | grep -E 'LnkCap:|LnkSta:'",
    mend="Reseat the card, look at the BIOS bifurcation of that slot, exchange the riser.",
    source="PCI Express Base Specification 6.0, section 7.5.3.8 (Link Status)",
)
def width(s: Seen) -> Iterator[Judged]:
    """Lanes, each device."""
    links = linked(s)
    short = []
    for p, link in links:
        lanes, _ = reach(s, p, link)
        if lanes and link.width and link.width < lanes:
            short.append((p, link.width, lanes))
    if short:
        s.whole("sys/devices/pci", leaf="max_link_width")
    for p, have, could in short:
        evidence = (
            saw(_path(p, "current_link_width"), str(have)),
            saw(_path(p, "max_link_width"), str(p.link.max_width if p.link else "")),
        )
        sentence = f"{what(p)} {p.bdf} runs on x{have}, it and its port can do x{could}"
        if s.snapshot.host.virtual:
            yield info(p.bdf, sentence + " (a hypervisor made these numbers)", *evidence)
        else:
            yield warn(
                p.bdf,
                sentence,
                *evidence,
                remedy="reseat the card and look at riser and BIOS bifurcation; "
                f"lspci -vv -s {p.bdf} | grep Lnk",
            )
    if not short:
        yield ok("pcie", f"{len(links)} links have all their lanes")


@check(
    "pcie.speed",
    "PCIe links of NICs and NVMe drives run at the speed both ends can do",
    means="WARN when a NIC or NVMe drive runs slower than it and its port both can do. GPUs lower "
    "their speed when idle (2.5 GT/s is normal power saving), so a GPU is judged only under load.",
    why="A link that trained down lost bandwidth and is often the first sign of a bad slot.",
    prove="lspci -vv -s BDF | grep -E 'LnkCap:|LnkSta:'",
    mend="Reseat, update the firmware; setpci retraining only to prove it.",
    source="PCI Express Base Specification 6.0, section 7.5.3.8 (Link Status)",
)
def speed(s: Seen) -> Iterator[Judged]:
    """GT/s, each device."""
    links = linked(s)
    slow = []
    for p, link in links:
        _, top = reach(s, p, link)
        if top and link.speed_gts and link.speed_gts < top:
            slow.append((p, link.speed_gts, top))
    if slow:
        s.whole("sys/devices/pci", leaf="max_link_speed")
    bad = [x for x in slow if not x[0].is_gpu and not s.snapshot.host.virtual]
    for p, have, could in bad:
        yield warn(
            p.bdf,
            f"{what(p)} {p.bdf} runs at {have:g} GT/s, it and its port can do {could:g}",
            saw(_path(p, "current_link_speed"), f"{have:g} GT/s"),
            saw(_path(p, "max_link_speed"), f"{p.link.max_speed_gts if p.link else 0:g} GT/s"),
            remedy=f"reseat the card; lspci -vv -s {p.bdf} | grep Lnk",
        )
    if idle := [x for x in slow if x[0].is_gpu]:
        yield info(
            f"gpu {some(p.bdf for p, _, _ in idle)}",
            f"{len(idle)} GPUs run at {some(sorted({f'{v:g}' for _, v, _ in idle}))} GT/s: normal "
            "when idle, judged only under load",
        )
    if not bad:
        yield ok("pcie", f"{len(links)} links were looked at; those of NICs and drives are fast")


@check(
    "pcie.bottleneck",
    "no link on the way up is narrower than the devices below it",
    means="INFO when a link between the device and the CPU has less than `percent` % of the "
    "device's own bandwidth; WARN when several GPUs and NICs share such a link.",
    why="min(width x speed) over the whole path is what counts, not the endpoint. Chipset lanes "
    "and switch uplinks are shared.",
    prove="lspci -tv; lspci -vv | grep -E '^[0-9a-f]|LnkCap:|LnkSta:'",
    mend="Another slot; for switch uplinks plan who transfers when, or use peer-to-peer below the "
    "switch.",
    source="PCI Express Base Specification 6.0, section 1.4; the board's block diagram",
    bounds={"percent": 90},
)
def bottleneck(s: Seen) -> Iterator[Judged]:
    """Each bridge's uplink against what hangs below."""
    links = linked(s)
    topology = s.snapshot.topology
    if s.snapshot.host.virtual:
        raise NotApplicable("a virtual machine's PCIe tree says nothing about bandwidth")
    below: dict[str, list[tuple[PciFunction, float]]] = {}
    for p, link in links:
        lanes, speed_gts = reach(s, p, link)
        if not lanes or not speed_gts:
            continue
        own = gb_s(speed_gts, lanes)
        for parent in p.parents[1:]:
            below.setdefault(parent, []).append((p, own))
    shared: list[tuple[PciFunction, str]] = []
    single: list[tuple[PciFunction, str]] = []
    for bridge, devices in sorted(below.items()):
        port = topology.function(bridge)
        if port is None or port.link is None or not port.link.width or not port.link.max_speed_gts:
            continue
        up = gb_s(port.link.max_speed_gts, port.link.width)
        cards = {p.bdf.rpartition(".")[0]: (p, own) for p, own in devices}
        worst = max(own for _, own in cards.values())
        if up * 100 >= worst * s.bounds["percent"]:
            continue
        names = some((p.bdf for p, _ in cards.values()), 4)
        heavy = [p for p, _ in cards.values() if p.is_gpu or p.is_nic]
        found = (port, f"carries {up:.0f} GB/s for {names}, one of which alone can do {worst:.0f}")
        (shared if len(heavy) > 1 else single).append(found)
    if shared:
        yield warn(
            f"bridge {some((p.bdf for p, _ in shared), 4)}",
            f"{len(shared)} bridges shared by GPUs and NICs are slower than one device below them",
            *(
                saw(_path(p, "current_link_width"), f"{p.link.width if p.link else 0}: {text}")
                for p, text in shared[:4]
            ),
            remedy="lspci -tv shows the path; use another slot, or plan who transfers when",
        )
    if single:
        yield info(
            f"bridge {some((p.bdf for p, _ in single), 4)}",
            f"{len(single)} bridges are slower than the one device below them",
            *(saw(_path(p, "current_link_width"), text) for p, text in single[:4]),
        )
    if not shared and not single:
        yield ok("pcie", f"no link above {len(links)} devices is slower than they are")


@check(
    "pcie.aer",
    "no PCIe errors were counted",
    means="FAIL for any fatal or non-fatal error on a GPU, NIC or NVMe drive or on a bridge above "
    "one since boot; WARN for more than `correctable` correctable ones.",
    why="Correctable errors are retries: a storm of them is the early warning before a "
    "device falls "
    "off the bus (Xid 79 follows by minutes). Non-fatal ones lost a transaction.",
    prove="grep . /sys/bus/pci/devices/*/aer_dev_*; dmesg | grep -i 'pcie bus error'",
    mend="Reseat the card, exchange riser or cable, update the firmware; watch the counter's rate.",
    source="Linux Documentation/PCI/pcieaer-howto.rst; Documentation/ABI/testing/"
    "sysfs-bus-pci-devices-aer_stats",
    bounds={"correctable": 1000},
)
def aer(s: Seen) -> Iterator[Judged]:
    """Counters of the devices and of all bridges above them."""
    devices = serious(s)
    if not devices:
        raise NotApplicable("no GPU, NIC or NVMe drive is here")
    topology = s.snapshot.topology
    wanted = {p.bdf for p in devices} | {b for p in devices for b in p.parents}
    told = [p for p in topology.pci if p.bdf in wanted and p.aer is not None]
    if not told:
        s.whole("sys/bus/pci/devices", "sys/devices/pci", leaf="aer_dev")
        raise NotApplicable("the kernel counts no PCIe errors here")
    bad = False
    for p in told:
        assert p.aer is not None
        text = f"correctable {p.aer.correctable}, non-fatal {p.aer.nonfatal}, fatal {p.aer.fatal}"
        if p.aer.fatal or p.aer.nonfatal:
            bad = True
            yield fail(
                p.bdf,
                f"{what(p)} {p.bdf} had {p.aer.fatal} fatal and {p.aer.nonfatal} non-fatal errors",
                saw(_path(p, "aer_dev_*"), text),
                remedy=f"dmesg | grep {p.bdf}; reseat the card, exchange the riser",
            )
        elif p.aer.correctable > s.bounds["correctable"]:
            bad = True
            yield warn(
                p.bdf,
                f"{what(p)} {p.bdf} had {p.aer.correctable} correctable errors since boot: the "
                "link retries",
                saw(_path(p, "aer_dev_correctable"), text),
                remedy=f"watch the rate; dmesg | grep {p.bdf}; reseat the card",
            )
    if not bad:
        yield ok("pcie", f"{len(told)} devices and bridges, no errors that count")


@check(
    "pcie.acs-redirect",
    "peer-to-peer traffic is not redirected to the root",
    means="FAIL when ACS request or completion redirect is on at a bridge between two GPUs, or a "
    "GPU and a NIC, below one switch; OK when it is off. SrcValid alone redirects nothing. UNKNOWN "
    "on a machine and in a capture, for config space is not read; lspci -vvv as root, pasted, "
    "tells. NA in a virtual machine and where no switch is shared.",
    why="Every peer-to-peer transfer then goes up to the root complex and the IOMMU: NCCL is slow "
    "or hangs.",
    prove="sudo lspci -vvv | grep -E '^[0-9a-f]|ACSCtl'",
    mend="Disable ACS in the BIOS (or setpci -s BRIDGE ECAP_ACS+6.w=0000 at each boot) on machines "
    "that pass no device to guests. With VFIO or SR-IOV leave it on: it is the isolation.",
    source="PCI Express Base Specification 6.0, section 6.12 (ACS); NVIDIA NCCL user guide, "
    "troubleshooting, PCI access control services",
)
def acs_redirect(s: Seen) -> Iterator[Judged]:
    """Bridges below the nearest common one."""
    s.devices()
    topology = s.snapshot.topology
    if s.snapshot.host.virtual:
        raise NotApplicable("a virtual machine does not see the physical bridges")
    gpus = {p.bdf for p in topology.gpus if p.computes}
    between: set[str] = set()
    for r in topology.relations:
        if r.path not in (Path.PIX, Path.PXB) or not {r.a, r.b} & gpus:
            continue
        a, b = topology.function(r.a), topology.function(r.b)
        if a is None or b is None or not (a.is_gpu or a.is_nic) or not (b.is_gpu or b.is_nic):
            continue
        common = next((x for x in a.parents if x in b.parents), None)
        for p in (a, b):
            for bridge in p.parents:
                if bridge == common:
                    break
                between.add(bridge)
    found = [topology.function(b) for b in sorted(between)]
    ports = [p for p in found if p is not None]
    if s.snapshot.pasted is not None and not gpus:
        # Somebody pasted bridges alone: all of those that tell are asked about.
        ports = [p for p in topology.pci if p.acs_redirect is not None]
    if not ports:
        raise NotApplicable("no two GPUs or NICs share a PCIe switch")
    on = [p for p in ports if p.acs_redirect]
    untold = [p for p in ports if p.acs_redirect is None]
    if on:
        yield fail(
            f"bridge {some((p.bdf for p in on), 4)}",
            f"ACS redirect is on at {len(on)} bridges between GPUs and NICs: peer-to-peer goes "
            "through the root",
            *(saw(_path(p, "config"), "ACSCtl: ReqRedir+ or CmpltRedir+") for p in on[:3]),
            remedy="disable ACS in the BIOS; until the next boot: setpci -s BRIDGE "
            "ECAP_ACS+6.w=0000 (not on a machine that passes devices to guests)",
        )
    elif untold:
        raise Missing(
            _path(untold[0], "config"),
            "ACS stands in config space, which nodeagent never reads: that touches the device",
            "on that machine: sudo lspci -vvv | nodeagentctl diagnose -",
        )
    else:
        yield ok("pcie", f"ACS redirect is off at {len(ports)} bridges between GPUs and NICs")


@check(
    "pcie.iommu",
    "the IOMMU lets devices through without translation",
    means="WARN when GPUs are in translated IOMMU domains (DMA, DMA-FQ); OK when they are in "
    "identity domains or no IOMMU is on; UNKNOWN when the domain's type is not told. INFO for "
    "GPUs handed to vfio.",
    why="Translation costs each DMA a lookup and breaks or slows GPUDirect and peer-to-peer.",
    prove="grep . /sys/kernel/iommu_groups/*/type; cat /proc/cmdline",
    mend="iommu=pt on the command line (with intel_iommu=on or amd_iommu=on as needed).",
    source="Linux Documentation/ABI/testing/sysfs-kernel-iommu_groups; NVIDIA GPUDirect storage "
    "guide, IOMMU",
)
def iommu(s: Seen) -> Iterator[Judged]:
    """Domain types of the GPUs' groups."""
    s.devices()
    gpus = [p for p in s.snapshot.topology.gpus if p.computes]
    if not gpus:
        raise NotApplicable("no GPU is here")
    if s.snapshot.pasted:
        raise NotApplicable("the input says nothing of the IOMMU")
    grouped = [p for p in gpus if p.iommu_group is not None]
    if not grouped:
        yield ok("iommu", "the GPUs are in no IOMMU group: no translation")
        return
    passed = [p for p in grouped if (p.driver or "").startswith("vfio")]
    mine = [p for p in grouped if p not in passed]
    translated = []
    for p in mine:
        path = f"sys/kernel/iommu_groups/{p.iommu_group}/type"
        kind = s.snapshot.texts.get(path)
        if not kind:
            if s.snapshot.arg("iommu") == "pt" or s.snapshot.arg("iommu.passthrough") == "1":
                continue
            if kind is not None:
                raise Missing(path, "the file is empty", READ_BY_HAND)
            raise s.gone(path, "the group does not tell its type")
        if kind != "identity":
            translated.append((p, path, kind))
    if translated:
        yield warn(
            f"gpu {some(p.bdf for p, _, _ in translated)}",
            f"{len(translated)} GPUs are behind a translating IOMMU ({translated[0][2]})",
            *(saw(path, kind) for _, path, kind in translated[:2]),
            saw(CMDLINE, f"iommu={s.snapshot.arg('iommu') or '(not given)'}"),
            remedy="add iommu=pt to the boot arguments and reboot",
        )
    elif mine:
        yield ok("iommu", f"{len(mine)} GPUs are in identity domains")
    if passed:
        yield info(
            f"gpu {some(p.bdf for p in passed)}", f"{len(passed)} GPUs are handed to guests (vfio)"
        )


@check(
    "pcie.virtual-tree",
    "the PCIe tree is the physical one",
    means="WARN when this is a virtual machine with several GPUs or nodes, and nobody tells the "
    "GPUs' NUMA nodes or all GPUs are on one flat bus; INFO otherwise. Advice about BIOS "
    "and slots belongs "
    "to the host.",
    why="Hypervisors put all devices on one invented bus unless told (pxb-pcie): every path looks "
    "PHB, and NCCL and planners believe it.",
    prove="systemd-detect-virt; lspci -tv; cat /sys/bus/pci/devices/*/numa_node",
    mend="Ask the operator for a vNUMA layout with pxb-pcie expander bridges, or for the host's "
    "NUMA map; give NCCL the real topology with NCCL_TOPO_FILE.",
    source="QEMU docs/pcie.txt, 'PCI Express expander bridge'; NCCL user guide, NCCL_TOPO_FILE",
)
def virtual_tree(s: Seen) -> Iterator[Judged]:
    """Virtual machine with GPUs."""
    s.devices()
    virtual = s.snapshot.host.virtual
    gpus = [p for p in s.snapshot.topology.gpus if p.computes]
    if virtual is None or not gpus:
        raise NotApplicable("no virtual machine with GPUs")
    where = "a guest" if virtual == "unknown" else f"a {virtual} guest"
    flat = len({p.root_bus for p in gpus}) == 1 and len(gpus) > 1
    untold = [p for p in gpus if p.numa_node is None]
    evidence = (
        saw("sys/class/dmi/id/sys_vendor", virtual),
        *(saw(_path(p, "numa_node"), "-1") for p in untold[:2]),
    )
    if (untold or flat) and (len(gpus) > 1 or len(s.cpu_nodes) > 1):
        yield warn(
            f"gpu {some(p.bdf for p in untold or gpus)}",
            f"this is {where}: the PCIe tree is invented, locality of {len(gpus)} GPUs is "
            "not to be "
            "trusted",
            *evidence,
            remedy="ask the host's operator (virsh dumpxml GUEST) for the NUMA map of these GPUs "
            "(pxb-pcie)",
        )
    else:
        yield info(
            f"gpu {some(p.bdf for p in gpus)}",
            f"this is {where}: locality as the hypervisor tells it",
            *evidence,
        )
