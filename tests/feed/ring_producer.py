"""A producer process for tests: claims a feed, offers its rings, publishes what can be checked.

usage: ring_producer.py SOCKET FEED [--rate PER_S] [--batch N] [--count N] [--capacity N] [--frames]
       [--deadline-ms N]

Every record's fields follow from its position, so that a reader can tell a torn one. Prints
"ready INCARNATION START" once the daemon has taken the offer, and the position at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import time

import numpy as np
import numpy.typing as npt

from nodeagent.feed.offer import Offer, claim
from nodeagent.feed.stats import StatsPage
from nodeagent.native.ring import TICK, Producer, RingKind


def checkable(first: int, count: int) -> npt.NDArray[np.void]:
    """Records whose fields follow from their positions."""
    at = np.arange(first, first + count, dtype=np.uint64)
    ticks = np.zeros(count, TICK)
    ticks["ts_exch_ns"] = at * np.uint64(3)
    ticks["ts_rx_ns"] = time.monotonic_ns()
    ticks["price"] = at.astype(np.int64)
    ticks["size"] = at ^ np.uint64(0x5555555555555555)
    ticks["ref"] = ~at
    ticks["aux"] = at * np.uint64(0x9E3779B97F4A7C15)
    ticks["instrument"] = at & np.uint64(0xFFFF)
    ticks["kind"] = 1
    ticks["side"] = ord("B")
    return ticks


def torn(ticks: npt.NDArray[np.void]) -> int:
    """How many of them are not what `checkable` makes (RESTART records apart)."""
    at = ticks["seq"] - np.uint64(1)
    good = (
        (ticks["ts_exch_ns"] == at * np.uint64(3))
        & (ticks["price"] == at.astype(np.int64))
        & (ticks["size"] == at ^ np.uint64(0x5555555555555555))
        & (ticks["ref"] == ~at)
        & (ticks["aux"] == at * np.uint64(0x9E3779B97F4A7C15))
    )
    return int((~good & (ticks["kind"] != 240)).sum())


def main() -> None:
    """Publishes until killed, or until count."""
    parser = argparse.ArgumentParser()
    parser.add_argument("socket")
    parser.add_argument("feed")
    parser.add_argument("--rate", type=float, default=20000.0)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--count", type=int, default=1 << 62)
    parser.add_argument("--capacity", type=int, default=1 << 15)
    parser.add_argument("--frames", action="store_true")
    parser.add_argument("--deadline-ms", type=int, default=100)
    args = parser.parse_args()

    dead = claim(args.socket, args.feed)
    ring = Producer(
        args.feed,
        capacity=args.capacity,
        dead=dead.get(RingKind.TICKS),
        gating_deadline_ns=args.deadline_ms * 1_000_000,
    )
    rings = {RingKind.TICKS: ring}
    if args.frames:
        rings[RingKind.FRAMES] = Producer(
            args.feed, kind=RingKind.FRAMES, capacity=1 << 21, dead=dead.get(RingKind.FRAMES)
        )
    dead.clear()
    ring.set_symbols({1: "AAPL", 2: "ZVZZT"})
    stats = StatsPage.create(args.feed, "test", "made by a test")
    offer = Offer(args.socket, args.feed, rings, stats.fd)
    while not offer.accepted:
        offer.poll(0.05)
        if offer.refusal is not None:
            raise offer.refusal
        ring.beat(time.monotonic_ns())
    print("ready", ring.info().incarnation, ring.info().start, flush=True)

    done = 0
    began = time.monotonic()
    while done < args.count:
        ring.publish(checkable(ring.position, args.batch))
        if args.frames:
            rings[RingKind.FRAMES].publish_frame(str(done).encode())
            rings[RingKind.FRAMES].beat(time.monotonic_ns())
        ring.beat(time.monotonic_ns())
        done += args.batch
        stats.pointer.messages = done
        stats.pointer.packets += 1
        offer.poll()
        ahead = done / args.rate - (time.monotonic() - began)
        if ahead > 0:
            time.sleep(min(ahead, 0.05))
    print("done", ring.position, flush=True)
    with contextlib.suppress(EOFError):
        input()
    for each in rings.values():
        each.close()


if __name__ == "__main__":
    main()
