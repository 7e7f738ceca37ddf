"""The PUs of each role, out of its workload's: whole cores and L3 groups kept together. Pure."""

from __future__ import annotations

import dataclasses

from nodeagent.model.placement import Match, Placed, RolePlaced, Sharing, Workload
from nodeagent.place.machine import Machine, cpus_of
from nodeagent.place.pack import Budget, pack
from nodeagent.place.room import Item

BUDGET = 2_000
"""Choices tried for one workload's roles."""


def role_pus(
    machine: Machine, site: int, workload: Workload, pus: int, before: Placed | None
) -> tuple[RolePlaced, ...]:
    """In the workload's order, disjoint, each inside `pus`. Of a shared workload: none.

    `before`: where the workload was. A role of the same size whose PUs are still the workload's
    keeps them.
    """
    if workload.sharing is Sharing.SHARED or not workload.roles:
        return ()
    had = {r.role.name: r.cpus for r in before.roles} if before is not None else {}
    blank = Workload(name="", kind="", match=Match(), cpus=1)
    items = []
    for role in workload.roles:
        hint = 0
        for cpu in had.get(role.name, ()):
            hint |= 1 << cpu
        hint &= pus
        items.append(
            Item(
                workload=dataclasses.replace(blank, name=role.name, cpus=role.cpus),
                allowed=pus,
                isolated=None,
                one_l3=False,
                now=hint if hint.bit_count() == role.cpus else 0,
                now_site=site if hint.bit_count() == role.cpus else None,
                hint=hint,
            )
        )
    found = pack(machine, site, items, pus, Budget(BUDGET))
    if found is None:
        return ()
    by_name = {item.name: taken.pus for item, taken in found.given}
    return tuple(RolePlaced(role=r, cpus=cpus_of(by_name[r.name])) for r in workload.roles)
