"""What differs between two readings of machines, what matters most first; pure.

A missing GPU comes before a slower link, a slower link before a setting, a setting before a
counter. Values that change by themselves (free memory, interrupts counted) are no difference.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check.diff_texts import cpu_sets, texts
from nodeagent.check.difference import Difference, Weight, changed, tells, text_of
from nodeagent.model.pci import PciFunction
from nodeagent.model.snapshot import NicFacts, NvmeFacts, Snapshot
from nodeagent.model.topology import Hugepages, NumaNode, Relation, Topology

__all__ = ["Difference", "Weight", "diff", "two_machines"]

_ISOLATION = ("isolated", "nohz_full", "rcu_nocbs", "irqaffinity")
_OWN_ARGS = frozenset(("root", "resume", "BOOT_IMAGE", "ip", "rd.lvm.lv", "rd.luks.uuid"))
"""Boot arguments in which two machines differ by nature."""
_MOVES = ("missing", "added", "moved", "numa node", "parents", "error", "driver")
_FIRST = {"missing": 0, "fewer": 0, "moved": 1, "added": 2, "more": 2}
"""Within one weight: what is gone, then what came, then what changed."""


def diff(a: Snapshot, b: Snapshot) -> tuple[Difference, ...]:
    """Everything that differs, ordered by weight, by whether something is gone, and by subject."""
    found = [
        *_functions(a.topology, b.topology),
        *_machines(a.topology, b.topology),
        *_gpu_facts(a, b),
        *_nics(a, b),
        *_nvmes(a, b),
        *_log(a, b),
        *_boot(a, b),
        *texts(a.texts, b.texts),
    ]
    # A device that is gone or sits elsewhere is told once, not once more for each neighbour.
    told = {d.subject.rpartition(" ")[2] for d in found if d.what in _MOVES}
    found += _relations(a.topology, b.topology, told)
    return tuple(
        sorted(set(found), key=lambda d: (d.weight, _FIRST.get(d.what, 3), d.subject, d.what))
    )


def two_machines(a: Snapshot, b: Snapshot) -> bool | None:
    """Whether these are two machines (True) or one at two times; None: nothing tells.

    GPUs tell by their UUIDs, else the hosts by their names; masks tell when made with a key.
    """
    left, right = ({g.uuid for g in s.gpus if g.uuid} for s in (a, b))
    if left and right and all(tells(u) for u in left | right):
        return not left & right
    names = a.host.hostname, b.host.hostname
    if names[0] and names[1] and all(tells(n) for n in names if n):
        return names[0] != names[1]
    return None


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
    left, right = ({f.bdf: f for f in t.pci if f.physfn is None} for t in (a, b))
    for bdf in left.keys() & right.keys():
        yield from _function(left[bdf], right[bdf])
    gone = [left[bdf] for bdf in sorted(left.keys() - right.keys())]
    came = [right[bdf] for bdf in sorted(right.keys() - left.keys())]
    for kind in {_kind(f) for f in (*gone, *came)}:
        old, new = [f for f in gone if _kind(f) == kind], [f for f in came if _kind(f) == kind]
        there = (old + new)[0]
        if _weight(there) is Weight.LOCALITY:
            # Bridges and the chip set: how many, not which.
            if len(old) != len(new):
                yield Difference(
                    weight=Weight.LOCALITY,
                    subject=f"pci {there.vendor}:{there.device}",
                    what="fewer" if len(old) > len(new) else "more",
                    a=str(sum(_kind(f) == kind for f in left.values())),
                    b=str(sum(_kind(f) == kind for f in right.values())),
                )
            continue
        both = min(len(old), len(new))
        for f, g in zip(old, new, strict=False):
            # The same kind of device at another address: another slot, or another board.
            yield from changed(_name(f), ((Weight.LOCALITY, "moved", f.bdf, g.bdf),))
        for f in old[both:]:
            yield _only(f, "missing")
        for f in new[both:]:
            yield _only(f, "added")


def _kind(function: PciFunction) -> tuple[str, str, str]:
    return function.vendor, function.device, function.class_code


def _only(function: PciFunction, what: str) -> Difference:
    text = f"{function.vendor}:{function.device}"
    return Difference(
        weight=_weight(function),
        subject=_name(function),
        what=what,
        a=text if what == "missing" else None,
        b=text if what == "added" else None,
    )


def _function(old: PciFunction, new: PciFunction) -> Iterator[Difference]:
    # A GPU lowers its link when it idles: that alone is no slower link.
    speed = Weight.COUNTER if new.is_gpu else Weight.LINK
    yield from changed(
        _name(new),
        (
            (_weight(new), "device", f"{old.vendor}:{old.device}", f"{new.vendor}:{new.device}"),
            (Weight.LINK, "link width", _link(old, "width"), _link(new, "width")),
            (speed, "link speed", _link(old, "speed_gts"), _link(new, "speed_gts")),
            (Weight.LINK, "widest link", _link(old, "max_width"), _link(new, "max_width")),
            (Weight.LINK, "fastest link", _link(old, "max_speed_gts"), _link(new, "max_speed_gts")),
            (Weight.LOCALITY, "numa node", text_of(old.numa_node), text_of(new.numa_node)),
            (Weight.LOCALITY, "parents", " ".join(old.parents), " ".join(new.parents)),
            (_weight(new), "driver", text_of(old.driver), text_of(new.driver)),
            (Weight.SETTING, "virtual functions", text_of(old.vfs), text_of(new.vfs)),
            (Weight.COUNTER, "aer", _aer(old), _aer(new)),
        ),
    )


def _link(function: PciFunction, field: str) -> str | None:
    value = None if function.link is None else getattr(function.link, field)
    if value is None:
        return None
    return f"{value} GT/s" if "speed" in field else f"x{value}"


def _gib(size: int | None) -> str | None:
    return None if size is None else f"{size / 2**30:.1f} GiB"


def _distances(node: NumaNode) -> str:
    return " ".join(f"{other}:{distance}" for other, distance in node.distances)


def _aer(function: PciFunction) -> str | None:
    aer = function.aer
    if aer is None:
        return None
    return f"{aer.correctable} correctable, {aer.nonfatal} non-fatal, {aer.fatal} fatal"


def _machines(a: Topology, b: Topology) -> Iterator[Difference]:
    def packages(t: Topology) -> str:
        return "; ".join(f"{p.id}: {p.cpus}" for p in t.packages)

    yield from changed(
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
        yield from changed(
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
    two = two_machines(a, b)
    for bdf in left.keys() & right.keys():
        old, new = left[bdf], right[bdf]
        same_card = two or (old.uuid, new.uuid)[0] is None
        yield from changed(
            f"gpu {bdf}",
            (
                (Weight.GPU, "error", old.error, new.error),
                (Weight.GPU, "name", old.name, new.name),
                (Weight.GPU, "uuid", None if same_card else old.uuid,
                 None if same_card else new.uuid),
                (Weight.GPU, "memory", _gib(old.memory_total_bytes), _gib(new.memory_total_bytes)),
                (Weight.SETTING, "mig", text_of(old.mig), text_of(new.mig)),
                (Weight.SETTING, "mig instances", str(len(old.mig_instances)),
                 str(len(new.mig_instances))),
            ),
        )  # fmt: skip
    # On the bus of both, and known to the driver of one.
    if a.nvml.available and b.nvml.available:
        for bdf in left.keys() ^ right.keys():
            gone = bdf in left
            if all(t.function(bdf) is not None for t in (a.topology, b.topology)):
                yield Difference(
                    weight=Weight.GPU,
                    subject=f"gpu {bdf}",
                    what="missing" if gone else "added",
                    a="in NVML" if gone else None,
                    b=None if gone else "in NVML",
                )
    elif left and a.nvml.available:
        yield Difference(
            weight=Weight.GPU, subject="nvml", what="missing", a="answers", b=b.nvml.reason
        )
    yield from changed("nvml", ((Weight.FIRMWARE, "driver", a.nvml.driver, b.nvml.driver),))


def _nics(a: Snapshot, b: Snapshot) -> Iterator[Difference]:
    left, right = ({n.bdf: n for n in s.nics if n.bdf} for s in (a, b))
    for bdf in left.keys() & right.keys():
        old, new = left[bdf], right[bdf]
        yield from changed(
            f"nic {bdf}",
            (
                (Weight.LINK, "state", old.operstate, new.operstate),
                (Weight.LINK, "speed", _mbps(old), _mbps(new)),
                (Weight.DEVICE, "rdma", old.rdma, new.rdma),
                (Weight.SETTING, "name", old.name, new.name),
                (Weight.SETTING, "mtu", text_of(old.mtu), text_of(new.mtu)),
                (Weight.SETTING, "rx queues", text_of(old.rx_queues), text_of(new.rx_queues)),
                (Weight.SETTING, "tx queues", text_of(old.tx_queues), text_of(new.tx_queues)),
                (Weight.SETTING, "clock", text_of(old.ptp_clock), text_of(new.ptp_clock)),
            ),
        )


def _mbps(nic: NicFacts) -> str | None:
    return None if nic.speed_mbps is None else f"{nic.speed_mbps} Mbit/s"


def _nvmes(a: Snapshot, b: Snapshot) -> Iterator[Difference]:
    left, right = ({n.bdf or n.name: n for n in s.nvmes} for s in (a, b))
    for key in left.keys() & right.keys():
        old, new = left[key], right[key]
        yield from changed(
            f"nvme {key}",
            (
                (Weight.DEVICE, "namespaces", _spaces(old), _spaces(new)),
                (Weight.DEVICE, "model", old.model, new.model),
            ),
        )


def _spaces(drive: NvmeFacts) -> str:
    return str(len(drive.namespaces))


_OF_GPU = ("xid", "sxid", "gpu_", "nvrm", "nvlink", "amdgpu", "fabric")
_OF_DEVICE = ("nvme", "nic", "io_error", "fs_error", "raid")
_OF_MEMORY = ("mce", "edac", "ghes", "memory")


def _log(a: Snapshot, b: Snapshot) -> Iterator[Difference]:
    """Faults in the kernel log, where both were read: how many lines of each kind and device."""
    if a.events is None or b.events is None:
        return
    counts: list[dict[tuple[str, str], int]] = [{}, {}]
    for count, events in zip(counts, (a.events, b.events), strict=True):
        for event in events:
            if event.fault:
                xid = event.details.get("xid")
                key = (event.kind if xid is None else f"xid {xid}", event.bdf or "")
                count[key] = count.get(key, 0) + 1
    for key in counts[0].keys() | counts[1].keys():
        kind = key[0]
        weight = (
            Weight.GPU
            if kind.startswith(_OF_GPU)
            else Weight.DEVICE
            if kind.startswith(_OF_DEVICE)
            else Weight.CPU_MEMORY
            if kind.startswith(_OF_MEMORY)
            else Weight.LINK
            if kind == "aer"
            else Weight.SETTING
        )
        old, new = (text_of(count.get(key)) for count in counts)
        # A log that has forgotten an old fault says nothing new.
        if new is not None:
            yield from changed(
                f"kernel log {kind} {key[1]}".strip(), ((weight, "lines", old, new),)
            )


def _relations(a: Topology, b: Topology, told: set[str]) -> Iterator[Difference]:
    left = {(r.a, r.b): r for r in a.relations}
    groups: dict[tuple[Weight, str, str, str], list[str]] = {}
    for new in b.relations:
        old = left.get((new.a, new.b))
        if old is None or new.a in told or new.b in told:
            continue
        for weight, what, x, y in (
            (Weight.LINK, "links", _links(old), _links(new)),
            (Weight.LOCALITY, "path", old.path.value, new.path.value),
        ):
            if x != y:
                groups.setdefault((weight, what, x, y), []).append(f"{new.a} to {new.b}")
    for (weight, what, x, y), pairs in groups.items():
        more = f" and {len(pairs) - 1} more pairs" if len(pairs) > 1 else ""
        yield Difference(weight=weight, subject=pairs[0] + more, what=what, a=x, b=y)


def _links(relation: Relation) -> str:
    return ", ".join(f"{k.count} {k.type}" for k in relation.links)


def _boot(a: Snapshot, b: Snapshot) -> Iterator[Difference]:
    one, two = a.topology.isolation, b.topology.isolation
    yield from cpu_sets(
        _ISOLATION,
        {n: getattr(one, n) for n in _ISOLATION},
        {n: getattr(two, n) for n in _ISOLATION},
    )
    left, right = dict(a.boot_args), dict(b.boot_args)
    skip = _OWN_ARGS if two_machines(a, b) else frozenset()
    for name in (left.keys() | right.keys()) - skip:
        old_value = (left[name] or "set") if name in left else None
        new_value = (right[name] or "set") if name in right else None
        yield from changed("boot argument", ((Weight.ISOLATION, name, old_value, new_value),))
