"""The guard's memory of one process: what a reading, a journal and an act each say of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.daemon.guard import (
    Answer,
    Drift,
    Guard,
    Pin,
    later,
    left_alone,
    numbered,
    observe,
    pinned,
)
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import ProcessState, ThreadState

LEFT, RIGHT, EVERY = CpuSet.parse("0-1"), CpuSet.parse("2-3"), CpuSet.parse("0-3")
KEY = (7, 1)
PIN = Pin(workload="w", cpus=LEFT, before=EVERY, at_ns=10, inside={7: LEFT})


def process(*masks: CpuSet) -> ProcessState:
    threads = tuple(ThreadState(tid=7 + i, comm="w", cpus=m) for i, m in enumerate(masks))
    return ProcessState(pid=7, start_time=1, comm="w", title="w", cgroup="/", threads=threads)


def seen(pin: Pin, now: ProcessState, read_ns: int, journal_ns: int) -> tuple[Pin, Drift | None]:
    guard, drift = observe(Guard(pins={KEY: pin}), "w", LEFT, now, read_ns, {}, journal_ns)
    return guard.pins[KEY], drift


def test_a_reading_of_the_moment_of_the_act_says_nothing() -> None:
    assert seen(PIN, process(EVERY), 10, 99) == (PIN, None)
    _, drift = seen(PIN, process(EVERY), 11, 99)
    assert drift is not None and drift.answer is Answer.CORRECT


def test_only_a_later_journal_tells_that_nobody_undid_it() -> None:
    suspect, drift = seen(PIN, process(EVERY), 20, 20)
    assert drift is None and suspect.suspect_ns == 20
    again, drift = seen(suspect, process(EVERY), 30, 20)
    assert drift is None and again.suspect_ns == 20, "since it was first seen"
    after, drift = seen(again, process(EVERY), 40, 21)
    assert drift is not None and (after.suspect_ns, after.correcting) == (0, True)


def test_who_came_back_before_the_journal_answered_is_suspected_no_more() -> None:
    suspect, _ = seen(PIN, process(EVERY), 20, 20)
    back, drift = seen(suspect, process(LEFT), 30, 20)
    assert drift is None and back.suspect_ns == 0


def test_while_it_is_put_right_nothing_new_is_taken_for_held() -> None:
    owed = replace(PIN, correcting=True)
    after, drift = seen(owed, process(LEFT, LEFT, EVERY), 20, 99)
    assert drift is None and after.correcting and dict(after.inside) == {7: LEFT}
    after, _ = seen(PIN, process(LEFT, LEFT), 20, 99)
    assert dict(after.inside) == {7: LEFT, 8: LEFT}


def test_what_is_owed_is_owed_until_the_act_has_ended() -> None:
    owed = Guard(pins={KEY: replace(PIN, correcting=True)})
    for acting in (True, False):
        # Its effect is read before its result comes; without an act others put it right.
        guard, _ = observe(owed, "w", LEFT, process(LEFT), 20, {}, 99, None, acting)
        assert guard.pins[KEY].correcting == acting


@pytest.mark.parametrize(
    ("number", "at_ns", "than", "is_later"),
    [(6, 1, 5, True), (5, 99, 5, False), (0, 99, 5, True), (0, 1, 5, False), (6, 1, None, False),
     (6, 99, None, True)],
)  # fmt: skip
def test_acts_are_told_apart_by_number_else_by_time(
    number: int, at_ns: int, than: int | None, is_later: bool
) -> None:
    assert later(number, at_ns, than, 10) is is_later


def test_a_plan_that_moved_on_is_no_drift() -> None:
    guard = Guard(pins={KEY: PIN})
    assert observe(guard, "w", RIGHT, process(LEFT), 20, {}, 99) == (guard, None)


SEATS = {7: LEFT, 8: RIGHT}


def test_a_process_whose_roles_all_sit_belongs_to_the_whole_plan() -> None:
    guard, drift = observe(
        Guard(pins={KEY: PIN}), "w", EVERY, process(LEFT, RIGHT), 20, {}, 99, SEATS
    )
    assert drift is None and guard.pins[KEY].cpus == EVERY
    assert dict(guard.pins[KEY].inside) == SEATS


def test_of_a_process_without_threads_nothing_is_known() -> None:
    assert observe(Guard(), "w", LEFT, process(), 20, {}, 99) == (Guard(), None)


def test_an_adopted_pin_is_taken_for_our_own_once_it_was_seen() -> None:
    guard, _ = observe(
        Guard(pins={KEY: replace(PIN, adopted=True)}), "w", LEFT, process(LEFT), 20, {}, 99
    )
    assert not guard.pins[KEY].adopted


def test_an_adopted_pin_whose_plan_moved_on_is_no_drift() -> None:
    adopted = replace(PIN, cpus=RIGHT, inside={7: RIGHT}, adopted=True)
    _, drift = observe(Guard(pins={KEY: adopted}), "w", LEFT, process(EVERY), 20, {}, 99, {7: LEFT})
    assert drift is None


def test_what_is_left_alone_since_now_gets_the_newest_number_once() -> None:
    held, now = PIN, replace(PIN, manual="a person")
    before = replace(now, manual_id=3)
    guard = numbered(Guard(pins={(1, 1): held, (2, 1): now, (3, 1): before}), 9)
    assert [p.manual_id for _, p in sorted(guard.pins.items())] == [None, 9, 3]
    assert numbered(guard, None) == guard


@pytest.mark.parametrize("adopted", [False, True])
def test_a_thread_that_left_its_role_is_a_drift_before_all_roles_are_pinned(adopted: bool) -> None:
    """Of the adopted the journal tells one act's CPUs, the last; of ours the first role was put."""
    cpus = RIGHT if adopted else LEFT
    inside = {7: cpus, 8: cpus} if adopted else {7: cpus}
    guard = Guard(pins={KEY: replace(PIN, cpus=cpus, inside=inside, adopted=adopted)})
    guard, drift = observe(guard, "w", EVERY, process(RIGHT, RIGHT), 20, {}, 99, SEATS)
    assert drift is not None and [t.tid for t in drift.threads] == [7]
    assert not guard.pins[KEY].adopted and guard.pins[KEY].cpus == EVERY


@pytest.mark.parametrize("adopted", [False, True])
def test_an_act_on_one_role_leaves_the_others_as_they_were(adopted: bool) -> None:
    guard = Guard(pins={KEY: replace(PIN, adopted=adopted, correcting=True, suspect_ns=5)})
    some = pinned(guard, process(LEFT, RIGHT), "w", RIGHT, LEFT, 30, (8,)).pins[KEY]
    assert (some.cpus, some.before, some.adopted) == (EVERY, EVERY, adopted)
    assert dict(some.inside) == {7: LEFT, 8: RIGHT}
    whole = pinned(guard, process(LEFT, RIGHT), "w", RIGHT, LEFT, 30).pins[KEY]
    assert (whole.cpus, whole.before, whole.adopted) == (RIGHT, EVERY, False)
    assert dict(whole.inside) == {7: RIGHT, 8: RIGHT}
    assert (whole.correcting, whole.suspect_ns, whole.at_ns) == (False, 0, 30)


def test_a_process_belongs_to_whom_it_was_pinned_for_last() -> None:
    guard = pinned(Guard(pins={KEY: PIN}), process(LEFT), "v", RIGHT, LEFT, 30)
    assert guard.pins[KEY].workload == "v"


def test_who_is_left_alone_is_owed_nothing() -> None:
    owed = Guard(pins={KEY: replace(PIN, correcting=True)})
    alone = left_alone(owed, KEY, "a person", 30).pins[KEY]
    assert (alone.manual, alone.manual_ns, alone.correcting) == ("a person", 30, False)
    assert left_alone(owed, (9, 9), "a person", 30) == owed


def test_before_is_what_was_before_the_first_act_of_ours() -> None:
    found = Guard(pins={KEY: replace(PIN, before=None)})
    assert pinned(found, process(LEFT), "w", RIGHT, LEFT, 30).pins[KEY].before == LEFT
