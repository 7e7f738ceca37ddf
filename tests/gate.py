"""A file that holds whoever reads it: a FUSE file system of one file (fuse_file.py) over it."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

SERVER = pathlib.Path(__file__).with_name("fuse_file.py")
FUSE = pathlib.Path("/dev/fuse")


class Gate:
    """A file that answers nobody until `open`."""

    def __init__(self, place: pathlib.Path, gate: pathlib.Path) -> None:
        self.place, self.gate = place, gate
        self.server = subprocess.Popen(
            [sys.executable, SERVER, place, gate], stdout=subprocess.PIPE, text=True
        )
        assert self.server.stdout is not None
        if self.server.stdout.readline() != "mounted\n":
            pytest.skip("cannot mount a FUSE file system here (root and /dev/fuse)")

    def open(self) -> None:
        self.gate.touch()

    def close(self) -> None:
        subprocess.run(["umount", "-l", self.place], check=False)
        self.server.kill()
        self.server.wait()
