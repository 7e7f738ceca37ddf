"""Actions that name the threads of one role, on real processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Outcome, SetAffinity, Target
from nodeagent.pin.actor import Actor
from nodeagent.pin.asked import Asked

Opener = Callable[..., contextlib.AbstractContextManager[Actor]]
Two = tuple[CpuSet, CpuSet]
ME = Asked(by="test", why="a test")


class Process(Protocol):
    """conftest.Victim, as these tests use it."""

    pid: int

    @property
    def target(self) -> Target: ...
    def masks(self) -> dict[int, str]: ...
    def ask(self, text: str) -> str: ...


Make = Callable[..., Process]


def act(process: Process, tids: list[int], cpus: CpuSet) -> SetAffinity:
    return SetAffinity(
        workload="w", target=process.target, cpus=cpus, before=CpuSet(), tids=tuple(tids)
    )


def test_each_role_is_pinned_and_all_are_put_back(
    tmp_path: Path, open_actor: Opener, victim: Make, two_cpus: Two
) -> None:
    everywhere, one = two_cpus
    other = everywhere - one
    process = victim(4)
    before = process.masks()
    main, pool = process.pid, sorted(before.keys() - {process.pid})
    with open_actor(tmp_path) as actor:
        first = actor.perform(act(process, [main], one), ME)
        assert first.outcome is Outcome.DONE and first.read_back == str(one)
        assert {t: m for t, m in process.masks().items() if m == str(one)} == {main: str(one)}
        second = actor.perform(act(process, pool[:3], other), ME)
        assert second.outcome is Outcome.DONE and second.read_back == str(other)
        assert process.masks() == {
            main: str(one),
            **dict.fromkeys(pool[:3], str(other)),
            pool[3]: str(everywhere),
        }
        again = actor.perform(act(process, pool[:3], other), ME)
        assert again.outcome is Outcome.DONE and again.journal_id is None
        assert again.message.startswith("each of the 3 threads named of ")
        assert sum(1 for _ in actor.entries) == 2
        undone = actor.undo("w", ME)
        assert [u.result.outcome for u in undone] == [Outcome.DONE] * 2
        assert process.masks() == before
        assert not actor.entries


def test_a_thread_born_of_a_role_and_seated_later_is_put_back_too(
    tmp_path: Path, open_actor: Opener, victim: Make, two_cpus: Two
) -> None:
    everywhere, one = two_cpus
    other = everywhere - one
    process = victim(1)
    old = process.masks()
    with open_actor(tmp_path) as actor:
        actor.perform(act(process, [process.pid], one), ME)
        process.ask("thread")
        (born,) = process.masks().keys() - old.keys()
        assert process.masks()[born] == str(one), "it has its creator's mask"
        actor.perform(act(process, [born], other), ME)
        assert process.masks()[born] == str(other)
        process.ask("thread")
        (younger,) = process.masks().keys() - old.keys() - {born}
        assert process.masks()[younger] == str(one)
        actor.undo("w", ME)
        assert set(process.masks().values()) == {str(everywhere)}


def test_what_its_program_bound_stays_bound(
    tmp_path: Path, open_actor: Opener, victim: Make, two_cpus: Two
) -> None:
    _, one = two_cpus
    process = victim(2, bound=min(one.ids))
    before = process.masks()
    free = sorted(t for t, m in before.items() if m != str(one))
    assert len(free) == len(before) - 1
    with open_actor(tmp_path) as actor:
        actor.perform(act(process, free[:2], one), ME)
        actor.undo("w", ME)
        assert process.masks() == before


def test_threads_that_ended_meanwhile_are_no_failure(
    tmp_path: Path, open_actor: Opener, victim: Make, two_cpus: Two
) -> None:
    _, one = two_cpus
    process = victim(1)
    with open_actor(tmp_path) as actor:
        gone = actor.perform(act(process, [2**22 + 1, 2**22 + 2], one), ME)
        assert gone.outcome is Outcome.GONE
        assert gone.message == f"2 threads of process {process.pid} ended"
        some = actor.perform(act(process, [process.pid, 2**22 + 1], one), ME)
        assert some.outcome is Outcome.DONE
