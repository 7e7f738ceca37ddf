"""baseline: has this machine still what it had when somebody accepted it?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from nodeagent.check.diff import Difference, Weight
from nodeagent.check.record import (
    Judged,
    NotApplicable,
    Seen,
    check,
    fail,
    info,
    ok,
    saw,
    some,
    unknown,
    warn,
)
from nodeagent.errors import ConfigError
from nodeagent.model.baseline import Baseline, Trait
from nodeagent.model.finding import Evidence, Verdict
from nodeagent.model.pci import PciFunction
from nodeagent.model.snapshot import Snapshot

SCHEMA = "nodeagent.baseline/v1"
ACCEPT = "sudo nodeagentctl baseline accept"
SLACK = 0.01
"""Share of memory that a kernel keeps for itself more or less at each boot; more is a DIMM."""
NUMBERS = frozenset(
    ("link width", "link speed", "memory", "direct links", "online CPUs", "gpu memory", "vfs")
)
"""Traits of which less is a loss and more a gain; of all others each change is only a change."""
WEIGHT = {
    "link width": Weight.LINK,
    "link speed": Weight.LINK,
    "direct links": Weight.LINK,
    "memory": Weight.CPU_MEMORY,
    "online CPUs": Weight.CPU_MEMORY,
    "packages": Weight.CPU_MEMORY,
    "NUMA nodes": Weight.CPU_MEMORY,
    "numa node": Weight.LOCALITY,
    "gpu memory": Weight.GPU,
    "kernel": Weight.FIRMWARE,
    "bios": Weight.FIRMWARE,
    "nvidia driver": Weight.FIRMWARE,
    "amdgpu driver": Weight.FIRMWARE,
    "isolated": Weight.ISOLATION,
    "nohz_full": Weight.ISOLATION,
    "rcu_nocbs": Weight.ISOLATION,
}
DEVICE = {"gpu": Weight.GPU, "nic": Weight.DEVICE, "nvme": Weight.DEVICE}
VERSIONS = frozenset(("kernel", "bios", "nvidia driver", "amdgpu driver"))
_FILES = {
    "bios": "sys/class/dmi/id/bios_version",
    "nvidia driver": "sys/module/nvidia/version",
    "amdgpu driver": "sys/module/amdgpu/version",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """How a machine differs from its baseline: `a` is what was accepted, `b` what is there.

    `lost`: something is gone, narrower or smaller. `unseen`: it could not be read, so
    that whether it is gone is not known.
    """

    difference: Difference
    lost: bool = False
    unseen: bool = False


# ---- shape -----------------------------------------------------------------------------------


def shape(snapshot: Snapshot) -> tuple[Trait, ...]:
    """What this machine has, by subject and name. What could not be read has no trait."""
    return tuple(
        sorted(
            (
                Trait(subject=subject, what=what, value=value)
                for subject, what, value in _traits(snapshot)
                if value is not None
            ),
            key=lambda t: (t.subject, t.what),
        )
    )


_Row = tuple[str, str, int | float | str | None]


def _traits(s: Snapshot) -> Iterator[_Row]:
    topology = s.topology
    for f in topology.pci:
        kind = _kind(f)
        if kind is not None and f.physfn is None:
            yield from _device(f"{kind} {f.bdf}", f)
    for gpu in s.gpus:
        yield f"gpu {gpu.bdf}", "gpu memory", gpu.memory_total_bytes
    for relation in topology.relations:
        count = sum(link.count for link in relation.links)
        if count:
            yield f"{relation.a} to {relation.b}", "direct links", count
    if topology.online:
        yield "machine", "online CPUs", len(topology.online)
        yield "machine", "packages", str(len(topology.packages))
    if topology.nodes:
        yield "machine", "NUMA nodes", str(len(topology.nodes))
        sizes = [n.memory_bytes for n in topology.nodes]
        told = [size for size in sizes if size is not None]
        yield "machine", "memory", sum(told) if len(told) == len(sizes) else None
        for node in topology.nodes:
            yield f"node {node.id}", "memory", node.memory_bytes
            for pool in node.hugepages:
                if pool.total:
                    what = f"hugepages of {pool.size_bytes >> 10} kB"
                    yield f"node {node.id}", what, str(pool.total)
        for name in ("isolated", "nohz_full", "rcu_nocbs"):
            yield "isolation", name, str(getattr(topology.isolation, name))
    yield "machine", "kernel", s.host.kernel
    for what, path in _FILES.items():
        yield "machine", what, s.texts.get(path)


def _kind(f: PciFunction) -> str | None:
    return "gpu" if f.computes else "nic" if f.is_nic else "nvme" if f.is_nvme else None


def _device(subject: str, f: PciFunction) -> Iterator[_Row]:
    yield subject, "device", f"{f.vendor}:{f.device}"
    yield subject, "numa node", None if f.numa_node is None else str(f.numa_node)
    yield subject, "vfs", f.vfs or None
    if f.link is not None:
        # The speed falls when a device idles: what it can do is what stays.
        yield subject, "link width", f.link.width or None
        yield subject, "link speed", f.link.max_speed_gts


# ---- compare ---------------------------------------------------------------------------------


def compare(baseline: Baseline, snapshot: Snapshot) -> tuple[Departure, ...]:
    """What is not as it was accepted, losses first, then by weight and subject."""
    old = {(t.subject, t.what): t.value for t in baseline.traits}
    new = {(t.subject, t.what): t.value for t in shape(snapshot)}
    moved = _moved(old, new)
    gone = {k[0] for k in old if k[1] == "device" and k not in new}
    come = {k[0] for k in new if k[1] == "device" and k not in old}
    # Another NPS or SNC mode numbers the nodes anew: the machine's whole memory is compared then.
    regrouped = old.get(("machine", "NUMA nodes")) != new.get(("machine", "NUMA nodes"))
    found: list[Departure] = []
    for key in dict.fromkeys((*old, *new)):
        subject, what = key
        before, now = old.get(key), new.get(key)
        if before == now:
            continue
        if subject in gone | come:
            if what == "device":
                there = subject in come
                if subject in moved:
                    if not there:
                        found.append(_departure(subject, "moved", subject, moved[subject]))
                    continue
                lost = not there
                unseen = lost and _blind(snapshot, "sys/bus/pci", "sys/devices/pci")
                found.append(
                    _departure(
                        subject,
                        "added" if there else "missing",
                        before,
                        now,
                        lost=lost and not unseen,
                        unseen=unseen,
                    )
                )
            continue
        # One of the two tells it: the nodes one by one, or the machine as a whole.
        if subject.startswith("node ") if regrouped else key == ("machine", "memory"):
            continue
        if what == "direct links" and not _both_there(snapshot, subject):
            continue
        if before is None and what not in VERSIONS and what not in NUMBERS:
            found.append(_departure(subject, what, before, now))
        elif now is None:
            found.append(_vanished(snapshot, subject, what, before))
        elif isinstance(before, str) or isinstance(now, str) or before is None:
            found.append(_departure(subject, what, before, now))
        elif what != "memory" or abs(now - before) > max(now, before) * SLACK:
            found.append(_departure(subject, what, before, now, lost=now < before))
    return tuple(
        sorted(found, key=lambda d: (not d.lost, d.difference.weight, d.difference.subject))
    )


def _vanished(s: Snapshot, subject: str, what: str, before: object) -> Departure:
    """A trait of something that is still there: a file that could not be read tells of no loss."""
    if what == "direct links":
        # Only a vendor's library tells of them: without it they are not known to be gone.
        seen = any(g.bdf in subject for g in s.gpus) or any(r.links for r in s.topology.relations)
        return _departure(subject, what, before, None, lost=seen, unseen=not seen)
    if what.startswith("hugepages") and any(f"node {n.id}" == subject for n in s.topology.nodes):
        return _departure(subject, what, before, None)
    lost = what == "memory" and subject != "machine" and bool(s.topology.nodes)
    lost = lost and not _blind(s, "sys/devices/system/node")
    return _departure(subject, what, before, None, lost=lost, unseen=not lost)


def _both_there(s: Snapshot, pair: str) -> bool:
    return all(s.topology.function(bdf) is not None for bdf in pair.split(" to "))


def _blind(s: Snapshot, *areas: str) -> bool:
    return any(u.path.lstrip("/").startswith(areas) for u in s.unread)


def _moved(
    old: dict[tuple[str, str], int | float | str], new: dict[tuple[str, str], int | float | str]
) -> dict[str, str]:
    """Devices that have another address now: buses are numbered anew when a card comes or goes.
    Both directions; the same card has the same vendor and device number."""
    gone = [(k[0], v) for k, v in old.items() if k[1] == "device" and k not in new]
    come = [(k[0], v) for k, v in new.items() if k[1] == "device" and k not in old]
    found: dict[str, str] = {}
    for subject, ids in sorted(gone):
        other = next(
            (c for c, i in sorted(come) if i == ids and c not in found),
            None,
        )
        if other is not None and other.partition(" ")[0] == subject.partition(" ")[0]:
            found[subject], found[other] = other, subject
    return found


def _departure(
    subject: str,
    what: str,
    a: object,
    b: object,
    *,
    lost: bool = False,
    unseen: bool = False,
) -> Departure:
    weight = WEIGHT.get(what, Weight.SETTING)
    if what in ("device", "missing", "added", "moved"):
        weight = DEVICE.get(subject.partition(" ")[0], Weight.DEVICE)
    return Departure(
        difference=Difference(
            weight=weight, subject=subject, what=what, a=text_of(what, a), b=text_of(what, b)
        ),
        lost=lost,
        unseen=unseen,
    )


def text_of(what: str, value: object) -> str | None:
    """A trait's value with its unit; None for None."""
    if value is None or isinstance(value, str):
        return value
    match what:
        case "memory" | "gpu memory":
            return f"{float(str(value)) / 2**30:.1f} GiB"
        case "link width":
            return f"x{value}"
        case "link speed":
            return f"{value} GT/s"
        case _:
            return str(value)


def verdict(departures: Iterable[Departure]) -> Verdict:
    """FAIL when something is lost, WARN when something is another, UNKNOWN when something could
    not be seen, OK when all is as it was accepted."""
    departures = tuple(departures)
    if any(d.lost for d in departures):
        return Verdict.FAIL
    if any(not d.unseen for d in departures):
        return Verdict.WARN
    return Verdict.UNKNOWN if departures else Verdict.OK


def sentence(d: Departure) -> str:
    """One difference in words."""
    x = d.difference
    if d.unseen:
        return f"{x.subject}: {x.what} was {x.a}, and is not to be seen now"
    if x.what in ("missing", "added"):
        return f"{x.subject} is {'missing' if x.what == 'missing' else 'new'} ({x.a or x.b})"
    if x.what == "moved":
        return f"{x.subject} is now {x.b}"
    return f"{x.subject}: {x.what} {x.a or '(none)'} -> {x.b or '(none)'}"


# ---- the file --------------------------------------------------------------------------------


class _File(msgspec.Struct, forbid_unknown_fields=True):
    schema: str
    accepted: str
    traits: list[Trait]
    hostname: str | None = None


def encode(baseline: Baseline) -> str:
    """The file's text: JSON, one trait a line, so that two baselines diff."""
    head = msgspec.json.encode(
        {"schema": SCHEMA, "accepted": baseline.accepted, "hostname": baseline.hostname}
    ).decode()
    rows = ",\n".join(msgspec.json.encode(t).decode() for t in baseline.traits)
    return f'{head[:-1]},"traits":[\n{rows}\n]}}\n'


def decode(data: bytes, path: str) -> Baseline:
    """A Baseline of a file's bytes. Raises ConfigError, which names what is wrong in it."""
    try:
        read = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        said = re.sub(r"\s+", " ", str(error))[:200]
        raise ConfigError(f"{path}: no baseline ({said})", f"write it anew: {ACCEPT}") from error
    if read.schema != SCHEMA:
        raise ConfigError(
            f"{path}: saw schema {read.schema!r}, expected {SCHEMA!r}", f"write it anew: {ACCEPT}"
        )
    return Baseline(
        accepted=read.accepted, traits=tuple(read.traits), hostname=read.hostname, source=path
    )


# ---- the check -------------------------------------------------------------------------------


@check(
    "baseline.holds",
    "the machine has what its baseline says",
    means="FAIL for each thing that is lost against the accepted baseline: a GPU, NIC or drive, a "
    "link that is narrower or slower, memory, CPUs, NVLinks. WARN when isolation, nodes or sizes "
    "are others, INFO for new versions and new devices. UNKNOWN for what cannot be seen now, and "
    "where the baseline itself cannot be read. "
    "Counters and settings are no part of it. NA while no baseline was accepted.",
    why="A GPU, a DIMM or half a link that disappears raises no error by itself: only who knows "
    "what was there can miss it.",
    prove="nodeagentctl baseline diff; nodeagentctl baseline show",
    mend="Reseat or replace what is lost; after an intended change run: "
    "sudo nodeagentctl baseline accept",
    source="nodeagent contract, baseline; Linux Documentation/ABI/testing/sysfs-bus-pci",
)
def holds(s: Seen) -> Iterator[Judged]:
    """The accepted shape against the one that was read."""
    baseline = s.snapshot.baseline
    if baseline is None:
        raise NotApplicable("no baseline was accepted for this machine")
    if baseline.trouble:
        yield unknown(
            "baseline",
            f"what this machine should have is not known: {baseline.trouble}",
            saw(baseline.source, baseline.trouble),
            remedy=baseline.remedy or f"write it anew: {ACCEPT}",
        )
        return
    departures = compare(baseline, s.snapshot)
    accepted = Evidence(path=baseline.source or "baseline", text=f"accepted {baseline.accepted}")
    for d in departures:
        if d.lost:
            x = d.difference
            seen = Evidence(path=x.subject, text=f"{x.what}: {x.a} -> {x.b or 'not there'}")
            yield fail(
                x.subject,
                f"lost against the baseline: {sentence(d)}",
                accepted,
                seen,
                remedy=_remedy(x),
            )
    rest = [d for d in departures if not d.lost and not d.unseen]
    news = [d for d in rest if d.difference.what in (*VERSIONS, "added", "moved")]
    other = [d for d in rest if d not in news]
    if other:
        yield warn(
            some((d.difference.subject for d in other), 4),
            f"changed since the baseline: {some(map(sentence, other), 4)}",
            accepted,
            remedy=f"if this was intended: {ACCEPT}",
        )
    if news:
        yield info(
            some((d.difference.subject for d in news), 4),
            f"new since the baseline: {some(map(sentence, news), 4)}",
            accepted,
            remedy=ACCEPT,
        )
    unseen = [d for d in departures if d.unseen]
    if unseen:
        yield Judged(
            verdict=Verdict.UNKNOWN,
            subject="baseline",
            message=f"{len(unseen)} things of the baseline cannot be seen: "
            f"{some((f'{d.difference.subject} {d.difference.what}' for d in unseen), 3)}",
            evidence=(accepted,),
            remedy="nodeagentctl -o json topology show | jq .unread",
        )
    if not departures:
        yield ok("baseline", f"all {len(baseline.traits)} traits are as accepted", accepted)


def _remedy(x: Difference) -> str:
    if x.weight in (Weight.GPU, Weight.DEVICE):
        return (
            "dmesg | grep -iE 'xid|aer|pcie|nvme'; echo 1 > /sys/bus/pci/rescan; then reseat the "
            "card"
        )
    if x.weight is Weight.LINK:
        return "sudo lspci -vv | grep -E '^[0-9a-f]|LnkSta:'  # then reseat card or riser"
    return "sudo dmidecode -t memory; dmesg | grep -iE 'edac|mce|smpboot'"
