"""Fixtures: programs loaded here, and processes whose switches are known."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from nodeagent.probe import serve
from nodeagent.probe.runq import ProbeReader

CPU = max(os.sched_getaffinity(0))
"""Where victims run."""

SLEEPER = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
count = int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
before = open("/proc/self/schedstat").read()
for _ in range(count):
    time.sleep(0.0005)
after = open("/proc/self/schedstat").read()
print(before.strip(), after.strip(), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def reader(rights: None) -> Iterator[ProbeReader]:
    """A reader over programs attached in this process."""
    description, fds = serve.load({"isolated": "full"})
    if not description["available"]:
        pytest.skip(description["reason"])
    reader = ProbeReader.from_fds(description, [os.dup(fd) for fd in fds])
    yield reader
    reader.close()
    serve.unload()


class Sleeper:
    """A child that sleeps an exact number of times on one CPU and tells its schedstat around it."""

    def __init__(self, count: int, cpu: int = CPU) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", SLEEPER, str(cpu), str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._child.pid
        assert self._child.stdout is not None
        self._out = self._child.stdout
        assert self._out.readline() == "ready\n"

    def go(self) -> tuple[list[int], list[int]]:
        """Lets it sleep; its schedstat (run ns, wait ns, arrivals) before and after."""
        self._tell()
        words = [int(word) for word in self._out.readline().split()]
        return words[:3], words[3:]

    def end(self) -> None:
        """Lets it end."""
        self._tell()
        self._child.wait()
        self._out.close()

    def _tell(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write("\n")
        self._child.stdin.flush()


@pytest.fixture
def sleeper() -> Iterator[Callable[..., Sleeper]]:
    """Makes sleepers and ends them."""
    made: list[Sleeper] = []

    def make(count: int, cpu: int = CPU) -> Sleeper:
        made.append(Sleeper(count, cpu))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture
def hog() -> Iterator[Callable[[int], int]]:
    """Starts processes that never sleep on a CPU; returns their pids and kills them."""
    made: list[subprocess.Popen[bytes]] = []

    def make(cpu: int) -> int:
        code = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
        made.append(subprocess.Popen([sys.executable, "-c", code]))
        return made[-1].pid

    yield make
    for child in made:
        child.kill()
        child.wait()
