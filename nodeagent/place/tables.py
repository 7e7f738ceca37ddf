"""A workload file's tables and keys, where they stand, and what is wrong with their shape.

Pure. TOML parsers drop positions, so they are found again in the text; msgspec names the place of a
mistake as `$.workload[1].cpus`, and people want the line.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal, NoReturn

import msgspec

from nodeagent.errors import ConfigError

KINDS = ("llm", "vllm", "vector-index", "vision", "feeder", "agent", "custom")
SEE = "see docs/workloads.md"


class MatchTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`[workload.match]`: every criterion that is given must fit."""

    title: str | None = None
    comm: str | None = None
    cmdline: str | None = None
    cgroup: str | None = None
    unit: str | None = None
    pid: int | None = None
    container: str | None = None
    image: str | None = None
    label: str | None = None
    parent: str | None = None
    user: str | int | None = None


class RoleTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`[[workload.role]]`."""

    name: str
    cpus: int
    title: str | None = None
    comm: str | None = None
    main: bool | None = None
    parent: str | None = None


class MemoryTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`memory = { size, move }`."""

    size: str | None = None
    move: Literal["launch", "migrate"] = "launch"


class WorkloadTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`[[workload]]`."""

    name: str
    match: MatchTable | None = None
    engine: str | None = None
    kind: Literal["llm", "vllm", "vector-index", "vision", "feeder", "agent", "custom"] | None = (
        None
    )
    cpus: int | None = None
    cpu_list: str | None = None
    sharing: Literal["exclusive", "shared"] = "exclusive"
    near: str | None = None
    unit: str | None = None
    smt: Literal["any", "whole-core", "one-per-core"] = "any"
    l3: Literal["any", "one"] = "any"
    memory: str | MemoryTable | None = None
    hugepages: dict[str, str] | None = None
    isolated: bool = False
    rollback: bool = False
    queues: str | None = None
    wake_latency_us: int | None = None
    role: list[RoleTable] = []


class UnitTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`[[unit]]`."""

    name: str
    kind: Literal["reasoning", "vision", "stream", "custom"] = "custom"
    near: str | None = None
    ring: str | None = None


class File(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A workload file."""

    workload: list[WorkloadTable] = []
    unit: list[UnitTable] = []


_ENUMS = {
    "kind": "one of: " + ", ".join(KINDS),
    "sharing": "exclusive or shared",
    "smt": "any, whole-core or one-per-core",
    "l3": "any or one",
    "move": "launch or migrate",
    "unit.kind": "reasoning, vision, stream or custom",
}
_WHOLE = {
    "workload": 'a table: [[workload]], with name = "...", cpus = N and a match or an engine',
    "unit": 'a table: [[unit]], with name = "..."',
    "role": 'a table: [[workload.role]], with name = "..." and cpus = N',
    "match": 'a table: match = { title = "..." }',
    "memory": '"64GiB", "migrate", or { size = "64GiB", move = "migrate" }',
    "hugepages": '{ "2MiB" = "4GiB" }: for each size of a page, how much of it',
}
_TYPES = {"int": "a whole number", "str": "a text in quotes", "bool": "true or false"}
_HEAD = re.compile(r"\s*\[\[\s*(workload(?:\s*\.\s*role)?|unit)\s*\]\]")

Place = tuple[str, int] | tuple[str, int, int] | None
"""("workload", 2), ("unit", 0), ("role", 2, 1): the second role of the third workload; None: the
file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    start: int
    end: int


class Lines:
    """Where tables and keys stand in a file's text."""

    def __init__(self, text: str, path: str) -> None:
        self._lines = text.splitlines()
        self._path = path
        self._spans: dict[Place, _Span] = {}
        heads: list[tuple[Place, int]] = []
        workloads = units = roles = 0
        for i, line in enumerate(self._lines):
            found = _HEAD.match(line)
            if found is None:
                continue
            what = re.sub(r"\s", "", found[1])
            if what == "workload":
                heads.append((("workload", workloads), i))
                workloads, roles = workloads + 1, 0
            elif what == "unit":
                heads.append((("unit", units), i))
                units += 1
            elif workloads:
                heads.append((("role", workloads - 1, roles), i))
                roles += 1
        for n, (place, start) in enumerate(heads):
            end = heads[n + 1][1] if n + 1 < len(heads) else len(self._lines)
            self._spans[place] = _Span(start=start, end=end)

    def line(self, place: Place, key: str | None = None) -> int:
        """Line (from 1) of a key of a table, else of the table, else of the file.

        `match.KEY` looks from where the match stands.
        """
        span = self._spans.get(place)
        if span is None and place is not None and place[0] == "role":
            span = self._spans.get(("workload", place[1]))
        start, end = (span.start, span.end) if span is not None else (0, len(self._lines))
        found = start + 1
        for part in key.split(".") if key else ():
            at = self._find(found - 1, end, part)
            if at is None:
                break
            found = at
        return found

    def _find(self, start: int, end: int, key: str) -> int | None:
        pattern = re.compile(rf"(?:^|[\s{{,.\"'\[]){re.escape(key)}[\"']?\s*[.=\]]")
        return next((i + 1 for i in range(start, end) if pattern.search(self._lines[i])), None)

    def fail(self, place: Place, key: str | None, message: str, remedy: str = SEE) -> NoReturn:
        """FILE:LINE: one sentence."""
        raise ConfigError(f"{self._path}:{self.line(place, key)}: {message}", remedy)

    def saw(
        self, place: Place, key: str, seen: object, expected: str, remedy: str = SEE
    ) -> NoReturn:
        """The sentence about a value that is not as expected."""
        shown = repr(seen)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        name = key.rpartition(".")[2]
        self.fail(place, key, f"{name}: saw {shown}, expected {expected}", remedy)

    def where(self, place: Place) -> str:
        """FILE:LINE of a table."""
        return f"{self._path}:{self.line(place)}"


def read_file(document: dict[str, object], lines: Lines) -> File:
    """The tables of a document. Raises ConfigError."""
    try:
        return msgspec.convert(document, File)
    except msgspec.ValidationError as error:
        _explain(error, document, lines)


def _explain(error: msgspec.ValidationError, document: dict[str, object], lines: Lines) -> NoReturn:
    text, _, told = str(error).partition(" - at `")
    keys: list[tuple[str, str]] = re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", told)
    steps = [name or number for name, number in keys]
    place, rest = _place(steps)
    label = ".".join(k for k in rest if k != "...")
    table = _table(place, rest)
    unknown = re.search(r"contains unknown field `(.*)`", text)
    if unknown:
        known = ", ".join(table.__struct_fields__)
        close = difflib.get_close_matches(unknown[1], table.__struct_fields__, 1)
        lines.fail(
            place,
            ".".join((*(k for k in rest if k != "..."), unknown[1])),
            f"unknown key {unknown[1]!r}, expected one of: {known}",
            f"did you mean {close[0]}?" if close else "correct the key or remove the line",
        )
    missing = re.search(r"missing required field `(\w+)`", text)
    if missing:
        what = {"workload": "a workload", "unit": "a unit", "role": "a role"}
        lines.fail(
            place,
            label or None,
            f"{what[place[0]] if place else 'a file'} without {missing[1]!r}",
            f"each is {_WHOLE[place[0]]}" if place else SEE,
        )
    key = label.rpartition(".")[2] or (place[0] if place else "")
    seen = _value(document, steps)
    lines.saw(place, label or key, seen, _expected(place, key, text))


def _place(steps: list[str]) -> tuple[Place, list[str]]:
    """The table that a msgspec path leads into, and the keys from there."""
    if len(steps) >= 2 and steps[0] in ("workload", "unit") and steps[1].isdecimal():
        index = int(steps[1])
        role = steps[0] == "workload" and steps[2:3] == ["role"] and len(steps) >= 4
        if role and steps[3].isdecimal():
            return ("role", index, int(steps[3])), steps[4:]
        return (steps[0], index), steps[2:]
    return None, steps


def _table(place: Place, rest: list[str]) -> type[msgspec.Struct]:
    if place is None:
        return File
    if place[0] == "workload" and rest[:1] == ["match"]:
        return MatchTable
    if place[0] == "workload" and rest[:1] == ["memory"]:
        return MemoryTable
    tables: dict[str, type[msgspec.Struct]] = {
        "workload": WorkloadTable,
        "unit": UnitTable,
        "role": RoleTable,
    }
    return tables[place[0]]


def _value(document: object, steps: list[str]) -> object:
    at = document
    for step in steps:
        if isinstance(at, dict) and step in at:
            at = at[step]
        elif isinstance(at, list) and step.isdecimal() and int(step) < len(at):
            at = at[int(step)]
        else:
            break
    return at


def _expected(place: Place, key: str, text: str) -> str:
    if place is not None and place[0] == "unit" and key == "kind":
        return _ENUMS["unit.kind"]
    if key in _ENUMS:
        return _ENUMS[key]
    if key in _WHOLE:
        return _WHOLE[key]
    wanted = re.search(r"[Ee]xpected `(\w+)", text)
    return _TYPES.get(wanted[1], wanted[1]) if wanted else f"another value ({text})"
