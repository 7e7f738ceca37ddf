"""When a moving of memory goes on and when it stops: what is decided between two steps."""

from __future__ import annotations

import pytest

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.memory import FIRST_STEP_BYTES, MAX_STEP_BYTES, Staying, room_needed
from nodeagent.model.placement import MigrateMemory, Outcome, Target
from nodeagent.pin.mover import Walked
from nodeagent.pin.moving import Moving

MIB = 1 << 20


def moving(step_bytes: int = FIRST_STEP_BYTES, stall_ms: int = 100) -> Moving:
    action = MigrateMemory(
        workload="w",
        target=Target(pid=7, tid=0, start_time=1),
        nodes=CpuSet.of([1]),
        to=1,
        before="",
        stall_ms=stall_ms,
    )
    return Moving(action=action, comm="x", began_s=0.0, at_s=0.0, step_bytes=step_bytes)


def test_no_step_begins_without_room_for_it_and_some_more() -> None:
    one = moving()
    need = room_needed(FIRST_STEP_BYTES)
    assert need > FIRST_STEP_BYTES and one.no_room(need) is None
    assert "node 1 has 4.0 MiB free or reclaimable left" in str(one.no_room(FIRST_STEP_BYTES))
    assert one.no_room(need - 1) is not None


def test_a_full_target_ends_it() -> None:
    one = moving()
    assert one.after(Walked(moved=MIB, full=True, calls=1)) == "node 1 had no page left to give"
    assert one.now.moved == MIB, "what was moved before that counts"


def test_a_step_over_the_stall_bound_makes_the_next_smaller_and_the_smallest_ends_it() -> None:
    one = moving(step_bytes=MAX_STEP_BYTES)
    slow = Walked(moved=MIB, calls=1, longest_ns=150_000_000)
    sizes: list[int] = []
    why = None
    for _ in range(64):
        why = one.after(slow)
        if why is not None:
            break
        sizes.append(one.step_bytes)
    assert why is not None, "it went on for ever"
    assert sizes == sorted(sizes, reverse=True) and sizes[0] < MAX_STEP_BYTES
    assert "a step of 2.0 MiB, the smallest, kept its pages for 150 ms" in why
    assert "over the stall bound of 100 ms" in why


def test_a_quick_step_makes_the_next_no_smaller_and_one_without_a_call_changes_nothing() -> None:
    one = moving()
    assert one.after(Walked(moved=MIB, calls=1, longest_ns=1_000_000)) is None
    assert FIRST_STEP_BYTES <= one.step_bytes <= MAX_STEP_BYTES
    before = one.step_bytes
    assert one.after(Walked(longest_ns=10**9)) is None and one.step_bytes == before


def test_the_last_step_is_not_judged_for_the_next(stall_ms: int = 1) -> None:
    one = moving(step_bytes=2 * MIB, stall_ms=stall_ms)
    assert one.after(Walked(moved=MIB, calls=1, longest_ns=10**9, done=True)) is None


@pytest.mark.parametrize(
    ("moved", "staying", "expected"),
    [
        (MIB, 0, Outcome.DONE),
        (MIB, MIB, Outcome.DONE),
        (0, 0, Outcome.DONE),
        (0, MIB, Outcome.REFUSED),
    ],
)
def test_what_could_not_be_moved_at_all_is_refused(
    moved: int, staying: int, expected: Outcome
) -> None:
    one = moving()
    one.now.moved = moved
    one.now.staying = Staying(shared=staying)
    assert one.outcome is expected
