"""An incident of a log: its root, the lines that belong to it, and what it means."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from nodeagent.check.meaning import (
    AROUND,
    KINDS,
    LAST_XID,
    OTHER_XID,
    UNCORRECTED,
    UNKNOWN_XID,
    XIDS,
    Meaning,
)
from nodeagent.model.finding import Verdict
from nodeagent.model.kernel_event import KernelEvent

APPS = 3
"""Different processes with the same application Xid on one GPU: then it may be the GPU."""
_KILLED = re.compile(r"[Kk]ill(?:ed)? process \d")


@dataclass(slots=True)
class Incident:
    """Lines that belong together; `root` tells what happened."""

    root: KernelEvent
    meaning: Meaning
    lines: list[KernelEvent] = field(default_factory=list)
    before: list[KernelEvent] = field(default_factory=list)
    name: str = ""


Part = tuple[int, Incident, set[int]]
"""Where it begins, the incident, and the events that are told with it."""


def xid(e: KernelEvent) -> int | None:
    """The number of an Xid."""
    number = e.details.get("xid")
    return number if e.kind == "xid" and isinstance(number, int) else None


def cause(e: KernelEvent) -> int | None:
    """The Xid that this one names as its cause."""
    number = e.details.get("cause_xid")
    return number if isinstance(number, int) else None


def grave(e: KernelEvent) -> bool:
    """Whether the line says that something was not corrected."""
    d = e.details
    return d.get("correctable") is False or d.get("fatal") is True or d.get("recovered") is False


def fatal_text(e: KernelEvent) -> bool:
    """Whether an NVLink line calls itself fatal."""
    return re.search(r"\bFatal\b", e.text) is not None


def killed(e: KernelEvent) -> bool:
    """Whether the line names the process that was killed for memory."""
    return e.kind == "oom" and _KILLED.search(e.text) is not None


def _health(text: str) -> bool:
    return re.search(r"health|fatal|internal error|assert_var", text, re.IGNORECASE) is not None


def telling(events: Sequence[KernelEvent], members: Sequence[int]) -> int:
    """The line that says most: the first that is severe, else the first."""
    for i in members:
        if grave(events[i]) or (killed(events[i])):
            return i
    return members[0]


def meaning_of(events: Sequence[KernelEvent], members: Sequence[int]) -> Meaning:
    """What a group of one kind and device means."""
    first = events[members[0]]
    number = cause(first) if cause(first) is not None else xid(first)
    if number is not None:
        if number > LAST_XID:
            return UNKNOWN_XID
        meaning = XIDS.get(number, OTHER_XID)
        processes = {events[i].details.get("process") for i in members} - {None}
        if meaning.verdict is Verdict.INFO and number != 45 and len(processes) >= APPS:
            return Meaning(
                Verdict.WARN,
                f"{meaning.what}; but {len(processes)} different programs hit it on this GPU",
                "drain the GPU (the test takes it for minutes), then: dcgmi diag -r 3 -i GPU",
            )
        return meaning
    meaning = KINDS.get(first.kind, Meaning(Verdict.WARN, "a fault", AROUND))
    severe = any(grave(events[i]) for i in members)
    if severe and first.kind in UNCORRECTED:
        return Meaning(Verdict.FAIL, UNCORRECTED[first.kind], meaning.remedy)
    if first.kind == "nic_fw" and any(_health(events[i].text) for i in members):
        return Meaning(Verdict.FAIL, "the NIC's firmware failed", meaning.remedy)
    return meaning


def part(events: Sequence[KernelEvent], root: int, members: set[int], name: str) -> Part:
    """An incident of these members that means what its root means."""
    e = events[root]
    return (
        min(members),
        Incident(
            root=e,
            meaning=meaning_of(events, [root]),
            lines=[events[i] for i in sorted(members)],
            name=name,
        ),
        members,
    )
