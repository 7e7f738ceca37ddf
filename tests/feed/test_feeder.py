"""The feeder as a process: rings offered and offered again, captures and sockets alike, crashes."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
import time

import numpy as np
import pytest

from nodeagent.client.stat import stat
from nodeagent.feed import synth
from nodeagent.feed.digest import digest
from nodeagent.feed.replay import Plan, Replayer
from nodeagent.native.feed import Kind, decode_capture
from tests.feed.processes import BIN, Keeper, feeder, registry

GROUP = "239.192.71.1"
GROUP_B = "239.192.71.2"


@pytest.fixture
def sock(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "ring.sock"


def live(sock: pathlib.Path, *more: str) -> tuple[str, ...]:
    """Options of a socket source on loopback, any port."""
    lo = ("--interface", "lo", "--first-seq", "1")
    return ("--group", GROUP, "--port", "0", *lo, "--socket", str(sock), *more)


def test_socket_and_capture_leave_the_same_digest(
    tmp_path: pathlib.Path, sock: pathlib.Path
) -> None:
    payloads = list(synth.packets(synth.Day(4000, 20, seed=4).messages()))
    with registry(sock), feeder(*live(sock)) as fed:
        ready = fed.next("ready")
        fed.next("offered")
        port = ready["lines"][0]["port"]
        keeper = Keeper(sock)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            out.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
            out.bind(("127.0.0.1", 0))
            source = out.getsockname()
            for i, payload in enumerate(payloads):
                out.sendto(payload, (GROUP, port))
                if i % 50 == 0:
                    time.sleep(0.001)
        while fed.process.poll() is None and not any(f.messages == 4000 for f in stat(sock)[0]):
            time.sleep(0.05)
        frames, at = [], 0
        while True:
            segment = keeper.reader.frame(at)
            if segment is None:
                break
            frames.append(segment)
            at += (80 + len(segment.payload) + 15) & ~15
        end = fed.stop()
        assert end["lost"] == {
            "nic": None, "kernel": 0, "backend": 0, "decoder": 0, "wire_gap": 0
        }  # fmt: skip
        ticks = keeper.ticks()
        keeper.close()
    path = tmp_path / "same.pcap"
    path.write_bytes(
        b"".join(
            synth.pcap(synth.frame(p, group=GROUP, port=port, source=source) for p in payloads)
        )
    )
    memory, counts, error = decode_capture(path)
    assert error is None and counts.published == 4000
    assert len(frames) == len(memory.frames()) > 50
    assert digest(ticks, frames) == digest(memory.ticks, memory.frames())
    assert digest(ticks[:-1], frames) != digest(memory.ticks, memory.frames())


def test_capture_source_waits_for_its_reader_and_ends(
    tmp_path: pathlib.Path, sock: pathlib.Path
) -> None:
    path = tmp_path / "day.pcap"
    synth.write(path, messages=20_000, symbols=10, seed=6)
    memory, _, _ = decode_capture(path)
    with registry(sock) as served:
        words = ("--file", str(path), "--socket", str(sock), "--wait-readers", "1")
        with feeder(*words) as fed:
            keeper = Keeper(sock)
            end = fed.next("end")
            assert fed.finish()[0] == 0
            assert end["messages"] == 20_000 and end["source"] == "capture"
            ticks = keeper.ticks()
            assert keeper.gaps == 0
            assert digest(ticks) == digest(memory.ticks)
            assert keeper.reader.symbols() == memory.symbols()
            keeper.close()
        served.poll()


def test_cut_capture_is_delivered_to_the_cut_and_named(
    tmp_path: pathlib.Path, sock: pathlib.Path
) -> None:
    whole = tmp_path / "day.pcap"
    synth.write(whole, messages=2000, symbols=10)
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(whole.read_bytes()[:-700])
    with feeder("--file", str(cut), "--socket", str(sock)) as fed:
        end = fed.next("end")
        status, log = fed.finish()
    assert status == 3
    assert f"error: {cut}: record" in log and "is cut" in log and "remedy:" in log
    assert "Traceback" not in log
    _, counts, error = decode_capture(cut)
    assert error is not None
    assert end["messages"] == counts.published > 1900


def test_two_lines_with_loss_on_each(tmp_path: pathlib.Path, sock: pathlib.Path) -> None:
    path = tmp_path / "day.pcap"
    synth.write(path, messages=5000, symbols=10)
    more = ("--group-b", GROUP_B, "--port-b", "0", "--line-wait-ms", "500")
    with feeder(*live(sock, *more)) as fed:
        ready = fed.next("ready")
        a, b = (type(fed.line(ready))(**line) for line in ready["lines"])
        plan = Plan(file=str(path), lines=(a, b), rate=100_000, count=40_000, drop_every=(7, 11))
        sent = Replayer(plan).wait(60)
        time.sleep(0.3)
        end = fed.stop()
    assert sent["withheld_messages"] > 100
    # A line held up longer than the wait is not waited for: what it brings then is late, counted.
    assert end["lost"]["wire_gap"] == sent["withheld_messages"] + end["late"]
    assert end["messages"] + end["lost"]["wire_gap"] == sent["sent_messages"] == 40_000
    assert end["duplicates"] > 20_000


def dropped(port: int) -> int:
    """Packets dropped on the UDP sockets of a port, as the kernel tells everybody."""
    rows = pathlib.Path("/proc/net/udp").read_text().splitlines()[1:]
    return sum(int(r.split()[-1]) for r in rows if r.split()[1].endswith(f":{port:04X}"))


def test_what_the_kernel_dropped_is_told_from_the_wire(
    tmp_path: pathlib.Path, sock: pathlib.Path
) -> None:
    path = tmp_path / "day.pcap"
    synth.write(path, messages=5000, symbols=10)
    with feeder(*live(sock, "--receive-bytes", "65536")) as fed:
        line = fed.line(fed.next("ready"))
        os.kill(fed.process.pid, signal.SIGSTOP)
        replayer = Replayer(Plan(file=str(path), lines=(line,), rate=60_000, loops=0))
        while dropped(line.port) < 500:
            time.sleep(0.05)
        os.kill(fed.process.pid, signal.SIGCONT)
        time.sleep(0.4)
        sent = replayer.stop()
        time.sleep(0.3)
        end = fed.stop()
    lost = end["lost"]
    assert lost["kernel"] > 1000
    assert end["kernel_dropped_packets"] > 100
    assert lost["wire_gap"] == 0
    assert end["messages"] + lost["kernel"] == sent["sent_messages"]


def test_withheld_packets_are_not_put_down_to_the_kernel(
    tmp_path: pathlib.Path, sock: pathlib.Path
) -> None:
    path = tmp_path / "day.pcap"
    synth.write(path, messages=5000, symbols=10)
    with feeder(*live(sock)) as fed:
        line = fed.line(fed.next("ready"))
        plan = Plan(file=str(path), lines=(line,), rate=50_000, count=20_000, drop_every=(13,))
        sent = Replayer(plan).wait(60)
        time.sleep(0.3)
        end = fed.stop()
    assert end["lost"]["kernel"] == 0 == end["kernel_dropped_packets"]
    assert end["lost"]["wire_gap"] == sent["withheld_messages"] > 0
    assert end["span"] == sent["sent_messages"]


def test_offered_again_when_the_daemon_comes_back(
    tmp_path: pathlib.Path, sock: pathlib.Path
) -> None:
    path = tmp_path / "day.pcap"
    synth.write(path, messages=5000, symbols=10)
    with feeder(*live(sock)) as fed:
        line = fed.line(fed.next("ready"))
        fed.next("alone")
        replayer = Replayer(Plan(file=str(path), lines=(line,), rate=20_000, loops=0))
        for _ in range(2):
            with registry(sock):
                fed.next("offered")
                keeper = Keeper(sock, enough=2000)
                ticks = keeper.ticks()
                assert len(ticks) >= 2000 and keeper.gaps == 0
                keeper.close()
            fed.next("alone")
        sent = replayer.stop()
        time.sleep(0.3)
        end = fed.stop()
        assert end["messages"] == sent["sent_messages"]


def test_killed_and_started_again_numbers_go_on(tmp_path: pathlib.Path, sock: pathlib.Path) -> None:
    path = tmp_path / "day.pcap"
    synth.write(path, messages=5000, symbols=10)
    with registry(sock), feeder(*live(sock)) as first:
        line = first.line(first.next("ready"))
        first.next("offered")
        keeper = Keeper(sock, enough=8000)
        replayer = Replayer(Plan(file=str(path), lines=(line,), rate=20_000, loops=0))
        time.sleep(0.3)
        first.process.kill()
        first.process.wait()
        again = ("--group", GROUP, "--port", str(line.port), "--interface", "lo")
        with feeder(*again, "--socket", str(sock)) as second:
            second.next("offered")
            ticks = keeper.ticks()
            replayer.stop()
            second.stop()
        assert keeper.gaps == 0
        assert np.all(np.diff(ticks["seq"]) == 1)
        assert list(ticks["kind"]).count(Kind.RESTART) == 1
        keeper.close()


def test_a_second_feeder_of_the_same_name_is_refused(sock: pathlib.Path) -> None:
    with registry(sock), feeder(*live(sock)) as first:
        first.next("offered")
        with feeder(*live(sock)) as second:
            status, log = second.finish()
            assert status == 3
            assert log.startswith("error: ") and "Traceback" not in log
        first.stop()


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        ((), 64, "without a group and port"),
        (("--group", "239.1.1.1"), 64, "without --port"),
        (("--group", "elsewhere", "--port", "1"), 64, "elsewhere"),
        (("--group", GROUP, "--port", "0", "--interface", "none0"), 64, "none0"),
        (("--source", "capture"), 64, "without a file"),
        (("--source", "dpdk"), 3, "not in this build"),
        (("--file", "/nonexistent.pcap"), 3, "No such file"),
        (("--config", "/nonexistent.toml"), 64, "No such file"),
        (("--port", "70000"), 64, "70000"),
        (("--file", "/dev/null"), 3, "begins with nothing"),
        (("--group", GROUP, "--port", "0", "--cpu", "x"), 64, "CPU list"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    sock: pathlib.Path, words: tuple[str, ...], status: int, sentence: str
) -> None:
    with feeder(*words, "--socket", str(sock)) as fed:
        got, log = fed.finish()
    assert got == status, log
    lines = log.strip().splitlines()
    assert lines[0].startswith("error: ") and sentence in lines[0]
    assert len(lines) <= 2 and "Traceback" not in log


def test_without_json_it_speaks_in_sentences(tmp_path: pathlib.Path, sock: pathlib.Path) -> None:
    path = tmp_path / "day.pcap"
    synth.write(path, messages=500, symbols=5)
    done = subprocess.run(
        [BIN / "nodeagent-feeder", "--name", "t", "--file", path, "--socket", sock],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == ""
    first, *_, last = done.stderr.splitlines()
    assert first.startswith(f"feed t: receiving {path}; recorded: {path}")
    assert last.startswith("feed t: 500 messages of ") and "0 lost" in last


def test_from_the_configuration_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "day.pcap"
    synth.write(path, messages=500, symbols=5)
    config = tmp_path / "nodeagent.toml"
    config.write_text(
        f'[daemon]\nrun_dir = "{tmp_path}"\n'
        f'[[feed]]\nname = "t"\nsource = "capture"\npath = "{path}"\nring_capacity = 65536\n'
    )
    with feeder("--config", str(config)) as fed:
        assert fed.next("ready")["source"] == "capture"
        assert fed.next("end")["messages"] == 500
        assert fed.finish()[0] == 0
    with feeder("--config", str(config), name="other") as fed:
        status, log = fed.finish()
    assert status == 64 and "no [[feed]] named other" in log


def test_threads_are_named_and_placed(sock: pathlib.Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    words = live(sock, "--cpu", str(cpus[-1]), "--housekeeping", str(cpus[0]))
    with feeder(*words) as fed:
        fed.next("ready")
        tasks = pathlib.Path(f"/proc/{fed.process.pid}/task")
        names = {}
        for task in tasks.iterdir():
            names[(task / "comm").read_text().strip()] = os.sched_getaffinity(int(task.name))
        assert names["feed-t"] == {cpus[-1]}
        assert all(mask == {cpus[0]} for name, mask in names.items() if name != "feed-t")
        fed.stop()


def test_linger_keeps_the_heart_beating(tmp_path: pathlib.Path, sock: pathlib.Path) -> None:
    path = tmp_path / "day.pcap"
    synth.write(path, messages=500, symbols=5)
    with registry(sock), feeder("--file", str(path), "--socket", str(sock), "--linger") as fed:
        fed.next("offered")
        time.sleep(0.6)
        _, rings = stat(sock)
        assert rings and all(r.heartbeat_age_ns < 300_000_000 for r in rings)
        assert fed.stop()["messages"] == 500
    assert json.dumps(fed.said)
