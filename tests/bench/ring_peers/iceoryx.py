"""The peer iceoryx2 (its Python binding), between two processes, on busy poll.

usage: iceoryx.py hop NAME COUNT       "hop P50_NS": one way, 64 bytes there and back, halved
       iceoryx.py rate NAME MS N       "rate PER_S": records of 64 bytes that one reader reads, N a
                                       sample, median over windows of 20 ms; a full buffer
                                       overwrites, as is iceoryx2's default
       iceoryx.py echo|send ...        the other side, started by the first
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import iceoryx2 as iox2
import numpy as np

DEPTH = 128


class Record(ctypes.Structure):
    """As large as a tick."""

    _fields_ = [("words", ctypes.c_uint64 * 8)]


def service(name: str, payload: Any) -> tuple[Any, Any]:
    """The service on both sides. The node must live on."""
    iox2.set_log_level(iox2.LogLevel.Error)
    node = iox2.NodeBuilder.new().create(iox2.ServiceType.Ipc)
    made = (
        node.service_builder(iox2.ServiceName.new(name))
        .publish_subscribe(payload)
        .subscriber_max_buffer_size(DEPTH)
        .open_or_create()
    )
    return node, made


def pin(side: int) -> None:
    """As the C programs: the first CPU sends, the last receives."""
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[-1] if side else cpus[0]})


def other(*words: str) -> subprocess.Popen[bytes]:
    """The other side."""
    return subprocess.Popen([sys.executable, __file__, *words])


def wait_for(publisher_of: Any) -> None:
    """Until the other side has subscribed."""
    while publisher_of.dynamic_config.number_of_subscribers == 0:
        time.sleep(0.001)


def receive(subscriber: Any) -> Any:
    """The next sample."""
    while (sample := subscriber.receive()) is None:
        pass
    return sample


def hop(name: str, count: int) -> None:
    """Sends and waits for the echo."""
    node, there = service(name + "/there", Record)
    back_node, back = service(name + "/back", Record)
    publisher = there.publisher_builder().create()
    subscriber = back.subscriber_builder().create()
    child = other("echo", name, str(count))
    wait_for(there)
    pin(0)
    record, taken = Record(), []
    for i in range(count):
        began = time.perf_counter_ns()
        record.words[0] = i
        publisher.send_copy(record)
        sample = receive(subscriber)
        taken.append((time.perf_counter_ns() - began) / 2)
        assert sample.payload().contents.words[0] == i
        del sample
    child.wait()
    print("hop", statistics.median(taken))
    del publisher, subscriber, there, back, node, back_node


def echo(name: str, count: int) -> None:
    """Sends back what comes."""
    node, there = service(name + "/there", Record)
    back_node, back = service(name + "/back", Record)
    publisher = back.publisher_builder().create()
    subscriber = there.subscriber_builder().create()
    wait_for(back)
    pin(1)
    record = Record()
    for _ in range(count):
        sample = receive(subscriber)
        record.words[0] = sample.payload().contents.words[0]
        del sample
        publisher.send_copy(record)
    del publisher, subscriber, there, back, node, back_node


def rate(name: str, milliseconds: int, per_sample: int) -> None:
    """Receives samples and sums two columns of each, as our reader does of its batches."""
    kind = iox2.Slice[Record] if per_sample > 1 else Record
    node, feed = service(name, kind)
    subscriber = feed.subscriber_builder().buffer_size(DEPTH).create()
    child = other("send", name, str(per_sample))
    receive(subscriber)
    pin(1)
    total, windows, count = 0, [], 0
    began = window = time.perf_counter()
    while (now := time.perf_counter()) < began + milliseconds / 1e3:
        if now >= window + 0.02:
            windows.append(count / (now - window))
            window, count = now, 0
        sample = receive(subscriber)
        count += per_sample
        payload = sample.payload()
        if per_sample > 1:
            table = np.frombuffer(payload.as_memory_view(), np.uint64).reshape(-1, 8)
            total += int(table[:, 3].sum()) + int(table[:, 4].sum())
            del table
        else:
            record = payload.contents.words
            total += record[3] + record[4]
            del record
        del payload, sample
    print("rate", statistics.median(windows))
    # The sender ends when nobody subscribes any more.
    del subscriber
    child.wait()
    del feed, node


def send(name: str, per_sample: int) -> None:
    """Sends as fast as it goes, until nobody subscribes."""
    kind = iox2.Slice[Record] if per_sample > 1 else Record
    node, feed = service(name, kind)
    builder = feed.publisher_builder()
    if per_sample > 1:
        builder = builder.initial_max_slice_len(per_sample)
    publisher = builder.create()
    wait_for(feed)
    pin(0)
    block = (Record * per_sample)()
    record = Record()
    i = 0
    while i % 256 or feed.dynamic_config.number_of_subscribers:
        i += 1
        if per_sample > 1:
            sample = publisher.loan_slice_uninit(per_sample)
            ctypes.memmove(sample.payload_ptr, block, ctypes.sizeof(block))
            sample.assume_init().send()
        else:
            record.words[0] = i
            publisher.send_copy(record)
    del publisher, feed, node


def main() -> None:
    """See above."""
    what, name, *numbers = sys.argv[1:]
    sides: dict[str, Callable[..., None]] = {"hop": hop, "echo": echo, "rate": rate, "send": send}
    sides[what](name, *map(int, numbers))


if __name__ == "__main__":
    main()
