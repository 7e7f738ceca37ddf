"""`host_plan`: what a placement asks of the host besides its processes, and why. Pure.

On by default is what is needed to keep quiet CPUs quiet, each under its class of consent: `irq`
for interrupts and queues, `host` for kernel workers, NUMA balancing and irqbalance. A bound on the
exit latency of a CPU is set only where its workload asks for one. Without a placed workload
nothing is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.hostplan import HostPlan, HostRow
from nodeagent.model.placement import Consent, Knob, Placement, SetValue, Sharing, Workload
from nodeagent.model.snapshot import Snapshot
from nodeagent.place.irqs import irq_rows
from nodeagent.place.quiet import Quiet, quiet
from nodeagent.place.steering import queue_rows

IRQBALANCE_RUNS = "run/irqbalance"
WORKQUEUE = "sys/devices/virtual/workqueue/cpumask"
LATER_IRQS = "proc/irq/default_smp_affinity"
BALANCING = "proc/sys/kernel/numa_balancing"


def host_plan(snapshot: Snapshot, workloads: Sequence[Workload], placement: Placement) -> HostPlan:
    """Everything that is wanted, whether it is consented to or not. `workloads`: resolved."""
    if not placement.placed:
        return HostPlan()
    calm = quiet(snapshot.topology, placement)
    irqs = irq_rows(snapshot, workloads, placement, calm)
    moved = [r for r in irqs if r.action == "move"]
    runs = snapshot.texts.get(IRQBALANCE_RUNS, "0") != "0"
    rows: list[HostRow] = []
    notes: list[str] = []
    if runs and moved:
        rows += [_ban(row) for row in moved]
        notes.append(
            "irqbalance runs and moves interrupts every ten seconds: it is told to leave those "
            'alone that are moved, where [pin] allow names "host"; else name them in its '
            "arguments (--banirq=N)"
        )
    rows += irqs
    rows += _later(snapshot, calm)
    rows += queue_rows(snapshot, workloads, placement, calm)
    rows += _workers(snapshot, calm)
    rows += _latency(snapshot, workloads, placement)
    rows += _balancing(snapshot, placement)
    return HostPlan(rows=tuple(rows), notes=tuple(notes))


def host_actions(plan: HostPlan, consents: AbstractSet[Consent]) -> tuple[SetValue, ...]:
    """What is to be set of the classes consented to, in order. irqbalance is told only of what is
    moved: without class `irq`, of nothing."""
    return tuple(
        act
        for row in plan.rows
        if (act := row.act) is not None
        and row.consent in consents
        and (row.knob is not Knob.IRQBALANCE or Consent.IRQ in consents)
    )


def for_people(plan: HostPlan, lacks: Mapping[str, str]) -> HostPlan:
    """The same, with what the actor has no right to set left to a person, who gets the command.
    `lacks`: knob -> why."""
    return replace(
        plan,
        rows=tuple(
            replace(
                row,
                action="leave",
                value=row.before,
                reason=f"{row.reason}; {lacks[row.knob]}: a step for a person",
                by_hand=command,
            )
            if row.action == "move" and row.knob in lacks and (command := _command(row))
            else row
            for row in plan.rows
        ),
    )


def _command(row: HostRow) -> str:
    """What sets it without us; "": nothing that is worth a line."""
    if row.knob is not Knob.NUMA_BALANCING:
        return ""
    return f"sysctl -w kernel.numa_balancing={row.value}   # before: {row.before}"


def _ban(row: HostRow) -> HostRow:
    return HostRow(
        knob=Knob.IRQBALANCE,
        subject=row.subject,
        device=row.device,
        action="move",
        value="banned",
        before="",
        reason=f"irqbalance would move IRQ {row.subject} again",
        workload=row.workload,
    )


def _mask(snapshot: Snapshot, path: str) -> CpuSet | None:
    text = snapshot.texts.get(path)
    try:
        return None if text is None else CpuSet.parse_mask(text)
    except ParseError:
        return None


def _off_quiet(
    snapshot: Snapshot, calm: Quiet, path: str, knob: Knob, subject: str, words: tuple[str, str]
) -> Iterator[HostRow]:
    """A mask without the quiet CPUs; what it says of CPUs that are offline stays."""
    mask = _mask(snapshot, path)
    if mask is None or not mask & calm.cpus:
        return
    goal = mask - calm.cpus
    if not goal & snapshot.topology.online:
        goal = calm.kept(None)
    if not goal:
        return
    yield HostRow(
        knob=knob,
        subject=subject,
        device=words[0],
        action="move",
        value=str(goal),
        before=str(mask),
        reason=f"{words[1]} on isolated or exclusive CPU {mask & calm.cpus}",
    )


def _later(snapshot: Snapshot, calm: Quiet) -> Iterator[HostRow]:
    words = ("interrupts set up later", "a driver that is loaded later would interrupt")
    return _off_quiet(snapshot, calm, LATER_IRQS, Knob.IRQ_DEFAULT, "new", words)


def _workers(snapshot: Snapshot, calm: Quiet) -> Iterator[HostRow]:
    words = ("unbound kernel workers", "kernel workers that are bound to no CPU run")
    return _off_quiet(snapshot, calm, WORKQUEUE, Knob.WORKQUEUE, "*", words)


def _latency(
    snapshot: Snapshot, workloads: Sequence[Workload], placement: Placement
) -> Iterator[HostRow]:
    for workload in workloads:
        placed = placement.of(workload.name)
        if workload.wake_latency_us is None or placed is None:
            continue
        if placed.sharing is not Sharing.EXCLUSIVE:
            continue
        us = workload.wake_latency_us
        value = str(us) if us else "n/a"
        for cpu in placed.cpus:
            path = f"sys/devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us"
            before = snapshot.texts.get(path, "")
            if before == value:
                continue
            yield HostRow(
                knob=Knob.WAKE_LATENCY,
                subject=str(cpu),
                device=f"CPU {cpu}",
                action="move",
                value=value,
                before=before,
                reason=f"{workload.name} asks for a wake-up within {us} us"
                if us
                else f"{workload.name} asks for no wait at wake-up: its CPUs never leave the "
                "shallowest idle state, and draw more power",
                workload=workload.name,
            )


def _balancing(snapshot: Snapshot, placement: Placement) -> Iterator[HostRow]:
    """Memory of threads that stay on one node need not be sought for; tiering is left on."""
    now = snapshot.texts.get(BALANCING, "")
    bound = [p for p in placement.placed if p.sharing is Sharing.EXCLUSIVE and p.node is not None]
    nodes = [n for n in snapshot.topology.nodes if n.cpus]
    if now not in ("1", "3") or not bound or len(nodes) < 2:
        return
    yield HostRow(
        knob=Knob.NUMA_BALANCING,
        subject="kernel",
        device="automatic NUMA balancing",
        action="move",
        value=str(int(now) - 1),
        before=now,
        reason=f"{bound[0].workload} stays on node {bound[0].node}: unmapping its pages to see who "
        "uses them only stalls it",
    )
