"""What the journal says is pinned, taken over; what a person undid, left alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nodeagent.daemon import guard as guarding
from nodeagent.daemon.guard import Pin, ProcessKey
from nodeagent.daemon.links import event
from nodeagent.daemon.owned import of_workload
from nodeagent.daemon.state import Journal, JournalPin, Seen, State
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.event import Event, Severity


def adopt(state: State, seen: Seen, now_ns: int, events: list[Event]) -> State:
    """Takes over what the journal says is pinned; leaves alone what a person undid."""
    if seen.journal is None:
        return state
    by_key = {(p.pid, p.start_time): p for p in state.processes}
    guard = state.guard
    bases = dict(state.run_base)
    listed: set[ProcessKey] = set()
    remembered = {(m.pid, m.start_time): m for m in state.remembered if not m.knob}
    for entry in _newest((*seen.journal.pins, *_from_holds(state, seen.journal))):
        key = entry.pid, entry.start_time
        listed.add(key)
        pin = guard.pins.get(key)
        applied = pin is not None and pin.left_before(entry.id, entry.at_ns)
        ours = pin is not None and pin.before is not None
        newer = pin is not None and pin.at_ns > seen.journal.at_ns
        if key not in by_key or (ours and not applied) or newer:
            continue
        # What an earlier daemon knew of it; nothing of that stands after a person's place apply.
        old = None if applied else remembered.get(key)
        if applied:
            # Its run time inside counts from now.
            bases.pop(entry.pid, None)
        left = (
            old is not None
            and old.manual is not None
            and not guarding.later(entry.id, entry.at_ns, old.manual_id, old.manual_ns)
        )
        guard = guard.with_pin(
            key,
            Pin(
                workload=entry.workload,
                cpus=entry.after,
                before=entry.before,
                at_ns=0 if pin is None else pin.at_ns,
                # Every thread had been pinned, or was born of one that was.
                inside=dict.fromkeys((t.tid for t in by_key[key].threads), entry.after),
                adopted=True,
                corrected=old.corrected if old is not None else (),
                manual=old.manual if old is not None and left else None,
                manual_ns=old.manual_ns if old is not None and left else 0,
                manual_id=old.manual_id if old is not None and left else None,
            ),
        )
        events.append(
            event(
                "pin.applied" if applied else "pin.adopted",
                f"{entry.workload} pid {entry.pid}",
                Severity.INFO,
                f"{entry.workload} (pid {entry.pid}) was pinned to {entry.after} by a person; it "
                "is guarded again"
                if applied
                else f"{entry.workload} (pid {entry.pid}) is pinned to {entry.after} by the "
                "journal; it is kept",
                now_ns,
            )
        )
    for key, pin in guard.pins.items():
        undone = pin.before is not None and key not in listed and pin.at_ns < seen.journal.at_ns
        if undone and pin.manual is None and seen.actor is None:
            guard = guarding.left_alone(guard, key, "its pin was undone by a person", now_ns)
            events.append(
                event(
                    "pin.undone",
                    f"{pin.workload} pid {key[0]}",
                    Severity.INFO,
                    f"the pin of {pin.workload} (pid {key[0]}) was undone; it is left alone until "
                    "place apply",
                    now_ns,
                    "nodeagentctl place apply --yes",
                )
            )
    for key, old in remembered.items():
        # Left alone, and no longer in the journal: undone by a person, or rolled back.
        if old.manual is not None and key in by_key and key not in guard.pins:
            left_alone = Pin(
                workload="",
                cpus=CpuSet(),
                before=None,
                at_ns=0,
                inside={},
                corrected=old.corrected,
                manual=old.manual,
                manual_ns=old.manual_ns,
                manual_id=old.manual_id,
            )
            guard = guard.with_pin(key, left_alone)
    return replace(state, guard=guard, run_base=bases, journal_ns=seen.journal.at_ns)


def _from_holds(state: State, journal: Journal) -> list[JournalPin]:
    return [
        JournalPin(
            workload=hold.workload,
            pid=process.pid,
            start_time=process.start_time,
            after=hold.cpus,
            before=hold.before,
            at_ns=hold.at_ns,
            id=hold.id,
        )
        for hold in journal.holds
        for _, process in of_workload(state, hold.workload)
    ]


def _newest(entries: Iterable[JournalPin]) -> list[JournalPin]:
    """One of each process: where the last act put it, and where it was before the first."""
    found: dict[ProcessKey, JournalPin] = {}
    for entry in sorted(entries, key=lambda e: (e.id, e.at_ns)):
        first = found.get((entry.pid, entry.start_time))
        before = entry.before if first is None else first.before
        found[entry.pid, entry.start_time] = replace(entry, before=before)
    return list(found.values())
