"""`lspci` in all its forms: plain, -n, -nn, -v to -vvv, -D, -mm, -vmm, -t, and lines cut out of it.

Source: pciutils lspci.c, ls-tree.c; what stands below a function's line: `lspci_text`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from nodeagent.discover.lspci_text import Details, acs_flags, read_details
from nodeagent.discover.paste.part import Part
from nodeagent.model.pasted import Report
from nodeagent.model.pci import AMD, INTEL, MELLANOX, NVIDIA, PciFunction, parse_bdf
from nodeagent.model.pcie_said import AcsReading, LinkReading

_BDF = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_HEAD = re.compile(
    rf"^[>*\s]{{0,2}}({_BDF}) ([A-Z0-9][\w /,\-()]*?)(?: \[([0-9a-fA-F]{{4}})\])?: (.*)$"
)
_NUMBERS = re.compile(
    rf"^({_BDF}) (?:Class )?([0-9a-fA-F]{{4}}): ([0-9a-fA-F]{{4}}):([0-9a-fA-F]{{4}})\b"
)
_MACHINE = re.compile(rf'^({_BDF}) ("[^"]*" "[^"]*" "[^"]*".*)$')
_IDS = re.compile(r"\[([0-9a-fA-F]{4}):([0-9a-fA-F]{4})\]")
_ID = re.compile(r"\[([0-9a-fA-F]{4})\]\s*$")
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
    "Audio device": "0403",
}
"""Names as pci.ids has them; a class that is not here stays unknown. Source: pci.ids, classes."""
_VENDORS = (
    ("NVIDIA", NVIDIA),
    ("Advanced Micro Devices", AMD),
    ("AMD/ATI", AMD),
    ("Mellanox", MELLANOX),
    ("Intel", INTEL),
    ("AMD", AMD),
)
_AMD_CPU = "1022"
MAX_LINE = 4096
_LOADED = re.compile(r"(?<![a-z])(?:load(?:ed)?|busy|train(?:ing)?|stress)(?![a-z])")
_IDLE = re.compile(r"(?<![a-z])idle(?![a-z])")


@dataclass(slots=True)
class _Block:
    bdf: str
    code: str
    vendor: str
    device: str
    lines: list[str] = field(default_factory=list)
    parents: tuple[str, ...] | None = None
    root_bus: str = ""


def read_lspci(text: str, name: str = "lspci") -> Part | None:
    """The functions in a text, and registers that stand there alone; None when there are none."""
    blocks: list[_Block] = []
    loose: list[str] = []
    near = False
    for line in text.split("\n"):
        if len(line) > MAX_LINE:
            continue
        block = _head(line)
        if block is not None:
            blocks.append(block)
            near = True
        elif blocks and (near or line[:1] in ("\t", " ")):
            # Tabs get lost on the way here; an empty line ends what hangs on them.
            near = near and bool(line)
            blocks[-1].lines.append(line)
        elif not blocks:
            loose.append(line)
    blocks += _records(text)
    tree = list(_tree(text)) if _TREE.search(text) else []
    reports = (*_loose(loose, name), *_samples(blocks, name))
    if not blocks and not tree and not reports:
        return None
    functions = _functions(_joined(blocks, tree))
    facts = {"pci": [fact(p) for p in functions]} if functions else {}
    return Part(kind="lspci", facts=facts, functions=functions, reports=reports)


def fact(p: PciFunction) -> dict[str, object]:
    """The contract's entry of a function."""
    found: dict[str, object] = {
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
    if p.acs is not None and p.acs.present:
        found["acs"] = list(p.acs.on)
    if p.iommu_group is not None:
        found["iommu_group"] = p.iommu_group
    if p.control is not None:
        found["max_payload_bytes"] = p.control.max_payload_bytes
        found["max_read_request_bytes"] = p.control.max_read_request_bytes
    return found


# ---- first lines -----------------------------------------------------------------------------


def _head(line: str) -> _Block | None:
    if m := _NUMBERS.match(line):
        return _block(m[1], m[2], m[3], m[4])
    if m := _HEAD.match(line):
        code = (m[3] or _CLASSES.get(m[2], "")).lower()
        ids = _IDS.findall(m[4])
        vendor, device = ids[-1] if ids else ("", "")
        return _block(m[1], code, vendor or _vendor(m[4], code), device)
    if m := _MACHINE.match(line):
        try:
            words = shlex.split(m[2])
        except ValueError:
            return None
        code = _number(words[0]) or _CLASSES.get(re.sub(r" \[.*", "", words[0]), "")
        vendor = _number(words[1]) or _vendor(words[1], code)
        return _block(m[1], code, vendor, _number(words[2]))
    return None


def _number(word: str) -> str:
    """`10de` of `10de` (-n) and of `NVIDIA Corporation [10de]` (-nn)."""
    m = _ID.search(word) or re.fullmatch(r"([0-9a-fA-F]{4})", word)
    return m[1].lower() if m else ""


def _vendor(text: str, code: str) -> str:
    vendor = next((v for name, v in _VENDORS if name in text), "")
    # AMD's bridges and host bridges carry the number of its CPUs, not of its GPUs.
    return _AMD_CPU if vendor == AMD and not code.startswith(("03", "12")) else vendor


def _block(bdf: str, code: str, vendor: str, device: str) -> _Block:
    return _Block(
        bdf=parse_bdf(bdf), code=code.lower(), vendor=vendor.lower(), device=device.lower()
    )


_RECORD = re.compile(
    r"^(Slot|Class|Vendor|Device|Driver|NUMANode|IOMMUGroup):[ \t]{1,8}(\S.{0,200})$", re.MULTILINE
)
_RECORD_LINES = {
    "Driver": "Kernel driver in use",
    "NUMANode": "NUMA node",
    "IOMMUGroup": "IOMMU group",
}


def _records(text: str) -> Iterator[_Block]:
    """`lspci -vmm`: `Key:<tab>value` lines, an empty line between functions."""
    block = None
    for key, value in _RECORD.findall(text):
        if key == "Slot":
            if block is not None:
                yield block
            block = _block(value, "", "", "") if re.fullmatch(_BDF, value.strip()) else None
        elif block is None:
            continue
        elif key == "Class":
            name = re.sub(r" \[[0-9a-fA-F]{4}\]$", "", value)
            block.code = _number(value) or _CLASSES.get(name, "")
        elif key == "Vendor":
            block.vendor = _number(value) or _vendor(value, block.code)
        elif key == "Device" and re.search(_BDF, value) is None:
            block.device = _number(value)
        elif key in _RECORD_LINES:
            block.lines.append(f"{_RECORD_LINES[key]}: {value}")
    if block is not None:
        yield block


# ---- lspci -t --------------------------------------------------------------------------------

_TREE = re.compile(r"^[ |]*[-+\\][-+]*\[[0-9a-fA-F]{4,8}[:\]]", re.MULTILINE)
_ROOT = re.compile(r"\[([0-9a-fA-F]{4,8})(?::([0-9a-fA-F]{2}))?(?:-[0-9a-fA-F]{2})?\]")
_BUS = re.compile(r"\[([0-9a-fA-F]{2})(?:-[0-9a-fA-F]{2})?\]")
_DEVICE = re.compile(r"([0-9a-fA-F]{2})\.([0-7])(?![\w.])")


def _tree(text: str) -> Iterator[_Block]:
    """Functions by their place in the picture: what stands farther right hangs below."""
    stack: list[tuple[int, str, str]] = []  # column, kind (root, bus, device), text
    for line in text.split("\n"):
        at, here = 0, None
        if len(line) > MAX_LINE:
            continue
        while at < len(line):
            if line[at] in " |+\\-`":
                at += 1
                continue
            if at == 0 or line[at - 1] != "-":
                break
            root, bus, device = _ROOT.match(line, at), _BUS.match(line, at), _DEVICE.match(line, at)
            found = root or bus or device
            if found is None:
                break
            while stack and stack[-1][0] >= at:
                stack.pop()
            if root:
                whole = parse_bdf(f"{root[1]}:{root[2] or '00'}:00.0")
                stack = [(at, "root", _bus(whole))]
            elif not stack:
                break
            elif bus:
                domain = stack[0][2].rpartition(":")[0]
                stack.append((at, "bus", f"{domain}:{bus[1].lower()}"))
            else:
                assert device is not None
                on = next(t for _, kind, t in reversed(stack) if kind != "device")
                above = tuple(t for _, kind, t in reversed(stack) if kind == "device")
                bdf = f"{on}:{device[1].lower()}.{device[2]}"
                here = _Block(
                    bdf=bdf, code="", vendor="", device="", parents=above, root_bus=stack[0][2]
                )
                bridge = line[device.end() : device.end() + 2] == "-["
                if bridge:
                    here.code = "0604"
                else:
                    _described(here, line[device.end() :].strip())
                yield here
                stack.append((at, "device", bdf))
            at = found.end()


_KINDS = (
    (re.compile(r"NVSwitch|Host Bridge|Root Complex|IOMMU", re.IGNORECASE), "0680"),
    (re.compile(r"Audio"), "0403"),
    (re.compile(r"USB|xHCI|UCSI|Serial"), "0c03"),
    (re.compile(r"ConnectX|Ethernet|MT2\d{4}|MT4\d{4}|NetXtreme|Thor|BlueField", re.IGNORECASE),
     "0200"),
    (re.compile(r"NVMe|SSD", re.IGNORECASE), "0108"),
    (re.compile(r"NVIDIA Corporation"), "0302"),
    (re.compile(r"Instinct|Aldebaran|Aqua Vanjaram|Arcturus"), "1200"),
)  # fmt: skip
"""What a name in the tree tells of the class; a name that is not here leaves it open."""


def _described(block: _Block, name: str) -> None:
    block.code = next((code for fits, code in _KINDS if fits.search(name)), "") if name else ""
    ids = _IDS.findall(name)
    if ids:
        block.vendor, block.device = ids[-1][0].lower(), ids[-1][1].lower()
    else:
        block.vendor = _vendor(name, block.code)


def _joined(blocks: Iterable[_Block], tree: Iterable[_Block]) -> list[_Block]:
    """One block a function: the list's words, the tree's places."""
    by_bdf = {b.bdf: b for b in tree}
    for block in blocks:
        known = by_bdf.get(block.bdf)
        if known is not None:
            block.parents, block.root_bus = known.parents, known.root_bus
            block.lines += known.lines
        by_bdf[block.bdf] = block
    return [by_bdf[b] for b in sorted(by_bdf)]


# ---- functions -------------------------------------------------------------------------------


def _functions(blocks: list[_Block]) -> tuple[PciFunction, ...]:
    told = {b.bdf: read_details(b.lines) for b in blocks}
    above = {
        f"{bdf.rpartition(':')[0].rpartition(':')[0]}:{d.buses[0]}": bdf
        for bdf, d in told.items()
        if d.buses is not None
    }
    roots = {b.bdf.rpartition(":")[0] for b in blocks if b.code == "0600"}
    return tuple(_function(b, told[b.bdf], above, roots) for b in blocks)


def _function(
    block: _Block, told: Details, above: Mapping[str, str], roots: set[str]
) -> PciFunction:
    parents, root_bus = block.parents, block.root_bus
    if parents is None:
        chain: list[str] = []
        at = block.bdf
        while (up := above.get(_bus(at))) is not None and up not in chain and up != at:
            chain.append(up)
            at = up
        parents = tuple(chain)
        # Where bridges are left out of the paste, the topmost one shown need not be a root port.
        root_bus = _bus(at) if above and (_bus(at) in roots or _bus(at).endswith(":00")) else ""
    return PciFunction(
        bdf=block.bdf,
        class_code=block.code,
        vendor=block.vendor,
        device=block.device,
        numa_node=told.node,
        local_cpus=None,
        parents=parents,
        root_bus=root_bus,
        driver=told.driver,
        link=told.link,
        iommu_group=told.iommu_group,
        vfs=told.vfs[1] if told.vfs else None,
        total_vfs=told.vfs[0] if told.vfs else None,
        port=told.port,
        acs=told.acs,
        control=told.device_control,
        bars=tuple(told.bars),
        region_bytes=told.region,
        errors=told.errors,
        unseen=told.unseen,
    )


def _bus(bdf: str) -> str:
    return bdf.rpartition(":")[0]


# ---- lines without a function, samples -------------------------------------------------------


def load_in(text: str) -> bool | None:
    """Whether a name or word says that the device was busy; None: it says nothing."""
    low = text.lower()
    if _IDLE.search(low):
        return False
    return True if _LOADED.search(low) else None


def _loose(lines: list[str], name: str) -> Iterator[Report]:
    """Registers that somebody cut out without their device's line (grep LnkSta)."""
    for line in lines:
        flags = acs_flags(line)
        if flags is not None:
            yield AcsReading(source=name, on=flags, text=line.strip())


def _samples(blocks: Iterable[_Block], name: str) -> Iterator[Report]:
    """Links of a text whose name says when it was taken: there may be another one."""
    loaded = load_in(name.rpartition("/")[2])
    if loaded is None:
        return
    for block in blocks:
        link = read_details(block.lines).link
        if link is not None and link.width and block.code[:2] in ("03", "12"):
            yield LinkReading(
                source=name,
                device=block.bdf,
                loaded=loaded,
                speed_gts=link.speed_gts,
                width=link.width,
                max_speed_gts=link.max_speed_gts,
                max_width=link.max_width,
            )
