"""A feeder stripped to its ring: registry, offer and a C call that publishes, in one process.

usage: flood.py SOCKET LIBRARY RATE BURST CPU; says "ready", ends at the end of its input and says
how many ticks it published.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import threading

from nodeagent.feed.offer import Offer
from nodeagent.feed.registry import Registry
from nodeagent.native.ring import Producer, RingKind, ffi


def main() -> None:
    """Publishes until stdin ends."""
    path, library, rate, burst, cpu = sys.argv[1:]
    call = ctypes.CDLL(library).flood
    call.restype = ctypes.c_uint64
    call.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p]
    stop = ctypes.c_uint32(0)
    registry = Registry(path)
    registry.open()
    with Producer("bench", capacity=1 << 17, gating_deadline_ns=60_000_000_000) as ring:
        offer = Offer(path, "bench", {RingKind.TICKS: ring})
        while not offer.accepted:
            offer.poll(0.01)
            registry.poll(0.01)
        print("ready", flush=True)
        published: list[int] = []

        def work() -> None:
            os.sched_setaffinity(0, {int(cpu)})
            at = int(ffi.cast("uintptr_t", ring.ring))
            published.append(call(at, int(rate), int(burst), ctypes.addressof(stop)))

        # From the first reader on: before it there is nobody to hold the producer.
        while not offer.readers:
            registry.poll(0.005)
            offer.poll(0)
        thread = threading.Thread(target=work)
        thread.start()
        while not select.select([sys.stdin], [], [], 0.05)[0]:
            registry.poll(0)
            offer.poll(0)
        stop.value = 1
        # A reader that gates and reads no more must not hold the end up.
        for slot in range(4):
            ring.remove_reader(slot)
        thread.join()
        print(published[0], flush=True)
        offer.close()
    registry.close()


if __name__ == "__main__":
    main()
