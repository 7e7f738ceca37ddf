"""nodeagentctl as a process: usage errors, help."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import pytest


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


def test_a_global_option_after_the_command_is_told_where_it_belongs(bin_dir: pathlib.Path) -> None:
    done = run(bin_dir, "status", "--config", "x.toml")
    assert done.returncode == 64
    assert "nodeagentctl --config FILE status" in done.stderr


def test_whoever_asks_the_default_daemon_is_told_of_the_main_job(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    if pathlib.Path("/run/nodeagent/ring.sock").exists():
        pytest.skip("a daemon runs on this machine")
    (tmp_path / "api.sock").touch()
    env = {**os.environ, "NODEAGENT_RUN_DIR": str(tmp_path)}
    ctl = str(bin_dir / "nodeagentctl")
    for command in ("status", "ring stat", "undo"):
        done = subprocess.run([ctl, *command.split()], capture_output=True, text=True, env=env)
        assert done.returncode == 3
        assert f"--socket {tmp_path}/api.sock" in done.stderr, command
    (tmp_path / "api.sock").unlink()
    done = subprocess.run([ctl, "status"], capture_output=True, text=True, env=env)
    assert "script/run" not in done.stderr


def test_a_mistyped_command_is_told_the_nearest(bin_dir: pathlib.Path) -> None:
    assert "did you mean status?" in run(bin_dir, "stauts").stderr
    assert "did you mean check?" in run(bin_dir, "topology", "chek").stderr
    assert "did you mean" not in run(bin_dir, "zzzz").stderr


def test_a_command_of_another_group_is_told_whole(bin_dir: pathlib.Path) -> None:
    assert "remedy: it is: nodeagentctl undo\n" in run(bin_dir, "place", "undo").stderr
    assert "remedy: it is: nodeagentctl place plan\n" in run(bin_dir, "plan").stderr
    assert "remedy: it is: nodeagentctl topology check\n" in run(bin_dir, "check").stderr


def test_undo_of_a_name_leads_to_release(bin_dir: pathlib.Path) -> None:
    done = run(bin_dir, "undo", "rank0")
    assert done.returncode == 64 and "nodeagentctl place release rank0" in done.stderr


def test_a_remedy_names_the_daemon_that_was_named(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    config = tmp_path / "a b.toml"
    config.write_text(f'[daemon]\nrun_dir = "{tmp_path}/r"\nstate_dir = "{tmp_path}/s"\n')
    for command in (["undo"], ["undo", "--plan"], ["place", "release"]):
        done = run(bin_dir, "--config", str(config), *command)
        assert done.returncode == 3
        assert f"nodeagent-actor --config '{config}'" in done.stderr, command
        assert "systemctl" not in done.stderr
    done = run(bin_dir, "--config", str(config), "status")
    assert f"nodeagentd --config '{config}'" in done.stderr
    done = run(bin_dir, "--config", str(config), "undo", "rank0")
    assert f"nodeagentctl --config '{config}' place release rank0" in done.stderr


def test_config_wants_the_workload_file_that_it_names(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "nodeagent.toml"
    file.write_text('[place]\nworkloads = "w.toml"\n')
    missing = run(bin_dir, "config", "--file", str(file))
    assert missing.returncode == 64
    assert f"{tmp_path}/w.toml is not there" in missing.stderr
    (tmp_path / "w.toml").write_text("")
    assert run(bin_dir, "config", "--file", str(file)).returncode == 0
    named = run(bin_dir, "--config", str(file), "-o", "json", "config")
    assert json.loads(named.stdout)["file"] == str(file)
