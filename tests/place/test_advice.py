"""What a refusal says would help is done, and the plan made again: then it fits."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given, settings

from nodeagent.model.placement import Sharing, Workload
from nodeagent.model.topology import Topology
from nodeagent.place.advice import NONE_HELPS, NOT_LOOKED_FOR
from nodeagent.place.planner import plan
from tests.place.machines import check, cpus, gpu, machine, machines, want, workloads

WORDS = (
    NONE_HELPS,
    NOT_LOOKED_FOR,
    "near named a ",
    "near = node:N, with the node from",
    "the devices were on one node",
    "cpu_list ",
    "it named CPUs of one node",
    "housekeeping were elsewhere",
    "its match were narrower",
)
"""Beginnings of what is no line of a workload file."""


def changed(wanted: tuple[Workload, ...], name: str, text: str) -> tuple[Workload, ...] | None:
    """The workloads with that change; None: it is in words."""
    said = re.sub(rf"^(?:{'|'.join(re.escape(w.name) for w in wanted)}): ", "", text)
    if said.startswith(WORDS):
        return None
    lines, _, names = said.partition(" for ")
    by = re.fullmatch(r"(\S+) had (.*)", lines)
    who = re.split(r", | and ", names) if names else [by[1] if by else name]
    made = {w.name: w for w in wanted}
    for line in (by[2] if by else lines).split(" and "):
        for n in who:
            made[n] = _with(made[n], line)
    return tuple(made[w.name] for w in wanted)


def _with(w: Workload, line: str) -> Workload:
    if line == f"cpus = {w.cpus} stood in place of cpu_list":
        return replace(w, cpu_list=None)
    pages = re.fullmatch(r'hugepages = \{ (?:"2MiB" = "(\d+)MiB")? ?\}', line)
    if pages:
        assert int(pages[1] or 0) << 20 < w.hugepages[0][1]
        return replace(w, hugepages=((2 << 20, int(pages[1]) << 20),) if pages[1] else ())
    found = re.fullmatch(r'(\w+) = "?([\w:.-]+)"?', line)
    assert found is not None, line
    key, value = found[1], found[2]
    match key:
        case "cpus":
            assert int(value) < w.cpus and int(value) >= sum(r.cpus for r in w.roles)
            return replace(w, cpus=int(value))
        case "memory":
            assert int(value.removesuffix("MiB")) << 20 < w.memory_bytes
            return replace(w, memory_bytes=int(value.removesuffix("MiB")) << 20)
        case "isolated":
            assert w.isolated is not (value == "true")
            return replace(w, isolated=value == "true")
        case "sharing":
            assert not w.roles and w.smt == "any" and not w.isolated and w.cpu_list is None
            return replace(w, sharing=Sharing(value))
        case "near":
            return replace(w, near=value)
        case "smt":
            assert w.smt != value
            return replace(w, smt=value)
        case "l3":
            assert w.l3 != value
            return replace(w, l3=value)
    raise AssertionError(line)


@settings(max_examples=400, deadline=None)
@given(machines(), workloads())
def test_what_would_help_helps(topology: Topology, wanted: tuple[Workload, ...]) -> None:
    placement = plan(topology, wanted)
    out = {r.workload for r in placement.refused}
    for r in placement.refused:
        if len(topology.online) < 6:
            continue
        made = changed(wanted, r.workload, r.would_fit_if)
        if made is None:
            continue
        after = plan(topology, made)
        check(topology, made, after)
        assert after.of(r.workload) is not None, r
        assert {x.workload for x in after.refused} <= out - {r.workload}, r


@settings(max_examples=150, deadline=None)
@given(machines(), workloads())
def test_it_helps_beside_what_runs_already(
    topology: Topology, wanted: tuple[Workload, ...]
) -> None:
    """With the plan in force and nothing else changed."""
    placement = plan(topology, wanted)
    if len(topology.online) < 6:
        return
    for r in placement.refused:
        made = changed(wanted, r.workload, r.would_fit_if)
        if made is not None:
            assert plan(topology, made, (), placement).of(r.workload) is not None, r


def helped(topology: Topology, *wanted: Workload) -> str:
    (refused,) = plan(topology, wanted).refused
    made = changed(wanted, refused.workload, refused.would_fit_if)
    assert made is None or not plan(topology, made).refused
    return refused.would_fit_if


def test_a_rule_goes_before_an_amount() -> None:
    two = machine(packages=1, l3=2, cores=4)
    assert helped(two, want("a", 6, l3="one")) == 'l3 = "any"'
    threads = machine(cores=4, smt=2)
    assert helped(threads, want("a", 6, smt="one-per-core")) == 'smt = "any"'
    alone = machine(cores=8, isolated="6-7")
    assert helped(alone, want("a", 4, isolated=True)) == "isolated = false"


def test_cpus_are_lowered_by_as_little_as_does() -> None:
    assert helped(machine(cores=8), want("a", 5), want("b", 4)) == "cpus = 3"
    assert helped(machine(cores=8), want("a", 12)) == "cpus = 7"


def test_another_workload_gives_before_the_node_is_left() -> None:
    topology = machine(packages=2, cores=4, pci=[gpu("0000:3b:00.0", 1)])
    said = helped(
        topology, want("a", 3, near="gpu:0"), want("b", 2, near="gpu:0", smt="one-per-core")
    )
    assert said in ("a had cpus = 1", "b had cpus = 1", "cpus = 1") or "had cpus" in said


def test_roles_bound_how_far_cpus_may_go() -> None:
    topology = machine(cores=8)
    assert helped(topology, want("a", 4), want("b", 4, roles=(2, 2))) != "cpus = 3"


def test_a_whole_unit_takes_the_isolated_ones() -> None:
    topology = machine(cores=12, isolated="4-11")
    unit = (want("llm", 4, unit="r"), want("index", 2, unit="r"))
    for refused in plan(topology, unit).refused:
        made = changed(unit, refused.workload, refused.would_fit_if)
        assert made is not None and not plan(topology, made).refused
    other = {"llm": "index", "index": "llm"}
    for refused in plan(topology, unit).refused:
        assert refused.would_fit_if.startswith(
            ("cpus", f"{other[refused.workload]} had", "isolated")
        )


def test_memory_and_cpus_both() -> None:
    topology = machine(cores=8, memory=10 << 30)
    said = helped(
        topology,
        want("a", 9, memory_bytes=20 << 30),
    )
    assert said == 'memory = "10240MiB" and cpus = 7'


def test_when_nothing_helps_it_says_so() -> None:
    topology = machine(packages=1, cores=6)
    wanted = (want("a", 5, cpu_list=cpus("1-5")), want("b", 2, roles=(1, 1), smt="whole-core"))
    (refused,) = plan(topology, wanted).refused
    assert refused.would_fit_if == NONE_HELPS
