"""Completion: the script loads in a real bash and completes a command's name."""

from __future__ import annotations

import pathlib
import subprocess


def test_bash_completes_a_command(bin_dir: pathlib.Path) -> None:
    script = subprocess.run(
        [bin_dir / "nodeagentctl", "completion", "bash"], capture_output=True, text=True, check=True
    ).stdout
    probe = (
        f"PATH={bin_dir}:$PATH\n{script}\n"
        "COMP_WORDS=(nodeagentctl compl); COMP_CWORD=1\n"
        "_nodeagentctl_completion nodeagentctl\n"
        'echo "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(["bash", "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["completion"]
