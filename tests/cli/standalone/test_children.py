"""Children: started, stopped in order, ended when an earlier run left them, never a stranger."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from nodeagent.cli.standalone.children import Children, end_leftovers, start_time

SLEEP = [sys.executable, "-c", "import time; print('{\"up\": 1}', flush=True); time.sleep(60)"]


def wait_for(condition: object, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:  # type: ignore[operator]
        time.sleep(0.01)


def test_stop_is_clean_and_leaves_no_record(tmp_path: pathlib.Path) -> None:
    children = Children(tmp_path)
    child = children.start("sleeper", SLEEP)
    wait_for(lambda: child.lines())
    assert child.lines() == [{"up": 1}]
    assert json.loads(children.record.read_text())[0]["pid"] == child.pid
    assert children.stop(child) == -signal.SIGTERM
    children.stop_all()
    assert not children.record.exists()


def test_deaf_child_is_killed(tmp_path: pathlib.Path) -> None:
    deaf = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); "
        "print('{}', flush=True); time.sleep(60)"
    )
    children = Children(tmp_path)
    child = children.start("deaf", [sys.executable, "-c", deaf])
    wait_for(lambda: child.lines())
    assert children.stop(child, timeout_s=0.2) == -signal.SIGKILL


def test_leftovers_are_ended_but_not_a_reused_number(tmp_path: pathlib.Path) -> None:
    mine = subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL)
    stranger = subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL)
    record = tmp_path / "children.json"
    record.write_text(
        json.dumps(
            [
                {"name": "old", "pid": mine.pid, "start_time": start_time(mine.pid)},
                {"name": "reused", "pid": stranger.pid, "start_time": 1},
            ]
        )
    )
    try:
        said = end_leftovers(record)
        assert said == [f"ended old (pid {mine.pid}) that an earlier run had left"]
        assert mine.wait() == -signal.SIGTERM
        assert stranger.poll() is None
        assert not record.exists()
    finally:
        stranger.kill()
        stranger.wait()


def test_children_end_when_their_parent_is_killed(tmp_path: pathlib.Path) -> None:
    code = (
        "import pathlib,sys,time\n"
        "from nodeagent.cli.standalone.children import Children\n"
        f"c = Children(pathlib.Path({str(tmp_path)!r})).start('s', {SLEEP!r})\n"
        "print(c.pid, flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    born = start_time(pid)
    assert born is not None
    # The child must have called prctl already: setpriv has become the program it starts.
    cmdline = pathlib.Path(f"/proc/{pid}/cmdline")
    wait_for(lambda: cmdline.read_text().split("\0")[:-1] == [str(word) for word in SLEEP])
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_for(lambda: start_time(pid) is None)
    assert start_time(pid) is None


def test_a_cut_record_is_no_fault(tmp_path: pathlib.Path) -> None:
    record = tmp_path / "children.json"
    record.write_text('[{"name": "x", ')
    assert end_leftovers(record) == []
