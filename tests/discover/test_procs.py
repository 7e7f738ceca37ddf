"""Processes of the live machine: ours, a pinned thread, ones that vanish, odd titles."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from nodeagent.discover.procs import Processes
from nodeagent.discover.root import Root
from nodeagent.discover.users import users


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Root.live() as root:
        found = Processes(root)
        yield found
        found.close()


def test_finds_ourselves_with_title_and_threads(processes: Processes) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    assert thread.native_id is not None
    before = os.sched_getaffinity(thread.native_id)
    try:
        os.sched_setaffinity(thread.native_id, {max(before)})
        me = next(p for p in processes.scan() if p.pid == os.getpid())
        assert thread.native_id in {t.tid for t in me.threads}
        pinned = next(t for t in me.threads if t.tid == thread.native_id)
        assert pinned.cpus.ids == {max(before)}
        assert me.uid == os.getuid() and me.ppid == os.getppid()
        assert "pytest" in me.title or "python" in me.title
        assert me.threads == processes.threads(me.pid)
        (again,) = processes.read([me.pid])
        assert (again.title, again.start_time) == (me.title, me.start_time)
    finally:
        stop.set()
        thread.join()


def test_the_user_is_the_effective_one_also_of_what_gives_up_root_later(
    processes: Processes, as_root: None
) -> None:
    program = (
        "import os, sys\nprint('up', flush=True)\nsys.stdin.readline()\n"
        "os.seteuid(65534)\nprint('down', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "up\n"
        (one,) = processes.read([process.pid])
        assert one.uid == 0
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "down\n"
        (one,) = processes.read([process.pid])
        assert one.uid == 65534
        assert f"Uid:\t0\t{one.uid}" in pathlib.Path(f"/proc/{process.pid}/status").read_text()
        process.stdin.close()


def test_names_of_users_are_those_of_the_file(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "passwd"
    file.write_text(
        "root:x:0:0::/root:/bin/sh\nllm:x:1001:1001:::\nllm:x:7:7:::\nodd:x:y:1:::\n+\n"
    )
    assert users(file) == {"root": 0, "llm": 1001}
    assert users(tmp_path / "none") == {} and users()["root"] == 0


def test_kernel_threads_only_if_asked_for(processes: Processes) -> None:
    plain = {p.pid for p in processes.scan(threads=False)}
    everything = {p.pid for p in processes.scan(threads=False, kernel=True)}
    assert 2 not in plain
    if pathlib.Path("/proc/2/comm").exists() and os.getpid() != 2:
        assert everything - plain


def test_comm_with_parentheses_and_binary_title(
    processes: Processes, tmp_path: pathlib.Path
) -> None:
    odd = tmp_path / "a) (b c"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([str(odd), "30", "0."]) as child:
        try:
            state = next(p for p in processes.scan() if p.pid == child.pid)
            assert state.comm == "a) (b c"
            assert state.title == f"{odd} 30 0."
        finally:
            child.kill()


def test_vanishing_processes_are_normal(processes: Processes) -> None:
    for _ in range(20):
        children = [subprocess.Popen([sys.executable, "-S", "-c", "1"]) for _ in range(4)]
        processes.scan()
        for child in children:
            child.wait()
        assert processes.read([c.pid for c in children]) == ()


def test_the_child_is_lazy_and_ends_with_us(processes: Processes) -> None:
    me = os.getpid()
    processes.read([me])
    assert not _children("title_child")
    processes.scan()
    assert len(_children("title_child")) == 1
    processes.close()
    assert not _children("title_child")


def _children(word: str) -> list[str]:
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            ppid = path.read_text().rpartition(")")[2].split()[1]
            if ppid == str(os.getpid()) and word in (path.parent / "cmdline").read_text():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def test_meets_new_processes_alone_and_keeps_the_other_titles(processes: Processes) -> None:
    known = {p.pid: p.title for p in processes.scan(threads=False)}
    child = subprocess.Popen([sys.executable, "-c", "input()", "met"], stdin=subprocess.PIPE)
    try:
        assert child.pid in processes.pids()
        # Between fork and exec, and while exec builds the stack, a process has no title of its own.
        (met,) = processes.meet([child.pid, 2])
        while not met.title.endswith("met"):
            (met,) = processes.meet([child.pid, 2])
        assert met.pid == child.pid and met.threads == ()
        (me,) = processes.read([os.getpid()])
        assert me.title == known[os.getpid()] != ""
        assert processes.child_pid is not None
    finally:
        child.communicate(b"\n")


def test_no_answer_in_time_is_a_reason_not_an_empty_title() -> None:
    with Root.live() as root:
        hurried = Processes(root, titles_s=0.0)
        try:
            found = hurried.scan(threads=False)
        finally:
            hurried.close()
    assert hurried.title_reason.startswith("command lines: ")
    assert not any(p.title for p in found) and any(p.pid == os.getpid() for p in found)
