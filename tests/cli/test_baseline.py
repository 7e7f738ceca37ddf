"""baseline accept, show, diff as processes, on a recorded machine that then loses a GPU."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import pytest

from nodeagent.discover.capture import render
from tests.hosts.generate import MACHINES


def run(
    bin_dir: pathlib.Path, *args: object, state: pathlib.Path | None = None
) -> subprocess.CompletedProcess[str]:
    environ = dict(os.environ)
    if state is not None:
        environ["NODEAGENT_STATE_DIR"] = str(state)
    return subprocess.run(
        [bin_dir / "nodeagentctl", *map(str, args)], capture_output=True, text=True, env=environ
    )


@pytest.fixture
def hosts(tmp_path: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """A whole machine, and the same one after a GPU fell off the bus."""
    table = MACHINES["two-socket-8gpu"]()
    whole, hurt = tmp_path / "whole.capture", tmp_path / "hurt.capture"
    whole.write_text(render(table))
    gone = "0000:18:00.0"
    assert any(gone in p for p in table)
    hurt.write_text(render({p: e for p, e in table.items() if gone not in p}))
    return whole, hurt


def test_a_lost_gpu_is_told_first(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path, hosts: tuple[pathlib.Path, pathlib.Path]
) -> None:
    whole, hurt = hosts
    file = tmp_path / "node.baseline"
    none = run(bin_dir, "--host", whole, "baseline", "diff", "--file", file)
    assert none.returncode == 3
    assert "there is no baseline" in none.stderr and "accept" in none.stderr
    done = run(bin_dir, "--host", whole, "baseline", "accept", "--file", file)
    assert done.returncode == 0, done.stderr
    assert "8 GPUs" in done.stdout
    assert "gpu 0000:18:00.0: device" in run(bin_dir, "baseline", "show", "--file", file).stdout
    same = run(bin_dir, "--host", whole, "baseline", "diff", "--file", file)
    assert (same.returncode, same.stdout[:4]) == (0, "OK -")
    lost = run(bin_dir, "--host", hurt, "baseline", "diff", "--file", file)
    assert lost.returncode == 2
    assert lost.stdout.splitlines()[1].startswith("LOST    gpu 0000:18:00.0 is missing")
    out = json.loads(
        run(bin_dir, "--host", hurt, "-o", "json", "baseline", "diff", "--file", file).stdout
    )
    assert out["schema"] == "nodeagent.diff/v1"
    assert (out["verdict"], out["differences"][0]["lost"]) == ("FAIL", True)
    check = run(bin_dir, "--host", hurt, "-o", "json", "topology", "check", "--baseline", file)
    found = [f for f in json.loads(check.stdout)["findings"] if f["id"] == "baseline.holds"]
    assert check.returncode == 2
    assert (found[0]["verdict"], found[0]["subject"]) == ("FAIL", "gpu 0000:18:00.0")


def test_another_machine_never_becomes_this_one_s_baseline(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path, hosts: tuple[pathlib.Path, pathlib.Path]
) -> None:
    done = run(bin_dir, "--host", hosts[0], "baseline", "accept", state=tmp_path)
    assert done.returncode == 64
    assert "--file" in done.stderr
    assert not (tmp_path / "baseline.json").exists()


def test_this_machine_by_its_state_folder(bin_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    state = tmp_path / "new" / "state"
    assert run(bin_dir, "baseline", "accept", state=state).returncode == 0
    assert [p.name for p in state.iterdir()] == ["baseline.json"]
    assert run(bin_dir, "baseline", "diff", state=state).returncode == 0
    check = run(bin_dir, "-o", "json", "topology", "check", "--all", state=state)
    found = [f for f in json.loads(check.stdout)["findings"] if f["id"] == "baseline.holds"]
    assert [f["verdict"] for f in found] == ["OK"]


def test_a_damaged_baseline_is_said_and_can_be_replaced(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "baseline.json").write_text('{"schema":')
    for command in (("baseline", "diff"), ("baseline", "show")):
        done = run(bin_dir, *command, state=tmp_path)
        assert done.returncode == 64, command
        assert "baseline.json: no baseline" in done.stderr and "remedy:" in done.stderr
    done = run(bin_dir, "-o", "json", "topology", "check", state=tmp_path)
    found = [f for f in json.loads(done.stdout)["findings"] if f["id"] == "baseline.holds"]
    assert done.returncode in (1, 2, 3)
    assert [f["verdict"] for f in found] == ["UNKNOWN"]
    assert "baseline.json: no baseline" in found[0]["message"]
    asked = ("topology", "check", "--baseline", tmp_path / "baseline.json")
    assert run(bin_dir, *asked).returncode == 64
    assert run(bin_dir, "baseline", "accept", state=tmp_path).returncode == 0
    assert run(bin_dir, "baseline", "diff", state=tmp_path).returncode == 0


def test_a_link_in_the_state_folder_leads_nobody_elsewhere(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The folder belongs to the daemon's user, and root writes into it."""
    other = tmp_path / "other"
    other.write_text("not to be touched\n")
    state = tmp_path / "state"
    state.mkdir()
    (state / "baseline.json").symlink_to(other)
    assert run(bin_dir, "baseline", "accept", state=state).returncode == 0
    assert other.read_text() == "not to be touched\n"
    assert not (state / "baseline.json").is_symlink()
