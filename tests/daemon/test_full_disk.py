"""A state folder that fills up, or that two daemons were given."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.daemon.conftest import wait_for

if TYPE_CHECKING:
    from tests.daemon.conftest import Node, Workers

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("as_root")]


@contextlib.contextmanager
def small(folder: pathlib.Path) -> Iterator[None]:
    """A file system of 1 MiB there."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("needs a user who may mount a small file system to fill")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(file: pathlib.Path) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        with contextlib.suppress(OSError):
            while True:
                os.write(fd, bytes(4096))
    finally:
        os.close(fd)


@pytest.mark.usefixtures("two_cpus")
def test_a_full_disk_silences_nothing(node: Node, workers: Workers) -> None:
    """Who moved a pin is told at once, in the log and in the status; stored when there is room."""
    node.place(workers, "pin.allow = ['threads']\npin.auto = ['threads']\n")
    with small(node.folder / "state"):
        node.start_actor()
        node.start()
        node.status_when(lambda s: bool(s.held) and s.held[0].held)
        (pinned,) = set(workers.masks().values())
        wait_for(lambda: [e for e in node.events() if e.kind == "pin.done"])
        stored = node.events()[-1].seq
        fill(node.folder / "state/fill")
        os.sched_setaffinity(workers.pid, os.sched_getaffinity(0))
        wait_for(lambda: "kind=pin.drift" in node.log)
        assert "event seq=none (not stored yet) kind=pin.drift" in node.log
        workers.until(pinned)
        said = node.status_when(lambda s: "in memory only" in s.sentence).sentence
        assert "events are kept in memory only" in said and "disk is full" in said, said
        assert node.events()[-1].seq == stored
        (node.folder / "state/fill").unlink()
        drift = node.event("pin.drift")
        assert drift.seq > stored
        node.status_when(
            lambda s: "in memory" not in s.sentence and "not on disk" not in s.sentence
        )
        seqs = [e.seq for e in node.events()]
        assert seqs == list(range(1, len(seqs) + 1))
        assert node.stop() == 0


def test_two_daemons_do_not_share_what_they_remember(node: Node) -> None:
    node.configure("")
    node.start()
    other = node.folder / "other.toml"
    other.write_text(node.config.read_text().replace(str(node.run_dir), str(node.folder / "run2")))
    second = subprocess.run(
        [*node.command[:-1], str(other)], capture_output=True, text=True, timeout=60
    )
    assert second.returncode == 3, second.stderr
    said = f"nodeagentd runs already with {node.folder / 'state'} (pid {node.pid})"
    assert said in second.stderr and "set another [daemon] state_dir" in second.stderr
    assert "Traceback" not in second.stderr
    assert node.stop() == 0
    # One folder for both is what a small installation may have.
    node.configure("", state_dir=node.run_dir)
    node.start()
    assert node.stop() == 0
