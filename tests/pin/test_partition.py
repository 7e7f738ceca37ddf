"""Isolated partitions: made, refused with the kernel's reason, ended; one owner of isolation."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Consent, Knob, Outcome, SetValue
from nodeagent.pin import groups
from nodeagent.pin.actor import Actor
from nodeagent.pin.asked import Asked
from nodeagent.pin.partition import Partition, isolated_at_boot
from tests.pin.test_kills import in_part, killed_at, steps

Opener = Callable[..., contextlib.AbstractContextManager[Actor]]
ME = Asked(by="test", why="a test of partitions")
ALLOW = frozenset({Consent.HOST, Consent.CGROUP})
NAME = f"test-{os.getpid()}"
GROUP = groups.MOUNT / f"nodeagent.{NAME}"
MOST_STEPS = 60
EVERY = f"0-{(os.cpu_count() or 1) - 1}"


@pytest.fixture
def v2() -> Iterator[None]:
    """A host whose root gives the cpuset controller; nothing of ours is left on it."""
    file = groups.MOUNT / "cgroup.subtree_control"
    if os.geteuid() != 0 or not file.exists() or "cpuset" not in file.read_text().split():
        pytest.skip("needs root and the cpuset controller of cgroup v2: tests/vm runs it")
    if isolated_at_boot(Path("/proc/cmdline").read_text()):
        pytest.skip("this machine isolates CPUs by boot arguments")
    assert effective() == EVERY
    yield
    assert effective() == EVERY and not GROUP.exists()


def effective() -> str:
    return (groups.MOUNT / "cpuset.cpus.effective").read_text().strip()


def to(value: str) -> SetValue:
    return SetValue(workload="w", knob=Knob.PARTITION, subject=NAME, value=value, before="")


def test_cpus_are_isolated_and_given_back(v2: None, tmp_path: Path, open_actor: Opener) -> None:
    child = os.fork()
    if child == 0:
        os.execvp("sleep", ["sleep", "600"])
    os.sched_setaffinity(child, {1, 2})
    try:
        with open_actor(tmp_path, allow=ALLOW, partitions=True) as actor:
            done = actor.perform(to("2-3"), ME)
            assert done.outcome is Outcome.DONE, done.message
            assert (GROUP / "cpuset.cpus.partition").read_text().strip() == "isolated"
            assert not CpuSet.parse(effective()) & CpuSet.parse("2-3")
            assert os.sched_getaffinity(child) == {1}, "nobody else runs there"
            (undone,) = actor.undo("w", ME)
            assert undone.result.outcome is Outcome.DONE, undone.result.message
            assert actor.entries == ()
        assert os.sched_getaffinity(child) == {1, 2}, "every mask is as it was"
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


@pytest.mark.parametrize(
    ("cpus", "words"), [(EVERY, "unable to distribute"), ("2-3", "not exclusive")]
)
def test_what_the_kernel_refuses_is_told_in_its_words(
    cpus: str, words: str, v2: None, tmp_path: Path, open_actor: Opener
) -> None:
    sibling = groups.MOUNT / f"sibling-{NAME}"
    if words == "not exclusive":
        sibling.mkdir()
        (sibling / "cpuset.cpus").write_text("3")
    try:
        with open_actor(tmp_path, allow=ALLOW, partitions=True) as actor:
            done = actor.perform(to(cpus), ME)
            assert done.outcome is Outcome.REVERTED, done.message
            assert "isolated invalid" in done.message or "could not be set" in done.message
            assert actor.entries == () and not GROUP.exists()
    finally:
        if sibling.exists():
            sibling.rmdir()


@pytest.mark.parametrize("which", ["act", "undo"])
def test_killed_at_every_step(which: str, v2: None, tmp_path: Path, open_actor: Opener) -> None:
    def act() -> None:
        with open_actor(tmp_path, allow=ALLOW, partitions=True) as actor:
            assert actor.perform(to("2-3"), ME).outcome is Outcome.DONE

    def undo() -> None:
        with open_actor(tmp_path, allow=ALLOW, partitions=True) as actor:
            actor.undo(None, ME)

    seen: set[bool] = set()
    for step in steps(MOST_STEPS):
        if which == "undo":
            act()
        killed = killed_at(step, act if which == "act" else undo)
        with open_actor(tmp_path, allow=ALLOW, partitions=True) as actor:
            actor.recover()
            assert all(e.state == "done" for e in actor.entries), step
            held = effective() != EVERY
            assert held == bool(actor.entries), step
            seen.add(held)
            actor.undo(None, ME)
        assert effective() == EVERY and not GROUP.exists(), step
        if not killed:
            break
    assert in_part() or (not killed and step > 5 and seen == {True, False})


def test_one_that_the_kernel_made_invalid_is_not_called_made(
    v2: None, tmp_path: Path, open_actor: Opener
) -> None:
    sibling = groups.MOUNT / f"sibling-{NAME}"
    with open_actor(tmp_path, allow=ALLOW, partitions=True) as actor:
        assert actor.perform(to("2-3"), ME).outcome is Outcome.DONE
        again = actor.perform(to("2-3"), ME)
        assert again.outcome is Outcome.DONE and "already" in again.message
        (GROUP / "cpuset.cpus.partition").write_text("member")
        sibling.mkdir()
        try:
            # Since 6.7 nobody else may want what is exclusive; before, the partition is invalid.
            if (GROUP / "cpuset.cpus.exclusive").exists():
                (GROUP / "cpuset.cpus.exclusive").write_text("\n")
            (sibling / "cpuset.cpus").write_text("3")
            (GROUP / "cpuset.cpus.partition").write_text("isolated")
            verdict = (GROUP / "cpuset.cpus.partition").read_text()
            assert verdict.startswith("isolated invalid"), verdict
            done = actor.perform(to("2-3"), ME)
            assert done.outcome is Outcome.REVERTED and "already" not in done.message
            (undone,) = actor.undo(None, ME)
            assert undone.result.outcome is Outcome.DONE, undone.result.message
            assert actor.entries == ()
        finally:
            sibling.rmdir()


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("2-3", "2,3", True),
        ("2-3 (isolated invalid)", "2-3", True),
        ("2-3 (root)", "2-3", False),
        ("2-3 (root invalid)", "2-3 (root)", True),
        ("2-3 (isolated invalid)", "2", False),
        ("member", "2", False),
        ("member", "member", True),
    ],
)
def test_what_is_said_of_a_partition(one: str, other: str, expected: bool) -> None:
    door = Partition(boot=False)
    assert door.same(one, other) is door.same(other, one) is expected
    assert door.in_force("x", one) is ("(" not in one)
    if one != "member":
        assert door.cpus(one) == CpuSet.parse("2-3")


def test_one_owner_of_isolation(v2: None, tmp_path: Path, open_actor: Opener) -> None:
    with open_actor(tmp_path, allow=ALLOW) as actor:
        done = actor.perform(to("2-3"), ME)
        assert done.outcome is Outcome.REFUSED
        assert '[pin] isolation is "boot"' in done.message and actor.entries == ()


@pytest.mark.parametrize(
    ("cmdline", "expected"),
    [
        ("quiet isolcpus=2-3", True),
        ("isolcpus=domain,2-3 quiet", True),
        ("isolcpus=nohz,domain,2-3", True),
        ("isolcpus=managed_irq,2-3", False),
        ("isolcpus=nohz,2-3 nohz_full=2-3", False),
        ("isolcpus= nohz_full=2-3", False),
        ("quiet", False),
        ("xisolcpus=2", False),
    ],
)
def test_boot_arguments_that_isolate_are_known(cmdline: str, expected: bool) -> None:
    assert isolated_at_boot(cmdline) is expected
