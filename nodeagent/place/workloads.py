"""The workload file: TOML text becomes typed workloads and units, or one sentence with line and
remedy.

Pure: the caller reads the file. What the keys mean stands in docs/workloads.md; the tables are in
tables.py, what one workload wishes for in wishes.py, what a unit needs in units.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Match, Unit, Workload
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.tomltext import document as document_of
from nodeagent.place.tables import File, Lines, read_file
from nodeagent.place.units import kind_named, lacks
from nodeagent.place.wishes import unit_of, workload_of

MAX_WORKLOADS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFile:
    """What a file wants. `units`: those with a table of their own, then those that are only
    named by their members, each in the file's order."""

    workloads: tuple[Workload, ...]
    units: tuple[Unit, ...] = ()

    def unit(self, name: str | None) -> Unit | None:
        """The unit of that name."""
        return next((u for u in self.units if u.name == name), None)


def parse(text: str, path: str) -> tuple[Workload, ...]:
    """The workloads of a file's text. Raises ConfigError: one sentence, FILE:LINE, remedy."""
    return parse_file(text, path).workloads


def parse_file(text: str, path: str) -> WorkloadFile:
    """Workloads and units of a file's text. Raises ConfigError."""
    lines = Lines(text, path)
    document = document_of(text, path, "mend that line; examples/workloads.toml shows the form")
    file = read_file(document, lines)
    for what, count in (("workload", len(file.workload)), ("unit", len(file.unit))):
        if count > MAX_WORKLOADS:
            lines.fail(
                (what, MAX_WORKLOADS),
                None,
                f"{count} {what}s, expected at most {MAX_WORKLOADS}",
                "split the file",
            )
    units = _units(file, lines)
    workloads = tuple(workload_of(i, t, units, lines) for i, t in enumerate(file.workload))
    _check_together(workloads, lines)
    for i, unit in enumerate(units.values()):
        missing = lacks(unit, [w for w in workloads if w.unit == unit.name])
        if missing is not None:
            what = f"unit {unit.name}"
            if unit.kind != "custom":
                made_of = kind_named(unit.kind).made_of
                what += f" is of kind {unit.kind} ({made_of}), and"
            else:
                what += ":"
            lines.fail(("unit", i), None, f"{what} {missing[0]}", missing[1])
    return WorkloadFile(workloads=workloads, units=(*units.values(), *_named(workloads, units)))


def _units(file: File, lines: Lines) -> dict[str, Unit]:
    units: dict[str, Unit] = {}
    for i, table in enumerate(file.unit):
        unit = unit_of(i, table, lines)
        if unit.name in units:
            first = units[unit.name].source.rpartition(":")[2]
            lines.fail(
                ("unit", i),
                "name",
                f"a second unit {unit.name!r}; the first is on line {first}",
                "give it another name, or join them",
            )
        units[unit.name] = unit
    return units


def _named(workloads: Sequence[Workload], units: dict[str, Unit]) -> tuple[Unit, ...]:
    """Units without a table: their members name them."""
    names = dict.fromkeys(w.unit for w in workloads if w.unit is not None)
    return tuple(Unit(name=name) for name in names if name not in units)


def _check_together(workloads: Sequence[Workload], lines: Lines) -> None:
    """What no machine could satisfy, whatever it is."""
    names: dict[str, int] = {}
    same: dict[Match, int] = {}
    lists: list[tuple[int, CpuSet]] = []
    nodes: dict[str, tuple[int, str]] = {}
    for i, w in enumerate(workloads):
        at = ("workload", i)
        if w.name in names:
            lines.fail(
                at,
                "name",
                f"a second workload {w.name!r}; the first is on line "
                f"{lines.line(('workload', names[w.name]))}",
                "give it another name",
            )
        names[w.name] = i
        if w.match in same:
            first = workloads[same[w.match]]
            narrower = (
                'add to each what parts them, e.g. match.title = "VLLM::Worker_TP0" or match.unit'
                if w.engine is not None
                else "make the two differ, or join them"
            )
            lines.fail(
                at,
                "match",
                f"workload {w.name} matches the same processes as {first.name} "
                f"(line {lines.line(('workload', same[w.match]))}), and a process has one place",
                narrower,
            )
        same[w.match] = i
        if w.cpu_list is not None:
            for j, other in lists:
                if w.cpu_list & other:
                    lines.fail(
                        at,
                        "cpu_list",
                        f"cpu_list of workload {w.name} overlaps that of {workloads[j].name} in "
                        f"CPU {w.cpu_list & other}, and both are exclusive",
                        "give each CPU to one of them",
                    )
            lists.append((i, w.cpu_list))
        if w.unit is not None and w.near is not None and w.near.startswith("node:"):
            other_name, near = nodes.setdefault(w.unit, (i, w.near))
            if near != w.near:
                lines.fail(
                    at,
                    "near",
                    f"unit {w.unit} shares one NUMA node, but {w.name} wants {w.near} "
                    f"and {workloads[other_name].name} wants {near}",
                    "give both the same node, or take one out of the unit",
                )


def resolve(workloads: Sequence[Workload], snapshot: Snapshot) -> tuple[Workload, ...]:
    """`near` names that only a snapshot knows (NIC and NVMe names, UUIDs of GPUs and MIG devices)
    as PCI addresses.

    A name that is not there stays as it is; the planner refuses it in words.
    """
    known: dict[str, str] = {}
    for nic in snapshot.nics:
        if nic.bdf is not None:
            known |= {f"nic:{name}": nic.bdf for name in (nic.name, nic.rdma) if name}
    for nvme in snapshot.nvmes:
        if nvme.bdf is not None:
            known |= {f"nvme:{name}": nvme.bdf for name in (nvme.name, *nvme.namespaces)}
    for gpu in snapshot.gpus:
        # A MIG device has its parent's locality.
        uuids = (gpu.uuid, *(m.uuid for m in gpu.mig_instances))
        known |= {f"gpu:{name}": gpu.bdf for name in (str(gpu.index), *uuids) if name}

    def place(w: Workload) -> Workload:
        bdf = known.get(w.near) if w.near is not None else None
        return w if bdf is None else dataclasses.replace(w, near=bdf)

    return tuple(place(w) for w in workloads)
