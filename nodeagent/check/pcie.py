"""pcie: links, errors, and what stands between two devices that talk to each other."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check import link_reading
from nodeagent.check.record import (
    READ_BY_HAND,
    Judged,
    NotApplicable,
    Seen,
    check,
    fail,
    info,
    needs_right,
    ok,
    saw,
    some,
    unknown,
    warn,
)
from nodeagent.model.finding import Evidence
from nodeagent.model.pci import Link, PciFunction
from nodeagent.model.pcie_said import AerCounters


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


def linked(s: Seen, *, speed: bool = False) -> list[tuple[PciFunction, Link]]:
    """Those of them whose link's width (or `speed`) is known; a link without lanes is down. Raises
    NotApplicable, or Missing where links were not readable."""
    found = [
        (p, p.link)
        for p in serious(s)
        if p.link is not None
        and (p.link.width or (speed and p.link.speed_gts and p.link.width is None))
    ]
    if not found:
        for leaf in ("current_link", "max_link", "config"):
            s.whole("sys/bus/pci/devices", "sys/devices/pci", leaf=leaf)
        raise NotApplicable("no GPU, NIC or NVMe drive tells its PCIe link")
    return found


def unseen(s: Seen, *leaves: str, bridges: bool = False) -> Iterator[Judged]:
    """UNKNOWN for devices whose link files (or those of the port above, with `bridges` of all
    bridges above) were there and could not be read: the others are judged without them."""
    failed: dict[str, tuple[str, str]] = {}
    for u in s.snapshot.unread:
        folder, _, leaf = u.path.rpartition("/")
        if leaf in leaves:
            failed.setdefault(folder.rpartition("/")[2], (u.path, u.reason))
    if not failed:
        return
    hit = []
    for p in serious(s):
        above = p.parents if bridges else p.parents[:1]
        if any(bdf in failed for bdf in (p.bdf, *above)):
            hit.append(p)
    if hit:
        of = {b for p in hit for b in (p.bdf, *p.parents) if b in failed}
        shown = [failed[b] for b in sorted(of)][:3]
        rights = all(needs_right(reason) for _, reason in shown)
        yield unknown(
            some(p.bdf for p in hit),
            f"the links of {some((p.bdf for p in hit), 4)} could not be seen: {shown[0][1]}",
            *(saw(path, reason) for path, reason in shown),
            remedy=s.as_root if rights else READ_BY_HAND,
        )


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
    means="WARN when a GPU, NIC or NVMe drive has fewer lanes than it and its port both can do, "
    "FAIL where a pasted sample says that it was under load: width does not depend on load. "
    "In a virtual machine the numbers are the hypervisor's invention: INFO.",
    why="Half the lanes is half the bandwidth: a bad riser, a dirty or half-seated card, a "
    "bifurcation setting.",
    prove="lspci -vv -s BDF | grep -E 'LnkCap:|LnkSta:'",
    mend="Reseat the card, look at the BIOS bifurcation of that slot, exchange the riser.",
    source="PCI Express Base Specification 6.0, section 7.5.3.8 (Link Status)",
)
def width(s: Seen) -> Iterator[Judged]:
    """Lanes, each device."""
    readings = link_reading.sampled(s)
    yield from link_reading.widths(readings)
    yield from unseen(s, "current_link_width", "max_link_width")
    links = [] if readings and not serious(s) else linked(s)
    busy = {r.name for r in readings if r.reading.loaded}
    links = [(p, link) for p, link in links if p.bdf not in busy]
    short = []
    for p, link in links:
        lanes, _ = reach(s, p, link)
        # Without its own word a card may be made with fewer lanes than its port has.
        if lanes and link.max_width and link.width and link.width < lanes:
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
    if links and not short:
        yield ok("pcie", f"{len(links)} links have all their lanes")


@check(
    "pcie.speed",
    "PCIe links of NICs and NVMe drives run at the speed both ends can do",
    means="WARN when a NIC or NVMe drive runs slower than it and its port both can do. GPUs lower "
    "their speed when idle (2.5 GT/s is normal power saving), so a GPU is judged only by pasted "
    "samples taken under load: WARN, FAIL at half the speed or less.",
    why="A link that trained down lost bandwidth and is often the first sign of a bad slot.",
    prove="lspci -vv -s BDF | grep -E 'LnkCap:|LnkSta:'",
    mend="Reseat, update the firmware; setpci retraining only to prove it.",
    source="PCI Express Base Specification 6.0, section 7.5.3.8 (Link Status)",
)
def speed(s: Seen) -> Iterator[Judged]:
    """GT/s, each device."""
    readings = link_reading.sampled(s)
    yield from link_reading.speeds(readings)
    yield from unseen(s, "current_link_speed", "max_link_speed")
    links = [] if readings and not serious(s) else linked(s, speed=True)
    sampled = {r.name for r in readings}
    links = [(p, link) for p, link in links if p.bdf not in sampled]
    slow = []
    told = 0
    for p, link in links:
        _, top = reach(s, p, link)
        if top and link.max_speed_gts and link.speed_gts:
            told += 1
            if link.speed_gts < top:
                slow.append((p, link.speed_gts, top))
    if slow:
        s.whole("sys/devices/pci", leaf="max_link_speed")
    bad = [x for x in slow if not x[0].is_gpu and not s.snapshot.host.virtual]
    for p, have, could in bad:
        yield warn(
            p.bdf,
            f"{what(p)} {p.bdf} runs at {have:g} GT/s, it and its port can do {could:g} GT/s",
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
    if told and not bad:
        yield ok("pcie", f"{told} links were looked at; those of NICs and drives are fast")
    if links and not told:
        raise NotApplicable("no GPU, NIC or NVMe drive tells its link's speed")


@check(
    "pcie.bottleneck",
    "no link on the way up is narrower than the devices below it",
    means="INFO when a link between the device and the CPU has less than `percent` % of the "
    "device's own bandwidth; WARN when several GPUs and NICs share such a link, and when a pasted "
    "table of paths shows devices that share an uplink slower than all of them together.",
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
    readings = link_reading.sampled(s)
    rates = {
        r.name: gb_s(r.reading.max_speed_gts or r.reading.speed_gts or 0, r.reading.width or 0)
        for r in readings
    }
    tables = tuple(link_reading.paths(readings, rates))
    yield from tables
    if tables and not serious(s):
        return
    yield from unseen(s, "current_link_width", "max_link_width", "max_link_speed", bridges=True)
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


_HARMLESS = ("UnsupReq", "AdvNonFatalErr", "UnxCmplt")
"""Bits that enumeration and probing of absent functions leave behind."""


def _bits(functions: list[PciFunction], pasted: bool) -> Iterator[Judged]:
    """Error status bits that nobody cleared: they tell that, not when and how often."""
    hard, soft = [], []
    for p in functions:
        if p.errors is None:
            continue
        bad = [b for b in p.errors.uncorrectable if b not in _HARMLESS]
        mild = [b for b in p.errors.correctable if b not in _HARMLESS]
        if bad or "FatalErr" in p.errors.device:
            hard.append((p, bad or ["FatalErr"]))
        elif mild:
            soft.append((p, mild))
    for found, name, word in ((hard, "UESta", "uncorrectable"), (soft, "CESta", "correctable")):
        if not found:
            continue
        sentence = (
            f"{some((f'{what(p)} {p.bdf}' for p, _ in found), 4)} had {word} errors "
            f"({some(sorted({b for _, bits in found for b in bits}), 6)}) since their status was "
            "last cleared"
        )
        evidence = [
            saw(_path(p, "config"), f"{name}: " + " ".join(f"{b}+" for b in bits))
            for p, bits in found[:4]
        ]
        if word == "correctable" and not pasted:
            yield info(some(p.bdf for p, _ in found), sentence, *evidence)
        else:
            yield warn(
                some(p.bdf for p, _ in found),
                sentence,
                *evidence,
                remedy="dmesg | grep -iE 'AER|PCIe Bus Error'; watch the counters: "
                "grep . /sys/bus/pci/devices/*/aer_dev_*",
            )


def _counted(counters: tuple[AerCounters, ...], bound: float) -> Iterator[Judged]:
    """Pasted counters, with or without the device's name."""
    fine = []
    for c in counters:
        who = c.device or "the device"
        errors = f" ({some(c.names, 6)})" if c.names else ""
        evidence = Evidence(
            path=c.source,
            text=f"{who}: correctable {c.correctable}, non-fatal {c.nonfatal}, fatal {c.fatal}",
        )
        remedy = f"dmesg | grep -iE 'AER|{c.device or 'PCIe Bus Error'}'; reseat the card, "
        if c.fatal or c.nonfatal:
            yield fail(
                c.device or "pcie",
                f"{who} had {c.fatal} fatal and {c.nonfatal} non-fatal errors{errors}",
                evidence,
                remedy=remedy + "exchange the riser",
            )
        elif c.correctable > bound:
            yield warn(
                c.device or "pcie",
                f"{who} had {c.correctable} correctable errors since boot{errors}: the link "
                "retries, which is the early warning before a device is lost",
                evidence,
                remedy=remedy + "watch the rate of the counters",
            )
        else:
            fine.append(evidence)
    if fine:
        yield ok("pcie", f"{len(fine)} devices counted no errors that matter", *fine[:4])


@check(
    "pcie.aer",
    "no PCIe errors were counted",
    means="FAIL for any fatal or non-fatal error on a GPU, NIC or NVMe drive or on a bridge above "
    "one since boot; WARN for more than `correctable` correctable ones, and for error "
    "status bits in configuration space (lspci's UESta, CESta) that nobody cleared; INFO for "
    "correctable ones (CESta) on a machine that was read.",
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
    counters = s.snapshot.pasted.of(AerCounters) if s.snapshot.pasted is not None else ()
    yield from _counted(counters, s.bounds["correctable"])
    devices = serious(s)
    if not devices and counters:
        return
    if not devices:
        raise NotApplicable("no GPU, NIC or NVMe drive is here")
    topology = s.snapshot.topology
    wanted = {p.bdf for p in devices} | {b for p in devices for b in p.parents}
    told = [p for p in topology.pci if p.bdf in wanted and p.aer is not None]
    bits = tuple(_bits([p for p in topology.pci if p.bdf in wanted], s.snapshot.pasted is not None))
    yield from bits
    yield from unseen(s, "aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal", bridges=True)
    if not told and bits:
        return
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
