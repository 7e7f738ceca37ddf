"""A process belongs to the first workload that fits it, whatever else fits."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.model.cgroup import container_of
from nodeagent.model.placement import Match, ProcessState, Sharing, Workload
from nodeagent.place.match import (
    MAX_EXPLAINED,
    claims,
    doubtful,
    matches,
    unmatched,
    with_users,
)

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
    user=st.none() | st.sampled_from(["0", "7"]),
    uid=st.sampled_from([0, 7]),
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


def test_the_effective_user_is_one_criterion_more() -> None:
    mine = dataclasses.replace(process(7, "vllm serve", "/", ""), uid=1001)
    theirs = dataclasses.replace(process(8, "vllm serve", "/", ""), uid=1002)
    by_number = Match(title="vllm*", user="1001", uid=1001)
    assert matches(by_number, mine) and not matches(by_number, theirs)
    # A name that is not known here is nobody's, root's neither.
    root = dataclasses.replace(mine, uid=0)
    assert not any(matches(Match(user="gone"), p) for p in (mine, theirs, root))
    one = Workload(name="a", kind="custom", match=Match(title="vllm*", user="llm"), cpus=1)
    other = Workload(name="b", kind="custom", match=Match(user="1", uid=1), cpus=1)
    (known, kept) = with_users([one, other], {"llm": 1002, "1": 7})
    assert known.match.uid == 1002 and kept.match.uid == 1
    assert matches(known.match, theirs) and not matches(known.match, mine)
    assert unmatched([one], ["a"], (mine, theirs)) == (
        "no process matches: a (title 'vllm*' by itself: 2, user 'llm' by itself: none; no such "
        "user is known here)",
    )
    alone = dataclasses.replace(one, match=Match(user="llm"))
    assert unmatched([alone], ["a"], ()) == (
        "no process matches: a (user 'llm'; no such user is known here)",
    )


@pytest.mark.parametrize(
    ("match", "doubted"),
    [
        (Match(title="x"), True),
        (Match(cmdline="x", comm="x", parent="x"), True),
        (Match(title="x", user="1", uid=1), False),
        (Match(title="x", unit="x.service"), False),
        (Match(title="x", cgroup="/system.slice"), False),
        (Match(title="x", container="x"), False),
        (Match(title="x", image="x"), False),
        (Match(title="x", label="a=x"), False),
        (Match(pid=7), False),
    ],
)
def test_what_any_user_can_pass_for_is_told_where_it_is_exclusive(
    match: Match, doubted: bool
) -> None:
    one = Workload(name="a", kind="custom", match=match, cpus=1)
    said = doubtful([one])
    assert len(said) == doubted
    assert all("any user's process can pass for a and take its exclusive CPUs" in s for s in said)
    assert doubtful([dataclasses.replace(one, sharing=Sharing.SHARED)]) == ()
    many = [dataclasses.replace(one, name=f"w{i}") for i in range(MAX_EXPLAINED + 2)]
    assert not doubted or " and 2 more and take" in doubtful(many)[0]


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
