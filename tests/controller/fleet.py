"""Controllers and agents as processes, and what their stores hold."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

AGENT = pathlib.Path(__file__).with_name("agent.py")


class Controller:
    """A nodeagent-controller process that can be killed and started again at its address."""

    def __init__(self, bin_dir: pathlib.Path, folder: pathlib.Path) -> None:
        self.state_dir = folder / "fleet"
        self.address = "127.0.0.1:0"
        self._program = bin_dir / "nodeagent-controller"
        self._port_file = folder / "port"
        self._log = folder / "controller.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._port_file.unlink(missing_ok=True)
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    self._program, "--listen", self.address, "--state-dir", self.state_dir,
                    "--port-file", self._port_file,
                ],
                stdout=log,
                stderr=log,
            )  # fmt: skip
        until(self._port_file.exists, lambda: self.log)
        self.address = self._port_file.read_text().strip()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait()

    @property
    def log(self) -> str:
        return self._log.read_text()

    def stored(self) -> list[tuple[str, int, int, int]]:
        """(uuid, epoch, seq, tick) of every event in order of commits."""
        with contextlib.closing(sqlite3.connect(self.state_dir / "fleet.db")) as db:
            rows = db.execute("SELECT uuid, epoch, seq, body FROM event ORDER BY id").fetchall()
        return [(u, e, s, _tick(body)) for u, e, s, body in rows]

    def gaps(self) -> list[tuple[int, int, int]]:
        with contextlib.closing(sqlite3.connect(self.state_dir / "fleet.db")) as db:
            return db.execute("SELECT first_seq, last_seq, reason FROM gap").fetchall()


def _tick(body: bytes) -> int:
    from nodeagent.api.v1 import types_pb2

    event = types_pb2.Event.FromString(body)
    return int(event.subject.removeprefix("n ")) if event.kind == "test.tick" else -1


@contextlib.contextmanager
def controller(bin_dir: pathlib.Path, folder: pathlib.Path) -> Iterator[Controller]:
    made = Controller(bin_dir, folder)
    made.start()
    try:
        yield made
    finally:
        if made.process is not None and made.process.poll() is None:
            made.kill()


def agent(
    address: str, state_dir: pathlib.Path, *, ticks: int, first: int = 0, name: str = "gpu-1"
) -> subprocess.Popen[str]:
    """An agent process that records `ticks` events, prints the last stored tick after each
    record, and ends when all are acknowledged."""
    return subprocess.Popen(
        [sys.executable, AGENT, address, state_dir, str(first), str(ticks), name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(true: Callable[[], bool], why: Callable[[], str], seconds: float = 60) -> None:
    """Waits for what must come; a hang becomes a failure that shows why."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, why()
        time.sleep(0.02)
