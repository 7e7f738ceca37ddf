"""A node in a temporary folder: the daemon (and the actor) as real processes.

Tests name these types under TYPE_CHECKING only: this folder is on nobody's import path.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from nodeagent.errors import NodeagentError
from nodeagent.model.event import Event
from nodeagent.model.status import NodeStatus
from nodeagent.model.topology import Topology
from nodeagent.pin.client import ActorClient
from nodeagent.rpc.client import NodeClient

T = TypeVar("T")

PATIENCE_S = 30.0
"""A hang is a failure with a sentence; this is no bound on performance."""


def wait_for(look: Callable[[], T]) -> T:
    """The first truthy answer."""
    end = time.monotonic() + PATIENCE_S
    last: object = None
    while time.monotonic() < end:
        try:
            if answer := look():
                return answer
        except NodeagentError as error:
            last = error
        time.sleep(0.05)
    raise AssertionError(f"nothing came in {PATIENCE_S:g} s; last: {last}")


def nobody() -> list[str]:
    """A prefix that runs a command as the user nobody."""
    setpriv = shutil.which("setpriv")
    assert setpriv is not None
    return [setpriv, "--reuid", "nobody", "--regid", "nogroup", "--clear-groups"]


@dataclass
class Node:
    """One node; `folder` must be short, for a socket's path may have 107 bytes."""

    folder: pathlib.Path
    bin_dir: pathlib.Path
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    actors: list[subprocess.Popen[bytes]] = field(default_factory=list)
    host: str | None = None
    interval_s: float = 0.2

    @property
    def run_dir(self) -> pathlib.Path:
        return self.folder / "run"

    @property
    def config(self) -> pathlib.Path:
        return self.folder / "n.toml"

    @property
    def log(self) -> str:
        return (self.folder / "daemon.log").read_text()

    @property
    def command(self) -> list[str]:
        recorded = [] if self.host is None else ["--host", self.host]
        return [str(self.bin_dir / "nodeagentd"), "--config", str(self.config), *recorded]

    def configure(self, text: str, state_dir: pathlib.Path | None = None) -> None:
        state = state_dir or self.folder / "state"
        self.config.write_text(
            f'daemon.run_dir = "{self.run_dir}"\ndaemon.state_dir = "{state}"\n'
            f"daemon.interval_s = {self.interval_s}\n{text}"
        )

    def give_to_nobody(self) -> None:
        self.folder.chmod(0o755)
        for name in ("run", "state"):
            (self.folder / name).mkdir(exist_ok=True)
            shutil.chown(self.folder / name, "nobody", "nogroup")

    def start(self, *, as_nobody: bool = False, wait: bool = True) -> None:
        prefix = nobody() if as_nobody else []
        with (self.folder / "daemon.log").open("ab") as log:
            self.running.append(subprocess.Popen([*prefix, *self.command], stderr=log, stdout=log))
        if wait:
            wait_for(lambda: self.status().turns > 0)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        return self.running[-1]

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def socket(self) -> str:
        return str(self.run_dir / "api.sock")

    def place(self, workers: Workers, text: str) -> None:
        """A configuration with one workload: those workers, on the highest CPU."""
        (self.folder / "w.toml").write_text(
            f'[[workload]]\nname = "w"\nkind = "custom"\ncpus = 1\nsharing = "shared"\n'
            f'match = {{ cmdline = "{workers.name}$" }}\n'
        )
        self.configure(f'place.workloads = "w.toml"\n{text}')

    def start_actor(self, allow: str = "threads") -> None:
        with (self.folder / "actor.log").open("ab") as log:
            self.actors.append(
                subprocess.Popen(
                    [
                        str(self.bin_dir / "nodeagent-actor"),
                        "--run-dir", str(self.run_dir),
                        "--state-dir", str(self.folder / "actor"),
                        "--allow", allow,
                    ],
                    stderr=log,
                )
            )  # fmt: skip
        wait_for((self.run_dir / "actor.sock").exists)

    def start_guarding(self, workers: Workers) -> None:
        """Actor and daemon, told by the kernel, or a skip with its sentence. The poll comes once a
        minute."""
        self.interval_s = 60.0
        self.place(
            workers, "pin.allow = ['threads']\npin.auto = ['threads']\nprobe.enabled = true\n"
        )
        self.start_actor()
        self.start()
        ready = wait_for(lambda: [e for e in self.events() if e.kind.startswith("guard.")])[0]
        if ready.kind != "guard.ready":
            pytest.skip(ready.message)

    def kill_actor(self) -> None:
        self.actors[-1].kill()
        self.actors[-1].wait()
        (self.run_dir / "actor.sock").unlink(missing_ok=True)

    def undo(self) -> None:
        """As nodeagentctl undo does."""

        async def run() -> None:
            client = ActorClient(self.run_dir / "actor.sock")
            assert await client.undo(None, why="a test")
            await client.close()

        asyncio.run(run())

    def status(self) -> NodeStatus:
        with NodeClient(self.socket) as client:
            return client.status()

    def topology(self) -> Topology:
        with NodeClient(self.socket) as client:
            return client.topology()

    def events(self, since: int = 0) -> tuple[Event, ...]:
        with NodeClient(self.socket) as client:
            return client.events(since=since)

    def status_when(self, holds: Callable[[NodeStatus], bool]) -> NodeStatus:
        found: list[NodeStatus] = []

        def look() -> bool:
            found[:] = [self.status()]
            return holds(found[0])

        wait_for(look)
        return found[0]

    def event(self, kind: str) -> Event:
        found = wait_for(lambda: [e for e in self.events() if e.kind == kind])
        return found[-1]

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        for process in (*reversed(self.running), *reversed(self.actors)):
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


WORKER = """
import signal, sys, threading
def work():
    while not stop.wait(0.02):
        sum(range(2000))
stop = threading.Event()
def more(*_):
    threading.Thread(target=work, daemon=True).start()
signal.signal(signal.SIGUSR1, more)
for _ in range(int(sys.argv[1]) - 1):
    more()
print("ready", flush=True)
work()
"""


class Workers:
    """A real process with threads that run now and then."""

    count = 4
    source = WORKER

    def __init__(self) -> None:
        self.name = f"ndw{os.getpid()}"
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        made = subprocess.Popen(
            [sys.executable, "-c", self.source, str(self.count), self.name], stdout=subprocess.PIPE
        )
        assert made.stdout is not None and made.stdout.readline() == b"ready\n"
        return made

    @property
    def pid(self) -> int:
        return self.process.pid

    def masks(self) -> dict[int, frozenset[int]]:
        return affinity(self.pid)

    def until(self, cpus: frozenset[int]) -> None:
        wait_for(lambda: set(self.masks().values()) == {cpus})

    def again(self) -> None:
        """Ends the process and starts another like it."""
        self.close()
        self.process = self._start()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def affinity(pid: int) -> dict[int, frozenset[int]]:
    """tid -> mask of every thread."""
    masks: dict[int, frozenset[int]] = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            masks[int(task.name)] = frozenset(os.sched_getaffinity(int(task.name)))
        except ProcessLookupError:
            continue
    return masks


@pytest.fixture
def node(bin_dir: pathlib.Path) -> Iterator[Node]:
    """A node in a short temporary folder; its processes end with the test."""
    made = Node(pathlib.Path(tempfile.mkdtemp(prefix="nda-")), bin_dir)
    yield made
    made.close()


@pytest.fixture
def workers() -> Iterator[Workers]:
    """A process with four threads."""
    made = Workers()
    yield made
    made.close()


@pytest.fixture
def two_cpus() -> None:
    """Skips with a sentence on a machine with one CPU."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU: nothing can be pinned to a part of it")
