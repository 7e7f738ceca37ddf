"""Freeze windows: times of the week in which nothing on the host may be changed.

Written as `Mon-Fri 08:00-17:30 America/New_York`: days, hours, IANA time zone. The hours are wall
clock hours of that zone, so a change to summer time moves the window with the market it protects.
"""

from __future__ import annotations

import datetime
import re
import zoneinfo
from dataclasses import dataclass

from nodeagent.errors import ParseError

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

EXPECTED = "DAYS HH:MM-HH:MM ZONE such as Mon-Fri 08:00-17:30 America/New_York"

_WINDOW = re.compile(
    r"(?:(?P<days>[A-Za-z,\-]+)\s+)?(?P<h1>\d{1,2}):(?P<m1>\d{2})-(?P<h2>\d{1,2}):(?P<m2>\d{2})"
    r"\s+(?P<zone>[A-Za-z][A-Za-z0-9_+\-/]*)"
)


@dataclass(frozen=True, slots=True)
class FreezeWindow:
    """One window. `start` and `end` are minutes of the day in `zone`; end <= start: over
    midnight."""

    text: str
    days: frozenset[int]
    """Days on which it begins; 0 is Monday."""
    start: int
    end: int
    zone: zoneinfo.ZoneInfo

    @classmethod
    def parse(cls, text: str) -> FreezeWindow:
        """From its text; without days: every day. Raises ParseError."""
        m = _WINDOW.fullmatch(text.strip())
        if m is None:
            raise ParseError("freeze window", text, EXPECTED)
        start, end = (int(m[h]) * 60 + int(m[minute]) for h, minute in (("h1", "m1"), ("h2", "m2")))
        clock = all(int(m[h]) <= 24 for h in ("h1", "h2")) and all(
            int(m[minute]) < 60 for minute in ("m1", "m2")
        )
        if not clock or start >= 24 * 60 or end > 24 * 60 or start == end:
            raise ParseError("freeze window", text, "two different times from 00:00 to 24:00")
        try:
            zone = zoneinfo.ZoneInfo(m["zone"])
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ParseError(
                "freeze window", text, f"a time zone this machine knows, not {m['zone']}"
            ) from error
        return cls(text.strip(), _days(m["days"], text), start, end, zone)

    def covers(self, now_ns: int) -> bool:
        """Whether the moment (CLOCK_REALTIME, nanoseconds) lies inside; the end does not."""
        local = datetime.datetime.fromtimestamp(now_ns // 1_000_000_000, self.zone)
        minute, day = local.hour * 60 + local.minute, local.weekday()
        if self.start < self.end:
            return day in self.days and self.start <= minute < self.end
        began_today = day in self.days and minute >= self.start
        return began_today or ((day - 1) % 7 in self.days and minute < self.end)


def _days(text: str | None, whole: str) -> frozenset[int]:
    if text is None:
        return frozenset(range(7))
    names = {name.lower(): i for i, name in enumerate(DAYS)}
    days: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        a, b = names.get(first.strip().lower()), names.get((last or first).strip().lower())
        if a is None or b is None:
            raise ParseError("freeze window", whole, f"days such as Mon-Fri or {', '.join(DAYS)}")
        # Fri-Mon goes over the week's end.
        days.update((a + i) % 7 for i in range((b - a) % 7 + 1))
    return frozenset(days)


def frozen(windows: tuple[FreezeWindow, ...], file: str | None, now_ns: int) -> str | None:
    """Why nothing may be changed now, in words; None: changes are allowed. `file` is the freeze
    file's path when it exists."""
    if file is not None:
        return f"{file} exists"
    window = next((w for w in windows if w.covers(now_ns)), None)
    return None if window is None else f"freeze window {window.text}"
