"""A short run of each fuzzer; the long one is tests/feed/fuzz.py (docs/proofs.md)."""

from __future__ import annotations

import pathlib

import pytest

from tests.feed import fuzz

RUNS = 20_000


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_nothing_is_found(target: str, tmp_path: pathlib.Path) -> None:
    try:
        program = fuzz.build(target, tmp_path)
    except fuzz.NoClangError as missing:
        pytest.skip(str(missing))
    corpus = tmp_path / "corpus"
    fuzz.seeds(target, corpus)
    ran, _ = fuzz.run(program, corpus, RUNS)
    assert ran >= RUNS
