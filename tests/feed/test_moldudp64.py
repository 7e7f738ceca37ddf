"""MoldUDP64: sessions, lines, gaps; every case checks that the counters add up."""

from __future__ import annotations

import pathlib
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent.native.feed import Counts, Kind, Memory
from nodeagent.native.ring import KINDS
from tests.feed.mold import (
    SESSION,
    decode,
    delete,
    end,
    heartbeat,
    numbered,
    packet,
)


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "capture.pcap"


def refs(memory: Memory) -> list[int]:
    ticks = memory.ticks
    return [int(r) for r in ticks["ref"][ticks["kind"] == Kind.DELETE]]


def gaps(memory: Memory) -> list[tuple[int, int]]:
    ticks = memory.ticks
    found = ticks[ticks["kind"] == Kind.WIRE_GAP]
    return [(int(t["ref"]), int(t["size"])) for t in found]


def test_in_order(file: pathlib.Path) -> None:
    memory, counts = decode(file, [(0, numbered(1, 3)), (0, numbered(4, 2)), (0, end(6))])
    assert refs(memory) == [1, 2, 3, 4, 5]
    assert (counts.published, counts.span, counts.gaps) == (5, 5, 0)
    kinds = [int(k) for k in memory.ticks["kind"]]
    assert kinds == [Kind.SESSION, *[Kind.DELETE] * 5, Kind.SESSION_END]
    # The last tick of each packet says so.
    assert [int(f) & 4 for f in memory.ticks["flags"]] == [0, 0, 0, 4, 0, 4, 0]
    session = memory.ticks[0]
    assert KINDS[int(session["kind"])] == "session"
    name = int(session["aux"]).to_bytes(8, "big") + int(session["size"]).to_bytes(2, "big")
    assert name == SESSION


def test_hole_on_one_line_is_a_gap_at_once(file: pathlib.Path) -> None:
    memory, counts = decode(file, [(0, numbered(1, 2)), (0, numbered(6, 2))])
    assert refs(memory) == [1, 2, 6, 7]
    assert gaps(memory) == [(3, 3)]
    assert (counts.gap_wire, counts.gap_kernel, counts.span) == (3, 0, 7)


def test_hole_at_the_end_is_known_by_the_heartbeat(file: pathlib.Path) -> None:
    memory, counts = decode(file, [(0, numbered(1, 2)), (0, heartbeat(5)), (0, heartbeat(5))])
    assert gaps(memory) == [(3, 2)]
    assert (counts.heartbeats, counts.span) == (2, 4)


def test_hole_at_the_start_counts_when_the_first_number_is_known(file: pathlib.Path) -> None:
    stream = [(0, numbered(4, 2)), (0, end(6))]
    assert decode(file, stream)[1].gap_wire == 0
    memory, counts = decode(file, stream, first_seq=1)
    assert gaps(memory) == [(1, 3)]
    assert counts.first_seq == 1


def test_line_b_fills_what_a_lost(file: pathlib.Path) -> None:
    memory, counts = decode(
        file,
        [
            (0, numbered(1, 2)),
            (1, numbered(1, 2)),
            (0, numbered(5, 2)),  # A lost 3 and 4: B may still bring them
            (1, numbered(3, 2)),
            (1, numbered(5, 2)),
            (0, end(7)),
            (1, end(7)),
        ],
    )
    assert refs(memory) == [1, 2, 3, 4, 5, 6]
    assert (counts.gaps, counts.held, counts.duplicates) == (0, 1, 4)


def test_gap_only_when_both_lines_have_passed_it(file: pathlib.Path) -> None:
    memory, counts = decode(
        file,
        [
            (0, numbered(1, 1)),
            (1, numbered(1, 1)),
            (0, numbered(4, 1)),
            (0, numbered(5, 1)),
            (1, numbered(5, 1)),
        ],
    )
    # 2 and 3 came on neither line; order is kept.
    assert gaps(memory) == [(2, 2)]
    assert refs(memory) == [1, 4, 5]
    assert counts.duplicates == 2


def test_parts_of_a_packet_that_came_before_are_left_out(file: pathlib.Path) -> None:
    memory, counts = decode(file, [(0, numbered(1, 4)), (0, numbered(3, 4))])
    assert refs(memory) == [1, 2, 3, 4, 5, 6]
    assert counts.duplicates == 2


def test_late_is_not_duplicate(file: pathlib.Path) -> None:
    memory, counts = decode(file, [(0, numbered(1)), (0, numbered(4)), (0, numbered(2, 2))])
    assert refs(memory) == [1, 4]
    assert (counts.gap_wire, counts.late, counts.duplicates) == (2, 2, 0)


def test_new_session_and_the_slow_line(file: pathlib.Path) -> None:
    other = b"TESTSESS02"
    memory, counts = decode(
        file,
        [
            (0, numbered(1, 2)),
            (0, numbered(1, 3, other)),
            (1, numbered(1, 2)),  # line B still sends the session before
            (0, numbered(4, 1, other)),
        ],
    )
    assert refs(memory) == [1, 2, 1, 2, 3, 4]
    assert (counts.sessions, counts.stale_session, counts.span) == (2, 1, 6)


def test_lying_count_moves_nothing(file: pathlib.Path) -> None:
    lie = packet(3, [delete(3)], count=60_000)
    memory, counts = decode(file, [(0, numbered(1, 2)), (0, lie), (0, numbered(4, 2))])
    assert refs(memory) == [1, 2, 3, 4, 5]
    assert dict(counts.bad) == {"truncated": 1}
    assert counts.gaps == 0


def test_lying_count_behind_a_hole(file: pathlib.Path) -> None:
    lie = packet(9, [delete(9)], count=60_000)
    memory, _counts = decode(file, [(0, numbered(1, 2)), (0, lie), (0, numbered(10, 1))])
    assert refs(memory) == [1, 2, 9, 10]
    assert gaps(memory) == [(3, 6)]


def test_one_wild_number_is_not_believed(file: pathlib.Path) -> None:
    memory, counts = decode(
        file, [(0, numbered(1)), (0, numbered(1 << 40)), (0, numbered(2)), (0, numbered(3))]
    )
    assert refs(memory) == [1, 2, 3]
    assert dict(counts.bad) == {"sequence-jump": 1}
    assert counts.gaps == 0


def test_two_wild_numbers_that_agree_are(file: pathlib.Path) -> None:
    far = 1 << 30
    memory, counts = decode(file, [(0, numbered(1)), (0, numbered(far, 2)), (0, numbered(far + 2))])
    assert refs(memory) == [1, far, far + 1, far + 2]
    assert gaps(memory) == [(2, far - 2)]
    assert counts.bad == ()


@pytest.mark.parametrize(("ahead", "believed"), [(1 << 20, True), ((1 << 20) + 1, False)])
def test_how_far_ahead_one_packet_is_believed(
    file: pathlib.Path, ahead: int, believed: bool
) -> None:
    memory, counts = decode(file, [(0, numbered(1)), (0, numbered(2 + ahead))])
    assert refs(memory) == ([1, 2 + ahead] if believed else [1])
    assert counts.gap_wire == (ahead if believed else 0)


def test_so_many_packets_are_held_and_no_more(file: pathlib.Path) -> None:
    """Line 1 lives and might bring number 2; line 0 runs ahead of it."""
    started = [(0, numbered(1)), (1, numbered(1))]
    ahead = [(0, numbered(3 + i)) for i in range(300)]
    memory, counts = decode(file, [*started, *ahead, (1, numbered(2))])
    assert refs(memory) == [1, *range(3, 303)]
    assert gaps(memory) == [(2, 1)] and (counts.late, counts.duplicates) == (1, 1)
    memory, counts = decode(file, [*started, *ahead[:255], (1, numbered(2))])
    assert refs(memory) == list(range(1, 258)) and counts.gaps == 0


def test_a_session_that_began_before_the_number_told_begins_there(file: pathlib.Path) -> None:
    memory, counts = decode(file, [(0, numbered(1, 2)), (0, numbered(3))], first_seq=100)
    assert refs(memory) == [1, 2, 3] and (counts.gaps, counts.duplicates) == (0, 0)


def test_numbers_past_the_end_of_64_bits(file: pathlib.Path) -> None:
    wild = packet((1 << 64) - 2, [delete(1)] * 3)
    _, counts = decode(file, [(0, numbered(1)), (0, wild), (0, numbered(2))])
    assert dict(counts.bad) == {"sequence-overflow": 1}
    assert counts.published == 2


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (SESSION + b"\0" * 9, "short-header"),
        (numbered(2) + b"tail", "trailing-bytes"),
        (numbered(2)[:-1], "truncated"),
        (packet(2, [b"?" + b"x" * 20]), "unknown-type"),
        (packet(2, [delete(2) + b"x"]), "wrong-length"),
        (packet(2, [b""]), "empty"),
    ],
)
def test_bad_input_is_counted_by_kind(file: pathlib.Path, payload: bytes, kind: str) -> None:
    # One line is named: what no packet of the protocol is would otherwise teach no line.
    _memory, counts = decode(file, [(0, numbered(1)), (0, payload), (0, numbered(3))])
    assert dict(counts.bad) == {kind: 1}
    assert counts.published + counts.rejected + counts.gap_wire == 3
    assert counts.rejected == (kind in ("unknown-type", "wrong-length", "empty"))


def sent_over_two_lines(
    dice: random.Random, messages: int, lose: float
) -> tuple[list[tuple[int, bytes]], set[int]]:
    """A stream over two lines of different speed that lose packets independently."""
    packets, seq = [], 1
    while seq <= messages:
        n = min(dice.randint(1, 5), messages + 1 - seq)
        packets.append((seq, n))
        seq += n
    kept: list[list[tuple[float, int, bytes]]] = []
    arrived: set[int] = set()
    for line in (0, 1):
        lag = dice.random() * 5
        mine = []
        for i, (first, n) in enumerate(packets):
            if dice.random() >= lose:
                mine.append((i + lag, line, numbered(first, n)))
                arrived.update(range(first, first + n))
        mine.append((len(packets) + lag, line, end(messages + 1)))
        kept.append(mine)
    both = sorted(kept[0] + kept[1], key=lambda x: x[0])
    return [(line, payload) for _, line, payload in both], arrived


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 1 << 32), messages=st.integers(1, 200), lose=st.floats(0, 0.7))
def test_two_lines_give_everything_that_came_on_either_in_order(
    file: pathlib.Path, seed: int, messages: int, lose: float
) -> None:
    stream, arrived = sent_over_two_lines(random.Random(seed), messages, lose)
    memory, counts = decode(file, stream, first_seq=1)
    got = refs(memory)
    assert got == sorted(got)
    assert counts.span == messages
    # A line is taken to be dead until it was heard, so what only the other one brought before that
    # may be declared early; then it is counted as late, never lost from the sum.
    assert set(got) <= arrived
    assert len(arrived) - len(got) <= counts.late
    assert counts.published + counts.gap_wire == messages
    missing = {n for first, size in gaps(memory) for n in range(first, first + size)}
    assert missing == set(range(1, messages + 1)) - set(got)


def hostile(dice: random.Random) -> bytes:
    """Bytes near a packet."""
    match dice.randrange(5):
        case 0:
            return dice.randbytes(dice.randrange(80))
        case 1:
            return SESSION + dice.randbytes(dice.randrange(60))
        case 2:
            seq = dice.choice((0, 1, 2, 5, 1 << 21, (1 << 64) - 1))
            return packet(seq, [delete(1)] * dice.randrange(4), count=dice.randrange(0x10000))
        case 3:
            good = bytearray(numbered(dice.randrange(20), 3))
            good[dice.randrange(len(good))] ^= 1 << dice.randrange(8)
            return bytes(good)
        case _:
            return numbered(dice.randrange(30), dice.randrange(1, 4))


def test_hostile_streams_keep_the_sum(file: pathlib.Path) -> None:
    dice = random.Random(7)
    for _ in range(60):
        decode(file, [(dice.randrange(2), hostile(dice)) for _ in range(80)])


def test_gap_ticks_and_counters_agree(file: pathlib.Path) -> None:
    dice = random.Random(11)
    stream = [(0, numbered(i, 1)) for i in range(1, 4000) if dice.random() > 0.1]
    memory, counts = decode(file, stream)
    ticks = memory.ticks
    lost = int(np.sum(ticks["size"][ticks["kind"] == Kind.WIRE_GAP]))
    assert lost == counts.gap_wire > 100
    assert isinstance(counts, Counts)
