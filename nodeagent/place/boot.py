"""Boot arguments computed from a machine and its workloads: what they should be, and why. Pure.

Isolation: the PUs of workloads that want it, with siblings that nobody else has. Huge pages: what
workloads will take on their node. IOMMU: passthrough where GPUs are translated.

Source: Linux Documentation/admin-guide/kernel-parameters.txt (isolcpus=, nohz_full=, rcu_nocbs=,
irqaffinity=, hugepages=, iommu=, iommu.passthrough=); hugepages= by node: b5389086ad7b (v5.14).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Placement, Sharing, Workload
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.topology import Isolation, Topology
from nodeagent.place.facts import facts_of
from nodeagent.place.housekeeping import SMALL_PUS
from nodeagent.place.memory import page
from nodeagent.place.planner import plan

X86 = ("GenuineIntel", "AuthenticAMD", "HygonGenuine", "CentaurHauls")
LISTS = ("isolcpus", "nohz_full", "rcu_nocbs", "irqaffinity")


class Change(enum.StrEnum):
    """What becomes of an argument."""

    ADD = "add"
    CHANGE = "change"
    KEEP = "keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One boot argument (of hugepages: with the hugepagesz= before it)."""

    name: str
    text: str
    """As it stands on the command line."""
    before: str | None
    """As it stands there now; None: it does not."""
    change: Change
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """The answer. `isolated`: CPUs that these arguments isolate."""

    arguments: tuple[Argument, ...]
    isolated: CpuSet
    notes: tuple[str, ...]

    @property
    def changes(self) -> tuple[Argument, ...]:
        """What differs from the command line now."""
        return tuple(a for a in self.arguments if a.change is not Change.KEEP)


def boot(
    snapshot: Snapshot,
    workloads: Sequence[Workload],
    housekeeping: CpuSet | None = None,
    *,
    by_partition: bool = False,
) -> Boot:
    """From a machine and the workloads it is for. `by_partition`: cpuset partitions isolate here,
    so that isolcpus= must leave the load balancer's domains alone."""
    # Pools follow from what is wanted here, so they bound nobody.
    wanted = tuple(replace(w, hugepages=()) for w in workloads)
    isolated, placement, notes = _isolation(snapshot, wanted, housekeeping)
    arguments = [
        *_lists(snapshot, isolated, workloads, by_partition),
        *_pools(snapshot, workloads, placement, notes),
        *_iommu(snapshot),
    ]
    notes += [
        f"{r.workload} has no place with these arguments either: {r.reason}"
        for r in placement.refused
    ]
    return Boot(arguments=tuple(arguments), isolated=isolated, notes=tuple(notes))


def _isolation(
    snapshot: Snapshot, workloads: tuple[Workload, ...], housekeeping: CpuSet | None
) -> tuple[CpuSet, Placement, list[str]]:
    """(CPUs to isolate, the placement with them, notes)."""
    topology, facts = snapshot.topology, facts_of(snapshot)
    now = topology.isolation.isolated
    placement = plan(topology, workloads, housekeeping=housekeeping, facts=facts)
    alone = [w.name for w in workloads if w.isolated and w.sharing is Sharing.EXCLUSIVE]
    if len(topology.online) < SMALL_PUS:
        said = f"this machine has {len(topology.online)} PUs: none can be isolated"
        return now, placement, [said] if alone else []
    if not alone:
        said = f"CPU {now} is isolated, and no workload wants isolated CPUs"
        return now, placement, [said] if now else []
    bare = replace(topology, isolation=Isolation())
    ideal = plan(bare, workloads, housekeeping=housekeeping, facts=facts)
    chosen = CpuSet()
    for name in alone:
        p = ideal.of(name)
        if p is not None:
            chosen |= p.cpus
    chosen |= _siblings(topology, chosen, ideal)
    after = replace(topology, isolation=Isolation(isolated=chosen))
    then = plan(after, workloads, housekeeping=ideal.housekeeping, facts=facts)
    placed = [placement.of(name) for name in alone]
    if now and all(p is not None and p.cpus <= now for p in placed):
        if len(placement.refused) <= len(then.refused):
            return now, placement, []
        gain = [r.workload for r in placement.refused if then.of(r.workload) is not None]
        return chosen, then, [f"with CPU {now} isolated as now, {', '.join(gain)} has no place"]
    return chosen, then, []


def _siblings(topology: Topology, chosen: CpuSet, placement: Placement) -> CpuSet:
    """Siblings of isolated PUs that neither housekeeping nor another workload has."""
    taken = placement.housekeeping
    for p in placement.placed:
        if p.sharing is Sharing.EXCLUSIVE:
            taken |= p.cpus
    beside = CpuSet()
    for cpu, core in topology.smt_siblings:
        if cpu in chosen:
            beside |= core
    return beside - taken


def _lists(
    snapshot: Snapshot, isolated: CpuSet, workloads: Sequence[Workload], by_partition: bool
) -> list[Argument]:
    wants = any(w.isolated and w.sharing is Sharing.EXCLUSIVE for w in workloads)
    if not isolated or not wants:
        return []
    rest = snapshot.topology.online - isolated
    flags = "managed_irq," if by_partition else "managed_irq,domain,"
    off = (
        "keeps managed interrupts (NVMe queues) off them; a cpuset partition takes them from the "
        "load balancer"
        if by_partition
        else "takes them from the load balancer and keeps managed interrupts (NVMe queues) off them"
    )
    asked = snapshot.asked
    values = {
        "isolcpus": (f"{flags}{isolated}", asked.isolated, isolated, off),
        "nohz_full": (str(isolated), asked.nohz_full, isolated, "no tick while one thread runs"),
        "rcu_nocbs": (str(isolated), asked.rcu_nocbs, isolated, "no RCU callbacks there"),
        "irqaffinity": (str(rest), asked.irqaffinity, rest, "interrupts start on the others"),
    }
    implied = snapshot.topology.isolation.rcu_nocbs & asked.nohz_full
    found = []
    for name in LISTS:
        value, has, should, why = values[name]
        before = snapshot.arg(name)
        if name == "rcu_nocbs" and before is None and isolated <= implied:
            # nohz_full= brings it along.
            continue
        same = before is not None and has == should
        if name == "isolcpus" and before is not None and same:
            # Without any flag it means domain.
            balanced = before[:1].isalpha() and "domain" not in before.split(",")
            same = balanced is by_partition
        found.append(_argument(name, f"{name}={value}", before, same, why))
    return found


def _argument(name: str, text: str, before: str | None, same: bool, why: str) -> Argument:
    was = None if before is None else f"{name}={before}" if before else name
    change = Change.KEEP if same else Change.ADD if was is None else Change.CHANGE
    return Argument(
        name=name,
        text=was if same and was is not None else text,
        before=was,
        change=change,
        why=why,
    )


def _pools(
    snapshot: Snapshot, workloads: Sequence[Workload], placement: Placement, notes: list[str]
) -> list[Argument]:
    """One argument for each page size of which some node has fewer than its workloads take."""
    need: dict[int, dict[int, int]] = {}
    by_name = {w.name: w for w in workloads}
    for p in placement.placed:
        node = next(iter(p.mems), None)
        for size, amount in by_name[p.workload].hugepages if node is not None else ():
            pool = need.setdefault(size, {})
            assert node is not None
            pool[node] = pool.get(node, 0) + -(-amount // size)
    given = _given_pools(snapshot)
    found = []
    for size, pages in sorted(need.items()):
        have = {
            n.id: h.total
            for n in snapshot.topology.nodes
            for h in n.hugepages
            if h.size_bytes == size
        }
        sizes = {h.size_bytes for n in snapshot.topology.nodes for h in n.hugepages}
        if sizes and size not in sizes:
            notes.append(f"this kernel has no pool for pages of {page(size)}")
            continue
        text = f"hugepagesz={_suffix(size)} hugepages=" + ",".join(
            f"{n}:{max(have.get(n, 0), pages.get(n, 0))}"
            for n in sorted(have.keys() | pages.keys())
            if have.get(n, 0) or pages.get(n, 0)
        )
        short = [n for n, count in sorted(pages.items()) if have.get(n, 0) < count]
        wanted = ", ".join(f"{count:,} on node {n}" for n, count in sorted(pages.items()))
        before = given.get(size)
        if not short:
            # They are there, by whatever means; at boot only where the line already says so.
            if before is not None:
                why = f"workloads take {wanted}, and they are there"
                found.append(
                    Argument(
                        name="hugepages", text=before, before=before, change=Change.KEEP, why=why
                    )
                )
            continue
        lacks = ", ".join(f"node {n} has {have.get(n, 0):,}" for n in short)
        found.append(
            Argument(
                name="hugepages",
                text=text,
                before=before,
                change=Change.ADD if before is None else Change.CHANGE,
                why=f"workloads take pages of {page(size)}: {wanted}; {lacks} (numbers by node "
                "need Linux 5.14)",
            )
        )
    return found


def _given_pools(snapshot: Snapshot) -> dict[int, str]:
    """Page size -> the arguments that make its pool now."""
    size = default = 2 << 20
    named: str | None = None
    found: dict[int, str] = {}
    for name, value in snapshot.boot_args:
        if value is None:
            continue
        if name == "default_hugepagesz":
            size = default = _bytes(value) or default
        elif name == "hugepagesz":
            size, named = _bytes(value) or default, f"hugepagesz={value} "
        elif name == "hugepages":
            found[size] = f"{named or ''}hugepages={value}"
            size, named = default, None
    return found


def _bytes(text: str) -> int | None:
    units = {"K": 10, "M": 20, "G": 30}
    number, unit = text[:-1], text[-1:].upper()
    return int(number) << units[unit] if number.isdecimal() and unit in units else None


def _suffix(size: int) -> str:
    return page(size, "").removesuffix("iB")


def _iommu(snapshot: Snapshot) -> list[Argument]:
    """Passthrough where a GPU's addresses are translated; nothing for what vfio-pci hands on."""
    if snapshot.host.virtual is not None:
        return []
    translated = []
    for p in snapshot.topology.gpus:
        if not p.computes or p.iommu_group is None or p.driver == "vfio-pci":
            continue
        kind = snapshot.text(f"sys/kernel/iommu_groups/{p.iommu_group}/type")
        if kind is not None and kind.startswith("DMA"):
            translated.append(p.bdf)
    given = snapshot.arg("iommu")
    through = snapshot.arg("iommu.passthrough")
    if given is not None and "pt" in given.split(","):
        why = "GPUs and NICs reach each other without translation"
        return [_argument("iommu", "iommu=pt", given, True, why)]
    if not translated:
        return []
    count = len(translated)
    why = (
        f"{count} GPU{'s are' if count > 1 else ' is'} behind a translating IOMMU: traffic between "
        "GPU and NIC goes through it"
    )
    if snapshot.host.cpu_vendor in X86:
        return [_argument("iommu", "iommu=pt", given, False, why)]
    return [_argument("iommu.passthrough", "iommu.passthrough=1", through, through == "1", why)]
