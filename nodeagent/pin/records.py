"""What stands in the undo journal: its records, a line each, and the entries they tell of.

A line is `CRC32 JSON`. One that fails its CRC is told: at the end of the file it is a write that
was cut, before which nothing had been changed; elsewhere it is damage, and the lines around it
stand.
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

ThreadMask = tuple[int, int, str]
"""(tid, start time in ticks, cpulist)."""


class _Id(msgspec.Struct):
    """What every record has, of whatever version."""

    id: int = 0


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", omit_defaults=True):
    """Tagged by `t`."""


class Header(_Record, frozen=True, kw_only=True, tag="journal"):
    """First line. Ids go on from `next_id`, also after compaction."""

    version: int = VERSION
    next_id: int = 1


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
_DECODER: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


@dataclass(slots=True)
class Entry:
    """An action that is not closed, put together from its records."""

    open: Open
    state: str = "open"
    former: dict[tuple[int, int], CpuSet] = field(default_factory=dict)
    """(tid, start time) -> mask before; the first one recorded stands."""
    kept: dict[tuple[int, int], CpuSet] = field(default_factory=dict)
    read_back: str = ""
    lines: list[bytes] = field(default_factory=list)

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

    entries: dict[int, Entry] = field(default_factory=dict)
    next_id: int = 1
    end: int = 0
    """Bytes that are good up to the last good line."""
    notes: list[str] = field(default_factory=list)
    foreign: bool = False
    """Lines of a newer version are there: they are kept, the file is not rewritten."""
    cut: bytes = b""


def line_of(record: Record) -> bytes:
    """`CRC32 JSON\\n`."""
    body = msgspec.json.encode(record)
    return b"%08x %s\n" % (zlib.crc32(body), body)


def load(data: bytes, name: str) -> Loaded:
    """The state that the lines tell. Never raises for what stands in them."""
    found = Loaded()
    # Allocated ahead and not yet written: zeros.
    text = data.rstrip(b"\0")
    offset = 0
    damaged: list[int] = []
    tail: list[int] = []
    for number, raw in enumerate(text.splitlines(keepends=True), 1):
        start, offset = offset, offset + len(raw)
        body = _body(raw)
        if body is None:
            tail.append(number)
            if not found.cut:
                found.cut = text[start:]
            continue
        damaged += tail
        tail.clear()
        found.cut = b""
        found.end = offset
        try:
            apply(found, _DECODER.decode(body), raw)
        except (msgspec.MsgspecError, ParseError, RecursionError):
            found.foreign = True
            # Its number is taken all the same.
            found.next_id = max(found.next_id, _id_of(body) + 1)
            found.notes.append(f"{name}:{number}: a record of another version is left as it is")
    if tail:
        found.notes.append(
            f"{name}:{tail[0]}: the last write was cut or damaged ({len(found.cut)} bytes); what "
            "stands before it is whole"
        )
    if damaged:
        found.notes.append(
            f"{name}:{', '.join(map(str, damaged[:8]))}: {len(damaged)} damaged lines are left "
            "out; what they recorded cannot be undone from here"
        )
    return found


def _id_of(body: bytes) -> int:
    try:
        return msgspec.json.decode(body, type=_Id).id
    except (msgspec.MsgspecError, RecursionError):
        return 0


def _body(raw: bytes) -> bytes | None:
    if len(raw) < 11 or raw[-1:] != b"\n" or raw[8:9] != b" ":
        return None
    try:
        crc = int(raw[:8], 16)
    except ValueError:
        return None
    body = raw[9:-1]
    return body if zlib.crc32(body) == crc else None


def apply(found: Loaded, record: Record, raw: bytes) -> None:
    if isinstance(record, Header):
        found.next_id = max(found.next_id, record.next_id)
        return
    found.next_id = max(found.next_id, record.id + 1)
    if isinstance(record, Open):
        CpuSet.parse(record.cpus)
        if record.act not in ACTS or (record.act == "set_value") != (record.knob in KNOBS):
            raise ParseError("an undo record", f"{record.act} {record.knob}", "an act known here")
        found.entries[record.id] = Entry(open=record, lines=[raw])
        return
    entry = found.entries.get(record.id)
    if entry is None:
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
    entry.lines.append(raw)
