"""`PutBack`: the former masks of a process's threads, and the cpuset it was in.

What somebody else set later is left, and said; what was born under the pin gets the mask that its
main thread had before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nodeagent.errors import ActError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.words import many
from nodeagent.pin import affinity, cpuset
from nodeagent.pin.affinity import Left, Why
from nodeagent.pin.proc import Thread, descendants, mask_of, stat_of, threads_of
from nodeagent.pin.records import Entry
from nodeagent.pin.step import step
from nodeagent.pin.undo import Journal


class PutBack:
    """Puts back what the entries of `journal` recorded."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def put_back(self, entry: Entry, *, whole: bool) -> list[Left]:
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

        # When a CPU of a mask goes offline, Linux before 6.2 lets the thread run everywhere (seen
        # on 6.1); later ones when all do, and they remember the mask: undo must end that.
        widened = up is not None and bool(entry.cpus - up)

        def ours(mask: CpuSet) -> bool:
            if widened and up is not None and mask & up == up:
                return True
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
        # Where former masks are lost, whose child a thread is cannot be told.
        heir = None if entry.lost else _heir(entry)
        if heir is not None:
            for pid, thread in born:
                note = affinity.put_back(pid, thread.tid, thread.start_time, heir, ours)
                if note is not None:
                    left.append(note)
            # Somebody may have been born of a thread that was still pinned while this went on.
            for pid, thread in self._born(entry, ours) if whole else ():
                affinity.put_back(pid, thread.tid, thread.start_time, heir, ours)
        if entry.lost:
            left.append(_lost(entry, ours))
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

    def _leave_cpuset(self, entry: Entry) -> str:
        """Moves the process, and what was born in its cpuset, back to where it was."""
        tree = cpuset.find()
        o = entry.open
        now = cpuset.path_of(tree, o.pid)
        if now is None:
            self.drop_cpuset(entry)
            return ""
        if now != o.cpuset:
            if now == o.cgroup_before:
                self.drop_cpuset(entry)
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
        self.drop_cpuset(entry)
        if back != o.cgroup_before:
            return f"cgroup {o.cgroup_before} is not there any more: process {o.pid} is in {back}"
        return ""

    def drop_cpuset(self, entry: Entry) -> None:
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


def _lost(entry: Entry, ours: Callable[[CpuSet], bool]) -> Left:
    """What to say of threads whose former masks the journal has no longer."""
    pid = entry.open.pid
    said = (
        f"the former masks of {many(entry.lost, 'thread')} of process {pid} stood in a lost part "
        "of the undo journal"
    )
    known = entry.former.keys() | entry.kept.keys()
    bound = [t for t in threads_of(pid) if (t.tid, t.start_time) not in known and ours(t.mask)]
    if not bound:
        return Left(why=Why.LATER, message=f"{said}; none is on {entry.cpus} any more")
    return Left(
        why=Why.BLOCKED,
        message=f"{said}, and {many(len(bound), 'thread')} of it "
        f"{'is' if len(bound) == 1 else 'are'} on {entry.cpus} still",
        remedy=f"set them by hand (taskset -a -p -c LIST {pid}; audit.jsonl says what was before), "
        "then undo again",
    )


def check_whole(left: Iterable[Left]) -> None:
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
