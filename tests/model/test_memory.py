"""Shares of memory, room and the size of steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.memory import (
    FIRST_STEP_BYTES,
    MAX_STEP_BYTES,
    MIN_STEP_BYTES,
    Staying,
    by_node_text,
    by_node_words,
    known_local,
    local_share,
    next_step,
    outside,
    parse_by_node,
    room_needed,
    size,
)

BY_NODE = st.dictionaries(st.integers(0, 1023), st.integers(1, 1 << 50), max_size=12)
NODES = st.frozensets(st.integers(0, 1023), max_size=6).map(CpuSet)


def test_a_share_is_of_what_is_resident() -> None:
    assert local_share({0: 1, 1: 3}, CpuSet.of([1])) == 0.75
    assert local_share({0: 4}, CpuSet.of([1])) == 0.0
    assert local_share({}, CpuSet.of([1])) is None
    assert local_share({0: 0}, CpuSet.of([1])) is None
    assert local_share({0: 4}, CpuSet()) is None


def test_on_one_node_the_share_is_known_without_a_look() -> None:
    assert known_local(CpuSet.of([0]), [0]) == 1.0
    assert known_local(CpuSet.of([0, 1]), [0, 1]) == 1.0
    assert known_local(CpuSet.of([0]), [0, 1]) is None
    assert known_local(CpuSet(), [0]) is None
    assert known_local(CpuSet.of([0]), []) is None


@given(BY_NODE, NODES)
def test_a_share_and_the_rest_are_the_whole(by_node: dict[int, int], nodes: CpuSet) -> None:
    share = local_share(by_node, nodes)
    total = sum(by_node.values())
    if share is None:
        assert not total or not nodes
        return
    assert 0.0 <= share <= 1.0
    assert (share == 1.0) or outside(by_node, nodes) > 0
    assert share == pytest.approx(1 - outside(by_node, nodes) / total)


@given(BY_NODE)
def test_by_node_goes_through_the_journal(by_node: dict[int, int]) -> None:
    assert parse_by_node(by_node_text(by_node)) == by_node


@pytest.mark.parametrize("text", ["0", "0:", ":1", "0:x", "-1:4", "0:1,1:2"])
def test_what_is_no_memory_by_node_is_said(text: str) -> None:
    with pytest.raises(ParseError, match="NODE:BYTES"):
        parse_by_node(text)


def test_sizes_are_for_people() -> None:
    assert [size(n) for n in (0, 1023, 1 << 20, 3 << 29, 5 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 MiB",
        "1.5 GiB",
        "5.0 TiB",
    ]
    assert by_node_words({1: 1 << 20, 0: 0}) == "node 1: 1.0 MiB"
    assert by_node_words({}) == "no page of it is in memory"


def test_what_stays_is_told_by_reason() -> None:
    both = Staying(shared=1 << 20).plus(Staying(busy=2 << 20, pool=2 << 20))
    assert both.total == 5 << 20
    assert both.words().startswith("1.0 MiB shared with other processes, 2.0 MiB pinned (DMA)")
    assert Staying().words() == ""


def test_room_is_ten_percent_more() -> None:
    assert room_needed(1000) == 1100


@given(st.lists(st.floats(0, 20_000), max_size=60), st.integers(1, 10_000))
def test_steps_stay_in_their_bounds(times: list[float], stall_ms: int) -> None:
    step = FIRST_STEP_BYTES
    for took_ms in times:
        after = next_step(step, took_ms, stall_ms)
        if after is None:
            assert took_ms > stall_ms and step == MIN_STEP_BYTES
            return
        assert MIN_STEP_BYTES <= after <= MAX_STEP_BYTES
        assert (took_ms > stall_ms) == (after < step)
        step = after


def test_a_slow_machine_comes_to_an_end() -> None:
    step: int | None = MAX_STEP_BYTES
    for _ in range(6):
        assert step is not None
        step = next_step(step, 101, 100)
    assert step is None
