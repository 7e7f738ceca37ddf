"""The guard: pins that somebody else changed are put right once, named, then only reported.

A change by a person (a process with a login session) is never corrected. Any other author's first
change of a process is corrected; the second is reported, and the process is `manual` until
`place apply`. Pure; time is an argument.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import ProcessState, ThreadState

ProcessKey = tuple[int, int]
"""(pid, start time): a reused pid is another process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Who changed a mask, as far as the kernel tells."""

    name: str
    """Command, with unit and pid where known."""
    person: bool = False
    """Has a login session (loginuid is set)."""
    key: str = ""
    """Who it is the next time too, under another pid: its unit, else command and user; empty: the
    name."""
    at_ns: int = 0
    """When it made the change, CLOCK_REALTIME; 0: not told."""

    @property
    def same(self) -> str:
        """What two changes of one author have in common."""
        return self.key or self.name


MAX_CORRECTED = 32
"""Authors who are corrected once for one process; of further ones the change is reported."""

UNKNOWN = Author(name="an unknown author")
"""No attachment on this kernel shows who changes an affinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One process that we pinned, and what happened to it since."""

    workload: str
    cpus: CpuSet
    before: CpuSet | None
    """Union of its threads' masks before our first change; None: found inside already."""
    at_ns: int
    """When it was known to hold; a reading older than this says nothing about it."""
    inside: Mapping[int, CpuSet]
    """Thread -> the set of its own (its role's, else `cpus`) inside which it was seen or read
    back."""
    adopted: bool = False
    """Taken over from the journal, which does not tell a thread's role."""
    suspect_ns: int = 0
    """When threads of our pin were first seen outside, until the journal has been asked whether a
    person undid it; 0: none are."""
    correcting: bool = False
    """A correction is owed and not yet done."""
    corrected: tuple[str, ...] = ()
    """Authors whose change was corrected once, as `Author.same`."""
    manual: str | None = None
    """Why the process is left alone until `place apply`."""
    manual_ns: int = 0
    """Since when; what a person applies later ends it."""
    manual_id: int | None = None
    """Newest number in the journal then, which no clock sets back: what is newer was applied
    later. None: not known, and the times decide."""

    def left_before(self, number: int, at_ns: int) -> bool:
        """Whether it is left alone since before an act of that number and time."""
        return self.manual is not None and later(number, at_ns, self.manual_id, self.manual_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What must survive a restart: else a new daemon would correct what this one had left alone."""

    pid: int
    start_time: int
    corrected: tuple[str, ...]
    manual: str | None
    manual_ns: int
    knob: str = ""
    """Of a value of the host: which one, and of what; then pid and start time are 0."""
    subject: str = ""
    manual_id: int | None = None


def later(number: int, at_ns: int, than: int | None, than_ns: int) -> bool:
    """Whether an act of the journal was made after a mark: by their numbers where both are known,
    for a clock may be set back."""
    return number > than if number and than is not None else at_ns > than_ns


def numbered(guard: Guard, newest: int | None) -> Guard:
    """What is left alone since this turn, with the newest number of the journal."""
    new = {
        key: replace(pin, manual_id=newest)
        for key, pin in guard.pins.items()
        if pin.manual is not None and pin.manual_id is None
    }
    return Guard(pins={**guard.pins, **new}) if new and newest is not None else guard


class Answer(enum.Enum):
    """What is done about a drift."""

    CORRECT = enum.auto()
    REPORT = enum.auto()
    PERSON = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Threads of one process that have left the mask we gave them."""

    process: ProcessKey
    pin: Pin
    threads: tuple[ThreadState, ...]
    author: Author
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Every process that is pinned, or that is left alone."""

    pins: Mapping[ProcessKey, Pin] = field(default_factory=dict)

    def with_pin(self, key: ProcessKey, pin: Pin) -> Guard:
        """The same with one pin changed."""
        return self if self.pins.get(key) == pin else Guard(pins={**self.pins, key: pin})


def pinned(
    guard: Guard,
    process: ProcessState,
    workload: str,
    cpus: CpuSet,
    before: CpuSet,
    now_ns: int,
    tids: tuple[int, ...] = (),
) -> Guard:
    """An action on the process was done and read back; `tids`: on these threads only."""
    key = process.pid, process.start_time
    old = guard.pins.get(key)
    put = dict.fromkeys(tids or [t.tid for t in process.threads], cpus)
    if old is None:
        pin = Pin(workload=workload, cpus=cpus, before=before, at_ns=now_ns, inside=put)
    else:
        pin = replace(
            old,
            workload=workload,
            cpus=cpus | old.cpus if tids else cpus,
            before=before if old.before is None else old.before,
            at_ns=now_ns,
            inside={**old.inside, **put} if tids else put,
            adopted=old.adopted and bool(tids),
            suspect_ns=0,
            correcting=False,
        )
    return guard.with_pin(key, pin)


def left_alone(guard: Guard, key: ProcessKey, why: str, now_ns: int) -> Guard:
    """The process is left alone from now on."""
    pin = guard.pins.get(key)
    if pin is None:
        return guard
    return guard.with_pin(key, replace(pin, manual=why, manual_ns=now_ns, correcting=False))


def memory(guard: Guard) -> tuple[Memory, ...]:
    """What to write down."""
    return tuple(
        Memory(
            pid=key[0],
            start_time=key[1],
            corrected=pin.corrected,
            manual=pin.manual,
            manual_ns=pin.manual_ns,
            manual_id=pin.manual_id,
        )
        for key, pin in sorted(guard.pins.items())
        if pin.corrected or pin.manual is not None
    )


def ended(guard: Guard, alive: Set[ProcessKey]) -> Guard:
    """Forgets what ended, so that the memory is bounded by what runs."""
    if guard.pins.keys() <= alive:
        return guard
    return Guard(pins={k: p for k, p in guard.pins.items() if k in alive})


def observe(
    guard: Guard,
    workload: str,
    planned: CpuSet,
    process: ProcessState,
    read_ns: int,
    authors: Mapping[int, Author],
    journal_ns: int,
    seats: Mapping[int, CpuSet] | None = None,
    acting: bool = False,
) -> tuple[Guard, Drift | None]:
    """Compares one process with its pin. `authors` maps tid to who changed its mask; `journal_ns`
    is when the journal that the guard has adopted was read; `seats` maps tid to the set of its own
    (None: `planned` for each); `acting`: an act on it is under way, whose effect may be read before
    its result.

    A pin of ours that is left is a drift only when a later journal still has it: a person who
    undoes it moves the threads too.
    Threads born outside their set are no drift: nobody moved them, they are pinned as they come.
    Neither are those whose set the plan has changed since.
    A process found inside its plan without our doing is guarded from then on.
    """
    key = process.pid, process.start_time
    own = {t.tid: planned if seats is None else seats[t.tid] for t in process.threads}
    outside = tuple(t for t in process.threads if not t.cpus <= own[t.tid])
    inside = {t.tid: own[t.tid] for t in process.threads if t.cpus <= own[t.tid]}
    pin = guard.pins.get(key)
    if pin is None:
        if outside or not process.threads:
            return guard, None
        found = Pin(workload=workload, cpus=planned, before=None, at_ns=read_ns, inside=inside)
        return guard.with_pin(key, found), None
    if read_ns <= pin.at_ns:
        # The reading is older than the last action: nothing to say yet.
        return guard, None
    known = pin.inside
    if pin.adopted and seats is not None and pin.cpus <= planned:
        known = {tid: own[tid] for tid in known if tid in own}
    elif pin.cpus != planned and seats is None:
        # The plan moved on.
        return guard, None
    known = {tid: cpus for tid, cpus in known.items() if tid in own}
    moved = tuple(t for t in outside if known.get(t.tid) == own[t.tid])
    if not moved or pin.correcting or pin.manual is not None:
        settled = replace(
            pin,
            cpus=planned,
            inside=known if pin.correcting else {**known, **inside},
            adopted=False,
            correcting=pin.correcting and (bool(outside) or acting),
            suspect_ns=0,
        )
        return guard.with_pin(key, settled), None
    if pin.before is not None and journal_ns <= (pin.suspect_ns or read_ns):
        return guard.with_pin(key, replace(pin, suspect_ns=pin.suspect_ns or read_ns)), None
    author = next((authors[t.tid] for t in moved if t.tid in authors), UNKNOWN)
    if author.person:
        answer, why = Answer.PERSON, f"changed by a person ({author.name})"
    elif author.same in pin.corrected:
        answer, why = Answer.REPORT, f"changed a second time by {author.name}"
    elif len(pin.corrected) >= MAX_CORRECTED:
        answer, why = Answer.REPORT, f"changed by more than {MAX_CORRECTED} authors"
    else:
        answer, why = Answer.CORRECT, None
    after = replace(
        pin,
        cpus=planned,
        corrected=pin.corrected if why else (*pin.corrected, author.same),
        suspect_ns=0,
        correcting=why is None,
        manual=why,
        manual_ns=read_ns if why else 0,
        inside=known,
        adopted=False,
    )
    return guard.with_pin(key, after), Drift(
        process=key, pin=pin, threads=moved, author=author, answer=answer
    )
