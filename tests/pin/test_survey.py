"""Masks that a change of a cpuset takes: whose they are now, and which go back. Real processes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from nodeagent.model.cpuset import CpuSet
from nodeagent.pin import affinity, survey
from nodeagent.pin.proc import mask_of, stat_of

ONE, TWO = CpuSet.of([0]), CpuSet.of([1])
BOTH = ONE | TWO


@pytest.fixture
def pid() -> Iterator[int]:
    """A process that sleeps, on two CPUs."""
    if not {0, 1} <= os.sched_getaffinity(0):
        pytest.skip("needs CPUs 0 and 1, to tell one set from another")
    with subprocess.Popen(["sleep", "600"]) as child:
        os.sched_setaffinity(child.pid, {0, 1})
        yield child.pid
        child.send_signal(signal.SIGKILL)


def masks(pid: int, mask: CpuSet) -> survey.Masks:
    stat = stat_of(pid)
    assert stat is not None
    return {(pid, stat.start_time): mask}


@pytest.mark.parametrize(
    ("former", "now", "ours", "room", "later"),
    [
        (ONE, TWO, BOTH, BOTH, True),
        (ONE, ONE, BOTH, BOTH, False),
        (BOTH, ONE, ONE, BOTH, False),
        (ONE, TWO, TWO, BOTH, False),
        (ONE, TWO, CpuSet.of([5]), TWO, False),
        (BOTH, TWO, ONE, CpuSet.of([5]), False),
    ],
    ids=["bound elsewhere", "as before", "what is inside", "our set", "all it may", "what is left"],
)
def test_who_bound_a_thread(
    former: CpuSet, now: CpuSet, ours: CpuSet, room: CpuSet, later: bool, pid: int
) -> None:
    os.sched_setaffinity(pid, now.ids)
    found = survey.changed_later(masks(pid, former), ours, room, whole=True)
    assert found == (frozenset({pid}) if later else frozenset())


def test_a_mask_that_the_kernel_took_in_an_act_is_nobody_s(pid: int) -> None:
    every = CpuSet.of(os.sched_getaffinity(0))
    os.sched_setaffinity(pid, every.ids)
    if every != affinity.online():
        pytest.skip("this test may not run on every CPU of the host")
    taken = masks(pid, ONE)
    apart = CpuSet.of([5])
    # While the act goes on it is the kernel's doing; after it somebody's.
    assert survey.changed_later(taken, apart, apart, whole=False) == frozenset()
    assert survey.changed_later(taken, apart, apart, whole=True) == {pid}


def test_another_thread_with_its_number_was_bound_by_nobody(pid: int) -> None:
    os.sched_setaffinity(pid, TWO.ids)
    ((key, mask),) = masks(pid, ONE).items()
    reused = {(key[0], key[1] + 1): mask}
    assert survey.changed_later(reused, CpuSet.of([5]), CpuSet.of([5]), whole=True) == frozenset()
    assert survey.put_back(reused, frozenset()) == "" and mask_of(pid) == TWO


def test_what_somebody_bound_since_is_not_given_back(pid: int) -> None:
    os.sched_setaffinity(pid, TWO.ids)
    survey.keep(masks(pid, ONE), None, frozenset({pid}))
    assert mask_of(pid) == TWO
    survey.keep(masks(pid, ONE), TWO, frozenset())
    assert mask_of(pid) == TWO, "outside of the new set nothing is given back"
    survey.keep(masks(pid, ONE), None, frozenset())
    assert mask_of(pid) == ONE
