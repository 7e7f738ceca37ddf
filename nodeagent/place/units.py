"""Kinds of units: what each is made of, and what one lacks. Pure.

A unit shares one NUMA node and is placed whole or not at all. Its kind says which members it
needs, so that half a unit is a mistake in the file, told with its line, and not a surprise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nodeagent.model.placement import Placement, Unit, Workload

LLM_KINDS = ("llm", "vllm")
"""Two words for one thing: the second is the older one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitKind:
    """What a kind of unit needs."""

    name: str
    members: tuple[tuple[str, ...], ...]
    """Kinds of workloads, at least one of each group."""
    near: tuple[str, ...] = ()
    """Kinds of devices it must be near: gpu, nic; empty: any or none."""
    ring: bool = False
    """Whether it needs a ring: a feeder in it, or `ring` naming the feed that fills one."""
    made_of: str = ""


UNIT_KINDS: tuple[UnitKind, ...] = (
    UnitKind(
        name="reasoning",
        members=(LLM_KINDS, ("vector-index",)),
        near=("gpu",),
        ring=True,
        made_of="an LLM rank, a vector index and a ring, on the node of one GPU",
    ),
    UnitKind(
        name="vision",
        members=(("vision",),),
        near=("gpu",),
        made_of="a vision model on the node of one GPU",
    ),
    UnitKind(
        name="stream",
        members=(("feeder",),),
        near=("nic",),
        ring=True,
        made_of="a NIC's queue, the feeder that reads it and the ring it fills",
    ),
    UnitKind(name="custom", members=(), made_of="whatever its members are"),
)


def kind_named(name: str) -> UnitKind:
    """That kind. The file's reader lets no other name through."""
    return next(k for k in UNIT_KINDS if k.name == name)


def lacks(unit: Unit, members: Sequence[Workload]) -> tuple[str, str] | None:
    """(what is missing, how to add it), of the first thing that is; None: the unit is whole."""
    kind = kind_named(unit.kind)
    if not members:
        return (
            "no workload is in it",
            f'say unit = "{unit.name}" in its workloads, or take the unit out',
        )
    for group in kind.members:
        if not any(w.kind in group for w in members):
            return (
                f"no workload of kind {group[0]} is in it",
                f'add unit = "{unit.name}" to a [[workload]] of kind = "{group[0]}", or say '
                'kind = "custom"',
            )
    if kind.ring and unit.ring is None and not any(w.kind == "feeder" for w in members):
        return (
            "it names no ring and has no feeder that fills one",
            'add ring = "NAME" of the [[feed]], or say kind = "custom"',
        )
    near = [unit.near, *(w.near for w in members)]
    if kind.near and not any(n is not None and _is(n, kind.near) for n in near):
        device = " or ".join(kind.near)
        return (
            f"it is near no {device}",
            f'add near = "{kind.near[0]}:..." to the unit, or say kind = "custom"',
        )
    return None


def _is(near: str, kinds: tuple[str, ...]) -> bool:
    """A PCI address may be any device."""
    kind = near.partition(":")[0]
    return kind in kinds or kind not in ("gpu", "nic", "nvme", "node")


def ring_notes(units: Sequence[Unit], placement: Placement) -> tuple[str, ...]:
    """Where the rings of placed units belong: a ring's memory is bound when its feeder starts."""
    notes = []
    for unit in units:
        node = next((p.node for p in placement.placed if p.unit == unit.name), None)
        if unit.ring is not None and node is not None:
            notes.append(
                f"unit {unit.name}: the ring of feed {unit.ring} belongs on node {node}, where its "
                f"feeder puts it when it is started with --node {node}"
            )
    return tuple(notes)
