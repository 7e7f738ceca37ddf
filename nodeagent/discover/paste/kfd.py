"""AMD's KFD topology tree as facts (contract: facts, AMD KFD tree)."""

from __future__ import annotations

from nodeagent.discover.kfd import XGMI, links_of, read_kfd
from nodeagent.discover.root import Root

PCIE = 2
"""CRAT_IOLINK_TYPE_PCIEXPRESS. Source: drivers/gpu/drm/amd/amdkfd/kfd_crat.h."""


def kfd_facts(root: Root) -> dict[str, object]:
    """`kfd_nodes` and `gpu_to_cpu_node`; nothing without the tree."""
    nodes = read_kfd(root)
    if not nodes:
        return {}
    facts = []
    gpus = {n.number for n in nodes if n.bdf is not None}
    home: dict[str, int] = {}
    for node in nodes:
        links = [
            {"set": kind, "to": p.get("node_to"), "type": _type(p), "weight": p.get("weight")}
            for kind in ("io_links", "p2p_links")
            for p in links_of(root, node.number, kind)
        ]
        if node.number in gpus:
            cpu = next(
                (x["to"] for x in links if x["set"] == "io_links" and x["to"] not in gpus), None
            )
            if isinstance(cpu, int):
                home[str(node.number)] = cpu
        facts.append(
            {
                "id": node.number,
                "is_gpu": node.number in gpus,
                "bdf": node.bdf,
                "vendor": f"{node.properties.get('vendor_id', 0):04x}",
                "device": f"{node.properties.get('device_id', 0):04x}",
                "drm_render_minor": node.properties.get("drm_render_minor"),
                "simd_count": node.properties.get("simd_count"),
                "cpu_cores": node.properties.get("cpu_cores_count"),
                "links": links,
            }
        )
    return {"kfd_nodes": facts, "gpu_to_cpu_node": home}


def _type(properties: dict[str, int]) -> str:
    code = properties.get("type")
    return {PCIE: "PCIE", XGMI: "XGMI"}.get(code if code is not None else -1, str(code))
