"""The feeder's work: rings made, offered and kept, the data thread started, attended and ended.

The main thread keeps the conversation with the daemon, answers signals and says what happens; the
data thread is one C call (core/feeder_run.c). The process needs no daemon: it publishes from its
first packet on, offers its rings whenever a daemon is there, and outlives it.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

from nodeagent.errors import NodeagentError
from nodeagent.feed.offer import Offer, claim
from nodeagent.feed.plan import FeederPlan
from nodeagent.feed.say import Say, note_of
from nodeagent.feed.stats import StatsPage
from nodeagent.native.feed import Feed
from nodeagent.native.ring import Producer, RingKind, Segment

POLL_S = 0.1


class Feeder:
    """A feed with its rings and its thread. `run()` once, from the main thread."""

    def __init__(self, plan: FeederPlan, say: Say) -> None:
        self.plan = plan
        self._say = say
        self._stop = threading.Event()
        self._error: NodeagentError | None = None
        self.ended = False

    def run(self) -> None:
        """Receives until SIGTERM, Ctrl-C or the end of the capture. Raises NodeagentError."""
        plan = self.plan
        if plan.housekeeping:
            for task in pathlib.Path("/proc/self/task").iterdir():
                os.sched_setaffinity(int(task.name), plan.housekeeping.ids)
        dead = claim(plan.socket, plan.name)
        with contextlib.ExitStack() as stack:
            ticks = stack.enter_context(self._ring(RingKind.TICKS, plan.ring_capacity, dead))
            rings = {RingKind.TICKS: ticks}
            if plan.frames_bytes:
                rings[RingKind.FRAMES] = stack.enter_context(
                    self._ring(RingKind.FRAMES, plan.frames_bytes, dead)
                )
            dead.clear()
            stats = StatsPage.create(plan.name, plan.source.value)
            stack.callback(stats.close)
            # Last: from here on packets queue up in the socket.
            feed = stack.enter_context(self._feed(rings, stats))
            stats.describe(plan.source.value, note_of(plan, feed))
            stats.pointer.kernel_known = all(i.drops_known for i in feed.sockets)
            offer = Offer(plan.socket, plan.name, rings, stats.fd)
            stack.callback(offer.close)
            with self._signals(feed):
                self._serve(feed, offer, rings)
            self._say.ended(plan, feed.counts(), feed.dropped_packets(), ticks.position)
        if self._error is not None:
            raise self._error

    def _ring(self, kind: RingKind, capacity: int, dead: dict[RingKind, Segment]) -> Producer:
        return Producer(
            self.plan.name,
            kind=kind,
            capacity=capacity,
            node=self.plan.node,
            hugetlb=self.plan.hugetlb,
            dead=dead.get(kind),
        )

    def _feed(self, rings: dict[RingKind, Producer], stats: StatsPage) -> Feed:
        return Feed(
            lines=self.plan.lines,
            file=self.plan.file,
            format=self.plan.format,
            options=self.plan.options,
            ticks=rings[RingKind.TICKS],
            frames=rings.get(RingKind.FRAMES),
            stats=stats.pointer,
        )

    @contextlib.contextmanager
    def _signals(self, feed: Feed) -> Iterator[None]:
        def stop(_number: int, _frame: FrameType | None) -> None:
            self._stop.set()
            feed.stop()

        before = {s: signal.signal(s, stop) for s in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _serve(self, feed: Feed, offer: Offer, rings: dict[RingKind, Producer]) -> None:
        ticks = rings[RingKind.TICKS]
        while ticks.ready_readers < self.plan.wait_readers and not self._stop.is_set():
            for producer in rings.values():
                producer.beat(time.monotonic_ns())
            offer.poll(POLL_S / 2)
            if offer.refusal is not None:
                raise offer.refusal
        thread = threading.Thread(target=self._data, args=(feed,), name=f"feed {self.plan.name}")
        thread.start()
        try:
            self._place(thread)
            self._say.ready(self.plan, feed)
            self._attend(thread, feed, offer)
        finally:
            # Whatever happened here: nothing is taken apart under the data thread's hands.
            feed.stop()
            thread.join()
        offer.poll(0)

    def _attend(self, thread: threading.Thread, feed: Feed, offer: Offer) -> None:
        offered: bool | None = None
        while thread.is_alive():
            offer.poll(POLL_S)
            if offer.accepted != offered:
                offered = offer.accepted
                self._say.offered(self.plan, offered)
            if offer.refusal is not None:
                # Another feeder has this feed, or we may not feed: nobody would ever read us.
                self._error = offer.refusal
                return

    def _data(self, feed: Feed) -> None:
        try:
            self.ended = feed.run()
        except NodeagentError as error:
            self._error = error

    def _place(self, thread: threading.Thread) -> None:
        tid = thread.native_id
        if tid is None or not thread.is_alive():
            return
        with contextlib.suppress(OSError):
            pathlib.Path(f"/proc/self/task/{tid}/comm").write_text(f"feed-{self.plan.name}"[:15])
        if self.plan.cpu:
            os.sched_setaffinity(tid, self.plan.cpu.ids)
