"""`Actor`: performs actions one at a time, each with its undo on the disk first.

Every act goes the same way: consent, freeze, target still the same process, former value read,
journal written and synced, change, read back, journal closed or kept for undo, audit record.
What fails on the way is put back; where that fails too, the entry stays open and the outcome is
FAILED: the host is neither as planned nor as before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path

from nodeagent.model.placement import (
    PARTITION_ROOT,
    Action,
    ActionResult,
    Consent,
    Knob,
    MigrateMemory,
    MoveToCpuset,
    Outcome,
    SetAffinity,
    SetValue,
    consent_of,
)
from nodeagent.pin.asked import TROUBLE, Asked, words
from nodeagent.pin.audit import Audit, Record
from nodeagent.pin.knobs import doors, lacking
from nodeagent.pin.migrate import ACT as MIGRATE
from nodeagent.pin.migrate import Migrations
from nodeagent.pin.moving import Step
from nodeagent.pin.pins import Pins, first_of_each
from nodeagent.pin.proc import boot_id
from nodeagent.pin.records import Entry
from nodeagent.pin.timeleft import TimeLeft
from nodeagent.pin.undo import Journal
from nodeagent.pin.values import Values

FREEZE_FILE = "freeze"
SWEEP_ENTRIES = 256
"""With this many open entries, those of ended processes are closed before a new one is made."""
_HZ = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """Result of one entry's undo."""

    entry: Entry
    result: ActionResult


def _ticks() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _HZ)


class Actor:
    """Performs and undoes. `allow`: classes of consent; `run_dir` is where the freeze file is;
    `partitions` and `runtimes` as `pin.knobs.doors` has them."""

    def __init__(
        self,
        journal: Journal,
        audit: Audit,
        *,
        allow: AbstractSet[Consent],
        run_dir: Path,
        partitions: bool = False,
        runtimes: AbstractSet[str] = frozenset(),
    ) -> None:
        self._journal = journal
        self._audit = audit
        self.allow = frozenset(allow)
        self._freeze = run_dir / FREEZE_FILE
        self._boot = boot_id()
        left = TimeLeft()
        ways = doors(self.allow, partitions=partitions, runtimes=runtimes, left=left)
        self.lacks = lacking(ways)
        """Knob -> why this process may not set it, whatever `allow` says."""
        self._values = Values(journal, ways, self._boot, left)
        self._pins = Pins(journal, self._boot)
        self._migrations = Migrations(journal, self._boot)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What can be undone, oldest first."""
        return self._journal.entries

    def frozen(self) -> str | None:
        """Why nothing may be changed now; None: it may."""
        try:
            stat = self._freeze.lstat()
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"{self._freeze}: cannot be looked at ({error.strerror}), taken as frozen"
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stat.st_mtime))
        return f"frozen by {self._freeze} since {since} (user {stat.st_uid})"

    # Acting.

    def perform(self, action: Action, asked: Asked) -> ActionResult:
        """Performs one action. Never raises for what happens to it."""
        if isinstance(action, MigrateMemory):
            done = self.migrate(action, asked, go_on=False)
            while done.more:
                done = self.migrate(action, asked, go_on=True)
            return done.result
        refusal = self._refusal(consent_of(action), asked)
        if refusal is not None:
            return self._audited(action, "", "", refusal, asked)
        if len(self._journal.entries) >= SWEEP_ENTRIES:
            self._sweep()
        match action:
            case SetAffinity() | MoveToCpuset():
                result, before = self._pins.perform(action, asked, _ticks())
                if result.outcome is Outcome.DONE and result.journal_id is None:
                    # It was inside already: nothing was done, nothing is written down.
                    return result
                return self._audited(action, before, result.read_back or "", result, asked)
            case SetValue():
                result, before = self._values.perform(action, asked, _ticks())
                return self._audited(action, before, result.read_back or "", result, asked)

    def migrate(self, action: MigrateMemory, asked: Asked, *, go_on: bool) -> Step:
        """One step of moving memory. Never raises for what happens to it. Steps that others follow
        leave no audit record."""
        refusal = self._refusal(consent_of(action), asked)
        if refusal is not None:
            done = Step(result=self._migrations.interrupted(action, refusal))
        else:
            if not go_on:
                self.leave_moving("no step of it was asked for any more", asked, idle_only=True)
                if len(self._journal.entries) >= SWEEP_ENTRIES:
                    self._sweep()
            done = self._migrations.perform(action, asked, _ticks(), go_on=go_on)
        if done.more:
            return done
        after = done.result.read_back or ""
        return replace(done, result=self._audited(action, done.before, after, done.result, asked))

    def leave_moving(self, why: str, asked: Asked, *, idle_only: bool = False) -> None:
        """Ends and records a moving of memory whose next step nobody will ask for."""
        left = self._migrations.leave(why, idle_only=idle_only)
        if left is not None:
            action, done = left
            self._audited(action, done.before, done.result.read_back or "", done.result, asked)

    def _refusal(self, consent: Consent | None, asked: Asked) -> ActionResult | None:
        if consent is not None and consent not in self.allow:
            allowed = ", ".join(sorted(self.allow)) or "nothing"
            return ActionResult(
                outcome=Outcome.REFUSED,
                message=f"no consent for acts of class {consent} (allowed: {allowed}); "
                f'add "{consent}" to [pin] allow',
            )
        frozen = self.frozen()
        if frozen is not None and not asked.override_freeze:
            return ActionResult(
                outcome=Outcome.REFUSED,
                message=f"{frozen}; remove the file, or give --override-freeze REASON",
            )
        return None

    def _audited(
        self, action: Action, before: str, after: str, result: ActionResult, asked: Asked
    ) -> ActionResult:
        match action:
            case SetAffinity():
                what = "set_affinity"
            case MoveToCpuset():
                what = "move_to_cpuset"
            case MigrateMemory():
                what = MIGRATE
            case SetValue():
                what = f"set {action.knob} {action.subject}"
        trouble = self._audit.write(
            Record(
                at_ns=time.time_ns(),
                by=asked.by,
                what=what,
                workload=action.workload,
                pid=0 if isinstance(action, SetValue) else action.target.pid,
                before=before or str(action.before),
                after=after,
                why=asked.why,
                outcome=result.outcome,
                message=result.message,
                journal_id=result.journal_id,
                override_freeze=asked.override_freeze,
            )
        )
        if not trouble:
            return result
        return replace(result, message=f"{result.message}; {trouble}")

    # Undoing.

    def undo(self, workload: str | None, asked: Asked, *, entry: int = 0) -> tuple[Undone, ...]:
        """Undoes what the journal holds of a workload (None: of all), newest first."""
        return tuple(self.undo_each(workload, asked, entry=entry))

    def undo_each(
        self, workload: str | None, asked: Asked, *, below: int = 0, entry: int = 0
    ) -> Iterator[Undone]:
        """Undoes what the journal holds of a workload (None: of all), newest first, one each time
        the next is asked for. `below`: only entries with a smaller id; `entry`: that one only; 0:
        all."""
        refusal = self._refusal(None, asked)
        wanted = self.waiting(workload, below, entry)
        if refusal is not None:
            self._audit_undo(workload or "", 0, "", refusal, asked)
        for each in wanted:
            yield Undone(entry=each, result=refusal or self._undo(each, asked))

    def waiting(self, workload: str | None, below: int = 0, entry: int = 0) -> tuple[Entry, ...]:
        """Entries that `undo` would take, in its order."""
        return tuple(
            e
            for e in reversed(self._journal.entries)
            if workload in (None, e.open.workload)
            and (below == 0 or e.id < below)
            and entry in (0, e.id)
        )

    def _built_upon(self, entry: Entry) -> Entry | None:
        """The newest open entry whose former value is what this one wrote."""
        return next((e for e in reversed(self._journal.entries) if _upon(e, entry)), None)

    def _undo(self, entry: Entry, asked: Asked) -> ActionResult:
        o = entry.open
        later = self._built_upon(entry)
        if later is not None:
            # Put back first, this one's mask would be taken for somebody's later change.
            result = ActionResult(
                outcome=Outcome.REFUSED,
                message=f"act {later.id} (workload {later.open.workload or '-'}) changed the same "
                f"after act {entry.id} and is not undone; nodeagentctl undo {later.id} comes first",
                journal_id=entry.id,
            )
            self._audit_undo(o.workload, o.pid, o.cpus, result, asked)
            return result
        if o.act == MIGRATE:
            result = self._migrations.undo(entry)
            self._audit_undo(o.workload, o.pid, f"node {o.value}", result, asked)
            return result
        if o.knob:
            result = self._values.undo(entry)
            self._audit_undo(o.workload, 0, f"{o.knob} {o.subject} {o.value}", result, asked)
            return result
        result = self._pins.undo(entry)
        self._audit_undo(o.workload, o.pid, o.cpus, result, asked)
        return result

    def _audit_undo(
        self, workload: str, pid: int, before: str, result: ActionResult, asked: Asked
    ) -> None:
        self._audit.write(
            Record(
                at_ns=time.time_ns(),
                by=asked.by,
                what="undo",
                workload=workload,
                pid=pid,
                before=before,
                after=result.read_back or "",
                why=asked.why,
                outcome=result.outcome,
                message=result.message,
                journal_id=result.journal_id,
                override_freeze=asked.override_freeze,
            )
        )

    def _stale(self, entry: Entry) -> tuple[str, str] | None:
        """(how to close it, the sentence) when there is nothing to write back to."""
        if entry.open.act == MIGRATE:
            return self._migrations.stale(entry)
        return (self._values if entry.open.knob else self._pins).stale(entry)

    # Starting again.

    def recover(self) -> tuple[str, ...]:
        """After a start: completes or reverts the one action in flight, closes entries whose
        process is not there any more, and says so. Nothing else is touched."""
        said = list(self._journal.notes)
        asked = Asked(by="actor", why="recovery after a restart")
        for entry in self._journal.entries:
            if entry.state == "done":
                continue
            said.append(self._recover(entry, asked))
        said += self._sweep()
        return tuple(said)

    def _recover(self, entry: Entry, asked: Asked) -> str:
        o = entry.open
        if o.act == MIGRATE:
            outcome, message = self._migrations.recover(entry)
            self._audit_recovery(entry, outcome, message, o.value_before, entry.read_back, asked)
            return message
        if o.knob:
            outcome, message = self._values.recover(entry)
            self._audit_recovery(entry, outcome, message, o.value_before, "", asked)
            return message
        outcome, message, after = self._pins.recover(entry)
        before = str(entry.public().before)
        self._audit_recovery(entry, outcome, message, before, after, asked)
        return message

    def _audit_recovery(
        self, entry: Entry, outcome: Outcome, message: str, before: str, after: str, asked: Asked
    ) -> None:
        self._audit.write(
            Record(
                at_ns=time.time_ns(),
                by=asked.by,
                what="recover",
                workload=entry.open.workload,
                pid=entry.open.pid,
                before=before,
                after=after,
                why=asked.why,
                outcome=outcome,
                message=message,
                journal_id=entry.id,
            )
        )

    def _sweep(self) -> list[str]:
        """Closes entries whose process (or, of a role, whose threads) ended, or of another boot."""
        said: list[str] = []
        silent: set[str] = set()
        firsts = first_of_each(self._journal.entries)
        for entry in self._journal.entries:
            stale: tuple[str, str] | None = None
            if entry.open.knob in silent:
                continue
            try:
                stale = self._stale(entry) if entry.state != "open" else None
                if stale is None and entry.state == "done" and entry.open.tids:
                    stale = self._pins.spent(entry, firsts)
                if stale is None:
                    continue
                self._journal.closed(entry.id, *stale)
                if stale[0] != "other-boot":
                    self._pins.drop_cpuset(entry)
            except TROUBLE as error:
                what = stale[1] if stale else entry.open.comm or entry.open.subject
                said.append(f"{what}; {words(error)}")
                if entry.open.knob:
                    # A bus that hangs costs seconds for each: its other values wait.
                    silent.add(entry.open.knob)
                continue
            said.append(f"{stale[1]}: nothing to undo")
        return said


def _upon(later: Entry, entry: Entry) -> bool:
    """Whether an entry made later changed again what an earlier one had changed."""
    a, b = later.open, entry.open
    if later.id <= entry.id:
        return False
    if MIGRATE in (a.act, b.act):
        return False
    if b.knob == Knob.PARTITION and a.cpuset == f"{PARTITION_ROOT}{b.subject}":
        # Ended first, the group would stay behind as a plain cpuset with the process in it.
        return True
    if a.knob or b.knob:
        return (a.knob, a.subject) == (b.knob, b.subject)
    same = (a.boot, a.pid, a.start_time) == (b.boot, b.pid, b.start_time)
    parts = later.former.keys() & entry.former.keys()
    return same and bool(a.cpuset or b.cpuset or parts)
