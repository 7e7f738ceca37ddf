"""Real containers for tests, of runc or podman; gone afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.pin import cpuset
from nodeagent.pin.proc import threads_of, tids_of

PROGRAM = ["/usr/bin/python3", "-c", """
import os, threading, time
cpu = max(os.sched_getaffinity(0))
def bound():
    os.sched_setaffinity(0, {cpu})
    time.sleep(600)
threading.Thread(target=bound, daemon=True).start()
time.sleep(600)
"""]  # fmt: skip


class Box:
    """A container with one process of two threads; one has bound itself to the last CPU."""

    def __init__(self, runtime: str, number: str, pid: int) -> None:
        self.runtime, self.number, self.pid = runtime, number, pid

    @property
    def subject(self) -> str:
        return f"{self.runtime}:{self.number}"

    @property
    def folder(self) -> Path:
        tree = cpuset.find()
        path = cpuset.path_of(tree, self.pid)
        assert path is not None and self.number in path
        head, _, tail = path.partition(self.number)
        return tree.at(head + self.number + tail.partition("/")[0])

    def raw(self) -> str:
        return (self.folder / "cpuset.cpus").read_text().strip()

    def masks(self) -> list[str]:
        return sorted(str(thread.mask) for thread in threads_of(self.pid))


def _spec(folder: Path) -> None:
    """A bundle that shows the container this host's /usr, and nothing else."""
    root = folder / "rootfs"
    for name in ("usr", "proc"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    subprocess.run(["runc", "spec"], cwd=folder, check=True)
    spec = json.loads((folder / "config.json").read_text())
    spec["process"].update(terminal=False, args=PROGRAM)
    spec["process"].pop("apparmorProfile", None)
    usr = {"destination": "/usr", "type": "bind", "source": "/usr", "options": ["bind", "ro"]}
    spec["mounts"] = [{"destination": "/proc", "type": "proc", "source": "proc"}, usr]
    spec["linux"] = {"namespaces": [{"type": "pid"}, {"type": "mount"}]}
    spec["hostname"] = ""
    (folder / "config.json").write_text(json.dumps(spec))


@contextlib.contextmanager
def runc(folder: Path) -> Iterator[Box]:
    """A container of runc's."""
    if shutil.which("runc") is None:
        pytest.skip("runc is not installed here: apt-get install runc")
    if os.geteuid() != 0 or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("a container that is held needs root and two CPUs")
    folder.mkdir()
    _spec(folder)
    number = secrets.token_hex(32)
    # Its output would keep the pipe of whoever reads ours.
    done = subprocess.run(
        ["runc", "run", "-d", number],
        cwd=folder,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        pytest.skip("runc starts no container here: it needs a cgroup tree it may write")
    try:
        told = subprocess.run(["runc", "state", number], capture_output=True, check=True).stdout
        box = Box("runc", number, json.loads(told)["pid"])
        while len(tids_of(box.pid)) < 2 or len(set(box.masks())) < 2:
            assert (Path("/proc") / str(box.pid)).exists()
        yield box
    finally:
        subprocess.run(["runc", "delete", "-f", number], check=False, capture_output=True)
