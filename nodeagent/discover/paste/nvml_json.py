"""NVML's answers as JSON, one object a GPU under its PCI address, or one for all.

Source: NVIDIA NVML API reference; NVML_ERROR_NOT_SUPPORTED means that there is no value.
"""

from __future__ import annotations

import json

from nodeagent.discover.paste import gpu_fields as v
from nodeagent.discover.paste.part import Part, cpulist_or_none
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.gpu_report import Version
from nodeagent.model.snapshot import GpuFacts

_KEYS = frozenset(
    {"numa_node_id", "numa_node", "memory_affinity", "cpu_affinity", "driver", "driver_version",
     "uuid", "name", "pci_bus_id", "index"}
)  # fmt: skip
MAX_CHARS = 4 << 20


def read_nvml_json(text: str, name: str) -> Part | None:
    """What NVML said; None for other text."""
    body = text.strip()
    if body[:1] not in "{[" or len(body) > MAX_CHARS or not any(k in body for k in _KEYS):
        return None
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return None
    objects: dict[str, dict[str, object]] = {}
    for key, value in _pairs(data):
        address = v.bdf(str(value.get("pci_bus_id") or value.get("bdf") or key))
        objects[address or ""] = value
    if not objects:
        return None
    gpus = [
        GpuFacts(
            bdf=bdf,
            index=i,
            name=_text(o.get("name")),
            uuid=_text(o.get("uuid")),
            numa_node=_node(o),
            cpu_affinity=_cpus(o.get("cpu_affinity")),
        )
        for i, (bdf, o) in enumerate(objects.items())
        if bdf
    ]
    drivers = {
        d for o in objects.values() if (d := _text(o.get("driver") or o.get("driver_version")))
    }
    reports = tuple(Version(source=name, line=1, component="driver", version=d) for d in drivers)
    return Part(kind="NVML", gpus=tuple(gpus), reports=reports)


def _pairs(data: object) -> list[tuple[str, dict[str, object]]]:
    if isinstance(data, dict):
        if data.keys() & _KEYS:
            return [("", data)]
        return [(str(k), x) for k, x in data.items() if isinstance(x, dict) and x.keys() & _KEYS]
    if isinstance(data, list):
        return [("", x) for x in data if isinstance(x, dict) and x.keys() & _KEYS]
    return []


def _text(value: object) -> str | None:
    return v.word(value) if isinstance(value, str) else None


def _node(o: dict[str, object]) -> int | None:
    """The node, from its number or from a memory affinity of one node."""
    for key in ("numa_node_id", "numa_node", "memory_affinity"):
        value = o.get(key)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, str) and value.strip().isdecimal() and len(value) < 6:
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def _cpus(value: object) -> CpuSet | None:
    if isinstance(value, list) and all(isinstance(x, int) and 0 <= x < 1 << 16 for x in value):
        return CpuSet.of(value)
    return cpulist_or_none(value) if isinstance(value, str) else None
