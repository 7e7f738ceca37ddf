"""The ring under violence: killed at every step, killed at random.

The whole of 10,000 random kills and of the exhaustive run is in docs/proofs.md with its date.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CORE = ROOT / "nodeagent" / "native" / "core"
FLAGS = ("-std=gnu11", "-O2", "-g", "-w", "-D_GNU_SOURCE", f"-I{CORE}", "-pthread")


def build(folder: pathlib.Path, source: str, *flags: str) -> pathlib.Path:
    """Compiles a proof with ring.c and numa.c."""
    program = folder / source.removesuffix(".c")
    sources = (str(CORE / "tests" / source), str(CORE / "ring.c"), str(CORE / "numa.c"))
    subprocess.run(["gcc", *FLAGS, *flags, "-o", str(program), *sources], check=True)
    return program


def run(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A proof's run; its hang is a failure."""
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=240, env={**os.environ, **env}
    )


@pytest.mark.slow
def test_killed_at_every_step(tmp_path: pathlib.Path) -> None:
    program = build(tmp_path, "ring_kill.c", "-DNODEAGENT_KILL_POINTS")
    done = run(str(program), "exhaustive")
    assert done.returncode == 0, done.stderr
    kills = re.search(r"(\d+) kills, 0 torn, 0 wrong counts", done.stdout)
    assert kills is not None
    assert int(kills[1]) > 1000


def test_killed_at_random(tmp_path: pathlib.Path) -> None:
    program = build(tmp_path, "ring_kill.c", "-DNODEAGENT_KILL_POINTS")
    done = run(str(program), "random", "200", "7")
    assert done.returncode == 0, done.stderr
    assert "0 torn, sums exact" in done.stdout
