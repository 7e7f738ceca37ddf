"""NCCL's (and RCCL's) topology XML: NCCL_TOPO_DUMP_FILE, or a static file of a cloud.

Source: NVIDIA/nccl src/graph/xml.cc, xml.h.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from nodeagent.discover.paste.part import Part
from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.pci import Link, PciFunction, parse_bdf
from nodeagent.model.topology import PeerLink, Relation

NODE = "sys/devices/system/node"
MAX_DEPTH = 64
_GRAPH = re.compile(r"<graphs\b[^>]{0,200}>\s*<graph\b")
_SPEED = re.compile(r"\s*(\d+(?:\.\d+)?)\s*GT/s")


def read_nccl(text: str) -> Part | None:
    """The topology in a text; None when it is no NCCL XML."""
    if _GRAPH.search(text[:20_000]):
        return Part(
            kind="nccl",
            refused="this is NCCL's graph file (NCCL_GRAPH_DUMP_FILE), which holds rings and no "
            "machine: expected the file of NCCL_TOPO_DUMP_FILE",
        )
    if "<system" not in text[:20_000] or ("<cpu" not in text and "<pci" not in text):
        return None
    # Entities have no place here, and expanding them is how XML eats memory.
    if "<!ENTITY" in text or "<!DOCTYPE" in text:
        return Part(kind="nccl", refused="the NCCL XML declares entities, which NCCL never writes")
    try:
        system = ElementTree.fromstring(text[text.index("<system") :].partition("</system>")[0]
                                        + "</system>")  # fmt: skip
    except ElementTree.ParseError as error:
        return Part(kind="nccl", refused=f"the NCCL XML is not well-formed: {error}")
    try:
        return _System().read(system)
    except ParseError as error:
        return Part(kind="nccl", refused=f"the NCCL XML cannot be read: {error}")


class _System:
    """What the walk down the tree gathers."""

    def __init__(self) -> None:
        self.nodes: list[tuple[int, CpuSet | None]] = []
        self.functions: list[PciFunction] = []
        self.nets: list[dict[str, object]] = []
        self.gpu_links: dict[str, int] = {}
        self.peers: dict[frozenset[str], PeerLink] = {}

    def read(self, system: ElementTree.Element) -> Part:
        for cpu in system.iter("cpu"):
            number = _number(cpu.get("numaid"))
            node = None if number is None or number < 0 else number
            mask = cpu.get("affinity")
            cpus = CpuSet.parse_mask(mask) if mask else None
            if node is not None:
                self.nodes.append((node, cpus))
            self._below(cpu, node, cpus, (), 0)
        self._below_system(system)
        facts: dict[str, object] = {
            "numa_nodes": [{"id": i, "cpus": None if c is None else str(c)} for i, c in self.nodes],
            "pci": [self._pci(p) for p in self.functions],
            "gpus": [p.bdf for p in self.functions if p.is_gpu],
            "nics": [p.bdf for p in self.functions if p.is_nic],
            "nets": self.nets,
            "gpu_links": self.gpu_links,
        }
        files = {f"{NODE}/node{i}/cpulist": str(c) for i, c in self.nodes if c is not None}
        told = CpuSet.of(c for _, cpus in self.nodes if cpus is not None for c in cpus)
        return Part(
            kind="nccl",
            facts=facts,
            files=files,
            weak={"sys/devices/system/cpu/online": str(told)} if told else {},
            functions=tuple(self.functions),
            links={pair: (link,) for pair, link in self.peers.items()},
        )

    def _below_system(self, system: ElementTree.Element) -> None:
        """PCI entries outside any <cpu>: their node is not told."""
        for child in system:
            if child.tag == "pci":
                self._device(child, None, None, (), 0)

    def _below(
        self,
        element: ElementTree.Element,
        node: int | None,
        cpus: CpuSet | None,
        parents: tuple[str, ...],
        depth: int,
    ) -> None:
        if depth > MAX_DEPTH:
            raise ParseError("NCCL XML", f"{depth} levels", f"at most {MAX_DEPTH}")
        for child in element:
            if child.tag == "pci":
                self._device(child, node, cpus, parents, depth)
            elif child.tag == "net":
                self._net(child, node, parents[0] if parents else None)
            elif child.tag == "nic":
                self._below(child, node, cpus, parents, depth + 1)
            elif child.tag == "gpu" and parents:
                for link, target, count in _links(child):
                    key = f"{parents[0]}-{target}"
                    self.gpu_links[key] = self.gpu_links.get(key, 0) + count
                    self.peers[frozenset((parents[0], target))] = PeerLink(type=link, count=count)

    def _device(
        self,
        element: ElementTree.Element,
        node: int | None,
        cpus: CpuSet | None,
        parents: tuple[str, ...],
        depth: int,
    ) -> None:
        bdf = parse_bdf(element.get("busid") or "")
        code = _hex(element.get("class"), 4)
        speed = _SPEED.match(element.get("link_speed") or "")
        width = _number(element.get("link_width"))
        link = None
        if speed is not None and width:
            link = Link(speed_gts=float(speed[1]), width=width, max_speed_gts=None, max_width=None)
        self.functions.append(
            PciFunction(
                bdf=bdf,
                class_code=code or "",
                vendor=_hex(element.get("vendor"), 4) or "",
                device=_hex(element.get("device"), 4) or "",
                numa_node=node,
                local_cpus=cpus,
                parents=parents,
                root_bus=f"{(parents[-1] if parents else bdf)[:7]}",
                link=link,
            )
        )
        self._below(element, node, cpus, (bdf, *parents), depth + 1)

    def _net(self, element: ElementTree.Element, node: int | None, bdf: str | None) -> None:
        self.nets.append(
            {
                "name": element.get("name"),
                "bdf": bdf,
                "numa_node": node,
                "speed_mbps": _number(element.get("speed")),
            }
        )

    def _pci(self, p: PciFunction) -> dict[str, object]:
        return {
            "bdf": p.bdf,
            "class": p.class_code or None,
            "vendor": p.vendor or None,
            "device": p.device or None,
            "numa_node": p.numa_node,
            "parents": list(p.parents),
            "link": None
            if p.link is None
            else {"speed_gts": p.link.speed_gts, "width": p.link.width},
        }


def relation_facts(relations: tuple[Relation, ...]) -> list[dict[str, object]]:
    """The contract's `relations`."""
    return [{"a": r.a, "b": r.b, "path": r.path.value, "same_numa": r.same_numa} for r in relations]


def _links(gpu: ElementTree.Element) -> Iterator[tuple[str, str, int]]:
    for link in gpu:
        if link.tag in ("nvlink", "xgmi"):
            yield link.tag, parse_bdf(link.get("target") or ""), _number(link.get("count")) or 0


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"-?\d{1,9}", text.strip()) else None


def _hex(text: str | None, digits: int) -> str | None:
    """The first digits of a hexadecimal attribute, without 0x; None when it is not there."""
    if not text:
        return None
    bare = text.strip().lower().removeprefix("0x")
    return bare[:digits] if re.fullmatch(r"[0-9a-f]{4,8}", bare) else None
