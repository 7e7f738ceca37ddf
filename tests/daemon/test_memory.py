"""The guard's memory: on disk before it is acted upon, and a disk that hangs holds no turn.

A FIFO in the place of the new file is a disk that hangs: who opens it waits in the kernel.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import subprocess
import sys
import threading
from functools import partial

import pytest

from nodeagent.daemon import memory
from nodeagent.daemon.guard import Memory
from nodeagent.daemon.memory import Memories


def remembered(*pids: int) -> tuple[Memory, ...]:
    return tuple(
        Memory(pid=pid, start_time=1, corrected=("cpus",), manual=None, manual_ns=0) for pid in pids
    )


async def until_settled(memories: Memories) -> None:
    assert await memories.settled(30)


def test_it_is_on_disk_before_it_is_acted_upon(tmp_path: pathlib.Path) -> None:
    async def run() -> None:
        memories = Memories(tmp_path)
        acted: list[tuple[Memory, ...]] = []
        want = remembered(1)
        assert not memories.write(want, lambda: acted.append(Memories(tmp_path).read()))
        assert acted == []
        await until_settled(memories)
        assert acted == [want] and memories.trouble is None
        # Nothing new: at once, and nothing is written.
        before = (tmp_path / memory.FILE).stat().st_mtime_ns
        assert memories.write(want, lambda: acted.append(want))
        assert acted == [want, want]
        assert (tmp_path / memory.FILE).stat().st_mtime_ns == before

    asyncio.run(run())


def test_a_disk_that_hangs_holds_no_turn_and_the_newest_wins(
    tmp_path: pathlib.Path,
) -> None:
    async def run() -> None:
        memories = Memories(tmp_path, slow_s=0.0)
        fifo = tmp_path / "guard.new"
        os.mkfifo(fifo)
        acted: list[int] = []
        for turn in range(1, 6):
            assert not memories.write(remembered(turn), partial(acted.append, turn))
            assert not await memories.settled(0.05)
        assert acted == []
        # One write waits in the kernel, whatever was asked meanwhile.
        assert sum(t.daemon for t in threading.enumerate()) == 1
        assert "a write has not ended for" in str(memories.trouble)
        assert "nothing is put right" in str(memories.trouble)
        # The disk answers: what was written to the FIFO cannot be synced, the next one can.
        fd = os.open(fifo, os.O_RDONLY)
        fifo.unlink()
        await until_settled(memories)
        os.close(fd)
        assert acted == [5]
        assert Memories(tmp_path).read() == remembered(5)
        assert memories.trouble is None

    asyncio.run(run())


def test_a_disk_that_refuses_is_told_and_the_work_goes_on(tmp_path: pathlib.Path) -> None:
    async def run() -> None:
        memories = Memories(tmp_path / "none")
        acted: list[int] = []
        memories.write(remembered(1), lambda: acted.append(1))
        await until_settled(memories)
        assert acted == [1] and "No such file or directory" in str(memories.trouble)
        (tmp_path / "none").mkdir()
        memories.write(remembered(1), lambda: acted.append(2))
        await until_settled(memories)
        assert acted == [1, 2] and memories.trouble is None

    asyncio.run(run())


WRITER = """
import asyncio, pathlib, sys
from nodeagent.daemon.guard import Memory
from nodeagent.daemon.memory import Memories

async def run():
    memories = Memories(pathlib.Path(sys.argv[1]))
    for n in range(1, 1 << 30):
        said = lambda n=n: print(n, flush=True)
        memories.write((Memory(pid=n, start_time=1, corrected=(), manual=None, manual_ns=0),), said)
        await memories.settled(30)

asyncio.run(run())
"""


@pytest.mark.parametrize("after", [1, 3, 7, 20])
def test_killed_at_any_moment_it_holds_what_was_acted_upon(
    tmp_path: pathlib.Path, after: int
) -> None:
    """kill -9: what is on disk is what was last said, or newer; never less and never torn."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        for _ in range(after):
            said = writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split()
    last = int(rest[-1] if rest else said)
    (found,) = Memories(tmp_path).read()
    assert found.pid in (last, last + 1)
