"""diff and check of the recorded machines: what they say helps, in units of people."""

from __future__ import annotations

import pathlib
import re
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


def checked(bin_dir: pathlib.Path, host: pathlib.Path) -> subprocess.CompletedProcess[str]:
    command = [str(bin_dir / "nodeagentctl"), "--host", str(host), "topology", "check"]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_remedy_of_unknown_acs_can_help(bin_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Recorded without rights ACS is unknown; what the remedy asks for is what would tell."""
    whole = HOSTS / "two-socket-8gpu.capture"
    assert checked(bin_dir, whole).returncode == 0
    head, *members = re.split(r"(?m)^(?=/)", whole.read_text().partition("# end")[0])
    kept = [member for member in members if not member.startswith("/derived/pci/")]
    assert len(kept) < len(members)
    text = head + "".join(kept)
    poorer = tmp_path / "poorer.capture"
    lines = text.count("\n")
    poorer.write_text(f"{text}# end, {len(kept)} entries, {lines} lines\n")
    done = checked(bin_dir, poorer)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "pcie.acs-redirect" in done.stdout
    assert "sudo nodeagentctl capture FILE" in done.stdout
