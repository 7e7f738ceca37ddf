"""The reader against real producer processes: batches, lapping, restart, silence, asyncio."""

from __future__ import annotations

import asyncio
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from nodeagent.client.reader import AsyncReader, AttachError, Reader, Wait
from nodeagent.model.feed import ReaderMode
from tests.feed.ring_producer import torn
from tests.feed.ring_world import Daemon, Feeder, feeder, until


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path / "ring.sock", grace_ns=60_000_000_000)
    yield made
    made.close()


def skip(reader: Reader) -> int:
    """Throws a batch away."""
    batch = reader.batch()
    batch.advance()
    return len(batch)


def read(reader: Reader, to: int) -> tuple[int, int, int]:
    """Reads up to a position: (records, lost, torn), every number accounted for."""
    records = lost = bad = 0
    at = reader.cursor
    while reader.cursor < to:
        batch = reader.batch(1000)
        if not len(batch):
            reader.wait(1.0)
            continue
        assert int(batch.ticks["seq"][0]) - 1 == at + batch.gap or batch.validate()
        numbers, wrong = batch.ticks["seq"].copy(), batch.ticks.copy()
        over = batch.validate()
        assert (
            numbers[over:] == range(reader.cursor + over + 1, reader.cursor + len(batch) + 1)
        ).all()
        bad += torn(wrong[over:])
        lost += batch.gap + over
        records += len(batch) - over
        batch.advance()
        at = reader.cursor
    return records, lost, bad


def test_every_record_arrives_and_the_daemon_sees_it(daemon: Daemon) -> None:
    with feeder(daemon.path, "t", "--count", "50000", "--capacity", "131072") as producer:
        with Reader.attach("t", "me", socket=daemon.path) as reader:
            first = reader.cursor
            end = producer.done()
            records, lost, bad = read(reader, end)
            assert (records, lost, bad) == (end - first, 0, 0)
            assert reader.symbol(1) == "AAPL"
            assert reader.symbols() == {1: "AAPL", 2: "ZVZZT"}
            assert reader.price_exponent == -4
            assert reader.data_age_ns >= 0
            assert not len(reader.batch())
            assert reader.data_age_ns == 0
            (ring,) = daemon.rings()
            assert (ring.head, ring.producer_pid, ring.producer_alive) == (end, producer.pid, True)
            (seen,) = ring.readers
            assert (seen.name, seen.records, seen.lost) == ("me", records, 0)
            assert (seen.lag_records, seen.data_age_ns, seen.alive) == (0, 0, True)
            assert dict(seen.data_age_quantiles_ns)["p50"] > 0
            (feed,) = daemon.feeds()
            assert (feed.messages, feed.source, feed.note) == (50000, "test", "made by a test")
        until(lambda: not daemon.rings()[0].readers)


def test_a_lapped_reader_counts_what_it_lost_exactly(daemon: Daemon) -> None:
    with feeder(daemon.path, "t", "--rate", "500000", "--batch", "500") as producer:
        with Reader.attach("t", "slow", socket=daemon.path) as reader:
            first, records, lost, bad = reader.cursor, 0, 0, 0
            for _ in range(8):
                # Longer than a lap: 32768 records at 500,000 a second.
                time.sleep(0.15)
                got = read(reader, reader.cursor + 5000)
                records, lost, bad = records + got[0], lost + got[1], bad + got[2]
                assert reader.cursor - first == records + lost
            assert lost > 0
            assert (bad, reader.records, reader.lost) == (0, records, lost)
            assert producer.process.poll() is None


def test_a_batch_overwritten_while_in_use_says_how_much(daemon: Daemon) -> None:
    with feeder(daemon.path, "t", "--rate", "500000", "--batch", "500") as producer:
        with Reader.attach("t", "slow", socket=daemon.path) as reader:
            first = reader.cursor
            while len(batch := reader.batch(20000)) < 10000:
                time.sleep(0.001)
            assert batch.validate() == 0
            begin = reader.cursor
            until(lambda: 0 < batch.validate() < len(batch))
            producer.signal(signal.SIGSTOP)
            over = batch.validate()
            assert torn(batch.ticks[over:]) == 0
            assert batch.ticks["seq"][over] == begin + over + 1
            batch.advance()
            assert reader.lost == over
            assert reader.records + reader.lost == reader.cursor - first


def test_a_killed_producer_is_followed_without_a_wrong_count(daemon: Daemon) -> None:
    first = Feeder(daemon.path, "t", "--rate", "200000")
    with Reader.attach("t", "me", socket=daemon.path) as reader:
        start = reader.cursor
        records = lost = bad = 0
        for turn in range(2, 6):
            got = read(reader, reader.cursor + 10000)
            records, lost, bad = records + got[0], lost + got[1], bad + got[2]
            first.kill()
            first = Feeder(daemon.path, "t", "--rate", "200000")
            assert first.incarnation == turn
            got = read(reader, first.start + 1)
            records, lost, bad = records + got[0], lost + got[1], bad + got[2]
            assert reader.switches == turn - 1
            assert reader.cursor - start == records + lost
        assert (lost, bad, reader.renumbered) == (0, 0, 0)
        assert (reader.records, reader.lost) == (records, 0)
        assert reader.symbol(2) == "ZVZZT"
        kinds = [e.kind for e in daemon.events()]
        assert kinds.count("feed.died") == 4
        assert kinds.count("feed.offered") == 5
        # Drained ones are let go.
        until(lambda: len(daemon.rings()) == 1)
    first.kill()
    daemon.gone()


def test_a_silent_producer_is_told_as_stale_and_heard_again(daemon: Daemon) -> None:
    with feeder(daemon.path, "t", "--rate", "1000", "--batch", "10") as producer:
        with Reader.attach("t", "me", socket=daemon.path) as reader:
            assert reader.wait(20.0) is Wait.READY
            producer.signal(signal.SIGSTOP)
            end = daemon.rings()[0].head
            read(reader, end)
            while (result := reader.wait(20.0)) is Wait.READY:
                reader.batch().advance()
            assert result is Wait.STALE
            assert reader.stale
            # Told once, then at the end of each timeout.
            assert reader.wait(0.1) is Wait.STALE
            producer.signal(signal.SIGCONT)
            assert reader.wait(20.0) is Wait.READY
            reader.batch().advance()
            until(lambda: (reader.wait(0.02), skip(reader), not reader.stale)[2])


def test_a_dead_producer_is_stale_and_the_end_of_a_closed_one_too(daemon: Daemon) -> None:
    with feeder(daemon.path, "t", "--count", "1000") as producer:
        with Reader.attach("t", "me", socket=daemon.path) as reader:
            read(reader, producer.done())
            producer.finish()
            assert reader.wait(20.0) is Wait.STALE
            assert reader.stale
            until(lambda: len(daemon.events()) > 1)
            assert [e.kind for e in daemon.events()] == ["feed.offered", "feed.ended"]


def test_reading_goes_on_while_the_daemon_is_away(daemon: Daemon) -> None:
    with feeder(daemon.path, "t") as producer:
        with Reader.attach("t", "me", socket=daemon.path) as reader:
            first = reader.cursor
            read(reader, first + 2000)
            daemon.close()
            assert read(reader, reader.cursor + 10000) == (10000, 0, 0) or reader.lost == 0
            until(lambda: (read(reader, reader.cursor + 100), not reader.attached)[1])
            again = Daemon(daemon.path)
            try:
                until(lambda: (read(reader, reader.cursor + 100), reader.attached)[1])
                (ring,) = again.rings()
                assert ring.producer_pid == producer.pid
                until(lambda: [r.name for r in again.rings()[0].readers] == ["me"])
                assert reader.cursor - first == reader.records
                assert reader.lost == reader.switches == 0
                # And a restart of the producer under the new daemon is followed.
                producer.kill()
                with feeder(daemon.path, "t") as second:
                    read(reader, second.start + 500)
                    assert (reader.switches, reader.renumbered, reader.lost) == (1, 0, 0)
            finally:
                again.close()


def test_a_gating_reader_loses_nothing_until_it_misses_the_deadline(daemon: Daemon) -> None:
    args = ("--rate", "1e9", "--batch", "1000", "--count", "1000000", "--deadline-ms", "3000")
    with feeder(daemon.path, "t", *args) as producer:
        with Reader.attach("t", "gate", socket=daemon.path, mode=ReaderMode.GATING) as reader:
            until(lambda: daemon.rings()[0].head > 1000)
            got = read(reader, 400_000)
            # Only what passed before the feeder knew of it may be missing.
            assert got[2] == 0
            before = reader.lost
            read(reader, 800_000)
            assert reader.lost == before
            assert not reader.dropped
            # Stop reading: the producer waits, then goes on without it.
            end = producer.done()
            assert end >= 1_000_000
            until(lambda: (reader.wait(0.05), skip(reader), reader.dropped)[2])
            assert "feed.reader-dropped" in [e.kind for e in daemon.events()]


def test_errors_name_the_remedy(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    with pytest.raises(AttachError, match="no feed nope") as caught:
        Reader.attach("nope", "me", socket=daemon.path)
    assert "feeds here: none" in caught.value.remedy
    with pytest.raises(AttachError, match="No such file") as caught:
        Reader.attach("t", "me", socket=tmp_path / "nobody.sock", wait_s=0.2)
    assert "running" in caught.value.remedy
    with pytest.raises(AttachError, match="1 to 31 bytes"):
        Reader.attach("t" * 40, "me", socket=daemon.path)


def test_asyncio_readers_share_a_loop(daemon: Daemon) -> None:
    async def one(name: str, count: int) -> tuple[int, int]:
        async with await AsyncReader.attach("t", name, socket=daemon.path) as reader:
            seen = bad = 0
            async for batch in reader.batches():
                bad += torn(batch.ticks)
                seen += len(batch)
                if seen >= count:
                    break
            return seen, bad

    async def both() -> list[tuple[int, int]]:
        return list(await asyncio.gather(one("a", 20000), one("b", 20000)))

    async def cancelled() -> bool:
        async with await AsyncReader.attach("t", "c", socket=daemon.path) as reader:
            while len(batch := reader.batch()):
                batch.advance()
            waiting = asyncio.create_task(reader.wait())
            await asyncio.sleep(0.05)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            return waiting.cancelled() or waiting.done()

    async def silent() -> Wait:
        async with await AsyncReader.attach("t", "d", socket=daemon.path) as reader:
            while (result := await reader.wait(20.0)) is Wait.READY:
                reader.batch().advance()
            return result

    with feeder(daemon.path, "t", "--rate", "100000") as producer:
        assert [(seen >= 20000, bad) for seen, bad in asyncio.run(both())] == [(True, 0)] * 2
        assert asyncio.run(cancelled())
        producer.signal(signal.SIGSTOP)
        assert asyncio.run(silent()) is Wait.STALE


def test_frames_behind_ticks(daemon: Daemon) -> None:
    with feeder(daemon.path, "t", "--frames", "--count", "1000", "--batch", "10") as producer:
        producer.done()
        with Reader.attach("t", "me", socket=daemon.path) as reader:
            frame = reader.frame(0)
            assert frame is not None
            assert frame.payload == b"0"
            assert reader.frame(8) is None


def test_an_agent_imports_it_without_grpc_click_or_rich() -> None:
    code = (
        "import sys, nodeagent.client.reader;"
        "print([m for m in ('grpc', 'click', 'rich', 'msgspec', 'google') if m in sys.modules])"
    )
    run = [sys.executable, "-I", "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
