"""The socket source in this process: IPv4, IPv6, unicast, spinning, oversize, stamps, errors."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import subprocess
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from nodeagent.errors import UnavailableError, UsageError
from nodeagent.feed import synth
from nodeagent.native.feed import Feed, Line, Memory, Options
from nodeagent.native.replay import Replay
from tests.feed.mold import END, heartbeat, numbered, packet
from tests.feed.processes import BIN

GROUP = "239.192.74.1"


@contextlib.contextmanager
def running(*lines: Line, options: Options | None = None) -> Iterator[tuple[Feed, Memory]]:
    """A feed whose loop runs in a thread."""
    memory = Memory()
    with Feed(lines=lines, options=options, memory=memory) as feed:
        thread = threading.Thread(target=feed.run)
        thread.start()
        try:
            yield feed, memory
        finally:
            feed.stop()
            thread.join()


def until(feed: Feed, spans: int) -> None:
    """Waits until so many sequence numbers were consumed (the suite's timeout ends a hang)."""
    while feed.counts().span < spans:
        time.sleep(0.01)


@pytest.fixture
def day(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "day.pcap"
    synth.write(path, messages=2000, symbols=10)
    return path


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("group", [GROUP, "ff15::6e61:1", "127.0.0.1", "::1"])
def test_groups_and_addresses(day: pathlib.Path, group: str, busy: bool) -> None:
    interface = os.environ.get("NODEAGENT_TEST_INTERFACE", "lo")
    if group.startswith("ff") and interface == "lo":
        pytest.skip("the kernel loops no IPv6 multicast on lo; see the test with a veth pair")
    line = Line(group=group, port=0, interface=interface)
    with running(line, options=Options(busy=busy, first_seq=1)) as (feed, memory):
        Replay(str(day)).run(feed.lines, rate=100_000)
        until(feed, 2000)
    assert len(memory.ticks) in (2001, 2002)
    frame = memory.frames()[0]
    assert frame.family == (6 if ":" in group else 4)
    assert frame.dst_port == feed.lines[0].port


def test_ipv6_multicast_over_a_veth_pair(as_root: None) -> None:
    steps = (
        "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad",
        "ip link add va type veth peer name vb",
        "ip link set va up",
        "ip link set vb up",
        f"exec {BIN / 'pytest'} -q -p no:cacheprovider {__file__} -k ff15",
    )
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", " && ".join(steps)],
        capture_output=True,
        text=True,
        env={**os.environ, "NODEAGENT_TEST_INTERFACE": "va"},
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_other_groups_of_the_port_do_not_come(day: pathlib.Path) -> None:
    with running(Line(group=GROUP, port=0, interface="lo")) as (feed, _):
        other = Line(group="239.192.74.2", port=feed.lines[0].port, interface="lo")
        with running(other) as (second, _):
            Replay(str(day)).run((other,), rate=100_000)
            until(second, 2000)
        assert feed.counts().packets == 0


def test_stamps_are_of_the_kernel_and_monotonic(day: pathlib.Path) -> None:
    for kernel in (True, False):
        options = Options(kernel_stamps=kernel)
        before = time.monotonic_ns()
        with running(Line(group=GROUP, port=0, interface="lo"), options=options) as (feed, memory):
            assert feed.sockets[0].kernel_stamps == kernel
            Replay(str(day)).run(feed.lines, rate=50_000)
            until(feed, 2000)
        stamps = memory.ticks["ts_rx_ns"].astype(np.int64)
        # The offset between the clocks is measured; a microsecond is far more than it is off.
        assert int(np.min(stamps)) > before - 1_000
        assert int(np.max(stamps)) < time.monotonic_ns()


def test_oversize_and_garbage_are_counted(day: pathlib.Path) -> None:
    with running(Line(group="127.0.0.1", port=0)) as (feed, _):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            out.connect(("127.0.0.1", feed.lines[0].port))
            out.send(numbered(1, 2))
            out.send(bytes(9500))
            out.send(b"")
            out.send(b"short")
            out.send(packet(3, [b"Zzzz"]))
            out.send(numbered(4, 1))
            out.send(packet(5, [], count=END))
        until(feed, 4)
        while feed.counts().session_ends == 0:
            time.sleep(0.01)
        counts = feed.counts()
    assert dict(counts.bad) == {"oversize": 1, "short-header": 2, "unknown-type": 1}
    assert counts.adds_up and counts.published == 3


def test_a_silent_line_is_not_waited_for_longer_than_asked() -> None:
    lines = [Line(group="127.0.0.1", port=0), Line(group="127.0.0.2", port=0)]
    with running(*lines, options=Options(wait_ns=50_000_000)) as (feed, _):
        a, b = feed.lines
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            out.sendto(numbered(1), (a.group, a.port))
            out.sendto(numbered(1), (b.group, b.port))
            until(feed, 1)
            out.sendto(numbered(3), (a.group, a.port))
            until(feed, 3)
            while feed.counts().gaps == 0:
                time.sleep(0.01)
            out.sendto(numbered(2), (b.group, b.port))
            out.sendto(heartbeat(4), (b.group, b.port))
            while feed.counts().late == 0:
                time.sleep(0.01)
        counts = feed.counts()
    assert (counts.published, counts.gap_wire, counts.late, counts.held) == (2, 1, 1, 1)


def test_what_cannot_be_opened() -> None:
    with pytest.raises(UsageError, match="none0"):
        Feed(lines=[Line(group=GROUP, port=0, interface="none0")], memory=Memory(16))
    with pytest.raises(UsageError, match="expected 1 or 2"):
        Feed(lines=[Line(group=GROUP, port=0)] * 3, memory=Memory(16))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(UnavailableError, match="bind") as caught:
            Feed(lines=[Line(group="127.0.0.1", port=port)], memory=Memory(16))
        assert str(port) in caught.value.remedy


def test_an_address_of_another_host_is_no_matter_of_interfaces() -> None:
    with pytest.raises(UnavailableError) as caught:
        Feed(lines=[Line(group="192.0.2.1", port=0, interface="lo")], memory=Memory())
    assert "neither a multicast group nor an address of this host" in caught.value.remedy
