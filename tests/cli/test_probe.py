"""nodeagentctl probe as a person meets it."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import time

import pytest


def run(
    bin_dir: pathlib.Path, *args: str, before: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, bin_dir / "nodeagentctl", *args], capture_output=True, text=True
    )


@pytest.mark.bpf
@pytest.mark.root
def test_capabilities(bin_dir: pathlib.Path, rights: None) -> None:
    done = run(bin_dir, "-o", "json", "probe", "capabilities")
    body = json.loads(done.stdout)
    assert done.returncode == 0 and body["schema"] == "nodeagent.capabilities/v1"
    assert {"kind", "works", "reason"} == body["capabilities"][0].keys()
    table = run(bin_dir, "probe", "capabilities")
    assert table.stdout.splitlines()[0].split()[0] == "KIND" and "\x1b" not in table.stdout


@pytest.mark.bpf
@pytest.mark.root
def test_live_streams_one_object_a_reading(bin_dir: pathlib.Path, rights: None) -> None:
    own = str(os.getpid())
    done = run(
        bin_dir, "-o", "jsonl", "probe", "jitter", "live", "--pid", own, "--cpus", "0",
        "--isolated", "full", "--for", "1", "--every", "0.3",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    readings = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(readings) >= 3
    assert all(r["schema"] == "nodeagent.jitter/v1" for r in readings)
    last = readings[-1]
    assert [p["pid"] for p in last["processes"]] == [os.getpid()]
    assert last["cpus"][0]["samples"] > 0
    assert readings[0]["seconds"] < last["seconds"]


@pytest.mark.bpf
@pytest.mark.root
def test_live_ends_with_a_table_on_ctrl_c(bin_dir: pathlib.Path, rights: None) -> None:
    child = subprocess.Popen(
        [bin_dir / "nodeagentctl", "probe", "jitter", "live", "--cpus", "0", "--isolated", "full"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(2)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate()
    assert child.returncode == 0, err
    assert "cpu 0, every task" in out


@pytest.mark.root
def test_without_rights_live_says_so_and_exits_3(bin_dir: pathlib.Path, as_root: None) -> None:
    done = run(
        bin_dir, "probe", "jitter", "live", "--pid", "1",
        before=("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--clear-groups"),
    )  # fmt: skip
    assert done.returncode == 3 and done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.startswith("error: ") and second.startswith("remedy: ")


def test_wrong_usage(bin_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert run(bin_dir, "probe", "jitter", "live").returncode == 64
    assert run(bin_dir, "probe", "bcc", str(tmp_path / "absent.py")).returncode == 64
    done = run(bin_dir, "--host", str(tmp_path), "probe", "capabilities")
    assert done.returncode == 64 and "running kernel" in done.stderr
    gone = run(bin_dir, "probe", "jitter", "live", "--pid", str(2**22 - 3))
    assert gone.returncode == 3 and "there is no process" in gone.stderr
