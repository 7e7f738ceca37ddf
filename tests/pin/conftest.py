"""Real processes to pin, an actor as a process, and one inside the test."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Consent, Target
from nodeagent.pin.actor import Actor
from nodeagent.pin.audit import Audit
from nodeagent.pin.proc import stat_of, tids_of
from nodeagent.pin.undo import Journal

VICTIM = """
import os, subprocess, sys, threading, time
steady, churn, bound = int(sys.argv[1]), sys.argv[2] == "churn", sys.argv[3]
def wait():
    while True:
        time.sleep(0.02)
def bind():
    os.sched_setaffinity(0, {int(bound)})
    wait()
for i in range(steady):
    threading.Thread(target=wait, daemon=True).start()
if bound != "-":
    threading.Thread(target=bind, daemon=True).start()
def births():
    while True:
        threading.Thread(target=time.sleep, args=(0.01,), daemon=True).start()
        time.sleep(0.001)
if churn:
    threading.Thread(target=births, daemon=True).start()
print("ready", flush=True)
children = []
for line in sys.stdin:
    if line.strip() == "fork":
        children.append(subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL))
        print(children[-1].pid, flush=True)
    if line.strip() == "thread":
        threading.Thread(target=wait, daemon=True).start()
        print("ok", flush=True)
for child in children:
    child.kill()
"""


class Victim:
    """A process with threads; it ends when its standard input does."""

    def __init__(
        self,
        threads: int = 3,
        *,
        churn: bool = False,
        bound: int | None = None,
        prefix: tuple[str, ...] = (),
    ) -> None:
        self._process = subprocess.Popen(
            [
                *prefix,
                sys.executable if not prefix else "/usr/bin/python3",
                "-c",
                VICTIM,
                str(threads),
                "churn" if churn else "-",
                "-" if bound is None else str(bound),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.pid = self._process.pid
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], 60)
        assert ready, "the victim says nothing"
        return self._process.stdout.readline().strip()

    def ask(self, text: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        return self._line()

    @property
    def target(self) -> Target:
        stat = stat_of(self.pid)
        assert stat is not None
        return Target(pid=self.pid, tid=0, start_time=stat.start_time)

    def masks(self) -> dict[int, str]:
        found = {}
        for tid in tids_of(self.pid):
            with contextlib.suppress(ProcessLookupError):
                found[tid] = str(CpuSet.of(os.sched_getaffinity(tid)))
        return found

    def end(self) -> None:
        """At the end of its input it ends its children, then itself."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture
def victim() -> Iterator[Callable[..., Victim]]:
    made: list[Victim] = []

    def make(*args: int, **more: object) -> Victim:
        made.append(Victim(*args, **more))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture
def two_cpus() -> tuple[CpuSet, CpuSet]:
    """(all CPUs of this test, the last of them)."""
    mine = CpuSet.of(os.sched_getaffinity(0))
    if len(mine) < 2:
        pytest.skip("needs two CPUs to tell a pinned mask from a free one")
    return mine, CpuSet.of(list(mine)[-1:])


ALL = frozenset({Consent.THREADS, Consent.CGROUP})


@contextlib.contextmanager
def acting(folder: Path, allow: frozenset[Consent] = ALL, **more: object) -> Iterator[Actor]:
    """An Actor inside this process."""
    (folder / "run").mkdir(exist_ok=True)
    journal = Journal(folder / "state/journal")
    try:
        yield Actor(
            journal,
            Audit(folder / "state"),
            allow=allow,
            run_dir=folder / "run",
            **more,  # type: ignore[arg-type]
        )
    finally:
        journal.close()


@pytest.fixture
def open_actor() -> Callable[..., contextlib.AbstractContextManager[Actor]]:
    return acting


class ActorProcess:
    """nodeagent-actor, for real."""

    def __init__(
        self,
        bin_dir: Path,
        folder: Path,
        *args: str,
        prefix: tuple[str, ...] = (),
        wait: bool = True,
        **env: str,
    ) -> None:
        self.socket = folder / "run/actor.sock"
        self.process = subprocess.Popen(
            [
                *prefix,
                str(bin_dir / "nodeagent-actor"),
                "--run-dir",
                str(folder / "run"),
                "--state-dir",
                str(folder / "state"),
                *args,
            ],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )
        self.said: list[str] = []
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line.strip())
            if "ready on" in line:
                return
        raise AssertionError(f"it ended: {self.said}")

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def terminate(self) -> str:
        self.process.terminate()
        _, text = self.process.communicate()
        return text

    def wait(self) -> int:
        code = self.process.wait()
        self.process.communicate()
        return code


@pytest.fixture
def start_actor(bin_dir: Path, tmp_path: Path) -> Iterator[Callable[..., ActorProcess]]:
    made: list[ActorProcess] = []

    def start(*args: str, folder: Path = tmp_path, **more: object) -> ActorProcess:
        made.append(ActorProcess(bin_dir, folder, *args, **more))  # type: ignore[arg-type]
        return made[-1]

    yield start
    for one in made:
        if one.process.poll() is None:
            one.kill()


def until(condition: Callable[[], bool]) -> None:
    """Waits for something that another process does."""
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen within 30 s")
