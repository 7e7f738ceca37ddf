"""Schema nodeagent.topology/v1 (docs: contract of `topology show`)."""

from __future__ import annotations

from nodeagent.model.pci import PciFunction
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.topology import NumaNode, Relation

Json = dict[str, object]


def topology_json(snapshot: Snapshot) -> Json:
    """The object without its `schema` key. What the firmware did not say is null."""
    topology = snapshot.topology
    isolation = topology.isolation
    return {
        "numa_nodes": [_node(n) for n in topology.nodes],
        "packages": [
            {"id": None if p.id < 0 else p.id, "cpus": str(p.cpus)} for p in topology.packages
        ],
        "cores": len(topology.cores),
        "pus": len(topology.online),
        "online_cpus": str(topology.online),
        "smt_siblings": {str(cpu): str(cpus) for cpu, cpus in topology.smt_siblings},
        "caches": [
            {"level": c.level, "type": c.type, "size_bytes": c.size_bytes, "cpus": str(c.cpus)}
            for c in topology.caches
        ],
        "pci": [_function(f) for f in topology.pci],
        "gpus": [f.bdf for f in topology.gpus],
        "nics": [f.bdf for f in topology.nics],
        "nvmes": [f.bdf for f in topology.nvmes],
        "relations": [_relation(r) for r in topology.relations],
        "isolation": {
            "isolated": str(isolation.isolated),
            "nohz_full": str(isolation.nohz_full),
            "rcu_nocbs": str(isolation.rcu_nocbs),
            "irqaffinity": str(isolation.irqaffinity),
        },
        "unread": [{"path": u.path, "reason": u.reason} for u in snapshot.unread],
    }


def _node(node: NumaNode) -> Json:
    return {
        "id": node.id,
        "cpus": str(node.cpus),
        "memory_bytes": node.memory_bytes,
        "distances": {str(i): d for i, d in node.distances},
        "kind": node.kind.value,
        "hugepages": [
            {"size_bytes": h.size_bytes, "total": h.total, "free": h.free} for h in node.hugepages
        ],
    }


def _function(function: PciFunction) -> Json:
    link = function.link
    return {
        "bdf": function.bdf,
        "class": function.class_code or None,
        "vendor": function.vendor or None,
        "device": function.device or None,
        "numa_node": function.numa_node,
        "local_cpus": None if function.local_cpus is None else str(function.local_cpus),
        "parents": list(function.parents),
        "root_bus": function.root_bus or None,
        "driver": function.driver,
        "link": None
        if link is None
        else {
            "speed_gts": link.speed_gts,
            "width": link.width,
            "max_speed_gts": link.max_speed_gts,
            "max_width": link.max_width,
        },
    }


def _relation(relation: Relation) -> Json:
    return {
        "a": relation.a,
        "b": relation.b,
        "path": relation.path.value,
        "same_numa": relation.same_numa,
        "links": [{"type": k.type, "count": k.count} for k in relation.links],
    }
