"""A process belongs to the first workload that fits it, whatever else fits."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.model.cgroup import container_of
from nodeagent.model.placement import Match, ProcessState, Workload
from nodeagent.place.match import MAX_EXPLAINED, claims, matches, unmatched

ID = "4f797c539e6c745de61a93ca3ff892358ecbcaccd8414d5db545c38428142970"
TITLES = ["", "VLLM::Worker_TP0", "VLLM::EngineCore", "python3 -m index", "sh"]
CGROUPS = ["/", "/system.slice/vllm@0.service", f"/docker/{ID}", "/system.slice"]

MATCHES = st.builds(
    Match,
    title=st.none() | st.sampled_from(["VLLM::*", "*TP0", "sh"]),
    comm=st.none() | st.sampled_from(["VLLM*", "sh", "*"]),
    cmdline=st.none() | st.sampled_from(["^VLLM::(EngineCore|Worker)", "index", "."]),
    cgroup=st.none() | st.sampled_from(["/system.slice", "/", "/docker/*"]),
    unit=st.none() | st.sampled_from(["vllm@*.service", "system.slice"]),
    pid=st.none() | st.integers(1, 4),
    container=st.none() | st.sampled_from([ID[:12], "*"]),
    parent=st.none() | st.sampled_from(["sh", "*"]),
)


def process(pid: int, title: str, cgroup: str, parent: str) -> ProcessState:
    return ProcessState(
        pid=pid,
        start_time=pid,
        comm=title[:15] or "kthreadd",
        title=title,
        cgroup=cgroup,
        threads=(),
        parent_title=parent,
        container=container_of(cgroup),
    )


PROCESSES = st.lists(
    st.tuples(st.sampled_from(TITLES), st.sampled_from(CGROUPS), st.sampled_from(["", "sh"])),
    max_size=4,
).map(lambda told: tuple(process(i + 1, *one) for i, one in enumerate(told)))


@given(st.lists(MATCHES, max_size=4), PROCESSES)
def test_claims_are_what_matches_says(
    wanted: list[Match], processes: tuple[ProcessState, ...]
) -> None:
    workloads = [
        Workload(name=f"w{i}", kind="custom", match=m, cpus=1) for i, m in enumerate(wanted)
    ]
    mine, contested = claims(workloads, processes)
    assert mine.keys() | contested.keys() == {w.name for w in workloads}
    assert not mine.keys() & contested.keys()
    owner: dict[int, str] = {}
    for w in workloads:
        fit = {p.pid for p in processes if matches(w.match, p)}
        if fit & owner.keys():
            assert w.name in contested
            continue
        assert {t.pid for t in mine[w.name]} == fit
        owner.update(dict.fromkeys(fit, w.name))


@given(MATCHES, MATCHES, st.sampled_from(TITLES), st.sampled_from(CGROUPS))
def test_more_criteria_fit_no_more(one: Match, two: Match, title: str, cgroup: str) -> None:
    both = dataclasses.replace(
        one,
        **{f: v for f in two.__slots__ if (v := getattr(two, f)) is not None},
    )
    about = process(1, title, cgroup, "sh")
    shared = [f for f in one.__slots__ if getattr(one, f) is not None and getattr(two, f) is None]
    if matches(both, about):
        assert two == Match() or matches(two, about)
        for field in shared:
            assert matches(Match(**{field: getattr(one, field)}), about)


@pytest.mark.parametrize("match", [Match(title="*"), Match(cmdline=""), Match(parent="*")])
def test_what_is_not_known_fits_nothing(match: Match) -> None:
    assert not matches(match, process(7, "", "/", ""))


def test_a_container_without_a_name_is_known_by_its_id() -> None:
    one = process(7, "sh", f"/docker/{ID}", "")
    assert matches(Match(container=ID), one) and matches(Match(container=ID[:12]), one)
    assert not matches(Match(container="vllm*"), one)
    assert not matches(Match(image="*"), one) and not matches(Match(label="a=*"), one)


def test_what_fits_nothing_is_told_by_criterion() -> None:
    there = (process(7, "sh", "/system.slice", ""), process(8, "sh", "/", ""))
    one = Workload(name="a", kind="custom", match=Match(cmdline="^shh$"), cpus=1)
    both = Workload(name="b", kind="custom", match=Match(title="sh", unit="x.service"), cpus=1)
    assert unmatched([one, both], ["a", "b"], there) == (
        "no process matches: a (cmdline '^shh$')",
        "no process matches: b (title 'sh' by itself: 2, unit 'x.service' by itself: none)",
    )
    many = [f"w{i}" for i in range(MAX_EXPLAINED + 1)]
    assert unmatched([one], many, there) == (f"no process matches: {', '.join(many)}",)
    assert unmatched([one], [], there) == ()


def test_the_first_process_and_kernel_threads_are_nobodys() -> None:
    everything = Match(comm="*")
    init = dataclasses.replace(process(1, "init", "/init.scope", ""), comm="systemd")
    kthreadd = dataclasses.replace(process(2, "", "/", ""), comm="kthreadd")
    worker = dataclasses.replace(process(90, "", "/", ""), comm="kworker/1:0", ppid=2)
    own = process(91, "sh", "/", "")
    found = [p.pid for p in (init, kthreadd, worker, own) if matches(everything, p)]
    assert found == [91]
    assert not matches(Match(pid=1), init) and not matches(Match(title="*"), init)
