"""Two readings of one table of counters."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.check.record import Seen
from nodeagent.model.latency import Counts


@dataclass(frozen=True, slots=True)
class Pair:
    """Two readings of one table. `seconds` None: the input does not say how far apart."""

    first: Counts
    second: Counts
    seconds: float | None

    def delta(self, name: str) -> dict[int, int]:
        """Increase by CPU."""
        before, after = self.first.rows.get(name, {}), self.second.rows.get(name, {})
        return {c: after[c] - before[c] for c in after if c in before}

    def sources(self) -> str:
        """Both files."""
        a, b = self.first.source, self.second.source
        return a if a == b else f"{a} and {b}"


def pairs_of(s: Seen, kind: str) -> tuple[list[Pair], str | None]:
    """The first and the last reading; and a sentence when they do not belong together."""
    counts = [c for c in s.reports(Counts) if c.kind == kind]
    if len(counts) < 2:
        return [], None

    def total(c: Counts) -> int:
        return sum(sum(row.values()) for row in c.rows.values())

    a, b = min(counts, key=total), max(counts, key=total)
    if a is b:
        a, b = counts[0], counts[-1]
    seconds = None
    if a.at_s is not None and b.at_s is not None and b.at_s > a.at_s:
        seconds = b.at_s - a.at_s
    pair = Pair(a, b, seconds)
    falling = [n for n in b.rows if any(d < 0 for d in pair.delta(n).values())]
    if falling:
        return [], f"{pair.sources()}: {falling[0]} goes down on a CPU, so they are no two readings"
    return [pair], None
