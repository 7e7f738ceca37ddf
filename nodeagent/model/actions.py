"""What the daemon and the actor say to one another: one JSON object a datagram.

A closed list: the actor performs these requests and nothing else. Sets of CPUs travel as cpulists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.memory import MAX_STALL_MS, STALL_MS
from nodeagent.model.placement import (
    Action,
    ActionResult,
    Knob,
    MigrateMemory,
    MoveToCpuset,
    Outcome,
    SetAffinity,
    SetValue,
    Target,
)

MAX_DATAGRAM = 128 << 10
"""Bytes; below the kernel's default socket buffer (net.core.wmem_default, 208 KiB)."""
MAX_ENTRIES = 100
"""Journal entries (or results) in one answer; `more` says that others follow."""
MAX_MESSAGE = 800
"""Characters of one result's message."""
MAX_REASON = 400
"""Characters of `why` and of `override_freeze`: both are kept in the journal, for each entry."""
MAX_VALUE = 16 << 10
"""Characters of a value: a cpulist of 2,048 CPUs, every other one, takes 10 KiB."""
MAX_ANSWER = MAX_DATAGRAM - (8 << 10)
"""Bytes that results or entries of one answer take; the rest of its frame needs far less."""

MAX_CONTAINERS = 16
"""Containers that one request asks about."""

_Id = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
"""A process or thread number: what the kernel's pid_t holds."""
_Tids = Annotated[tuple[_Id, ...], msgspec.Meta(max_length=4096)]
"""Threads of one role; place/diff.py names no more in one action."""
_Ticks = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Name = Annotated[str, msgspec.Meta(max_length=64)]
"""A workload's; place/workloads.py takes no longer ones."""
_List = Annotated[str, msgspec.Meta(max_length=16 << 10)]
"""A cpulist: 2,048 CPUs, every other one, take 10 KiB."""
_Path = Annotated[str, msgspec.Meta(max_length=4096)]
"""PATH_MAX."""
_Value = Annotated[str, msgspec.Meta(max_length=MAX_VALUE)]
_Subject = Annotated[str, msgspec.Meta(max_length=4096)]
_Reason = Annotated[str, msgspec.Meta(max_length=MAX_REASON)]


class _Request(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="do", forbid_unknown_fields=True
):
    """Tagged by `do`."""


class SetAffinityRequest(_Request, frozen=True, kw_only=True, tag="set_affinity"):
    """See model.placement.SetAffinity."""

    workload: _Name
    pid: _Id
    tid: _Id
    start_time: _Ticks
    cpus: _List
    before: _List
    tids: _Tids = ()
    exclusive: bool = False


class MoveToCpusetRequest(_Request, frozen=True, kw_only=True, tag="move_to_cpuset"):
    """See model.placement.MoveToCpuset."""

    workload: _Name
    pid: _Id
    start_time: _Ticks
    cpuset: _Path
    cpus: _List
    mems: _List
    before: _Path
    exclusive: bool = False


class SetValueRequest(_Request, frozen=True, kw_only=True, tag="set_value"):
    """See model.placement.SetValue. An unknown knob is refused as not understood."""

    workload: Annotated[str, msgspec.Meta(max_length=64)]
    knob: Knob
    subject: _Subject
    value: _Value
    before: _Value
    exclusive: bool = False


class MigrateMemoryRequest(_Request, frozen=True, kw_only=True, tag="migrate_memory"):
    """See model.placement.MigrateMemory. One step: the answer's `more` asks for the next one, with
    `go_on`, which is refused when that moving was ended meanwhile."""

    workload: _Name
    pid: _Id
    start_time: _Ticks
    nodes: _List
    to: Annotated[int, msgspec.Meta(ge=0, le=1023)]
    before: _List
    stall_ms: Annotated[int, msgspec.Meta(ge=1, le=MAX_STALL_MS)] = STALL_MS
    go_on: bool = False


class UndoRequest(_Request, frozen=True, kw_only=True, tag="undo"):
    """Undo what the journal holds, newest first. `workload` None: of all. `below`: only entries
    with a smaller id, to go on where an answer with `more` ended; 0: from the newest. `entry`:
    that one only; 0: whichever."""

    workload: str | None = None
    below: _Ticks = 0
    entry: _Ticks = 0


class JournalRequest(_Request, frozen=True, kw_only=True, tag="journal"):
    """The open entries with an id above `after`, ascending."""

    after: int = 0


class StatusRequest(_Request, frozen=True, kw_only=True, tag="status"):
    """Who the actor is and what it may do."""


class ContainersRequest(_Request, frozen=True, kw_only=True, tag="containers"):
    """Name, image and labels of the containers of these cgroups: the runtimes' files are root's.
    Answered in `facts`, as `containers`: one ContainerLine each, as far as there is room."""

    cgroups: Annotated[tuple[_Path, ...], msgspec.Meta(max_length=MAX_CONTAINERS)]


class ContainerLine(msgspec.Struct, frozen=True, kw_only=True):
    """model.cgroup.Container on the wire, for the cgroup that was asked about."""

    cgroup: str
    runtime: str
    name: str | None = None
    image: str | None = None
    labels: dict[str, str] = {}


class LoadProbeRequest(_Request, frozen=True, kw_only=True, tag="load_probe"):
    """Load a BPF object of ours and hand its map descriptors over; the actor keeps the links."""

    program: str
    options: dict[str, str | int | bool] = {}


Request = (
    SetAffinityRequest
    | MoveToCpusetRequest
    | MigrateMemoryRequest
    | SetValueRequest
    | UndoRequest
    | JournalRequest
    | StatusRequest
    | LoadProbeRequest
    | ContainersRequest
)


class Call(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request. `why` and `override_freeze` (a reason; empty: none) go into the audit record.
    `begin_by_ns`: when an act is not begun any more, for nobody would wait for its end; on
    CLOCK_MONOTONIC, 0: at any time."""

    seq: int
    request: Request
    why: _Reason = ""
    override_freeze: _Reason = ""
    begin_by_ns: int = 0


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """ActionResult on the wire, with what it was about."""

    outcome: str
    message: str
    read_back: str | None = None
    journal_id: int | None = None
    workload: str = ""
    pid: int = 0
    contested: bool = False

    def result(self) -> ActionResult:
        """As the model has it."""
        return ActionResult(
            outcome=Outcome(self.outcome),
            message=self.message,
            read_back=self.read_back,
            journal_id=self.journal_id,
            contested=self.contested,
        )


class EntryLine(msgspec.Struct, frozen=True, kw_only=True):
    """JournalEntry on the wire."""

    id: int
    act: str
    state: str
    workload: str
    pid: int
    start_time: int
    before: str
    cpus: str
    cpuset: str
    at_ns: int
    by: str
    why: str
    knob: str = ""
    subject: str = ""
    value: str = ""
    value_before: str = ""
    exclusive: bool = False


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to one call, of the same `seq`.

    `error` (with `remedy`): the call was not understood or not allowed, and nothing was tried.
    `fds` names the descriptors that come along (SCM_RIGHTS), in their order. `facts`: what a
    handler has to say beyond that.
    """

    seq: int
    results: list[Result] = []
    entries: list[EntryLine] = []
    more: bool = False
    error: str = ""
    remedy: str = ""
    fds: list[str] = []
    facts: dict[str, object] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One action that can be undone. `state`: open (in flight), done or undoing.

    `before` is the union of the threads' masks before, `cpus` what was written; `at_ns`
    CLOCK_REALTIME; `by` the peer that asked, as the kernel named it.
    """

    id: int
    act: str
    state: str
    workload: str
    pid: int
    start_time: int
    before: CpuSet
    cpus: CpuSet
    cpuset: str
    at_ns: int
    by: str
    why: str
    knob: str = ""
    """Of a SetValue: which one; empty: the entry is about a process."""
    subject: str = ""
    value: str = ""
    value_before: str = ""
    exclusive: bool = False
    """Whether the CPUs were to be nobody else's."""


ActionRequest = SetAffinityRequest | MoveToCpusetRequest | MigrateMemoryRequest | SetValueRequest
CHANGING = (
    SetAffinityRequest, MoveToCpusetRequest, MigrateMemoryRequest, SetValueRequest, UndoRequest,
)  # fmt: skip
"""Requests that change the host."""


def to_request(action: Action) -> ActionRequest:
    """An action as it travels."""
    match action:
        case SetAffinity():
            return SetAffinityRequest(
                workload=action.workload,
                pid=action.target.pid,
                tid=action.target.tid,
                start_time=action.target.start_time,
                cpus=str(action.cpus),
                before=str(action.before),
                tids=action.tids,
                exclusive=action.exclusive,
            )
        case MoveToCpuset():
            return MoveToCpusetRequest(
                workload=action.workload,
                pid=action.target.pid,
                start_time=action.target.start_time,
                cpuset=action.cpuset,
                cpus=str(action.cpus),
                mems=str(action.mems),
                before=action.before,
                exclusive=action.exclusive,
            )
        case MigrateMemory():
            return MigrateMemoryRequest(
                workload=action.workload,
                pid=action.target.pid,
                start_time=action.target.start_time,
                nodes=str(action.nodes),
                to=action.to,
                before=action.before,
                stall_ms=action.stall_ms,
            )
        case SetValue():
            return SetValueRequest(
                workload=action.workload,
                knob=action.knob,
                subject=action.subject,
                value=action.value,
                before=action.before,
                exclusive=action.exclusive,
            )


def to_action(request: ActionRequest) -> Action:
    """The action that travelled. Raises ParseError for a list that is none."""
    match request:
        case SetAffinityRequest():
            return SetAffinity(
                workload=request.workload,
                target=Target(pid=request.pid, tid=request.tid, start_time=request.start_time),
                cpus=CpuSet.parse(request.cpus),
                before=CpuSet.parse(request.before),
                tids=request.tids,
                exclusive=request.exclusive,
            )
        case MoveToCpusetRequest():
            return MoveToCpuset(
                workload=request.workload,
                target=Target(pid=request.pid, tid=0, start_time=request.start_time),
                cpuset=request.cpuset,
                cpus=CpuSet.parse(request.cpus),
                mems=CpuSet.parse(request.mems),
                before=request.before,
                exclusive=request.exclusive,
            )
        case MigrateMemoryRequest():
            return MigrateMemory(
                workload=request.workload,
                target=Target(pid=request.pid, tid=0, start_time=request.start_time),
                nodes=CpuSet.parse(request.nodes),
                to=request.to,
                before=request.before,
                stall_ms=request.stall_ms,
            )
        case SetValueRequest():
            return SetValue(
                workload=request.workload,
                knob=request.knob,
                subject=request.subject,
                value=request.value,
                before=request.before,
                exclusive=request.exclusive,
            )


def to_line(entry: JournalEntry) -> EntryLine:
    """A journal entry as it travels."""
    return EntryLine(
        id=entry.id,
        act=entry.act,
        state=entry.state,
        workload=entry.workload,
        pid=entry.pid,
        start_time=entry.start_time,
        before=str(entry.before),
        cpus=str(entry.cpus),
        cpuset=entry.cpuset,
        at_ns=entry.at_ns,
        by=entry.by,
        why=entry.why,
        knob=entry.knob,
        subject=entry.subject,
        value=entry.value,
        value_before=entry.value_before,
        exclusive=entry.exclusive,
    )


def to_entry(line: EntryLine) -> JournalEntry:
    """The journal entry that travelled."""
    return JournalEntry(
        id=line.id,
        act=line.act,
        state=line.state,
        workload=line.workload,
        pid=line.pid,
        start_time=line.start_time,
        before=CpuSet.parse(line.before),
        cpus=CpuSet.parse(line.cpus),
        cpuset=line.cpuset,
        at_ns=line.at_ns,
        by=line.by,
        why=line.why,
        knob=line.knob,
        subject=line.subject,
        value=line.value,
        value_before=line.value_before,
        exclusive=line.exclusive,
    )
