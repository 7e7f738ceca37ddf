"""Every recorded machine of the shared corpus, field by field."""

from __future__ import annotations

import pathlib
import subprocess
import sys


def test_reference_fields_of_all_machines(shared: pathlib.Path, bin_dir: pathlib.Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, shared / "score" / "score_machines.py", "-v", "--need", "99.5"),
            *("--set", shared / "corpus", "--cli", bin_dir / "nodeagentctl"),
            *("--kinds", "sysfs_pci", "sysfs_cpu_numa", "sysfs_from_nccl"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert ", 0 errors" in done.stdout
