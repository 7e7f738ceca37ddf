"""CPU sets: the kernel's syntax, both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet


@given(st.frozensets(st.integers(0, 2000)))
def test_round_trip(ids: frozenset[int]) -> None:
    assert CpuSet.parse(str(CpuSet(ids))).ids == ids


@given(st.frozensets(st.integers(0, 300), min_size=1))
def test_mask_round_trip(ids: frozenset[int]) -> None:
    assert CpuSet.parse_mask(f"{sum(1 << i for i in ids):x}").ids == ids


@given(st.frozensets(st.integers(0, 1500)))
def test_a_mask_is_written_in_words_of_32_bits(ids: frozenset[int]) -> None:
    text = CpuSet(ids).mask()
    assert CpuSet.parse_mask(text).ids == ids
    first, *rest = text.split(",")
    assert 1 <= len(first) <= 8 and all(len(word) == 8 for word in rest)


def test_masks_as_the_kernel_writes_them() -> None:
    assert CpuSet().mask() == "0"
    assert CpuSet.parse("0-1").mask() == "3"
    assert CpuSet.parse("32").mask() == "1,00000000"
    assert CpuSet.parse("1023").mask() == "80000000" + ",00000000" * 31


@pytest.mark.parametrize(
    ("text", "last", "expected"),
    [
        ("0,1,2,8", None, "0-2,8"),
        ("0-15:2/4", None, "0-1,4-5,8-9,12-13"),
        ("4-N", 15, "4-15"),
        ("all", 3, "0-3"),
        ("", None, ""),
        (" 3-1024\n", None, "3-1024"),
    ],
)
def test_kernel_syntax(text: str, last: int | None, expected: str) -> None:
    assert str(CpuSet.parse(text, last=last)) == expected


@pytest.mark.parametrize(
    "text", ["a", "3-1", "0-15:5/4", "0-", "-1", "N", "all", "0-99999999999", "0-3:0/2"]
)
def test_damage_is_an_error(text: str) -> None:
    with pytest.raises(ParseError) as error:
        CpuSet.parse(text)
    assert text[:20] in str(error.value)


def test_a_short_text_is_no_hours_of_work() -> None:
    assert len(CpuSet.parse("0-65535,0-65535,0-65535,0-65535")) == 65536
    with pytest.raises(ParseError):
        CpuSet.parse("0-65535," * 5)
    assert CpuSet.parse("all,all", last=7) == CpuSet.of(range(8))
