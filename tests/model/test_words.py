"""Counts in words."""

from __future__ import annotations

import pytest

from nodeagent.model.words import many


@pytest.mark.parametrize(
    ("count", "word", "said"),
    [
        (0, "thread", "0 threads"),
        (1, "thread", "1 thread"),
        (2, "thread", "2 threads"),
        (1024, "CPU", "1,024 CPUs"),
        (2, "process", "2 processes"),
        (2, "mask", "2 masks"),
        (1, "entry", "1 entry"),
        (3, "entry", "3 entries"),
        (3, "relay", "3 relays"),
    ],
)
def test_many(count: int, word: str, said: str) -> None:
    assert many(count, word) == said
