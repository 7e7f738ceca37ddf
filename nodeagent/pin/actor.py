"""`Actor`: performs actions one at a time, each with its undo on the disk first.

Every act goes the same way: consent, freeze, target still the same process, former value read,
journal written and synced, change, read back, journal closed or kept for undo, audit record.
What fails on the way is put back; where that fails too, the entry stays open and the outcome is
FAILED: the host is neither as planned nor as before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path

from nodeagent.errors import ActError, NodeagentError, RightsError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import (
    Action,
    ActionResult,
    Consent,
    MigrateMemory,
    MoveToCpuset,
    Outcome,
    ProcessAction,
    SetAffinity,
    SetValue,
    consent_of,
)
from nodeagent.model.words import many
from nodeagent.pin import affinity, cpuset
from nodeagent.pin.affinity import GoneError, Left, Why
from nodeagent.pin.asked import TROUBLE, Asked, words
from nodeagent.pin.audit import Audit, Record
from nodeagent.pin.knobs import doors
from nodeagent.pin.migrate import ACT as MIGRATE
from nodeagent.pin.migrate import Migrations, Step
from nodeagent.pin.proc import (
    Thread,
    boot_id,
    descendants,
    is_thread,
    mask_of,
    stat_of,
    threads_of,
)
from nodeagent.pin.step import step
from nodeagent.pin.undo import Entry, Former, Journal, Open
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
    """Performs and undoes. `allow`: classes of consent; `run_dir` is where the freeze file is."""

    def __init__(
        self,
        journal: Journal,
        audit: Audit,
        *,
        allow: AbstractSet[Consent],
        run_dir: Path,
    ) -> None:
        self._journal = journal
        self._audit = audit
        self.allow = frozenset(allow)
        self._freeze = run_dir / FREEZE_FILE
        self._boot = boot_id()
        self._values = Values(journal, doors(), self._boot)
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
            case SetAffinity():
                return self._set_affinity(action, asked)
            case MoveToCpuset():
                return self._move(action, asked)
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
            if not go_on and len(self._journal.entries) >= SWEEP_ENTRIES:
                self._sweep()
            done = self._migrations.perform(action, asked, _ticks(), go_on=go_on)
        if done.more:
            return done
        after = done.result.read_back or ""
        return replace(done, result=self._audited(action, done.before, after, done.result, asked))

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

    def _open(self, action: ProcessAction, comm: str, asked: Asked, **more: object) -> Open:
        return Open(
            id=self._journal.next_id,
            act="set_affinity" if isinstance(action, SetAffinity) else "move_to_cpuset",
            boot=self._boot,
            at_ns=time.time_ns(),
            ticks=_ticks(),
            by=asked.by,
            why=asked.why,
            workload=action.workload,
            pid=action.target.pid,
            tid=action.target.tid,
            start_time=action.target.start_time,
            comm=comm,
            cpus=str(action.cpus),
            **more,  # type: ignore[arg-type]  # fields of Open, by name
        )

    def _set_affinity(self, action: SetAffinity, asked: Asked) -> ActionResult:
        target = action.target
        entry: Entry | None = None

        def before_change(outside: list[Thread], inside: list[Thread]) -> None:
            nonlocal entry
            if entry is None:
                record = self._open(action, comm, asked, tids=list(action.tids))
                entry = self._journal.begin(record, _former(record.id, outside, inside))
            else:
                self._journal.more(_former(entry.id, outside, inside))

        try:
            comm = affinity.check_alive(target.pid, target.start_time)
            if not action.cpus:
                raise ActError("no CPU is named to pin to", "nodeagentctl place plan")
            only = frozenset(action.tids or ((target.tid,) if target.tid else ()))
            got = affinity.pin(target.pid, target.start_time, only, action.cpus, before_change)
        except TROUBLE as error:
            return self._failed(action, entry, error, asked)
        if entry is None:
            return ActionResult(
                outcome=Outcome.DONE,
                message=f"{_whose(action, comm)} inside {action.cpus} already",
                read_back=str(got),
            )
        return self._finished(action, entry, comm, str(got), asked)

    def _move(self, action: MoveToCpuset, asked: Asked) -> ActionResult:
        target = action.target
        entry: Entry | None = None
        try:
            comm = affinity.check_alive(target.pid, target.start_time)
            if not action.cpus:
                raise ActError("no CPU is named to pin to", "nodeagentctl place plan")
            cpuset.check_ours(action.cpuset)
            tree = cpuset.find()
            now = cpuset.path_of(tree, target.pid)
            if now is None:
                raise GoneError(f"process {target.pid} has ended")
            cpuset.check_free(tree, now)
            before = threads_of(target.pid)
            record = self._open(
                action,
                comm,
                asked,
                mems=str(action.mems),
                cpuset=action.cpuset,
                cgroup_before=now,
                cpuset_before=cpuset.values(tree, action.cpuset),
            )
            entry = self._journal.begin(record, _former(record.id, before, []))
            cpuset.make(tree, action.cpuset)
            step("cpuset.made")
            cpuset.fill(tree, action.cpuset, str(action.cpus), str(action.mems))
            step("cpuset.filled")
            # Again: the journal's sync took its time, and the number may be another's by now.
            affinity.check_alive(target.pid, target.start_time)
            self._move_process(tree, action.cpuset, target.pid)
            step("cpuset.moved")
            # Before Linux 6.2 a move widened what the program itself had bound to a part.
            for thread in before:
                if (
                    thread.mask <= action.cpus
                    and mask_of(thread.tid) not in (None, thread.mask)
                    and is_thread(target.pid, thread)
                ):
                    affinity.set_mask(target.pid, thread.tid, thread.mask)
            affinity.check_alive(target.pid, target.start_time)
            if cpuset.path_of(tree, target.pid) != action.cpuset:
                raise ActError(f"process {target.pid} is not in {action.cpuset} after the move")
            got = CpuSet()
            for thread in threads_of(target.pid):
                got |= thread.mask
            if not got <= action.cpus:
                raise ActError(
                    f"the threads of process {target.pid} read back {got}, expected {action.cpus}"
                )
        except TROUBLE as error:
            return self._failed(action, entry, error, asked)
        return self._finished(action, entry, comm, str(got), asked)

    @staticmethod
    def _move_process(tree: cpuset.Hierarchy, path: str, pid: int) -> None:
        try:
            cpuset.move(tree, path, pid)
        except ProcessLookupError as error:
            raise GoneError(f"process {pid} ended while it was moved") from error

    def _finished(
        self, action: ProcessAction, entry: Entry, comm: str, got: str, asked: Asked
    ) -> ActionResult:
        step("act.read-back")
        try:
            self._journal.done(entry.id, got)
        except ActError as error:
            return self._failed(action, entry, error, asked)
        step("act.done")
        where = f" in {entry.open.cpuset}" if entry.open.cpuset else ""
        count = len(entry.former) + len(entry.kept)
        result = ActionResult(
            outcome=Outcome.DONE,
            message=f"{comm} ({action.target.pid}), {many(count, 'thread')}: on {got}{where}",
            read_back=got,
            journal_id=entry.id,
        )
        return self._audited(action, str(entry.public().before), got, result, asked)

    def _failed(
        self,
        action: ProcessAction,
        entry: Entry | None,
        error: NodeagentError | OSError,
        asked: Asked,
    ) -> ActionResult:
        """Puts back what was changed already."""
        gone = isinstance(error, GoneError)
        message = words(error)
        if entry is None:
            outcome = Outcome.GONE if gone else Outcome.REFUSED
            return self._audited(
                action, "", "", ActionResult(outcome=outcome, message=message), asked
            )
        left = self._revert(entry)
        if left:
            outcome, message = Outcome.FAILED, f"{message}; and not put back: {left[0]}"
        else:
            refused = isinstance(error, RightsError)
            outcome = Outcome.GONE if gone else Outcome.REFUSED if refused else Outcome.REVERTED
            message += "" if gone else "; everything is as before"
            try:
                self._journal.closed(entry.id, "gone" if gone else "reverted", message)
            except ActError as late:
                # The next start finds it open, sees that all is as before, and closes it.
                message += f" ({late})"
        return self._audited(
            action,
            str(entry.public().before),
            "",
            ActionResult(outcome=outcome, message=message, journal_id=entry.id),
            asked,
        )

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
        return ActionResult(
            outcome=result.outcome,
            message=f"{result.message}; {trouble}",
            read_back=result.read_back,
            journal_id=result.journal_id,
        )

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
        before = entry.public().before
        try:
            stale = self._stale(entry)
            if stale is not None:
                self._journal.closed(entry.id, *stale)
                if stale[0] != "other-boot":
                    self._drop_cpuset(entry)
                result = ActionResult(outcome=Outcome.GONE, message=stale[1], journal_id=entry.id)
            else:
                if entry.state != "undoing":
                    self._journal.undoing(entry.id)
                step("undo.begun")
                left = self._put_back(entry, whole=True)
                step("undo.written")
                _check_whole(left)
                message = (
                    "; ".join(n.message for n in left)
                    or f"{entry.open.comm} ({entry.open.pid}) is on {before}"
                )
                self._journal.closed(entry.id, "undone", message)
                step("undo.closed")
                result = ActionResult(
                    outcome=Outcome.DONE,
                    message=message,
                    read_back=str(self._now(entry)),
                    journal_id=entry.id,
                )
        except TROUBLE as error:
            result = ActionResult(outcome=Outcome.FAILED, message=words(error), journal_id=entry.id)
        self._audit_undo(entry.open.workload, entry.open.pid, entry.open.cpus, result, asked)
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

    def _now(self, entry: Entry) -> CpuSet:
        found = CpuSet()
        for thread in threads_of(entry.open.pid):
            found |= thread.mask
        return found

    def _stale(self, entry: Entry) -> tuple[str, str] | None:
        """(how to close it, the sentence) when there is nothing to write back to."""
        o = entry.open
        if o.act == MIGRATE:
            return self._migrations.stale(entry)
        if o.knob:
            return self._values.stale(entry)
        if o.boot != self._boot:
            return "other-boot", f"{o.comm} ({o.pid}) was pinned before the machine was restarted"
        stat = stat_of(o.pid)
        if stat is None or stat.dead:
            return "gone", f"{o.comm} ({o.pid}) has ended"
        if stat.start_time != o.start_time:
            return "reused", f"{o.comm} ({o.pid}) has ended; {stat.comm} has its number now"
        return None

    def _revert(self, entry: Entry) -> list[str]:
        """Undo of an action that did not finish; what could not be put back."""
        try:
            if self._stale(entry) is not None:
                self._drop_cpuset(entry)
                return []
            left = self._put_back(entry, whole=False)
        except TROUBLE as error:
            return [words(error)]
        return [note.message for note in left if note.why is not Why.LATER]

    def _put_back(self, entry: Entry, *, whole: bool) -> list[Left]:
        """Former masks, and the former cpuset. What was left, and why. Raises ActError.

        `whole`: the action had finished, so what was born under the pin is widened too.
        """
        written = {entry.cpus}
        if entry.read_back:
            written.add(CpuSet.parse(entry.read_back))
        up = affinity.online()
        if up is not None:
            # The kernel leaves CPUs that went offline since out of what it says.
            written |= {mask & up for mask in written if mask & up}

        def ours(mask: CpuSet) -> bool:
            return mask in written or (not whole and mask <= entry.cpus)

        left: list[Left] = []
        born: list[tuple[int, Thread]] = []
        if whole:
            born = self._born(entry, ours)
        changed: dict[int, CpuSet] = {}
        if entry.open.cpuset:
            # The way back changes every mask, so what somebody set meanwhile is looked up before.
            changed = self._changed_later(entry, ours)
            if whole:
                _check_reachable(entry, up)
            moved_by = self._leave_cpuset(entry)
            if moved_by:
                return [Left(why=Why.LATER, message=moved_by)]
        for (tid, start), mask in sorted(entry.former.items()):
            if tid in changed:
                said = f"thread {tid} was set to {changed[tid]} by somebody later"
                left.append(Left(why=Why.LATER, message=said))
                continue
            moved = bool(entry.open.cpuset)
            note = affinity.put_back(
                entry.open.pid, tid, start, mask, (lambda m: True) if moved else ours
            )
            if note is not None:
                left.append(note)
        heir = _heir(entry)
        if heir is not None:
            for pid, thread in born:
                note = affinity.put_back(pid, thread.tid, thread.start_time, heir, ours)
                if note is not None:
                    left.append(note)
            # Somebody may have been born of a thread that was still pinned while this went on.
            for pid, thread in self._born(entry, ours) if whole else ():
                affinity.put_back(pid, thread.tid, thread.start_time, heir, ours)
        return left

    def _born(self, entry: Entry, ours: Callable[[CpuSet], bool]) -> list[tuple[int, Thread]]:
        """(pid, thread) of threads and child processes that inherited the mask that we wrote."""
        if any(mask == entry.cpus for mask in entry.kept.values()):
            # One was bound there by its own program: whose child has the mask cannot be told.
            return []
        others = {e.open.pid for e in self._journal.entries if e.id != entry.id}
        known = entry.former.keys() | entry.kept.keys()
        found = [
            (entry.open.pid, t)
            for t in threads_of(entry.open.pid)
            if (t.tid, t.start_time) not in known and ours(t.mask)
        ]
        for pid, stat in descendants(entry.open.pid):
            if pid not in others and stat.start_time >= entry.open.ticks:
                found += [(pid, t) for t in threads_of(pid) if ours(t.mask)]
        return found

    def _changed_later(self, entry: Entry, ours: Callable[[CpuSet], bool]) -> dict[int, CpuSet]:
        found: dict[int, CpuSet] = {}
        for (tid, _), mask in entry.former.items():
            now = mask_of(tid)
            if now is not None and now != mask and not ours(now):
                found[tid] = now
        return found

    # Cpusets of an entry.

    def _leave_cpuset(self, entry: Entry) -> str:
        """Moves the process, and what was born in its cpuset, back to where it was."""
        tree = cpuset.find()
        o = entry.open
        now = cpuset.path_of(tree, o.pid)
        if now is None:
            self._drop_cpuset(entry)
            return ""
        if now != o.cpuset:
            if now == o.cgroup_before:
                self._drop_cpuset(entry)
                return ""
            return f"process {o.pid} was moved to cgroup {now} by somebody later and is left there"
        back = o.cgroup_before
        while not tree.at(back).is_dir() and back not in ("/", ""):
            back = back.rpartition("/")[0] or "/"
        mine = {
            e.open.pid
            for e in self._journal.entries
            if e.open.cpuset == o.cpuset and e is not entry
        }
        below = {pid for pid, _ in descendants(o.pid)}
        for pid in cpuset.members(tree, o.cpuset):
            if pid == o.pid or (pid in below and pid not in mine) or not mine:
                try:
                    cpuset.move(tree, back, pid)
                except ProcessLookupError:
                    continue
                step("undo.moved")
        self._drop_cpuset(entry)
        if back != o.cgroup_before:
            return f"cgroup {o.cgroup_before} is not there any more: process {o.pid} is in {back}"
        return ""

    def _drop_cpuset(self, entry: Entry) -> None:
        """The cpuset as it was before the entry: removed when empty, else its former values."""
        o = entry.open
        if not o.cpuset:
            return
        tree = cpuset.find()
        if cpuset.values(tree, o.cpuset) is None:
            # Perhaps only the parent was made.
            cpuset.remove(tree, o.cpuset)
            return
        if cpuset.members(tree, o.cpuset):
            if o.cpuset_before is not None and o.cpuset_before[0]:
                cpuset.fill(tree, o.cpuset, *o.cpuset_before)
            return
        others = [e for e in self._journal.entries if e.open.cpuset == o.cpuset and e is not entry]
        if not others:
            cpuset.remove(tree, o.cpuset)
            step("undo.removed")

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
        what = f"{o.act} of {o.comm} ({o.pid}) for workload {o.workload}"
        outcome, message, after = Outcome.REVERTED, "", ""
        try:
            stale = self._stale(entry)
            if stale is not None:
                outcome, message = Outcome.GONE, f"{what} was interrupted, and {stale[1]}"
                self._journal.closed(entry.id, *stale)
                if stale[0] != "other-boot":
                    self._drop_cpuset(entry)
            elif entry.state == "undoing":
                left = self._put_back(entry, whole=True)
                _check_whole(left)
                self._journal.closed(entry.id, "undone", "; ".join(n.message for n in left))
                message = f"the interrupted undo of {what} was completed"
                outcome = Outcome.DONE
            elif self._complete(entry):
                got = str(self._now(entry))
                self._journal.done(entry.id, got)
                message = f"the interrupted {what} had been made: it holds, on {got}"
                outcome = Outcome.DONE
            else:
                unmade = self._revert(entry)
                if unmade:
                    raise ActError(unmade[0])
                message = f"the interrupted {what} was put back"
                self._journal.closed(entry.id, "reverted", message)
            after = str(self._now(entry)) if stale is None else ""
        except TROUBLE as error:
            outcome = Outcome.FAILED
            message = (
                f"the interrupted {what} could neither be completed nor put back: {words(error)}"
            )
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

    def _complete(self, entry: Entry) -> bool:
        """Whether an interrupted action had reached everything already."""
        o = entry.open
        if o.cpuset:
            tree = cpuset.find()
            if cpuset.path_of(tree, o.pid) != o.cpuset:
                return False
        only = frozenset(o.tids or ((o.tid,) if o.tid else ()))
        now = [t for t in threads_of(o.pid) if not only or t.tid in only]
        return bool(now) and all(t.mask <= entry.cpus for t in now)

    def _sweep(self) -> list[str]:
        """Closes entries whose process has ended, or that are of another boot."""
        said: list[str] = []
        for entry in self._journal.entries:
            stale: tuple[str, str] | None = None
            try:
                stale = self._stale(entry) if entry.state != "open" else None
                if stale is None:
                    continue
                self._journal.closed(entry.id, *stale)
                if stale[0] != "other-boot":
                    self._drop_cpuset(entry)
            except TROUBLE as error:
                said.append(f"{stale[1] if stale else entry.open.comm}; {words(error)}")
                continue
            said.append(f"{stale[1]}: nothing to undo")
        return said


def _whose(action: SetAffinity, comm: str) -> str:
    """Subject and verb of a sentence about an action's threads."""
    pid = action.target.pid
    tids = action.tids or ((action.target.tid,) if action.target.tid else ())
    if not tids:
        return f"every thread of {comm} ({pid}) is"
    if len(tids) == 1:
        return f"thread {tids[0]} of {comm} ({pid}) is"
    return f"each of the {len(tids)} threads named of {comm} ({pid}) is"


def _upon(later: Entry, entry: Entry) -> bool:
    """Whether an entry made later changed again what an earlier one had changed."""
    a, b = later.open, entry.open
    if later.id <= entry.id:
        return False
    if MIGRATE in (a.act, b.act):
        return False
    if a.knob or b.knob:
        return (a.knob, a.subject) == (b.knob, b.subject)
    same = (a.boot, a.pid, a.start_time) == (b.boot, b.pid, b.start_time)
    parts = later.former.keys() & entry.former.keys()
    return same and bool(a.cpuset or b.cpuset or parts)


def _check_whole(left: Iterable[Left]) -> None:
    """Raises ActError where something could not be written back: the entry then stays open."""
    blocked = [note for note in left if note.why is Why.BLOCKED]
    if blocked:
        more = f" (and {many(len(blocked) - 1, 'thread')} more)" if len(blocked) > 1 else ""
        raise ActError(f"{blocked[0].message}{more}; the undo stays open", blocked[0].remedy)


def _check_reachable(entry: Entry, up: CpuSet | None) -> None:
    """Raises ActError, before anything is changed, where a living thread's former CPUs are all
    offline: out of its cpuset it would run anywhere."""
    for (tid, start), mask in sorted(entry.former.items()):
        words = affinity.offline_words(mask, up)
        stat = stat_of(entry.open.pid, tid)
        if words is not None and stat is not None and stat.start_time == start:
            raise ActError(
                f"thread {tid} of process {entry.open.pid} cannot go back to {mask}: {words[0]}; "
                f"it stays in {entry.open.cpuset}, and the undo stays open",
                words[1],
            )


def _heir(entry: Entry) -> CpuSet | None:
    """The mask for what was born under the pin: the main thread's before, else everybody's."""
    main = next((m for (tid, _), m in entry.former.items() if tid == entry.open.pid), None)
    if main is not None:
        return main
    return _all(entry.former.values())


def _all(masks: Iterable[CpuSet]) -> CpuSet | None:
    found = CpuSet()
    for mask in masks:
        found |= mask
    return found or None


def _former(number: int, outside: list[Thread], inside: list[Thread]) -> Former:
    return Former(
        id=number,
        threads=[(t.tid, t.start_time, str(t.mask)) for t in outside],
        kept=[(t.tid, t.start_time, str(t.mask)) for t in inside],
    )
