"""nodeagentctl as a process: usage errors, help."""

from __future__ import annotations

import pathlib
import subprocess


def run(bin_dir: pathlib.Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([bin_dir / "nodeagentctl", *args], capture_output=True, text=True)


def test_help_names_the_exit_codes(bin_dir: pathlib.Path) -> None:
    done = run(bin_dir, "--help")
    assert done.returncode == 0
    assert "Exit codes" in done.stdout


def test_wrong_usage_is_64_with_a_remedy(bin_dir: pathlib.Path) -> None:
    done = run(bin_dir, "no-such-command")
    assert done.returncode == 64
    assert "remedy:" in done.stderr
    assert "Traceback" not in done.stderr
