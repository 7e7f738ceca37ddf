"""`Migrations`: moves a running process's memory, one bounded step a call.

First a pass that only looks, in steps too; then room on the target, the undo record, and a pass
that moves. Every page is asked where it is after its step. Between two steps the actor serves
everybody else; what it knows of a moving is in memory only, and a restart looks again: pages that
have moved are where they are, and the process is whole at every moment (docs/adr/0019).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from nodeagent.errors import ActError, NodeagentError, ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.memory import (
    FIRST_STEP_BYTES,
    by_node_text,
    by_node_words,
    local_share,
    next_step,
    outside,
    parse_by_node,
    room_needed,
    size,
)
from nodeagent.model.placement import ActionResult, MigrateMemory, Outcome
from nodeagent.pin import affinity
from nodeagent.pin.affinity import GoneError
from nodeagent.pin.asked import TROUBLE, Asked, words
from nodeagent.pin.mover import Mover, NotYetError, Walked
from nodeagent.pin.proc import PROC, stat_of, threads_of
from nodeagent.pin.records import Entry, Open
from nodeagent.pin.step import step
from nodeagent.pin.undo import Journal

ACT = "migrate_memory"
NODES = Path("/sys/devices/system/node")
IDLE_S = 3.0
"""A moving without a step for so long has been left by who asked for it: another may begin."""
RECOVER_S = 15.0
"""Time that a start spends on looking how far an interrupted moving came."""
_CACHE = ("Active(file)", "Inactive(file)", "SReclaimable")


@dataclass(slots=True, kw_only=True)
class Moving:
    """One moving under way. `entry` None: still looking. Times on the monotonic clock."""

    key: tuple[int, int]
    comm: str
    before: Walked = field(default_factory=Walked)
    now: Walked = field(default_factory=Walked)
    entry: Entry | None = None
    opened: bool = False
    """The child stands at the first mapping, for the pass that is under way."""
    step_bytes: int = FIRST_STEP_BYTES
    began_s: float
    at_s: float
    """When its last step ended."""

    def far(self, action: MigrateMemory) -> str:
        """How far it came."""
        total = outside(self.before.by_node, action.nodes)
        return f"{size(self.now.moved)} of {size(total)} moved to node {action.to}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one call did. `more`: ask for the next."""

    result: ActionResult
    before: str = ""
    more: bool = False
    facts: dict[str, int] = field(default_factory=dict)


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
            return _more(f"{moving.comm} ({action.target.pid}): {late}", moving, action)
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
        return self._stopped(action, moving, why.message).result

    # One moving.

    def _begin(self, action: MigrateMemory, comm: str) -> Moving:
        pid, now, other = action.target.pid, time.monotonic(), self._moving
        if other is not None and now - other.at_s < IDLE_S:
            raise BusyError(
                f"the memory of {other.comm} ({other.key[0]}) is being moved, and one process's is "
                "moved at a time",
                "wait until it is done, or stop it: Ctrl-C where it was asked for",
            )
        affinity.check_unmanaged(pid, comm)
        if action.to not in action.nodes:
            raise ActError(f"node {action.to} is none of the planned {action.nodes}", "")
        allowed = _mems_allowed(pid)
        if action.to not in allowed:
            raise ActError(
                f"{comm} ({pid}) may have memory of node {allowed or '(none)'} only, so none of it "
                f"can go to node {action.to}",
                "widen cpuset.mems (AllowedMemoryNodes=) of its unit or container, or start it "
                "anew with nodeagentctl exec",
            )
        _available(action.to)
        key = pid, action.target.start_time
        self._moving = Moving(key=key, comm=comm, began_s=now, at_s=now)
        return self._moving

    def _look(self, action: MigrateMemory, moving: Moving, asked: Asked, ticks: int) -> Step:
        moving.before.add(self._mover.look())
        pid, comm = action.target.pid, moving.comm
        if not moving.before.done:
            seen = sum(moving.before.by_node.values())
            return _more(f"{comm} ({pid}): {size(seen)} looked at", moving, action)
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
        _check_room(action, comm, bytes_)
        moving.entry = self._record(action, comm, text, asked, ticks)
        step("memory.begun")
        moving.opened = False
        return _more(
            f"{comm} ({pid}): {size(bytes_)} to move to node {action.to}",
            moving,
            action,
        )

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
        free = _available(action.to)
        if free < room_needed(moving.step_bytes):
            why = f"node {action.to} has {size(free)} free or reclaimable left"
            return self._stopped(action, moving, why)
        # Again: the number may be another's by now.
        affinity.check_alive(action.target.pid, action.target.start_time)
        walked = self._mover.move(action.to, action.nodes, moving.step_bytes)
        step("memory.moved")
        moving.now.add(walked)
        if walked.full:
            return self._stopped(action, moving, f"node {action.to} had no page left to give")
        if walked.done:
            return self._finished(action, moving)
        if walked.calls:
            took_ms = walked.longest_ns / 1e6
            wanted = next_step(moving.step_bytes, took_ms, action.stall_ms)
            if wanted is None:
                why = (
                    f"a step of {size(moving.step_bytes)}, the smallest, kept its pages for "
                    f"{took_ms:.0f} ms, over the stall bound of {action.stall_ms} ms"
                )
                return self._stopped(action, moving, why)
            moving.step_bytes = wanted
        return _more(f"{moving.comm} ({action.target.pid}): {moving.far(action)}", moving, action)

    def _finished(self, action: MigrateMemory, moving: Moving) -> Step:
        now, pid = moving.now, action.target.pid
        seconds = time.monotonic() - moving.began_s
        share = local_share(now.by_node, action.nodes)
        words_ = [f"{moving.comm} ({pid}): {moving.far(action)} in {seconds:.1f} s"]
        if now.calls:
            words_.append(f"no step kept pages longer than {now.longest_ns / 1e6:.0f} ms")
        if now.staying.total:
            words_.append(f"stay where they are: {now.staying.words()}")
        if share is not None:
            words_.append(
                f"{share:.1%} of it is on node {action.nodes} now ({by_node_words(now.by_node)})"
            )
        back = _pulled_back(pid, action.to)
        if back:
            words_.append(back)
        outcome = Outcome.DONE
        if now.moved == 0 and now.staying.total:
            outcome = Outcome.REFUSED
        return self._ended(action, moving, outcome, "; ".join(words_))

    def _stopped(self, action: MigrateMemory, moving: Moving, why: str) -> Step:
        """Between two steps: the process runs on, with its memory in two places."""
        text = (
            f"{moving.comm} ({action.target.pid}): stopped with {moving.far(action)}: {why}; the "
            "process runs on, and nodeagentctl place apply --yes goes on from here"
        )
        return self._ended(action, moving, Outcome.FAILED, text)

    def _ended(self, action: MigrateMemory, moving: Moving, outcome: Outcome, text: str) -> Step:
        assert moving.entry is not None
        self._end()
        before = moving.entry.open.value_before
        after = by_node_text(moving.now.by_node) if moving.now.done else ""
        try:
            if outcome is Outcome.REFUSED:
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
        return Step(result=result, before=before, facts=_facts(moving, action))

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
            return self._stopped(action, moving, text)
        self._end()
        text = f"{text}, with {moving.far(action)}"
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


def _more(text: str, moving: Moving, action: MigrateMemory) -> Step:
    result = ActionResult(
        outcome=Outcome.DONE,
        message=text,
        journal_id=None if moving.entry is None else moving.entry.id,
    )
    return Step(result=result, more=True, facts=_facts(moving, action))


def _facts(moving: Moving, action: MigrateMemory) -> dict[str, int]:
    return {
        "wanted_bytes": outside(moving.before.by_node, action.nodes) if moving.before.done else 0,
        "moved_bytes": moving.now.moved,
        "staying_bytes": moving.now.staying.total,
        "step_bytes": moving.step_bytes,
        "longest_ns": moving.now.longest_ns,
        "moving_ns": moving.now.moving_ns,
        "calls": moving.now.calls,
    }


def _check_room(action: MigrateMemory, comm: str, bytes_: int) -> None:
    free, need = _available(action.to), room_needed(bytes_)
    if free < need:
        raise ActError(
            f"node {action.to} has {size(free)} free or reclaimable; the {size(bytes_)} of {comm} "
            f"({action.target.pid}) on other nodes need {size(need)} there, with 10 % to spare",
            f"free memory on node {action.to} (numactl -H; who has it: numastat -p), or plan "
            "another node",
        )


def _available(node: int) -> int:
    """Bytes free, or page cache that can be dropped at once. Raises ActError."""
    path = NODES / f"node{node}/meminfo"
    found: dict[str, int] = {}
    try:
        text = path.read_text()
    except OSError as error:
        raise ActError(
            f"{path}: {error.strerror}, expected a node with memory", "nodeagentctl topology show"
        ) from error
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 4 and fields[3].isdecimal():
            found[fields[2].rstrip(":")] = int(fields[3]) << 10
    if not found.get("MemTotal"):
        raise ActError(f"node {node} has no memory", "nodeagentctl topology show lists the nodes")
    return found.get("MemFree", 0) + sum(found.get(name, 0) for name in _CACHE)


def _mems_allowed(pid: int) -> CpuSet:
    try:
        text = (PROC / str(pid) / "status").read_bytes().decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError) as error:
        raise GoneError(f"process {pid} has ended") from error
    for line in text.splitlines():
        if line.startswith("Mems_allowed_list:"):
            return CpuSet.parse(line.partition(":")[2].strip())
    return CpuSet()


def _pulled_back(pid: int, node: int) -> str:
    """A sentence where the kernel will take the memory back to where the threads run."""
    try:
        balancing = int((PROC / "sys/kernel/numa_balancing").read_text())
        cpus = CpuSet.parse((NODES / f"node{node}/cpulist").read_text())
    except (OSError, ValueError, ParseError):
        return ""
    away = CpuSet()
    for thread in threads_of(pid):
        away |= thread.mask - cpus
    if not balancing & 1 or not away:
        return ""
    return (
        f"kernel.numa_balancing is on and its threads may run on CPU {away}, off that node, so the "
        "kernel may move it away again: pin them there first, or turn it off (class host)"
    )


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
