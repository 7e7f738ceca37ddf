"""Cases of test_checks.py for PCIe: how functions are set up, and pasted samples."""

from __future__ import annotations

import dataclasses
from typing import Any

from nodeagent.model.finding import Verdict
from nodeagent.model.pasted import Pasted, Report
from nodeagent.model.pci import Acs, DeviceControl, ErrorBits, Link, ResizableBar
from nodeagent.model.pcie_said import (
    AcsReading,
    DevicePaths,
    GdsReport,
    IommuLog,
    LinkReading,
)
from nodeagent.model.snapshot import Snapshot
from tests.check.machines import (
    bare,
    function,
    healthy,
    topo,
    unreadable,
    with_cmdline,
    with_pci,
    with_texts,
)

H, B = healthy(), bare()
V = Verdict
GPU0, NIC0, GPU1, NIC1 = (f"0000:{b}:00.0" for b in ("11", "13", "81", "83"))
PORT = "0000:10:00.0"
G = 1 << 30


def pasted(*reports: Report, base: Snapshot = B) -> Snapshot:
    return dataclasses.replace(base, pasted=Pasted(kinds=("test",), reports=reports))


def reading(device: str | None = "GPU 0", loaded: bool | None = None, **more: Any) -> LinkReading:
    told: dict[str, Any] = {"speed_gts": 16.0, "width": 16, "max_speed_gts": 16.0, "max_width": 16}
    return LinkReading(source="links.csv", device=device, loaded=loaded, **{**told, **more})


def guest(s: Snapshot) -> Snapshot:
    return dataclasses.replace(s, host=dataclasses.replace(s.host, virtual="kvm"))


def control(payload: int, able: int = 512, **more: Any) -> DeviceControl:
    return DeviceControl(max_payload_bytes=payload, max_payload_able_bytes=able, **more)


def set_up(gpu: int, port: int, *, able: int = 512) -> Snapshot:
    """A GPU and its port with those payload sizes."""
    s = with_pci(H, GPU0, control=control(gpu, able))
    return with_pci(s, PORT, control=control(port, able))


def acs(*on: str, present: bool = True) -> Acs:
    return Acs(present=present, on=on)


def roots(state: Acs | None, *, linked: bool = False) -> Snapshot:
    """Two GPUs below root ports of their own."""
    s = H
    for bridge in (PORT, "0000:80:00.0"):
        s = with_pci(s, bridge, acs=state)
    relations = s.topology.relations
    if not linked:
        relations = tuple(dataclasses.replace(r, links=()) for r in relations)
    return topo(s, relations=relations)


def denied(bdf: str, s: Snapshot = H) -> Snapshot:
    return with_pci(s, bdf, unseen="access denied")


def paths_table(uplink: float) -> Snapshot:
    rows = (("a", "root", uplink), ("b", "a", uplink), ("c", "b", 16.0), ("d", "b", 16.0))
    return pasted(*(reading(n, parent=above, speed_gts=v, max_speed_gts=v) for n, above, v in rows))


def with_vf(node: int | None) -> Snapshot:
    vf = function("0000:13:00.1", "0200", "15b3", node, physfn=NIC0, link=None)
    return topo(H, pci=(*H.topology.pci, vf))


def gds(nvme: str, p2p: str = "Unsupported", **more: Any) -> GdsReport:
    drivers = (("NVMe P2PDMA", p2p), ("NVMe", nvme))
    return GdsReport(source="gds.txt", drivers=drivers, **more)


APART = DevicePaths(
    source="ls.txt",
    paths=(
        ("nvme0n1", "0000:00", ("0000:00:1d.0", "0000:05:00.0")),
        ("0000:81:00.0", "0000:80", ("0000:80:01.0", "0000:81:00.0")),
    ),
)
IDLE: dict[str, Any] = {"speed_gts": 2.5}
FAULT = (3, GPU0, "DMAR: [DMA Read] Request device [11:00.0] fault addr 0x1000")
FS = "sys/module/nvidia_fs/version"

CASES: dict[str, list[tuple[str, Snapshot, Verdict]]] = {
    "pcie.width": [
        ("sampled, all", pasted(reading(), reading("GPU 1")), V.OK),
        ("sampled, half under load", pasted(reading(width=8, loaded=True)), V.FAIL),
        ("sampled, half", pasted(reading(width=8)), V.WARN),
        ("one not readable", unreadable(
            H, f"sys/devices/pci0000:10/{PORT}/{GPU0}/max_link_width", reason="Input/output error"),
         V.UNKNOWN),
    ],
    "pcie.speed": [
        ("idle and load", pasted(reading(loaded=False, **IDLE), reading(loaded=True)), V.OK),
        ("only idle", pasted(reading(loaded=False, **IDLE)), V.INFO),
        ("slow under load", pasted(reading(loaded=True, **IDLE)), V.FAIL),
        ("a generation less", pasted(reading(loaded=True, speed_gts=8.0, max_speed_gts=16.0)),
         V.FAIL),
        ("three quarters", pasted(reading(loaded=True, speed_gts=32.0, max_speed_gts=64.0),
                                  reading("GPU 1")), V.FAIL),
        ("one not readable", unreadable(
            H, f"sys/devices/pci0000:10/{PORT}/{GPU0}/current_link_speed", reason="I/O error"),
         V.UNKNOWN),
    ],
    "pcie.bottleneck": [
        ("a table, shared", paths_table(16.0), V.WARN),
        ("a table, wide", paths_table(32.0), V.OK),
    ],
    "pcie.aer": [
        ("bits of a fault", with_pci(H, GPU0, errors=ErrorBits(uncorrectable=("SDES",))), V.WARN),
        ("bits of probing", with_pci(H, GPU0, errors=ErrorBits(
            uncorrectable=("UnsupReq",), correctable=("AdvNonFatalErr",), device=("CorrErr",))),
         V.OK),
        ("retries once", with_pci(H, GPU0, errors=ErrorBits(correctable=("BadTLP",))), V.INFO),
        ("one not readable", unreadable(
            H, f"sys/devices/pci0000:10/{PORT}/{GPU0}/aer_dev_fatal", reason="I/O error"),
         V.UNKNOWN),
    ],
    "pcie.acs-redirect": [
        ("bare line, redirect", pasted(AcsReading(source="a", on=("ReqRedir",), text="x")), V.FAIL),
        ("bare line, SrcValid", pasted(AcsReading(source="a", on=("SrcValid",), text="x")), V.WARN),
        ("bare line, off", pasted(AcsReading(source="a", on=(), text="x")), V.OK),
        ("root ports", roots(acs("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")), V.WARN),
        ("root ports, off", roots(acs()), V.OK),
        ("root ports, none", roots(acs(present=False)), V.OK),
        ("root ports, NVLink", roots(acs("ReqRedir"), linked=True), V.NA),
        ("root ports, not told", roots(None), V.NA),
        ("pasted bridges", pasted(base=roots(acs("ReqRedir"))), V.FAIL),
    ],
    "pcie.iommu": [
        ("gdscheck: on", pasted(gds("Unsupported", iommu="enabled"), base=with_cmdline(B, "ro")),
         V.WARN),
        ("gdscheck: off", pasted(gds("Supported", iommu="disabled")), V.OK),
        ("log: translated", pasted(IommuLog(source="d", mode="Translated")), V.WARN),
        ("log: passthrough", pasted(IommuLog(source="d", mode="Passthrough")), V.OK),
    ],
    "pcie.iommu-faults": [
        ("none", pasted(IommuLog(source="d", mode="Translated")), V.OK),
        ("a fault", pasted(IommuLog(source="d", faults=(FAULT,))), V.FAIL),
        ("no log", H, V.NA),
    ],
    "pcie.payload": [
        ("alike", set_up(256, 256), V.OK),
        ("larger than the port", set_up(512, 256), V.FAIL),
        ("smaller than the port", set_up(128, 256), V.WARN),
        ("both at 128", set_up(128, 128), V.WARN),
        ("128 is all", set_up(128, 128, able=128), V.OK),
        ("small reads", with_pci(H, NIC0, control=control(256, max_read_request_bytes=128)),
         V.WARN),
        ("no root", denied(GPU0), V.UNKNOWN),
        ("not told", H, V.NA),
        ("a guest", guest(set_up(512, 256)), V.NA),
    ],
    "pcie.relaxed-ordering": [
        ("on", with_pci(H, NIC0, control=DeviceControl(relaxed_ordering=True)), V.OK),
        ("off", with_pci(H, NIC0, control=DeviceControl(relaxed_ordering=False)), V.WARN),
        ("no root", denied(NIC0), V.UNKNOWN),
        ("not told", H, V.NA),
    ],
    "pcie.resizable-bar": [
        ("whole", with_pci(H, GPU0, bars=(ResizableBar(
            index=1, size_bytes=32 * G, able_bytes=(G // 4, 32 * G)),)), V.OK),
        ("small", with_pci(H, GPU0, bars=(ResizableBar(
            index=1, size_bytes=G // 4, able_bytes=(G // 4, 32 * G)),)), V.WARN),
        ("half", with_pci(H, GPU0, bars=(ResizableBar(
            index=1, size_bytes=16 * G, able_bytes=(G // 4, 32 * G)),)), V.INFO),
        ("no root", denied(GPU0), V.UNKNOWN),
        ("not told", H, V.NA),
    ],
    "pcie.sriov": [
        ("same node", with_vf(0), V.INFO),
        ("another node", with_vf(1), V.WARN),
        ("no node", with_vf(None), V.WARN),
        ("not seen", unreadable(H, f"sys/devices/pci0000:10/{NIC0}/physfn", reason="I/O error"),
         V.UNKNOWN),
        ("none", H, V.NA),
    ],
    "pcie.generation": [
        ("alike", H, V.OK),
        ("an older slot", with_pci(H, PORT, link=Link(
            speed_gts=16.0, width=16, max_speed_gts=16.0, max_width=16)), V.INFO),
        ("a guest", guest(H), V.NA),
    ],
    "locality.gpu-direct-storage": [
        ("supported", pasted(gds("Supported")), V.OK),
        ("unsupported", pasted(gds("Unsupported"), APART), V.WARN),
        ("supported, far", pasted(gds("Supported"), APART), V.WARN),
        ("platform", pasted(gds("Supported", troubles=("Platform verification error",))), V.FAIL),
        ("no drive near", with_texts(topo(H, pci=(*H.topology.pci, function(
            "0000:90:00.0", "0108", "144d", 1))), {FS: "2.17"}), V.INFO),
        ("not loaded", H, V.NA),
    ],
}  # fmt: skip
ALWAYS_SEE = {
    "pcie.iommu-faults", "locality.gpu-direct-storage", "pcie.generation",
    "pcie.boot-bandwidth",
}  # fmt: skip
ONLY_TELL = {"pcie.sriov"}
