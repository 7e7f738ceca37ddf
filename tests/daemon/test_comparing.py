"""Of whose pins before and after are compared, and what it takes to put a workload back."""

from __future__ import annotations

from tests.daemon.test_turn import Measured


def test_what_was_found_in_its_place_was_moved_by_nobody() -> None:
    case = Measured(rollback=True)
    case.steps(1)
    (placed,) = case.daemon.state.placement.placed
    for thread in case.world.masks:
        case.world.masks[thread] = placed.cpus
    case.go(7, 20_000)
    case.go(7, 900_000)
    assert case.daemon.turn().held[0].held
    assert case.said("pin.compared") == [] and case.undone == []


def test_a_workload_of_which_a_process_is_unknown_is_not_put_back() -> None:
    """The probe measures pid 100 alone."""
    case = Measured(rollback=True)
    case.world.start(200, "w")
    case.go(6, 20_000)
    case.pin()
    case.go(8, 900_000)
    said = case.said("pin.compared")
    assert any("(pid 100)" in one and ": worse: " in one for one in said)
    assert any("(pid 200)" in one and ": not comparable: " in one for one in said)
    assert case.undone == [] and case.said("pin.rolled-back") == []
