"""The ring: round trips, wrap, lapping, seals, restart, symbols, frames."""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
import pathlib
import time

import numpy as np
import pytest

from nodeagent.native.ring import (
    FRAME_SCHEMA,
    TICK,
    TICK_SCHEMA,
    Producer,
    RingError,
    RingKind,
    Segment,
    lib,
)

CAPACITY = 1 << 15
"""The smallest ring: 2 MiB of ticks."""


def ticks(count: int, first: int = 0) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    made = np.zeros(count, TICK)
    made["price"] = np.arange(first, first + count)
    made["ts_rx_ns"] = time.monotonic_ns()
    made["instrument"] = 7
    return made


def fnv1a(text: str) -> int:
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def test_schema_hashes_are_those_of_the_layouts() -> None:
    assert fnv1a(TICK_SCHEMA) == lib.NA_RING_SCHEMA_TICKS
    assert fnv1a(FRAME_SCHEMA) == lib.NA_RING_SCHEMA_FRAMES
    assert TICK.itemsize == 64


def test_crc32c_of_the_rfc_vectors() -> None:
    # RFC 3720, appendix B.4.
    assert lib.na_crc32c(bytes(32), 32) == 0x8A9136AA
    assert lib.na_crc32c(b"\xff" * 32, 32) == 0x62A8AB43
    assert lib.na_crc32c(bytes(range(32)), 32) == 0x46DD794E


def test_what_is_published_is_read_across_the_wrap() -> None:
    with Producer("t", capacity=CAPACITY) as producer:
        segment = Segment.open(producer.fileno(), RingKind.TICKS)
        slots = segment.ticks
        position = 0
        for size in (1, 16, 17, 1000, CAPACITY - 100, 300, CAPACITY // 2):
            producer.publish(ticks(size, position))
            assert segment.end(position) == position + size
            # A batch is never split: the data is mapped twice.
            view = slots[position % CAPACITY :][:size]
            assert view["price"].tolist() == list(range(position, position + size))
            assert view["seq"].tolist() == list(range(position + 1, position + size + 1))
            position += size
        assert segment.hot().commit == position == producer.position


def test_views_are_read_only_and_outlive_the_segment() -> None:
    producer = Producer("t", capacity=CAPACITY)
    producer.publish(ticks(10))
    view = Segment.open(producer.fileno()).ticks[:10]
    producer.close()
    with pytest.raises(ValueError, match="read-only"):
        view["price"][0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.flags.writeable = True
    assert view["price"].tolist() == list(range(10))


def test_nobody_can_map_or_change_a_segment_once_it_is_sealed() -> None:
    with Producer("t", capacity=CAPACITY) as producer:
        again = os.open(f"/proc/self/fd/{producer.fileno()}", os.O_RDWR)
        for fd in (producer.fileno(), again):
            with pytest.raises(PermissionError):
                mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_WRITE | mmap.PROT_READ)
            with pytest.raises(PermissionError):
                os.pwrite(fd, b"x", 0)
            for size in (4096, 1 << 24):
                with pytest.raises(PermissionError):
                    os.ftruncate(fd, size)
        os.close(again)


def test_an_unsealed_or_damaged_file_is_refused() -> None:
    with Producer("t", capacity=CAPACITY) as producer:
        size = producer.info().size_bytes
        content = os.pread(producer.fileno(), size, 0)
    everything = 0x1 | 0x2 | 0x4 | 0x10
    for damage, seals, text in (
        ({}, 0, "not sealed"),
        ({0: b"x"}, everything, "magic"),
        ({8: b"\x02"}, everything, "ABI 2.0"),
        ({40: b"\x01"}, everything, "CRC32C"),
        ({500: b"\x01"}, everything, "CRC32C"),
    ):
        fd = os.memfd_create("damaged", os.MFD_ALLOW_SEALING)
        os.write(fd, content)
        for at, new in damage.items():
            os.pwrite(fd, new, at)
        fcntl.fcntl(fd, 1033, seals)
        with pytest.raises(RingError, match=text) as caught:
            Segment.open(fd)
        assert caught.value.remedy
        os.close(fd)
    with pytest.raises(RingError, match="kind"), Producer("t", capacity=CAPACITY) as producer:
        Segment.open(producer.fileno(), RingKind.FRAMES)


def test_a_ring_too_large_for_memory_is_refused_before_a_page_is_taken() -> None:
    with pytest.raises(RingError, match="does not fit") as caught:
        Producer("t", capacity=1 << 33)
    assert caught.value.errno == errno.ENOSPC
    assert "smaller" in caught.value.remedy


def test_an_exhausted_hugetlb_pool_is_a_sentence_not_a_signal() -> None:
    # 64 GiB of huge pages are not reserved on any machine that runs tests.
    with pytest.raises(RingError, match=r"huge pages|memfd_create") as caught:
        Producer("t", capacity=1 << 30, hugetlb=True)
    assert caught.value.errno in (errno.ENOSPC, errno.ENOSYS, errno.ENODEV)


def test_pages_are_huge_and_on_the_asked_node() -> None:
    with Producer("t", capacity=1 << 16, node=0) as producer:
        info = producer.info()
        assert info.node in (0, None)
        if info.collapse_error == 0:
            assert info.huge_bytes == 4 << 20


def test_a_new_producer_numbers_on_from_a_dead_segment() -> None:
    first = Producer("t", capacity=CAPACITY)
    first.set_symbols({1: "AAPL", 65535: "LAST"})
    first.publish(ticks(CAPACITY + 5))
    dead = Segment.open(first.fileno())
    first.close()
    assert dead.hot().closed
    with Producer("t", capacity=CAPACITY * 2, dead=dead) as second:
        info = second.info()
        assert (info.incarnation, info.lineage) == (2, dead.header.lineage)
        assert info.start == CAPACITY + 5
        live = Segment.open(second.fileno())
        assert live.end(info.start) == info.start + 1
        restart = live.ticks[info.start % live.header.capacity]
        assert (restart["kind"], restart["ref"]) == (lib.NA_KIND_RESTART, 2)
        assert live.symbols() == {1: "AAPL", 65535: "LAST"}
        second.publish(ticks(3))
        assert live.end(info.start) == info.start + 4
    with pytest.raises(RingError, match="belongs to feed t"):
        Producer("other", dead=dead)


def test_symbols_are_changed_and_read() -> None:
    with Producer("t", capacity=CAPACITY) as producer:
        segment = Segment.open(producer.fileno())
        assert segment.symbol(5) is None
        producer.set_symbols({5: "ZVZZT", 6: "X" * 40})
        assert segment.symbol(5) == "ZVZZT"
        assert segment.symbol(6) == "X" * 23
        producer.set_symbols({5: "NEW"})
        assert segment.symbols() == {5: "NEW", 6: "X" * 23}
        assert segment.symbol(1 << 20) is None
        with pytest.raises(RingError, match="65536"):
            producer.set_symbols({65536: "NO"})


def test_frames_are_read_in_order_and_by_position() -> None:
    with Producer("t", kind=RingKind.FRAMES, capacity=1 << 21) as producer:
        segment = Segment.open(producer.fileno(), RingKind.FRAMES)
        assert segment.next_frame(0) == (None, 0)
        positions = [
            producer.publish_frame(
                bytes([i % 251]) * (i * 7 % 1500),
                ts_rx_ns=i,
                src=b"\x0a\x00\x00\x01",
                dst=b"\xe9\x36\x0c\x6f",
                src_port=1,
                dst_port=26400,
                vlan=i % 2 or None,
            )
            for i in range(1000)
        ]
        at = 0
        for i, position in enumerate(positions):
            frame, at = segment.next_frame(at)
            assert frame is not None
            assert (frame.position, frame.number, frame.ts_rx_ns) == (position, i, i)
            assert frame.payload == bytes([i % 251]) * (i * 7 % 1500)
            assert (frame.src, frame.dst, frame.dst_port) == (b"\n\0\0\1", b"\xe96\x0co", 26400)
            assert frame.vlan == (i % 2 or None)
            assert segment.frame(position) == frame
        assert segment.next_frame(at) == (None, at)
        assert segment.frame(positions[5] + 16) is None
        assert segment.frame(positions[5] + 1) is None
        with pytest.raises(RingError, match="65535"):
            producer.publish_frame(bytes(65536))


def test_a_lapped_frames_reader_goes_on_at_the_oldest_whole_frame() -> None:
    with Producer("t", kind=RingKind.FRAMES, capacity=1 << 21) as producer:
        segment = Segment.open(producer.fileno())
        for i in range(5000):
            producer.publish_frame(bytes(i * 13 % 3000))
        frame, at = segment.next_frame(0)
        assert frame is not None
        first = frame.number
        assert frame.position == segment.hot().first
        count = 1
        while (frame := (found := segment.next_frame(at))[0]) is not None:
            at = found[1]
            assert frame.number == first + count
            count += 1
        assert first + count == 5000
        assert segment.frame(0) is None
        # A new producer numbers its frames on.
        with Producer("t", kind=RingKind.FRAMES, capacity=1 << 21, dead=segment) as second:
            second.publish_frame(b"next")
            frame, _ = Segment.open(second.fileno()).next_frame(at)
            assert frame is not None
            assert (frame.position, frame.number, frame.payload) == (at, 5000, b"next")


def test_nothing_is_left_behind() -> None:
    def memory() -> int:
        fds = pathlib.Path("/proc/self/fd").iterdir()
        return sum("nodeagent-" in str(fd.readlink()) for fd in fds if fd.is_symlink())

    gc.collect()
    before = memory()
    producer = Producer("t", capacity=CAPACITY)
    segment = Segment.open(producer.fileno())
    assert memory() == before + 1
    producer.close()
    del segment
    gc.collect()
    assert memory() == before
    assert "nodeagent-ticks-t" not in pathlib.Path("/proc/self/maps").read_text()


def test_a_forked_child_that_ends_leaves_the_ring_open() -> None:
    with Producer("t", capacity=CAPACITY) as producer:
        segment = Segment.open(producer.fileno())
        child = os.fork()
        if child == 0:
            producer.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert not segment.hot().closed
        producer.publish(ticks(3))
        assert segment.end(0) == 3
    assert segment.hot().closed


def test_a_gating_reader_is_waited_for_once_it_has_begun() -> None:
    fd = os.memfd_create("page", os.MFD_ALLOW_SEALING)
    os.posix_fallocate(fd, 0, 4096)
    fcntl.fcntl(fd, 1033, 0x7)
    with Producer("t", capacity=CAPACITY, gating_deadline_ns=50_000_000) as producer:
        producer.publish(ticks(10))
        producer.add_reader(3, fd, gating=True)
        # It has not written its page: three rings' worth go by.
        for _ in range(12):
            producer.publish(ticks(CAPACITY // 4))
        assert producer.dropped() == []
        at = producer.position
        page = np.frombuffer(mmap.mmap(fd, 4096), np.uint64)
        page[1] = producer.info().lineage
        page[0] = at
        producer.publish(ticks(CAPACITY // 2))
        page[0] = at + CAPACITY // 2
        producer.publish(ticks(CAPACITY // 2))
        producer.publish(ticks(CAPACITY // 2 - 32))
        assert producer.dropped() == []
        # Now the ring is full for it; a cursor that runs ahead or back helps nobody.
        page[0] = 0
        producer.publish(ticks(64))
        assert producer.dropped() == [3]
        assert producer.dropped() == []
        producer.publish(ticks(CAPACITY))
        assert producer.dropped() == []
    os.close(fd)


def sealed_copy(content: bytes, changes: dict[int, bytes]) -> int:
    fd = os.memfd_create("copy", os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    for at, new in changes.items():
        os.pwrite(fd, new, at)
    fcntl.fcntl(fd, 1033, 0x1 | 0x2 | 0x4 | 0x10)
    return fd


def test_a_segment_with_holes_is_refused() -> None:
    with Producer("t", capacity=CAPACITY) as producer:
        size = producer.info().size_bytes
        head = os.pread(producer.fileno(), 4096, 0)
    fd = os.memfd_create("hollow", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    os.pwrite(fd, head, 0)
    fcntl.fcntl(fd, 1033, 0x1 | 0x2 | 0x4 | 0x10)
    with pytest.raises(RingError, match="of memory behind it"):
        Segment.open(fd)
    os.close(fd)


@pytest.mark.parametrize(
    "changes",
    [
        # commit says more than a lap; and a frame's length that leads nowhere.
        {4096 + 128: (1 << 62).to_bytes(8, "little")},
        {(2 << 20) + 32: b"\xff" * 4},
        {(2 << 20): bytes(8)},
    ],
)
def test_a_damaged_dead_segment_of_frames_is_numbered_on_from_or_anew(
    changes: dict[int, bytes],
) -> None:
    with Producer("t", kind=RingKind.FRAMES, capacity=1 << 21) as producer:
        for _ in range(3):
            producer.publish_frame(bytes(100))
        content = os.pread(producer.fileno(), producer.info().size_bytes, 0)
    fd = sealed_copy(content, changes)
    dead = Segment.open(fd)
    with Producer("t", kind=RingKind.FRAMES, capacity=1 << 21, dead=dead) as second:
        assert second.info().incarnation == 2
        position = second.publish_frame(b"next")
        frame = Segment.open(second.fileno()).frame(position)
        assert frame is not None and frame.payload == b"next"
    os.close(fd)
