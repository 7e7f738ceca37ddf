"""Writes to cpusets, told by the live kernel's inotify."""

from __future__ import annotations

import asyncio
import os
import pathlib
import subprocess
from collections.abc import Callable, Iterator

import pytest

from nodeagent.daemon.cpusets import MAX_WATCHES, RETRY_S, CpusetWatch
from nodeagent.errors import NodeagentError
from nodeagent.pin import cpuset
from tests.daemon.conftest import Node, Workers, wait_for

Make = Callable[[str], pathlib.Path]


@pytest.fixture
def groups(as_root: None) -> Iterator[tuple[pathlib.Path, Make]]:
    """(where cpusets are mounted, a maker of one below it); all are removed afterwards."""
    try:
        mount = cpuset.find().mount
    except NodeagentError as error:
        pytest.skip(f"no cpuset can be made here: {error}")
    made: list[pathlib.Path] = []

    def make(name: str) -> pathlib.Path:
        path = pathlib.Path(mount) / f"nacw{os.getpid()}{name}"
        path.mkdir()
        made.append(path)
        (path / "cpuset.cpus").write_text(cpus())
        (path / "cpuset.mems").write_text("0")
        return path

    yield pathlib.Path(mount), make
    for path in reversed(made):
        if path.exists():
            remove(path)


def remove(path: pathlib.Path) -> None:
    """As soon as nobody lives there any more."""
    wait_for(lambda: not (path / "cgroup.procs").read_text())
    path.rmdir()


def cpus() -> str:
    return ",".join(map(str, sorted(os.sched_getaffinity(0))))


def write(path: pathlib.Path, text: str) -> None:
    """By another process."""
    subprocess.run(["sh", "-c", f"printf %s '{text}' > '{path}'"], check=True)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def told(body: Callable[[CpusetWatch, Clock, Callable[[], int]], object], root: object) -> None:
    """Runs `body` within a loop: with a watch of `root`, its clock, and how often it called."""
    calls: list[int] = []

    async def run() -> None:
        clock = Clock()
        watch = CpusetWatch(lambda: calls.append(1), clock, [pathlib.Path(str(root))])
        try:
            body(watch, clock, lambda: len(calls))
        finally:
            watch.close()

    asyncio.run(run())


def test_a_write_is_told_to_those_below(groups: tuple[pathlib.Path, Make]) -> None:
    root, make = groups
    ours, other = make("a"), make("b")

    def body(watch: CpusetWatch, clock: Clock, calls: Callable[[], int]) -> None:
        watch.watch(frozenset({f"/{ours.name}/deep/er"}))
        assert not watch.take() and watch.trouble is None
        write(other / "cpuset.cpus", "0")
        assert not watch.take(), "of another cgroup"
        (ours / "cpuset.cpus").read_text()
        assert not watch.take(), "reading is no change"
        write(ours / "cpuset.cpus", "0")
        assert watch.take() and not watch.take()
        watch.watch(frozenset({f"/{other.name}"}))
        write(ours / "cpuset.cpus", cpus())
        assert not watch.take(), "no longer watched"
        write(other / "cpuset.mems", "0")
        assert watch.take()

    told(body, root)


def test_the_loop_is_woken_once_until_it_has_looked(groups: tuple[pathlib.Path, Make]) -> None:
    root, make = groups
    ours = make("a")
    calls: list[int] = []

    async def run() -> None:
        came = asyncio.Event()

        def written() -> None:
            calls.append(1)
            came.set()

        watch = CpusetWatch(written, Clock(), [root])
        watch.watch(frozenset({f"/{ours.name}"}))
        for count in (1, 2):
            for text in ("0", cpus()) * 50:
                (ours / "cpuset.cpus").write_text(text)
            await came.wait()
            await asyncio.sleep(0.05)
            assert len(calls) == count
            came.clear()
            assert watch.take()
        watch.close()
        watch.close()

    asyncio.run(run())


def test_one_that_comes_later_or_again(groups: tuple[pathlib.Path, Make]) -> None:
    root, make = groups
    name = f"nacw{os.getpid()}a"

    def body(watch: CpusetWatch, clock: Clock, calls: Callable[[], int]) -> None:
        watch.watch(frozenset({f"/{name}"}))
        ours = make("a")
        watch.watch(frozenset({f"/{name}"}))
        write(ours / "cpuset.cpus", "0")
        assert not watch.take(), "it was not there, and is looked for now and then"
        clock.now += RETRY_S
        watch.watch(frozenset({f"/{name}"}))
        write(ours / "cpuset.cpus", cpus())
        assert watch.take()
        ours.rmdir()
        again = make("a")
        watch.take()
        clock.now += RETRY_S
        watch.watch(frozenset({f"/{name}"}))
        write(again / "cpuset.cpus", "0")
        assert watch.take()

    told(body, root)


def test_paths_that_lead_nowhere_and_too_many(tmp_path: pathlib.Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "other"
    for folder in (root, outside):
        folder.mkdir()
    (outside / "cpuset.cpus").touch()

    def body(watch: CpusetWatch, clock: Clock, calls: Callable[[], int]) -> None:
        watch.watch(frozenset({"/../other", "/gone", "", "/"}))
        assert (watch.trouble or "") == "" and not watch.take()
        (outside / "cpuset.cpus").write_text("0")
        assert not watch.take(), "above the root: of another namespace"
        for number in range(MAX_WATCHES + 1):
            (root / str(number)).mkdir()
            (root / str(number) / "cpuset.cpus").touch()
        watch.watch(frozenset(map(str, range(MAX_WATCHES + 1))))
        assert str(MAX_WATCHES) in (watch.trouble or "")
        watch.watch(frozenset({"0"}))
        assert (watch.trouble or "") == ""
        (root / "0" / "cpuset.cpus").write_text("1")
        assert watch.take()

    told(body, root)


@pytest.mark.root
@pytest.mark.usefixtures("two_cpus")
def test_a_cpuset_that_shrinks_is_met_without_waiting_for_the_poll(
    groups: tuple[pathlib.Path, Make], node: Node, workers: Workers
) -> None:
    _, make = groups
    box = make("w")
    (box / "cgroup.procs").write_text(str(workers.pid))
    node.interval_s = 60.0
    node.place(workers, "pin.allow = ['threads']\npin.auto = ['threads']\n")
    node.start_actor()
    node.start()
    held = node.status_when(lambda s: bool(s.held) and s.held[0].held).held[0]
    elsewhere = min(os.sched_getaffinity(0) - held.cpus_planned.ids)
    write(box / "cpuset.cpus", str(elsewhere))
    drift = node.event("pin.drift")
    assert f"to {elsewhere} by an unknown author" in drift.message
    write(box / "cpuset.cpus", cpus())
    workers.close()
