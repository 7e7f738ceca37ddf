"""Real units of a real systemd, for tests: as it was, afterwards."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.errors import ActError
from nodeagent.model.cpuset import CpuSet
from nodeagent.pin import groups

SCRIPT = """
import ctypes, os, threading, time
name = ctypes.CDLL(None).prctl
def wait(comm, cpus):
    name(15, comm.encode(), 0, 0, 0)
    if cpus:
        os.sched_setaffinity(0, cpus)
    while True:
        time.sleep(0.05)
for comm, cpus in (("inside", {2}), ("across", {1, 3}), ("free", None)):
    threading.Thread(target=wait, args=(comm, cpus), daemon=True).start()
wait("main", None)
"""
EVERY = f"0-{(os.cpu_count() or 1) - 1}"
CONTROL = (
    Path("/run/systemd/system.control"),
    Path("/run/systemd/transient"),
    Path("/etc/systemd/system.control"),
)


def systemctl(*args: str) -> str:
    """Its standard output."""
    done = subprocess.run(["systemctl", *args], capture_output=True, text=True, check=True)
    return done.stdout.strip()


class Unit:
    """A service with four threads: one bound inside 2-3, one across its edge, two free."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def pid(self) -> int:
        if self.name.endswith(".scope"):
            return int((self.folder / "cgroup.procs").read_text())
        return int(systemctl("show", "-p", "MainPID", "--value", self.name))

    @property
    def folder(self) -> Path:
        return groups.folder(systemctl("show", "-p", "ControlGroup", "--value", self.name))

    def effective(self) -> str:
        return (self.folder / "cpuset.cpus.effective").read_text().strip()

    def masks(self) -> dict[str, str]:
        """Of each thread, by its name."""
        found = {}
        for task in (Path("/proc") / str(self.pid) / "task").iterdir():
            comm = (task / "comm").read_text().strip()
            found[comm] = str(CpuSet.of(os.sched_getaffinity(int(task.name))))
        return found

    def files(self) -> list[str]:
        """What stands about it in the folders that `systemctl set-property` writes."""
        found = []
        for control in CONTROL:
            found += [str(p) for p in control.rglob("*") if self.name in str(p) and p.is_file()]
        return sorted(found)

    def allowed(self) -> str:
        return systemctl("show", "-p", "AllowedCPUs", "--value", self.name)

    def state(self) -> tuple[object, ...]:
        """Everything that an act may change."""
        return self.allowed(), self.effective(), self.masks(), self.files()

    def wait(self) -> None:
        for _ in range(600):
            with contextlib.suppress(OSError, ValueError, ActError):
                if set(self.masks()) == {"inside", "across", "free", "main"}:
                    return
            time.sleep(0.05)
        raise AssertionError(f"{self.name} did not start")


@contextlib.contextmanager
def unit(kind: str) -> Iterator[Unit]:
    """plain: from a file; limited: its file says AllowedCPUs=1-3; transient: of systemd-run; scope:
    of systemd-run --scope."""
    if Path("/proc/1/comm").read_text().strip() != "systemd" or os.geteuid() != 0:
        pytest.skip("needs root and systemd as process 1: tests/vm runs it in a machine")
    if not (groups.MOUNT / "cgroup.controllers").exists() or (os.cpu_count() or 0) < 4:
        pytest.skip("needs cgroup v2 and four CPUs: tests/vm runs it in a machine")
    suffix = "scope" if kind == "scope" else "service"
    one = Unit(f"nodeagent-test-{os.getpid()}-{kind}.{suffix}")
    program: subprocess.Popen[bytes] | None = None
    file = Path("/run/systemd/system") / one.name
    script = Path(f"/run/nodeagent-test-{os.getpid()}.py")
    script.write_text(SCRIPT)
    if kind == "transient":
        subprocess.run(
            ["systemd-run", f"--unit={one.name}", "--quiet", "/usr/bin/python3", script], check=True
        )
    elif kind == "scope":
        program = subprocess.Popen(
            ["systemd-run", "--scope", f"--unit={one.name}", "--quiet", "/usr/bin/python3", script]
        )
    else:
        limit = "AllowedCPUs=1-3\n" if kind == "limited" else ""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"[Service]\nExecStart=/usr/bin/python3 {script}\n{limit}")
        systemctl("daemon-reload")
        systemctl("start", one.name)
    try:
        one.wait()
        yield one
    finally:
        subprocess.run(["systemctl", "stop", one.name], check=False, capture_output=True)
        if program is not None:
            program.wait()
        file.unlink(missing_ok=True)
        script.unlink()
        for left in one.files():
            Path(left).unlink()
        systemctl("daemon-reload")
