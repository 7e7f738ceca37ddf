"""diff and check of the recorded machines: what they say helps, in units of people."""

from __future__ import annotations

import pathlib
import subprocess

HOSTS = pathlib.Path(__file__).parents[1] / "hosts"


def test_sizes_and_distances_are_readable(bin_dir: pathlib.Path) -> None:
    files = [str(HOSTS / f"{name}.capture") for name in ("two-socket-8gpu", "nps4-4gpu")]
    done = subprocess.run(
        [bin_dir / "nodeagentctl", "diff", *files], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert "node 0: memory 503.5 GiB -> 122.1 GiB" in lines
    assert "node 0: distances 0:10 1:21 -> 0:10 1:12 2:12 3:12" in lines


def test_the_remedy_of_unknown_acs_can_help(bin_dir: pathlib.Path) -> None:
    """Neither root nor another capture would tell: config space is never read."""
    host = str(HOSTS / "two-socket-8gpu.capture")
    command = [str(bin_dir / "nodeagentctl"), "--host", host, "topology", "check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 3
    assert "lspci -vvv | nodeagentctl diagnose -" in done.stdout
    assert "nodeagentctl capture" not in done.stdout
