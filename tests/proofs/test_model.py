"""The protocol's model: holds as it is, and fails with each fence or order removed in turn."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

MODEL = pathlib.Path(__file__).with_name("ring.pml")

REMOVABLE = (
    "NO_RESERVE_FENCE",
    "NO_SEQ_RELEASE",
    "NO_SEQ_ACQUIRE",
    "NO_READ_FENCE",
    "NO_FUTEX_RELEASE",
    "NO_WAKE_FENCE",
    "NO_WAIT_FENCE",
)


def verify(folder: pathlib.Path, removed: str | None) -> str:
    """SPIN's report of an exhaustive search."""
    if shutil.which("spin") is None or shutil.which("gcc") is None:
        pytest.skip("the model checker spin (or gcc) is not installed")
    spin = ["spin", *([f"-D{removed}"] if removed else []), "-a", str(MODEL)]
    subprocess.run(spin, cwd=folder, check=True, capture_output=True)
    gcc = ["gcc", "-O1", "-w", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c"]
    subprocess.run(gcc, cwd=folder, check=True)
    done = subprocess.run(["./pan", "-m400000", "-n"], cwd=folder, capture_output=True, text=True)
    return done.stdout


def test_the_protocol_holds(tmp_path: pathlib.Path) -> None:
    report = verify(tmp_path, None)
    assert "errors: 0" in report
    assert "max search depth too small" not in report
    assert "out of memory" not in report


@pytest.mark.parametrize("removed", REMOVABLE)
def test_each_order_is_needed(tmp_path: pathlib.Path, removed: str) -> None:
    report = verify(tmp_path, removed)
    assert "assertion violated" in report
    assert "errors: 1" in report
