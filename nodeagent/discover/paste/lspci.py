"""`lspci`, `lspci -nn`, `lspci -vv`: functions, links, drivers, bridges and their ACS bits.

Source: pciutils lspci.c, ls-caps.c (LnkCap, LnkSta), ls-ecaps.c (ACSCtl).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nodeagent.discover.paste.part import Part
from nodeagent.discover.root import is_number
from nodeagent.model.pci import AMD, INTEL, MELLANOX, NVIDIA, Link, PciFunction, parse_bdf

_HEAD = re.compile(
    r"^((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]) "
    r"([A-Z0-9][\w /,\-()]*?)(?: \[([0-9a-fA-F]{4})\])?: (.*)$"
)
_IDS = re.compile(r"\[([0-9a-fA-F]{4}):([0-9a-fA-F]{4})\]")
_CLASSES = {
    "VGA compatible controller": "0300",
    "3D controller": "0302",
    "Display controller": "0380",
    "Processing accelerators": "1200",
    "Ethernet controller": "0200",
    "Infiniband controller": "0207",
    "Network controller": "0280",
    "Non-Volatile memory controller": "0108",
    "PCI bridge": "0604",
    "Host bridge": "0600",
    "Bridge": "0680",
}
"""Names as pci.ids has them; a class that is not here stays unknown. Source: pci.ids, classes."""
_VENDORS = (
    ("NVIDIA", NVIDIA),
    ("Advanced Micro Devices", AMD),
    ("AMD/ATI", AMD),
    ("Mellanox", MELLANOX),
    ("Intel", INTEL),
)
_AMD_CPU = "1022"
_LINK = re.compile(r"Speed ([\d.]+)GT/s(?: \(\w+\))?, Width x(\d+)")
_BUSES = re.compile(r"Bus: primary=[0-9a-fA-F]{2}, secondary=([0-9a-fA-F]{2}),")


@dataclass(slots=True)
class _Block:
    bdf: str
    code: str
    vendor: str
    device: str
    cap: tuple[float, int] | None = None
    status: tuple[float, int] | None = None
    node: int | None = None
    driver: str | None = None
    secondary: str | None = None
    acs: bool | None = None


def read_lspci(text: str) -> Part | None:
    """The functions in a text; None when there are none."""
    blocks: list[_Block] = []
    for line in text.split("\n"):
        if m := _HEAD.match(line):
            blocks.append(_block(m))
        elif blocks and line[:1] in ("\t", " ") and line.strip():
            _detail(blocks[-1], line.strip())
    if not blocks:
        return None
    above = {(b.bdf[:5] + b.secondary): b.bdf for b in blocks if b.secondary is not None}
    by_bdf = {b.bdf: b for b in blocks}
    roots = {b.bdf[:7] for b in blocks if b.code == "0600"}
    functions = tuple(_function(b, above, roots) for b in by_bdf.values())
    facts = {
        "pci": [
            {
                "bdf": p.bdf,
                "class": p.class_code or None,
                "vendor": p.vendor or None,
                "device": p.device or None,
                "numa_node": p.numa_node,
                "driver": p.driver,
                "parents": list(p.parents),
                "link": None
                if p.link is None
                else {
                    "speed_gts": p.link.speed_gts,
                    "width": p.link.width,
                    "max_speed_gts": p.link.max_speed_gts,
                    "max_width": p.link.max_width,
                },
            }
            for p in functions
        ]
    }
    return Part(kind="lspci", facts=facts, functions=functions)


def _block(m: re.Match[str]) -> _Block:
    code = (m[3] or _CLASSES.get(m[2], "")).lower()
    ids = _IDS.findall(m[4])
    vendor, device = ids[-1] if ids else ("", "")
    if not vendor:
        vendor = next((v for name, v in _VENDORS if name in m[4]), "")
        # AMD's bridges and host bridges carry the number of its CPUs, not of its GPUs.
        if vendor == AMD and not code.startswith(("03", "12")):
            vendor = _AMD_CPU
    return _Block(bdf=parse_bdf(m[1]), code=code, vendor=vendor.lower(), device=device.lower())


def _detail(block: _Block, line: str) -> None:
    if line.startswith("LnkCap:") and (m := _LINK.search(line)):
        block.cap = float(m[1]), int(m[2])
    elif line.startswith("LnkSta:") and (m := _LINK.search(line)):
        block.status = float(m[1]), int(m[2])
    elif line.startswith("NUMA node:"):
        value = line.partition(":")[2].strip()
        block.node = int(value) if is_number(value) else None
    elif line.startswith("Kernel driver in use:"):
        block.driver = line.partition(":")[2].strip()
    elif line.startswith("ACSCtl:"):
        block.acs = "ReqRedir+" in line or "CmpltRedir+" in line
    elif m := _BUSES.search(line):
        block.secondary = m[1].lower()


def _function(block: _Block, above: dict[str, str], roots: set[str]) -> PciFunction:
    parents: list[str] = []
    at = block.bdf
    while (up := above.get(at[:7])) is not None and up not in parents and up != at:
        parents.append(up)
        at = up
    link = None
    if block.cap is not None or block.status is not None:
        link = Link(
            speed_gts=block.status[0] if block.status else None,
            width=block.status[1] if block.status else None,
            max_speed_gts=block.cap[0] if block.cap else None,
            max_width=block.cap[1] if block.cap else None,
        )
    return PciFunction(
        bdf=block.bdf,
        class_code=block.code,
        vendor=block.vendor,
        device=block.device,
        numa_node=block.node,
        local_cpus=None,
        parents=tuple(parents),
        # Where bridges are left out of the paste, the topmost one shown need not be a root port.
        root_bus=at[:7] if above and (at[:7] in roots or at[5:7] == "00") else "",
        driver=block.driver,
        link=link,
        acs_redirect=block.acs,
    )
