"""The actor's own fence: a process in a kubelet's or a batch system's cgroup is touched by no act,
whoever asks; what was done before it came there is undone all the same."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import (
    Action,
    Consent,
    MigrateMemory,
    MoveToCpuset,
    Outcome,
    SetAffinity,
    Target,
)
from nodeagent.pin.actor import Actor
from nodeagent.pin.asked import Asked

Opener = Callable[..., contextlib.AbstractContextManager[Actor]]
Two = tuple[CpuSet, CpuSet]
ME = Asked(by="test", why="a test of managers")
PATHS = {
    "the kubelet": "kubepods/burstable/podtest-{}",
    "Slurm": "slurm/uid_0/job_{}",
    "HTCondor": "htcondor/condor_execute_slot1_{}@node",
    "PBS": "pbs_jobs.service/jobs/{}.head",
    "Nomad": "nomad.slice/share.slice/{}.rank0.scope",
    "LSF": "lsf/test/job.{}",
}


class Process(Protocol):
    """conftest.Victim."""

    pid: int

    @property
    def target(self) -> Target: ...
    def masks(self) -> dict[int, str]: ...


def hierarchy() -> Path:
    """One that can hold any process: cgroup v2's, or the freezer's of v1."""
    root = Path("/sys/fs/cgroup")
    for at in (root, root / "freezer"):
        if (at / "cgroup.procs").exists() and os.access(at, os.W_OK) and os.geteuid() == 0:
            return at
    pytest.skip("needs root and a cgroup tree that can be written: tests/vm runs it")


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A cgroup as that manager names it; the folders that were made for it are gone afterwards."""
    root = hierarchy()
    made = root / PATHS[request.param].format(os.getpid())
    fresh = [p for p in (made, *made.parents) if not p.exists()]
    made.mkdir(parents=True)
    yield made
    for pid in (made / "cgroup.procs").read_text().split():
        (root / "cgroup.procs").write_text(pid)
    for folder in fresh:
        folder.rmdir()


def acts(process: Process, cpus: CpuSet) -> tuple[Action, ...]:
    return (
        SetAffinity(workload="w", target=process.target, cpus=cpus, before=CpuSet()),
        MoveToCpuset(
            workload="w",
            target=process.target,
            cpuset=f"/nodeagent/test-managers-{os.getpid()}",
            cpus=cpus,
            mems=CpuSet.of([0]),
            before="/",
        ),
        MigrateMemory(workload="w", target=process.target, to=0, nodes=CpuSet.of([0]), before=""),
    )


@pytest.mark.parametrize(("group", "name"), [(n, n) for n in PATHS], indirect=["group"])
def test_no_act_of_any_class_touches_it(
    group: Path,
    name: str,
    tmp_path: Path,
    open_actor: Opener,
    victim: Callable[..., Process],
    two_cpus: Two,
) -> None:
    process = victim(2)
    before = process.masks()
    (group / "cgroup.procs").write_text(str(process.pid))
    with open_actor(tmp_path, allow=frozenset(Consent)) as actor:
        for action in acts(process, two_cpus[1]):
            done = actor.perform(action, ME)
            assert done.outcome is Outcome.REFUSED, done
            assert f"{name} owns and places" in done.message, done.message
        assert actor.entries == () and process.masks() == before
    where = Path(f"/proc/{process.pid}/cgroup").read_text()
    assert str(group).rpartition("/")[2] in where, "it was not moved"


@pytest.mark.parametrize("group", ["Slurm"], indirect=True)
def test_what_was_done_before_it_came_there_is_undone(
    group: Path,
    tmp_path: Path,
    open_actor: Opener,
    victim: Callable[..., Process],
    two_cpus: Two,
) -> None:
    process = victim(2)
    before = process.masks()
    pin = acts(process, two_cpus[1])[0]
    with open_actor(tmp_path, allow=frozenset({Consent.THREADS})) as actor:
        assert actor.perform(pin, ME).outcome is Outcome.DONE
        (group / "cgroup.procs").write_text(str(process.pid))
        (undone,) = actor.undo(None, ME)
        assert undone.result.outcome is Outcome.DONE, undone.result.message
    assert process.masks() == before
