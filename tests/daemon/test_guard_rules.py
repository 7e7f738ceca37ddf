"""The guard's memory of one process: what a reading, a journal and an act each say of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.daemon.guard import Answer, Drift, Guard, Pin, observe, pinned
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


def test_before_is_what_was_before_the_first_act_of_ours() -> None:
    found = Guard(pins={KEY: replace(PIN, before=None)})
    assert pinned(found, process(LEFT), "w", RIGHT, LEFT, 30).pins[KEY].before == LEFT
