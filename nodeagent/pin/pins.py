"""`Pins`: affinity of threads and cpusets of processes, each with its undo on the disk first.

What fails on the way is put back; where that fails too, the entry stays open and the outcome is
FAILED: the host is neither as planned nor as before.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from nodeagent.errors import ActError, NodeagentError, RightsError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import (
    ActionResult,
    MoveToCpuset,
    Outcome,
    ProcessAction,
    SetAffinity,
)
from nodeagent.model.words import many
from nodeagent.pin import affinity, cpuset
from nodeagent.pin.affinity import ContestedError, GoneError, Why
from nodeagent.pin.asked import TROUBLE, Asked, words
from nodeagent.pin.proc import (
    Thread,
    is_thread,
    lasting,
    mask_of,
    stat_of,
    threads_of,
    up_and_down,
)
from nodeagent.pin.putback import PutBack, check_whole
from nodeagent.pin.records import Entry, Former, Open
from nodeagent.pin.step import step
from nodeagent.pin.undo import Journal

SetOf = tuple[int, int, CpuSet]
"""(pid, start time, CPUs): what an entry put threads of which process on."""

Performed = tuple[ActionResult, str]
"""The result, and the masks before ("" when they were not read)."""


class Pins:
    """Acts on processes; `boot` is this boot's id."""

    def __init__(self, journal: Journal, boot: str) -> None:
        self._journal = journal
        self._boot = boot
        self._back = PutBack(journal)

    def perform(self, action: ProcessAction, asked: Asked, ticks: int) -> Performed:
        """Pins one process. Never raises for what happens to it."""
        if isinstance(action, SetAffinity):
            return self._set_affinity(action, asked, ticks)
        return self._move(action, asked, ticks)

    def _open(
        self, action: ProcessAction, comm: str, asked: Asked, ticks: int, **more: object
    ) -> Open:
        return Open(
            id=self._journal.next_id,
            act="set_affinity" if isinstance(action, SetAffinity) else "move_to_cpuset",
            boot=self._boot,
            at_ns=time.time_ns(),
            ticks=ticks,
            by=asked.by,
            why=asked.why,
            workload=action.workload,
            pid=action.target.pid,
            tid=action.target.tid,
            start_time=action.target.start_time,
            comm=comm,
            cpus=str(action.cpus),
            exclusive=action.exclusive,
            **more,  # type: ignore[arg-type]  # fields of Open, by name
        )

    def _set_affinity(self, action: SetAffinity, asked: Asked, ticks: int) -> Performed:
        target = action.target
        entry: Entry | None = None

        def before_change(outside: list[Thread], inside: list[Thread]) -> None:
            nonlocal entry
            if entry is None:
                record = self._open(action, comm, asked, ticks, tids=list(action.tids))
                entry = self._journal.begin(record, _former(record.id, outside, inside))
            else:
                self._journal.more(_former(entry.id, outside, inside))

        try:
            comm = affinity.check_alive(target.pid, target.start_time)
            affinity.check_unmanaged(target.pid, comm)
            if not action.cpus:
                raise ActError("no CPU is named to pin to", "nodeagentctl place plan")
            only = frozenset(action.tids or ((target.tid,) if target.tid else ()))
            got = affinity.pin(target.pid, target.start_time, only, action.cpus, before_change)
        except TROUBLE as error:
            return self._failed(entry, error)
        if entry is None:
            message = f"{_whose(action, comm)} inside {action.cpus} already"
            done = ActionResult(outcome=Outcome.DONE, message=message, read_back=str(got))
            return done, ""
        return self._finished(action, entry, comm, str(got))

    def _move(self, action: MoveToCpuset, asked: Asked, ticks: int) -> Performed:
        target = action.target
        entry: Entry | None = None
        try:
            comm = affinity.check_alive(target.pid, target.start_time)
            affinity.check_unmanaged(target.pid, comm)
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
                ticks,
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
            return self._failed(entry, error)
        return self._finished(action, entry, comm, str(got))

    @staticmethod
    def _move_process(tree: cpuset.Hierarchy, path: str, pid: int) -> None:
        try:
            cpuset.move(tree, path, pid)
        except ProcessLookupError as error:
            raise GoneError(f"process {pid} ended while it was moved") from error

    def _finished(self, action: ProcessAction, entry: Entry, comm: str, got: str) -> Performed:
        step("act.read-back")
        try:
            self._journal.done(entry.id, got)
        except ActError as error:
            return self._failed(entry, error)
        step("act.done")
        where = f" in {entry.open.cpuset}" if entry.open.cpuset else ""
        count = len(entry.former) + len(entry.kept)
        result = ActionResult(
            outcome=Outcome.DONE,
            message=f"{comm} ({action.target.pid}), {many(count, 'thread')}: on {got}{where}",
            read_back=got,
            journal_id=entry.id,
        )
        return result, str(entry.public().before)

    def _failed(self, entry: Entry | None, error: NodeagentError | OSError) -> Performed:
        """Puts back what was changed already."""
        gone, contested = isinstance(error, GoneError), isinstance(error, ContestedError)
        message = words(error)
        if entry is None:
            outcome = Outcome.GONE if gone else Outcome.REFUSED
            return ActionResult(outcome=outcome, message=message), ""
        left = self._revert(entry)
        if left:
            outcome, message = Outcome.FAILED, f"{message}; and not put back: {left[0]}"
        else:
            refused = isinstance(error, RightsError)
            outcome = Outcome.GONE if gone else Outcome.REFUSED if refused else Outcome.REVERTED
            if contested:
                message += "; it is left to them"
            elif not gone:
                message += "; everything is as before"
            try:
                self._journal.closed(entry.id, "gone" if gone else "reverted", message)
            except ActError as late:
                # The next start finds it open, sees that all is as before, and closes it.
                message += f" ({late})"
        result = ActionResult(
            outcome=outcome, message=message, journal_id=entry.id, contested=contested
        )
        return result, str(entry.public().before)

    def undo(self, entry: Entry) -> ActionResult:
        """The former masks, and the former cpuset."""
        before = entry.public().before
        try:
            stale = self.stale(entry)
            if stale is not None:
                self._journal.closed(entry.id, *stale)
                if stale[0] != "other-boot":
                    self._back.drop_cpuset(entry)
                result = ActionResult(outcome=Outcome.GONE, message=stale[1], journal_id=entry.id)
            else:
                if entry.state != "undoing":
                    self._journal.undoing(entry.id)
                step("undo.begun")
                left = self._back.put_back(entry, whole=True)
                step("undo.written")
                check_whole(left)
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
            return ActionResult(outcome=Outcome.FAILED, message=words(error), journal_id=entry.id)
        return result

    def recover(self, entry: Entry) -> tuple[Outcome, str, str]:
        """An act that was interrupted: completed when it had been made, else put back. The outcome,
        the sentence, and the masks after."""
        o = entry.open
        what = f"{o.act} of {o.comm} ({o.pid}) for workload {o.workload}"
        outcome, message, after = Outcome.REVERTED, "", ""
        try:
            stale = self.stale(entry)
            if stale is not None:
                outcome, message = Outcome.GONE, f"{what} was interrupted, and {stale[1]}"
                self._journal.closed(entry.id, *stale)
                if stale[0] != "other-boot":
                    self._back.drop_cpuset(entry)
            elif entry.state == "undoing":
                left = self._back.put_back(entry, whole=True)
                check_whole(left)
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
        return outcome, message, after

    def drop_cpuset(self, entry: Entry) -> None:
        """The cpuset of an entry that is closed."""
        self._back.drop_cpuset(entry)

    def _now(self, entry: Entry) -> CpuSet:
        found = CpuSet()
        for thread in threads_of(entry.open.pid):
            found |= thread.mask
        return found

    def stale(self, entry: Entry) -> tuple[str, str] | None:
        """(how to close it, the sentence) when there is nothing to write back to."""
        o = entry.open
        if o.boot != self._boot:
            return "other-boot", f"{o.comm} ({o.pid}) was pinned before the machine was restarted"
        stat = stat_of(o.pid)
        if stat is None or stat.dead:
            return "gone", f"{o.comm} ({o.pid}) has ended"
        if stat.start_time != o.start_time:
            return "reused", f"{o.comm} ({o.pid}) has ended; {stat.comm} has its number now"
        return None

    def spent(self, entry: Entry, firsts: Mapping[SetOf, int]) -> tuple[str, str] | None:
        """The same for a role's entry whose threads have all ended, as a pool's do all day. An
        older one of the same set must stand, for what was born of them is its undo's to widen."""
        o = entry.open
        if not o.tids or firsts.get(_set_of(entry), entry.id) >= entry.id:
            return None
        for tid, start in entry.former:
            stat = stat_of(o.pid, tid)
            if stat is not None and stat.start_time == start:
                return None
        return "gone", f"the threads of {o.comm} ({o.pid}) that were pinned have ended"

    def _revert(self, entry: Entry) -> list[str]:
        """Undo of an action that did not finish; what could not be put back."""
        try:
            if self.stale(entry) is not None:
                self._back.drop_cpuset(entry)
                return []
            left = self._back.put_back(entry, whole=False)
        except TROUBLE as error:
            return [words(error)]
        return [note.message for note in left if note.why is not Why.LATER]

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


def _set_of(entry: Entry) -> SetOf:
    return entry.open.pid, entry.open.start_time, entry.cpus


def first_of_each(entries: Iterable[Entry]) -> dict[SetOf, int]:
    """The oldest entry of each set whose undo widens what was born under it (putback.py)."""
    found: dict[SetOf, int] = {}
    for entry in entries:
        o = entry.open
        pinned = o.act == "set_affinity" and entry.state == "done"
        if pinned and not any(mask == entry.cpus for mask in entry.kept.values()):
            found.setdefault(_set_of(entry), entry.id)
    return found


def _whose(action: SetAffinity, comm: str) -> str:
    """Subject and verb of a sentence about an action's threads."""
    pid = action.target.pid
    tids = action.tids or ((action.target.tid,) if action.target.tid else ())
    if not tids:
        return f"every thread of {comm} ({pid}) is"
    if len(tids) == 1:
        return f"thread {tids[0]} of {comm} ({pid}) is"
    return f"each of the {len(tids)} threads named of {comm} ({pid}) is"


def _former(number: int, outside: list[Thread], inside: list[Thread]) -> Former:
    up, off = up_and_down()
    return Former(
        id=number,
        threads=[(t.tid, t.start_time, str(lasting(t.mask, up, off))) for t in outside],
        kept=[(t.tid, t.start_time, str(t.mask)) for t in inside],
    )
