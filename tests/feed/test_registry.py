"""The registry against real processes, hostile pages, garbage and floods."""

from __future__ import annotations

import array
import contextlib
import fcntl
import gc
import os
import pathlib
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

from nodeagent.client.reader import AttachError, Reader, Wait
from nodeagent.client.stat import stat
from nodeagent.errors import UnavailableError
from nodeagent.feed.offer import claim
from nodeagent.feed.registry import MAX_DEAD, Registry
from nodeagent.feed.stats import StatsPage
from nodeagent.feed.wire import receive, send
from nodeagent.model.feed import ReaderMode
from nodeagent.model.ringproto import (
    ErrorCode,
    Flag,
    Msg,
    MsgType,
    ProtocolError,
    encode,
    raise_error,
)
from nodeagent.native.ring import Producer, RingError, RingKind, Segment
from nodeagent.rpc.wire import from_wire, to_wire
from tests.feed.ring_producer import checkable
from tests.feed.ring_world import Daemon, Feeder, feeder, until


@pytest.fixture
def open_path() -> Iterator[pathlib.Path]:
    """A folder that other users may enter (pytest keeps its own from them)."""
    with tempfile.TemporaryDirectory(prefix="nodeagent-ring-") as made:
        pathlib.Path(made).chmod(0o755)
        yield pathlib.Path(made)


READER = """
import sys
from nodeagent.client.reader import Reader
from nodeagent.model.feed import ReaderMode
reader = Reader.attach(sys.argv[2], sys.argv[3], socket=sys.argv[1], mode=ReaderMode(sys.argv[4]))
print("attached", reader.cursor, flush=True)
for batch in reader.batches():
    pass
"""


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path / "ring.sock", grace_ns=60_000_000_000)
    yield made
    made.close()


@contextlib.contextmanager
def reader_process(
    path: pathlib.Path, feed: str, name: str, mode: str = "lossy"
) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-I", "-c", READER, str(path), feed, name, mode],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("attached")
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


def connect(path: pathlib.Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(str(path))
    sock.settimeout(20)
    return sock


def ask(sock: socket.socket, msg: Msg, fds: list[int] | None = None) -> tuple[Msg, list[int]]:
    send(sock, msg, fds or [])
    answer = receive(sock)
    assert answer is not None
    return answer


def descriptors() -> int:
    gc.collect()
    return len(list(pathlib.Path("/proc/self/fd").iterdir()))


def test_a_feed_has_one_producer(daemon: Daemon) -> None:
    with feeder(daemon.path, "t") as producer:
        with pytest.raises(ProtocolError, match=f"producer, pid {producer.pid}") as caught:
            claim(daemon.path, "t")
        assert caught.value.code is ErrorCode.BUSY
        assert "stop that feeder" in caught.value.remedy
        assert claim(daemon.path, "other") == {}


def test_readers_come_go_and_die(daemon: Daemon) -> None:
    with feeder(daemon.path, "t"):
        with reader_process(daemon.path, "t", "a") as a, reader_process(daemon.path, "t", "b") as b:
            (ring,) = daemon.rings()
            assert {(r.name, r.pid) for r in ring.readers} == {("a", a.pid), ("b", b.pid)}
            assert {r.uid for r in ring.readers} == {os.getuid()}
            until(lambda: all(r.records > 1000 for r in daemon.rings()[0].readers))
            a.kill()
            until(lambda: [r.name for r in daemon.rings()[0].readers] == ["b"])
            b.send_signal(signal.SIGSTOP)
            # A stopped reader is shown with a growing age, from its cursor, not from what it says.
            until(lambda: daemon.rings()[0].readers[0].data_age_ns > 200_000_000)
            (stopped,) = daemon.rings()[0].readers
            assert stopped.alive
            assert stopped.lag_records > 0
            b.send_signal(signal.SIGCONT)
            until(lambda: daemon.rings()[0].readers[0].data_age_ns < 200_000_000)
        until(lambda: not daemon.rings()[0].readers)


def test_dead_segments_are_bounded_and_the_stuck_reader_is_named(daemon: Daemon) -> None:
    first = Feeder(daemon.path, "t", "--rate", "50000")
    with reader_process(daemon.path, "t", "stuck") as stuck:
        until(lambda: daemon.rings()[0].readers[0].records > 100)
        stuck.send_signal(signal.SIGSTOP)
        for _ in range(MAX_DEAD + 2):
            first.kill()
            first = Feeder(daemon.path, "t", "--rate", "50000")
        until(lambda: sum(r.draining for r in daemon.rings()) <= MAX_DEAD)
        named = [e for e in daemon.events() if e.kind == "feed.reader-stuck"]
        assert any(f"stuck (pid {stuck.pid})" in e.message for e in named)
        stuck.send_signal(signal.SIGCONT)
        # It drains what it has, is handed what is left, and ends up at the live one.
        until(lambda: daemon.rings()[-1].readers != ())
        until(lambda: len(daemon.rings()) == 1)
        until(lambda: daemon.rings()[0].readers[0].lag_records < 5000)
    first.kill()
    daemon.gone()


def test_a_feed_without_readers_is_let_go_after_a_while(daemon: Daemon) -> None:
    before = descriptors()
    first = Feeder(daemon.path, "t", "--frames")
    assert {r.kind for r in daemon.rings()} == {"ticks", "frames"}
    until(lambda: all(r.head for r in daemon.rings()))
    first.kill()
    # Within the grace its feeder numbers on.
    with feeder(daemon.path, "t", "--frames") as second:
        assert second.incarnation == 2
        assert second.start > 0
        until(lambda: len(daemon.rings()) == 2)
    daemon.gone()
    first.process.stdin, first.process.stdout = None, None
    until(lambda: descriptors() <= before + 2)


def test_a_reader_of_a_dead_feed_is_told_and_follows_the_next(daemon: Daemon) -> None:
    first = Feeder(daemon.path, "t", "--rate", "50000")
    first.kill()
    with Reader.attach("t", "late", socket=daemon.path) as reader:
        assert reader.wait(20.0) is Wait.STALE
        assert [r.draining for r in daemon.rings()] == [True]
        with feeder(daemon.path, "t", "--rate", "50000") as second:
            until(lambda: (reader.wait(0.1), reader.batch().advance(), reader.switches)[2])  # type: ignore[func-returns-value]  # run for its effect
            assert reader.cursor >= second.start
            assert reader.lost == 0


def test_a_hostile_page_harms_nobody(daemon: Daemon) -> None:
    with feeder(daemon.path, "t", "--rate", "100000") as producer:
        sock = connect(daemon.path)
        msg, fds = ask(
            sock,
            Msg(type=MsgType.ATTACH, feed="t", name="evil", ring=1, mode=ReaderMode.GATING),
        )
        assert msg.type is MsgType.ATTACHED
        page = fds[-1]
        rng = random.Random(7)
        with Reader.attach("t", "good", socket=daemon.path) as good:
            for turn in range(60):
                # Cursor far ahead, far behind, jumping; "I wait" for ever; counts of nonsense.
                os.pwrite(page, rng.randbytes(4096) if turn % 3 else b"\xff" * 4096, 0)
                good.wait(1.0)
                good.batch().advance()
                rings = daemon.rings()
                evil = next(r for r in rings[0].readers if r.name == "evil")
                assert 0 <= evil.lag_records <= rings[0].head
                assert (evil.pid, evil.uid) == (os.getpid(), os.getuid())
                stat(daemon.path)
            assert good.lost == 0
            # It may neither cut the page nor seal it against us.
            with pytest.raises(PermissionError):
                os.ftruncate(page, 0)
            # Silent and gating, it holds the producer until the deadline and no longer.
            lineage = msg.lineage.to_bytes(8, "little")
            os.pwrite(page, bytes(8) + lineage + bytes(4080), 0)
            head = daemon.rings()[0].head
            until(lambda: (good.batch().advance(), daemon.rings()[0].head > head + 100_000)[1])  # type: ignore[func-returns-value]  # run for its effect
            until(lambda: "feed.reader-dropped" in [e.kind for e in daemon.events()])
        assert producer.process.poll() is None
        for fd in fds:
            os.close(fd)
        sock.close()


def test_garbage_on_the_socket_ends_that_connection_only(daemon: Daemon) -> None:
    rng = random.Random(1)
    with feeder(daemon.path, "t"):
        with Reader.attach("t", "good", socket=daemon.path) as good:
            for turn in range(200):
                sock = connect(daemon.path)
                kind = turn % 4
                if kind == 0:
                    packet = rng.randbytes(rng.randrange(1, 300))
                elif kind == 1:
                    mixed = bytearray(encode(Msg(type=MsgType.ATTACH, feed="t", name="x", ring=1)))
                    mixed[rng.randrange(128)] = rng.randrange(256)
                    packet = bytes(mixed)
                elif kind == 2:
                    packet = encode(Msg(type=rng.choice(list(MsgType)), feed="t", ring=9))
                else:
                    packet = rng.randbytes(70000)
                rights = array.array("i", [0] * rng.randrange(6))
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else []
                with contextlib.suppress(OSError):
                    sock.sendmsg([packet], ancillary)
                    sock.sendmsg([packet], ancillary)
                if turn % 2:
                    with contextlib.suppress(OSError):
                        sock.recv(70000)
                sock.close()
            assert good.wait(20.0) is Wait.READY
            until(lambda: [r.name for r in daemon.rings()[0].readers] == ["good"])


def test_an_offer_that_is_no_segment_is_refused_with_a_sentence(daemon: Daemon) -> None:
    before = descriptors()
    with connect(daemon.path) as sock:
        fd = os.memfd_create("none")
        os.write(fd, b"x" * 100)
        msg, _ = ask(sock, Msg(type=MsgType.OFFER, feed="t", rings=(1,)), [fd])
        os.close(fd)
        with pytest.raises(ProtocolError, match="not sealed") as caught:
            raise_error(msg)
        assert caught.value.code is ErrorCode.SEGMENT
    with connect(daemon.path) as sock, Producer("other", capacity=1 << 15) as other:
        offer = Msg(type=MsgType.OFFER, feed="t", rings=(1,))
        with pytest.raises(ProtocolError, match="belongs to feed other"):
            raise_error(ask(sock, offer, [other.fileno()])[0])
    with connect(daemon.path) as sock:
        with pytest.raises(ProtocolError, match="0 descriptors"):
            raise_error(ask(sock, Msg(type=MsgType.OFFER, feed="t", rings=(1,)))[0])
    until(lambda: descriptors() <= before)


def test_a_thousand_connections_are_bounded(tmp_path: pathlib.Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    daemon = Daemon(tmp_path / "ring.sock", max_connections=100)
    socks: list[socket.socket] = []
    try:
        with feeder(daemon.path, "t"):
            with Reader.attach("t", "good", socket=daemon.path) as good:
                before = descriptors()
                for _ in range(1000):
                    socks.append(connect(daemon.path))
                until(lambda: daemon.registry.refused >= 902)
                # 1,000 sockets here; there at most 98 of them and as many pidfds.
                until(lambda: descriptors() - before <= 1000 + 2 * 98)
                msg = receive(socks[-1])
                assert msg is not None
                with pytest.raises(ProtocolError, match="its limit is 100") as caught:
                    raise_error(msg[0])
                assert caught.value.code is ErrorCode.FULL
                with pytest.raises(AttachError, match="limit is 100"):
                    Reader.attach("t", "more", socket=daemon.path)
                assert good.wait(20.0) is Wait.READY
                for sock in socks:
                    sock.close()
                until(lambda: len(stat_or_none(daemon.path)) == 1)
    finally:
        daemon.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def stat_or_none(path: pathlib.Path) -> tuple[object, ...]:
    try:
        return stat(path)[1]
    except (ProtocolError, UnavailableError):
        return ()


def test_as_many_readers_as_a_ring_takes(tmp_path: pathlib.Path) -> None:
    daemon = Daemon(tmp_path / "ring.sock")
    try:
        with feeder(daemon.path, "t"), contextlib.ExitStack() as stack:
            allowed = daemon.registry.most - 10  # what this machine's limit leaves
            count = min(256, allowed)
            for i in range(count):
                stack.enter_context(Reader.attach("t", f"r{i}", socket=daemon.path))
            feeds, rings = stat(daemon.path)
            assert len(feeds) == 1
            assert len(rings[0].readers) == count
            if count == 256:
                with pytest.raises(AttachError, match="256 readers"):
                    Reader.attach("t", "one-more", socket=daemon.path)
    finally:
        daemon.close()


@pytest.mark.root
@pytest.mark.usefixtures("as_root")
def test_who_may_attach_is_decided_by_groups(open_path: pathlib.Path) -> None:
    daemon = Daemon(open_path / "ring.sock", reader_gids=[54321], feeder_uids=[40001])
    try:
        with feeder(daemon.path, "t"):
            code = """
import os, sys
sys.path[:0] = {path!r}
from nodeagent.client.reader import Reader, AttachError
from nodeagent.feed.offer import claim
from nodeagent.model.ringproto import ProtocolError
os.setgroups([int(g) for g in sys.argv[3].split(",") if g]); os.setgid(int(sys.argv[2]))
os.setuid(40000 if len(sys.argv) < 5 else int(sys.argv[4]))
try:
    Reader.attach("t", "me", socket=sys.argv[1]); print("in", end=" ")
except AttachError as error:
    print("out:", error, end=" ")
try:
    claim(sys.argv[1], "new"); print("feeds")
except ProtocolError as error:
    print("no feed")
"""

            def attempt(*args: str) -> str:
                run = [sys.executable, "-c", code.format(path=sys.path), str(daemon.path), *args]
                return subprocess.run(run, capture_output=True, text=True, check=True).stdout

            assert attempt("40000", "").startswith("out:")
            assert "may not use" in attempt("40000", "")
            assert attempt("54321", "") == "in no feed\n"
            assert attempt("40000", "1,54321") == "in no feed\n"
            assert attempt("40000", "1,2,3") != "in no feed\n"
            assert attempt("40001", "", "40001") == "in feeds\n"
    finally:
        daemon.close()


def test_a_second_daemon_is_refused_and_a_dead_ones_socket_taken_over(
    tmp_path: pathlib.Path,
) -> None:
    daemon = Daemon(tmp_path / "ring.sock")
    try:
        with pytest.raises(UnavailableError, match="Address already in use"):
            Registry(daemon.path).open()
    finally:
        daemon.close()
    assert not daemon.path.exists()
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stale.bind(str(daemon.path))
    stale.close()
    Daemon(tmp_path / "ring.sock").close()


def test_a_flag_without_a_sleeper_does_not_cost_a_call_a_burst() -> None:
    fd = os.memfd_create("page", os.MFD_ALLOW_SEALING)
    os.posix_fallocate(fd, 0, 4096)
    with Producer("t", capacity=1 << 15) as producer:
        with pytest.raises(RingError, match="errno 9"):
            producer.add_reader(0, fd)
        fcntl.fcntl(fd, 1033, 0x7)
        producer.add_reader(0, fd)
        with pytest.raises(RingError, match="errno 17"):
            producer.add_reader(0, fd)
        for _ in range(1000):
            producer.publish(checkable(producer.position, 1))
        assert producer.info().wakes == 0
        os.pwrite(fd, b"\x01", 128)
        for _ in range(10000):
            producer.publish(checkable(producer.position, 1))
        assert 8 <= producer.info().wakes < 50
        assert producer.remove_reader(0)
        assert not producer.remove_reader(0)
        assert Segment.open(producer.fileno(), RingKind.TICKS).end(0) == 11000
    os.close(fd)


def test_nothing_is_left_once_all_are_gone(daemon: Daemon) -> None:
    def ours() -> list[str]:
        found = []
        for fd in pathlib.Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                if "memfd:nodeagent-" in str(fd.readlink()):
                    found.append(str(fd.readlink()))
        maps = pathlib.Path("/proc/self/maps").read_text()
        return found + [line for line in maps.splitlines() if "memfd:nodeagent-" in line]

    gc.collect()
    before = len(ours())
    with feeder(daemon.path, "left", "--frames"):
        with Reader.attach("left", "me", socket=daemon.path) as reader:
            reader.wait(20.0)
            reader.batch().advance()
            assert len(ours()) > before
    daemon.gone()

    def gone() -> bool:
        gc.collect()
        return len(ours()) <= before

    until(gone)


def test_a_hostile_feeder_s_figures_fit_the_report(daemon: Daemon) -> None:
    """A segment whose commit stands before its start, and counters of all ones."""
    with Producer("t", capacity=1 << 15) as first:
        for _ in range(3):
            first.publish(checkable(0, 1000))
        with Producer("t", capacity=1 << 15, dead=Segment.open(first.fileno())) as second:
            content = os.pread(second.fileno(), second.info().size_bytes, 0)
    segment = os.memfd_create("ticks", os.MFD_ALLOW_SEALING)
    os.write(segment, content)
    os.pwrite(segment, bytes(8), 4096 + 128)
    fcntl.fcntl(segment, 1033, 0x1 | 0x2 | 0x4 | 0x10)
    page = StatsPage.create("t", "socket")
    for name in ("packets", "bytes", "messages", "wire_gap", "last_message_ns"):
        setattr(page.pointer, name, (1 << 64) - 1)
    offer = Msg(type=MsgType.OFFER, feed="t", rings=(1,), flags=Flag.HAS_STATS)
    with connect(daemon.path) as feeder_sock, connect(daemon.path) as reader:
        raise_error(ask(feeder_sock, offer, [segment, page.fd])[0])
        attach = Msg(type=MsgType.ATTACH, feed="t", name="r", ring=1)
        raise_error(ask(reader, attach)[0])
        (ring,), (feed,) = daemon.rings(), daemon.feeds()
        assert ring.readers[0].lag_records == 0
        assert feed.packets == (1 << 63) - 1 == feed.loss.wire_gap
        for value in (ring, feed):
            assert from_wire(type(value), to_wire(value)) == value
    os.close(segment)
    page.close()
