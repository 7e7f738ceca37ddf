"""The whole product on the shared corpus, by the scorers that lie beside it.

Runs where the corpus is present; a sentence says so where it is not.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

# Kinds of one reader together, with the percent of fields that must be right.
KINDS = (
    (("sysfs_pci", "sysfs_cpu_numa", "sysfs_from_nccl"), 99.5),
    (("nccl_xml", "kfd", "lscpu", "topo_matrix"), 99.5),
    (("klog", "raw_log"), 97.0),
)


def score(shared: pathlib.Path, name: str, bin_dir: pathlib.Path, *args: str) -> str:
    """Runs a scorer; fails with its list of what differs when it is below its need."""
    command = [sys.executable, str(shared / "score" / name), "-v", *args]
    command += ["--set", str(shared / "corpus"), "--cli", str(bin_dir / "nodeagentctl")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def items(shared: pathlib.Path, kinds: tuple[str, ...]) -> int:
    return sum(
        1
        for kind in kinds
        for folder in (shared / "corpus" / "machines" / kind).iterdir()
        if folder.is_dir()
    )


@pytest.mark.parametrize(("kinds", "need"), KINDS, ids=("sysfs", "pasted", "kernel-log"))
def test_reference_fields_of_all_machines(
    shared: pathlib.Path, bin_dir: pathlib.Path, kinds: tuple[str, ...], need: float
) -> None:
    text = score(shared, "score_machines.py", bin_dir, "--need", str(need), "--kinds", *kinds)
    assert ", 0 errors" in text
    scored = text.count("\n" + kinds[0] + "/") + text.startswith(kinds[0] + "/")
    assert 0 < scored <= items(shared, kinds)


def test_verdicts_of_all_cases_made_of_real_output(
    shared: pathlib.Path, bin_dir: pathlib.Path
) -> None:
    """Cases whose tables somebody invented for them have no target and are left out."""
    text = score(shared, "score_cases.py", bin_dir, "--real-only", "--need", "95")
    assert text.count("expected ") >= 30
