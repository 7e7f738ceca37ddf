"""What stands in the undo journal: its records, a line each, and the entries they tell of.

A line is `CRC32 JSON`. The first one has the seal: how far the file was written, and the CRC of all
that stands between. load.py reads them.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import msgspec

from nodeagent.errors import ParseError
from nodeagent.model.actions import JournalEntry
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Knob

VERSION = 1
ACTS = frozenset({"set_affinity", "move_to_cpuset", "migrate_memory", "set_value"})
KNOBS = frozenset(map(str, Knob))

Line = tuple[int, bytes]
"""A line with its place among all: compaction keeps their order."""
ThreadMask = tuple[int, int, str]
"""(tid, start time in ticks, cpulist)."""


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", omit_defaults=True):
    """Tagged by `t`."""


class Header(_Record, frozen=True, kw_only=True, tag="journal"):
    """First line. Ids go on from `next_id`, also after compaction."""

    version: int = VERSION
    next_id: int = 1
    boot: str = ""
    """Boot in which it was last written; "" before there was a seal."""
    seal: str = ""
    """`END CRC` in hexadecimal, always as long: bytes of the file that were written, and the CRC32
    of those behind this line. Rewritten in place, after the lines that it counts."""


class Open(_Record, frozen=True, kw_only=True, tag="open"):
    """An action begins. What it is about, and everything its undo needs but the threads' masks."""

    id: int
    act: str
    boot: str
    at_ns: int
    ticks: int
    """CLOCK_BOOTTIME in clock ticks: what started later was born under the pin."""
    by: str
    why: str
    workload: str
    pid: int = 0
    tid: int = 0
    tids: list[int] = []
    """The threads of one role that were meant; empty: as `tid` says."""
    start_time: int = 0
    comm: str = ""
    cpus: str = ""
    mems: str = ""
    cpuset: str = ""
    cgroup_before: str = ""
    cpuset_before: tuple[str, str] | None = None
    """(cpus, mems) of the cpuset when it was there already."""
    knob: str = ""
    """Of a SetValue, with what it is about, what is written and the very text before. Of a
    migrate_memory, without a knob: `value` is the node it goes to, `value_before` NODE:BYTES."""
    subject: str = ""
    value: str = ""
    value_before: str = ""
    exclusive: bool = False
    """Whether the CPUs were to be nobody else's; records of before it was kept do not say."""
    masks: int = 0
    """Threads in the `former` record that was written with it; 0 in records of before it was
    kept."""


class Former(_Record, frozen=True, kw_only=True, tag="former"):
    """Masks of threads about to be changed, and of those that were inside and are left alone."""

    id: int
    threads: list[ThreadMask]
    kept: list[ThreadMask] = []


class Done(_Record, frozen=True, kw_only=True, tag="done"):
    """The action is complete and was read back."""

    id: int
    read_back: str


class Resumed(_Record, frozen=True, kw_only=True, tag="resumed"):
    """An action that had stopped half-way goes on: it is open again."""

    id: int


class Undoing(_Record, frozen=True, kw_only=True, tag="undoing"):
    """Its undo begins."""

    id: int


class Closed(_Record, frozen=True, kw_only=True, tag="closed"):
    """Nothing is left to undo. `how`: undone, reverted, gone, other-boot, reused, or kept (memory,
    which stays where it was moved to)."""

    id: int
    how: str
    message: str = ""


Record = Header | Open | Former | Done | Resumed | Undoing | Closed
DECODER: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


@dataclass(slots=True)
class Entry:
    """An action that is not closed, put together from its records."""

    open: Open
    state: str = "open"
    former: dict[tuple[int, int], CpuSet] = field(default_factory=dict)
    """(tid, start time) -> mask before; the first one recorded stands."""
    kept: dict[tuple[int, int], CpuSet] = field(default_factory=dict)
    read_back: str = ""
    lines: list[Line] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """Threads whose former masks were recorded and are not there any more."""
        return max(0, self.open.masks - len(self.former) - len(self.kept))

    @property
    def id(self) -> int:
        """Number in the journal."""
        return self.open.id

    @property
    def cpus(self) -> CpuSet:
        """What was written."""
        return CpuSet.parse(self.open.cpus)

    def public(self) -> JournalEntry:
        """For people and for the daemon."""
        before = CpuSet()
        for mask in self.former.values():
            before |= mask
        o = self.open
        return JournalEntry(
            id=o.id,
            act=o.act,
            state=self.state,
            workload=o.workload,
            pid=o.pid,
            start_time=o.start_time,
            before=before,
            cpus=self.cpus,
            cpuset=o.cpuset,
            at_ns=o.at_ns,
            by=o.by,
            why=o.why,
            knob=o.knob,
            subject=o.subject,
            value=o.value,
            value_before=o.value_before,
            exclusive=o.exclusive,
        )


@dataclass(slots=True)
class Loaded:
    """A journal file's content. `notes`: what was damaged, in sentences."""

    header: Header | None = None
    header_bytes: int = 0
    entries: dict[int, Entry] = field(default_factory=dict)
    foreign: dict[int, list[Line]] = field(default_factory=dict)
    """Lines of a newer version by the entry they belong to (0: to none): kept as they are."""
    next_id: int = 1
    end: int = 0
    """Bytes that are good up to the last good line."""
    crc: int = 0
    """Of the bytes between the first line and `end`."""
    lines: int = 0
    notes: list[str] = field(default_factory=list)
    damaged: bool = False
    """Lines before `end` are damaged, or are not those that were written."""
    cut: bytes = b""

    @property
    def sealed(self) -> bool:
        """Whether the first line counts what follows, in the way known here."""
        return sealed_to(self.header) is not None

    def live(self) -> list[bytes]:
        """Lines that are still needed, in their order."""
        kept = [line for e in self.entries.values() for line in e.lines]
        kept += [line for lines in self.foreign.values() for line in lines]
        return [raw for _, raw in sorted(kept)]

    def live_bytes(self) -> int:
        """Their length."""
        kept = sum(len(raw) for e in self.entries.values() for _, raw in e.lines)
        return kept + self.foreign_bytes()

    def foreign_bytes(self) -> int:
        """Length of the lines of a newer version."""
        return sum(len(raw) for lines in self.foreign.values() for _, raw in lines)


def line_of(record: Record) -> bytes:
    """`CRC32 JSON\n`."""
    body = msgspec.json.encode(record)
    return b"%08x %s\n" % (zlib.crc32(body), body)


def sealed(header: Header, boot: str, end: int, crc: int) -> Header:
    """With the seal, as long for every `end` and `crc`; one of a newer version as it is."""
    if header.version > VERSION:
        return header
    seal = f"{end:016x} {crc:08x}"
    return msgspec.structs.replace(header, boot=f"{boot:36.36}", seal=seal)


def sealed_to(header: Header | None) -> tuple[int, int] | None:
    """(end, CRC) of the seal; None: there is none that can be read."""
    if header is None or header.version > VERSION:
        return None
    end, _, crc = header.seal.partition(" ")
    try:
        return int(end, 16), int(crc, 16)
    except ValueError:
        return None


def keep(found: Loaded, number: int, raw: bytes) -> None:
    """A line that is not known here, with what it belongs to. Its number is taken all the same."""
    found.next_id = max(found.next_id, number + 1)
    found.lines += 1
    entry = found.entries.get(number)
    kept = found.foreign.setdefault(number, []) if entry is None else entry.lines
    kept.append((found.lines, raw))


def apply(found: Loaded, record: Record, raw: bytes) -> None:
    """Goes on from `found` by one record. Raises ParseError for one of another version."""
    if isinstance(record, Header):
        found.next_id = max(found.next_id, record.next_id)
        if found.header is None and not found.lines:
            found.header = record
        return
    found.next_id = max(found.next_id, record.id + 1)
    if isinstance(record, Open):
        CpuSet.parse(record.cpus)
        if record.act not in ACTS or (record.act == "set_value") != (record.knob in KNOBS):
            raise ParseError("an undo record", f"{record.act} {record.knob}", "an act known here")
        found.lines += 1
        found.entries[record.id] = Entry(open=record, lines=[(found.lines, raw)])
        return
    entry = found.entries.get(record.id)
    if entry is None:
        if record.id in found.foreign:
            if isinstance(record, Closed):
                del found.foreign[record.id]
            else:
                keep(found, record.id, raw)
        return
    match record:
        case Former():
            former = [((tid, start), CpuSet.parse(mask)) for tid, start, mask in record.threads]
            kept = [((tid, start), CpuSet.parse(mask)) for tid, start, mask in record.kept]
            for key, cpus in former:
                entry.former.setdefault(key, cpus)
            for key, cpus in kept:
                entry.kept.setdefault(key, cpus)
        case Done():
            if not entry.open.value:
                CpuSet.parse(record.read_back)
            entry.state, entry.read_back = "done", record.read_back
        case Resumed():
            entry.state, entry.read_back = "open", ""
        case Undoing():
            entry.state = "undoing"
        case Closed():
            del found.entries[record.id]
            return
    found.lines += 1
    entry.lines.append((found.lines, raw))
