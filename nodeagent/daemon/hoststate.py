"""What the turn remembers of the host's values. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nodeagent.daemon.guard import UNKNOWN, Memory
from nodeagent.model.hostplan import HostPlan
from nodeagent.model.placement import Placement
from nodeagent.model.snapshot import Snapshot

Key = tuple[str, str]
"""(knob, subject)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Set:
    """A value that we set, or an earlier daemon of this boot."""

    value: str
    at_ns: int
    """When; a snapshot older than this says nothing about it."""
    journaled: bool
    """Its undo stands in the journal. False: it had been so already."""
    corrected: bool = False
    """Somebody else's change of it was put right once."""
    correcting: bool = False
    """That is owed and not yet done."""
    suspect_ns: int = 0
    """When it was first seen changed, until the journal has been asked whether a person undid it;
    0: it is not."""
    manual: str | None = None
    """Why it is left alone until `place apply`."""
    manual_ns: int = 0
    manual_id: int | None = None
    """As in guard.Pin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalValue:
    """A value in force by the actor's journal."""

    knob: str
    subject: str
    value: str
    at_ns: int
    id: int = 0


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and what it was made from."""

    plan: HostPlan
    snapshot: Snapshot | None
    placement: Placement | None


NOTHING = Planned(HostPlan(), None, None)


def memory(values: Mapping[Key, Set]) -> tuple[Memory, ...]:
    """What must survive a restart of the daemon."""
    return tuple(
        Memory(
            pid=0,
            start_time=0,
            corrected=(UNKNOWN.name,) if one.corrected else (),
            manual=one.manual,
            manual_ns=one.manual_ns,
            manual_id=one.manual_id,
            knob=knob,
            subject=subject,
        )
        for (knob, subject), one in sorted(values.items())
        if one.corrected or one.manual is not None
    )
