"""kill -9 at every step of every action, and 100 times under a pinned workload."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, get_args

import pytest

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import (
    Action,
    Knob,
    MigrateMemory,
    MoveToCpuset,
    Outcome,
    SetAffinity,
    SetValue,
    Target,
)
from nodeagent.pin import cpuset
from nodeagent.pin.actor import Actor
from nodeagent.pin.asked import Asked
from nodeagent.pin.knobs import doors
from nodeagent.pin.proc import tids_of
from tests.pin.places import PLACES

Opener = Callable[..., contextlib.AbstractContextManager[Actor]]
Two = tuple[CpuSet, CpuSet]
ME = Asked(by="test", why="a test of kills")
MOST_STEPS = 80
KNOBS_KILLED = ("irq-affinity", "irq-default", "xps", "rps", "irqbalance", "workqueue",
                "wake-latency", "numa-balancing")  # fmt: skip
"""Of PLACES."""
KNOBS_ELSEWHERE = {
    Knob.UNIT_CPUS: "test_units.py",
    Knob.UNIT_MEMS: "test_units.py",
    Knob.CONTAINER_CPUS: "test_containers.py",
    Knob.PARTITION: "test_partition.py",
}
"""Where the others are killed; UNIT_MEMS is the same property of a unit as UNIT_CPUS."""
KILLED = {SetAffinity, MoveToCpuset, SetValue}
ELSEWHERE = {MigrateMemory}
"""It is not put back: what an interrupted one leaves behind is told (tests/pin/test_migrate.py)."""


class Process(Protocol):
    """conftest.Victim, as these tests use it."""

    pid: int

    @property
    def target(self) -> Target: ...
    def masks(self) -> dict[int, str]: ...
    def ask(self, text: str) -> str: ...


Make = Callable[..., Process]


def steps(most: int) -> range:
    """The steps to be killed at: all, or those that NODEAGENT_KILL_STEPS names (`11-20`), where an
    emulated machine would take hours for all."""
    first, _, last = os.environ.get("NODEAGENT_KILL_STEPS", f"1-{most - 1}").partition("-")
    return range(int(first), min(most, int(last or most) + 1))


def in_part() -> bool:
    """Whether only some of the steps are asked for, which shows nothing of the last."""
    return "NODEAGENT_KILL_STEPS" in os.environ


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Does the work in a child that ends itself by SIGKILL at that step; False: it got through."""
    child = os.fork()
    if child == 0:
        os.environ["NODEAGENT_KILL_AT"] = str(step)
        try:
            work()
        except BaseException:
            os._exit(3)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def state(process: Process, tree: cpuset.Hierarchy | None, path: str) -> tuple[object, ...]:
    """All of the host that an action may change."""
    if tree is None:
        return (process.masks(),)
    return (
        process.masks(),
        cpuset.path_of(tree, process.pid),
        cpuset.values(tree, path),
        tree.at("/nodeagent").exists() if "alone" in path else None,
    )


def action_of(kind: str, target: Target, cpus: CpuSet, name: str) -> Action:
    if kind == "affinity":
        return SetAffinity(workload="w", target=target, cpus=cpus, before=CpuSet())
    if kind == "role":
        two = tuple(sorted(tids_of(target.pid))[:2])
        return SetAffinity(workload="w", target=target, cpus=cpus, before=CpuSet(), tids=two)
    return MoveToCpuset(
        workload="w",
        target=target,
        cpuset=f"/nodeagent/{name}",
        cpus=cpus,
        mems=CpuSet.of([0]),
        before="/",
    )


def tree_for(kind: str) -> cpuset.Hierarchy | None:
    if kind in ("affinity", "role"):
        return None
    try:
        tree = cpuset.find()
    except Exception as error:
        pytest.skip(f"no cpuset here: {error}")
    if os.geteuid() != 0 or not os.access(tree.mount, os.W_OK):
        pytest.skip("cpusets cannot be made here")
    return tree


@pytest.mark.parametrize("kind", ["affinity", "role", "cpuset"])
def test_killed_at_every_step_of_an_action(
    kind: str, tmp_path: Path, open_actor: Opener, victim: Make, two_cpus: Two
) -> None:
    tree = tree_for(kind)
    name = f"test-kills-{os.getpid()}"
    process = victim(2)
    action = action_of(kind, process.target, two_cpus[1], name)
    before = state(process, tree, f"/nodeagent/{name}")
    with open_actor(tmp_path) as actor:
        assert actor.perform(action, ME).outcome is Outcome.DONE
        planned = state(process, tree, f"/nodeagent/{name}")
        actor.undo(None, ME)
    assert before != planned and state(process, tree, f"/nodeagent/{name}") == before

    def work() -> None:
        with open_actor(tmp_path) as actor:
            actor.perform(action, ME)

    said: set[str] = set()
    for step in range(1, MOST_STEPS):
        killed = killed_at(step, work)
        with open_actor(tmp_path) as actor:
            said.update(text.split(":")[0].split()[-1] for text in actor.recover())
            now = state(process, tree, f"/nodeagent/{name}")
            # As before or as planned, and the journal knows which.
            assert now in (before, planned), step
            assert (now == planned) == bool(actor.entries), step
            assert all(e.state == "done" for e in actor.entries)
            assert actor.recover() == ()
            actor.undo(None, ME)
            assert actor.entries == ()
        assert state(process, tree, f"/nodeagent/{name}") == before, step
        if not killed:
            break
    assert not killed and step > 8
    assert {"back", "made"} <= said, "some were put back, some found complete"


@pytest.mark.parametrize("kind", ["affinity", "role", "cpuset"])
def test_killed_at_every_step_of_an_undo(
    kind: str, tmp_path: Path, open_actor: Opener, victim: Make, two_cpus: Two
) -> None:
    tree = tree_for(kind)
    name = f"test-kills-{os.getpid()}"
    process = victim(2)
    action = action_of(kind, process.target, two_cpus[1], name)
    before = state(process, tree, f"/nodeagent/{name}")

    def work() -> None:
        with open_actor(tmp_path) as actor:
            actor.undo(None, ME)

    for step in range(1, MOST_STEPS):
        with open_actor(tmp_path) as actor:
            assert actor.perform(action, ME).outcome is Outcome.DONE
            planned = state(process, tree, f"/nodeagent/{name}")
        killed = killed_at(step, work)
        with open_actor(tmp_path) as actor:
            actor.recover()
            now = state(process, tree, f"/nodeagent/{name}")
            assert now in (before, planned), step
            assert (now == planned) == bool(actor.entries), step
            actor.undo(None, ME)
            assert actor.entries == ()
        assert state(process, tree, f"/nodeagent/{name}") == before, step
        if not killed:
            break
    assert not killed and step > 5


@pytest.mark.parametrize("kind", sorted(PLACES))
def test_killed_at_every_step_of_a_value(kind: str, tmp_path: Path, open_actor: Opener) -> None:
    """Set and put back: as before or as planned after the next start, to the very byte."""
    with PLACES[kind]() as place:
        door = doors()[place.knob]
        assert place.knob in KNOBS_KILLED

        def now() -> object:
            return place.raw() if place.file else door.read(place.subject)

        def act() -> None:
            with open_actor(tmp_path, allow=place.consent) as actor:
                actor.perform(place.action, ME)

        def undo() -> None:
            with open_actor(tmp_path, allow=place.consent) as actor:
                actor.undo(None, ME)

        before = now()
        act()
        planned = now()
        undo()
        assert before == now() != planned
        said: set[str] = set()
        for work, first in ((act, undo), (undo, act)):
            for step in range(1, MOST_STEPS):
                if work is undo:
                    act()
                killed = killed_at(step, work)
                with open_actor(tmp_path, allow=place.consent) as actor:
                    said.update(text.split(":")[0].split()[-1] for text in actor.recover())
                    assert now() in (before, planned), step
                    assert (now() == planned) == bool(actor.entries), step
                    assert all(e.state == "done" for e in actor.entries)
                    assert actor.recover() == ()
                    actor.undo(None, ME)
                    assert actor.entries == () and now() == before, step
                if not killed:
                    break
            assert not killed and step > 5, first
        assert {"back", "interrupted", "completed"} <= said


def test_every_kind_of_action_is_killed_somewhere() -> None:
    """A new kind of action or value must be added to what is killed."""
    assert {Knob(p) for p in KNOBS_KILLED} | KNOBS_ELSEWHERE.keys() == set(Knob)
    for file in KNOBS_ELSEWHERE.values():
        assert "killed_at(step" in Path(__file__).with_name(file).read_text()
    assert set(get_args(Action)) == KILLED | ELSEWHERE


def test_killed_while_threads_are_born(
    tmp_path: Path, open_actor: Opener, victim: Make, two_cpus: Two
) -> None:
    everywhere, one = two_cpus
    process = victim(2, churn=True)
    action = action_of("affinity", process.target, one, "")

    def work() -> None:
        with open_actor(tmp_path) as actor:
            actor.perform(action, ME)

    for step in range(1, MOST_STEPS):
        killed = killed_at(step, work)
        with open_actor(tmp_path) as actor:
            actor.recover()
            time.sleep(0.03)
            held = bool(actor.entries)
            assert set(process.masks().values()) == {str(one if held else everywhere)}, step
            actor.undo(None, ME)
        assert set(process.masks().values()) == {str(everywhere)}
        if not killed:
            break


def test_a_hundred_kills_move_no_mask(
    tmp_path: Path,
    open_actor: Opener,
    victim: Make,
    two_cpus: Two,
    start_actor: Callable[..., ActorLike],
) -> None:
    everywhere, one = two_cpus
    pinned, free = victim(4), victim(1)
    with open_actor(tmp_path) as actor:
        actor.perform(action_of("affinity", pinned.target, one, ""), ME)
    masks, others = pinned.masks(), free.masks()
    assert set(masks.values()) == {str(one)}
    chance = random.Random(100)
    ready = 0
    for turn in range(100):
        actor_process = start_actor("--allow", "threads,cgroup", wait=False)
        if turn % 10 == 0:
            actor_process.wait_ready()
            ready += 1
        else:
            time.sleep(chance.uniform(0, 0.12))
        actor_process.kill()
        assert pinned.masks() == masks and free.masks() == others, turn
    assert ready == 10
    with open_actor(tmp_path) as actor:
        assert actor.recover() == ()
        (undone,) = actor.undo(None, ME)
        assert undone.result.outcome is Outcome.DONE
    assert set(pinned.masks().values()) == {str(everywhere)}


class ActorLike(Protocol):
    """conftest.ActorProcess."""

    def wait_ready(self) -> None: ...
    def kill(self) -> None: ...
