"""The replayer: exact counts, pace, stop, what it sends."""

from __future__ import annotations

import json
import pathlib
import signal
import socket
import struct
import subprocess
import time

import pytest

from nodeagent.errors import UnavailableError
from nodeagent.feed import synth
from nodeagent.feed.replay import Plan, Replayer, argv, session_name
from nodeagent.native.feed import CaptureError, Format, Line
from nodeagent.native.replay import Replay
from tests.feed.processes import BIN

GROUP = "239.192.72.1"


def receiver() -> tuple[socket.socket, Line]:
    """A plain Python socket on the group."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    sock.bind((GROUP, 0))
    membership = socket.inet_aton(GROUP) + struct.pack("=4si", bytes(4), 1)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
    sock.settimeout(5)
    return sock, Line(group=GROUP, port=sock.getsockname()[1], interface="lo")


def received(sock: socket.socket) -> list[bytes]:
    """Packets up to the first End of Session."""
    packets: list[bytes] = []
    while True:
        data = sock.recv(65536)
        if data[18:20] == b"\xff\xff":
            return [*packets, data]
        packets.append(data)


def messages_of(packets: list[bytes]) -> list[bytes]:
    out = []
    for data in packets:
        (count,) = struct.unpack_from(">H", data, 18)
        at = 20
        for _ in range(count if count != 0xFFFF else 0):
            (size,) = struct.unpack_from(">H", data, at)
            out.append(data[at + 2 : at + 2 + size])
            at += 2 + size
        assert at == len(data)
    return out


DAY = list(synth.Day(300, 5, seed=8).messages())


@pytest.fixture
def day(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "day.pcap"
    synth.write(path, messages=300, symbols=5, seed=8)
    return path


def test_what_is_sent_is_what_was_recorded(day: pathlib.Path) -> None:
    sock, line = receiver()
    with sock:
        sent = Replay(str(day)).run((line,), loops=2)
        packets = received(sock)
    assert messages_of(packets) == DAY * 2
    assert (sent.messages, sent.first_seq, sent.last_seq, sent.loops) == (600, 1, 600, 2)
    next_seq = 1
    for data in packets:
        seq, count = struct.unpack_from(">QH", data, 10)
        assert seq == next_seq
        next_seq += count if count != 0xFFFF else 0
    assert sent.packets == len(packets) - 1


def test_count_cuts_the_last_packet(day: pathlib.Path) -> None:
    for count in (1, 299, 301, 777):
        sock, line = receiver()
        with sock:
            sent = Replay(str(day)).run((line,), count=count, loops=0)
            packets = received(sock)
        assert sent.messages == count == len(messages_of(packets))
        assert messages_of(packets) == (DAY * 3)[:count]


@pytest.mark.parametrize("format", [Format.BINARYFILE, Format.SOUPBINTCP, Format.PCAPNG])
def test_other_formats_and_packing(tmp_path: pathlib.Path, format: Format) -> None:
    path = tmp_path / "day"
    synth.write(path, messages=300, symbols=5, seed=8, format=format)
    for per_packet in (1, 10, 0):
        sock, line = receiver()
        replay = Replay(str(path))
        with sock:
            sent = replay.run((line,), per_packet=per_packet)
            packets = received(sock)
        assert messages_of(packets) == DAY
        assert replay.size(per_packet) == (300, sent.packets)
        assert max(map(len, packets)) <= 1452


def test_line_b_gets_the_same(day: pathlib.Path) -> None:
    (a, line_a), (b, line_b) = receiver(), receiver()
    with a, b:
        sent = Replay(str(day)).run((line_a, line_b), drop_every=(3, 0))
        got_a, got_b = received(a), received(b)
    assert messages_of(got_b) == DAY
    assert len(got_a) < len(got_b)
    assert set(got_a) < set(got_b)
    assert sent.withheld == 0
    assert sent.packets == len(got_a) + len(got_b) - 2


def test_pace(day: pathlib.Path) -> None:
    sock, line = receiver()
    with sock:
        start = time.monotonic()
        sent = Replay(str(day)).run((line,), count=2000, loops=0, rate=4000)
        took = time.monotonic() - start
    assert sent.messages == 2000
    # Never faster than asked; how much slower is the machine's affair.
    assert took >= 2000 / 4000 * 0.98
    assert sent.elapsed_ns >= 0.49e9


def test_both_lines_recorded_are_sent_once(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "two"
    synth.write(path, messages=300, symbols=5, seed=8, lines=2)
    assert Replay(str(path)).size()[0] == 300


def test_child_reports_on_sigterm(day: pathlib.Path) -> None:
    sock, line = receiver()
    with sock:
        replayer = Replayer(Plan(file=str(day), lines=(line,), rate=5000, loops=0))
        sock.recv(65536)
        said = replayer.stop()
    assert said["sent_messages"] == said["last_seq"] > 0
    assert said["first_seq"] == 1
    assert not replayer.alive


def test_child_as_a_command(day: pathlib.Path) -> None:
    sock, line = receiver()
    with sock:
        plan = Plan(file=str(day), lines=(line,))
        done = subprocess.run(argv(plan), capture_output=True, text=True, check=True)
    body = json.loads(done.stdout)
    assert body["schema"] == "nodeagent.feed/v1"
    assert body["sent_messages"] == 300
    text = subprocess.run(
        [BIN / "nodeagentctl", "feed", "replay", day, "--group", GROUP, "--port", str(line.port),
         "--interface", "lo", "--count", "10"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert text.stdout.startswith("sent 10 messages in ")


def test_what_cannot_be_sent(tmp_path: pathlib.Path, day: pathlib.Path) -> None:
    with pytest.raises(CaptureError, match="No such file"):
        Replay(str(tmp_path / "none"))
    empty = tmp_path / "empty.pcap"
    empty.write_bytes(b"".join(synth.pcap([])))
    with pytest.raises(CaptureError, match="no message"):
        Replay(str(empty))
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(day.read_bytes()[:-3])
    with pytest.raises(CaptureError, match="is cut"):
        Replay(str(cut))
    lines = (Line(group=GROUP, port=26400, interface="none0"),)
    with pytest.raises(UnavailableError, match="none0"):
        Replayer(Plan(file=str(day), lines=lines)).wait(60)


def test_sessions_have_names_of_their_own() -> None:
    names = {session_name(n * 100_000_000) for n in range(17_000_000_000, 17_000_001_000)}
    assert len(names) == 1000
    assert all(len(name) == 10 for name in names)


def test_ctrl_c_ends_in_good_order(day: pathlib.Path) -> None:
    sock, line = receiver()
    with sock:
        process = subprocess.Popen(
            argv(Plan(file=str(day), lines=(line,), rate=1000, loops=0)), stdout=subprocess.PIPE
        )
        sock.recv(65536)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(out)["sent_messages"] > 0
