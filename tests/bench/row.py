"""One line of the benchmark table, and how figures are measured.

Source of the shape: `script/bench` JSON, schema nodeagent.bench/v1 (docs/benchmarks.md).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A measured value, its peer of the same run, and the target.

    `target` reads `<= 12`, `>= 15`: about the value; `<= 0.7x`, `>= 100x`: about the ratio.
    `higher_is_better` says which way the ratio is built, so that more is better: ours/peer or
    peer/ours; with a target `<= Nx` it is ours/peer.
    """

    name: str
    value: float | None
    """None: could not be measured here; `note` says why."""
    unit: str
    target: str | None = None
    peer: str | None = None
    peer_value: float | None = None
    higher_is_better: bool = False
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times better than the peer (ours/peer for a `<= Nx` target), or None."""
        if not self.value or not self.peer_value:
            return None
        ours_over_peer = self.value / self.peer_value
        if self.higher_is_better or (
            (self.target or "").startswith("<=") and "x" in (self.target or "")
        ):
            return ours_over_peer
        return 1 / ours_over_peer

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None: no target, or nothing measured."""
        if self.target is None or self.value is None:
            return None
        sign, _, bound = self.target.partition(" ")
        measured = self.ratio if bound.endswith("x") else self.value
        if measured is None:
            return None
        limit = float(bound.removesuffix("x"))
        return measured <= limit if sign == "<=" else measured >= limit


def median_of(measure: Callable[[], float], runs: int = 5) -> float:
    """Median of several runs, after one that is not counted."""
    measure()
    return statistics.median(measure() for _ in range(runs))


def alternating(
    ours: Callable[[], float], peer: Callable[[], float], runs: int = 5
) -> tuple[float, float]:
    """Medians of both, measured in turn (A B A B ...), so that the machine's drift hits both."""
    ours(), peer()
    pairs = [(ours(), peer()) for _ in range(runs)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def cpu_ns(work: Callable[[], object]) -> int:
    """CPU time (user + system) of this process while it does the work, in nanoseconds."""
    start = time.process_time_ns()
    work()
    return time.process_time_ns() - start


def quantile(values: Sequence[float], q: float) -> float:
    """The value below which a share q of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]
