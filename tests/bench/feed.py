"""Feed path: decode and publish, receive, wire to ring, and what the feeder holds over loopback."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from row import Row, quantile
from veth import INTERFACE, NoWireError, inside, veth

from nodeagent.feed import synth
from nodeagent.feed.registry import Registry
from nodeagent.feed.replay import Plan, Replayer
from nodeagent.feed.stats import StatsPage
from nodeagent.model.histogram import bounds
from nodeagent.native.feed import Feed, Line, Memory, Options, decode_blocks
from nodeagent.native.replay import Replay
from nodeagent.native.ring import Producer

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
REAL = ROOT.parent / "shared" / "data" / "itch" / "itch50-real-1000-messages.bin"
GROUP = "239.192.73.1"
BIN = pathlib.Path(sys.executable).parent

PARSE = """
import io, sys, time
from itch.parser import MessageParser
data = open(sys.argv[1], "rb").read()
parser = MessageParser()
best = []
for _ in range(int(sys.argv[2])):
    start = time.process_time_ns()
    n = sum(1 for _ in parser.parse_stream(data))
    best.append((time.process_time_ns() - start) / n)
print(sorted(best)[len(best) // 2], type(parser).__module__)
"""


def real_blocks() -> tuple[bytes, str]:
    """The real messages where they are, else synthetic ones; and which."""
    if REAL.exists():
        return REAL.read_bytes(), "CPU time; 1,000 real ITCH 5.0 messages over and over, 3 a packet"
    return synthetic_blocks(), "synthetic messages: the real ones are not beside the project"


def synthetic_blocks() -> bytes:
    """A synthetic day as length-framed messages."""
    return b"".join(synth.binaryfile(synth.Day(20_000, 50).messages()))[:-2]


def decode_ns(blocks: bytes, ring: Producer, per_packet: int, runs: int) -> float:
    """Median CPU ns a message of decoding and publishing."""
    data = blocks * max(1, 7_000_000 // len(blocks))
    taken = []
    for _ in range(runs):
        start = time.thread_time_ns()
        counts = decode_blocks(data, ring=ring, per_packet=per_packet)
        taken.append((time.thread_time_ns() - start) / counts.published)
    return statistics.median(taken)


def parser_ns(blocks: bytes, runs: int, env: dict[str, str]) -> tuple[float, str]:
    """Median CPU ns a message of itchfeed in a process of its own, and which parser it used."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(blocks)
        file.flush()
        done = subprocess.run(
            [sys.executable, "-P", "-c", PARSE, file.name, str(runs)],
            env={**os.environ, **env}, capture_output=True, text=True, check=True,
        )  # fmt: skip
    value, module = done.stdout.split()
    return float(value), module


def itchcpp(folder: str) -> str | None:
    """Installs the C++ peer into a folder; None: it is to be had, else why not."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps",
         "--target", folder, "itchcpp"],
        capture_output=True, text=True,
    )  # fmt: skip
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["?"])[-1][:80]


def decode_rows(quick: bool) -> Iterator[Row]:
    """Decode and publish beside the Python and C++ parsers."""
    runs = 5 if quick else 15
    real, what = real_blocks()
    with Producer("bench-decode", capacity=1 << 16) as ring, tempfile.TemporaryDirectory() as tmp:
        decode_ns(real, ring, 3, 2)
        ours = decode_ns(real, ring, 3, runs)
        pure, _ = parser_ns(real, runs, {"ITCH_NO_CPP": "1"})
        yield Row(
            name="feed.decode_publish", value=ours, unit="ns/message", target="<= 12", note=what
        )
        yield Row(
            name="feed.decode_vs_itchfeed", value=ours, unit="ns/message", target=">= 100x",
            peer="itchfeed (Python)", peer_value=pure, note="the peer decodes, no ring",
        )  # fmt: skip
        missing = itchcpp(tmp)
        if missing is None:
            native, module = parser_ns(real, runs, {"PYTHONPATH": tmp})
            yield Row(
                name="feed.decode_vs_itchcpp", value=ours, unit="ns/message", target=">= 30x",
                peer="itchcpp", peer_value=native, note=f"through {module}",
            )  # fmt: skip
        else:
            yield Row(
                name="feed.decode_vs_itchcpp", value=None, unit="ns/message", target=">= 30x",
                peer="itchcpp", note=f"not to be had here: {missing}",
            )  # fmt: skip
        made = synthetic_blocks()
        for per_packet in (1, 6, 30):
            yield Row(
                name=f"feed.decode_publish_synthetic_{per_packet}",
                value=decode_ns(made, ring, per_packet, runs),
                unit="ns/message",
                note=f"{per_packet} messages a packet",
            )


def filled_socket(sock: socket.socket | None, line: Line, packets: int, replay: Replay) -> None:
    """Lets that many packets of two messages pile up in a receive buffer."""
    replay.run((line,), count=2 * packets, loops=0, per_packet=2, end_packets=0)


def python_receive(packets: int, replay: Replay) -> float:
    """Python: recv and struct, a tuple a message. CPU ns a message."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for option in (socket.SO_RCVBUF, 33):  # SO_RCVBUFFORCE
            with contextlib.suppress(PermissionError):
                sock.setsockopt(socket.SOL_SOCKET, option, 64 << 20)
        sock.bind((GROUP, 0))
        join = socket.inet_aton(GROUP) + struct.pack("=4si", bytes(4), 1)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, join)
        line = Line(group=GROUP, port=sock.getsockname()[1], interface="lo")
        filled_socket(sock, line, packets, replay)
        sock.settimeout(0.2)
        messages, start = 0, time.thread_time_ns()
        unpack, head = struct.Struct(">HHHI").unpack_from, struct.Struct(">QH").unpack_from
        try:
            for _ in range(packets):
                data = sock.recv(2048)
                _, count = head(data, 10)
                at = 20
                for _ in range(count):
                    size = data[at] << 8 | data[at + 1]
                    unpack(data, at + 3)
                    at += 2 + size
                    messages += 1
        except TimeoutError:
            pass
        return (time.thread_time_ns() - start) / max(messages, 1)


def our_receive(packets: int, replay: Replay, ring: Producer, kernel_stamps: bool) -> float:
    """recvmmsg, decode and publish in C. CPU ns a message."""
    options = Options(kernel_stamps=kernel_stamps)
    with Feed(
        lines=[Line(group=GROUP, port=0, interface="lo")], options=options, ticks=ring
    ) as feed:
        filled_socket(None, feed.lines[0], packets, replay)
        spent: list[int] = []

        def work() -> None:
            start = time.thread_time_ns()
            feed.run()
            spent.append(time.thread_time_ns() - start)

        thread = threading.Thread(target=work)
        thread.start()
        last = -1
        while (now := feed.counts().published) != last or now == 0:
            last = now
            time.sleep(0.05)
        feed.stop()
        thread.join()
        return spent[0] / max(feed.counts().published, 1)


def receive_rows(quick: bool, day: pathlib.Path) -> Iterator[Row]:
    """CPU of receiving from a socket whose buffer is full, two messages a packet."""
    packets, runs = (10_000, 3) if quick else (20_000, 7)
    replay = Replay(str(day))
    with Producer("bench-receive", capacity=1 << 18) as ring:
        ours, plain, python = [], [], []
        for _ in range(runs):
            ours.append(our_receive(packets, replay, ring, True))
            plain.append(our_receive(packets, replay, ring, False))
            python.append(python_receive(packets, replay))
    yield Row(
        name="feed.receive_cpu", value=statistics.median(ours), unit="ns/message",
        peer="Python recv + struct", peer_value=statistics.median(python),
        note="recvmmsg, decode, publish; kernel stamps on; 2 messages a packet",
    )  # fmt: skip
    yield Row(
        name="feed.receive_cpu_no_stamps", value=statistics.median(plain), unit="ns/message",
        note="the same with --no-kernel-stamps",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """What each receiver is sent: so many packets of one message, over that veth pair."""

    day: pathlib.Path
    packets: int
    rate: int
    """Packets a second."""
    sender: int
    receiver: int
    """Network namespaces."""

    def send(self, line: Line) -> Replayer:
        """A replayer at the other end."""
        plan = Plan(
            file=str(self.day), lines=(line,), rate=self.rate, count=self.packets, loops=0,
            per_packet=1,
        )  # fmt: skip
        with inside(self.sender):
            return Replayer(plan)


def ours_wire_to_ring(wire: Wire) -> float:
    """Median ns from the kernel's stamp to the published tick, one message a packet."""
    stats = StatsPage.create("bench-wire", "socket")
    with (
        inside(wire.receiver),
        Producer("bench-wire", capacity=1 << 16) as ring,
        Feed(
            lines=[Line(group=GROUP, port=0, interface=INTERFACE)], ticks=ring, stats=stats.pointer
        ) as feed,
    ):
        thread = threading.Thread(target=feed.run)
        thread.start()
        wire.send(feed.lines[0]).wait(120)
        time.sleep(0.1)
        feed.stop()
        thread.join()
    p50 = median_of_counts([int(n) for n in stats.pointer.wire_to_ring_counts])
    stats.close()
    return p50


def median_of_counts(counts: list[int]) -> float:
    """The median, straight within its bucket: the buckets alone are an eighth wide."""
    half, seen = sum(counts) / 2, 0
    for bucket, count in enumerate(counts):
        if count and seen + count >= half:
            low, high = bounds(bucket)
            return low + (high - low) * (half - seen) / count
        seen += count
    return 0.0


def python_wire(wire: Wire) -> float:
    """The same for Python: recvmsg and struct."""
    with inside(wire.receiver), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, 35, 1)  # SO_TIMESTAMPNS
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        # Not settimeout: that makes each receive two system calls.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 3, 0))
        sock.bind((GROUP, 0))
        index = socket.if_nametoindex(INTERFACE)
        join = socket.inet_aton(GROUP) + struct.pack("=4si", bytes(4), index)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, join)
        line = Line(group=GROUP, port=sock.getsockname()[1], interface=INTERFACE)
        replayer = wire.send(line)
        waited: list[int] = []
        with contextlib.suppress(BlockingIOError):
            for _ in range(wire.packets):
                data, control, _, _ = sock.recvmsg(2048, 64)
                struct.unpack_from(">HHHI", data, 23)
                now = time.clock_gettime_ns(time.CLOCK_REALTIME)
                seconds, ns = struct.unpack("qq", control[0][2][:16])
                waited.append(now - seconds * 1_000_000_000 - ns)
        replayer.wait(120)
    return float(quantile(waited, 0.5))


def c_wire(wire: Wire, program: pathlib.Path) -> float:
    """The same for plain recvmsg in C."""
    with inside(wire.receiver):
        process = subprocess.Popen(
            [program, GROUP, "0", str(wire.packets), INTERFACE], stdout=subprocess.PIPE, text=True
        )
    assert process.stdout is not None
    line = Line(group=GROUP, port=int(process.stdout.readline()), interface=INTERFACE)
    wire.send(line).wait(120)
    return float(process.communicate()[0])


def wire_rows(quick: bool, day: pathlib.Path, tmp: pathlib.Path) -> Iterator[Row]:
    """Wire to ring over a veth pair, beside Python and C that only receive."""
    packets, rate, runs = (2000, 2000, 3) if quick else (6000, 2000, 5)
    compiler, program = shutil.which("cc"), tmp / "peer_recv"
    if compiler:
        source = pathlib.Path(__file__).with_name("peer_recv.c")
        subprocess.run([compiler, "-O2", "-o", program, source], check=True)
    ours, python, plain = [], [], []
    missing = ""
    try:
        with veth() as (sender, receiver):
            wire = Wire(day=day, packets=packets, rate=rate, sender=sender, receiver=receiver)
            for _ in range(runs):
                ours.append(ours_wire_to_ring(wire))
                python.append(python_wire(wire))
                if compiler:
                    plain.append(c_wire(wire, program))
    except NoWireError as error:
        missing = f"not measured: {error}"
    what = missing or f"veth pair, {rate} packets/s, kernel stamp to published tick"
    yield Row(
        name="feed.wire_to_ring_p50_vs_python", value=median(ours), unit="ns",
        target="<= 0.7x", peer="Python recvmsg", peer_value=median(python), note=what,
    )  # fmt: skip
    yield Row(
        name="feed.wire_to_ring_p50_vs_c", value=median(ours), unit="ns",
        target="<= 1.2x", peer="C recvmsg, no decode", peer_value=median(plain),
        note=what if compiler or missing else "no C compiler for the peer",
    )  # fmt: skip


def median(values: list[float]) -> float | None:
    """The median; None of nothing."""
    return statistics.median(values) if values else None


def holds_rows(quick: bool, day: pathlib.Path, tmp: pathlib.Path) -> Iterator[Row]:
    """500,000 messages a second from a replayer through a feeder process, for some seconds."""
    seconds, rate = (3, 500_000) if quick else (8, 500_000)
    path, over = tmp / "ring.sock", threading.Event()
    registry = Registry(path)
    registry.open()

    def serve() -> None:
        while not over.is_set():
            registry.poll(0.05)

    thread = threading.Thread(target=serve)
    thread.start()
    feeder = subprocess.Popen(
        [BIN / "nodeagent-feeder", "--name", "bench", "--group", GROUP, "--port", "0",
         "--interface", "lo", "--first-seq", "1", "--socket", path, "-o", "json"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert feeder.stdout is not None
    line = Line(**json.loads(feeder.stdout.readline())["lines"][0])
    sent = Replayer(
        Plan(file=str(day), lines=(line,), rate=rate, count=rate * seconds, loops=0)
    ).wait(300)
    time.sleep(0.5)
    feeder.send_signal(signal.SIGTERM)
    end = json.loads(feeder.communicate()[0].splitlines()[-1])
    over.set()
    thread.join()
    registry.close()
    lost = {k: v for k, v in end["lost"].items() if v}
    yield Row(
        name="feed.holds", value=float(sent["rate_per_s"]), unit="messages/s", target=">= 495000",
        higher_is_better=True,
        note=f"{seconds} s, sent {sent['sent_messages']:,} = received {end['messages']:,} + lost "
        f"{lost or 0}; loopback, as recorded (6.5 messages a packet)",
    )  # fmt: skip
    yield Row(
        name="feed.holds_lost", value=float(sent["sent_messages"] - end["messages"]),
        unit="messages", target="<= 0", note="lost at any stage",
    )  # fmt: skip
    yield Row(
        name="feed.replay_unpaced", value=statistics.median(unpaced(day) for _ in range(3)),
        unit="messages/s", target=">= 600000", higher_is_better=True,
        note="replayer over loopback with a feeder receiving beside it",
    )  # fmt: skip


def unpaced(day: pathlib.Path) -> float:
    """Messages a second of a replayer that does not wait, beside a feeder that receives."""
    with Feed(lines=[Line(group=GROUP, port=0, interface="lo")], memory=Memory(16)) as feed:
        run = threading.Thread(target=feed.run)
        run.start()
        sent = Replay(str(day)).run(feed.lines, count=1_000_000, loops=0)
        feed.stop()
        run.join()
    return sent.messages / sent.elapsed_ns * 1e9


def rows(quick: bool) -> Iterator[Row]:
    """All rows of the feed path that need no DPDK."""
    with tempfile.TemporaryDirectory(prefix="nodeagent-bench-feed-") as folder:
        tmp = pathlib.Path(folder)
        day = tmp / "day.pcap"
        synth.write(day, messages=50_000 if quick else 100_000, symbols=32)
        yield from decode_rows(quick)
        yield from receive_rows(quick, day)
        yield from wire_rows(quick, day, tmp)
        yield from holds_rows(quick, day, tmp)
