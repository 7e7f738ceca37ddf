"""`gdscheck -p`, links into /sys/devices, and what a kernel log says of the IOMMU.

Source: NVIDIA GPUDirect Storage installation and troubleshooting guide (gdscheck); Linux
drivers/iommu/intel/dmar.c, drivers/iommu/amd/iommu.c, drivers/iommu/iommu.c.
"""

from __future__ import annotations

import re

from nodeagent.discover.paste.part import Part
from nodeagent.errors import ParseError
from nodeagent.model.pasted import Report
from nodeagent.model.pci import parse_bdf
from nodeagent.model.pcie_said import DevicePaths, GdsReport, IommuLog

MAX_FAULTS = 1000
_BDF = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_DRIVER = re.compile(
    r"^[ \t]{0,16}(NVMe P2PDMA|NVMe|NVMeOF|SCSI|ScaleFlux CSD|NVMesh|DDN EXAScaler"
    r"|IBM Spectrum Scale|NFS|BeeGFS|WekaFS|VAST|Userspace RDMA)[ \t]{0,32}:[ \t]{0,8}"
    r"(Supported|Unsupported)[ \t]{0,16}$",
    re.MULTILINE,
)
_GDS_IOMMU = re.compile(
    r"^[ \t]{0,16}IOMMU:[ \t]{0,8}(\w{1,16})|IOMMU State:[ \t]{0,8}(\w{1,16})",
    re.MULTILINE | re.IGNORECASE,
)
_COMPAT = re.compile(r"properties\.(?:use|force)_compat_mode[ \t]{0,16}:[ \t]{0,8}(true|false)")
_TROUBLE = re.compile(
    r"^.*(?:Platform verification (?:error|failed)|does not support GDS|GDS is not supported"
    r"|No GDS supported).*$",
    re.MULTILINE | re.IGNORECASE,
)


def read_gds(text: str, name: str) -> Part | None:
    """gdscheck's answer; None when this is none."""
    drivers = tuple((m[1], m[2]) for m in _DRIVER.finditer(text))
    if not any(driver.startswith("NVMe") for driver, _ in drivers):
        return None
    iommus = [(a or b).lower() for a, b in _GDS_IOMMU.findall(text)]
    compat = _COMPAT.findall(text)
    report = GdsReport(
        source=name,
        drivers=drivers,
        iommu="enabled" if "enabled" in iommus else iommus[0] if iommus else None,
        compat="true" in compat if compat else None,
        troubles=tuple(m[0].strip()[:200] for m in _TROUBLE.finditer(text))[:8],
    )
    return Part(kind="gdscheck", reports=(report,))


_ROOT = re.compile(r"pci([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2})")
MAX_LINE = 4096
_BLOCK = re.compile(
    r"/(?:sys/)?(?:class/)?block/([^/\s]+)|/class/nvme/([^/\s]+)|\b(nvme\d+(?:n\d+)?)\b"
)


def read_device_paths(text: str, name: str) -> Part | None:
    """Where devices hang: `A -> ../../devices/pci...` of ls -l and readlink, or the bare path."""
    found: list[tuple[str, str, tuple[str, ...]]] = []
    for line in text.split("\n"):
        if "/pci" not in line or len(line) > MAX_LINE:
            continue
        words = line.split()
        for i, word in enumerate(words):
            parts = word.split("/")
            roots = [m[1].lower() for p in parts if (m := _ROOT.fullmatch(p))]
            chain = tuple(parse_bdf(p) for p in parts if re.fullmatch(_BDF, p))
            if not roots or not chain:
                continue
            linked = i > 1 and words[i - 1] == "->"
            found.append((_called(words[i - 2] if linked else word, chain), roots[-1], chain))
    if not found:
        return None
    report: Report = DevicePaths(source=name, paths=tuple(dict.fromkeys(found)))
    return Part(kind="paths", reports=(report,))


def _called(link: str, chain: tuple[str, ...]) -> str:
    m = _BLOCK.search(link)
    if m:
        return m[1] or m[2] or m[3]
    try:
        return parse_bdf(link.rpartition("/")[2])
    except ParseError:
        return chain[-1]


_FAULTS = (
    re.compile(
        rf"DMAR: ?\[(?:DMA|INTR)[^\]]*\] Request device \[({_BDF})\].*?[Ff]ault (?:addr|index)"
    ),
    re.compile(
        rf"AMD-Vi: Event logged \[\w*(?:FAULT|ERROR|ENTRY|REQUEST|ABORT)\w* device=({_BDF})"
    ),
    re.compile(rf"({_BDF}): AMD-Vi: Event logged \[\w+"),
    re.compile(r"arm-smmu(?:-v3)? \S+: (?:event 0x10|Unhandled context fault)()"),
    re.compile(r"AMD-Vi: Completion-Wait loop timed out()"),
)
_MODE = re.compile(r"iommu: Default domain type: (Translated|Passthrough)", re.IGNORECASE)
_ON = re.compile(r"^.*(?:DMAR: IOMMU enabled|AMD-Vi: Found IOMMU|AMD-Vi: IOMMU performance).*$",
                 re.MULTILINE)  # fmt: skip


def read_iommu_log(text: str, name: str) -> Part | None:
    """IOMMU faults and mode in a kernel log; None when it says nothing of it."""
    faults: list[tuple[int, str | None, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > MAX_LINE:
            continue
        if "DMAR" not in line and "AMD-Vi" not in line and "smmu" not in line:
            continue
        m = next((m for rule in _FAULTS if (m := rule.search(line))), None)
        if m is not None and len(faults) < MAX_FAULTS:
            faults.append((number, parse_bdf(m[1]) if m[1] else None, line.strip()[:300]))
    mode = _MODE.search(text)
    on = _ON.search(text)
    if not faults and mode is None and on is None:
        return None
    report = IommuLog(
        source=name,
        faults=tuple(faults),
        mode=mode[1].capitalize() if mode else None,
        on=on[0].strip()[:200] if on else None,
    )
    return Part(kind="iommu", reports=(report,))
