"""A real container's CPUs, by its runtime's own call: held, read back, undone; runtimes that
misbehave."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeagent.errors import ActError, NodeagentError, UnavailableError, visible
from nodeagent.model.placement import Consent, Knob, Outcome, SetValue
from nodeagent.pin import calls, cpuset
from nodeagent.pin.actor import Actor
from nodeagent.pin.asked import Asked
from nodeagent.pin.bus import Bus
from nodeagent.pin.containers import ContainerCpus
from tests.pin.boxes import Box, runc
from tests.pin.test_kills import in_part, killed_at, steps

Opener = Callable[..., contextlib.AbstractContextManager[Actor]]
ME = Asked(by="test", why="a test of containers")
ALLOW = frozenset({Consent.CGROUP})
RUNC = frozenset({"runc"})
MOST_STEPS = 60


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with runc(tmp_path / "bundle") as one:
        yield one


def to(box: Box, value: str) -> SetValue:
    return SetValue(
        workload="w", knob=Knob.CONTAINER_CPUS, subject=box.subject, value=value, before=""
    )


def last() -> str:
    return str(max(os.sched_getaffinity(0)))


def every() -> str:
    return f"{min(os.sched_getaffinity(0))}-{last()}"


def test_a_container_is_held_by_its_runtime_and_put_back(
    box: Box, tmp_path: Path, open_actor: Opener
) -> None:
    masks = box.masks()
    with open_actor(tmp_path, allow=ALLOW, runtimes=RUNC) as actor:
        done = actor.perform(to(box, last()), ME)
        assert done.outcome is Outcome.DONE, done.message
        assert done.read_back == last() == box.raw() and set(box.masks()) == {last()}
        assert "was all" in done.message
        again = actor.perform(to(box, last()), ME)
        assert again.outcome is Outcome.DONE and again.journal_id is None
        (undone,) = actor.undo("w", ME)
        assert undone.result.outcome is Outcome.DONE, undone.result.message
        assert undone.result.read_back == "all" and actor.entries == ()
    assert box.raw() == every() and box.masks() == masks


def test_what_the_runtime_set_later_is_respected(
    box: Box, tmp_path: Path, open_actor: Opener
) -> None:
    first = str(min(os.sched_getaffinity(0)))
    with open_actor(tmp_path, allow=ALLOW, runtimes=RUNC) as actor:
        assert actor.perform(to(box, last()), ME).outcome is Outcome.DONE
        subprocess.run(["runc", "update", "--cpuset-cpus", first, box.number], check=True)
        (undone,) = actor.undo(None, ME)
        assert f"was set to {first} by somebody later" in undone.result.message
    assert box.raw() == first


@pytest.mark.parametrize("which", ["act", "undo"])
def test_killed_at_every_step(which: str, box: Box, tmp_path: Path, open_actor: Opener) -> None:
    masks = box.masks()

    def act() -> None:
        with open_actor(tmp_path, allow=ALLOW, runtimes=RUNC) as actor:
            assert actor.perform(to(box, last()), ME).outcome is Outcome.DONE

    def undo() -> None:
        with open_actor(tmp_path, allow=ALLOW, runtimes=RUNC) as actor:
            actor.undo(None, ME)

    seen: set[bool] = set()
    for step in steps(MOST_STEPS):
        if which == "undo":
            act()
        killed = killed_at(step, act if which == "act" else undo)
        with open_actor(tmp_path, allow=ALLOW, runtimes=RUNC) as actor:
            actor.recover()
            assert all(e.state == "done" for e in actor.entries), step
            held = box.raw() == last()
            assert held == bool(actor.entries), step
            assert set(box.masks()) == {last()} if held else box.masks() == masks, step
            seen.add(held)
            actor.undo(None, ME)
            assert actor.entries == ()
        # On cgroup v2 nothing is written there before the first act.
        assert box.raw() in ("", every()) and box.masks() == masks, step
        if not killed:
            break
    assert in_part() or (not killed and step > 5 and seen == {True, False})


def test_a_call_that_outlives_its_actor_is_waited_for(
    box: Box, tmp_path: Path, open_actor: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The actor is killed while the runtime's update is stopped just after its start; the next one
    begins, and only then the update goes on."""
    stopping = tmp_path / "runc"
    stop = 'case "$*" in *update*) kill -STOP $$;; esac'
    stopping.write_text(f'#!/bin/sh\n{stop}\nexec {calls.find("runc")} "$@"\n')
    stopping.chmod(0o755)
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(calls, "find", lambda name, folders=(): str(stopping))
        with open_actor(tmp_path, allow=ALLOW, runtimes=RUNC) as actor:
            actor.perform(to(box, last()), ME)
        os._exit(0)
    while not (call := stopped(b"update", box.number.encode())):
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "it ended without a call"
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert box.raw() != last()
    going_on = threading.Timer(0.3, os.kill, (call, signal.SIGCONT))
    going_on.start()
    with open_actor(tmp_path, allow=ALLOW, runtimes=RUNC) as actor:
        actor.recover()
        going_on.join()
        assert box.raw() == last()
        (entry,) = actor.entries
        assert entry.state == "done"
        actor.undo(None, ME)
    assert box.raw() == every()


def stopped(*words: bytes) -> int:
    """The process with these arguments that has stopped itself; 0: none has yet."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if {*words} <= {*path.read_bytes().split(b"\0")}:
                state = path.with_name("stat").read_text().rpartition(")")[2].split()[0]
                if state == "T":
                    return int(path.parent.name)
    return 0


def test_a_call_that_never_ends_is_told_and_leaves_the_act_open() -> None:
    # A number of its own: other tests let programs sleep, too.
    words = ("sleep", f"600.{os.getpid()}")
    with subprocess.Popen(words) as process:
        try:
            # Within execve(2) a process has no arguments yet.
            while not Path(f"/proc/{process.pid}/cmdline").read_bytes():
                time.sleep(0.001)
            with pytest.raises(ActError, match=f"process {process.pid} .* has not ended in 0.1 s"):
                calls.await_others(*words, deadline_s=0.1)
        finally:
            process.kill()
    calls.await_others(*words)


def test_a_runtime_that_is_not_named_is_not_called(
    box: Box, tmp_path: Path, open_actor: Opener
) -> None:
    before = box.raw()
    with open_actor(tmp_path, allow=ALLOW) as actor:
        done = actor.perform(to(box, last()), ME)
        assert done.outcome is Outcome.REFUSED and "[pin] runtimes" in done.message
        assert actor.entries == ()
    assert box.raw() == before


def test_cpus_that_are_not_there_are_refused(box: Box, tmp_path: Path, open_actor: Opener) -> None:
    before, beyond = box.raw(), str((os.cpu_count() or 1) + 7)
    with open_actor(tmp_path, allow=ALLOW, runtimes=RUNC) as actor:
        done = actor.perform(to(box, beyond), ME)
        assert done.outcome is Outcome.REVERTED and f"{beyond} is asked for" in done.message
        assert actor.entries == ()
    assert box.raw() == before


def test_a_container_that_ended_is_gone(tmp_path: Path, open_actor: Opener) -> None:
    with (
        runc(tmp_path / "bundle") as box,
        open_actor(tmp_path, allow=ALLOW, runtimes=RUNC) as actor,
    ):
        assert actor.perform(to(box, last()), ME).outcome is Outcome.DONE
        subprocess.run(["runc", "delete", "-f", box.number], check=True)
        (undone,) = actor.undo(None, ME)
        assert undone.result.outcome is Outcome.GONE and actor.entries == ()
        assert actor.perform(to(box, last()), ME).outcome is Outcome.GONE


# Runtimes that misbehave.


def program(folder: Path, text: str) -> list[str]:
    path = folder / "runtime"
    path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{text}\n")
    path.chmod(0o755)
    return [str(path), "update"]


def call(argv: list[str], deadline_s: float = 20.0) -> None:
    calls.run(argv, Bus, deadline_s)


def needs_no_systemd() -> None:
    if Path("/proc/1/comm").read_text().strip() == "systemd" and os.geteuid() == 0:
        pytest.skip("systemd starts it here, and keeps what it says in its journal")


def test_one_that_fails_is_told_in_its_own_last_words(tmp_path: Path) -> None:
    needs_no_systemd()
    text = "sys.stderr.write('first\\nno such\\x1b[31m box\\n'); sys.exit(125)"
    with pytest.raises(ActError) as told:
        call(program(tmp_path, text))
    assert str(told.value) == r"runtime update ended with status 125: no such\x1b[31m box"


def test_one_that_says_too_much_is_cut(tmp_path: Path) -> None:
    needs_no_systemd()
    with pytest.raises(ActError) as told:
        call(program(tmp_path, "os.write(2, os.urandom(1 << 22)); sys.exit(1)"))
    assert len(str(told.value)) < 2 * calls.MAX_SHOWN
    assert visible(str(told.value)) == str(told.value)


@pytest.mark.parametrize("text", ["time.sleep(600)", "os.close(2); time.sleep(600)",
                                  "while True: os.write(2, b'x' * 4096)"])  # fmt: skip
def test_one_that_never_ends_is_stopped(text: str, tmp_path: Path) -> None:
    with pytest.raises(ActError, match=r"had not ended after 0.5 s and was stopped"):
        call(program(tmp_path, text), 0.5)


def test_one_whose_child_lives_on_holds_nobody_up(tmp_path: Path) -> None:
    needs_no_systemd()
    file = tmp_path / "child"
    text = (
        f"pid = os.fork()\nif pid: open({str(file)!r}, 'w').write(str(pid))\nelse: time.sleep(600)"
    )
    begun = time.monotonic()
    call(program(tmp_path, text), 300.0)
    assert time.monotonic() - begun < 250.0, "it was not waited for"
    os.kill(int(file.read_text()), signal.SIGKILL)


def test_one_that_ends_well_says_nothing(tmp_path: Path) -> None:
    call(program(tmp_path, "sys.stdout.write('x' * 100000)"))


def test_a_program_that_others_may_change_is_not_run(tmp_path: Path) -> None:
    path, folders = Path(program(tmp_path, "")[0]), (str(tmp_path),)
    if os.geteuid() == 0:
        assert calls.find("runtime", folders) == str(path)
    path.chmod(path.stat().st_mode | stat.S_IWOTH)
    with pytest.raises(UnavailableError, match="may be changed by others than root"):
        calls.find("runtime", folders)
    with pytest.raises(NodeagentError, match="is in none of"):
        calls.find("nonesuch", folders)


# Cgroups that have only a container's name.


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Callable[[str, int], Path]]:
    """Makes a cgroup NAME below one of a user's, with a process in it; all gone afterwards."""
    tree = cpuset.find()
    if os.geteuid() != 0 or not os.access(tree.mount, os.W_OK):
        pytest.skip("needs root and a cpuset tree that can be written")
    made: list[Path] = []
    processes: list[subprocess.Popen[bytes]] = []

    def make(name: str, owner: int) -> Path:
        above = tree.mount / f"test-user-{os.getpid()}-{len(made)}"
        group = above / name
        made.extend((above, group))
        for folder in (above, group):
            folder.mkdir()
            if tree.version == 2 and folder == above:
                (folder / "cgroup.subtree_control").write_text("+cpuset")
            if tree.version == 1:
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (folder / file).write_text((folder.parent / file).read_text())
        os.chown(above, owner, -1)
        processes.append(subprocess.Popen(["sleep", "600"]))
        (group / "cgroup.procs").write_text(str(processes[-1].pid))
        return group

    yield make
    for process in processes:
        process.kill()
        process.wait()
    for folder in reversed(made):
        for _ in range(500):
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.01)


def recording(folder: Path, text: str) -> Path:
    """A program `docker` that writes down how it is called; the file that it writes."""
    folder.mkdir()
    told = folder / "told"
    (folder / "docker").write_text(f'#!/bin/sh\necho "$@" >> {told}\n{text}\n')
    (folder / "docker").chmod(0o755)
    return told


DOCKER = frozenset({"docker"})


def test_a_users_cgroup_with_a_containers_name_gets_no_runtime_called(
    fake: Callable[[str, int], Path], tmp_path: Path
) -> None:
    needs_no_systemd()
    told, number = recording(tmp_path / "bin", ""), "ab" * 32
    group = fake(f"docker-{number}.scope", 1000)
    before = (group / "cpuset.cpus").read_text()
    door = ContainerCpus(DOCKER, Bus, folders=[str(told.parent)])
    with pytest.raises(ActError, match="user 1000's, who may name what is below it at will"):
        door.check(f"docker:{number}", last())
    with pytest.raises(ActError, match="root's runtime is not asked"):
        door.write(f"docker:{number}", last())
    assert not told.exists() and (group / "cpuset.cpus").read_text() == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"echo {os.getpid()}", f"its process is {os.getpid()}, which is in"),
        ("echo 'Error: no such container' >&2; exit 1", "ended with status 1: Error: no such"),
        ("echo", "saw nothing, expected a number"),
        ("echo '{}'", "saw {}, expected a number"),
        ("echo 0", "does not run: docker names no process of it"),
    ],
)
def test_a_container_that_its_runtime_does_not_know_there_is_not_set(
    text: str, words: str, fake: Callable[[str, int], Path], tmp_path: Path
) -> None:
    needs_no_systemd()
    told, number = recording(tmp_path / "bin", text), "cd" * 32
    group = fake(f"docker-{number}.scope", 0)
    before = (group / "cpuset.cpus").read_text()
    door = ContainerCpus(DOCKER, Bus, folders=[str(told.parent)])
    with pytest.raises(ActError) as error:
        door.check(f"docker:{number}", last())
    assert words in str(error.value)
    assert told.read_text().split()[0] == "inspect" and "update" not in told.read_text()
    assert (group / "cpuset.cpus").read_text() == before


def test_the_real_one_is_found_beside_a_fake(
    box: Box, fake: Callable[[str, int], Path], tmp_path: Path, open_actor: Opener
) -> None:
    group = fake(box.number, 1000)
    before = (group / "cpuset.cpus").read_text()
    with open_actor(tmp_path, allow=ALLOW, runtimes=RUNC) as actor:
        done = actor.perform(to(box, last()), ME)
        assert done.outcome is Outcome.DONE, done.message
        assert box.raw() == last() and (group / "cpuset.cpus").read_text() == before
        assert actor.undo(None, ME)[0].result.outcome is Outcome.DONE
