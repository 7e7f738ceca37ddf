"""A process may call itself anything: its name must not end the daemon's turns."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.pin.proc import stat_of
from nodeagent.probe.runq import start_ticks

ODD = r"""
open("/proc/self/comm", "wb").write(b"\xff) R 1\x1b[2J\n")
print("ready", flush=True)
input()
"""


@pytest.fixture
def odd() -> Iterator[int]:
    """Pid of a process whose name is no UTF-8 and holds a parenthesis and an escape sequence."""
    child = subprocess.Popen(
        [sys.executable, "-c", ODD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None and child.stdout.readline() == b"ready\n"
    yield child.pid
    child.communicate(b"\n")


def test_the_start_of_a_process_with_an_odd_name(odd: int) -> None:
    assert b"\xff" in Path(f"/proc/{odd}/stat").read_bytes()
    seen = stat_of(odd)
    assert seen is not None and seen.ppid == os.getpid()
    assert start_ticks(odd) == seen.start_time
