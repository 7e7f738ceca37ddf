"""What an undo would do, said before it is done."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Outcome, ProcessState, ThreadState
from nodeagent.place.undoing import would_undo
from tests.place.test_taken import entry, process


def test_a_pin_that_stands_is_put_back() -> None:
    act = entry(33, "w", "4-7")
    (would,) = would_undo((act,), (act,), (process(33, "p", "4-7"),))
    assert would.outcome is Outcome.DONE and not would.left
    assert would.message == "p (33): CPU 4-7 -> 0-15, 1 thread"


def test_what_somebody_changed_later_would_be_left() -> None:
    act = entry(33, "w", "4-7")
    (would,) = would_undo((act,), (act,), (process(33, "p", "0"),))
    assert would.left and "would be left" in would.message
    some = replace(
        process(33, "p", "4-7"),
        threads=tuple(
            ThreadState(tid=33 + i, comm="p", cpus=CpuSet.parse(cpus))
            for i, cpus in enumerate(("4-7", "5", "0-1"))
        ),
    )
    (would,) = would_undo((act,), (act,), (some,))
    assert not would.left
    assert "2 threads; 1 thread on CPU 0-1 was not put there" in would.message


def test_an_ended_process_and_a_reused_number_have_nothing_to_write_back() -> None:
    act = entry(33, "w", "4-7")
    others: tuple[tuple[ProcessState, ...], ...] = ((), (process(33, "other", "4-7", start=8),))
    for processes in others:
        (would,) = would_undo((act,), (act,), processes)
        assert would.outcome is Outcome.GONE and "has ended" in would.message
    assert "other has its number now" in would.message


def test_an_act_below_another_waits_for_it() -> None:
    first = entry(33, "w", "4-7")
    second = replace(entry(33, "w", "8-11"), id=13, before=CpuSet.parse("4-7"))
    both, now = (first, second), (process(33, "p", "8-11"),)
    (alone,) = would_undo((first,), both, now)
    assert alone.outcome is Outcome.REFUSED and "act 13" in alone.message
    newest, oldest = would_undo((second, first), both, now)
    assert newest.outcome is oldest.outcome is Outcome.DONE
    assert oldest.message == "p (33): then from CPU 4-7 -> 0-15"


def test_what_somebody_set_between_two_acts_would_be_left_by_the_older() -> None:
    pinned = entry(33, "w", "4-7")
    corrected = replace(pinned, id=13, before=CpuSet.parse("0"))
    both = (pinned, corrected)
    for now, message in (("4-7", "p (33): CPU 4-7 -> 0, 1 thread"), ("0", "would be left there")):
        newest, oldest = would_undo(both[::-1], both, (process(33, "p", now),))
        assert message in newest.message
        assert oldest.left and oldest.message == (
            "p (33) is then on CPU 0, where somebody had set it after this act, and would be left "
            "there (before this act: 0-15)"
        )


def test_a_value_of_the_host() -> None:
    act = replace(
        entry(0, "", ""), knob="irq-affinity", subject="86", value="0,64", value_before="0-127"
    )
    (would,) = would_undo((act,), (act,), ())
    assert would.outcome is Outcome.DONE
    assert "irq-affinity 86: 0,64 -> 0-127, unless" in would.message
