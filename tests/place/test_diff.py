"""match, actions and held: over process states."""

from __future__ import annotations

import pytest

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import (
    Consent,
    Match,
    MoveToCpuset,
    Placed,
    Placement,
    ProcessState,
    SetAffinity,
    Sharing,
    Target,
    ThreadState,
)
from nodeagent.place.diff import actions
from nodeagent.place.held import held
from nodeagent.place.match import matches


def process(pid: int, masks: str, **more: str) -> ProcessState:
    """`masks`: one cpulist a thread, separated by spaces."""
    return ProcessState(
        pid=pid,
        start_time=pid * 10,
        comm=more.get("comm", "python3"),
        title=more.get("title", "python3 -m vwap --feed itch"),
        cgroup=more.get("cgroup", "/system.slice/vwap.service"),
        threads=tuple(
            ThreadState(tid=pid + i, comm="t", cpus=CpuSet.parse(m))
            for i, m in enumerate(masks.split())
        ),
    )


def placement(cpus: str, match: Match) -> Placement:
    return Placement(
        placed=(
            Placed(
                workload="vwap",
                unit=None,
                sharing=Sharing.EXCLUSIVE,
                cpus=CpuSet.parse(cpus),
                mems=CpuSet.parse("0"),
                node=0,
                gpu=None,
                reasons=("because",),
                kind="agent",
                match=match,
            ),
        ),
        refused=(),
        housekeeping=CpuSet.parse("0"),
    )


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        (Match(), False),
        (Match(pid=7), True),
        (Match(pid=8), False),
        (Match(comm="python*"), True),
        (Match(title="python3 -m vwap*"), True),
        (Match(title="vwap"), False),
        (Match(cmdline=r"-m vwap\b"), True),
        (Match(cmdline="vector"), False),
        (Match(unit="vwap.service"), True),
        (Match(unit="v*.service"), True),
        (Match(unit="vwap"), True),
        (Match(unit="vwa"), False),
        (Match(unit="service"), False),
        (Match(cgroup="/system.slice"), True),
        (Match(cgroup="/system.slice/vwap.service"), True),
        (Match(cgroup="/system"), False),
        (Match(cgroup="/"), True),
        (Match(comm="python3", pid=8), False),
    ],
)
def test_every_criterion_must_fit(match: Match, fits: bool) -> None:
    assert matches(match, process(7, "0-1")) is fits


def test_a_kernel_thread_has_no_title_to_match() -> None:
    assert not matches(Match(cmdline=".*"), process(2, "0-1", title="", comm="kthreadd"))


def test_only_what_differs() -> None:
    plan = placement("2-3", Match(comm="python3"))
    found = actions(plan, (process(20, "2-3 2"), process(10, "0-3 2-3"), process(30, "1")))
    assert found == (
        SetAffinity(
            workload="vwap",
            target=Target(pid=10, tid=0, start_time=100),
            cpus=CpuSet.parse("2-3"),
            before=CpuSet.parse("0-3"),
            exclusive=True,
        ),
        SetAffinity(
            workload="vwap",
            target=Target(pid=30, tid=0, start_time=300),
            cpus=CpuSet.parse("2-3"),
            before=CpuSet.parse("1"),
            exclusive=True,
        ),
    )


def test_consent_chooses_the_kind_of_act() -> None:
    plan = placement("2-3", Match(comm="python3"))
    (moved,) = actions(plan, (process(10, "0-3"),), {Consent.CGROUP, Consent.THREADS})
    assert isinstance(moved, MoveToCpuset) and moved.cpuset == "/nodeagent/vwap"
    assert actions(plan, (process(10, "0-3"),), frozenset()) == ()


def test_held_joins_plan_threads_journal_and_run_time() -> None:
    plan = placement("2-3", Match(comm="python3"))
    good, bad = held(
        plan,
        (process(10, "2-3 3"), process(20, "2-3 0")),
        before={10: CpuSet.parse("0-3")},
        run_ns_by_cpu={10: [(2, 900), (3, 90), (0, 10)]},
    )
    assert good.held and good.ran_inside == 0.99 and str(good.cpus_before) == "0-3"
    assert not bad.held and str(bad.cpus_actual) == "0,2-3" and bad.ran_inside is None
    (none,) = held(plan, ())
    assert none.pid is None and not none.held and none.cpus_actual is None
