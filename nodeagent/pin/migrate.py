"""`Migrations`: moves a running process's memory, one bounded step a call.

First a pass that only looks, in steps too; then room on the target, the undo record, and a pass
that moves. Every page is asked where it is after its step. Between two steps the actor serves
everybody else; what it knows of a moving is in memory only, and a restart looks again: pages that
have moved are where they are, and the process is whole at every moment (docs/adr/0019).
"""

from __future__ import annotations

import time

from nodeagent.errors import ActError, NodeagentError, ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.memory import (
    by_node_text,
    by_node_words,
    local_share,
    outside,
    parse_by_node,
    size,
)
from nodeagent.model.placement import ActionResult, MigrateMemory, Outcome
from nodeagent.pin import affinity
from nodeagent.pin.affinity import GoneError
from nodeagent.pin.asked import TROUBLE, Asked, words
from nodeagent.pin.mover import Mover, NotYetError, Walked
from nodeagent.pin.moving import Moving, Step
from nodeagent.pin.noderoom import available, check_room, mems_allowed, pulled_back
from nodeagent.pin.proc import stat_of
from nodeagent.pin.records import Entry, Open
from nodeagent.pin.step import step
from nodeagent.pin.undo import Journal

ACT = "migrate_memory"
IDLE_S = 3.0
"""A moving without a step for so long has been left by who asked for it: another may begin."""
RECOVER_S = 15.0
"""Time that a start spends on looking how far an interrupted moving came."""


class BusyError(ActError):
    """Another moving is under way."""


class Migrations:
    """Moves memory; `boot` is this boot's id."""

    def __init__(self, journal: Journal, boot: str) -> None:
        self._journal = journal
        self._boot = boot
        self._mover = Mover()
        self._moving: Moving | None = None
        """One at a time: two would send the child to and fro."""

    def perform(self, action: MigrateMemory, asked: Asked, ticks: int, *, go_on: bool) -> Step:
        """One step of it."""
        moving: Moving | None = None
        try:
            comm = affinity.check_alive(action.target.pid, action.target.start_time)
            moving = self._under_way(action) if go_on else self._begin(action, comm)
            if moving is None:
                raise ActError(
                    f"moving the memory of {comm} ({action.target.pid}) was ended meanwhile: by "
                    "undo, or with the actor",
                    "nodeagentctl place apply --yes goes on where it stopped",
                )
            if not moving.opened:
                self._mover.begin(action.target.pid)
                moving.opened = True
            if moving.entry is None:
                return self._look(action, moving, asked, ticks)
            return self._move(action, moving)
        except NotYetError as late:
            assert moving is not None
            return moving.more(str(late))
        except TROUBLE as error:
            return self._failed(action, moving or self._under_way(action), error)
        finally:
            if moving is not None:
                moving.at_s = time.monotonic()

    def _under_way(self, action: MigrateMemory) -> Moving | None:
        key = action.target.pid, action.target.start_time
        return self._moving if self._moving is not None and self._moving.key == key else None

    def interrupted(self, action: MigrateMemory, why: ActionResult) -> ActionResult:
        """An act that was refused (frozen, no consent): what that means for a moving under way."""
        moving = self._under_way(action)
        if moving is None or moving.entry is None:
            return why
        return self._stopped(moving, why.message).result

    def leave(self, why: str, *, idle_only: bool = False) -> tuple[MigrateMemory, Step] | None:
        """Ends a moving that nobody asks the next step of; what to record of it, where something
        was to be moved. `idle_only`: only one without a step for IDLE_S."""
        moving = self._moving
        if moving is None or (idle_only and time.monotonic() - moving.at_s < IDLE_S):
            return None
        if moving.entry is None:
            self._end()
            return None
        return moving.action, self._stopped(moving, why)

    # One moving.

    def _begin(self, action: MigrateMemory, comm: str) -> Moving:
        pid, now, other = action.target.pid, time.monotonic(), self._moving
        if other is not None:
            # One that was left has been ended before (`leave`).
            raise BusyError(
                f"the memory of {other.comm} ({other.key[0]}) is being moved, and one process's is "
                "moved at a time",
                "wait until it is done, or stop it: Ctrl-C where it was asked for",
            )
        affinity.check_unmanaged(pid, comm)
        if action.to not in action.nodes:
            raise ActError(f"node {action.to} is none of the planned {action.nodes}", "")
        allowed = mems_allowed(pid)
        if action.to not in allowed:
            raise ActError(
                f"{comm} ({pid}) may have memory of node {allowed or '(none)'} only, so none of it "
                f"can go to node {action.to}",
                "widen cpuset.mems (AllowedMemoryNodes=) of its unit or container, or start it "
                "anew with nodeagentctl exec",
            )
        available(action.to)
        self._moving = Moving(action=action, comm=comm, began_s=now, at_s=now)
        return self._moving

    def _look(self, action: MigrateMemory, moving: Moving, asked: Asked, ticks: int) -> Step:
        moving.before.add(self._mover.look())
        pid, comm = action.target.pid, moving.comm
        if not moving.before.done:
            seen = sum(moving.before.by_node.values())
            return moving.more(f"{size(seen)} looked at")
        by_node = moving.before.by_node
        bytes_ = outside(by_node, action.nodes)
        text = by_node_text(by_node)
        if bytes_ == 0:
            self._end()
            done = ActionResult(
                outcome=Outcome.DONE,
                message=f"all memory of {comm} ({pid}) is on node {action.nodes} already "
                f"({by_node_words(by_node)})",
                read_back=text,
            )
            return Step(result=done, before=text)
        check_room(action, comm, bytes_)
        fresh = self._journal.next_id
        moving.entry = self._record(action, comm, text, asked, ticks)
        moving.resumed = moving.entry.id != fresh
        step("memory.begun")
        moving.opened = False
        return moving.more(f"{size(bytes_)} to move to node {action.to}")

    def _record(
        self, action: MigrateMemory, comm: str, before: str, asked: Asked, ticks: int
    ) -> Entry:
        """A new entry, or the one of an earlier try with the same process: its `before` stands."""
        pid, start = action.target.pid, action.target.start_time
        for entry in self._journal.entries:
            o = entry.open
            same = (o.act, o.boot, o.pid, o.start_time) == (ACT, self._boot, pid, start)
            if same and o.value == str(action.to) and entry.state != "undoing":
                self._journal.resumed(entry.id)
                return entry
        return self._journal.begin(
            Open(
                id=self._journal.next_id,
                act=ACT,
                boot=self._boot,
                at_ns=time.time_ns(),
                ticks=ticks,
                by=asked.by,
                why=asked.why,
                workload=action.workload,
                pid=pid,
                start_time=start,
                comm=comm,
                mems=str(action.nodes),
                value=str(action.to),
                value_before=before,
            )
        )

    def _move(self, action: MigrateMemory, moving: Moving) -> Step:
        why = moving.no_room(available(action.to))
        if why is not None:
            return self._stopped(moving, why)
        # Again: the number may be another's by now.
        affinity.check_alive(action.target.pid, action.target.start_time)
        walked = self._mover.move(action.to, action.nodes, moving.step_bytes)
        step("memory.moved")
        why = moving.after(walked)
        if why is not None:
            return self._stopped(moving, why)
        if walked.done:
            return self._finished(action, moving)
        return moving.more(moving.far())

    def _finished(self, action: MigrateMemory, moving: Moving) -> Step:
        now, pid = moving.now, action.target.pid
        seconds = time.monotonic() - moving.began_s
        share = local_share(now.by_node, action.nodes)
        words_ = [f"{moving.comm} ({pid}): {moving.far()} in {seconds:.1f} s"]
        if now.calls:
            words_.append(f"no step kept pages longer than {now.longest_ns / 1e6:.0f} ms")
        if now.staying.total:
            words_.append(f"stay where they are: {now.staying.words()}")
        if share is not None:
            words_.append(
                f"{share:.1%} of it is on node {action.nodes} now ({by_node_words(now.by_node)})"
            )
        back = pulled_back(pid, action.to)
        if back:
            words_.append(back)
        return self._ended(moving, moving.outcome, "; ".join(words_))

    def _stopped(self, moving: Moving, why: str) -> Step:
        """Between two steps: the process runs on, with its memory in two places."""
        text = (
            f"{moving.comm} ({moving.key[0]}): stopped with {moving.far()}: {why}; the "
            "process runs on, and nodeagentctl place apply --yes goes on from here"
        )
        return self._ended(moving, Outcome.FAILED, text)

    def _ended(self, moving: Moving, outcome: Outcome, text: str) -> Step:
        assert moving.entry is not None
        self._end()
        before = moving.entry.open.value_before
        after = by_node_text(moving.now.by_node) if moving.now.done else ""
        try:
            # What an earlier try moved is still to be told by undo.
            if outcome is Outcome.REFUSED and not moving.resumed:
                self._journal.closed(moving.entry.id, "reverted", text)
            else:
                self._journal.done(moving.entry.id, after)
        except ActError as late:
            # The next start finds it open and looks.
            text += f" ({late})"
        step("memory.ended")
        result = ActionResult(
            outcome=outcome, message=text, read_back=after or None, journal_id=moving.entry.id
        )
        return Step(result=result, before=before, facts=moving.facts())

    def _failed(
        self, action: MigrateMemory, moving: Moving | None, error: NodeagentError | OSError
    ) -> Step:
        text, gone = words(error), isinstance(error, GoneError)
        if moving is None or moving.entry is None or isinstance(error, BusyError):
            if moving is not None and not isinstance(error, BusyError):
                self._end()
            outcome = Outcome.GONE if gone else Outcome.REFUSED
            return Step(result=ActionResult(outcome=outcome, message=text))
        if not gone:
            return self._stopped(moving, text)
        self._end()
        text = f"{text}, with {moving.far()}"
        try:
            self._journal.closed(moving.entry.id, "gone", text)
        except ActError as late:
            text += f" ({late})"
        return Step(
            result=ActionResult(outcome=Outcome.GONE, message=text, journal_id=moving.entry.id),
            before=moving.entry.open.value_before,
        )

    def _end(self) -> None:
        self._moving = None
        self._mover.close()

    # Afterwards.

    def undo(self, entry: Entry) -> ActionResult:
        """Memory stays where it is: moving it back would be another moving, with its stalls, and
        an undo is asked for when something is wrong already. Says where it lay before."""
        o = entry.open
        if self._moving is not None and self._moving.entry is entry:
            self._end()
        stat = stat_of(o.pid)
        try:
            if o.boot != self._boot or stat is None or stat.dead or stat.start_time != o.start_time:
                how, outcome, text = "gone", Outcome.GONE, f"{o.comm} ({o.pid}) has ended"
            else:
                how, outcome = "kept", Outcome.DONE
                text = (
                    f"the memory of {o.comm} ({o.pid}) that was moved to node {o.value} stays "
                    f"there (before: {_told(o.value_before)}); it can be moved back, in one go "
                    f"and with its stall: migratepages {o.pid} {o.value} "
                    f"{_elsewhere(o.value_before, o.mems)}"
                )
            self._journal.closed(entry.id, how, text)
            step("undo.closed")
        except TROUBLE as error:
            message = words(error)
            return ActionResult(outcome=Outcome.FAILED, message=message, journal_id=entry.id)
        return ActionResult(outcome=outcome, message=text, journal_id=entry.id)

    def stale(self, entry: Entry) -> tuple[str, str] | None:
        """(how to close it, the sentence) when its process is not there any more."""
        o = entry.open
        if o.boot != self._boot:
            return "other-boot", f"{o.comm} ({o.pid}) was moved before the machine was restarted"
        stat = stat_of(o.pid)
        if stat is None or stat.dead:
            return "gone", f"{o.comm} ({o.pid}) has ended"
        if stat.start_time != o.start_time:
            return "reused", f"{o.comm} ({o.pid}) has ended; {stat.comm} has its number now"
        return None

    def recover(self, entry: Entry) -> tuple[Outcome, str]:
        """A moving that was interrupted: how far it came, as the pages themselves say."""
        o = entry.open
        what = f"moving the memory of {o.comm} ({o.pid}) for workload {o.workload}"
        try:
            stale = self.stale(entry)
            if stale is not None:
                self._journal.closed(entry.id, *stale)
                return Outcome.GONE, f"{what} was interrupted, and {stale[1]}"
            if entry.state == "undoing":
                return self.undo(entry).outcome, f"the interrupted undo of {what} was completed"
            by_node = _look_for(o.pid, RECOVER_S)
            nodes = CpuSet.parse(o.mems)
            left = outside(by_node, nodes) if by_node is not None else None
            self._journal.done(entry.id, by_node_text(by_node or {}))
        except TROUBLE as error:
            # Nothing is half done to the process: only how far it came is not known.
            said = f"{what} was interrupted, and how far it came is not known"
            return Outcome.FAILED, f"{said}: {words(error)}"
        if by_node is None or left is None:
            return Outcome.FAILED, (
                f"{what} was interrupted; how far it came takes longer than {RECOVER_S:g} s to "
                "look up: nodeagentctl place status"
            )
        text = (
            f"{what} was interrupted: before, {_told(o.value_before)}; now, "
            f"{by_node_words(by_node)}; {size(left)} is left, and nodeagentctl place apply --yes "
            "goes on"
        )
        return (Outcome.FAILED if left else Outcome.DONE), text


def _look_for(pid: int, seconds: float) -> dict[int, int] | None:
    """Bytes by node; None: it took too long."""
    mover, end, found = Mover(), time.monotonic() + seconds, Walked()
    begun = False
    try:
        while not found.done:
            if time.monotonic() > end:
                return None
            try:
                if begun:
                    found.add(mover.look())
                else:
                    mover.begin(pid)
                    begun = True
            except NotYetError:
                continue
    finally:
        mover.close()
    return found.by_node


def _told(text: str) -> str:
    try:
        return by_node_words(parse_by_node(text))
    except ParseError:
        return text


def _elsewhere(before: str, mems: str) -> str:
    """The nodes that it was moved from, as migratepages(8) takes them."""
    try:
        nodes = set(parse_by_node(before)) - CpuSet.parse(mems).ids
    except ParseError:
        return "NODE"
    return ",".join(map(str, sorted(nodes))) or "NODE"
