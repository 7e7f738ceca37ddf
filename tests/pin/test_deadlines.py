"""Who asks waits longer than who acts: runtimes that are slow, hang, or do it and then hang; and an
act that nobody waits for any more."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from nodeagent.errors import ActError
from nodeagent.model import deadlines
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import ActionResult, Knob, Outcome, SetAffinity, SetValue, Target
from nodeagent.pin.asked import Asked
from nodeagent.pin.bus import Bus
from nodeagent.pin.client import ActorClient, LateError
from nodeagent.pin.containers import ContainerCpus
from nodeagent.pin.proc import boot_id
from nodeagent.pin.timeleft import TimeLeft
from nodeagent.pin.undo import Journal
from nodeagent.pin.values import Values
from tests.pin.boxes import Box, runc

ME = Asked(by="test", why="a test of deadlines")
UNITS = Path(__file__).resolve().parents[2] / "systemd"
REAL = shutil.which("runc") or "runc"
SYSTEMD = Path("/proc/1/comm").read_text().strip() == "systemd"
SLOW = 25.0 if SYSTEMD else 1.0
"""There systemd starts the runtime, and the machine is an emulated one (tests/vm)."""


def setting(unit: str, name: str) -> float:
    lines = (UNITS / unit).read_text().splitlines()
    return float(next(ln for ln in lines if ln.startswith(f"{name}=")).partition("=")[2])


def test_each_waits_longer_than_what_it_waits_for() -> None:
    d = deadlines
    assert d.BUS_CALL_S < d.RUNTIME_CALL_S
    # Asked, then told; systemd starts each.
    assert 2 * d.RUNTIME_CALL_S < d.STEP_S
    # To make it, and to put it back.
    assert 2 * d.STEP_S <= d.ACT_S < d.ACT_S + d.QUEUE_S <= d.ANSWER_S < d.WATCH_S
    assert setting("nodeagent-actor.service", "TimeoutStopSec") > d.ACT_S
    assert setting("nodeagentd.service", "WatchdogSec") > d.WATCH_S


def test_a_step_gives_no_more_than_it_has() -> None:
    left = TimeLeft(0.05)
    assert left.of(100.0) == 100.0, "nothing bounds what is outside of a step"
    with left.step():
        assert left.of(0.001) == 0.001 and left.of(100.0) <= 0.05
        time.sleep(0.06)
        with pytest.raises(ActError, match=r"longer than the 0.05 s"):
            left.of(100.0)
        with left.step():
            assert 0 < left.of(100.0) <= 0.05
    assert left.of(100.0) == 100.0


class Runtime:
    """A stand-in for runc in front of it: `how` is a shell text that an update runs through, with
    N the number of the update."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.path, self.count = folder / "runc", folder / "count"
        self.behave("")

    def behave(self, how: str) -> None:
        self.count.unlink(missing_ok=True)
        self.path.write_text(
            f'#!/bin/sh\ncase "$1" in update) ;; *) exec {REAL} "$@";; esac\n'
            f"echo x >> {self.count}\nN=$(wc -l < {self.count})\n"
            f'{how}\nexec {REAL} "$@"\n'
        )
        self.path.chmod(0o755)


class Held:
    """A container of runc's, set through the stand-in."""

    def __init__(self, box: Box, runtime: Runtime, journal: Journal) -> None:
        self.box, self.runtime, self.journal = box, runtime, journal

    def values(self, call_s: float, step_s: float) -> Values:
        left = TimeLeft(step_s)
        door = ContainerCpus(
            frozenset({"runc"}), Bus, call_s, left=left, folders=[str(self.runtime.folder)]
        )
        return Values(self.journal, {Knob.CONTAINER_CPUS: door}, boot_id(), left)

    def perform(self, *, call_s: float, step_s: float) -> ActionResult:
        action = SetValue(
            workload="w",
            knob=Knob.CONTAINER_CPUS,
            subject=self.box.subject,
            value=last(),
            before="",
        )
        return self.values(call_s, step_s).perform(action, ME, 0)[0]

    def undo(self) -> ActionResult:
        (entry,) = self.journal.entries
        return self.values(60.0 * SLOW, 120.0 * SLOW).undo(entry)


def last() -> str:
    return str(max(os.sched_getaffinity(0)))


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    with runc(tmp_path / "bundle") as box:
        journal = Journal(tmp_path / "journal")
        yield Held(box, Runtime(tmp_path / "bin"), journal)
        journal.close()


def test_a_slow_runtime_is_waited_for(held: Held) -> None:
    held.runtime.behave("sleep 1.5")
    done = held.perform(call_s=60.0 * SLOW, step_s=120.0 * SLOW)
    assert done.outcome is Outcome.DONE and held.box.raw() == last(), done.message
    assert held.undo().outcome is Outcome.DONE


def test_one_that_hangs_is_stopped_and_does_nothing_later(held: Held) -> None:
    before = held.box.raw()
    held.runtime.behave(f"trap '' TERM\nsleep {2 * SLOW}\nsleep 0.1")
    done = held.perform(call_s=0.4 * SLOW, step_s=60.0 * SLOW)
    assert done.outcome is Outcome.REVERTED, done.message
    assert f"had not ended after {0.4 * SLOW:g} s and was stopped; " in done.message
    assert done.message.endswith("; everything is as before")
    assert held.journal.entries == ()
    time.sleep(2 * SLOW + 0.5)
    assert held.box.raw() == before, "the update was not stopped but late"


def test_one_that_does_it_and_then_hangs_is_put_back(held: Held) -> None:
    before = held.box.raw()
    held.runtime.behave(f'[ $N -gt 1 ] || {{ {REAL} "$@"; sleep 600; }}')
    done = held.perform(call_s=1.5 * SLOW, step_s=60.0 * SLOW)
    assert done.outcome is Outcome.REVERTED, done.message
    assert held.box.raw() in (before, every()) and held.journal.entries == ()


def test_one_that_hangs_at_the_way_back_too_is_told_and_stays_to_be_undone(held: Held) -> None:
    held.runtime.behave(f'[ $N -gt 1 ] || {REAL} "$@"; sleep 600')
    done = held.perform(call_s=1.5 * SLOW, step_s=60.0 * SLOW)
    assert done.outcome is Outcome.FAILED and "not put back" in done.message, done.message
    assert held.box.raw() == last() and held.journal.entries
    held.runtime.behave("")
    assert held.undo().outcome is Outcome.DONE
    assert held.box.raw() == every() and held.journal.entries == ()


def test_the_step_bounds_many_slow_calls(held: Held) -> None:
    """Each call is within its own limit, and all together are not within the step's."""
    held.runtime.behave("sleep 600")
    done = held.perform(call_s=600.0, step_s=1.0 * SLOW)
    assert done.outcome is Outcome.REVERTED and held.journal.entries == (), done.message


def every() -> str:
    return str(CpuSet.of(os.sched_getaffinity(0)))


# An act that nobody waits for any more.


class ActorProcess(Protocol):
    """conftest.ActorProcess."""

    socket: Path
    process: subprocess.Popen[str]


class Victim(Protocol):
    """conftest.Victim."""

    @property
    def target(self) -> Target: ...
    def masks(self) -> dict[int, str]: ...


def test_an_act_that_was_given_up_is_not_done_later(
    start_actor: Callable[..., ActorProcess],
    victim: Callable[..., Victim],
    two_cpus: tuple[CpuSet, CpuSet],
) -> None:
    actor, process = start_actor("--allow", "threads"), victim(1)
    before = process.masks()
    action = SetAffinity(workload="w", target=process.target, cpus=two_cpus[1], before=CpuSet())

    async def ask() -> None:
        client = ActorClient(actor.socket, deadline_s=0.5)
        await client.status()
        os.kill(actor.process.pid, signal.SIGSTOP)
        try:
            with pytest.raises(LateError, match=r"within 0.5 s"):
                await client.perform(action)
        finally:
            os.kill(actor.process.pid, signal.SIGCONT)
        await client.close()
        patient = ActorClient(actor.socket)
        # Answered after the other one, which lies before it in the actor's hands.
        assert (await patient.journal()) == ()
        assert process.masks() == before
        done = await patient.perform(action)
        assert done.outcome is Outcome.DONE
        await patient.undo()
        await patient.close()

    asyncio.run(ask())
    assert process.masks() == before


def test_one_that_comes_too_late_is_told_so(
    start_actor: Callable[..., ActorProcess],
    victim: Callable[..., Victim],
    two_cpus: tuple[CpuSet, CpuSet],
) -> None:
    """It waits in the actor for longer than it may before it begins, and its answer says that
    nothing was done."""
    actor, process = start_actor("--allow", "threads"), victim(1)
    before = process.masks()
    action = SetAffinity(workload="w", target=process.target, cpus=two_cpus[1], before=CpuSet())

    async def ask() -> None:
        # It may begin within 1 s, and is waited for much longer.
        client = ActorClient(actor.socket, deadline_s=deadlines.ACT_S + deadlines.QUEUE_S + 0.5)
        await client.status()
        os.kill(actor.process.pid, signal.SIGSTOP)
        asked = asyncio.ensure_future(client.perform(action))
        await asyncio.sleep(deadlines.QUEUE_S + 1.0)
        os.kill(actor.process.pid, signal.SIGCONT)
        with pytest.raises(ActError, match=r"not begun: .*nothing of this was done"):
            await asked
        assert (await client.journal()) == ()
        await client.close()

    with contextlib.ExitStack() as stack:
        stack.callback(lambda: os.kill(actor.process.pid, signal.SIGCONT))
        asyncio.run(ask())
    assert process.masks() == before
