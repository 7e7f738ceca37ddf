"""irq: where devices interrupt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from nodeagent.check.isolation import quiet
from nodeagent.check.record import Judged, NotApplicable, Seen, check, info, ok, saw, some, warn
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.finding import Evidence
from nodeagent.model.snapshot import Irq

FIRED = 1000
"""Counts since boot below this may be from before somebody moved the interrupt."""


def managed(irq: Irq) -> bool:
    """Whether the kernel keeps its affinity to itself: as it says, else by the driver's name."""
    return irq.name.startswith("nvme") if irq.managed is None else irq.managed


def lands(irq: Irq) -> CpuSet:
    """Where an interrupt goes: the effective mask, else the one that was set."""
    return irq.effective or irq.affinity or CpuSet()


def irqs_of(s: Seen) -> tuple[Irq, ...]:
    """The interrupts. Raises Missing when they could not be read, NotApplicable without any."""
    if s.snapshot.irqs:
        return s.snapshot.irqs
    s.whole("proc/irq", "proc/interrupts")
    raise s.gone("proc/interrupts", "no interrupts are listed")


def told(s: Seen, irq: Irq) -> Evidence:
    """The file that says where an interrupt goes: of a paste the one that was pasted."""
    at = f"proc/irq/{irq.number}"
    for leaf in (f"{name}_affinity{end}" for name in ("effective", "smp") for end in ("_list", "")):
        text = s.snapshot.texts.get(f"{at}/{leaf}")
        if text is not None and s.snapshot.pasted is not None:
            return saw(f"{at}/{leaf}", text)
    leaf = "effective_affinity_list" if irq.effective else "smp_affinity_list"
    return saw(f"{at}/{leaf}", str(lands(irq)))


def others(s: Seen, cpus: CpuSet) -> CpuSet:
    """The online CPUs but these. Where a paste does not tell which are online: those below the
    highest of them, which the machine has."""
    known = s.snapshot.topology.online
    if s.snapshot.pasted and not cpus <= known:
        known = s.snapshot.topology.possible
    return (known or CpuSet.of(range(max(cpus.ids, default=0)))) - cpus


def moved(irqs: Sequence[Irq], cpus: CpuSet) -> str:
    """The commands that send interrupts to these CPUs."""
    numbers = " ".join(str(i.number) for i in irqs)
    if len(irqs) == 1:
        return f"echo {cpus} > /proc/irq/{numbers}/smp_affinity_list"
    return f"for i in {numbers}; do echo {cpus} > /proc/irq/$i/smp_affinity_list; done"


def _named(irqs: Iterable[Irq]) -> str:
    names = [i.name for i in irqs if i.name]
    return f" ({some(names, 3)})" if names else ""


@check(
    "irq.on-isolated",
    "device interrupts stay off isolated CPUs",
    means="WARN when an interrupt of a device is delivered to isolated CPUs only and has fired "
    "there; INFO for the per-CPU queues of NVMe, whose interrupts fire only where the I/O was "
    "started and whose masks the kernel manages (writing them gives EIO). Of a pasted "
    "/proc/interrupts without masks: WARN when one fired mostly on isolated CPUs.",
    why="Each interrupt takes the CPU from the pinned thread for 2 to 20 us, and its softirq for "
    "longer.",
    prove="grep . /proc/irq/*/effective_affinity_list; cat /proc/interrupts",
    mend="Move NIC interrupts: echo HOUSEKEEPING > /proc/irq/N/smp_affinity_list, and tell "
    "irqbalance (IRQBALANCE_BANNED_CPULIST). For managed ones boot with "
    "isolcpus=managed_irq,domain,...",
    source="Linux Documentation/core-api/irq/irq-affinity.rst; kernel/irq/manage.c (managed "
    "interrupts)",
)
def on_isolated(s: Seen) -> Iterator[Judged]:
    """Interrupts whose effective mask lies within the isolated CPUs."""
    cpus, (path, text) = quiet(s)
    irqs = irqs_of(s)
    untold = [i for i in irqs if i.bdf is not None and not lands(i)]
    if untold and all(not lands(i) for i in irqs):
        raise s.gone(
            f"proc/irq/{untold[0].number}/effective_affinity_list", "no interrupt has a mask here"
        )
    counted = [i for i in irqs if not lands(i) and i.counts]
    if counted and s.snapshot.pasted is not None and all(not lands(i) for i in irqs):
        yield _fired(s, cpus, counted, saw(path, text))
        return
    inside = [i for i in irqs if lands(i) and lands(i) <= cpus]
    kept = [i for i in inside if managed(i)]
    fired = {i.number: sum(n for c, n in i.counts if c in cpus) for i in inside}
    loose = [i for i in inside if i not in kept and (fired[i.number] or not i.counts)]
    if loose:
        first = min(loose, key=lambda i: -fired[i.number])
        count = f"{first.name or first.number}: {fired[first.number]} on CPUs {cpus}"
        fires = (saw("proc/interrupts", count),) if first.counts else ()
        rest = others(s, cpus)
        yield warn(
            f"irq {some(i.number for i in loose)}",
            f"{len(loose)} device interrupt{'s are' if len(loose) > 1 else ' is'} delivered to "
            f"isolated CPUs{_named(loose)}",
            *(told(s, i) for i in loose[:3]),
            *fires,
            saw(path, text),
            remedy=f"{moved(loose, rest)}  # and keep irqbalance from undoing it"
            if rest
            else f"irqaffinity=0  # in GRUB_CMDLINE_LINUX, and leave CPU 0 out of {text}",
        )
    else:
        yield ok(f"cpu {cpus}", "no device interrupt is delivered there", saw(path, text))
    if kept:
        yield info(
            f"irq {some(i.number for i in kept)}",
            f"queues of drives that belong to isolated CPUs: {len(kept)}; they fire only for I/O "
            "started there, and the kernel manages their masks (a write gives EIO)",
            told(s, kept[0]),
        )


def _fired(s: Seen, cpus: CpuSet, irqs: list[Irq], where: Evidence) -> Judged:
    """Counts of /proc/interrupts alone, no masks: which fired mostly on these CPUs."""
    on = {i.number: sum(n for c, n in i.counts if c in cpus) for i in irqs}
    mostly = [
        i for i in irqs
        if on[i.number] >= FIRED and 2 * on[i.number] > sum(n for _, n in i.counts)
        and not managed(i)
    ]  # fmt: skip
    if not mostly:
        return ok(f"cpu {cpus}", "no device interrupt fired mostly there since boot", where)
    first = max(mostly, key=lambda i: on[i.number])
    there = CpuSet.of(c for i in mostly for c, n in i.counts if c in cpus and n)
    return warn(
        f"irq {some(i.number for i in mostly)}",
        f"{len(mostly)} device interrupt{'s' if len(mostly) > 1 else ''} fired on the isolated "
        f"CPUs {there} since boot{_named(mostly)}",
        *(saw("proc/interrupts", f"{i.number}: {i.name}: {on[i.number]} on CPUs {cpus}")
          for i in mostly[:3]),
        where,
        remedy=f"echo {others(s, cpus) or 0} > /proc/irq/{first.number}/smp_affinity_list  # then "
        "look whether the count still rises; keep irqbalance from undoing it",
    )  # fmt: skip


@check(
    "irq.remote-node",
    "device interrupts are handled on the device's node",
    means="WARN when interrupts of a NIC or GPU go only to CPUs of another node than the device's. "
    "INFO for other interrupts. Needs two nodes with CPUs and the device's node known.",
    why="Data that the device wrote is in the other node's cache; each packet's first touch then "
    "crosses the interconnect, and so does every reply.",
    prove="cat /proc/irq/N/node /proc/irq/N/smp_affinity_list; cat "
    "/sys/class/net/*/device/numa_node",
    mend="Write CPUs of the device's node into smp_affinity_list, or use the vendor's "
    "set_irq_affinity script; tell irqbalance.",
    source="Linux Documentation/networking/scaling.rst, 'RSS IRQ configuration'",
)
def remote_node(s: Seen) -> Iterator[Judged]:
    """Effective masks against the device's node."""
    s.nodes()
    nodes = {n.id: n.cpus for n in s.cpu_nodes}
    if len(nodes) < 2:
        raise NotApplicable("one NUMA node has CPUs")
    irqs = irqs_of(s)
    topology = s.snapshot.topology
    far: list[tuple[Irq, int]] = []
    other: list[tuple[Irq, int]] = []
    judged = 0
    for irq in irqs:
        device = topology.function(irq.bdf) if irq.bdf else None
        node = device.numa_node if device else irq.node
        where = lands(irq)
        if node is None or node not in nodes or not where:
            continue
        judged += 1
        if not where & nodes[node]:
            serious = device is None or device.is_nic or device.is_gpu
            (far if serious and (s.snapshot.pasted or device is not None) else other).append(
                (irq, node)
            )
    if not judged:
        raise NotApplicable("no interrupt tells both its node and its CPUs")
    if far:
        yield warn(
            f"irq {some(i.number for i, _ in far)}",
            f"{len(far)} interrupt{'s' if len(far) > 1 else ''} of devices on node "
            f"{some(sorted({n for _, n in far}))} go{'' if len(far) > 1 else 'es'} to CPUs "
            f"{lands(far[0][0])}, on another node",
            *(told(s, i) for i, _ in far[:3]),
            saw(f"proc/irq/{far[0][0].number}/node", str(far[0][1])),
            remedy="; ".join(
                moved([i for i, n in far if n == node], nodes[node])
                for node in sorted({n for _, n in far})
            ),
        )
    else:
        yield ok("irq", f"{judged} interrupts were looked at; those of NICs and GPUs are near")
    if other:
        yield info(
            f"irq {some(i.number for i, _ in other)}",
            f"{len(other)} interrupts of other devices go to another node than their own",
        )
