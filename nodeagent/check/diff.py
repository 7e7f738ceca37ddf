"""What differs between two readings of machines, what matters most first; pure.

A missing GPU comes before a slower link, a slower link before a setting, a setting before a
counter. Values that change by themselves (free memory, interrupts counted) are no difference.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass

from nodeagent.model.pci import PciFunction
from nodeagent.model.snapshot import GpuFacts, Snapshot
from nodeagent.model.topology import Hugepages, NumaNode, Topology


class Weight(enum.IntEnum):
    """How much a difference matters; 1 is most."""

    GPU = 1
    DEVICE = 2
    """A NIC, an NVMe drive."""
    CPU_MEMORY = 3
    LINK = 4
    LOCALITY = 5
    FIRMWARE = 6
    ISOLATION = 7
    SETTING = 8
    COUNTER = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that is not the same. `a` None: only in b; `b` None: only in a."""

    weight: Weight
    subject: str
    what: str
    a: str | None
    b: str | None


_MASK = re.compile(r"<(?:host|user|uuid|mac|ip|path|value|init)-[0-9a-f]+>")
_VOLATILE = frozenset(
    (
        *(
            "proc/meminfo",
            "proc/cmdline",
            "proc/mounts",
            "proc/swaps",
            "proc/self/cgroup",
            "proc/net/route",
        ),
        *("proc/net/route", "proc/sys/kernel/random/boot_id", "proc/sys/kernel/hostname"),
    )
)
_OWN = ("run/self/", "proc/self/")
"""What belongs to the process that read, and to us."""
_COUNTED = ("_count", "/rx_packets", "/rx_missed_errors", "/rx_fifo_errors", "/rx_crc_errors")
_FIRMWARE = (
    *("proc/version", "proc/sys/kernel/osrelease", "proc/driver/nvidia/version"),
    *("sys/class/dmi/id/", "sys/module/nvidia/version", "sys/module/amdgpu/version"),
)


def diff(a: Snapshot, b: Snapshot) -> tuple[Difference, ...]:
    """Everything that differs, ordered by weight and subject."""
    found = [
        *_functions(a.topology, b.topology),
        *_machines(a.topology, b.topology),
        *_gpu_facts(a, b),
        *_relations(a.topology, b.topology),
        *_boot(a, b),
        *_texts(a, b),
    ]
    return tuple(sorted(found, key=lambda d: (d.weight, d.subject, d.what)))


def _name(function: PciFunction) -> str:
    kind = (
        "gpu"
        if function.computes
        else "nic"
        if function.is_nic
        else "nvme"
        if function.is_nvme
        else "pci"
    )
    return f"{kind} {function.bdf}"


def _weight(function: PciFunction) -> Weight:
    if function.computes:
        return Weight.GPU
    return Weight.DEVICE if function.is_nic or function.is_nvme else Weight.LOCALITY


def _functions(a: Topology, b: Topology) -> Iterator[Difference]:
    left, right = {f.bdf: f for f in a.pci}, {f.bdf: f for f in b.pci}
    for bdf in left.keys() | right.keys():
        old, new = left.get(bdf), right.get(bdf)
        there = old or new
        assert there is not None
        subject = _name(there)
        if old is None or new is None:
            text = f"{there.vendor}:{there.device}"
            yield Difference(
                weight=_weight(there),
                subject=subject,
                what="missing" if new is None else "added",
                a=None if old is None else text,
                b=None if new is None else text,
            )
            continue
        pairs = (
            (_weight(new), "device", f"{old.vendor}:{old.device}", f"{new.vendor}:{new.device}"),
            (Weight.LINK, "link", _link(old), _link(new)),
            (Weight.LOCALITY, "numa node", _text(old.numa_node), _text(new.numa_node)),
            (Weight.LOCALITY, "parents", " ".join(old.parents), " ".join(new.parents)),
            (Weight.LOCALITY, "driver", _text(old.driver), _text(new.driver)),
            (Weight.COUNTER, "aer", _aer(old), _aer(new)),
        )
        yield from _changed(subject, pairs)


def _changed(
    subject: str, pairs: tuple[tuple[Weight, str, str | None, str | None], ...]
) -> Iterator[Difference]:
    for weight, what, old, new in pairs:
        if not _same(old, new):
            yield Difference(weight=weight, subject=subject, what=what, a=old, b=new)


def _same(old: str | None, new: str | None) -> bool:
    """Equal, as far as masks of a capture (`<ip-1>`) let it be seen."""
    if old == new or old is None or new is None:
        return old == new
    if not _MASK.search(old) and not _MASK.search(new):
        return False
    if _MASK.search(old) and _MASK.search(new):
        return _MASK.sub("<>", old) == _MASK.sub("<>", new)
    masked, plain = (old, new) if _MASK.search(old) else (new, old)
    pattern = ".+?".join(map(re.escape, _MASK.split(masked)))
    return re.fullmatch(pattern, plain, re.DOTALL) is not None


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _gib(size: int | None) -> str | None:
    return None if size is None else f"{size / 2**30:.1f} GiB"


def _distances(node: NumaNode) -> str:
    return " ".join(f"{other}:{distance}" for other, distance in node.distances)


def _link(function: PciFunction) -> str | None:
    link = function.link
    if link is None:
        return None
    return f"{link.speed_gts} GT/s x{link.width} of {link.max_speed_gts} GT/s x{link.max_width}"


def _aer(function: PciFunction) -> str | None:
    aer = function.aer
    if aer is None:
        return None
    return f"{aer.correctable} correctable, {aer.nonfatal} non-fatal, {aer.fatal} fatal"


def _machines(a: Topology, b: Topology) -> Iterator[Difference]:
    def packages(t: Topology) -> str:
        return "; ".join(f"{p.id}: {p.cpus}" for p in t.packages)

    yield from _changed(
        "machine",
        (
            (Weight.CPU_MEMORY, "online CPUs", str(a.online), str(b.online)),
            (Weight.CPU_MEMORY, "cores", str(len(a.cores)), str(len(b.cores))),
            (Weight.CPU_MEMORY, "packages", packages(a), packages(b)),
        ),
    )
    left, right = {n.id: n for n in a.nodes}, {n.id: n for n in b.nodes}
    for number in left.keys() | right.keys():
        old, new = left.get(number), right.get(number)
        subject = f"node {number}"
        if old is None or new is None:
            there = old or new
            assert there is not None
            yield Difference(
                weight=Weight.CPU_MEMORY,
                subject=subject,
                what="missing" if new is None else "added",
                a=None if old is None else f"CPUs {there.cpus}",
                b=None if new is None else f"CPUs {there.cpus}",
            )
            continue
        yield from _changed(
            subject,
            (
                (Weight.CPU_MEMORY, "CPUs", str(old.cpus), str(new.cpus)),
                (Weight.CPU_MEMORY, "kind", old.kind.value, new.kind.value),
                (Weight.LOCALITY, "distances", _distances(old), _distances(new)),
                (Weight.SETTING, "hugepages", _pools(old.hugepages), _pools(new.hugepages)),
            ),
        )
        # A kernel keeps some MiB more or less for itself at each boot: 1 % is a missing DIMM.
        x, y = old.memory_bytes, new.memory_bytes
        if x != y and (x is None or y is None or abs(x - y) > max(x, y) // 100):
            yield Difference(
                weight=Weight.CPU_MEMORY, subject=subject, what="memory", a=_gib(x), b=_gib(y)
            )


def _pools(pools: tuple[Hugepages, ...]) -> str:
    return ", ".join(f"{p.size_bytes}: {p.total}" for p in pools)


def _gpu_facts(a: Snapshot, b: Snapshot) -> Iterator[Difference]:
    left, right = {g.bdf: g for g in a.gpus}, {g.bdf: g for g in b.gpus}
    for bdf in left.keys() & right.keys():
        old, new = left[bdf], right[bdf]
        yield from _changed(
            f"gpu {bdf}",
            (
                (Weight.GPU, "error", old.error, new.error),
                (Weight.GPU, "name", old.name, new.name),
                (Weight.GPU, "uuid", old.uuid, new.uuid),
                (
                    Weight.GPU,
                    "memory",
                    _text(old.memory_total_bytes),
                    _text(new.memory_total_bytes),
                ),
                (Weight.SETTING, "mig", _text(old.mig), _text(new.mig)),
            ),
        )
    yield from _changed("nvml", ((Weight.FIRMWARE, "driver", a.nvml.driver, b.nvml.driver),))


def _memory(gpu: GpuFacts) -> str | None:
    return _text(gpu.memory_total_bytes)


def _relations(a: Topology, b: Topology) -> Iterator[Difference]:
    left = {(r.a, r.b): r for r in a.relations}
    for relation in b.relations:
        old = left.get((relation.a, relation.b))
        if old is None:
            continue
        links = ", ".join(f"{k.count} {k.type}" for k in relation.links)
        yield from _changed(
            f"{relation.a} to {relation.b}",
            (
                (Weight.LINK, "links", ", ".join(f"{k.count} {k.type}" for k in old.links), links),
                (Weight.LOCALITY, "path", old.path.value, relation.path.value),
            ),
        )


def _boot(a: Snapshot, b: Snapshot) -> Iterator[Difference]:
    for name in ("isolated", "nohz_full", "rcu_nocbs", "irqaffinity"):
        old = str(getattr(a.topology.isolation, name))
        new = str(getattr(b.topology.isolation, name))
        yield from _changed("isolation", ((Weight.ISOLATION, name, old, new),))
    left, right = dict(a.boot_args), dict(b.boot_args)
    for name in left.keys() | right.keys():
        old_value = (left[name] or "set") if name in left else None
        new_value = (right[name] or "set") if name in right else None
        yield from _changed("boot argument", ((Weight.ISOLATION, name, old_value, new_value),))


def _texts(a: Snapshot, b: Snapshot) -> Iterator[Difference]:
    for path in a.texts.keys() | b.texts.keys():
        if path in _VOLATILE or path.startswith(_OWN) or path.endswith(_COUNTED):
            continue
        weight = Weight.FIRMWARE if path.startswith(_FIRMWARE) else Weight.SETTING
        what = "value" if path.startswith(("run/", "derived/")) else "text"
        yield from _changed(path, ((weight, what, a.texts.get(path), b.texts.get(path)),))
