"""AMD's GPUs as amdgpu and KFD tell them: memory, links between them, their CPU node.

Source: drivers/gpu/drm/amd/amdkfd/kfd_topology.c, kfd_crat.h (CRAT_IOLINK_TYPE_*), amdgpu sysfs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nodeagent.discover.pci import DEVICES, Links
from nodeagent.discover.root import Root
from nodeagent.model.pci import AMD, PciFunction
from nodeagent.model.topology import PeerLink

NODES = "sys/class/kfd/kfd/topology/nodes"
XGMI = 11
"""CRAT_IOLINK_TYPE_XGMI."""
_NUMBER = re.compile(r"\d{1,4}")
_PROPERTY = re.compile(r"([a-z_0-9]+) +([0-9]{1,20})")


@dataclass(frozen=True, slots=True, kw_only=True)
class KfdNode:
    """A node of KFD's topology; `bdf` None: a CPU."""

    number: int
    bdf: str | None
    properties: dict[str, int]
    links: tuple[dict[str, int], ...]
    """Properties of each io_link: `type`, `node_to`, `weight`."""


def read_kfd(root: Root) -> tuple[KfdNode, ...]:
    """KFD's nodes, by number; none without the driver."""
    found = []
    for name in root.names(NODES, _NUMBER):
        properties = properties_of(root, f"{NODES}/{name}/properties")
        links = links_of(root, int(name), "io_links")
        found.append(
            KfdNode(number=int(name), bdf=_bdf(properties), properties=properties, links=links)
        )
    return tuple(sorted(found, key=lambda n: n.number))


def links_of(root: Root, node: int, kind: str) -> tuple[dict[str, int], ...]:
    """Properties of a node's links, by number. `kind`: io_links, p2p_links."""
    folder = f"{NODES}/{node}/{kind}"
    return tuple(
        properties_of(root, f"{folder}/{name}/properties")
        for name in sorted(root.names(folder, _NUMBER), key=int)
    )


def properties_of(root: Root, path: str) -> dict[str, int]:
    """`name number` lines of a properties file."""
    found = {}
    for line in root.lines(path):
        m = _PROPERTY.fullmatch(line.strip())
        if m:
            found[m[1]] = int(m[2])
    return found


def _bdf(properties: dict[str, int]) -> str | None:
    """`location_id` is bus << 8 | device << 3 | function."""
    if not properties.get("simd_count"):
        return None
    place, domain = properties.get("location_id", 0), properties.get("domain", 0)
    return f"{domain:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"


def xgmi_links(nodes: tuple[KfdNode, ...]) -> Links:
    """XGMI links between GPUs by pair; several partitions of one GPU count once."""
    bdfs = {n.number: n.bdf for n in nodes}
    counts: dict[frozenset[str], set[tuple[int, int]]] = {}
    for node in nodes:
        for link in node.links:
            peer = bdfs.get(link.get("node_to", -1))
            if node.bdf and peer and node.bdf != peer and link.get("type") == XGMI:
                ends = (min(node.number, link["node_to"]), max(node.number, link["node_to"]))
                counts.setdefault(frozenset((node.bdf, peer)), set()).add(ends)
    return {pair: (PeerLink(type="xgmi", count=1),) for pair in counts}


def vram_bytes(root: Root, function: PciFunction) -> int | None:
    """Memory of an AMD GPU, or None."""
    if function.vendor != AMD or function.driver != "amdgpu":
        return None
    return root.number(f"{DEVICES}/{function.bdf}/mem_info_vram_total")


def read_texts(root: Root, functions: tuple[PciFunction, ...]) -> dict[str, str]:
    """Path -> text of how amdgpu's functions are divided: compute and memory partitions."""
    found: dict[str, str] = {}
    for function in functions:
        if function.vendor != AMD or function.driver != "amdgpu":
            continue
        for name in ("current_compute_partition", "current_memory_partition", "product_name"):
            path = f"{DEVICES}/{function.bdf}/{name}"
            text = root.text(path, 256, quiet=True)
            if text is not None:
                found[path] = text
    return found
