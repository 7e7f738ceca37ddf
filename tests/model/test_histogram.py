"""Histogram buckets cover every value once, and quantiles are as near as promised."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.model.histogram import BUCKETS, Histogram, bounds, bucket_of


@given(st.integers(0, 2**63))
def test_value_lies_in_its_bucket(value: int) -> None:
    low, high = bounds(bucket_of(value))
    assert low <= value < high


def test_buckets_are_adjacent() -> None:
    for bucket in range(BUCKETS - 8):
        assert bounds(bucket)[1] == bounds(bucket + 1)[0]


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=200), st.floats(0.01, 1))
def test_quantile_is_near(values: list[int], q: float) -> None:
    counts = [0] * BUCKETS
    for v in values:
        counts[bucket_of(v)] += 1
    got = Histogram(counts=tuple(counts)).quantile(q)
    exact = sorted(values)[max(0, -(-int(q * len(values) * 1e9) // 10**9) - 1)]
    assert got is not None
    low, high = bounds(bucket_of(exact))
    assert low <= got < high or abs(got - exact) <= max(values)
