"""kill -9 of the real feeder, again and again, with the real replayer sending and one reader that
stays: nothing torn, every gap counted exactly, never silent, nothing left behind.

What a tick must be follows from the capture that is replayed round and round: within one
incarnation each record is the message after the one before, but for what a WIRE_GAP counts (the
replayer withholds a packet now and then).
"""

from __future__ import annotations

import contextlib
import gc
import os
import pathlib
import random
import threading
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nodeagent.client.reader import Reader, Wait
from nodeagent.feed import synth
from nodeagent.feed.replay import Plan, Replayer
from nodeagent.native.feed import Kind, Memory, decode_capture
from nodeagent.native.ring import TICK
from tests.feed.processes import feeder
from tests.feed.ring_world import Daemon, until

OWN = Kind.RESTART
"""Kinds from here on are the ring's own records, not messages."""

GROUP = "239.192.74.1"
KILLS = int(os.environ.get("NODEAGENT_KILLS", "15"))
"""100 with NODEAGENT_KILLS=100; the last result stands in docs/proofs.md."""
RATE = 100_000
CAPACITY = 1 << 15
"""The smallest ring: a reader that sleeps for half a second is lapped."""
AUX_FRAME = 1
LAST_OF_PACKET = 4


def fingerprints(ticks: npt.NDArray[np.void]) -> npt.NDArray[np.uint64]:
    """One number a tick, of all that follows from its message: any changed bit changes it."""
    plain = ticks.copy()
    plain["seq"] = plain["ts_rx_ns"] = 0
    plain["aux"][plain["flags"] & AUX_FRAME != 0] = 0
    plain["flags"] &= np.uint16(0xFFFF ^ LAST_OF_PACKET)
    words = plain.view(np.uint64).reshape(-1, TICK.itemsize // 8)
    odd = np.uint64(0x9E3779B97F4A7C15) * np.arange(1, 17, 2, dtype=np.uint64)[: words.shape[1]]
    mixed = (words ^ (words >> np.uint64(29))) * odd
    prints: npt.NDArray[np.uint64] = (mixed ^ (mixed >> np.uint64(32))).sum(axis=1)
    return prints


class Expected:
    """The capture's ticks, by fingerprint."""

    def __init__(self, path: pathlib.Path) -> None:
        memory, counts, error = decode_capture(path, memory=Memory(1 << 16))
        ticks = memory.ticks[memory.ticks["kind"] < OWN]
        assert error is None and counts.published == len(ticks)
        prints = fingerprints(ticks)
        self.count = len(prints)
        self._order = np.argsort(prints)
        self._sorted = prints[self._order]
        assert np.all(self._sorted[1:] != self._sorted[:-1]), "messages that look alike"

    def places(self, ticks: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
        """Which message each tick is; -1: none, so it is torn."""
        prints = fingerprints(ticks)
        at = np.minimum(np.searchsorted(self._sorted, prints), self.count - 1)
        return np.where(self._sorted[at] == prints, self._order[at], -1)


@dataclass
class Seen:
    """What the reader saw."""

    records: int = 0
    torn: int = 0
    wrong_positions: int = 0
    wrong_messages: int = 0
    restarts: int = 0
    wire_gaps: int = 0
    laps: int = 0
    lost: int = 0
    overwritten: int = 0
    stales: int = 0
    silences: int = 0
    longest_s: float = 0.0
    switches: int = 0


class Watcher:
    """A reader in a thread, attached from the first feeder to after the last."""

    def __init__(self, socket: pathlib.Path, feed: str, expected: Expected, seed: int) -> None:
        self.reader = Reader.attach(feed, "watcher", socket=socket, wait_s=20)
        self._expected = expected
        self._chance = random.Random(seed)
        self._over = threading.Event()
        self.seen = Seen()
        self.failure: BaseException | None = None
        self._began = self._next = self.reader.cursor
        self._place = -1
        """Of the last message, -1: not known."""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._read()
        except BaseException as failure:
            self.failure = failure
            raise

    def _read(self) -> None:
        seen, told = self.seen, time.monotonic()
        while not self._over.is_set():
            batch = self.reader.batch(8192)
            if len(batch):
                self._check(batch.ticks.copy(), batch.validate(), batch.gap)
                batch.advance()
                if self._chance.random() < 0.002:
                    time.sleep(0.5)
                    told = time.monotonic()
                    continue
            else:
                # Progress or STALE within the second: never neither.
                result = self.reader.wait(1.0)
                seen.stales += result is Wait.STALE
                seen.silences += result is Wait.TIMEOUT
            now = time.monotonic()
            seen.longest_s, told = max(seen.longest_s, now - told), now

    def _check(self, ticks: npt.NDArray[np.void], overwritten: int, gap: int) -> None:
        seen = self.seen
        seen.laps += gap > 0
        seen.lost += gap + overwritten
        seen.overwritten += overwritten
        # Positions: what came before, plus the gap that was told, and then one after another.
        first = self._next + gap
        self._next = first + len(ticks)
        whole = ticks[overwritten:]
        at = np.arange(first + overwritten + 1, self._next + 1, dtype=np.uint64)
        seen.wrong_positions += int((whole["seq"] != at).sum())
        if gap or overwritten:
            self._place = -1
        seen.records += len(whole)
        own = whole["kind"] >= OWN
        places = self._expected.places(whole)
        seen.torn += int((~own & (places < 0)).sum())
        # Messages: each the one after the last, but for what a WIRE_GAP counts.
        start = 0
        for i in [*np.flatnonzero(own).tolist(), len(whole)]:
            self._follow(places[start:i])
            start = i + 1
            if i < len(whole) and whole["kind"][i] == Kind.RESTART:
                seen.restarts += 1
                self._place = -1
            elif i < len(whole) and whole["kind"][i] == Kind.WIRE_GAP:
                seen.wire_gaps += 1
                if self._place >= 0:
                    self._place += int(whole["size"][i])

    def _follow(self, places: npt.NDArray[np.int64]) -> None:
        if not len(places):
            return
        before = self._place if self._place >= 0 else int(places[0]) - 1
        steps = np.diff(places, prepend=before) - 1
        self.seen.wrong_messages += int((steps % self._expected.count != 0).sum())
        self._place = int(places[-1])

    def end(self) -> None:
        """Ends the thread."""
        self._over.set()
        self._thread.join()

    def close(self) -> Seen:
        """Ends the thread, detaches, adds up."""
        self.end()
        assert self.failure is None
        reader, seen = self.reader, self.seen
        seen.switches = reader.switches
        assert reader.renumbered == 0
        assert (reader.records, reader.lost) == (seen.records, seen.lost)
        assert reader.cursor - self._began == seen.records + seen.lost
        reader.close()
        return seen


def holders(feed: str) -> list[str]:
    """Who still has one of the feed's segments open or mapped."""
    found = []
    for process in pathlib.Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if feed in (process / "maps").read_text():
                    found.append(f"{process.name} maps")
                found += [
                    str(fd) for fd in (process / "fd").iterdir() if feed in str(fd.readlink())
                ]
            except OSError:
                continue
    return found


def descriptors() -> int:
    gc.collect()
    return len(list(pathlib.Path("/proc/self/fd").iterdir()))


def shared_memory() -> set[str]:
    return {entry.name for entry in pathlib.Path("/dev/shm").iterdir()}


def test_the_feeder_is_killed_again_and_again(tmp_path: pathlib.Path) -> None:
    seed = int(time.time())
    chance, feed = random.Random(seed), f"kills-{os.getpid()}"
    sock, day = tmp_path / "ring.sock", tmp_path / "day.pcap"
    synth.write(day, messages=20_000, symbols=32)
    expected = Expected(day)
    before, shm = descriptors(), shared_memory()
    ring = ("--ring-capacity", str(CAPACITY), "--socket", str(sock), "--interface", "lo")
    early = 0
    daemon = Daemon(sock)
    with contextlib.ExitStack() as undo:
        undo.callback(daemon.close)
        with feeder("--group", GROUP, "--port", "0", *ring, name=feed) as first:
            line = first.line(first.next("ready"))
            first.next("offered")
            watcher = Watcher(sock, feed, expected, seed)
            undo.callback(watcher.end)
            replayer = Replayer(
                Plan(file=str(day), lines=(line,), rate=RATE, loops=0, drop_every=(499,))
            )
            undo.callback(lambda: replayer.stop() if replayer.alive else None)
            until(lambda: watcher.seen.records > 5000)
            held = descriptors()
            first.process.kill()
        for _ in range(KILLS - 1):
            words = ("--group", GROUP, "--port", str(line.port), *ring)
            with feeder(*words, name=feed) as fed:
                if chance.random() < 0.3:
                    # Anywhere in its start: before it claims, makes, offers or receives.
                    early += 1
                    time.sleep(chance.uniform(0, 1.0))
                else:
                    fed.next("offered")
                    time.sleep(chance.uniform(0, 0.4))
                assert fed.process.poll() is None, fed.finish()
                fed.process.kill()
        with feeder(*words, name=feed) as last:
            last.next("offered")
            so_far = watcher.seen.records
            until(lambda: watcher.seen.records > so_far + 5000)
            # As many descriptors as with the first feeder: those of the dead are gone.
            until(lambda: descriptors() <= held)
            replayer.stop()
            last.stop()
        seen = watcher.close()
        # With the last reader the last segment is let go.
        daemon.gone()
    print(f"{KILLS} kills, {early} of them in its start, seed {seed}: {seen}")
    assert seen.torn == seen.wrong_positions == seen.wrong_messages == seen.silences == 0, seen
    assert seen.restarts > 0 and seen.stales > 0 and seen.wire_gaps > 0
    del watcher.reader, undo
    gc.collect()
    until(lambda: not holders(feed))
    until(lambda: shared_memory() <= shm)
    assert descriptors() <= before


def test_a_torn_or_missing_record_would_be_seen(tmp_path: pathlib.Path) -> None:
    day = tmp_path / "day.pcap"
    synth.write(day, messages=2000, symbols=8)
    expected = Expected(day)
    memory, _, _ = decode_capture(day)
    ticks = memory.ticks[memory.ticks["kind"] < OWN]
    assert np.array_equal(expected.places(ticks), np.arange(len(ticks)))
    for name in ("ts_exch_ns", "price", "size", "ref", "instrument"):
        # Words of one message in the slot of another.
        torn = ticks[:-1].copy()
        torn[name] = ticks[name][1:]
        changed = torn[name] != ticks[name][:-1]
        assert changed.any() and np.all(expected.places(torn)[changed] == -1)
