"""Histograms with power-of-two buckets split linearly, as the eBPF programs keep them."""

from __future__ import annotations

from dataclasses import dataclass

SUB_BITS = 2
"""Each power of two is split into 2**SUB_BITS buckets: a quantile is off by at most 1/8."""
BUCKETS = 64 << SUB_BITS


def bucket_of(value: int) -> int:
    """Bucket of a value >= 0; the same arithmetic stands in bpf/histogram.h and core/."""
    if value < 1 << SUB_BITS:
        return value
    exponent = value.bit_length() - 1
    return ((exponent - SUB_BITS + 1) << SUB_BITS) + (value >> (exponent - SUB_BITS)) % (
        1 << SUB_BITS
    )


def bounds(bucket: int) -> tuple[int, int]:
    """Smallest value of a bucket and of the next one."""
    if bucket < 1 << SUB_BITS:
        return bucket, bucket + 1
    exponent, sub = (bucket >> SUB_BITS) + SUB_BITS - 1, bucket % (1 << SUB_BITS)
    width = 1 << (exponent - SUB_BITS)
    low = (1 << exponent) + sub * width
    return low, low + width


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Counts by bucket, in the unit of the measured value. `total` is the sum of values, 0 if not
    kept."""

    counts: tuple[int, ...]
    total: int = 0
    maximum: int = 0

    @property
    def samples(self) -> int:
        """Number of values."""
        return sum(self.counts)

    def quantile(self, q: float) -> float | None:
        """The value below which a share q of the samples lies (midpoint of its bucket); None if
        empty."""
        n = self.samples
        if n == 0:
            return None
        rank, seen = q * n, 0
        for bucket, count in enumerate(self.counts):
            seen += count
            if count and seen >= rank:
                low, high = bounds(bucket)
                return (
                    (low + high - 1) / 2
                    if not self.maximum
                    else min((low + high - 1) / 2, self.maximum)
                )
        return float(self.maximum)

    def __add__(self, other: Histogram) -> Histogram:
        size = max(len(self.counts), len(other.counts))
        mine, theirs = (h.counts + (0,) * (size - len(h.counts)) for h in (self, other))
        return Histogram(
            counts=tuple(a + b for a, b in zip(mine, theirs, strict=True)),
            total=self.total + other.total,
            maximum=max(self.maximum, other.maximum),
        )

    def __sub__(self, earlier: Histogram) -> Histogram:
        """What came since an earlier reading of the same histogram (its maximum cannot be told:
        kept)."""
        return Histogram(
            counts=tuple(a - b for a, b in zip(self.counts, earlier.counts, strict=True)),
            total=self.total - earlier.total,
            maximum=self.maximum,
        )
