"""pcie: how functions and bridges are set up: ACS, IOMMU, payload, ordering, BARs, VFs."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check.isolation import CMDLINE
from nodeagent.check.pcie import serious, what
from nodeagent.check.record import (
    NOT_RECORDED,
    READ_BY_HAND,
    RECORD_MORE,
    Judged,
    Missing,
    NotApplicable,
    Seen,
    check,
    fail,
    info,
    needs_right,
    ok,
    saw,
    some,
    warn,
)
from nodeagent.model.finding import Evidence
from nodeagent.model.pci import MELLANOX, PciFunction
from nodeagent.model.pcie_said import AcsReading, GdsReport, IommuLog
from nodeagent.model.topology import Path

MIB, GIB = 1 << 20, 1 << 30
LSPCI = "sudo lspci -vvv | nodeagentctl diagnose -"


def _acs_off(bridges: list[str]) -> str:
    """The remedy, with the bridges' names where they are known."""
    named = f"for b in {' '.join(bridges)}; do setpci -s $b" if bridges else "setpci -s BRIDGE"
    done = "; done" if bridges else ""
    return (
        f"disable ACS in the BIOS; until the next boot: {named} ECAP_ACS+6.w=0000{done} (not on a "
        "machine that passes devices to guests: with VFIO or SR-IOV it is the isolation)"
    )


def _config(p: PciFunction) -> str:
    return f"sys/bus/pci/devices/{p.bdf}/config"


def config_missing(s: Seen, p: PciFunction) -> Missing:
    """Why a function's configuration space tells nothing."""
    path = _config(p)
    if p.unseen is not None:
        root = needs_right(p.unseen) or "denied" in p.unseen
        reason = f"{p.unseen}, configuration space needs root" if root else p.unseen
        if s.snapshot.pasted is not None:
            return Missing(path, reason, f"on that machine: {LSPCI}")
        return Missing(path, reason, s.as_root if root else READ_BY_HAND)
    for u in s.snapshot.unread:
        if u.path.endswith((f"/{p.bdf}/config", f"derived/pci/{p.bdf}")):
            return s.unread(u.path.lstrip("/"), u.reason)
    if s.snapshot.pasted is not None:
        return Missing(path, "the input does not tell it", f"on that machine: {LSPCI}")
    if s.snapshot.live:
        return Missing(path, "it was not there", READ_BY_HAND)
    return Missing(path, NOT_RECORDED, RECORD_MORE)


def _nothing_told(s: Seen, functions: list[PciFunction], reason: str) -> Exception:
    """UNKNOWN where configuration space is there and could not be read, else NA."""
    failed = _failed(s)
    for p in functions:
        if p.unseen is not None or p.bdf in failed:
            return config_missing(s, p)
    return NotApplicable(reason)


def _failed(s: Seen) -> set[str]:
    """Functions whose configuration space was there, on a machine or in a capture, and failed."""
    found = set()
    for u in s.snapshot.unread:
        folder, _, leaf = u.path.rpartition("/")
        if leaf == "config":
            found.add(folder.rpartition("/")[2])
        elif folder.endswith("derived/pci"):
            found.add(leaf)
    return found


# ---- ACS -------------------------------------------------------------------------------------


def _between(s: Seen) -> list[PciFunction]:
    """Bridges below the nearest common one of each pair of a GPU and another GPU or a NIC."""
    topology = s.snapshot.topology
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
    return [p for p in found if p is not None]


def _above_gpus(s: Seen) -> list[PciFunction]:
    """Root ports above GPUs that have no direct link to one another and share no switch."""
    topology = s.snapshot.topology
    gpus = [p for p in topology.gpus if p.computes and p.physfn is None]
    if len({p.bdf.rpartition(".")[0] for p in gpus}) < 2:
        return []
    names = {p.bdf for p in gpus}
    if any(r.links for r in topology.relations if {r.a, r.b} <= names):
        return []
    found = [topology.function(p.parents[-1]) for p in gpus if p.parents]
    return [p for p in dict.fromkeys(found) if p is not None]


@check(
    "pcie.acs-redirect",
    "peer-to-peer traffic is not redirected to the root",
    means="FAIL when ACS request or completion redirect is on at a bridge between two GPUs, or a "
    "GPU and a NIC, below one switch, and in pasted lspci at the bridges above GPUs; WARN when it "
    "is on at root ports above GPUs that have no other way to one another, and when only other ACS "
    "controls are on (SrcValid: it redirects nothing); OK when all is off, or a bridge has no ACS. "
    "UNKNOWN without root: ACS stands in configuration space. NA in a virtual machine and where "
    "nothing lies between GPUs and NICs.",
    why="Every peer-to-peer transfer then goes up to the root complex and the IOMMU: NCCL is slow "
    "or hangs.",
    prove="sudo lspci -vvv | grep -E '^[0-9a-f]|ACSCtl'",
    mend="Disable ACS in the BIOS (or setpci -s BRIDGE ECAP_ACS+6.w=0000 at each boot) on machines "
    "that pass no device to guests. With VFIO or SR-IOV leave it on: it is the isolation.",
    source="PCI Express Base Specification 6.0, section 6.12 (ACS); NVIDIA NCCL user guide, "
    "troubleshooting, PCI access control services",
)
def acs_redirect(s: Seen) -> Iterator[Judged]:
    """Bridges between peers; bare registers of a paste."""
    s.devices()
    pasted = s.snapshot.pasted
    bare = pasted.of(AcsReading) if pasted is not None else ()
    if bare:
        yield from _bare(bare)
    if s.snapshot.host.virtual:
        if bare:
            return
        raise NotApplicable("a virtual machine does not see the physical bridges")
    topology = s.snapshot.topology
    ports = _between(s)
    direct = True
    if not ports:
        ports, direct = _above_gpus(s), False
    if pasted is not None and not (direct and ports):
        # Somebody pasted bridges: those that tell are asked about.
        told = [p for p in topology.pci if p.acs is not None and p.acs.present and p.is_bridge]
        ports, direct = told or ports, bool(told)
        gpus = [p for p in topology.gpus if p.computes]
        if len(gpus) == 1:
            # Of one GPU nobody is a peer; what its root port redirects is of no weight.
            ports = [] if not bare else ports
    if not ports:
        if bare:
            return
        raise NotApplicable("no two GPUs or NICs have a PCIe bridge between them")
    yield from _ports(s, ports, direct=direct)


def _ports(s: Seen, ports: list[PciFunction], *, direct: bool) -> Iterator[Judged]:
    on = [p for p in ports if p.acs is not None and p.acs.redirects]
    partly = [p for p in ports if p.acs is not None and p.acs.on and not p.acs.redirects]
    untold = [p for p in ports if p.acs is None]
    evidence = [
        saw(_config(p), "ACSCtl: " + " ".join(f"{f}+" for f in (p.acs.on if p.acs else ())))
        for p in (on or partly)[:4]
    ]
    where = "between GPUs and NICs" if direct else "above the GPUs"
    if on:
        translated = [p for p in on if p.acs and "DirectTrans" in p.acs.on]
        tail = (
            "; DirectTrans+ lets through what a device translated itself (ATS)"
            if translated
            else ""
        )
        sentence = (
            f"ACS redirect is on at {len(on)} of {len(ports)} bridges {where}: "
            f"peer-to-peer goes through the root{tail}"
        )
        judge = fail if direct else warn
        yield judge(
            f"bridge {some((p.bdf for p in on), 4)}",
            sentence,
            *evidence,
            remedy=_acs_off([p.bdf for p in on[:32]]),
        )
    elif untold and direct:
        raise config_missing(s, untold[0])
    elif failed := _failed(s) & {p.bdf for p in untold}:
        raise config_missing(s, next(p for p in untold if p.bdf in failed))
    elif untold:
        raise NotApplicable("nobody tells the ACS controls of the root ports")
    elif partly:
        flags = some(sorted({f for p in partly if p.acs for f in p.acs.on}))
        yield warn(
            f"bridge {some((p.bdf for p in partly), 4)}",
            f"ACS is partly on at {len(partly)} bridges {where} ({flags}): no redirect bit, "
            "peer-to-peer stays in the switch",
            *evidence,
            remedy="nothing to do for peer-to-peer; if it is slow all the same look at the path "
            "(nvidia-smi topo -p2p r) and at the IOMMU",
        )
    else:
        yield ok("pcie", f"ACS redirect is off at {len(ports)} bridges {where}")


def _bare(readings: tuple[AcsReading, ...]) -> Iterator[Judged]:
    """ACSCtl lines without their device."""
    on = [r for r in readings if {"ReqRedir", "CmpltRedir"}.intersection(r.on)]
    partly = [r for r in readings if r.on and r not in on]
    evidence = [Evidence(path=r.source, text=r.text) for r in (on or partly or readings)[:4]]
    if on:
        yield fail(
            "bridge",
            f"ACS redirect is on in {len(on)} of {len(readings)} ACSCtl lines: peer-to-peer goes "
            "through the root",
            *evidence,
            remedy=_acs_off([]),
        )
    elif partly:
        flags = some(sorted({f for r in partly for f in r.on}))
        yield warn(
            "bridge",
            f"ACS is partly on ({flags}): no redirect bit is set, so peer-to-peer stays in the "
            "switch",
            *evidence,
            remedy="nothing to do for peer-to-peer; lspci -vvv with the lines of the devices tells "
            "which bridge it is",
        )
    else:
        yield ok("bridge", f"ACS is off in {len(readings)} ACSCtl lines", *evidence)


# ---- IOMMU -----------------------------------------------------------------------------------


@check(
    "pcie.iommu",
    "the IOMMU lets devices through without translation",
    means="WARN when GPUs are in translated IOMMU domains (DMA, DMA-FQ), or a pasted log, gdscheck "
    "or command line says so; OK when they are in identity domains or no IOMMU is on; UNKNOWN when "
    "the domain's type is not told. INFO for GPUs handed to vfio.",
    why="Translation costs each DMA a lookup and breaks or slows GPUDirect and peer-to-peer.",
    prove="grep . /sys/kernel/iommu_groups/*/type; cat /proc/cmdline; dmesg | grep -i iommu",
    mend="iommu=pt on the command line (with intel_iommu=on or amd_iommu=on as needed).",
    source="Linux Documentation/ABI/testing/sysfs-kernel-iommu_groups; NVIDIA GPUDirect storage "
    "guide, IOMMU",
)
def iommu(s: Seen) -> Iterator[Judged]:
    """Domain types of the GPUs' groups; in a paste what is said of it."""
    s.devices()
    if s.snapshot.pasted is not None:
        yield from _pasted_iommu(s)
        return
    gpus = [p for p in s.snapshot.topology.gpus if p.computes]
    if not gpus:
        raise NotApplicable("no GPU is here")
    grouped = [p for p in gpus if p.iommu_group is not None]
    if not grouped:
        s.whole("sys/bus/pci/devices", "sys/devices/pci", leaf="iommu_group")
        if not s.snapshot.complete:
            raise Missing(
                f"sys/bus/pci/devices/{gpus[0].bdf}/iommu_group", NOT_RECORDED, RECORD_MORE
            )
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


def _pasted_iommu(s: Seen) -> Iterator[Judged]:
    """What the input says of translation; only where PCIe or storage is what it is about."""
    pasted = s.snapshot.pasted
    assert pasted is not None
    logs, gds = pasted.of(IommuLog), pasted.of(GdsReport)
    groups = s.matching("sys/kernel/iommu_groups/", "/type")
    matrix = s.snapshot.matrix
    about = bool(
        logs
        or gds
        or groups
        or pasted.of(AcsReading)
        or s.snapshot.topology.gpus
        or (matrix and matrix.gpus)
    )
    args = {name: s.snapshot.arg(name) for name in ("iommu", "intel_iommu", "amd_iommu")}
    through = (
        "pt" in (args["iommu"] or "").split(",")
        or s.snapshot.arg("iommu.passthrough") == "1"
        or any(log.mode == "Passthrough" for log in logs)
    )
    said: list[Evidence] = []
    said += [
        Evidence(path=log.source, text=f"Default domain type: {log.mode}")
        for log in logs
        if log.mode == "Translated"
    ]
    said += [Evidence(path=g.source, text=f"IOMMU: {g.iommu}") for g in gds if g.iommu == "enabled"]
    said += [saw(path, kind) for path, kind in groups if kind.startswith("DMA")][:4]
    if not through and not said:
        said += [
            saw(CMDLINE, f"{name}={value}")
            for name, value in args.items()
            if value and "on" in value.split(",")
        ]
    off = "off" in (args["iommu"], args["intel_iommu"], args["amd_iommu"])
    if not about:
        raise NotApplicable("the input says nothing of the IOMMU")
    translating = [e for e in said if e.text.startswith(("DMA", "Default"))]
    if said and (not through or translating):
        yield warn(
            "iommu",
            "the IOMMU translates each DMA of the devices (no passthrough): peer-to-peer and "
            "GPUDirect are slow or refused",
            *said[:4],
            remedy="add iommu=pt to the boot arguments and reboot; keep it on only for machines "
            "that pass devices to guests",
        )
    elif through or off or any(g.iommu == "disabled" for g in gds):
        yield ok("iommu", "the IOMMU is off or in passthrough")
    else:
        raise NotApplicable("the input says nothing of the IOMMU")


@check(
    "pcie.iommu-faults",
    "the IOMMU refused no DMA",
    means="FAIL for DMA faults in a kernel log (DMAR, AMD-Vi IO_PAGE_FAULT, SMMU events), with the "
    "devices that caused them; NA when no log was given.",
    why="A device wrote or read where nobody had mapped memory: the transfer was thrown away. With "
    "peer-to-peer it is the sign of an IOMMU that does not know the peer's BAR.",
    prove="dmesg | grep -E 'DMAR|AMD-Vi|smmu'",
    mend="iommu=pt for peer-to-peer; else update driver and firmware of the named device.",
    source="Linux drivers/iommu/intel/dmar.c, drivers/iommu/amd/iommu.c",
)
def iommu_faults(s: Seen) -> Iterator[Judged]:
    """Faults by device."""
    pasted = s.snapshot.pasted
    logs = pasted.of(IommuLog) if pasted is not None else ()
    if not logs:
        raise NotApplicable("no kernel log that speaks of the IOMMU was given")
    found = [(log.source, *fault) for log in logs for fault in log.faults]
    if not found:
        yield ok("iommu", "the log tells of no refused DMA")
        return
    devices = sorted({bdf for _, _, bdf, _ in found if bdf})
    yield fail(
        some(devices, 4) if devices else "iommu",
        f"the IOMMU refused DMA {len(found)} times"
        + (f", of {some(devices, 4)}" if devices else ""),
        *(Evidence(path=f"{source}:{line}", text=text) for source, line, _, text in found[:4]),
        remedy="add iommu=pt to the boot arguments if GPUs and NICs talk to one another; else "
        "update driver and firmware of the device: "
        f"lspci -nnk -s {devices[0] if devices else 'BDF'}",
    )


# ---- payload, ordering -----------------------------------------------------------------------


@check(
    "pcie.payload",
    "both ends of a path use one payload size, and a good one",
    means="FAIL when a GPU, NIC or NVMe drive may send larger payloads than a port above it takes "
    "(malformed packets); WARN when it is set to less than the port above it, or to 128 bytes "
    "where the whole path can do more, or a data NIC reads at most 128 bytes a request. UNKNOWN "
    "without root; NA where nobody tells.",
    why="Each packet carries 20-28 bytes of header: at 128 bytes of payload a sixth of the link is "
    "lost. A mismatch is an error that takes the device down under load.",
    prove="sudo lspci -vv | grep -E '^[0-9a-f]|MaxPayload|MaxReadReq'",
    mend="pci=pcie_bus_perf (or pcie_bus_safe) on the command line, or the BIOS setting; reads: "
    "setpci -s NIC CAP_EXP+8.w (bits 14:12), or the NIC's own tool.",
    source="PCI Express Base Specification 6.0, section 7.5.3.4; Linux "
    "Documentation/admin-guide/kernel-parameters.txt, pci=pcie_bus_*",
)
def payload(s: Seen) -> Iterator[Judged]:
    """Payload and read request along each path."""
    topology = s.snapshot.topology
    told = [p for p in serious(s) if p.control is not None and p.control.max_payload_bytes]
    if s.snapshot.host.virtual:
        raise NotApplicable("a virtual machine's payload sizes are its own")
    if not told:
        raise _nothing_told(s, serious(s), "nobody tells the payload sizes (configuration space)")
    large, small, least, reads = [], [], [], []
    for p in told:
        assert p.control is not None and p.control.max_payload_bytes is not None
        own = p.control.max_payload_bytes
        chain = [x for b in p.parents if (x := topology.function(b)) is not None]
        ports = [x for x in chain if x.control and x.control.max_payload_bytes]
        sizes = [x.control.max_payload_bytes or 0 for x in ports if x.control]
        able = [
            x.control.max_payload_able_bytes
            for x in (p, *ports)
            if x.control and x.control.max_payload_able_bytes
        ]
        if sizes and own > min(sizes):
            large.append((p, own, ports[sizes.index(min(sizes))], min(sizes)))
        elif sizes and own < sizes[0]:
            small.append((p, own, ports[0], sizes[0]))
        elif own == 128 and able and len(able) == len(ports) + 1 and min(able) > 128:
            least.append((p, min(able)))
        request = p.control.max_read_request_bytes
        if p.is_nic and p.vendor == MELLANOX and request is not None and request <= 128:
            reads.append((p, request))
    for p, own, port, size in large:
        yield fail(
            p.bdf,
            f"{what(p)} {p.bdf} may send payloads of {own} bytes, port {port.bdf} above it takes "
            f"{size}: packets are refused as malformed",
            saw(_config(p), f"MaxPayload {own} bytes"),
            saw(_config(port), f"MaxPayload {size} bytes"),
            remedy="boot with pci=pcie_bus_safe, or set one MaxPayload in the BIOS",
        )
    if small:
        p, own, port, size = small[0]
        yield warn(
            some(x.bdf for x, _, _, _ in small),
            f"{len(small)} devices are set to smaller payloads than the port above them "
            f"({p.bdf}: {own} bytes, {port.bdf}: {size})",
            *(saw(_config(x), f"MaxPayload {n} bytes") for x, n, _, _ in small[:3]),
            saw(_config(port), f"MaxPayload {size} bytes"),
            remedy="boot with pci=pcie_bus_perf, or set one MaxPayload in the BIOS",
        )
    if least:
        yield warn(
            some(p.bdf for p, _ in least),
            f"{len(least)} devices send payloads of 128 bytes, they and all ports above can do "
            f"{min(n for _, n in least)}",
            *(saw(_config(p), "MaxPayload 128 bytes") for p, _ in least[:3]),
            remedy="boot with pci=pcie_bus_perf, or set MaxPayload in the BIOS",
        )
    if reads:
        yield warn(
            some(p.bdf for p, _ in reads),
            f"{len(reads)} NICs ask for at most {reads[0][1]} bytes a read: the link waits",
            *(saw(_config(p), f"MaxReadReq {n} bytes") for p, n in reads[:3]),
            remedy="set MaxReadReq to 4096 in the NIC's firmware or the BIOS "
            "(lspci -vv -s BDF | grep MaxReadReq)",
        )
    if not (large or small or least or reads):
        yield ok("pcie", f"{len(told)} devices use the payload size of the ports above them")


@check(
    "pcie.relaxed-ordering",
    "GPUs and data NICs may use relaxed ordering",
    means="WARN when relaxed ordering is off on a data NIC of a machine with GPUs, or on a GPU; "
    "UNKNOWN without root; NA where nobody tells.",
    why="Strictly ordered writes of a fast NIC wait for one another in the root complex: on AMD "
    "hosts RDMA runs at half the rate.",
    prove="sudo lspci -vv | grep -E '^[0-9a-f]|RlxdOrd'",
    mend="PCIe relaxed ordering on in the BIOS; ConnectX: mlxconfig -d BDF set PCI_WR_ORDERING=1.",
    source="PCI Express Base Specification 6.0, section 2.4 (ordering) and 7.5.3.4; NVIDIA NCCL "
    "user guide, NCCL_IB_PCI_RELAXED_ORDERING",
)
def relaxed_ordering(s: Seen) -> Iterator[Judged]:
    """The enable bit of each."""
    compute = any(p.computes for p in s.snapshot.topology.gpus)
    told = [
        p
        for p in serious(s)
        if p.control is not None
        and p.control.relaxed_ordering is not None
        and (p.computes or (p.is_nic and p.vendor == MELLANOX))
    ]
    if s.snapshot.host.virtual:
        raise NotApplicable("a virtual machine's ordering bits are its own")
    if not told:
        wanted = [p for p in serious(s) if p.computes or p.is_nic]
        raise _nothing_told(s, wanted, "nobody tells whether relaxed ordering is on")
    off = [p for p in told if p.control is not None and not p.control.relaxed_ordering]
    if off and (compute or s.snapshot.pasted is not None):
        yield warn(
            some(p.bdf for p in off),
            f"relaxed ordering is off at {some((f'{what(p)} {p.bdf}' for p in off), 4)}: writes to "
            "memory wait for one another",
            *(saw(_config(p), "DevCtl: RlxdOrd-") for p in off[:4]),
            remedy="switch PCIe relaxed ordering on in the BIOS; ConnectX: mlxconfig -d BDF set "
            "PCI_WR_ORDERING=1",
        )
    elif off:
        yield info(some(p.bdf for p in off), f"relaxed ordering is off at {len(off)} devices")
    else:
        yield ok("pcie", f"relaxed ordering is on at {len(told)} GPUs and NICs")


# ---- BARs, virtual functions, generations ----------------------------------------------------


@check(
    "pcie.resizable-bar",
    "GPUs show all of their memory to the bus",
    means="WARN when a GPU's large BAR is at 256 MB or less and could be larger; INFO when it is "
    "larger than that and smaller than it could be. UNKNOWN without root; NA where nobody tells.",
    why="Peer-to-peer, GPUDirect RDMA and GPUDirect Storage reach only what the BAR shows; host "
    "copies go through a small window.",
    prove="sudo lspci -vv -s GPU | grep -A8 'Resizable BAR'; nvidia-smi -q | grep -A3 BAR1",
    mend="Above 4G decoding and Resizable BAR on in the BIOS.",
    source="PCI Express Base Specification 6.0, section 7.8.6 (Resizable BAR)",
)
def resizable_bar(s: Seen) -> Iterator[Judged]:
    """Size in force against the largest one."""
    gpus = [p for p in s.snapshot.topology.gpus if p.computes and p.physfn is None and p.bars]
    rows = []
    for p in gpus:
        bar = max(p.bars, key=lambda b: (max(b.able_bytes, default=0), b.size_bytes))
        if bar.able_bytes:
            rows.append((p, bar.index, bar.size_bytes, max(bar.able_bytes)))
    if s.snapshot.host.virtual:
        raise NotApplicable("a virtual machine's BARs are its own")
    if not rows:
        wanted = [p for p in serious(s) if p.computes]
        raise _nothing_told(s, wanted, "no GPU tells the sizes of its BARs")
    tiny = [r for r in rows if r[2] <= 256 * MIB < r[3]]
    less = [r for r in rows if 256 * MIB < r[2] < r[3]]
    if tiny:
        yield warn(
            some(p.bdf for p, _, _, _ in tiny),
            f"{len(tiny)} GPUs show {tiny[0][2] // MIB} MB of their memory to the bus, they could "
            f"show {tiny[0][3] // GIB} GB",
            *(
                saw(_config(p), f"BAR {i}: current size {now // MIB} MB, at most {top // MIB} MB")
                for p, i, now, top in tiny[:4]
            ),
            remedy="lspci -vv | grep -i BAR; switch on Above 4G Decoding and Resizable BAR in "
            "the BIOS",
        )
    if less:
        yield info(
            some(p.bdf for p, _, _, _ in less),
            f"{len(less)} GPUs have a BAR of {less[0][2] // GIB} GB, at most {less[0][3] // GIB} "
            "GB are possible",
        )
    if not tiny and not less:
        yield ok("gpu", f"{len(rows)} GPUs show their whole memory")


@check(
    "pcie.sriov",
    "virtual functions are where their physical function is",
    means="WARN when a virtual function tells another NUMA node than its physical function, or "
    "none while that one tells; INFO counts them. NA without virtual functions.",
    why="Whoever binds by the virtual function's node binds to the wrong socket.",
    prove="grep . /sys/bus/pci/devices/*/sriov_numvfs; cat /sys/bus/pci/devices/*/numa_node",
    mend="Use the physical function's node: cat /sys/bus/pci/devices/VF/physfn/numa_node.",
    source="Linux Documentation/PCI/pci-iov-howto.rst",
)
def sriov(s: Seen) -> Iterator[Judged]:
    """Each virtual function against its physical one."""
    s.devices()
    s.whole("sys/bus/pci/devices", "sys/devices/pci", leaf="physfn")
    topology = s.snapshot.topology
    vfs = [p for p in topology.pci if p.physfn is not None]
    if not vfs:
        raise NotApplicable("no virtual functions are switched on")
    bad = []
    lost = s.unread_nodes
    for vf in vfs:
        pf = topology.function(vf.physfn or "")
        if pf is None or pf.numa_node is None or vf.bdf in lost:
            continue
        if vf.numa_node != pf.numa_node:
            bad.append((vf, pf))
    if bad:
        vf, pf = bad[0]
        yield warn(
            some((x.bdf for x, _ in bad), 4),
            f"{len(bad)} virtual functions tell another node than their physical function "
            f"({vf.bdf}: {'none' if vf.numa_node is None else vf.numa_node}, {pf.bdf}: "
            f"{pf.numa_node})",
            saw(
                f"sys/bus/pci/devices/{vf.bdf}/numa_node",
                str(-1 if vf.numa_node is None else vf.numa_node),
            ),
            saw(f"sys/bus/pci/devices/{pf.bdf}/numa_node", str(pf.numa_node)),
            remedy=f"take the physical function's node: "
            f"cat /sys/bus/pci/devices/{vf.bdf}/physfn/numa_node",
        )
    else:
        s.device_nodes()
        hosts = sorted({p.physfn or "" for p in vfs})
        yield info("pcie", f"{len(vfs)} virtual functions of {some(hosts, 4)} are on its node")


@check(
    "pcie.generation",
    "devices are in slots of their generation",
    means="INFO when a GPU, NIC or NVMe drive could run faster, or on more lanes, than the port "
    "above it can: nothing is broken, that is how the machine was built.",
    why="It explains half the expected bandwidth, and which slot would help.",
    prove="lspci -vv | grep -E '^[0-9a-f]|LnkCap:'",
    mend="Another slot of the same machine (lspci -tv), or accept it.",
    source="PCI Express Base Specification 6.0, section 7.5.3.6 (Link Capabilities)",
)
def generation(s: Seen) -> Iterator[Judged]:
    """What the device can do against what its port can."""
    topology = s.snapshot.topology
    pairs = []
    for p in serious(s):
        up = topology.function(p.parents[0]) if p.parents else None
        if up is not None and p.link is not None and up.link is not None:
            pairs.append((p, p.link, up.link))
    if not pairs or s.snapshot.host.virtual:
        raise NotApplicable("no port above a GPU, NIC or NVMe drive tells its link")
    less = [
        (p, own, up)
        for p, own, up in pairs
        if (own.max_speed_gts and up.max_speed_gts and up.max_speed_gts < own.max_speed_gts)
        or (own.max_width and up.max_width and up.max_width < own.max_width)
    ]
    if less:
        yield info(
            some((p.bdf for p, _, _ in less), 4),
            f"{len(less)} devices could do more than their slot: "
            + some(
                (
                    f"{what(p)} {p.bdf} {own.max_speed_gts or 0:g} GT/s x{own.max_width} in a "
                    f"{up.max_speed_gts or 0:g} GT/s x{up.max_width} slot"
                    for p, own, up in less
                ),
                3,
            ),
        )
    else:
        yield ok("pcie", f"{len(pairs)} devices are in slots that can do what they can")
