"""place, undo and exec as processes, with a real actor and real workloads."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeagent.model.cpuset import CpuSet

WORKLOADS = """
[[workload]]
name = "first"
kind = "agent"
cpus = 1
match = {{ cmdline = '{mark}-first' }}

[[workload]]
name = "second"
kind = "vector-index"
cpus = 1
sharing = "shared"
match = {{ cmdline = '{mark}-second' }}
"""

SLEEPER = """
import sys, threading, time
for _ in range(2):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
sys.stdin.read()
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def mark() -> str:
    return f"nodeagent-test-place-{os.getpid()}"


@pytest.fixture
def file(tmp_path: Path, mark: str) -> Path:
    path = tmp_path / "workloads.toml"
    path.write_text(WORKLOADS.format(mark=mark))
    return path


@pytest.fixture
def process(mark: str) -> Iterator[subprocess.Popen[bytes]]:
    made = subprocess.Popen([sys.executable, "-c", SLEEPER, f"{mark}-first"], stdin=subprocess.PIPE)
    deadline = time.monotonic() + 30
    while len(list(Path(f"/proc/{made.pid}/task").iterdir())) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield made
    assert made.stdin is not None
    made.stdin.close()
    made.wait()


@pytest.fixture
def run(bin_dir: Path, tmp_path: Path, mark: str) -> Run:
    def call(*args: str) -> subprocess.CompletedProcess[str]:
        command = [str(bin_dir / "nodeagentctl"), "--socket", str(tmp_path / "run/api.sock"), *args]
        return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    return call


@pytest.fixture
def actor(bin_dir: Path, tmp_path: Path) -> Iterator[None]:
    made = subprocess.Popen(
        [
            str(bin_dir / "nodeagent-actor"),
            *("--allow", "threads"),
            *("--run-dir", str(tmp_path / "run")),
            *("--state-dir", str(tmp_path / "state")),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert made.stderr is not None
    assert any("ready on" in line for line in made.stderr)
    yield
    made.terminate()
    made.communicate()


def masks(pid: int) -> set[str]:
    tids = [int(t.name) for t in Path(f"/proc/{pid}/task").iterdir()]
    return {str(CpuSet.of(os.sched_getaffinity(t))) for t in tids}


@pytest.fixture
def two_cpus() -> CpuSet:
    mine = CpuSet.of(os.sched_getaffinity(0))
    if len(mine) < 2:
        pytest.skip("needs two CPUs to tell a pinned mask from a free one")
    return mine


def test_plan_apply_status_release_undo(
    run: Run, file: Path, process: subprocess.Popen[bytes], actor: None, two_cpus: CpuSet
) -> None:
    before = masks(process.pid)
    plan = run("place", "plan", "--workloads", str(file), "--detailed-exitcode")
    assert plan.returncode == 1, plan.stderr
    assert f"({process.pid}): CPU" in plan.stdout and "~ first" in plan.stdout
    assert "? second" in plan.stdout and "Nothing was changed" in plan.stdout
    assert masks(process.pid) == before

    # What is to be typed next is about the same file and the same actor.
    do = re.search(r"Make it so:\s+nodeagentctl (.*)", plan.stdout)
    assert do is not None and f"place apply --yes --workloads {file}" in do[1]
    assert do[1].startswith(("--socket ", "--config "))

    unconfirmed = run("place", "apply", "--workloads", str(file))
    assert unconfirmed.returncode == 64
    assert f"place apply --yes --workloads {file}\n" in unconfirmed.stderr
    assert masks(process.pid) == before

    applied = run("-o", "json", "place", "apply", "--yes", "--workloads", str(file))
    assert applied.returncode == 0, applied.stderr
    body = json.loads(applied.stdout)
    assert body["schema"] == "nodeagent.placement/v1"
    row = next(p for p in body["placements"] if p["workload"] == "first")
    assert row["pid"] == process.pid and len(row["threads"]) == 3
    assert body["results"][0]["outcome"] == "done"
    assert masks(process.pid) == {row["cpus"]} != before
    assert CpuSet.parse(row["cpus"]) < two_cpus

    again = run("place", "plan", "--workloads", str(file), "--detailed-exitcode")
    assert again.returncode == 0 and "= first" in again.stdout
    status = json.loads(run("-o", "json", "place", "status", "--workloads", str(file)).stdout)
    first, second = status["held"]
    assert first["held"] and {first["cpus_before"]} == before and second["pid"] is None
    assert status["journal"][0]["pid"] == process.pid
    table = run("place", "status", "--workloads", str(file))
    assert table.returncode == 0 and "WANTED" in table.stdout and "yes" in table.stdout

    other = run("place", "release", "second")
    assert other.returncode == 0 and "nothing to undo" in other.stdout
    released = run("place", "release", "first")
    assert released.returncode == 0 and "done" in released.stdout
    assert masks(process.pid) == before
    empty = run("-o", "json", "undo")
    assert empty.returncode == 0 and json.loads(empty.stdout)["results"] == []


def test_config_names_sockets_and_workloads_of_a_daemon(
    bin_dir: Path,
    tmp_path: Path,
    file: Path,
    process: subprocess.Popen[bytes],
    actor: None,
    two_cpus: CpuSet,
) -> None:
    config = tmp_path / "nodeagent.toml"
    config.write_text(
        f'[daemon]\nrun_dir = "{tmp_path}/run"\nstate_dir = "{tmp_path}/state"\n'
        f'[place]\nworkloads = "{file.name}"\n'
    )

    def ctl(*args: str) -> subprocess.CompletedProcess[str]:
        command = [str(bin_dir / "nodeagentctl"), "--config", str(config), *args]
        return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    before = masks(process.pid)
    applied = ctl("place", "apply", "--yes")
    assert applied.returncode == 0, applied.stderr
    assert masks(process.pid) != before
    assert "first" in ctl("place", "status").stdout
    # Without a workload file: what is pinned, from the actor.
    config.write_text(config.read_text().split("[place]")[0])
    bare = ctl("place", "status")
    assert bare.returncode == 0, bare.stderr
    assert f"also pinned: workload first, process {process.pid}" in bare.stdout
    assert "no workload file is named" in bare.stdout
    assert ctl("place", "plan").returncode == 64
    assert "--config" in ctl("place", "plan").stderr
    assert ctl("undo").returncode == 0
    assert masks(process.pid) == before
    assert "Nothing is pinned by nodeagent" in ctl("place", "status").stdout
    wrong = ctl("--config", str(tmp_path / "none.toml"), "status")
    assert wrong.returncode == 64 and "none.toml" in wrong.stderr


def test_frozen_is_nothing_could_be_tried(
    run: Run,
    file: Path,
    process: subprocess.Popen[bytes],
    actor: None,
    tmp_path: Path,
    two_cpus: CpuSet,
) -> None:
    before = masks(process.pid)
    (tmp_path / "run/freeze").touch()
    frozen = run("place", "apply", "--yes", "--workloads", str(file))
    assert frozen.returncode == 3 and "frozen by" in frozen.stdout
    assert "nor will be while it is frozen" in run("place", "plan", "--workloads", str(file)).stdout
    status = run("place", "status", "--workloads", str(file)).stdout
    assert "nothing is changed now: frozen" in status and "frozen by" in status
    assert masks(process.pid) == before
    reason = ("--override-freeze", "a test")
    assert run("place", "apply", "--yes", "--workloads", str(file), *reason).returncode == 0
    assert masks(process.pid) != before
    assert run("undo").returncode == 3
    assert run("undo", *reason).returncode == 0
    assert masks(process.pid) == before


def test_a_pattern_that_fits_the_command_itself_pins_nothing(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "itself.toml"
    path.write_text(f'[[workload]]\nname = "w"\ncpus = 1\nmatch = {{ cmdline = "{path}" }}\n')
    done = run("place", "plan", "--workloads", str(path))
    assert done.returncode == 0 and "nodeagentctl (" not in done.stdout
    assert "no process matches: w (cmdline" in " ".join(done.stdout.split())


def test_no_actor_is_a_sentence(run: Run, file: Path) -> None:
    for args in (("place", "apply", "--yes", "--workloads", str(file)), ("undo",)):
        done = run(*args)
        assert done.returncode == 3 and "no actor answers there" in done.stderr
        assert "remedy:" in done.stderr and "Traceback" not in done.stderr


def test_mistakes_in_the_file_name_its_line(run: Run, tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text('[[workload]]\nname = "a"\ncpus = 0\nmatch = { comm = "a" }\n')
    done = run("place", "plan", "--workloads", str(bad))
    assert done.returncode == 64 and f"{bad}:3: cpus: saw 0" in done.stderr
    missing = run("place", "plan", "--workloads", str(tmp_path / "none.toml"))
    assert missing.returncode == 64 and "none.toml" in missing.stderr


def test_plan_for_a_recorded_machine(run: Run, bin_dir: Path, shared: Path, tmp_path: Path) -> None:
    machine = shared / "corpus/machines/sysfs_pci/ghw-accel-nvidia/snapshot.tar.xz"
    file = tmp_path / "w.toml"
    file.write_text(
        '[[workload]]\nname = "rank0"\nkind = "vllm"\ncpus = 2\nnear = "gpu:0"\n'
        'match = { title = "VLLM*" }\n'
        '[[workload]]\nname = "huge"\ncpus = 7\nnear = "gpu:0"\nmatch = { comm = "x" }\n'
    )
    done = subprocess.run(
        [bin_dir / "nodeagentctl", "--host", machine, "place", "plan", "--workloads", file],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "rank0" in done.stdout and "gpu:0" in done.stdout and "0000:06:00.0" in done.stdout
    assert "! huge  refused" in done.stdout and "would fit if cpus = 5" in done.stdout
    acting = subprocess.run(
        [bin_dir / "nodeagentctl", "--host", machine, "place", "apply", "--workloads", file],
        capture_output=True,
        text=True,
    )
    assert acting.returncode == 64
