"""The guard's side that reads: steers who is guarded, and takes what happened. No right, no bpf(2).

Layout: bpf/guard_abi.h.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.notice import Change, Kind, Noticed, unit_of
from nodeagent.probe import loader
from nodeagent.probe.loader import Ring
from nodeagent.probe.memory import REMOVED, close_all
from nodeagent.probe.runq import start_ticks
from nodeagent.probe.users import Users

KINDS = tuple(Kind)
UNSET = 0xFFFFFFFF
"""loginuid and sessionid of what descends from no login. Source: include/linux/audit.h."""

_NOTE = struct.Struct("<QIIII")
_AUTHOR = struct.Struct("<IIIIIIQ16s64s64s64s32Q")

MAX_STALE = 64
"""Takes until an old ring is empty; it holds four."""

MAX_TAKES = 8
"""The same of one look; what is left then makes the ring readable."""

MAX_AUTHORS = 256
"""Authors remembered for the short records that name them."""


def start_ns(pid: int) -> int | None:
    """Start of a process since boot, rounded down to a clock tick; None: there is none."""
    ticks = start_ticks(pid)
    return None if ticks is None else ticks * 10_000_000


class Watch:
    """The mapped array: which processes are guarded, and counts. Takes no descriptor over."""

    def __init__(self, fd: int) -> None:
        bpf = loader.native()
        self._ffi, self._lib = bpf.ffi, bpf.lib
        size = bpf.ffi.sizeof("struct ng_watch")
        self._map = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._buffer = bpf.ffi.from_buffer("struct ng_watch[]", self._map)
        self._watch = self._buffer[0]
        self.slots: int = self._lib.NG_SLOTS

    def close(self) -> None:
        """Unmaps; the programs go on with what stands there."""
        del self._watch
        self._ffi.release(self._buffer)
        self._map.close()

    def arm(self, cpus: CpuSet) -> None:
        """The programs act on these CPUs only."""
        for index, value in enumerate(self._words(cpus)):
            self._watch.armed[index] = value

    def own(self, pids: Sequence[int]) -> None:
        """Changes by these are our own."""
        for index in range(self._lib.NG_OWN):
            self._watch.own[index] = pids[index] if index < len(pids) else 0

    def put(self, slot: int, pid: int, began_ns: int, mask: CpuSet | None) -> bool:
        """Guards a process in a free slot; mask None: it may run anywhere. False: the table has no
        entry near its home."""
        for at in range(self._lib.NG_TGID_PROBES):
            index = (pid * 2654435769 & 0xFFFFFFFF) >> 22
            index = index + at & self._lib.NG_TGIDS - 1
            if self._watch.tgids[index] in (0, REMOVED):
                break
        else:
            return False
        entry = self._watch.slots[slot]
        entry.start_ns = began_ns
        for kind in range(4):
            entry.told[kind] = 0
        self.mask(slot, mask)
        self._watch.slot_of[index] = slot
        self._watch.tgids[index] = pid
        self._watch.watching += 1
        return True

    def mask(self, slot: int, mask: CpuSet | None) -> None:
        """Where the threads of a slot belong."""
        words = self._watch.slots[slot].mask
        for index, value in enumerate(self._words(mask)):
            words[index] = value

    def remove(self, pid: int) -> None:
        """Guards a process no more."""
        for at in range(self._lib.NG_TGID_PROBES):
            index = (pid * 2654435769 & 0xFFFFFFFF) >> 22
            index = index + at & self._lib.NG_TGIDS - 1
            if self._watch.tgids[index] == pid:
                self._watch.tgids[index] = REMOVED
                self._watch.watching -= 1
                return

    def forget(self) -> None:
        """Guards nothing; a former reader's entries too."""
        for index in range(self._lib.NG_TGIDS):
            self._watch.tgids[index] = 0
        self._watch.watching = 0

    def awaited(self, more: int) -> None:
        """Programs that strangers begin are told too: a process to come may be one to guard."""
        self._watch.watching += more

    def next_look(self) -> None:
        """What happens from now on is told anew."""
        self._watch.generation = self._watch.generation + 1 & 0xFFFFFFFF or 1

    def count(self, kind: Kind) -> int:
        """How often that happened since the programs were loaded."""
        count: int = self._watch.counts[KINDS.index(kind)]
        return count

    @property
    def lost(self) -> int:
        """Records that the ring had no room for."""
        lost: int = self._watch.lost
        return lost

    def _words(self, cpus: CpuSet | None) -> list[int]:
        if cpus is None:
            return [0xFFFFFFFFFFFFFFFF] * self._lib.NG_CPU_WORDS
        values = [0] * self._lib.NG_CPU_WORDS
        for cpu in cpus:
            if cpu < self._lib.NG_MAX_CPUS:
                values[cpu >> 6] |= 1 << (cpu & 63)
        return values


class Notices:
    """What the daemon holds. At most 256 processes: `left_out` says how many were not guarded by
    eBPF, which the poll still sees.

    Without programs it is empty and `reason` says why.
    """

    def __init__(self, watch: Watch | None, ring: Ring | None, description: Mapping[str, Any]):
        self._watch, self._ring = watch, ring
        self.reason: str = description.get("reason", "")
        """Why nothing is noticed; "": it is."""
        self.authors: str = description.get("authors", "")
        """How the author of an affinity change is known: lsm, fentry or kprobe; "": it is not."""
        self.refused: tuple[str, ...] = tuple(description.get("refused", ()))
        """Why not, by each way that was tried."""
        self.left_out = 0
        self._awaiting = False
        self._slots: dict[int, tuple[int, int, CpuSet | None]] = {}
        """pid -> slot, start, mask."""
        self._free = list(range(watch.slots)) if watch is not None else []
        self._authors: dict[int, Change] = {}
        self._users = Users()
        self._lost = watch.lost if watch is not None else 0
        if watch is not None and ring is not None:
            watch.forget()
            watch.next_look()
            # What was told before, to the loader's trial or a former reader, is not ours.
            for _ in range(MAX_STALE):
                if not ring.take():
                    break

    @classmethod
    def from_fds(cls, description: Mapping[str, Any], fds: Sequence[int]) -> Self:
        """From what `guarding.load` answered, here or in the actor. Maps and closes the fds.

        Raises OSError where the kernel refuses the mapping, UnavailableError for the ring.
        """
        try:
            if not description["available"]:
                return cls(None, None, description)
            watch = Watch(fds[0])
            ring = Ring(fds[1], loader.native().lib.NG_RING_BYTES)
        finally:
            close_all(fds)
        return cls(watch, ring, description)

    @property
    def available(self) -> bool:
        """Whether programs are attached."""
        return self._watch is not None

    def fileno(self) -> int | None:
        """Readable when something came; None: nothing ever comes."""
        return None if self._ring is None else self._ring.fileno()

    def watch(self, masks: Mapping[int, CpuSet | None], *, awaiting: bool = False) -> bool:
        """Exactly these processes: pid -> where its threads belong; None: anywhere. `awaiting`:
        others may come, so a program that begins is told though there is nothing to guard yet.

        True: one is new or belongs elsewhere now; what happened to it since `take` is not told."""
        watch, changed = self._watch, False
        if watch is None:
            return False
        if awaiting != self._awaiting:
            watch.awaited(1 if awaiting else -1)
            self._awaiting = awaiting
        for pid in [pid for pid in self._slots if pid not in masks]:
            watch.remove(pid)
            self._free.append(self._slots.pop(pid)[0])
        self.left_out = 0
        for pid, mask in sorted(masks.items()):
            held = self._slots.get(pid)
            if held is None:
                began = start_ns(pid)
                if began is None:
                    continue
                if not self._free or not watch.put(self._free[0], pid, began, mask):
                    self.left_out += 1
                    continue
                self._slots[pid] = (self._free.pop(0), began, mask)
            elif held[2] != mask:
                watch.mask(held[0], mask)
                self._slots[pid] = (held[0], held[1], mask)
            else:
                continue
            changed = True
        return changed

    def forget(self, pid: int) -> None:
        """A pid that now is another process: guarded anew by the next `watch`."""
        if self._watch is not None and pid in self._slots:
            self._watch.remove(pid)
            self._free.append(self._slots.pop(pid)[0])

    def take(self) -> Noticed:
        """What came since the last call. To be called before the processes are looked at: what
        happens from then on is told again."""
        watch, ring = self._watch, self._ring
        if watch is None or ring is None:
            return Noticed()
        began_ns = time.monotonic_ns()
        watch.next_look()
        offset_ns = time.time_ns() - time.monotonic_ns()
        changes: list[Change] = []
        pids: set[int] = set()
        kinds: set[Kind] = set()
        first: int | None = None
        taken: list[bytes] = []
        for _ in range(MAX_TAKES):
            # Until nothing is left: the kernel wakes us only when it saw that we had caught up.
            if not (some := ring.take()):
                break
            taken += some
        if any(_NOTE.unpack_from(data)[0] >= began_ns for data in taken):
            # Told in the look that has just begun, and taken: what follows would be told no more.
            # The processes are looked at after this.
            watch.next_look()
        for data in taken:
            at_ns, number, tgid, tid, cpu = _NOTE.unpack_from(data)
            kind = KINDS[number]
            first = at_ns if first is None else min(first, at_ns)
            kinds.add(kind)
            if tgid:
                pids.add(tgid)
            if len(data) > _NOTE.size:
                change = _change(data, kind, at_ns + offset_ns, tgid, tid, self._users)
                self._remember(change)
                changes.append(change)
            elif kind is Kind.AFFINITY and (author := self._authors.get(cpu)) is not None:
                changes.append(
                    replace(author, at_ns=at_ns + offset_ns, pid=tgid, tid=tid, mask=None)
                )
        lost = watch.lost
        more, self._lost = lost - self._lost, lost
        return Noticed(
            pids=frozenset(pids),
            kinds=frozenset(kinds),
            changes=tuple(changes),
            lost=more,
            first_ns=first,
        )

    def _remember(self, change: Change) -> None:
        self._authors.pop(change.by_pid, None)
        self._authors[change.by_pid] = change
        if len(self._authors) > MAX_AUTHORS:
            del self._authors[next(iter(self._authors))]

    def count(self, kind: Kind) -> int:
        """How often that happened since the programs were loaded; 0 without programs."""
        return 0 if self._watch is None else self._watch.count(kind)

    def close(self) -> None:
        """Guards nothing any more and unmaps."""
        if self._watch is not None and self._ring is not None:
            self._watch.forget()
            self._watch.close()
            self._ring.close()
        self._watch = self._ring = None
        self._slots.clear()


def _change(data: bytes, kind: Kind, at_ns: int, tgid: int, tid: int, users: Users) -> Change:
    by, uid, login, session, has_mask, _, cgroup, comm, leaf, parent, file, *mask = (
        _AUTHOR.unpack_from(data, _NOTE.size)
    )
    return Change(
        kind=kind,
        at_ns=at_ns,
        pid=tgid,
        tid=tid if kind is Kind.AFFINITY else 0,
        by_pid=by,
        comm=_text(comm),
        uid=uid,
        user=users.name(uid),
        login=None if login == UNSET else login,
        login_name="" if login == UNSET else users.name(login),
        session=None if session == UNSET else session,
        unit=unit_of(_text(leaf), _text(parent)),
        mask=CpuSet.of(_bits(mask)) if has_mask else None,
        cgroup_id=cgroup,
        file=_text(file),
    )


def _bits(words: Iterable[int]) -> Iterable[int]:
    for index, word in enumerate(words):
        while word:
            low = word & -word
            yield index * 64 + low.bit_length() - 1
            word ^= low


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "replace")
