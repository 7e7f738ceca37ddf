"""Commands whose reader leaves, or whose folder is gone: the verdict stands, nothing is a fault."""

from __future__ import annotations

import pathlib
import subprocess

import pytest

HOST = pathlib.Path(__file__).parents[1] / "hosts" / "hgx-10nic.capture"


def piped(bin_dir: pathlib.Path, *args: object) -> int:
    """Exit code of the command when its reader has left before it writes."""
    with subprocess.Popen(
        [bin_dir / "nodeagentctl", "--host", HOST, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        child.stdout.close()
        said = child.stderr.read()
        child.wait()
    assert b"Traceback" not in said and b"Exception" not in said
    return child.returncode


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_verdict_is_told_by_the_exit_code_even_if_nobody_reads(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path, output: str
) -> None:
    assert piped(bin_dir, "-o", output, "topology", "check", "--all") == 2
    assert piped(bin_dir, "-o", output, "topology", "show") == 0
    assert piped(bin_dir, "-o", output, "explain") == 0
    text = tmp_path / "cmdline"
    text.write_text("isolcpus=2-3 irqaffinity=0-3 nohz_full=2-3\n")
    assert piped(bin_dir, "-o", output, "diagnose", text) == 2


@pytest.mark.parametrize("args", [("capture", "x"), ("topology", "show", "--svg", "x")])
def test_a_folder_that_is_gone_is_said(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path, args: tuple[str, ...]
) -> None:
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        ["sh", "-c", 'cd "$0" && rmdir "$0" && exec "$@"', tmp_path / "gone",
         bin_dir / "nodeagentctl", "--host", HOST, *args],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 3
    assert "No such file" in done.stderr or "no longer exists" in done.stderr
