"""The one exception family. Every error says what was seen, what was expected, and what to do.

`str(error)` is one sentence; `error.remedy` is the line below it on a terminal. Operating errors
derive
from `NodeagentError`; programmer errors are assertions and are never caught.
"""

from __future__ import annotations

import re

MAX_SENTENCE = 2_000
"""Characters of a sentence or remedy; what was seen may be a file of megabytes."""
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    """The text on one line, with what would move a terminal's cursor, or cannot be encoded,
    escaped: names of files and processes hold any bytes."""
    return text if text.isprintable() else _UNSEEN.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    # os.fsdecode keeps a byte that is no UTF-8 as a surrogate.
    code = code - 0xDC00 if 0xDC80 <= code <= 0xDCFF else code
    return found[0].encode("unicode_escape").decode() if code > 0xFF else f"\\x{code:02x}"


def sentence(text: str) -> str:
    """As an error is printed: `visible`, and cut to MAX_SENTENCE."""
    shown = visible(text)
    return shown if len(shown) <= MAX_SENTENCE else shown[: MAX_SENTENCE - 3] + "..."


class NodeagentError(Exception):
    """An operating error: a sentence that names the thing and what was seen, and a remedy."""

    exit_code = 3

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class UsageError(NodeagentError):
    """Wrong usage of a command; exit code 64 (contract: everywhere)."""

    exit_code = 64


class ParseError(NodeagentError):
    """Text that does not mean what it should: carries the text and what was expected."""

    def __init__(self, what: str, seen: str, expected: str, remedy: str = "") -> None:
        shown = seen if len(seen) <= 80 else seen[:77] + "..."
        super().__init__(f"{what}: saw {shown!r}, expected {expected}", remedy)
        self.seen = seen
        self.expected = expected


class ConfigError(NodeagentError):
    """A configuration or workload file that cannot be used: names file and line."""

    exit_code = 64


class ReadError(NodeagentError):
    """A file or device that could not be read; discover records it and goes on."""

    def __init__(self, path: str, reason: str, remedy: str = "") -> None:
        super().__init__(f"{path}: {reason}", remedy)
        self.path = path
        self.reason = reason


class ActError(NodeagentError):
    """A change to the host that was refused or did not hold."""


class RightsError(NodeagentError):
    """A right is missing: the sentence names the capability or group."""


class UnavailableError(NodeagentError):
    """A part this build or this kernel does not have: eBPF, DPDK, NVML, a socket nobody serves."""
