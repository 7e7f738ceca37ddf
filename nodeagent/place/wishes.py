"""What one [[workload]] wishes for: each key's text becomes a value, or one sentence. Pure."""

from __future__ import annotations

import difflib
import re

from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.pci import parse_bdf
from nodeagent.model.placement import Sharing, Unit, Workload
from nodeagent.place.criteria import MAX_CPUS, match_of, name_of, roles_of
from nodeagent.place.engines import WORKLOAD_ENGINES, Engine, engine_named
from nodeagent.place.tables import (
    Lines,
    MemoryTable,
    Place,
    UnitTable,
    WorkloadTable,
)

MAX_BYTES = 1 << 50
"""1 PiB: no machine has so much."""
MAX_QUEUES = 4096
MAX_WAKE_US = 1_000_000
"""A second: no idle state takes so long."""
PAGES = frozenset(n << 20 for n in (1, 2, 16, 32, 512, 1024, 16384)) | {64 << 10}
"""Sizes of huge pages that some Linux has: 64 KiB to 16 GiB. Source:
Documentation/admin-guide/mm/hugetlbpage.rst; hugetlbpage.c of arm64, powerpc and s390."""

_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*(B|KiB|MiB|GiB|TiB)?")
_UNIT = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZES = "units: B, KiB, MiB, GiB, TiB"


def workload_of(index: int, table: WorkloadTable, units: dict[str, Unit], lines: Lines) -> Workload:
    """One workload. Raises ConfigError."""
    at: Place = ("workload", index)
    name_of(at, "name", table.name, lines)
    engine = _engine(at, table, lines)
    cpu_list = _cpu_list(at, table, lines)
    cpus = _cpus(at, table, cpu_list, lines)
    if table.sharing == "shared":
        _pool_has_none(at, table, lines)
    if table.unit is not None:
        name_of(at, "unit", table.unit, lines)
    near = near_of(at, table.near, lines)
    if near is None and table.unit in units:
        near = units[table.unit].near
    memory, move = _memory(at, table, lines)
    return Workload(
        name=table.name,
        kind=table.kind or (engine.kind if engine is not None else None) or "custom",
        match=match_of(at, table, engine, lines),
        cpus=cpus,
        sharing=Sharing(table.sharing),
        near=near,
        unit=table.unit,
        smt=table.smt,
        l3=table.l3,
        memory_bytes=memory,
        memory_move=move,
        hugepages=_hugepages(at, table.hugepages, lines),
        isolated=table.isolated,
        cpu_list=cpu_list,
        roles=roles_of(index, table, engine, cpus, lines),
        engine=table.engine,
        rollback=table.rollback,
        source=lines.where(at),
        queues=_queues(at, table, near, lines),
        wake_latency_us=_wake_latency(at, table, lines),
    )


def unit_of(index: int, table: UnitTable, lines: Lines) -> Unit:
    """One unit. Raises ConfigError."""
    at: Place = ("unit", index)
    name_of(at, "name", table.name, lines)
    if table.ring is not None and not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,31}", table.ring):
        lines.saw(at, "ring", table.ring, "the name of a [[feed]] of nodeagent.toml")
    return Unit(
        name=table.name,
        kind=table.kind,
        near=near_of(at, table.near, lines),
        ring=table.ring,
        source=lines.where(at),
    )


def _engine(at: Place, table: WorkloadTable, lines: Lines) -> Engine | None:
    if table.engine is None:
        return None
    engine = engine_named(table.engine)
    if engine is None:
        close = difflib.get_close_matches(table.engine, WORKLOAD_ENGINES, 1)
        lines.saw(
            at,
            "engine",
            table.engine,
            "one of: " + ", ".join(WORKLOAD_ENGINES),
            f'write engine = "{close[0]}"' if close else "take engine out, and give match and kind",
        )
    return engine


def _cpu_list(at: Place, table: WorkloadTable, lines: Lines) -> CpuSet | None:
    if table.cpu_list is None:
        return None
    try:
        cpu_list = CpuSet.parse(table.cpu_list, last=MAX_CPUS - 1)
    except ParseError as error:
        lines.saw(at, "cpu_list", table.cpu_list, error.expected)
    if not cpu_list:
        lines.saw(at, "cpu_list", table.cpu_list, "at least one CPU")
    if table.cpus is not None and table.cpus != len(cpu_list):
        lines.fail(
            at,
            "cpus",
            f"cpus is {table.cpus}, but cpu_list {cpu_list} has {len(cpu_list)} CPUs",
            "give one of the two",
        )
    return cpu_list


def _cpus(at: Place, table: WorkloadTable, cpu_list: CpuSet | None, lines: Lines) -> int:
    cpus = len(cpu_list) if cpu_list is not None else table.cpus
    if cpus is None:
        lines.fail(at, None, f"workload {table.name} says no number of CPUs", "add cpus = N")
    if not 1 <= cpus <= MAX_CPUS:
        lines.saw(at, "cpus", cpus, f"a number of CPUs from 1 to {MAX_CPUS}")
    return cpus


def _pool_has_none(at: Place, table: WorkloadTable, lines: Lines) -> None:
    """A shared workload's CPUs are its pool's, so it cannot say which or how."""
    wishes = {
        "cpu_list": (table.cpu_list is not None, "whose CPUs are its pool's"),
        "isolated": (table.isolated, "whose pool is neither isolated nor by cores"),
        "smt": (table.smt != "any", "whose pool is neither isolated nor by cores"),
        "l3": (table.l3 != "any", "whose pool may lie on several L3 groups"),
        "role": (bool(table.role), "whose threads share one pool"),
        "queues": (table.queues is not None, "which has no CPU of its own"),
        "wake_latency_us": (table.wake_latency_us is not None, "whose CPUs are others' too"),
    }
    for key, (given, why) in wishes.items():
        if given:
            lines.fail(
                at,
                key if key != "role" else None,
                f"{key} on a shared workload, {why}",
                f'remove {key}, or say sharing = "exclusive"',
            )


def _queues(at: Place, table: WorkloadTable, near: str | None, lines: Lines) -> CpuSet | None:
    if table.queues is None:
        return None
    if near is None or near.startswith(("gpu:", "nvme:", "node:")):
        lines.fail(
            at,
            "queues",
            f"queues of workload {table.name} are of no NIC",
            'say whose: near = "nic:NAME"',
        )
    try:
        queues = CpuSet.parse(table.queues)
    except ParseError:
        queues = CpuSet()
    if not queues or max(queues) >= MAX_QUEUES:
        lines.saw(at, "queues", table.queues, f'queue numbers below {MAX_QUEUES} such as "0-3"')
    return queues


def _wake_latency(at: Place, table: WorkloadTable, lines: Lines) -> int | None:
    us = table.wake_latency_us
    if us is not None and not 0 <= us <= MAX_WAKE_US:
        lines.saw(at, "wake_latency_us", us, f"microseconds from 0 to {MAX_WAKE_US}")
    return us


# ---- devices and memory -------------------------------------------------------------------------


def near_of(at: Place, near: str | None, lines: Lines) -> str | None:
    """The device or node in its one form. Raises ConfigError."""
    if near is None:
        return None
    kind, _, rest = near.partition(":")
    if kind == "node" and rest.isdecimal() and len(rest) <= 6:
        return f"node:{int(rest)}"
    address = rest if kind in ("gpu", "nic", "nvme") and rest.count(":") else near
    try:
        return parse_bdf(address)
    except ParseError:
        if kind in ("gpu", "nic", "nvme") and re.fullmatch(r"[\w.:/-]{1,64}", rest):
            return f"{kind}:{int(rest)}" if rest.isdecimal() and len(rest) <= 6 else near
    return lines.saw(
        at,
        "near",
        near,
        "gpu:INDEX, gpu:UUID (a GPU's or a MIG device's), nic:NAME, nvme:INDEX, nvme:NAME, node:N "
        "or a PCI address",
        "nodeagentctl topology show lists the devices",
    )


def _size(at: Place, key: str, text: str, expected: str, lines: Lines) -> int:
    found = _SIZE.fullmatch(text.strip())
    size = int(float(found[1]) * _UNIT[found[2] or "B"]) if found is not None else -1
    if not 0 <= size <= MAX_BYTES:
        lines.saw(at, key, text, expected, _SIZES)
    return size


def _memory(at: Place, table: WorkloadTable, lines: Lines) -> tuple[int, str]:
    """(bytes, launch or migrate)."""
    told = table.memory
    if told is None:
        return 0, "launch"
    if told == "migrate":
        return 0, "migrate"
    if isinstance(told, MemoryTable):
        size = 0
        if told.size is not None:
            size = _size(at, "memory.size", told.size, "a size such as 64GiB", lines)
        return size, told.move
    return _size(at, "memory", told, 'a size such as 64GiB, or "migrate"', lines), "launch"


def _hugepages(at: Place, told: dict[str, str] | None, lines: Lines) -> tuple[tuple[int, int], ...]:
    found: dict[int, int] = {}
    for page, much in (told or {}).items():
        size = _size(at, "hugepages", page, "the size of a huge page, such as 2MiB or 1GiB", lines)
        if size not in PAGES:
            lines.saw(at, "hugepages", page, "the size of a huge page, such as 2MiB or 1GiB")
        if size in found:
            lines.fail(at, "hugepages", f"pages of {page} are told twice", "give each size once")
        wanted = _size(at, "hugepages", much, "how much of it, such as 4GiB", lines)
        if wanted == 0 or wanted % size:
            lines.saw(
                at,
                "hugepages",
                much,
                f"a multiple of {page}",
                f'"{page}" = "{max(1, -(-wanted // size)) * size >> 20}MiB"'
                if size >= 1 << 20
                else _SIZES,
            )
        found[size] = wanted
    return tuple(sorted(found.items()))
