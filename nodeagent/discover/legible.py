r"""What a text holds that no number and no name in it may be: taken out once, where texts come in.

`str.isdigit` and `\d` know more digits than int() takes (superscripts, other scripts), int() ends
at 4,300 of them, and half a surrogate pair cannot be written anywhere.
"""

from __future__ import annotations

import re

MAX_DIGITS = 300
"""Decimal digits in a row; the longest number that a kernel prints has 20, and float() ends
at 308."""
PLACE = "\ufffd"
"""Stands for what was taken out, so that no number is read there."""
_LONG = re.compile(rf"[0-9]{{{MAX_DIGITS + 1},}}")
_DIGITS = bytes(ord("0") if chr(c) in "0123456789" else ord(" ") for c in range(256))
_TOO_MANY = b"0" * (MAX_DIGITS + 1)
_HALF = re.compile("[\ud800-\udfff]")


def legible(text: str) -> str:
    """The text with PLACE for digits that are not ASCII, half surrogates and numbers that have
    more than MAX_DIGITS digits."""
    if not text.isascii():
        text = _HALF.sub(PLACE, text)
        for strange in {c for c in text if c > "\x7f" and (c.isdigit() or c.isdecimal())}:
            text = text.replace(strange, PLACE)
    # /proc/interrupts has megabytes of short numbers: the expression would try at each of them.
    if len(text) > MAX_DIGITS and _TOO_MANY in text.encode().translate(_DIGITS):
        return _LONG.sub(PLACE, text)
    return text
