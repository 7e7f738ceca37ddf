"""A registry in a thread, a feeder as a process, a reader that keeps everything."""

from __future__ import annotations

import contextlib
import json
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from nodeagent.client.reader import Reader, Wait
from nodeagent.feed.registry import Registry
from nodeagent.native.feed import Line
from nodeagent.native.ring import TICK

BIN = pathlib.Path(sys.executable).parent


@contextlib.contextmanager
def registry(path: pathlib.Path) -> Iterator[Registry]:
    """A registry that is polled, as the daemon's loop does."""
    served, over = Registry(path), threading.Event()
    served.open()

    def loop() -> None:
        while not over.is_set():
            served.poll(0.02)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield served
    finally:
        over.set()
        thread.join()
        served.close()


@dataclass
class FeederProcess:
    """`nodeagent-feeder -o json`; lines() waits for the next object it prints."""

    process: subprocess.Popen[str]
    said: list[dict[str, Any]] = field(default_factory=list)

    def next(self, event: str) -> dict[str, Any]:
        """The next object of that kind; fails when the process ends before."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(json.loads(line))
            if self.said[-1]["event"] == event:
                return self.said[-1]
        raise AssertionError(f"ended before {event}: {self.said}, {self.finish()}")

    def line(self, ready: dict[str, Any]) -> Line:
        """Line A as it was got."""
        return Line(**ready["lines"][0])

    def stop(self) -> dict[str, Any]:
        """SIGTERM; what it said last. It must exit 0."""
        self.process.send_signal(signal.SIGTERM)
        last = self.next("end")
        status, log = self.finish()
        assert status == 0, log
        return last

    def finish(self) -> tuple[int, str]:
        """Exit status and stderr once it has ended."""
        _, log = self.process.communicate(timeout=60)
        return self.process.returncode, log


@contextlib.contextmanager
def feeder(*words: str, name: str = "t") -> Iterator[FeederProcess]:
    """A feeder process; killed at the end when it still runs."""
    process = subprocess.Popen(
        [str(BIN / "nodeagent-feeder"), "--name", name, "-o", "json", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield FeederProcess(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


class Keeper:
    """A reader in a thread that copies every tick; ends when the ring is closed and all is read,
    or when `enough` ticks were read."""

    def __init__(self, socket: pathlib.Path, feed: str = "t", enough: int | None = None) -> None:
        self.reader = Reader.attach(feed, "keeper", socket=socket, wait_s=20)
        self._parts: list[npt.NDArray[np.void]] = []
        self._enough = enough
        self.gaps = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop)
        self._thread.start()

    def _loop(self) -> None:
        count = 0
        while not self._over.is_set() and (self._enough is None or count < self._enough):
            batch = self.reader.batch(65536)
            if not len(batch):
                # A producer that is only slow is silent, too, on a busy machine.
                over = self.reader.wait(0.2) is Wait.STALE and self.reader.segment.hot().closed
                if over and self._enough is None and not len(self.reader.batch()):
                    return
                continue
            part = batch.ticks.copy()
            torn = batch.validate()
            self.gaps += batch.gap
            self._parts.append(part[torn:])
            count += len(part) - torn
            batch.advance()

    def ticks(self) -> npt.NDArray[np.void]:
        """Everything read, once the thread has ended."""
        self._thread.join()
        return np.concatenate(self._parts) if self._parts else np.zeros(0, TICK)

    def close(self) -> None:
        """Ends the thread and detaches."""
        self._over.set()
        self._thread.join()
        self.reader.close()
