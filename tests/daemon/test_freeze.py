"""Freeze windows: wall clock hours of a zone, over midnight, over the week's end, over DST."""

from __future__ import annotations

import datetime
import zoneinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.errors import ParseError
from nodeagent.model.freeze import FreezeWindow, frozen

NEW_YORK = zoneinfo.ZoneInfo("America/New_York")


def at(text: str, zone: zoneinfo.ZoneInfo = NEW_YORK) -> int:
    return int(datetime.datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()) * 10**9


@pytest.mark.parametrize(
    ("moment", "inside"),
    [
        ("2024-03-08T07:59:59", False),  # Friday
        ("2024-03-08T08:00:00", True),
        ("2024-03-08T17:29:59", True),
        ("2024-03-08T17:30:00", False),
        ("2024-03-09T12:00:00", False),  # Saturday
        ("2024-03-11T08:00:00", True),  # Monday, summer time since Sunday
        ("2024-03-11T07:59:00", False),
    ],
)
def test_market_hours(moment: str, inside: bool) -> None:
    window = FreezeWindow.parse("Mon-Fri 08:00-17:30 America/New_York")
    assert window.covers(at(moment)) is inside


def test_over_midnight_and_the_weeks_end() -> None:
    window = FreezeWindow.parse("Sun,Fri-Sat 22:00-02:00 America/New_York")
    assert window.days == {4, 5, 6}
    assert window.covers(at("2024-03-08T23:00:00"))
    assert window.covers(at("2024-03-11T01:59:00"))  # Monday morning belongs to Sunday
    assert not window.covers(at("2024-03-08T01:00:00"))
    assert FreezeWindow.parse("Fri-Mon 00:00-24:00 UTC").days == {4, 5, 6, 0}


@pytest.mark.parametrize(
    "text",
    ["", "08:00-17:30", "Mon 08:00-08:00 UTC", "Mon 25:00-26:00 UTC", "Mon 08:61-09:00 UTC",
     "Mo 08:00-09:00 UTC", "Mon 24:00-25:00 UTC", "Mon 08:00-09:00 ../etc/passwd",
     "Mon 08:00-09:00 No/Such"],
)  # fmt: skip
def test_wrong_windows(text: str) -> None:
    with pytest.raises(ParseError):
        FreezeWindow.parse(text)


@given(
    start=st.integers(0, 1439),
    length=st.integers(1, 1439),
    offset=st.integers(0, 7 * 1440 - 1),
)
def test_every_minute_of_the_week(start: int, length: int, offset: int) -> None:
    """Inside exactly when a window that began on a named day has not ended."""
    end = (start + length) % 1440
    text = f"Mon,Thu {start // 60:02}:{start % 60:02}-{end // 60:02}:{end % 60:02} UTC"
    window = FreezeWindow.parse(text)
    monday = int(datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC).timestamp())
    begins = [day * 1440 + start + week * 10080 for day in (0, 3) for week in (-1, 0)]
    inside = any(b <= offset < b + length for b in begins)
    assert window.covers((monday + offset * 60) * 10**9) is inside


def test_reason() -> None:
    windows = (FreezeWindow.parse("00:00-24:00 UTC"),)
    assert frozen(windows, None, 0) == "freeze window 00:00-24:00 UTC"
    assert frozen((), "/run/nodeagent/freeze", 0) == "/run/nodeagent/freeze exists"
    assert frozen((), None, 0) is None
