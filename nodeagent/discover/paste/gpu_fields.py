"""Values as GPU tools print them: `512 MiB`, `16x`, `P8`, `Active`, `[N/A]`, `4/4`."""

from __future__ import annotations

import re

from nodeagent.errors import ParseError
from nodeagent.model.gpu_report import REASONS
from nodeagent.model.pci import parse_bdf

_NUMBER = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,6})?(?![\d.])")
_ABSENT = ("", "n/a", "na", "not supported", "not_supported", "not available", "unknown", "-",
           "none", "insufficient permissions", "no data")  # fmt: skip
_ERROR = re.compile(
    r"ERR!|Unknown Error|GPU is lost|requires reset|GPU access blocked|Unable to determine", re.I
)


def absent(text: str) -> bool:
    """Whether a tool says that it has no value here."""
    return text.strip().strip("[]").strip().lower() in _ABSENT


def broken(text: str) -> bool:
    """Whether an error stands where a value belongs."""
    return _ERROR.search(text) is not None


def number(text: str) -> float | None:
    """The number a value begins with; None for none."""
    text = text.strip().lstrip("x")
    if absent(text) or (m := _NUMBER.match(text)) is None:
        return None
    return float(m[0])


def whole(text: str) -> int | None:
    """Like `number`, for counts."""
    got = number(text)
    return None if got is None else int(got)


def mib(text: str, unit: str = "") -> float | None:
    """A size in MiB; `unit` counts where the value names none."""
    got = number(text)
    if got is None:
        return None
    letters = (re.sub(r"[^a-zA-Z]", "", text) or unit or "MiB").lower()
    factor = {"b": 1 / (1 << 20), "kib": 1 / 1024, "kb": 1 / 1024, "gib": 1024, "gb": 1024}
    return got * factor.get(letters, 1)


def yes(text: str) -> bool | None:
    """Yes, Enabled, Active, True, On, 1; None for what is neither yes nor no."""
    word = text.strip().strip("[]").lower()
    if word in ("yes", "enabled", "active", "true", "on", "1"):
        return True
    if word in ("no", "disabled", "not active", "false", "off", "0", "inactive"):
        return False
    return None


def word(text: str) -> str | None:
    """A value that is a word; None where the tool says there is none."""
    return None if absent(text) else text.strip()


def pstate(text: str) -> int | None:
    """P0 to P15."""
    m = re.fullmatch(r"[Pp]?(\d{1,2})", text.strip())
    return int(m[1]) if m else None


def bdf(text: str) -> str | None:
    """A PCI address, however many digits its domain has."""
    text = text.strip()
    try:
        return parse_bdf(text if "." in text else text + ".0")
    except ParseError:
        return None


def reason(name: str) -> str | None:
    """A clocks event reason by any of its names; None for another word."""
    words = " ".join(name.lower().replace("_", " ").split()).removesuffix(" active")
    return REASONS.get(words)


BITS = {
    0x1: "Idle", 0x2: "Applications Clocks Setting", 0x4: "SW Power Cap", 0x8: "HW Slowdown",
    0x10: "Sync Boost", 0x20: "SW Thermal Slowdown", 0x40: "HW Thermal Slowdown",
    0x80: "HW Power Brake Slowdown", 0x100: "Display Clock Setting",
}  # fmt: skip
"""Source: NVML, nvmlClocksEventReason*."""


def bits(text: str) -> frozenset[str] | None:
    """The reasons in a mask such as 0x0000000000000004; None for another value."""
    m = re.fullmatch(r"0x([0-9a-fA-F]{1,16})", text.strip())
    if m is None:
        return None
    value = int(m[1], 16)
    return frozenset(name for bit, name in BITS.items() if value & bit)
