"""One thing that is not the same in two readings, and how much it matters."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass


class Weight(enum.IntEnum):
    """How much a difference matters; 1 is most."""

    GPU = 1
    DEVICE = 2
    """A NIC, an NVMe drive."""
    CPU_MEMORY = 3
    LINK = 4
    LOCALITY = 5
    FIRMWARE = 6
    ISOLATION = 7
    SETTING = 8
    COUNTER = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that is not the same. `a` None: only in b; `b` None: only in a."""

    weight: Weight
    subject: str
    what: str
    a: str | None
    b: str | None


Pair = tuple[Weight, str, str | None, str | None]
"""Weight, what is compared, and both values."""
_MASK = re.compile(
    r"<(?:host|user|uuid|mac|ip|path|value|init|flag|program|serial|secret|label|guid|wwn|email|"
    r"url|key|profile)-[0-9a-f]+>"
)
_KEYED = re.compile(r"<[a-z]+-[0-9a-f]{12}>")


def changed(subject: str, pairs: tuple[Pair, ...]) -> Iterator[Difference]:
    """Those of the pairs whose values differ."""
    for weight, what, old, new in pairs:
        if not same(old, new):
            yield Difference(weight=weight, subject=subject, what=what, a=old, b=new)


def same(old: str | None, new: str | None) -> bool:
    """Equal, as far as masks of a capture let it be seen: a mask of a capture without a key
    (`<ip-1>`) may stand for any value; two masks made with a key are compared."""
    if old == new or old is None or new is None:
        return old == new
    left, right = _MASK.findall(old), _MASK.findall(new)
    if not left and not right:
        return False
    if left and right:
        if _MASK.sub("<>", old) != _MASK.sub("<>", new):
            return False
        both = zip(left, right, strict=True)
        return not all(_KEYED.fullmatch(m) for m in (*left, *right)) or all(x == y for x, y in both)
    masked, plain = (old, new) if left else (new, old)
    pattern = ".+?".join(map(re.escape, _MASK.split(masked)))
    return re.fullmatch(pattern, plain, re.DOTALL) is not None


def tells(value: str) -> bool:
    """Whether a value can be compared with another machine's: it is plain, or masked with a key."""
    return "<" not in value or _KEYED.search(value) is not None


def text_of(value: object) -> str | None:
    """A value as it is shown; None stays None."""
    return None if value is None else str(value)
