"""lspci in all its forms, and what goes with it: trees, tables of links, gdscheck, IOMMU logs."""

from __future__ import annotations

import pytest

from nodeagent.check.judge import judge
from nodeagent.check.policy import Policy
from nodeagent.discover.lspci_text import read_details
from nodeagent.discover.paste.part import Text
from nodeagent.discover.paste.read import Paste, read_paste
from nodeagent.model.finding import Finding, Verdict
from nodeagent.model.pci import Acs, PciFunction
from nodeagent.model.pcie_said import IommuLog


def paste(*texts: tuple[str, str]) -> Paste:
    return read_paste([Text(name=name, text=text) for name, text in texts])


def functions(text: str) -> dict[str, PciFunction]:
    return {p.bdf: p for p in paste(("lspci.txt", text)).snapshot.topology.pci}


def findings(check_id: str, *texts: tuple[str, str]) -> list[Finding]:
    found = judge(paste(*texts).snapshot, Policy(), 0)
    return [f for f in found if f.id == check_id and f.verdict is not Verdict.NA]


VERBOSE = """\
0000:40:00.0 Host bridge [0600]: Advanced Micro Devices, Inc. [AMD] Device [1022:14a4] (rev 01)
0000:40:01.1 PCI bridge [0604]: Advanced Micro Devices, Inc. [AMD] Device [1022:14ab] (rev 01) (prog-if 00 [Normal decode])
\tBus: primary=40, secondary=41, subordinate=43, sec-latency=0
\tCapabilities: [58] Express (v2) Root Port (Slot+), MSI 00
\t\tDevCap:\tMaxPayload 512 bytes, PhantFunc 0
\t\t\tExtTag+ RBE+
\t\tDevCtl:\tCorrErr+ NonFatalErr+ FatalErr+ UnsupReq-
\t\t\tRlxdOrd+ ExtTag+ PhantFunc- AuxPwr- NoSnoop+
\t\t\tMaxPayload 256 bytes, MaxReadReq 512 bytes
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1, Exit Latency L1 <64us
\t\tLnkSta:\tSpeed 32GT/s, Width x16
\tCapabilities: [2a0 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans+
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-
\tKernel driver in use: pcieport
0000:41:00.0 3D controller [0302]: NVIDIA Corporation GA100 [10de:20b0] (rev a1)
\tNUMA node: 1
\tIOMMU group: 17
\tRegion 0: Memory at b0000000 (32-bit, non-prefetchable) [size=16M]
\tRegion 1: Memory at 28000000000 (64-bit, prefetchable) [size=256M]
\tCapabilities: [78] Express (v2) Endpoint, MSI 00
\t\tDevCap:\tMaxPayload 256 bytes, PhantFunc 0, Latency L0s unlimited, L1 <64us
\t\tDevCtl:\tReport errors: Correctable- Non-Fatal- Fatal- Unsupported-
\t\t\tRlxdOrd- ExtTag+ PhantFunc- AuxPwr- NoSnoop-
\t\t\tMaxPayload 128 bytes, MaxReadReq 512 bytes
\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 16GT/s (ok), Width x8 (downgraded)
\tCapabilities: [420 v2] Advanced Error Reporting
\t\tUESta:\tDLP- SDES- TLP- FCP- CmpltTO+ CmpltAbrt- UnxCmplt- RxOF- MalfTLP- ECRC- UnsupReq- ACSViol-
\t\tCESta:\tRxErr+ BadTLP- BadDLLP- Rollover- Timeout- AdvNonFatalErr+
\tCapabilities: [bb0 v1] Physical Resizable BAR
\t\tBAR 1: current size: 256MB, supported: 64MB 128MB 256MB 512MB 1GB 2GB 4GB 8GB 16GB 32GB 64GB
\tCapabilities: [bc0 v1] Virtual Resizable BAR
\t\tBAR 1: current size: 2GB, supported: 64MB 128MB 256TB 512TB 1PB
\tKernel driver in use: nvidia
"""  # noqa: E501


def test_all_that_a_verbose_listing_tells() -> None:
    found = functions(VERBOSE)
    port, gpu = found["0000:40:01.1"], found["0000:41:00.0"]
    assert port.port == "Root Port" and port.driver == "pcieport"
    assert port.acs is not None and port.acs.on == ("SrcValid",) and "ReqRedir" in port.acs.able
    assert gpu.parents == ("0000:40:01.1",) and gpu.root_bus == "0000:40"
    assert (gpu.numa_node, gpu.iommu_group, gpu.driver) == (1, 17, "nvidia")
    assert gpu.region_bytes == 256 << 20
    assert [(bar.index, bar.size_bytes) for bar in gpu.bars] == [(1, 256 << 20)]
    assert gpu.control is not None and gpu.control.max_payload_able_bytes == 256
    assert (gpu.control.max_payload_bytes, gpu.control.relaxed_ordering) == (128, False)
    assert gpu.errors is not None and gpu.errors.uncorrectable == ("CmpltTO",)
    assert gpu.link is not None and (gpu.link.width, gpu.link.max_width) == (8, 16)
    assert gpu.acs == Acs(present=False)
    facts = paste(("x", VERBOSE)).facts["pci"]
    assert isinstance(facts, list)
    assert facts[2]["link"] == {
        "speed_gts": 16.0, "width": 8, "max_speed_gts": 16.0, "max_width": 16,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("check_id", "verdict", "word"),
    [
        ("pcie.width", Verdict.WARN, "x8"),
        ("pcie.payload", Verdict.WARN, "128 bytes"),
        ("pcie.relaxed-ordering", Verdict.WARN, "0000:41:00.0"),
        ("pcie.resizable-bar", Verdict.WARN, "64 GB"),
        ("pcie.aer", Verdict.WARN, "CmpltTO"),
    ],
)
def test_it_is_judged(check_id: str, verdict: Verdict, word: str) -> None:
    found = findings(check_id, ("lspci.txt", VERBOSE))
    assert any(f.verdict is verdict and word in f.message for f in found), found


def test_the_lost_tab_and_denied_capabilities() -> None:
    flat = "\n".join(line.lstrip("\t") for line in VERBOSE.split("\n"))
    assert functions(flat)["0000:41:00.0"].control == functions(VERBOSE)["0000:41:00.0"].control
    denied = (
        "41:00.0 3D controller: NVIDIA Corporation Device 20b0\n\tCapabilities: <access denied>\n"
    )
    (gpu,) = functions(denied).values()
    assert gpu.acs is None and gpu.unseen == "access denied"


TREE = r"""-+-[0000:80]-+-00.0  Advanced Micro Devices, Inc. [AMD] Root Complex
 |           \-01.1-[81-85]----00.0-[82-85]--+-00.0-[83]----00.0  NVIDIA Corporation GH100
 |                                           \-01.0-[84]--+-00.0  Mellanox MT2910 [ConnectX-7]
 |                                                        \-00.1  Mellanox MT2910 [ConnectX-7]
 \-[0000:00]-+-00.0  Advanced Micro Devices, Inc. [AMD] Root Complex
             \-01.3-[01]----00.0  Samsung Electronics NVMe SSD Controller PM9A3
"""


def test_a_tree_tells_who_hangs_below_whom() -> None:
    found = functions(TREE)
    gpu = found["0000:83:00.0"]
    assert gpu.parents == ("0000:82:00.0", "0000:81:00.0", "0000:80:01.1")
    assert gpu.root_bus == "0000:80" and gpu.class_code == "0302"
    assert found["0000:84:00.1"].parents == ("0000:82:01.0", "0000:81:00.0", "0000:80:01.1")
    assert found["0000:84:00.1"].is_nic
    drive = found["0000:01:00.0"]
    assert drive.is_nvme and drive.parents == ("0000:00:01.3",) and drive.root_bus == "0000:00"
    relations = {
        frozenset((r.a, r.b)): r.path.value for r in paste(("t", TREE)).snapshot.topology.relations
    }
    assert relations[frozenset(("0000:83:00.0", "0000:84:00.0"))] == "PIX"
    # A list pasted beside the tree gives names, the tree the places.
    both = paste(
        ("a.txt", "83:00.0 3D controller [0302]: NVIDIA Device [10de:2330]\n"), ("b", TREE)
    )
    (known,) = (p for p in both.snapshot.topology.pci if p.bdf == "0000:83:00.0")
    assert known.device == "2330" and len(known.parents) == 3


@pytest.mark.parametrize(
    "text",
    [
        "41:00.0 0302: 10de:20b0 (rev a1)\n",
        '41:00.0 "3D controller [0302]" "NVIDIA Corporation [10de]" "GA100 [20b0]" -ra1 "" ""\n',
        '41:00.0 "0302" "10de" "20b0" -ra1 "10de" "1450"\n',
        "Slot:\t41:00.0\nClass:\t3D controller [0302]\nVendor:\tNVIDIA Corporation [10de]\n"
        "Device:\tGA100 [20b0]\nNUMANode:\t1\n\n",
        "0000:41:00.0 3D controller [0302]: NVIDIA Corporation GA100 [10de:20b0] (rev a1)\n",
    ],
    ids=["-n", "-mm -nn", "-mm -n", "-vmm", "-nn -D"],
)
def test_every_form_names_the_same_function(text: str) -> None:
    (gpu,) = functions(text).values()
    assert (gpu.bdf, gpu.class_code, gpu.vendor, gpu.device) == (
        "0000:41:00.0", "0302", "10de", "20b0",
    )  # fmt: skip


def test_bare_acs_lines() -> None:
    line = "ACSCtl: SrcValid+ TransBlk- ReqRedir{} CmpltRedir- UpstreamFwd- EgressCtrl-\n"
    for sign, verdict in (("+", Verdict.FAIL), ("-", Verdict.WARN)):
        (found,) = findings("pcie.acs-redirect", ("x.txt", line.format(sign)))
        assert found.verdict is verdict
    # What could be on (ACSCap) is not what is on.
    able = line.replace("ACSCtl", "ACSCap").format("+")
    assert findings("pcie.acs-redirect", ("x.txt", able)) == []


def test_what_follows_a_register_takes_none_of_its_flags_back() -> None:
    """ACS is often the last capability, and a blank line ends the function; newer versions wrap
    long registers."""
    told = read_details(
        [
            "Capabilities: [100] Advanced Error Reporting",
            "UESta: DLP+ SDES- TLP- FCP-",
            "\tECRC- UnsupReq- ACSViol+ UncorrIntErr-",
            "UEMsk: DLP- SDES+",
            "CESta: RxErr+ BadTLP-",
            "CEMsk: RxErr- BadTLP+",
            "Capabilities: [140] Access Control Services",
            "ACSCap: SrcValid+ ReqRedir+ CmpltRedir+",
            "ACSCtl: SrcValid+ ReqRedir+ CmpltRedir+",
            "",
            "",
        ]
    )
    assert told.acs is not None
    assert told.acs.on == told.acs.able == ("SrcValid", "ReqRedir", "CmpltRedir")
    assert told.errors is not None
    assert told.errors.uncorrectable == ("DLP", "ACSViol")
    assert told.errors.correctable == ("RxErr",)


def test_samples_of_a_named_function() -> None:
    text = (
        "41:00.0 3D controller [0302]: NVIDIA Corporation GA100 [10de:20b0]\n"
        "\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16\n"
        "\t\tLnkSta:\tSpeed {}GT/s{}, Width x{}\n"
    )
    idle = ("idle.txt", text.format(2.5, " (downgraded)", 16))
    found = findings("pcie.speed", idle, ("load.txt", text.format(16, "", 16)))
    assert {f.verdict for f in found} == {Verdict.OK}
    (slow,) = findings("pcie.speed", idle, ("load.txt", text.format(2.5, "", 16)))
    assert slow.verdict is Verdict.FAIL
    (half,) = findings("pcie.width", ("load.txt", text.format(16, "", 8)))
    assert half.verdict is Verdict.FAIL


def test_a_shared_uplink_in_a_table() -> None:
    table = (
        "bdf,parent,cur_speed,cur_width,max_speed,max_width\n"
        "0000:10:00.0,root,{0},16,{0},16\n"
        "0000:21:00.0,0000:10:00.0,16,16,16,16\n"
        "0000:22:00.0,0000:10:00.0,16,16,16,16\n"
    )
    (found,) = findings("pcie.bottleneck", ("path.csv", table.format(16)))
    assert found.verdict is Verdict.WARN and "0000:10:00.0" in found.message
    assert "63 GB/s together" in found.message
    (found,) = findings("pcie.bottleneck", ("path.csv", table.format(32)))
    assert found.verdict is Verdict.OK


GDS = """\
 DRIVER CONFIGURATION:
 NVMe P2PDMA        : Unsupported
 NVMe               : {}
 NVMeOF             : Unsupported
 properties.use_compat_mode : true
 IOMMU: {}
"""
LINKS = """\
/sys/block/nvme2n1/device/device -> ../../../devices/pci0000:20/0000:20:03.0/0000:21:00.0
lrwxrwxrwx 1 root root 0 Jan  1 00:00 /sys/bus/pci/devices/0000:c1:00.0 -> ../../../devices/{}
"""


def test_gdscheck_with_and_without_the_paths() -> None:
    check_id = "locality.gpu-direct-storage"
    far = LINKS.format("pci0000:c0/0000:c0:01.0/0000:c1:00.0")
    (found,) = findings(check_id, ("gds.txt", GDS.format("Unsupported", "disabled")), ("l", far))
    assert found.verdict is Verdict.WARN and "root 0000:20" in found.message
    near = LINKS.format("pci0000:20/0000:20:03.1/0000:c1:00.0")
    found = findings(check_id, ("gds.txt", GDS.format("Supported", "disabled")), ("l", near))[0]
    assert found.verdict is Verdict.OK
    (iommu,) = findings("pcie.iommu", ("gds.txt", GDS.format("Supported", "enabled")))
    assert iommu.verdict is Verdict.WARN


@pytest.mark.parametrize(
    ("line", "bdf"),
    [
        ("DMAR: [DMA Read NO_PASID] Request device [5e:00.0] fault addr 0xf000 [fault reason 0x06] "
         "PTE Read access is not set", "0000:5e:00.0"),
        ("DMAR:[DMA Write] Request device [5e:00.0] fault addr fffb8000", "0000:5e:00.0"),
        ("AMD-Vi: Event logged [IO_PAGE_FAULT device=5e:00.0 domain=0x000e address=0x0 "
         "flags=0x0020]", "0000:5e:00.0"),
        ("nvidia 0000:5e:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0019 address=0x0]",
         "0000:5e:00.0"),
        ("arm-smmu-v3 arm-smmu-v3.0.auto: event 0x10 received:", None),
    ],
)  # fmt: skip
def test_iommu_faults(line: str, bdf: str | None) -> None:
    text = f"[    1.2] pci 0000:00:00.0: nothing\n[   99.1] {line}\n"
    said = paste(("dmesg.txt", text)).snapshot.pasted
    assert said is not None
    (log,) = said.of(IommuLog)
    assert [(number, at) for number, at, _ in log.faults] == [(2, bdf)]
    (found,) = findings("pcie.iommu-faults", ("dmesg.txt", text))
    assert found.verdict is Verdict.FAIL


def test_the_iommus_mode_in_a_log() -> None:
    for mode, verdict in (("Translated", Verdict.WARN), ("Passthrough", Verdict.OK)):
        text = f"[    0.5] iommu: Default domain type: {mode}\n"
        (found,) = findings("pcie.iommu", ("dmesg.txt", text))
        assert found.verdict is verdict


COUNTERS = "RxErr {0}\nBadTLP 0\nTimeout 0\nTOTAL_ERR_COR {0}\n"
AER = "/sys/bus/pci/devices/0000:40:01.1/aer_dev_"


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (COUNTERS.format(0), Verdict.OK),
        (COUNTERS.format(7), Verdict.OK),
        (COUNTERS.format(50_000), Verdict.WARN),
        (f"{AER}correctable:TOTAL_ERR_COR 9\n{AER}fatal:SDES 1\n{AER}fatal:TOTAL_ERR_FATAL 1\n",
         Verdict.FAIL),
        (f"{AER}nonfatal:CmpltTO 2\n{AER}nonfatal:TOTAL_ERR_NONFATAL 2\n", Verdict.FAIL),
    ],
)  # fmt: skip
def test_pasted_error_counters(text: str, verdict: Verdict) -> None:
    (found,) = findings("pcie.aer", ("aer.txt", text))
    assert found.verdict is verdict
    if "sys/bus" in text:
        assert found.subject == "0000:40:01.1"
