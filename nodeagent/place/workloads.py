"""The workload file: TOML text becomes typed workloads, or one sentence with line and remedy.

Pure: the caller reads the file. What the keys mean stands in docs/workloads.md.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Sequence
from typing import Literal, NoReturn

import msgspec

from nodeagent.errors import ConfigError, ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.pci import parse_bdf
from nodeagent.model.placement import Match, Sharing, Workload
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.tomltext import document as document_of

MAX_WORKLOADS = 512
MAX_CPUS = 1 << 13
KINDS = ("vllm", "vector-index", "feeder", "agent", "custom")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB)?")
_UNIT = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


class MatchTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`[workload.match]`: every criterion that is given must fit."""

    title: str | None = None
    comm: str | None = None
    cmdline: str | None = None
    cgroup: str | None = None
    unit: str | None = None
    pid: int | None = None


class WorkloadTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`[[workload]]`."""

    name: str
    match: MatchTable
    kind: Literal["vllm", "vector-index", "feeder", "agent", "custom"] = "custom"
    cpus: int | None = None
    cpu_list: str | None = None
    sharing: Literal["exclusive", "shared"] = "exclusive"
    near: str | None = None
    unit: str | None = None
    smt: Literal["any", "whole-core", "one-per-core"] = "any"
    memory: str | None = None
    isolated: bool = False


class File(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A workload file."""

    workload: list[WorkloadTable] = []


class _Lines:
    """Where tables and keys stand: TOML parsers drop that."""

    def __init__(self, text: str, path: str) -> None:
        self._lines = text.splitlines()
        self._path = path
        self._tables = [
            i for i, line in enumerate(self._lines) if re.match(r"\s*\[\[\s*workload\s*\]\]", line)
        ]

    def line(self, index: int | None, key: str | None = None) -> int:
        """Line (from 1) of a key of the index-th [[workload]], else of the table, else 1.

        `match.KEY` looks from where the match stands.
        """
        start, end = 0, len(self._lines)
        if index is not None and index < len(self._tables):
            start = self._tables[index]
            if index + 1 < len(self._tables):
                end = self._tables[index + 1]
        found = start + 1
        for part in key.split(".") if key else ():
            at = self._find(found - 1, end, part)
            if at is None:
                break
            found = at
        return found

    def _find(self, start: int, end: int, key: str) -> int | None:
        pattern = re.compile(rf"(?:^|[\s{{,.\"']){re.escape(key)}[\"']?\s*[.=\]]")
        return next((i + 1 for i in range(start, end) if pattern.search(self._lines[i])), None)

    def fail(self, index: int | None, key: str | None, message: str, remedy: str) -> NoReturn:
        raise ConfigError(f"{self._path}:{self.line(index, key)}: {message}", remedy)

    def where(self, index: int) -> str:
        return f"{self._path}:{self.line(index)}"


def parse(text: str, path: str) -> tuple[Workload, ...]:
    """The workloads of a file's text. Raises ConfigError: one sentence, FILE:LINE, remedy."""
    lines = _Lines(text, path)
    document = document_of(text, path, "mend that line; examples/workloads.toml shows the form")
    try:
        file = msgspec.convert(document, File)
    except msgspec.ValidationError as error:
        _explain(error, lines)
    if len(file.workload) > MAX_WORKLOADS:
        lines.fail(
            MAX_WORKLOADS,
            None,
            f"{len(file.workload)} workloads, expected at most {MAX_WORKLOADS}",
            "split the file",
        )
    workloads = tuple(_workload(i, table, lines) for i, table in enumerate(file.workload))
    _check_together(workloads, lines)
    return workloads


def _explain(error: msgspec.ValidationError, lines: _Lines) -> NoReturn:
    """msgspec names the place as `$.workload[1].cpus`; people want the line."""
    text, _, place = str(error).partition(" - at `")
    at = re.match(r"\$\.workload\[(\d+)\](.*)`", place)
    index = int(at[1]) if at else None
    keys = re.findall(r"\.(\w+)", at[2]) if at else []
    key = ".".join(keys) or None
    unknown = re.search(r"contains unknown field `(\w+)`", text)
    if unknown:
        struct = MatchTable if "match" in keys else WorkloadTable if at else File
        known = ", ".join(struct.__struct_fields__)
        lines.fail(
            index,
            ".".join((*keys, unknown[1])),
            f"unknown key {unknown[1]!r}, expected one of: {known}",
            "correct the key or remove the line",
        )
    missing = re.search(r"missing required field `(\w+)`", text)
    if missing:
        lines.fail(
            index,
            None,
            f"a workload without {missing[1]!r}",
            'each [[workload]] needs at least: name = "...", cpus = N, match = { ... }',
        )
    label = f"{key}: " if key else ""
    lines.fail(index, key, f"{label}{text[:1].lower()}{text[1:]}", "see docs/workloads.md")


def _workload(index: int, table: WorkloadTable, lines: _Lines) -> Workload:
    def fail(
        key: str, seen: object, expected: str, remedy: str = "see docs/workloads.md"
    ) -> NoReturn:
        lines.fail(index, key, f"{key}: saw {seen!r}, expected {expected}", remedy)

    if not _NAME.fullmatch(table.name):
        fail("name", table.name, "1 to 64 letters, digits, '.', '_' or '-'")
    cpu_list = None
    if table.cpu_list is not None:
        try:
            cpu_list = CpuSet.parse(table.cpu_list)
        except ParseError as error:
            fail("cpu_list", table.cpu_list, error.expected)
        if not cpu_list:
            fail("cpu_list", table.cpu_list, "at least one CPU")
        if table.cpus is not None and table.cpus != len(cpu_list):
            lines.fail(
                index,
                "cpus",
                f"cpus is {table.cpus}, but cpu_list {cpu_list} has {len(cpu_list)} CPUs",
                "give one of the two",
            )
        if table.sharing == "shared":
            lines.fail(
                index,
                "cpu_list",
                "cpu_list on a shared workload, whose CPUs are its pool's",
                'remove cpu_list, or say sharing = "exclusive"',
            )
    cpus = len(cpu_list) if cpu_list is not None else table.cpus
    if cpus is None:
        lines.fail(index, None, f"workload {table.name} says no number of CPUs", "add cpus = N")
    if not 1 <= cpus <= MAX_CPUS:
        fail("cpus", cpus, f"a number of CPUs from 1 to {MAX_CPUS}")
    if table.sharing == "shared" and (table.isolated or table.smt != "any"):
        what = "isolated" if table.isolated else "smt"
        lines.fail(
            index,
            what,
            f"{what} on a shared workload: a pool is neither isolated nor by cores",
            f'remove {what}, or say sharing = "exclusive"',
        )
    if table.unit is not None and not _NAME.fullmatch(table.unit):
        fail("unit", table.unit, "1 to 64 letters, digits, '.', '_' or '-'")
    return Workload(
        name=table.name,
        kind=table.kind,
        match=_match(index, table, lines),
        cpus=cpus,
        sharing=Sharing(table.sharing),
        near=_near(index, table.near, lines),
        unit=table.unit,
        smt=table.smt,
        memory_bytes=_size(index, table.memory, lines),
        isolated=table.isolated,
        cpu_list=cpu_list,
        source=lines.where(index),
    )


def _match(index: int, table: WorkloadTable, lines: _Lines) -> Match:
    given = {k: v for k, v in msgspec.structs.asdict(table.match).items() if v is not None}
    if not given:
        lines.fail(
            index,
            "match",
            f"workload {table.name} matches nothing: its match is empty",
            "give one of: " + ", ".join(MatchTable.__struct_fields__),
        )
    for key, value in given.items():
        if value == "":
            lines.fail(
                index, f"match.{key}", f"{key} is empty and would match everything", f"fill {key}"
            )
    if table.match.cmdline is not None:
        try:
            with warnings.catch_warnings():
                # What a later Python may read otherwise is no news for stderr.
                warnings.simplefilter("ignore")
                re.compile(table.match.cmdline)
        except (re.error, OverflowError, RecursionError) as error:
            lines.fail(
                index,
                "match.cmdline",
                f"cmdline: saw {table.match.cmdline!r}, expected a regular expression ({error})",
                "escape special characters with a backslash, in single quotes",
            )
    if table.match.pid is not None and table.match.pid < 1:
        lines.fail(
            index, "match.pid", f"pid: saw {table.match.pid}, expected 1 or more", "correct it"
        )
    return Match(**given)


def _near(index: int, near: str | None, lines: _Lines) -> str | None:
    if near is None:
        return None
    kind, _, rest = near.partition(":")
    if kind == "node" and rest.isdecimal():
        return f"node:{int(rest)}"
    if kind in ("gpu", "nic", "nvme") and rest:
        return near
    try:
        return parse_bdf(near)
    except ParseError:
        lines.fail(
            index,
            "near",
            f"near: saw {near!r}, expected gpu:INDEX, gpu:UUID, nic:NAME, nvme:INDEX, node:N or a "
            "PCI address",
            "nodeagentctl topology show lists the devices",
        )


def _size(index: int, text: str | None, lines: _Lines) -> int:
    if text is None:
        return 0
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        lines.fail(
            index,
            "memory",
            f"memory: saw {text!r}, expected a size such as 64GiB",
            "units: B, KiB, MiB, GiB, TiB",
        )
    return int(float(found[1]) * _UNIT[found[2] or "B"])


def _check_together(workloads: Sequence[Workload], lines: _Lines) -> None:
    """What no machine could satisfy, whatever it is."""
    names: dict[str, int] = {}
    same: dict[Match, int] = {}
    lists: list[tuple[int, CpuSet]] = []
    nodes: dict[str, tuple[int, str]] = {}
    for i, w in enumerate(workloads):
        if w.name in names:
            lines.fail(
                i,
                "name",
                f"a second workload {w.name!r}; the first is on line {lines.line(names[w.name])}",
                "give it another name",
            )
        names[w.name] = i
        if w.match in same:
            first = workloads[same[w.match]]
            lines.fail(
                i,
                "match",
                f"workload {w.name} matches the same processes as {first.name} "
                f"(line {lines.line(same[w.match])}), and a process has one place",
                "make the two differ, or join them",
            )
        same[w.match] = i
        if w.cpu_list is not None:
            for j, other in lists:
                if w.cpu_list & other:
                    lines.fail(
                        i,
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
                    i,
                    "near",
                    f"unit {w.unit} shares one NUMA node, but {w.name} wants {w.near} "
                    f"and {workloads[other_name].name} wants {near}",
                    "give both the same node, or take one out of the unit",
                )


def resolve(workloads: Sequence[Workload], snapshot: Snapshot) -> tuple[Workload, ...]:
    """`near` names that only a snapshot knows (NIC names, GPU UUIDs) as PCI addresses.

    A name that is not there stays as it is; the planner refuses it in words.
    """
    nics = {n.name: n.bdf for n in snapshot.nics if n.bdf is not None}
    gpus = {g.uuid: g.bdf for g in snapshot.gpus if g.uuid is not None}
    by_index = {str(g.index): g.bdf for g in snapshot.gpus}

    def bdf(near: str | None) -> str | None:
        if near is None:
            return None
        kind, _, name = near.partition(":")
        if kind == "nic":
            return nics.get(name, near)
        if kind == "gpu":
            return gpus.get(name) or by_index.get(name, near)
        return near

    return tuple(dataclasses.replace(w, near=bdf(w.near)) for w in workloads)
