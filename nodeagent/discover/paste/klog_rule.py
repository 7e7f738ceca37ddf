"""What a rule for lines of a log is, and the words that rules share."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

BDF = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
"""A PCI address; domain and function may be missing."""

Details = Mapping[str, str | int | bool | None]
Maker = Callable[[re.Match[str]], Details]


def _none(_: re.Match[str]) -> Details:
    return {}


@dataclass(frozen=True, slots=True)
class Rule:
    """A line of one kind; "" is a line known to mean nothing. `fault` as in KernelEvent; `bdf`
    names the group that holds the address, None: the device before the message."""

    kind: str
    regex: str
    flags: int = 0
    fault: bool | None = True
    details: Maker = _none
    bdf: str | None = None

    @property
    def pattern(self) -> re.Pattern[str]:
        """Compiled when the first line of its topic comes: most logs have lines of few topics."""
        return _compiled(self.regex, self.flags)

    @property
    def anchored(self) -> bool:
        """Whether the message must start here: the line's prefixes come off first."""
        return self.regex.startswith("^")


@functools.cache
def _compiled(regex: str, flags: int) -> re.Pattern[str]:
    return re.compile(regex, flags)


@dataclass(frozen=True, slots=True)
class Topic:
    """Rules of one subsystem; `words` is a cheap look first, as most lines mean nothing."""

    words: re.Pattern[str]
    rules: tuple[Rule, ...]


def rule(
    kind: str,
    pattern: str,
    *,
    fault: bool | None = True,
    details: Maker = _none,
    bdf: str | None = None,
    flags: int = 0,
) -> Rule:
    """A Rule of a pattern that may stand anywhere in the line."""
    return Rule(kind, pattern, flags, fault, details, bdf)


def benign(pattern: str) -> Rule:
    """A line that holds a frightening word and means nothing."""
    return Rule("", pattern, fault=False)


_NUMBERS = frozenset({"pid", "cpu", "seconds", "link", "xid", "sxid", "nvswitch"})


def groups(m: re.Match[str]) -> Details:
    """The named groups that matched, but the address: numbers as numbers."""
    return {
        key: int(value) if key in _NUMBERS else value
        for key, value in m.groupdict().items()
        if value is not None and key != "bdf"
    }
