"""CPUs that another file's workload is pinned to are not given a second time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.model.actions import JournalEntry
from nodeagent.model.cgroup import container_of
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import (
    Match,
    Placement,
    ProcessState,
    Sharing,
    ThreadState,
    Workload,
)
from nodeagent.place.planner import plan
from nodeagent.place.taken import without_taken
from tests.place.machines import machine


def process(pid: int, title: str, cpus: str, start: int = 7) -> ProcessState:
    return ProcessState(
        pid=pid,
        start_time=start,
        comm=title,
        title=title,
        cgroup="/",
        threads=(ThreadState(tid=pid, comm=title, cpus=CpuSet.parse(cpus)),),
    )


def entry(pid: int, workload: str, cpus: str, start: int = 7) -> JournalEntry:
    return JournalEntry(
        id=12,
        act="set_affinity",
        state="done",
        workload=workload,
        pid=pid,
        start_time=start,
        before=CpuSet.parse("0-15"),
        cpus=CpuSet.parse(cpus),
        cpuset="",
        at_ns=1,
        by="bob (pid 9)",
        why="place apply",
    )


def workload(name: str, cpus: int = 4, **more: object) -> Workload:
    row = Workload(name=name, kind="custom", match=Match(title=name), cpus=cpus)
    return replace(row, **more)  # type: ignore[arg-type]  # fields of Workload, by name


MACHINE = machine(cores=16)
OURS = (workload("ours"), workload("more", unit=None))


def planned(*workloads: Workload, processes: tuple[ProcessState, ...] = ()) -> Placement:
    return plan(MACHINE, workloads, processes)


def test_an_exclusive_workload_is_refused_and_told_whose_they_are() -> None:
    before = planned(*OURS)
    taken = before.placed[0].cpus
    theirs = process(33, "theirs", str(taken))
    after = without_taken(before, OURS, (theirs,), (entry(33, "theirs", str(taken)),))
    assert [p.workload for p in after.placed] == ["more"]
    (refused,) = after.refused
    assert refused.workload == "ours"
    assert "process 33 of workload theirs" in refused.reason and "act 12" in refused.reason
    assert "by bob (pid 9)" in refused.reason
    assert "nodeagentctl place release theirs" in refused.would_fit_if


@pytest.mark.parametrize(
    ("what", "pid", "start", "name", "title"),
    [
        ("the process has ended", 34, 7, "theirs", "theirs"),
        ("its number is another's now", 33, 8, "theirs", "theirs"),
        ("the workload was renamed: this file matches the process", 33, 7, "old-name", "ours"),
    ],
)
def test_who_does_not_count(what: str, pid: int, start: int, name: str, title: str) -> None:
    before = planned(*OURS)
    taken = str(before.placed[0].cpus)
    after = without_taken(
        before, OURS, (process(33, title, taken),), (entry(pid, name, taken, start),)
    )
    assert after == before, what


def test_another_files_workload_of_the_same_name_counts_too() -> None:
    """Two files may both have a rank0, each with a process of its own."""
    before = planned(*OURS)
    taken = before.placed[0].cpus
    theirs = process(33, "theirs", str(taken))
    after = without_taken(before, OURS, (theirs,), (entry(33, "ours", str(taken)),))
    assert [p.workload for p in after.placed] == ["more"]
    assert "this file's ours does not match that process" in after.refused[0].reason
    assert after.refused[0].would_fit_if == "it were undone: nodeagentctl undo 12"


def test_no_pool_is_laid_over_another_files_exclusive_pus() -> None:
    shared = (workload("api", sharing=Sharing.SHARED),)
    before = planned(*shared)
    taken = str(before.placed[0].cpus)
    theirs = replace(entry(33, "theirs", taken), exclusive=True)
    # The daemon reads the threads of its own workloads only.
    for process_ in (process(33, "theirs", taken), replace(process(33, "t", taken), threads=())):
        after = without_taken(before, shared, (process_,), (theirs,))
        assert not after.placed
        assert "of exclusive workload theirs is pinned (act 12" in after.refused[0].reason


def test_a_pin_that_somebody_undid_holds_no_cpu() -> None:
    before = planned(*OURS)
    taken = str(before.placed[0].cpus)
    gone = process(33, "theirs", "0-15")
    assert without_taken(before, OURS, (gone,), (entry(33, "theirs", taken),)) == before


def test_a_pool_may_be_shared_and_a_unit_goes_whole() -> None:
    shared = (workload("api", sharing=Sharing.SHARED),)
    before = planned(*shared)
    taken = str(before.placed[0].cpus)
    theirs = process(33, "theirs", taken)
    assert without_taken(before, shared, (theirs,), (entry(33, "theirs", taken),)) == before
    unit = (workload("a", unit="u"), workload("b", unit="u"), workload("c"))
    whole = planned(*unit)
    b = whole.of("b")
    assert b is not None
    after = without_taken(
        whole, unit, (process(33, "theirs", str(b.cpus)),), (entry(33, "theirs", str(b.cpus)),)
    )
    assert [p.workload for p in after.placed] == ["c"]
    assert [r.workload for r in after.refused] == ["a", "b"]
    assert "unit u is placed whole or not at all" in after.refused[0].reason


def test_a_unit_that_another_file_narrowed_counts_too() -> None:
    before = planned(*OURS)
    taken = str(before.placed[0].cpus)
    act = replace(entry(0, "theirs", ""), knob="unit-cpus", subject="their.service", value=taken)
    after = without_taken(before, OURS, (), (act,))
    assert [p.workload for p in after.placed] == ["more"]
    assert "their.service of workload theirs" in after.refused[0].reason
    # Not where a workload of this file is in that very unit: it was renamed.
    mine = replace(process(33, "ours", taken), cgroup="/system.slice/their.service")
    assert without_taken(before, OURS, (mine,), (act,)) == before
    for cgroup in ("/system.slice/not-their.service", "/system.slice/their.service.d"):
        # Another unit, whose name holds that one's.
        near = replace(mine, cgroup=cgroup)
        assert without_taken(before, OURS, (near,), (act,)) == after, cgroup
    # Interrupts and the like take no CPU away.
    other = replace(act, knob="irq-affinity", subject="86")
    assert without_taken(before, OURS, (), (other,)) == before


def test_a_container_that_another_file_narrowed_counts_by_its_id() -> None:
    before = planned(*OURS)
    taken = str(before.placed[0].cpus)
    box, other = "a" * 64, "b" * 64
    act = replace(
        entry(0, "theirs", ""), knob="container-cpus", subject=f"podman:{box}", value=taken
    )
    for number, counts in ((other, True), (box, False)):
        cgroup = f"/machine.slice/libpod-{number}.scope/container"
        mine = replace(process(33, "ours", taken), cgroup=cgroup, container=container_of(cgroup))
        after = without_taken(before, OURS, (mine,), (act,))
        assert ([p.workload for p in after.placed] == ["more"]) is counts, number
