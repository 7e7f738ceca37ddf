"""`Values`: sets one value of the host, with its undo on the disk first, and puts it back.

The same way as every act: former value read, journal written and synced, change, read back,
journal closed or kept for undo. What somebody else wrote later is respected.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from nodeagent.errors import ActError, NodeagentError, RightsError
from nodeagent.model.placement import ActionResult, Knob, Outcome, SetValue
from nodeagent.model.words import many
from nodeagent.pin import survey
from nodeagent.pin.affinity import GoneError
from nodeagent.pin.asked import TROUBLE, Asked, words
from nodeagent.pin.knobs import Caller, Door, Holder
from nodeagent.pin.records import Entry, Former, Open
from nodeagent.pin.step import step
from nodeagent.pin.timeleft import TimeLeft
from nodeagent.pin.undo import Journal


class Values:
    """Acts on the values behind `doors`; `boot` is this boot's id; `left`: how long making a
    change may take, and putting it back, each."""

    def __init__(
        self,
        journal: Journal,
        doors: Mapping[Knob, Door],
        boot: str,
        left: TimeLeft | None = None,
    ) -> None:
        self._journal = journal
        self._left = left or TimeLeft()
        self._doors = doors
        self._boot = boot

    def perform(self, action: SetValue, asked: Asked, ticks: int) -> tuple[ActionResult, str]:
        """The result, and the value before ("" when it was not read)."""
        with self._left.step():
            return self._perform(action, asked, ticks)

    def _perform(self, action: SetValue, asked: Asked, ticks: int) -> tuple[ActionResult, str]:
        door, entry, before = self._doors[action.knob], None, ""
        what = f"{action.knob} {action.subject}"
        try:
            door.check(action.subject, action.value)
            before = door.read(action.subject)
            if door.same(before, action.value) and _in_force(door, action.subject, before):
                message = f"{what} is {_shown(before)} already"
                done = ActionResult(outcome=Outcome.DONE, message=message, read_back=before)
                return done, before
            record = Open(
                id=self._journal.next_id,
                act="set_value",
                boot=self._boot,
                at_ns=time.time_ns(),
                ticks=ticks,
                by=asked.by,
                why=asked.why,
                workload=action.workload,
                knob=action.knob,
                subject=action.subject,
                value=action.value,
                value_before=before,
                exclusive=action.exclusive,
            )
            entry = self._journal.begin(record, _former(door, record))
            step("value.before")
            door.write(action.subject, action.value)
            step("value.written")
            _keep(door, entry)
            now = door.read(action.subject)
            if not door.same(now, action.value):
                raise ActError(f"{what} reads back {_shown(now)}, expected {_shown(action.value)}")
            step("value.read-back")
            self._journal.done(entry.id, now)
        except TROUBLE as error:
            return self._failed(entry, error), before
        return ActionResult(
            outcome=Outcome.DONE,
            message=f"{what} is {_shown(now)}, was {_shown(before)}",
            read_back=now,
            journal_id=entry.id,
        ), before

    def _failed(self, entry: Entry | None, error: NodeagentError | OSError) -> ActionResult:
        gone, message = isinstance(error, GoneError), words(error)
        if entry is None:
            outcome = Outcome.GONE if gone else Outcome.REFUSED
            return ActionResult(outcome=outcome, message=message)
        if not gone:
            try:
                with self._left.step():
                    said, now = self._put_back(entry)
                    back = self._doors[Knob(entry.open.knob)].same(now, entry.open.value_before)
            except GoneError:
                gone = True
            except TROUBLE as late:
                return ActionResult(
                    outcome=Outcome.FAILED,
                    message=f"{message}; and not put back: {words(late)}",
                    journal_id=entry.id,
                )
            else:
                message += "; everything is as before" if back else f"; {said}"
        refused = isinstance(error, RightsError)
        outcome = Outcome.GONE if gone else Outcome.REFUSED if refused else Outcome.REVERTED
        try:
            self._journal.closed(entry.id, "gone" if gone else "reverted", message)
        except ActError as late:
            # The next start finds it open, sees that all is as before, and closes it.
            message += f" ({late})"
        return ActionResult(outcome=outcome, message=message, journal_id=entry.id)

    def _put_back(self, entry: Entry) -> tuple[str, str]:
        """The former value, unless somebody wrote another since. A sentence, and the value read
        back."""
        o = entry.open
        door, what = self._doors[Knob(o.knob)], f"{o.knob} {o.subject}"
        if isinstance(door, Caller):
            # What was stopped too late would do it after all.
            door.await_calls(o.subject)
        now = door.read(o.subject)
        if door.same(now, o.value_before):
            return f"{what} is {_shown(now)}" + _settle(door, entry, _later(door, entry)), now
        ours = [o.value, entry.read_back] if entry.read_back else [o.value]
        if not any(door.same(now, text) for text in ours):
            return f"{what} was set to {_shown(now)} by somebody later and is left there", now
        step("undo.before")
        later = _later(door, entry)
        door.write(o.subject, o.value_before)
        step("undo.value")
        said = _settle(door, entry, later)
        after = door.read(o.subject)
        if not door.same(after, o.value_before):
            raise ActError(
                f"{what} reads back {_shown(after)}, expected {_shown(o.value_before)}; it stays "
                "open"
            )
        return f"{what} is {_shown(after)}{said}", after

    def stale(self, entry: Entry) -> tuple[str, str] | None:
        """(how to close it, the sentence) when there is nothing to write back to."""
        o = entry.open
        if o.boot != self._boot:
            return "other-boot", f"{o.knob} {o.subject} was set before the machine was restarted"
        if o.knob not in self._doors:
            return None
        door = self._doors[Knob(o.knob)]
        try:
            door.read(o.subject)
        except GoneError as error:
            if isinstance(door, Holder):
                door.settle(o.subject, o.value_before)
            return "gone", str(error)
        return None

    def undo(self, entry: Entry) -> ActionResult:
        """The former value, to the byte."""
        with self._left.step():
            return self._undo(entry)

    def _undo(self, entry: Entry) -> ActionResult:
        try:
            stale = self.stale(entry)
            if stale is not None:
                self._journal.closed(entry.id, *stale)
                return ActionResult(outcome=Outcome.GONE, message=stale[1], journal_id=entry.id)
            if entry.state != "undoing":
                self._journal.undoing(entry.id)
            step("undo.begun")
            message, now = self._put_back(entry)
            step("undo.written")
            self._journal.closed(entry.id, "undone", message)
            step("undo.closed")
        except TROUBLE as error:
            message = words(error)
            return ActionResult(outcome=Outcome.FAILED, message=message, journal_id=entry.id)
        done = Outcome.DONE
        return ActionResult(outcome=done, message=message, read_back=now, journal_id=entry.id)

    def recover(self, entry: Entry) -> tuple[Outcome, str]:
        """An act that was interrupted: completed when it had been made, else put back."""
        with self._left.step():
            return self._recover(entry)

    def _recover(self, entry: Entry) -> tuple[Outcome, str]:
        o = entry.open
        what = f"{o.knob} {o.subject}"
        try:
            late = self._doors.get(Knob(o.knob))
            if isinstance(late, Caller) and o.boot == self._boot:
                late.await_calls(o.subject)
            stale = self.stale(entry)
            if stale is not None:
                self._journal.closed(entry.id, *stale)
                return Outcome.GONE, f"setting {what} was interrupted, and {stale[1]}"
            door = self._doors[Knob(o.knob)]
            if entry.state == "undoing":
                self._journal.closed(entry.id, "undone", self._put_back(entry)[0])
                return Outcome.DONE, f"the interrupted undo of {what} was completed"
            now = door.read(o.subject)
            if door.same(now, o.value):
                _keep(door, entry)
                self._journal.done(entry.id, now)
                return (
                    Outcome.DONE,
                    f"{what} had been set when it was interrupted: it is {_shown(now)}",
                )
            message = f"the interrupted setting of {what} was put back: {self._put_back(entry)[0]}"
            self._journal.closed(entry.id, "reverted", message)
        except TROUBLE as error:
            said = f"setting {what} was interrupted, and could neither be completed nor put back"
            return Outcome.FAILED, f"{said}: {words(error)}"
        return Outcome.REVERTED, message


def _in_force(door: Door, subject: str, value: str) -> bool:
    return not isinstance(door, Holder) or door.in_force(subject, value)


def _former(door: Door, record: Open) -> Former | None:
    """The masks that the kernel may take with the change: on the disk with it."""
    if not isinstance(door, Holder) or door.cpus(record.value) is None:
        return None
    mine, others = door.threads(record.subject)
    return Former(
        id=record.id,
        threads=[(t.tid, t.start_time, str(t.mask)) for t in mine],
        kept=[(t.tid, t.start_time, str(t.mask)) for t in others],
    )


def _keep(door: Door, entry: Entry) -> None:
    """What a thread had bound itself to, inside the new set; and everybody else's, whole."""
    cpus = door.cpus(entry.open.value) if isinstance(door, Holder) else None
    if cpus is not None:
        # After a restart minutes have passed: what somebody bound meanwhile is theirs.
        later = _later(door, entry)
        survey.keep(entry.former, cpus, later)
        survey.keep(entry.kept, None, later)
        step("value.kept")


def _later(door: Door, entry: Entry) -> frozenset[int]:
    cpus = door.cpus(entry.open.value) if isinstance(door, Holder) else None
    if cpus is None or not isinstance(door, Holder):
        return frozenset()
    room = door.room(entry.open.subject)
    return survey.changed_later(_masks(entry), cpus, room, whole=entry.state != "open")


def _masks(entry: Entry) -> survey.Masks:
    return {**entry.former, **entry.kept}


def _settle(door: Door, entry: Entry, later: frozenset[int]) -> str:
    """After the former value is in force again; more for the sentence."""
    if not isinstance(door, Holder):
        return ""
    door.settle(entry.open.subject, entry.open.value_before)
    step("undo.settled")
    said = [text for text in (survey.put_back(_masks(entry), later), _lost(entry)) if text]
    return "".join(f"; {text}" for text in said)


def _lost(entry: Entry) -> str:
    if not entry.lost:
        return ""
    return (
        f"the masks that {many(entry.lost, 'thread')} had before stood in a lost part of the undo "
        "journal: they have what the kernel gave them"
    )


def _shown(text: str) -> str:
    """A set without a CPU is an empty text."""
    return text or "none"
