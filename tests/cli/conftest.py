"""A place of its own for each test of the acting commands: actor, workload file, processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeagent.model.cpuset import CpuSet

SLEEPER = """
import os, sys, threading, time
for _ in range(int(sys.argv[3])):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
if len(sys.argv) > 4:
    open("/proc/self/comm", "wb").write(bytes.fromhex(sys.argv[4]))
print("ready", flush=True)
sys.stdin.read()
"""

Done = subprocess.CompletedProcess[str]


class Site:
    """A configuration whose sockets, journal and workloads are the test's own."""

    def __init__(self, bin_dir: Path, folder: Path) -> None:
        self.bin_dir = bin_dir
        self.folder = folder
        self.config = folder / "nodeagent.toml"
        self.file = folder / "workloads.toml"
        self.mark = f"nodeagent-test-{folder.name}-{os.getpid()}"
        self._started: list[subprocess.Popen[str]] = []
        self.config.write_text(
            f'[daemon]\nrun_dir = "{folder}/run"\nstate_dir = "{folder}/state"\n'
            f'[pin]\nallow = ["threads"]\n[place]\nworkloads = "{self.file.name}"\n'
        )

    def workloads(self, *names: str, unit: str | None = None, more: str = "") -> None:
        """A file of workloads of one CPU, each matching the sleeper of its name."""
        rows = []
        for name in names:
            row = f'[[workload]]\nname = "{name}"\ncpus = 1\n'
            row += f"match = {{ cmdline = '{self.mark} {name} ' }}\n"
            rows.append(row + (f'unit = "{unit}"\n' if unit else ""))
        self.file.write_text("\n".join(rows) + more)

    def command(self, *args: str) -> list[str]:
        """A command line of nodeagentctl."""
        return [str(self.bin_dir / "nodeagentctl"), "--config", str(self.config), *args]

    def ctl(self, *args: str, **env: str) -> Done:
        """One command, to its end."""
        return subprocess.run(
            self.command(*args),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **env},
        )

    def sleeper(self, name: str, threads: int = 0, comm: bytes | None = None) -> int:
        """A process with that many threads beside its own; its pid."""
        words = [sys.executable, "-c", SLEEPER, self.mark, name, str(threads)]
        made = subprocess.Popen(
            words + ([comm.hex()] if comm is not None else []),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._started.append(made)
        assert made.stdout is not None and made.stdout.readline() == "ready\n"
        return made.pid

    def end(self, pid: int) -> None:
        """Ends one of its processes, and waits for it."""
        made = next(p for p in self._started if p.pid == pid)
        made.kill()
        made.communicate()

    def actor(self, *args: str, **env: str) -> subprocess.Popen[str]:
        """nodeagent-actor, ready."""
        made = subprocess.Popen(
            [str(self.bin_dir / "nodeagent-actor"), "--config", str(self.config), *args],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )
        self._started.append(made)
        assert made.stderr is not None
        assert any("ready on" in line for line in made.stderr)
        return made

    def close(self) -> None:
        """Ends what it started."""
        for made in reversed(self._started):
            if made.poll() is None:
                made.send_signal(signal.SIGKILL)
            with contextlib.suppress(ValueError):
                made.communicate()


@pytest.fixture
def site(bin_dir: Path, tmp_path: Path) -> Iterator[Site]:
    """See Site."""
    made = Site(bin_dir, tmp_path)
    yield made
    made.close()


def masks(pid: int) -> set[str]:
    """Affinity of each thread."""
    tids = [int(t.name) for t in Path(f"/proc/{pid}/task").iterdir()]
    return {str(CpuSet.of(os.sched_getaffinity(t))) for t in tids}


@pytest.fixture
def two() -> CpuSet:
    """This test's CPUs; skips where there is only one."""
    mine = CpuSet.of(os.sched_getaffinity(0))
    if len(mine) < 2:
        pytest.skip("needs two CPUs to tell a pinned mask from a free one")
    return mine


def until(condition: Callable[[], object]) -> None:
    """Waits for something that another process does."""
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen within 60 s")
