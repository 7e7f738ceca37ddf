"""Before and after a pin, by long histories made up: what is said, and above all what is not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.histogram import BUCKETS, Histogram, bucket_of
from nodeagent.model.probe import ThreadDelay
from nodeagent.place.beforeafter import (
    MAX_PROCESSES,
    MINUTE_NS,
    PARTS,
    SETTLE_NS,
    Compared,
    Part,
    Sign,
    Track,
    Tracks,
    compare,
    kept,
    watched,
)

STEP_NS = 10_000_000_000
CPUS = CpuSet.of([3])
FAST, SLOW = 20_000, 900_000


class History:
    """A process under the probe: waits of one length, and a load, for some time."""

    def __init__(self) -> None:
        self.track = Track()
        self.now = 1_000 * MINUTE_NS
        self.acted = 0
        self.counts = [0] * BUCKETS
        self.ran = {3: 0, 5: 0}
        self.measured = True

    def go(
        self,
        minutes: float,
        wait_ns: int,
        *,
        load: float = 0.5,
        rate: float = 100.0,
        cpu: int = 3,
        step_ns: int = STEP_NS,
    ) -> None:
        end = self.now + int(minutes * MINUTE_NS)
        while self.now < end:
            self.now += step_ns
            self.counts[bucket_of(wait_ns)] += int(rate * step_ns / 1e9)
            self.ran[cpu] += int(load * step_ns)
            delay = ThreadDelay(
                pid=100,
                runq=Histogram(counts=tuple(self.counts)),
                run_ns_by_cpu=tuple(self.ran.items()),
            )
            self.track = watched(
                self.track, delay if self.measured else None, self.acted, CPUS, self.now
            )

    def pin(self) -> None:
        self.acted = self.now + 1

    @property
    def result(self) -> Compared:
        assert self.track.result is not None
        return self.track.result


def pinned(before_ns: int, after_ns: int, **after: float) -> Compared:
    """Six minutes, a pin, seven minutes."""
    history = History()
    history.go(6, before_ns, cpu=5)
    history.pin()
    history.go(7, after_ns, **after)  # type: ignore[arg-type]
    return history.result


def test_a_pin_that_helps_hurts_or_does_nothing() -> None:
    better = pinned(SLOW, FAST)
    assert better.sign is Sign.BETTER and better.agreeing == 5
    assert (better.inside_before, better.inside_after) == (0.0, 1.0)
    assert better.load_after == pytest.approx(0.5)
    assert "p99 was 852 us, is 18 us, in 5 of 5 minutes alike" in better.reason
    worse = pinned(FAST, SLOW)
    assert worse.sign is Sign.WORSE
    assert worse.p99_after_ns == pytest.approx(SLOW, rel=0.13)
    assert pinned(FAST, FAST).sign is Sign.SAME


def test_a_few_microseconds_are_no_trouble() -> None:
    assert pinned(2_000, 30_000).sign is Sign.SAME


@pytest.mark.parametrize(
    ("after", "says"),
    [
        ({"load": 0.6}, "run time went from 0.5 to 0.6"),
        ({"load": 0.4}, "run time went from 0.5 to 0.4"),
        ({"rate": 160.0}, "waits for a CPU went from 100 to 160"),
        ({"rate": 45.0}, "waits for a CPU went from 100 to 45"),
        ({"rate": 1.0}, "a minute had 60 waits, 100 are needed"),
    ],
)
def test_another_load_is_not_comparable(after: dict[str, float], says: str) -> None:
    result = pinned(FAST, SLOW, **after)
    assert result.sign is Sign.NOT_COMPARABLE and says in result.reason
    # The figures are shown all the same.
    assert result.p99_before_ns is not None and result.p99_after_ns is not None


def test_one_other_minute_of_five_does_not_hide_it_two_do() -> None:
    # Minutes of the report need not begin with these: one of three is split.
    for good, sign in ((1, Sign.WORSE), (3, Sign.NOT_COMPARABLE)):
        history = History()
        history.go(6, FAST)
        history.pin()
        history.go(0.5, SLOW)
        history.go(good, 4_000)
        history.go(6, SLOW)
        assert history.result.sign is sign, history.result.reason


@pytest.mark.parametrize("rate", [130.0, 70.0])
def test_preempted_more_often_it_is_the_same_load(rate: float) -> None:
    assert pinned(FAST, SLOW, rate=rate).sign is Sign.WORSE


@pytest.mark.parametrize("minutes", [2, 4])
def test_too_short_before_is_said_at_once(minutes: int) -> None:
    history = History()
    history.go(minutes + 0.5, FAST)
    history.pin()
    history.go(1, SLOW)
    assert history.result.sign is Sign.NOT_COMPARABLE
    says = f"{minutes} minutes were measured before the pin, {PARTS} are needed"
    assert says in history.result.reason


def test_the_first_seconds_after_the_act_are_left_out() -> None:
    """Minutes of the report begin when it has settled: a wait in between is of neither side."""
    history = History()
    history.go(6, FAST)
    history.pin()
    history.go(SETTLE_NS / MINUTE_NS, SLOW, rate=1e6, step_ns=SETTLE_NS // 10)
    history.go(7, FAST)
    assert history.result.sign is Sign.SAME, history.result.reason


def test_a_pin_that_was_taken_over_has_no_before() -> None:
    history = History()
    history.acted = 1
    history.go(1, FAST)
    assert "0 minutes were measured before the pin" in history.result.reason


def test_changed_again_it_is_another_pin() -> None:
    history = History()
    history.go(6, FAST)
    history.pin()
    history.go(0.5, SLOW)
    # The second role, half a minute later, belongs to it.
    history.pin()
    history.go(3, SLOW)
    history.pin()
    history.go(4, SLOW)
    assert "the pin was changed again" in history.result.reason


def test_gaps_are_not_measured_over() -> None:
    history = History()
    history.go(6, FAST)
    history.pin()
    history.go(2, SLOW)
    history.go(1.5, SLOW, step_ns=90_000_000_000)
    history.go(7, SLOW)
    assert "gap" in history.result.reason
    lost = History()
    lost.go(6, FAST)
    lost.pin()
    lost.go(2, SLOW)
    lost.measured = False
    lost.go(0.5, SLOW)
    assert "the probe did not measure it all the time" in lost.result.reason
    anew = History()
    anew.go(6, FAST)
    anew.pin()
    anew.go(2, SLOW)
    anew.counts = [0] * BUCKETS
    anew.go(4, SLOW)
    assert "began anew" in anew.result.reason


def test_before_the_pin_a_gap_only_begins_anew() -> None:
    history = History()
    history.go(3, SLOW)
    history.measured = False
    history.go(0.5, SLOW)
    history.measured = True
    history.go(6, FAST)
    history.pin()
    history.go(7, FAST)
    assert history.result.sign is Sign.SAME


def test_days_of_history_keep_five_minutes() -> None:
    history = History()
    history.go(24 * 60, FAST, step_ns=60_000_000_000)
    assert len(history.track.parts) == PARTS and history.track.before == ()
    history.pin()
    history.go(60, SLOW)
    assert history.track.parts == () and history.track.before == () and history.track.base is None


def test_as_many_processes_as_the_probe_watches() -> None:
    keys = [(pid, 1) for pid in range(500)]
    tracks = Tracks(by_key=dict.fromkeys(keys, Track()))
    assert list(kept(tracks, keys)) == keys[:MAX_PROCESSES]
    assert kept(tracks, [(7, 2)]) == {}


def part(wait_ns: int, waits: int = 1000, run_ns: int = 30 * 10**9) -> Part:
    counts = [0] * BUCKETS
    counts[bucket_of(wait_ns)] = waits
    return Part(
        seconds=60.0, waits=Histogram(counts=tuple(counts)), run_ns=run_ns, inside_ns=run_ns
    )


parts = st.lists(
    st.builds(
        part,
        st.sampled_from([1_000, 20_000, 60_000, 100_000, 130_000, 900_000, 5_000_000]),
        st.integers(0, 3000),
        st.integers(0, 60 * 10**9),
    ),
    min_size=0,
    max_size=PARTS,
)
calm = st.lists(
    st.builds(part, st.sampled_from([20_000, 100_000, 130_000, 900_000])),
    min_size=PARTS,
    max_size=PARTS,
)


def allowed(before: Sequence[Part], after: Sequence[Part]) -> bool:
    """The rule for a roll-back, written down a second time."""
    if len(before) != 5 or len(after) != 5:
        return False

    def p99(some: Sequence[Part]) -> float:
        whole = Histogram(counts=(0,) * BUCKETS)
        for one in some:
            whole = whole + one.waits
        return whole.quantile(0.99) or 0.0

    loads = [sum(p.run_ns for p in some) for some in (before, after)]
    if not loads[0] or not 0.85 - 1e-9 <= loads[1] / loads[0] <= 1.15 + 1e-9:
        return False
    if p99(after) <= 1.2 * p99(before):
        return False
    return sum(p99([a]) > p99([b]) for a, b in zip(after, before, strict=True)) >= 4


@settings(max_examples=300)
@given(st.one_of(st.tuples(parts, parts), st.tuples(calm, calm)))
def test_worse_is_never_said_outside_the_rule(sides: tuple[list[Part], list[Part]]) -> None:
    result = compare(*sides, now_ns=1)
    if result.sign is Sign.WORSE:
        assert allowed(*sides)
    if result.sign is Sign.NOT_COMPARABLE:
        assert result.reason


@given(calm, calm)
def test_the_other_way_round_is_the_opposite(before: list[Part], after: list[Part]) -> None:
    opposite = {Sign.BETTER: Sign.WORSE, Sign.WORSE: Sign.BETTER}
    sign = compare(before, after, now_ns=1).sign
    assert compare(after, before, now_ns=1).sign is opposite.get(sign, sign)


def test_a_result_stays() -> None:
    history = History()
    history.acted = 1
    history.go(0.2, FAST)
    first = history.track
    history.go(30, SLOW)
    assert history.track is first
