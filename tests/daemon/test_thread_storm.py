"""A guarded process that makes thousands of threads a second, before a real daemon and actor."""

from __future__ import annotations

import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.daemon.conftest import Workers, wait_for

if TYPE_CHECKING:
    from tests.daemon.conftest import Node

pytestmark = [
    pytest.mark.root,
    pytest.mark.bpf,
    pytest.mark.usefixtures("as_root", "rights", "two_cpus"),
    pytest.mark.timeout(300),
]

THREADS = 12_007
"""Of one storm, asked for at 2,000 a second; a busy machine makes them more slowly."""

MAX_GROWTH_KIB = 10_000
"""Of the daemon under a storm: less than a kilobyte for each thread that is gone."""

STORM = """
import _thread, os, signal, sys, threading, time
# Before there are threads: one that does not block it would end them all.
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
steady, storm, elsewhere = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
def born():
    if elsewhere >= 0:
        os.sched_setaffinity(0, {elsewhere})
    time.sleep(0.02)
def work():
    while True:
        time.sleep(0.02)
        sum(range(2000))
for _ in range(steady - 1):
    threading.Thread(target=work, daemon=True).start()
print("ready", flush=True)
signal.sigwait([signal.SIGUSR1])
print("begun", flush=True)
began = time.monotonic()
for n in range(storm):
    while True:
        try:
            _thread.start_new_thread(born, ())
            break
        except RuntimeError:
            time.sleep(0.01)
    if n % 20 == 19:
        time.sleep(max(0.0, began + n / 2000 - time.monotonic()))
print("made", time.monotonic() - began, flush=True)
work()
"""


class Stormy(Workers):
    """Makes a storm of threads when it is told to; four steady ones stay. `elsewhere`: where the
    storm's threads put themselves; -1: they stay where they were born."""

    threads = THREADS
    elsewhere = -1

    def _start(self) -> subprocess.Popen[bytes]:
        numbers = map(str, (self.count, self.threads, self.elsewhere))
        argv = [sys.executable, "-c", STORM, *numbers, self.name]
        made = subprocess.Popen(argv, stdout=subprocess.PIPE, bufsize=0)
        assert made.stdout is not None and made.stdout.readline() == b"ready\n"
        return made

    def begin(self) -> None:
        os.kill(self.pid, signal.SIGUSR1)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"begun\n"

    @property
    def over(self) -> bool:
        """Whether the last thread of the storm was made."""
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def took_s(self) -> float:
        assert self.process.stdout is not None
        word, seconds = self.process.stdout.readline().split()
        assert word == b"made"
        return float(seconds)


class Unruly(Stormy):
    """Each thread of its storm leaves for the lowest CPU: the plan takes the highest."""

    elsewhere = min(os.sched_getaffinity(0))


class Endless(Stormy):
    """Its storm lasts as long as the test."""

    threads = 100_000_000


@pytest.fixture
def stormy() -> Iterator[Stormy]:
    made = Stormy()
    yield made
    made.close()


@pytest.fixture
def endless() -> Iterator[Stormy]:
    made = Endless()
    yield made
    made.close()


@pytest.fixture
def unruly() -> Iterator[Stormy]:
    made = Unruly()
    yield made
    made.close()


def resident_kib(pid: int) -> int:
    found = re.search(r"^VmRSS:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M)
    assert found is not None
    return int(found[1])


def cpu_s(pid: int) -> float:
    words = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def after_it(node: Node, stormy: Stormy) -> None:
    """Until only the threads that stay are seen. A program that begins makes the daemon look."""

    def only_those() -> bool:
        subprocess.run(["true"], check=True)
        return len(node.status().held[0].threads) == stormy.count

    wait_for(only_those)


def guarded(node: Node, stormy: Stormy) -> frozenset[int]:
    """Pinned, and told by the kernel; its CPUs. The poll comes once a minute."""
    node.start_guarding(stormy)
    return node.status_when(lambda s: bool(s.held) and s.held[0].held).held[0].cpus_planned.ids


def test_a_storm_of_threads_hides_no_drift_and_costs_no_memory(node: Node, stormy: Stormy) -> None:
    cpus = guarded(node, stormy)
    elsewhere = min(os.sched_getaffinity(0) - cpus)
    steady = max(stormy.masks())
    turns, size, spent = node.status().turns, resident_kib(node.pid), cpu_s(node.pid)
    stormy.begin()
    began = time.monotonic()
    answers: list[float] = []
    moved = put_right = 0.0
    while not stormy.over:
        asked = time.monotonic()
        node.status()
        answers.append(time.monotonic() - asked)
        if not moved and len(answers) > 3:
            # In the middle of it somebody moves a thread that stays.
            os.sched_setaffinity(steady, {elsewhere})
            moved = time.monotonic()
            wait_for(lambda: os.sched_getaffinity(steady) == cpus)
            put_right = time.monotonic() - moved
        time.sleep(0.05)
    in_it = time.monotonic() - began
    turns = node.status().turns - turns
    spent = cpu_s(node.pid) - spent
    print(
        f"{THREADS} threads in {stormy.took_s():.1f} s; put right in {put_right * 1e3:.0f} ms; "
        f"status {max(answers) * 1e3:.0f} ms at most of {len(answers)}; {turns} turns, "
        f"{spent / in_it:.1%} of a CPU; {resident_kib(node.pid) - size} KiB"
    )
    assert answers and put_right
    assert turns <= 20 * in_it + 2
    # Afterwards only those that stay are there, and where they belong.
    after_it(node, stormy)
    assert node.status().held[0].held
    stormy.until(cpus)
    assert resident_kib(node.pid) - size < MAX_GROWTH_KIB
    kinds = [e.kind for e in node.events()]
    assert kinds.count("pin.drift") == kinds.count("pin.corrected") == 1, kinds
    assert not {"pin.manual", "turn.failed", "pin.failed", "pin.reverted"} & set(kinds), kinds
    assert len(kinds) < 40, kinds


def test_a_process_is_pinned_in_the_middle_of_its_storm(node: Node, endless: Stormy) -> None:
    endless.begin()
    cpus = guarded(node, endless)
    # Whoever is born from now on is born inside.
    turns = node.status().turns
    last = node.status_when(lambda s: s.turns >= turns + 20)
    assert last.held[0].held and set(endless.masks().values()) == {cpus}
    assert not endless.over
    kinds = [e.kind for e in node.events()]
    assert kinds.count("pin.done") == 1 and "pin.drift" not in kinds, kinds


def test_a_storm_that_leaves_its_place_is_given_up_in_few_words(node: Node, unruly: Stormy) -> None:
    guarded(node, unruly)
    turns, size, began = node.status().turns, resident_kib(node.pid), time.monotonic()
    unruly.begin()
    while not unruly.over:
        node.status()
        time.sleep(0.05)
    assert node.status().turns - turns <= 20 * (time.monotonic() - began) + 2
    unruly.took_s()
    after_it(node, unruly)
    assert resident_kib(node.pid) - size < MAX_GROWTH_KIB
    kinds = [e.kind for e in node.events()]
    assert len(kinds) < 40 and "turn.failed" not in kinds, kinds
    # Acts against it are few, and each that was not done was taken back.
    audit = (node.folder / "actor" / "audit.jsonl").read_text().splitlines()
    assert len(audit) < 100
    assert len(list((node.folder / "actor" / "journal").iterdir())) < 10
