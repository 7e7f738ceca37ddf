"""How soon the guard knows, and what it costs whom: births and moves to the daemon's side.

Latency is taken from the kernel's own clock in the record to the reader that was woken; it holds
on a machine that has a CPU to spare, and tells of one that has not.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

from row import Row, quantile

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.notice import Kind
from nodeagent.probe import guarding
from nodeagent.probe.notices import Notices
from nodeagent.rpc.client import NodeClient

BIN = pathlib.Path(sys.executable).parent
TARGET_MS = 50
FORKS = "import os, sys\nfor _ in range(int(sys.argv[1])):\n    pid = os.fork()\n    if not pid:\n        os._exit(0)\n    os.waitpid(pid, 0)"  # noqa: E501
BIRTHS = """
import threading, time
while True:
    thread = threading.Thread(target=time.sleep, args=(0,))
    thread.start()
    thread.join()
"""


def rows(quick: bool) -> Iterator[Row]:
    """Notice of a birth and of a move; what a fork pays."""
    description, fds = guarding.load({"isolated": "full"})
    if not description["available"]:
        yield Row(name="guard.notice", value=None, unit="ms", note=description["reason"])
        return
    notices = Notices.from_fds(description, [os.dup(fd) for fd in fds])
    try:
        yield from latencies(notices, 50 if quick else 300)
        yield storm(notices)
    finally:
        notices.close()
        guarding.unload()
    yield from costs(500 if quick else 2000, 3 if quick else 7)
    with tempfile.TemporaryDirectory(prefix="ndb-") as folder:
        yield from put_right(pathlib.Path(folder), 10 if quick else 40)


def latencies(notices: Notices, times: int) -> Iterator[Row]:
    """p99 of both kinds."""
    here = sorted(os.sched_getaffinity(0))
    born: list[float] = []
    moved: list[float] = []
    child = subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(.001)"])
    try:
        notices.watch({os.getpid(): None, child.pid: CpuSet.of([here[-1]])})
        os.sched_setaffinity(child.pid, {here[-1]})
        for _ in range(times):
            noticed(notices)
            thread = threading.Thread(target=time.sleep, args=(0,))
            thread.start()
            born += waited(notices, Kind.FORK)
            thread.join()
        for _ in range(times if len(here) > 1 else 0):
            noticed(notices)
            os.sched_setaffinity(child.pid, {here[0]})
            moved += waited(notices, Kind.MOVED)
            os.sched_setaffinity(child.pid, {here[-1]})
    finally:
        child.kill()
        child.wait()
    for name, found in (("guard.notice", born), ("guard.notice_moved", moved)):
        yield Row(
            name=name,
            value=round(quantile(found, 0.99), 3) if found else None,
            unit="ms",
            target=f"<= {TARGET_MS}",
            note=f"p99 of {len(found)} of {times}; p50 {quantile(found, 0.5):.3f}"
            if found
            else "one CPU",
        )


def noticed(notices: Notices) -> None:
    """Takes what is left."""
    time.sleep(0.002)
    notices.take()


def waited(notices: Notices, kind: Kind) -> list[float]:
    """Milliseconds from the record to here; nothing when none of that kind came in a second."""
    fd = notices.fileno()
    assert fd is not None
    end = time.monotonic() + 1
    while time.monotonic() < end:
        if select.select([fd], [], [], 0.1)[0]:
            now = time.monotonic_ns()
            found = notices.take()
            if kind in found.kinds and found.first_ns is not None:
                return [(now - found.first_ns) / 1e6]
    return []


def put_right(folder: pathlib.Path, times: int) -> Iterator[Row]:
    """From a stranger's sched_setaffinity until a turn has decided, and until the mask is back,
    through daemon and actor: the turn that sees it, the journal asked whether a person undid it,
    the turn that decides, the act. One process each time, for of each author one change is put
    right; the poll comes once a minute."""
    names, here = ("guard.decided", "guard.put_right"), sorted(os.sched_getaffinity(0))
    if os.geteuid() != 0 or len(here) < 2:
        for name in names:
            yield Row(name=name, value=None, unit="ms", note="needs root and two CPUs")
        return
    run_dir = folder / "run"
    (folder / "n.toml").write_text(
        f'daemon.run_dir = "{run_dir}"\ndaemon.state_dir = "{folder / "state"}"\n'
        "daemon.interval_s = 60.0\npin.allow = ['threads']\npin.auto = ['threads']\n"
        'place.workloads = "w.toml"\nprobe.enabled = true\n'
    )
    (folder / "w.toml").write_text(
        '[[workload]]\nname = "w"\nkind = "custom"\ncpus = 1\nsharing = "shared"\n'
        f'match = {{ cmdline = "{folder.name}$" }}\n'
    )
    began: dict[int, int] = {}
    back: list[float] = []
    decided: list[float] = []
    with contextlib.ExitStack() as stack:
        for argv in (
            ["nodeagent-actor", "--run-dir", run_dir, "--state-dir", folder / "a",
             "--allow", "threads"],
            ["nodeagentd", "--config", folder / "n.toml"],
        ):  # fmt: skip
            stack.callback(ended, started(BIN / str(argv[0]), *argv[1:]))
            time.sleep(1.5)
        for _ in range(times):
            code = "import time\nwhile True: time.sleep(.001)"
            one = started(sys.executable, "-c", code, folder.name)
            if until(lambda masks: len(masks) == 1, one.pid):
                home = os.sched_getaffinity(one.pid)
                # The turns of the beginning are over, as a rule.
                time.sleep(1.0)
                began[one.pid] = time.time_ns()
                os.sched_setaffinity(one.pid, {here[0] if here[0] not in home else here[-1]})
                if until(home.__eq__, one.pid):
                    back.append((time.time_ns() - began[one.pid]) / 1e6)
            ended(one)
        with NodeClient(str(run_dir / "api.sock")) as client:
            for said in client.events():
                pid = int(said.subject.rpartition(" ")[2]) if said.kind == "pin.drift" else 0
                if pid in began:
                    decided.append((said.at_ns - began[pid]) / 1e6)
    for name, found in zip(names, (decided, back), strict=True):
        yield Row(
            name=name,
            value=round(quantile(found, 0.99), 1) if found else None,
            unit="ms",
            target=f"<= {TARGET_MS}",
            note=f"p99 of {len(found)} of {times}; p50 {quantile(found, 0.5):.1f}; "
            f"{os.getloadavg()[0]:.0f} wanted to run on {len(here)} CPUs"
            if found
            else "nothing was put right",
        )


def started(*argv: object) -> subprocess.Popen[bytes]:
    """Without a word."""
    quiet = subprocess.DEVNULL
    return subprocess.Popen([str(a) for a in argv], stdout=quiet, stderr=quiet)


def ended(process: subprocess.Popen[bytes]) -> None:
    """By SIGTERM, else by SIGKILL."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def until(holds: Callable[[set[int]], bool], pid: int) -> bool:
    """Looks at its mask every 0.2 ms, for ten seconds."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if holds(os.sched_getaffinity(pid)):
            return True
        time.sleep(0.0002)
    return False


def storm(notices: Notices) -> Row:
    """CPU time of a look for each of 2,000 births a look."""
    subject = subprocess.Popen([sys.executable, "-c", BIRTHS])
    try:
        notices.watch({subject.pid: None})
        notices.take()
        before, looks = notices.count(Kind.FORK), 0
        began, end = time.process_time_ns(), time.monotonic() + 2
        while time.monotonic() < end:
            time.sleep(0.05)
            notices.take()
            looks += 1
        spent = time.process_time_ns() - began
        births = notices.count(Kind.FORK) - before
    finally:
        subject.kill()
        subject.wait()
    return Row(
        name="guard.look",
        value=round(spent / looks / 1000, 1),
        unit="us/look",
        target="<= 500",
        note=f"20 looks a second under {births / 2:.0f} births a second",
    )


def costs(forks: int, rounds: int) -> Iterator[Row]:
    """CPU time of a fork and its end by a stranger, with and without the programs, in turn."""
    without: list[float] = []
    beside: list[float] = []
    for _ in range(rounds):
        without.append(per_fork(forks))
        description, fds = guarding.load({"isolated": "full"})
        notices = Notices.from_fds(description, [os.dup(fd) for fd in fds])
        notices.watch({os.getpid(): None})
        beside.append(per_fork(forks))
        notices.close()
        guarding.unload()
    yield Row(
        name="guard.fork_of_a_stranger",
        value=round(min(beside), 2),
        unit="us",
        peer="no programs",
        peer_value=round(min(without), 2),
        target="<= 1.1x",
    )


def per_fork(forks: int) -> float:
    """Microseconds of CPU time."""
    before = os.times()
    subprocess.run([sys.executable, "-c", FORKS, str(forks)], check=True)
    after = os.times()
    spent = after.children_user + after.children_system
    return (spent - before.children_user - before.children_system) / forks * 1e6
