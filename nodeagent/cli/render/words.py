"""Short words for sizes, CPU lists, vendors and links."""

from __future__ import annotations

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.pci import Link

GENERATION = {2.5: "1.0", 5.0: "2.0", 8.0: "3.0", 16.0: "4.0", 32.0: "5.0", 64.0: "6.0"}
"""PCIe generation by GT/s."""
VENDORS = {
    "10de": "NVIDIA",
    "1002": "AMD",
    "1022": "AMD",
    "8086": "Intel",
    "15b3": "Mellanox",
    "14e4": "Broadcom",
    "1000": "Broadcom",
    "10b5": "PLX",
    "11f8": "Microchip",
    "144d": "Samsung",
    "1344": "Micron",
    "1c5c": "SK hynix",
    "1e0f": "Kioxia",
    "1d0f": "Amazon",
    "1af4": "virtio",
    "15ad": "VMware",
    "1b36": "QEMU",
    "1a03": "ASPEED",
    "102b": "Matrox",
    "19e5": "Huawei",
    "1ae0": "Google",
    "1414": "Microsoft",
}
"""Vendors one meets on GPU nodes. Source: the PCI ID repository."""


def size(count: int) -> str:
    """Bytes with a binary unit, to three digits: `1007 GiB`, `1.97 TiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if round(value) < 1000:
            return f"{value:.3g} {unit}"
        if round(value) < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def short(cpus: CpuSet, limit: int = 48) -> str:
    """A cpulist for the eye: a stride as the kernel writes it (`0-110:1/2`), at most `limit`
    long but for the count of the rest."""
    text = str(cpus)
    if len(text) <= limit:
        return text
    ids = list(cpus)
    step = ids[1] - ids[0]
    if ids == list(range(ids[0], ids[-1] + 1, step)):
        return f"{ids[0]}-{ids[-1]}:1/{step}"
    head = text[: max(8, limit - 16)].rpartition(",")[0]
    return f"{head},... ({len(ids)} in all)"


def link_text(link: Link | None) -> tuple[str, bool]:
    """`4.0 x8 of 5.0 x16` (PCIe generation and lanes), and whether it is less than this end can
    do; "" where a link is not told or has no lanes."""
    if link is None or link.speed_gts is None or not link.width:
        return "", False
    now = f"{_generation(link.speed_gts)} x{link.width}"
    slower = link.max_speed_gts is not None and link.speed_gts < link.max_speed_gts
    narrower = bool(link.max_width) and link.width < (link.max_width or 0)
    if not slower and not narrower:
        return now, False
    speed = link.max_speed_gts or link.speed_gts
    return f"{now} of {_generation(speed)} x{link.max_width or link.width}", True


def _generation(speed_gts: float) -> str:
    return GENERATION.get(speed_gts, f"{speed_gts:g} GT/s")
