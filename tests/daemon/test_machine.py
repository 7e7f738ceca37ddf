"""The reading child: delivers, dies, hangs, talks nonsense; never doubled, never killed."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import sys

from nodeagent.daemon.machine import COMMAND, MachineReader
from nodeagent.model.snapshot import Snapshot

PATIENCE_S = 30


async def read_once(reader: MachineReader, done: asyncio.Event) -> Snapshot | None:
    done.clear()
    assert reader.start()
    async with asyncio.timeout(PATIENCE_S):
        await done.wait()
    return reader.take()


def child(tmp_path: pathlib.Path, text: str) -> tuple[str, ...]:
    script = tmp_path / "child.py"
    script.write_text(text)
    return sys.executable, str(script)


def test_a_reading_of_this_machine() -> None:
    async def run() -> None:
        done = asyncio.Event()
        reader = MachineReader(done.set)
        snapshot = await read_once(reader, done)
        assert snapshot is not None and snapshot.live
        assert snapshot.topology.online.ids >= os.sched_getaffinity(0)
        assert snapshot.taken_ns > 0
        assert reader.take() is None and reader.trouble(0.0) is None
        assert await read_once(reader, done) is not None

    asyncio.run(run())


def test_without_gpus_it_says_why() -> None:
    async def run() -> None:
        done = asyncio.Event()
        reader = MachineReader(done.set, (*COMMAND, "--no-devices", "the driver hangs"))
        snapshot = await read_once(reader, done)
        assert snapshot is not None
        assert snapshot.nvml.reason == "the driver hangs" and not snapshot.nvml.available

    asyncio.run(run())


def test_a_child_that_dies_or_talks_nonsense(tmp_path: pathlib.Path) -> None:
    async def run() -> None:
        done = asyncio.Event()
        for text in ("", "print('x' * 100)", "import pickle, sys\n"
                     "sys.stdout.buffer.write(pickle.dumps(3))"):  # fmt: skip
            reader = MachineReader(done.set, child(tmp_path, text))
            assert await read_once(reader, done) is None
            assert "ended after" in str(reader.trouble(0.0))
        reader = MachineReader(done.set)
        assert await read_once(reader, done) is not None
        assert reader.trouble(0.0) is None

    asyncio.run(run())


def test_a_hanging_child_is_the_only_one_and_is_reported(tmp_path: pathlib.Path) -> None:
    async def run() -> None:
        done = asyncio.Event()
        reader = MachineReader(done.set, child(tmp_path, "import time\ntime.sleep(600)"))
        loop = asyncio.get_running_loop()
        assert reader.start()
        pid = reader.pid
        assert pid is not None
        try:
            assert not reader.start() and reader.pid == pid
            assert reader.trouble(loop.time()) is None
            assert f"pid {pid}" in str(reader.trouble(loop.time() + 31))
            reader.close()
            os.kill(pid, 0)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    asyncio.run(run())


def test_a_child_that_delivered_and_stays_keeps_the_next_one_off_the_gpus(
    tmp_path: pathlib.Path,
) -> None:
    """As one does whose NVML child hangs."""
    text = (
        "import os, sys, time\n"
        f"log = open({str(tmp_path / 'log')!r}, 'a')\n"
        "print(sys.argv[1:], file=log, flush=True)\n"
        "os.close(1)\n"
        "time.sleep(600 if len(sys.argv) == 1 else 0)\n"
    )

    async def run() -> None:
        done = asyncio.Event()
        reader = MachineReader(done.set, child(tmp_path, text))
        await read_once(reader, done)
        first = reader.pid
        assert first is not None
        try:
            await read_once(reader, done)
            lines = (tmp_path / "log").read_text().splitlines()
            assert lines[0] == "[]"
            assert "--no-devices" in lines[1] and f"pid {first}" in lines[1]
        finally:
            os.kill(first, signal.SIGKILL)
            os.waitpid(first, 0)

    asyncio.run(run())
