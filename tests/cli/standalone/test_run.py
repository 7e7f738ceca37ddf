"""The main job with its real processes: what it says, what it survives, what it leaves behind.

Each run has folders of its own, so that none of these disturbs a run of the machine's owner.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest

from nodeagent.model.cpuset import CpuSet

ROOT = pathlib.Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
RATE = "40000"
"""Messages a second: what a machine busy with other tests can still take without a loss."""
NOBODY = 65534
WAIT_S = 120.0
"""For a step that does not come: the test fails with what was said, long before pytest's limit."""

pytestmark = pytest.mark.slow


@dataclass(slots=True)
class Place:
    """The folders of one test, and the command."""

    bin_dir: pathlib.Path
    folder: pathlib.Path
    prefix: tuple[str, ...] = ()
    examples: pathlib.Path = EXAMPLES
    started: list[Running] = field(default_factory=list)

    @property
    def run_dir(self) -> pathlib.Path:
        return self.folder / "r"

    @property
    def state_dir(self) -> pathlib.Path:
        return self.folder / "s"

    def environment(self) -> dict[str, str]:
        """Folders of our own, for the run and for whatever it may look up."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "NODEAGENT_RUN_DIR": str(self.run_dir),
            "NODEAGENT_STATE_DIR": str(self.state_dir),
            "NODEAGENT_EXAMPLES": str(self.examples),
        }

    def start(self, *options: str) -> Running:
        process = subprocess.Popen(
            [*self.prefix, str(self.bin_dir / "nodeagentctl"), "run", "--rate", RATE, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment(),
        )
        running = Running(process)
        self.started.append(running)
        return running

    def run(self, *options: str) -> tuple[int, str, str]:
        """(exit status, stdout, stderr) of a whole run."""
        return self.start(*options).end()

    def strays(self) -> list[str]:
        """Command lines of processes that belong to a run in these folders."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                line = " ".join(process.cmdline())
                if str(self.folder) in line and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(line)
        return found

    def assert_nothing_left(self) -> None:
        deadline = time.monotonic() + WAIT_S
        while self.strays() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert self.strays() == []
        assert not self.run_dir.exists() or os.path.ismount(self.run_dir)
        assert not list(pathlib.Path("/dev/shm").glob("nodeagent*"))
        assert os.sched_getaffinity(0) == set(CpuSet.parse(online()))


@dataclass(slots=True)
class Running:
    """A run under way; its stderr is read as it comes."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    reader: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def wait_for(self, words: str) -> None:
        """Until it has said that, or ended."""
        deadline = time.monotonic() + WAIT_S
        while not any(words in line for line in self.lines):
            assert self.process.poll() is None, "\n".join(self.lines)
            assert time.monotonic() < deadline, "\n".join(self.lines)
            time.sleep(0.01)

    def child(self, name: str) -> psutil.Process:
        """Its child of that command."""
        for process in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.Error):
                if any(name in pathlib.PurePath(word).name for word in process.cmdline()[:3]):
                    return process
        raise AssertionError(f"no {name} among the children")

    def everyone(self) -> list[psutil.Process]:
        """All processes below it."""
        found: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return found

    def end(self) -> tuple[int, str, str]:
        """(exit status, stdout, stderr)."""
        assert self.process.stdout is not None
        out = self.process.stdout.read()
        status = self.process.wait()
        self.reader.join()
        return status, out, "\n".join(self.lines)


def online() -> str:
    return pathlib.Path("/sys/devices/system/cpu/online").read_text().strip()


@pytest.fixture
def place(bin_dir: pathlib.Path) -> Iterator[Place]:
    """Short paths: sockets have 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="na-run-") as name:
        place = Place(bin_dir=bin_dir, folder=pathlib.Path(name))
        yield place
        for running in place.started:
            if running.process.poll() is None:
                running.process.kill()
                running.end()


def result_of(out: str) -> dict[str, Any]:
    """The one object on stdout."""
    assert out.count("\n") == 1, out
    found: dict[str, Any] = json.loads(out)
    assert found["schema"] == "nodeagent.run/v1"
    return found


def assert_whole(result: dict[str, Any]) -> None:
    """What holds with any rights: every message accounted for, every VWAP right, all undone."""
    feed = result["feed"]
    lost = sum(n or 0 for n in feed["lost"].values())
    assert set(feed["lost"]) == {"nic", "kernel", "backend", "decoder", "wire_gap"}
    assert feed["source"] == "socket"
    assert feed["sent"] == feed["messages"] + lost > 0
    (reader,) = result["readers"]
    assert reader["lost"] == 0
    assert reader["records"] == feed["messages"]
    assert lost or reader["checked"] is True
    assert 0 <= reader["data_age_us"]["p50"] <= reader["data_age_us"]["p99"]
    assert result["vector"]["queries"] > 0
    assert result["vector"]["recall"] >= 0.9
    assert result["controller"]["connected"] is True
    assert result["controller"]["reports"] >= 1
    assert result["controller"]["unacknowledged"] == 0
    assert result["self"]["pss_bytes"] > 0
    assert result["undo"]["verified"] is True
    assert result["undo"]["undone"] == result["undo"]["actions"]


def assert_pinned(result: dict[str, Any]) -> None:
    """Both workloads on a strict part of the machine that differs from before, and held there."""
    assert [w["name"] for w in result["workloads"]] == ["vwap", "vector"]
    for w in result["workloads"]:
        assert w["held"] is True
        assert CpuSet.parse(w["cpus_planned"]) < CpuSet.parse(online())
        assert w["cpus_planned"] != w["cpus_before"]
        assert w["cpus_actual"] == w["cpus_planned"]
    assert result["undo"]["actions"] >= 2


@pytest.mark.usefixtures("as_root", "rights")
def test_json_is_the_contract_s(place: Place) -> None:
    if len(CpuSet.parse(online())) < 2:
        pytest.skip("one CPU: there is no strict part of it to pin to")
    status, out, said = place.run("--for", "8", "-o", "json")
    assert status == 0, said
    result = result_of(out)
    assert_whole(result)
    assert_pinned(result)
    assert result["seconds"] >= 8
    assert all(w["ran_inside"] >= 0.99 for w in result["workloads"])
    assert result["probe"]["available"] is True
    assert result["probe"]["samples"] > 0
    assert result["probe"]["runq_us"]["p50"] <= result["probe"]["runq_us"]["max"]
    assert result["vector"]["queries"] >= 8 * 200
    place.assert_nothing_left()


@pytest.mark.usefixtures("as_root")
def test_taken_port_second_start_and_ctrl_c(place: Place) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        place.examples = place.folder / "examples"
        shutil.copytree(EXAMPLES, place.examples)
        config = place.examples / "standalone.toml"
        config.write_text(config.read_text().replace(":7440", f":{port}"))
        first = place.start()
        first.wait_for(
            f"127.0.0.1:{port}: Address already in use; the controller takes a free port"
        )
        first.wait_for("running")
        status, out, said = place.run("--for", "1", "-o", "json")
        assert status == 3
        assert out == ""
        assert f"another run is going on (pid {first.process.pid})" in said
        assert f"kill -INT {first.process.pid}" in said
        first.process.send_signal(signal.SIGINT)
        status, out, said = first.end()
    assert status == 0, said
    assert " | findings=" in out.splitlines()[0]
    assert "VWAP equals the reference" in out
    assert "2 of 2 changes undone, read back and verified" in out
    assert "connected" in out
    place.assert_nothing_left()


STEPS = (
    "making a capture",
    "reading the machine",
    "building the vector index",
    "placing the workloads",
)


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("step", STEPS)
def test_stopped_while_it_starts(place: Place, step: str) -> None:
    running = place.start()
    running.wait_for(step)
    running.process.send_signal(signal.SIGTERM if step == STEPS[0] else signal.SIGINT)
    status, out, said = running.end()
    assert status == 3, said
    assert out == ""
    assert "error: stopped while " in said
    assert "nothing stays changed" in said
    assert "Traceback" not in said
    place.assert_nothing_left()


def test_without_root_it_observes(place: Place) -> None:
    if os.geteuid() == 0:
        place.prefix = (
            "setpriv",
            f"--reuid={NOBODY}",
            f"--regid={NOBODY}",
            "--clear-groups",
        )
        os.chown(place.folder, NOBODY, NOBODY)
        seen = subprocess.run(
            [*place.prefix, str(place.bin_dir / "nodeagentctl"), "--version"],
            capture_output=True,
            check=False,
        )
        if seen.returncode != 0:
            pytest.skip("another user may not read this checkout")
    status, out, said = place.run("--for", "2", "-o", "json")
    assert status == 0, said
    assert "not root: this run observes" in said
    result = result_of(out)
    assert_whole(result)
    assert not any(w["cpus_before"] for w in result["workloads"])
    assert result["probe"]["available"] is False
    assert result["probe"]["reason"]
    assert result["undo"] == {"actions": 0, "undone": 0, "verified": True}
    place.assert_nothing_left()


@pytest.mark.usefixtures("as_root")
def test_without_the_right_to_load_programs_the_rest_goes_on(place: Place) -> None:
    place.prefix = ("setpriv", "--bounding-set=-bpf,-perfmon,-sys_admin", "--")
    status, out, said = place.run("--for", "2", "-o", "json")
    assert status == 0, said
    result = result_of(out)
    assert_whole(result)
    assert result["probe"]["available"] is False
    assert "CAP_BPF" in result["probe"]["reason"]
    assert result["probe"]["samples"] == 0
    if len(CpuSet.parse(online())) > 1:
        assert_pinned(result)
    place.assert_nothing_left()


@pytest.mark.usefixtures("as_root")
def test_killed_at_any_moment_and_started_again(place: Place) -> None:
    chance = random.Random(20)
    moments = ("starting the controller", "reading the machine", "building", "placing", "running")
    for words in moments:
        running = place.start()
        running.wait_for(words)
        time.sleep(chance.random())
        children = running.everyone()
        running.process.kill()
        running.process.wait()
        psutil.wait_procs(children, timeout=WAIT_S)
        assert not [c for c in children if c.is_running() and c.status() != psutil.STATUS_ZOMBIE]
        assert place.strays() == []
    dead = running.process.pid
    status, out, said = place.run("--for", "1", "-o", "json")
    assert status == 0, said
    assert f"an earlier run (pid {dead}) was killed before it could stop in order" in said
    assert_whole(result_of(out))
    place.assert_nothing_left()


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("name", ["nodeagent-actor", "nodeagentd", "nodeagent-feeder"])
def test_child_that_dies_ends_the_run(place: Place, name: str) -> None:
    running = place.start()
    running.wait_for("running")
    child = running.child(name)
    others = running.everyone()
    child.kill()
    status, out, said = running.end()
    assert status == 1, said
    assert out == ""
    assert f"(pid {child.pid}) was killed by SIGKILL; all others are stopped" in said
    psutil.wait_procs(others, timeout=WAIT_S)
    assert not [o for o in others if o.is_running()]
    place.assert_nothing_left()


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize(
    ("which", "size"), [("r", "64k"), ("r", "1m"), ("s", "32k"), ("s", "200k")]
)
def test_full_disk(place: Place, which: str, size: str) -> None:
    disk = place.folder / which
    disk.mkdir(mode=0o700)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "none", str(disk)], check=True
    )
    try:
        status, out, said = place.run("--for", "1", "-o", "json")
        assert "Traceback" not in said
        if status == 0:
            # The controller's store is full: the daemon keeps what it could not report.
            result = result_of(out)
            assert result["readers"][0]["records"] == result["feed"]["messages"] > 0
            assert result["undo"]["verified"] is True
            assert result["controller"]["connected"] or "did not take all reports" in said
        else:
            assert status in (1, 3)
            assert "error: " in said
            assert "remedy: " in said
            assert out == ""
        place.assert_nothing_left()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_recorded_machine_is_judged_and_planned_for(place: Place) -> None:
    capture = ROOT / "tests" / "hosts" / "two-socket-8gpu.capture"
    status, out, said = place.run("--for", "1", "-o", "json", "--host", str(capture))
    assert status == 0, said
    assert f"recorded machine {capture}: verdict and plan are that machine's" in said
    result = result_of(out)
    assert_whole(result)
    for w in result["workloads"]:
        assert w["pid"] is None
        assert w["held"] is False
        assert w["sharing"] == "exclusive"
        assert w["cpus_planned"]
    assert result["probe"]["available"] is False
    assert result["undo"] == {"actions": 0, "undone": 0, "verified": True}
    place.assert_nothing_left()


WRONG = (
    (("--for", "0"), "--for"),
    (("--for", "x"), "--for"),
    (("--host", "/nonexistent"), "fleet node /nonexistent"),
    (("--examples", "/nonexistent"), "no vwap_agent.py there"),
    (("-o", "yaml"), "yaml"),
)


@pytest.mark.parametrize(("options", "words"), WRONG)
def test_wrong_usage(place: Place, options: tuple[str, ...], words: str) -> None:
    status, out, said = place.run(*options)
    assert status == 64
    assert out == ""
    assert words in said
    assert "remedy: " in said
    place.assert_nothing_left()


def test_folder_of_somebody_else_is_left_alone(place: Place) -> None:
    place.run_dir.mkdir(mode=0o700)
    (place.run_dir / "precious").write_text("x")
    status, _, said = place.run("--for", "1")
    assert status == 3
    assert "holds files of somebody else" in said
    assert (place.run_dir / "precious").read_text() == "x"
