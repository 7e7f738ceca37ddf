"""Did a pin help? Five minutes before it against five minutes after, minute by minute. Pure.

Run-queue delay (p99) tells; load tells whether the two may be compared at all. Most changes of a
busy machine are not the pin's, so the rule is narrow: what it does not allow to say is called not
comparable, and nothing is done on it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.histogram import BUCKETS, Histogram
from nodeagent.model.probe import ThreadDelay

MINUTE_NS = 60_000_000_000
MAX_MINUTE_NS = 75_000_000_000
"""A part that took longer has a gap: turns were missing."""
PARTS = 5
"""Minutes on each side."""
SETTLE_NS = 10_000_000_000
"""After the last act on a process, before its minutes after begin."""
SETTLING_MOST_NS = 60_000_000_000
"""Further acts so soon after the first belong to the same change."""
LOAD_WITHIN = 0.15
"""Run time a second."""
WAITS_WITHIN = 0.5
"""Waits a second. Not the load alone: whoever preempts a thread makes it wait once more, so a pin
among neighbours that run much has more of them for the same work."""
WORSE = 1.20
WORSE_NS = 50_000
"""Besides: fewer nanoseconds than a stall on an isolated CPU are nobody's trouble."""
AGREE = 4
"""Parts of five that must point the way the whole does."""
MIN_WAITS = 100
"""Waits in each part: below, a p99 is one wait."""
MAX_PROCESSES = 64
"""As many as the probe watches."""


class Sign(enum.StrEnum):
    """What the minutes after are, beside those before."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One minute of a process."""

    seconds: float
    waits: Histogram
    run_ns: int
    inside_ns: int
    """Of `run_ns`, on the CPUs it was given."""

    @property
    def p99_ns(self) -> float:
        """0 without a wait."""
        return self.waits.quantile(0.99) or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The report on one pin. Figures are None where there are none."""

    sign: Sign
    reason: str
    """Why it is not comparable, or what was measured."""
    at_ns: int
    p99_before_ns: float | None = None
    p99_after_ns: float | None = None
    load_before: float | None = None
    """CPUs busy on average."""
    load_after: float | None = None
    inside_before: float | None = None
    """Share of run time on the CPUs that the pin gave, 0..1."""
    inside_after: float | None = None
    agreeing: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """What is remembered of one process: ten minutes at most, and the part under way."""

    parts: tuple[Part, ...] = ()
    """Before the pin: the last five. After it: those so far."""
    before: tuple[Part, ...] = ()
    """Frozen when it was pinned."""
    began_ns: int = 0
    """Of the part under way; 0: it has not begun."""
    base: ThreadDelay | None = None
    first_ns: int = 0
    """When it was first acted upon; 0: not yet."""
    acted_ns: int = 0
    """When it was last acted upon."""
    result: Compared | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracks:
    """All processes."""

    by_key: Mapping[tuple[int, int], Track] = field(default_factory=dict)


def watched(
    track: Track, delay: ThreadDelay | None, acted_ns: int, cpus: CpuSet, now_ns: int
) -> Track:
    """One turn later. `acted_ns`: the newest act of ours on the process, 0: none so far; `cpus`:
    where it belongs; delay None: the probe does not measure it."""
    if track.result is not None:
        return track
    if acted_ns and not track.first_ns:
        # The part under way holds both: it is left out.
        track = replace(
            track, before=track.parts, parts=(), began_ns=0, base=None,
            first_ns=acted_ns, acted_ns=acted_ns,
        )  # fmt: skip
        if len(track.before) < PARTS:
            had = len(track.before)
            return _ended(
                track,
                f"{had} {'minute was' if had == 1 else 'minutes were'} measured before the pin, "
                f"{PARTS} are needed",
                now_ns,
            )
    elif acted_ns > track.acted_ns and track.first_ns:
        if acted_ns - track.first_ns > SETTLING_MOST_NS:
            return _ended(track, "the pin was changed again within five minutes", now_ns)
        track = replace(track, acted_ns=acted_ns, parts=(), began_ns=0, base=None)
    if delay is None:
        return _interrupted(track, "the probe did not measure it all the time", now_ns)
    if track.first_ns and now_ns < track.acted_ns + SETTLE_NS:
        return track
    return _measured(track, delay, cpus, now_ns)


def _measured(track: Track, delay: ThreadDelay, cpus: CpuSet, now_ns: int) -> Track:
    base = track.base
    if base is None:
        return replace(track, base=delay, began_ns=now_ns)
    took = now_ns - track.began_ns
    if took < MINUTE_NS:
        return track
    part = _part(base, delay, took, cpus)
    if part is None:
        return _interrupted(track, "the measurement began anew meanwhile", now_ns)
    if took > MAX_MINUTE_NS:
        return _interrupted(track, "there was a gap in the measurement", now_ns)
    parts = (*track.parts, part)
    track = replace(track, base=delay, began_ns=now_ns)
    if not track.first_ns:
        return replace(track, parts=parts[-PARTS:])
    if len(parts) < PARTS:
        return replace(track, parts=parts)
    return replace(
        track, parts=(), before=(), base=None, result=compare(track.before, parts, now_ns)
    )


def _part(base: ThreadDelay, delay: ThreadDelay, took_ns: int, cpus: CpuSet) -> Part | None:
    """What came between two readings; None: counters that fell."""
    waits = delay.runq - base.runq
    earlier = dict(base.run_ns_by_cpu)
    runs = [(cpu, ns - earlier.get(cpu, 0)) for cpu, ns in delay.run_ns_by_cpu]
    if any(n < 0 for n in waits.counts) or any(ns < 0 for _, ns in runs):
        return None
    return Part(
        seconds=took_ns / 1e9,
        waits=Histogram(counts=waits.counts, total=waits.total),
        run_ns=sum(ns for _, ns in runs),
        inside_ns=sum(ns for cpu, ns in runs if cpu in cpus),
    )


def _interrupted(track: Track, why: str, now_ns: int) -> Track:
    """Before the pin the minutes begin anew; after it there is nothing to go back to."""
    if track.first_ns:
        return _ended(track, why, now_ns)
    return replace(track, parts=(), base=None, began_ns=0)


def _ended(track: Track, why: str, now_ns: int) -> Track:
    result = Compared(sign=Sign.NOT_COMPARABLE, reason=why, at_ns=now_ns)
    return replace(track, parts=(), before=(), base=None, result=result)


def compare(before: Sequence[Part], after: Sequence[Part], now_ns: int) -> Compared:
    """The rule. Five parts on each side."""
    figures = Compared(
        sign=Sign.NOT_COMPARABLE,
        reason="",
        at_ns=now_ns,
        p99_before_ns=_whole(before).quantile(0.99),
        p99_after_ns=_whole(after).quantile(0.99),
        load_before=_load(before),
        load_after=_load(after),
        inside_before=_inside(before),
        inside_after=_inside(after),
    )
    if min(len(before), len(after)) < PARTS:
        return replace(figures, reason=f"{PARTS} minutes are needed on each side")
    fewest = min(part.waits.samples for part in (*before, *after))
    if fewest < MIN_WAITS:
        return replace(
            figures,
            reason=f"a minute had {fewest} waits, {MIN_WAITS} are needed",
        )
    for name, ours, within in (
        ("run time", _load, LOAD_WITHIN),
        ("waits for a CPU", _waits, WAITS_WITHIN),
    ):
        was, now = ours(before), ours(after)
        if not was or abs(now / was - 1) > within:
            return replace(
                figures,
                reason=f"the load was another: {name} went from {was:.3g} to {now:.3g} a second, "
                f"at most {within:.0%} may be between them",
            )
    old, new = figures.p99_before_ns or 0.0, figures.p99_after_ns or 0.0
    agreeing = sum(
        _sign(a.p99_ns, b.p99_ns) == _sign(new, old) for a, b in zip(after, before, strict=True)
    )
    figures = replace(figures, agreeing=agreeing)
    said = f"run-queue delay p99 was {_us(old)}, is {_us(new)}"
    if agreeing < AGREE:
        return replace(
            figures,
            reason=f"{said}; only {agreeing} of {PARTS} minutes point that way",
        )
    sign = Sign.SAME
    if new > old * WORSE and new - old >= WORSE_NS:
        sign = Sign.WORSE
    elif old > new * WORSE and old - new >= WORSE_NS:
        sign = Sign.BETTER
    return replace(figures, sign=sign, reason=f"{said}, in {agreeing} of {PARTS} minutes alike")


def _us(ns: float) -> str:
    return f"{ns / 1000:.0f} us"


def _sign(new: float, old: float) -> int:
    return (new > old) - (new < old)


def _whole(parts: Sequence[Part]) -> Histogram:
    return sum((p.waits for p in parts), start=Histogram(counts=(0,) * BUCKETS))


def _seconds(parts: Sequence[Part]) -> float:
    return sum(p.seconds for p in parts) or 1.0


def _load(parts: Sequence[Part]) -> float:
    return sum(p.run_ns for p in parts) / 1e9 / _seconds(parts)


def _waits(parts: Sequence[Part]) -> float:
    return sum(p.waits.samples for p in parts) / _seconds(parts)


def _inside(parts: Sequence[Part]) -> float | None:
    ran = sum(p.run_ns for p in parts)
    return sum(p.inside_ns for p in parts) / ran if ran else None


def kept(tracks: Tracks, alive: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Track]:
    """Of processes that run, in their order, as many as are kept."""
    return {key: tracks.by_key[key] for key in alive[:MAX_PROCESSES] if key in tracks.by_key}
