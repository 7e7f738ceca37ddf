"""Who holds a process: each choice, its sentence, and the actions that follow from it."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.model.cgroup import container_of
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import (
    Consent,
    Knob,
    Match,
    MoveToCpuset,
    Placed,
    Placement,
    ProcessState,
    SetAffinity,
    SetValue,
    Sharing,
    ThreadState,
)
from nodeagent.place.diff import actions, holds
from nodeagent.place.holders import Facts, Hold, Holder, Hosts, holder

BOTH = frozenset({Consent.THREADS, Consent.CGROUP})
SYSTEMD = Facts(version=2, systemd=True, controller=True, runtimes=frozenset({"podman"}))
BOX = "a" * 64
UNIT = "/system.slice/index@0.service"
USERS = "/user.slice/user-1000.slice/user@1000.service"
PODMAN = f"/machine.slice/libpod-{BOX}.scope/container"


def process(pid: int, cgroup: str, comm: str = "index", cpus: str = "0-7") -> ProcessState:
    mask = CpuSet.parse(cpus)
    return ProcessState(
        pid=pid,
        start_time=pid,
        comm=comm,
        title=comm,
        cgroup=cgroup,
        threads=(ThreadState(tid=pid, comm=comm, cpus=mask),),
        container=container_of(cgroup),
    )


def choose(
    cgroup: str,
    *others: ProcessState,
    consents: frozenset[Consent] = BOTH,
    facts: Facts | None = SYSTEMD,
) -> Hold:
    one = process(11, cgroup)
    return holder(one, {11}, Hosts([one, *others]), consents, facts)


@pytest.mark.parametrize(
    ("cgroup", "facts", "expected", "subject", "words"),
    [
        (UNIT, SYSTEMD, Holder.UNIT, "index@0.service", "by its unit index@0.service: AllowedCPUs"),
        (f"{UNIT}/below", SYSTEMD, Holder.UNIT, "index@0.service", "AllowedCPUs"),
        ("/a.slice/x.scope", SYSTEMD, Holder.UNIT, "x.scope", "AllowedCPUs"),
        (PODMAN, SYSTEMD, Holder.CONTAINER, f"podman:{BOX}", "podman update --cpuset-cpus"),
        (f"/docker/{BOX}", SYSTEMD, Holder.THREADS, "", "[pin] runtimes does not name"),
        (f"/{BOX}", SYSTEMD, Holder.THREADS, "", "a runtime that its cgroup does not name"),
        ("/user.slice/user-0.slice/session-3.scope", SYSTEMD, Holder.THREADS, "", "a login's"),
        ("/user.slice/user@0.service/app.slice", SYSTEMD, Holder.THREADS, "", "a login's"),
        (f"{USERS}/app.slice/db.service", SYSTEMD, Holder.THREADS, "", "a user's own systemd"),
        (f"{USERS}/db.service/libpod-{BOX}.scope", SYSTEMD, Holder.THREADS, "", "own runtime"),
        ("/a.slice/x.service.d/x.service", SYSTEMD, Holder.UNIT, "x.service", "AllowedCPUs"),
        ("/init.scope", SYSTEMD, Holder.THREADS, "", "the host's own"),
        ("/", dataclasses.replace(SYSTEMD, systemd=False), Holder.CPUSET, "", "/nodeagent"),
        ("/", Facts(version=2), Holder.THREADS, "", "it is off"),
        (UNIT, Facts(version=2, controller=True), Holder.THREADS, "", "not process 1 here"),
        ("/", Facts(), Holder.THREADS, "", "not to be had"),
        (UNIT, Facts(version=1, systemd=True), Holder.CPUSET, "", "/nodeagent"),
        (UNIT, None, Holder.CPUSET, "", "/nodeagent"),
        ("/kubepods.slice/kubepods-podx.slice", SYSTEMD, Holder.NOBODY, "", "static CPU manager"),
        ("/kubepods/pod1", None, Holder.NOBODY, "", "kubelet owns"),
        ("/system.slice/slurmstepd.scope/job_7/step_0", SYSTEMD, Holder.NOBODY, "", "gres.conf"),
        ("/slurm/uid_1000/job_7", None, Holder.NOBODY, "", "Slurm owns"),
        ("/nomad.slice/share.slice/8c5f.rank0.scope", SYSTEMD, Holder.NOBODY, "", "cores = N"),
        ("/system.slice/htcondor/condor_e_slot1_2@n", SYSTEMD, Holder.NOBODY, "", "request_cpus"),
        ("/pbs_jobs.service/jobs/7.head", SYSTEMD, Holder.NOBODY, "", "PBS owns"),
    ],
)
def test_each_kind_has_its_holder_and_its_sentence(
    cgroup: str, facts: Facts | None, expected: Holder, subject: str, words: str
) -> None:
    found = choose(cgroup, facts=facts)
    assert (found.holder, found.subject) == (expected, subject) and words in found.reason


@pytest.mark.parametrize("cgroup", [UNIT, PODMAN])
def test_what_holds_a_stranger_too_is_not_narrowed(cgroup: str) -> None:
    stranger = process(7, f"{cgroup}/else", "sidecar")
    found = choose(cgroup, stranger)
    assert found.holder is Holder.THREADS and "holds sidecar (7) too" in found.reason
    beside = process(8, f"{cgroup}0".replace(".scope", ".scope0"), "other")
    assert choose(cgroup, beside).holder is not Holder.THREADS


def test_without_consent_it_is_said_which_is_missing() -> None:
    found = choose(UNIT, consents=frozenset({Consent.THREADS}))
    assert found.holder is Holder.THREADS and "does not name cgroup" in found.reason
    found = choose(f"/docker/{BOX}", consents=frozenset({Consent.CGROUP}))
    assert found.holder is Holder.NOBODY and "does not name threads" in found.reason


def test_turning_the_controller_on_asks_for_host() -> None:
    off = dataclasses.replace(SYSTEMD, controller=False)
    found = choose(UNIT, facts=off)
    assert found.holder is Holder.THREADS and "does not name host" in found.reason
    assert choose(UNIT, facts=off, consents=BOTH | {Consent.HOST}).holder is Holder.UNIT


def placement(comm: str = "index") -> Placement:
    return Placement(
        placed=(
            Placed(
                workload="w",
                unit=None,
                sharing=Sharing.EXCLUSIVE,
                cpus=CpuSet.parse("4-5"),
                mems=CpuSet(),
                node=0,
                gpu=None,
                reasons=(),
                match=Match(comm=comm),
            ),
        ),
        refused=(),
        housekeeping=CpuSet(),
    )


def test_a_unit_is_set_once_for_all_its_processes() -> None:
    two = [process(11, UNIT), process(2, f"{UNIT}/worker")]
    (action,) = actions(placement(), two, BOTH, SYSTEMD)
    assert action == SetValue(
        workload="w",
        knob=Knob.UNIT_CPUS,
        subject="index@0.service",
        value="4-5",
        before="",
        exclusive=True,
    )
    assert {h.holder for h in holds(placement(), two, BOTH, SYSTEMD).values()} == {Holder.UNIT}
    held = [dataclasses.replace(p, threads=process(p.pid, UNIT, cpus="4").threads) for p in two]
    assert actions(placement(), held, BOTH, SYSTEMD) == ()


def test_the_rest_of_the_host_is_looked_at() -> None:
    mine, stranger = process(11, UNIT), process(9, UNIT, "else")
    (action,) = actions(placement(), [mine], BOTH, SYSTEMD, [mine, stranger])
    assert isinstance(action, SetAffinity)


def test_what_others_own_gets_no_action_at_all() -> None:
    assert actions(placement(), [process(11, "/kubepods/pod1")], BOTH, SYSTEMD) == ()
    assert actions(placement(), [process(11, "/slurm/uid_0/job_1")]) == ()


def test_a_container_is_set_by_its_runtime() -> None:
    (action,) = actions(placement(), [process(11, PODMAN)], BOTH, SYSTEMD)
    assert isinstance(action, SetValue) and action.knob is Knob.CONTAINER_CPUS
    assert action.subject == f"podman:{BOX}" and action.value == "4-5"


def test_nothing_known_means_a_cpuset_of_ours() -> None:
    (action,) = actions(placement(), [process(11, UNIT)], BOTH)
    assert isinstance(action, MoveToCpuset)


PATHS = st.sampled_from(
    ["/", UNIT, f"{UNIT}/x", "/system.slice", "/a", "/a/b", "/a0", "/ab", PODMAN]
)


@given(st.lists(PATHS, max_size=12), PATHS)
def test_below_is_what_lies_in_it_and_nothing_beside(paths: list[str], path: str) -> None:
    every = [process(i, p) for i, p in enumerate(paths, 11)]
    below = {p.pid for p in Hosts(every).below(path)}
    start = "/" if path == "/" else f"{path}/"
    assert below == {p.pid for p in every if p.cgroup == path or p.cgroup.startswith(start)}
