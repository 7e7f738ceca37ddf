"""Sets of CPUs (and of NUMA nodes) in the kernel's list syntax.

Source: Documentation/admin-guide/kernel-parameters.rst, "cpu lists"; lib/bitmap-str.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nodeagent.errors import ParseError

MAX_ID = 1 << 16
"""No machine has this many CPUs; a larger number in a file is damage, not a CPU."""
_MAX_NAMED = 4 * MAX_ID
"""Numbers that one list may name, doubles counted: a short text must not be hours of work."""

_PART = re.compile(r"([0-9]{1,9}|N)(?:-([0-9]{1,9}|N)(?::([0-9]{1,9})/([0-9]{1,9}))?)?")


@dataclass(frozen=True, slots=True)
class CpuSet:
    """An immutable, ordered set of CPU (or node) numbers; `str()` is the kernel's merged
    cpulist."""

    ids: frozenset[int] = frozenset()

    @classmethod
    def of(cls, ids: Iterable[int]) -> CpuSet:
        """From numbers."""
        return cls(frozenset(ids))

    @classmethod
    def parse(cls, text: str, *, last: int | None = None) -> CpuSet:
        """From a cpulist: `0-3,8`, strides `0-15:2/4`, and, when `last` is given, `N` and `all`.

        `last` is the highest possible CPU. Raises ParseError.
        Source: lib/bitmap-str.c bitmap_parselist(), Linux 3e70489721b6 (v5.12) for `N` and `all`.
        """
        expected = "a CPU list such as 0-3,8"
        text = text.strip()
        if not text:
            return cls()
        ids: set[int] = set()
        named = 0
        for part in text.split(","):
            part = part.strip()
            if not part:
                continue
            if part == "all" and last is not None:
                part = f"0-{last}"
            m = _PART.fullmatch(part)
            if m is None or ("N" in (m[1], m[2]) and last is None):
                raise ParseError("CPU list", text, expected)
            first, end = (last if t == "N" else int(t) for t in (m[1], m[2] or m[1]))
            assert first is not None and end is not None
            named += end - first + 1
            if first > end or end >= MAX_ID or named > _MAX_NAMED:
                raise ParseError("CPU list", text, expected)
            if m[3] is None:
                ids.update(range(first, end + 1))
                continue
            used, group = int(m[3]), int(m[4])
            if not 0 < used <= group:
                raise ParseError("CPU list", text, expected)
            ids.update(i for i in range(first, end + 1) if (i - first) % group < used)
        return cls(frozenset(ids))

    @classmethod
    def parse_mask(cls, text: str) -> CpuSet:
        """From a hexadecimal mask in words of 32 bits, `00000000,0000ff00`. Raises ParseError."""
        digits = text.strip().replace(",", "").removeprefix("0x")
        if not re.fullmatch(r"[0-9a-fA-F]{1,16384}", digits):
            raise ParseError("CPU mask", text, "hexadecimal words such as 0000ff00,00000000")
        value = int(digits, 16)
        return cls(frozenset(i for i in range(value.bit_length()) if value >> i & 1))

    def __str__(self) -> str:
        runs: list[list[int]] = []
        for i in self:
            if runs and runs[-1][1] == i - 1:
                runs[-1][1] = i
            else:
                runs.append([i, i])
        return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)

    def mask(self) -> str:
        """In hexadecimal words of 32 bits, as `parse_mask` reads it; `0` for the empty set.

        Source: lib/bitmap-str.c bitmap_parse(): more than 32 bits need commas between words.
        """
        value = sum(1 << i for i in self.ids)
        words: list[str] = []
        while value >> 32:
            words.append(f"{value & 0xFFFFFFFF:08x}")
            value >>= 32
        return ",".join([f"{value:x}", *reversed(words)])

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self.ids))

    def __len__(self) -> int:
        return len(self.ids)

    def __bool__(self) -> bool:
        return bool(self.ids)

    def __contains__(self, cpu: int) -> bool:
        return cpu in self.ids

    def __and__(self, other: CpuSet) -> CpuSet:
        return CpuSet(self.ids & other.ids)

    def __or__(self, other: CpuSet) -> CpuSet:
        return CpuSet(self.ids | other.ids)

    def __sub__(self, other: CpuSet) -> CpuSet:
        return CpuSet(self.ids - other.ids)

    def __le__(self, other: CpuSet) -> bool:
        return self.ids <= other.ids

    def __lt__(self, other: CpuSet) -> bool:
        return self.ids < other.ids
