"""Each write of each act made to fail, for real, with what a kernel may say: the host is as before,
the sentence says why, and what stays open can be undone later."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from nodeagent.model.actions import Result
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Action, ActionResult, Outcome, SetValue, Target
from nodeagent.pin import cpuset
from nodeagent.pin.client import ActorClient
from tests.pin.places import BIND, FILES, READ_ONLY, REMOUNT, Place, mount, own_namespaces
from tests.pin.test_kills import action_of, state, tree_for

ERRNOS = (errno.EBUSY, errno.EINVAL, errno.ENOSPC, errno.EIO, errno.EPERM)
MOST_CALLS = 40
ALLOW = ("--allow", "threads,cgroup,irq,host")


class ActorProcess(Protocol):
    """conftest.ActorProcess."""

    socket: Path

    def kill(self) -> None: ...
    def terminate(self) -> str: ...


class Victim(Protocol):
    """conftest.Victim."""

    pid: int

    @property
    def target(self) -> Target: ...
    def masks(self) -> dict[int, str]: ...
    def ask(self, text: str) -> str: ...


Start = Callable[..., ActorProcess]


@dataclass(slots=True)
class Faults:
    """What the preloaded library is told."""

    library: Path
    file: Path
    round: int = 0

    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "NODEAGENT_FAULT": str(self.file)}

    def fail(self, nth: int, number: int, prefix: str) -> None:
        self.round += 1
        self.hit.unlink(missing_ok=True)
        self.file.write_text(f"{self.round} {nth} {number} {prefix}\n")

    def none(self) -> bool:
        """No fault any more; whether there had been one."""
        self.file.unlink()
        return self.hit.exists()

    @property
    def hit(self) -> Path:
        return self.file.with_name(self.file.name + ".hit")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here: apt-get install gcc")
    made = tmp_path_factory.mktemp("fault") / "fault.so"
    source = Path(__file__).with_name("fault.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", made, source], check=True)
    return made


@pytest.fixture
def faults(library: Path, tmp_path: Path) -> Faults:
    return Faults(library, tmp_path / "fault")


def perform(actor: ActorProcess, action: Action) -> ActionResult:
    async def ask() -> ActionResult:
        client = ActorClient(actor.socket)
        try:
            return await client.perform(action, why="a test of faults")
        finally:
            await client.close()

    return asyncio.run(ask())


def undo(actor: ActorProcess) -> tuple[Result, ...]:
    async def ask() -> tuple[Result, ...]:
        client = ActorClient(actor.socket)
        try:
            return await client.undo(None, why="a test of faults")
        finally:
            await client.close()

    return asyncio.run(ask())


def entries(actor: ActorProcess) -> int:
    async def ask() -> int:
        client = ActorClient(actor.socket)
        try:
            return len(await client.journal())
        finally:
            await client.close()

    return asyncio.run(ask())


def sweep(
    actor: ActorProcess,
    faults: Faults,
    prefix: str,
    action: Action,
    now: Callable[[], object],
) -> dict[int, int]:
    """Every call of the act and of its undo fails once with every errno; how many of each."""
    before = now()
    counts: dict[int, int] = {}
    for number in ERRNOS:
        for nth in range(1, MOST_CALLS):
            faults.fail(nth, number, prefix)
            done = perform(actor, action)
            hit = faults.none()
            if done.outcome is Outcome.DONE:
                assert entries(actor) == 1
            else:
                assert hit and done.outcome in (Outcome.REFUSED, Outcome.REVERTED), done
                assert now() == before and entries(actor) == 0, (nth, number, done)
                assert done.message and "Errno" not in done.message
                assert perform(actor, action).outcome is Outcome.DONE
            assert now() != before
            faults.fail(nth, number, prefix)
            undone = undo(actor)
            hit = faults.none() or hit
            if any(r.outcome == Outcome.FAILED for r in undone):
                assert entries(actor) == 1, "it can be undone later"
                assert all(r.outcome == Outcome.DONE for r in undo(actor))
            assert now() == before and entries(actor) == 0, (nth, number, undone)
            if not hit:
                break
            counts[number] = nth
        assert not hit
    return counts


@pytest.mark.parametrize("kind", sorted(FILES))
def test_every_write_of_a_value_fails(kind: str, faults: Faults, start_actor: Start) -> None:
    with FILES[kind]() as place:
        assert place.file is not None
        actor = start_actor(*ALLOW, **faults.environment())
        try:
            path = os.path.realpath(place.file)
            assert sweep(actor, faults, path, place.action, place.raw) == dict.fromkeys(ERRNOS, 1)
        finally:
            actor.kill()


@pytest.mark.parametrize("kind", ["affinity", "cpuset"])
def test_every_write_of_a_pin_fails(
    kind: str,
    faults: Faults,
    start_actor: Start,
    victim: Callable[..., Victim],
    two_cpus: tuple[CpuSet, CpuSet],
) -> None:
    tree = tree_for(kind)
    name = f"test-faults-{os.getpid()}"
    process = victim(2)
    actor = start_actor(*ALLOW, **faults.environment())
    prefix = "affinity" if tree is None else str(tree.mount)
    action = action_of(kind, process.target, two_cpus[1], name)
    counts = sweep(
        actor, faults, prefix, action, lambda: state(process, tree, f"/nodeagent/{name}")
    )
    assert set(counts) == set(ERRNOS) and min(counts.values()) >= 3


@contextlib.contextmanager
def read_only(path: str) -> Iterator[None]:
    with own_namespaces():
        mount(path, path, None, BIND)
        mount("none", path, None, BIND | REMOUNT | READ_ONLY)
        yield


@pytest.mark.parametrize("kind", ["irq", "irq-default", "workqueue", "wake-latency",
                                  "numa-balancing"])  # fmt: skip
def test_a_read_only_mount_is_said_with_the_remedy(kind: str, start_actor: Start) -> None:
    with FILES[kind]() as place:
        assert place.file is not None
        before = place.raw()
        with read_only(str(place.file.parent)):
            actor = start_actor(*ALLOW)
            done = perform(actor, place.action)
            actor.kill()
        assert done.outcome is Outcome.REFUSED and "Read-only file system" in done.message
        assert "ReadWritePaths" in done.message or "sysctl -w" in done.message
        assert place.raw() == before


def test_a_read_only_cgroup_tree_is_said(
    start_actor: Start, victim: Callable[..., Victim], two_cpus: tuple[CpuSet, CpuSet]
) -> None:
    tree = tree_for("cpuset")
    assert tree is not None
    process = victim(1)
    before = (process.masks(), cpuset.path_of(tree, process.pid))
    action = action_of("cpuset", process.target, two_cpus[1], f"test-ro-{os.getpid()}")
    with read_only(str(tree.mount)):
        actor = start_actor(*ALLOW)
        done = perform(actor, action)
        assert entries(actor) == 0
        actor.kill()
    assert done.outcome is Outcome.REFUSED and "read-only" in done.message.lower()
    assert (process.masks(), cpuset.path_of(tree, process.pid)) == before


def unprivileged(place: Place, start_actor: Start, tmp_path: Path) -> ActionResult:
    for folder in (tmp_path / "run", tmp_path / "state"):
        folder.mkdir(exist_ok=True)
    prefix = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    actor = start_actor(*ALLOW, prefix=prefix)
    action: SetValue = place.action
    done = perform(actor, action)
    actor.kill()
    return done


@pytest.mark.parametrize(("kind", "right"), [("rps", "CAP_NET_ADMIN"), ("xps", "CAP_NET_ADMIN"),
                                             ("numa-balancing", "CAP_SYS_ADMIN")])  # fmt: skip
def test_a_capability_that_is_missing_is_named(
    kind: str, right: str, start_actor: Start, tmp_path: Path
) -> None:
    """As root without capabilities: the kernel asks for one besides the file's mode."""
    with FILES[kind]() as place:
        before = place.raw()
        done = unprivileged(place, start_actor, tmp_path)
        assert done.outcome is Outcome.REFUSED and right in done.message
        assert place.raw() == before


@pytest.mark.parametrize("kind", ["irq", "irq-default", "workqueue", "wake-latency"])
def test_what_the_files_mode_allows_needs_no_capability(
    kind: str, start_actor: Start, tmp_path: Path
) -> None:
    with FILES[kind]() as place:
        done = unprivileged(place, start_actor, tmp_path)
        assert done.outcome is Outcome.DONE, done.message
