"""`place prove` as a process, against what really runs here."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from nodeagent.discover.effects import Effects
from nodeagent.discover.root import Root
from nodeagent.model.cpuset import CpuSet

CPU = max(os.sched_getaffinity(0))
HOG = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
print("ready", flush=True)
while True:
    pass
"""


@pytest.fixture
def hog() -> Iterator[int]:
    """A process that never sleeps on CPU."""
    child = subprocess.Popen([sys.executable, "-c", HOG, str(CPU)], stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline()
    yield child.pid
    child.kill()
    child.communicate()


def run(bin_dir: pathlib.Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([bin_dir / "nodeagentctl", *words], capture_output=True, text=True)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: nobody can look on")
def test_a_hog_is_named_with_its_time(bin_dir: pathlib.Path, hog: int) -> None:
    done = run(bin_dir, "-o", "json", "place", "prove", "--for", "1", "--cpus", str(CPU))
    assert done.returncode == 2, done.stderr
    body = json.loads(done.stdout)
    assert body["schema"] == "nodeagent.proof/v1" and body["verdict"] == "FAIL"
    (cpu,) = body["cpus"]
    assert cpu["cpu"] == CPU and cpu["workload"] is None and body["seconds"] >= 1
    mine = next(c for c in cpu["culprits"] if f"(pid {hog})" in c["what"])
    assert mine["kind"] == "process" and mine["exact"] and mine["verdict"] == "FAIL"
    assert mine["run_ns"] > 50_000_000 and "ran" in mine["text"]


def test_as_a_table(bin_dir: pathlib.Path) -> None:
    done = run(bin_dir, "place", "prove", "--for", "0.2", "--cpus", str(CPU))
    assert done.returncode in (0, 1, 2), done.stderr
    assert "DISTURBED BY" in done.stdout and "Over 0." in done.stdout
    assert done.stdout.splitlines()[-1].split()[-1] in ("OK", "WARN", "FAIL")


def test_nothing_to_prove_and_a_recorded_machine(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    done = run(bin_dir, "--host", str(tmp_path), "place", "prove")
    assert done.returncode == 64 and "recorded machine" in done.stderr
    config = tmp_path / "n.toml"
    config.write_text("")
    done = run(bin_dir, "--config", str(config), "place", "prove", "--for", "0.1")
    isolated = pathlib.Path("/sys/devices/system/cpu/isolated").read_text().strip()
    if isolated:
        pytest.skip(f"CPU {isolated} is isolated here: there is something to prove")
    assert done.returncode == 64 and "--cpus" in done.stderr
    assert "no exclusive workload has a place" in done.stderr


def test_an_offline_cpu_is_unknown(bin_dir: pathlib.Path) -> None:
    done = run(bin_dir, "-o", "json", "place", "prove", "--for", "0.1", "--cpus", "2000")
    assert done.returncode == 3
    assert json.loads(done.stdout)["cpus"][0]["reason"].startswith("CPU 2000 is not online")


def test_a_cpu_was_busy_for_those_who_have_ended() -> None:
    effects, here = Effects(Root.live()), CpuSet.of([CPU])
    before = effects.read(here)
    code = f"import os\nos.sched_setaffinity(0, {{{CPU}}})\nsum(range(30_000_000))"
    child = subprocess.Popen([sys.executable, "-c", code])
    _, _, used = os.wait4(child.pid, 0)
    child.returncode = 0
    after = effects.read(here)
    assert child.pid not in after.tasks
    grown_s = (after.busy_ns[CPU] - before.busy_ns[CPU]) / 1e9
    # It began elsewhere, and the kernel may count whole ticks.
    assert grown_s > 0.5 * (used.ru_utime + used.ru_stime) > 0
    assert before.online == CpuSet.of(before.busy_ns)
