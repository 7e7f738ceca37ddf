"""A registry that is polled in the background, and producer processes, for tests of the ring."""

from __future__ import annotations

import contextlib
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

from nodeagent.feed.registry import Registry
from nodeagent.model.event import Event
from nodeagent.model.feed import FeedStatus, RingStatus

PRODUCER = pathlib.Path(__file__).with_name("ring_producer.py")


def until(what: Callable[[], object], seconds: float = 20.0) -> None:
    """Waits until something holds; the bound only ends a test that hangs."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "did not come about"
        time.sleep(0.01)


class Daemon:
    """A registry in a thread of its own, as the daemon's loop would poll it."""

    def __init__(self, path: pathlib.Path, **settings: object) -> None:
        self.path = path
        self.registry = Registry(path, **settings)  # type: ignore[arg-type]  # test settings
        self.registry.open()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._seen: list[Event] = []
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._lock:
                    self.registry.poll(0.005)
                    self._seen += self.registry.take_events()
            except BaseException as failure:
                self.failure = failure
                raise
            time.sleep(0.001)

    def rings(self) -> tuple[RingStatus, ...]:
        with self._lock:
            return self.registry.rings()

    def feeds(self) -> tuple[FeedStatus, ...]:
        with self._lock:
            return self.registry.feeds()

    def events(self) -> list[Event]:
        with self._lock:
            return list(self._seen)

    def gone(self) -> None:
        """Waits until dead feeds without readers are let go, with no grace from now on."""
        self.registry.grace_ns = 0
        until(lambda: not self.rings())

    def close(self) -> None:
        if self._thread.is_alive():
            self._stop.set()
            self._thread.join()
            self.registry.close()
        assert self.failure is None


class Feeder:
    """A producer process."""

    def __init__(self, path: pathlib.Path, feed: str, *args: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PRODUCER), str(path), feed, *args],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().split()
        assert line[:1] == ["ready"], line
        self.incarnation, self.start = int(line[1]), int(line[2])
        self.pid = self.process.pid

    def done(self) -> int:
        """Position at the end of its count."""
        assert self.process.stdout is not None
        word, position = self.process.stdout.readline().split()
        assert word == "done"
        return int(position)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def finish(self) -> None:
        """Lets it end in good order."""
        self.process.communicate("\n")


@contextlib.contextmanager
def feeder(path: pathlib.Path, feed: str, *args: str) -> Iterator[Feeder]:
    """A producer process that is gone afterwards."""
    made = Feeder(path, feed, *args)
    try:
        yield made
    finally:
        made.signal(signal.SIGCONT)
        made.kill()
        for stream in (made.process.stdin, made.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
