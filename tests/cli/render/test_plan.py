"""A plan on the screen: folded where it is long, at most 100 columns, nothing untrue."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.cli.planned import Planned
from nodeagent.cli.render.flow import say
from nodeagent.cli.render.held import Report, Standing, headline, print_status, status_json
from nodeagent.cli.render.placement import placement_json
from nodeagent.cli.render.plan import alike, next_step, plan_sentence, print_plan
from nodeagent.cli.render.rows import counts, folds, rows
from nodeagent.cli.render.visible import Visible
from nodeagent.model.actions import JournalEntry
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.hostplan import HostPlan, HostRow
from nodeagent.model.placement import (
    Consent,
    Knob,
    Match,
    ProcessState,
    Refused,
    Sharing,
    ThreadState,
    Workload,
)
from nodeagent.model.topology import Topology
from nodeagent.place.changes import Standing as Allowed
from nodeagent.place.changes import changes
from nodeagent.place.diff import actions
from nodeagent.place.held import held
from nodeagent.place.host import host_actions
from nodeagent.place.planner import plan
from tests.place.machines import gpu, machine

GPUS = tuple(gpu(f"0000:{0x10 + i:02x}:00.0", i // 4) for i in range(8))
MACHINE = machine(packages=2, cores=64, smt=2, pci=GPUS)
ALLOWED = Allowed(allow=frozenset({Consent.THREADS}), source="the actor")
ALL_PUS = CpuSet.of(range(256))


def process(pid: int, title: str, cpus: CpuSet, threads: int = 3) -> ProcessState:
    return ProcessState(
        pid=pid,
        start_time=7,
        comm=title[:15],
        title=title,
        cgroup="/",
        threads=tuple(ThreadState(tid=pid + i, comm=title, cpus=cpus) for i in range(threads)),
    )


def workload(name: str, **more: object) -> Workload:
    row = Workload(name=name, kind="custom", match=Match(title=name), cpus=1)
    return replace(row, **more)  # type: ignore[arg-type]  # fields of Workload, by name


def planned(
    workloads: tuple[Workload, ...],
    processes: tuple[ProcessState, ...] = (),
    *,
    topology: Topology = MACHINE,
    standing: Allowed = ALLOWED,
    journal: tuple[JournalEntry, ...] | None = (),
    recording: str | None = None,
    host: HostPlan | None = None,
    file: str = "w.toml",
) -> Planned:
    placement = plan(topology, workloads, processes)
    host = host or HostPlan()
    found = (
        *actions(placement, processes),
        *host_actions(host, standing.allow or frozenset()),
    )
    return Planned(
        topology=topology,
        placement=placement,
        processes=processes,
        actions=found,
        changes=changes(found, placement, processes, topology.online, journal),
        workloads=workloads,
        file=file,
        recording=recording,
        standing=standing,
        journal=journal,
        journal_reason="" if journal is not None else "no right",
        config="/etc/nodeagent/nodeagent.toml",
        host=host,
    )


def shown(found: Planned, width: int = 100, *, unfold: bool = False) -> list[str]:
    out = Visible(file=io.StringIO(), width=width, highlight=False, markup=False)
    print_plan(out, found, unfold=unfold)
    say(out, plan_sentence(found))
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue().splitlines()


def eight_by(count: int) -> tuple[Workload, ...]:
    """Around each of 8 GPUs a rank, an index and agents: `count` workloads each."""
    made = []
    for g in range(8):
        near = f"gpu:{g}"
        made.append(workload(f"rank{g}", kind="vllm", cpus=8, near=near, unit=f"u{g}"))
        made.append(workload(f"index{g}", kind="vector-index", cpus=4, unit=f"u{g}"))
        made += [
            workload(f"agent{g}-{i}", kind="agent", near=near, sharing=Sharing.SHARED)
            for i in range(count - 2)
        ]
    return tuple(made)


def running(workloads: tuple[Workload, ...], cpus: CpuSet = ALL_PUS) -> tuple[ProcessState, ...]:
    return tuple(process(1000 + 100 * i, w.name, cpus) for i, w in enumerate(workloads))


@pytest.mark.parametrize("count", [8, 64])
def test_64_and_512_workloads_on_8_gpus_fit_two_screens(count: int) -> None:
    workloads = eight_by(count)
    found = planned(workloads, running(workloads))
    text = shown(found)
    assert len(text) < 110 and max(map(len, text)) <= 100
    assert (
        text[-1] == f"Plan: {8 * count} to change, 0 in place, 0 waiting for a process, 0 refused."
    )
    # Every workload stands in one fold, and every fold in the text.
    parts = folds(rows(found), unfold=False)
    assert sum(len(f.rows) for f in parts) == 8 * count
    whole = shown(found, unfold=True)
    for w in workloads:
        assert any(f" {w.name}  " in line for line in whole), w.name


def test_figures_add_up() -> None:
    workloads = eight_by(8)
    found = planned(workloads, running(workloads))
    line = next(t for t in shown(found) if t.startswith("PUs: "))
    numbers = [int(word) for word in line.replace(",", "").split() if word.isdigit()]
    assert sum(numbers[:4]) == 256, line


def test_from_to_why_and_whose_work_is_undone() -> None:
    w = workload("w", cpus=2)
    ours = JournalEntry(
        id=12,
        act="set_affinity",
        state="done",
        workload="w",
        pid=50,
        start_time=7,
        before=ALL_PUS,
        cpus=CpuSet.parse("3"),
        cpuset="",
        at_ns=10**18,
        by="bob (pid 9)",
        why="place apply",
    )
    near = replace(w, cpu_list=CpuSet.parse("6-7"))
    found = planned((near,), (process(50, "w", CpuSet.parse("3")),), journal=(ours,))
    text = "\n".join(shown(found))
    assert "w (50): CPU 3 -> 6-7, 3 of 3 threads by affinity  [threads]" in text
    assert "undoes act 12: CPU 3, set " in text and "by bob (pid 9) (place apply)" in text
    moved = planned((near,), (process(50, "w", CpuSet.parse("9")),), journal=(ours,))
    text = "\n".join(shown(moved))
    assert "undoes somebody's change to CPU 9: act 12 had set CPU 3" in text
    strange = planned((near,), (process(50, "w", CpuSet.parse("9")),))
    assert "undoes CPU 9, which nodeagent did not set" in "\n".join(shown(strange))
    # Without the journal nothing is said of whose it is; nor of the CPUs that everybody has.
    unread = planned((near,), (process(50, "w", CpuSet.parse("9")),), journal=None)
    assert "undoes" not in "\n".join(shown(unread))
    assert "undoes" not in "\n".join(shown(planned((near,), (process(50, "w", ALL_PUS),))))


def test_the_line_that_would_allow_it_stands_there() -> None:
    w = (workload("w", cpus=2),)
    row = HostRow(
        knob=Knob.IRQ_AFFINITY,
        subject="86",
        device="eth0",
        action="move",
        value="0",
        before="0-255",
        reason="it fires on exclusive CPU 1",
    )
    host = HostPlan(rows=(row, replace(row, action="leave", subject="90", managed=True)))
    now = running(w)
    none = Allowed(allow=frozenset(), source="/etc/nodeagent/nodeagent.toml")
    text = "\n".join(shown(planned(w, now, standing=none, host=host)))
    assert "[threads: not allowed]" in text and "[irq: not allowed, so not done]" in text
    assert "Needs consent: threads (not given), irq (not given), says" in text
    assert 'allow = ["threads", "irq"]' in text and "systemctl restart nodeagent-actor" in text
    given = replace(ALLOWED, allow=frozenset({Consent.THREADS, Consent.IRQ}))
    found = planned(w, now, standing=given, host=host)
    text = "\n".join(shown(found))
    assert "not allowed" not in text and "To give it" not in text
    assert "left alone:" in text and counts(found).change == 2
    unknown = Allowed(allow=None, source="no actor answers there")
    text = "\n".join(shown(planned(w, now, standing=unknown, host=host)))
    assert "whether it is given is not known: no actor answers there" in text
    frozen = replace(given, frozen="frozen by /run/nodeagent/freeze")
    text = "\n".join(shown(planned(w, now, standing=frozen, host=host)))
    assert "Frozen: frozen by /run/nodeagent/freeze" in text


def test_the_next_step_is_one_that_would_do_something() -> None:
    w = (workload("w", cpus=2),)
    now = running(w)
    given = replace(ALLOWED, allow=frozenset({Consent.THREADS}), source="the actor")
    do = "nodeagentctl place apply --yes"
    assert next_step(planned(w, now, standing=given), do) == (
        f"Nothing was changed. Make it so: {do}"
    )
    frozen = replace(given, frozen="frozen by /run/nodeagent/freeze")
    assert "while it is frozen" in next_step(planned(w, now, standing=frozen), do)
    none = replace(given, allow=frozenset())
    assert "without that consent" in next_step(planned(w, now, standing=none), do)
    # The file says so already, and the actor that answers has read another, or an older one.
    path = "/tmp/a/nodeagent.toml"
    found = replace(planned(w, now, standing=none), config=path)
    assert f"then start nodeagent-actor --config {path} anew" in " ".join(
        " ".join(shown(found)).split()
    )
    found = replace(found, configured=frozenset({Consent.THREADS}))
    text = " ".join(" ".join(shown(found)).split())
    assert f"{path} gives it, and the actor has not read that" in text
    assert "To give it" not in text


def test_of_a_recorded_machine_nothing_is_said_about_now() -> None:
    w = (workload("w", cpus=2), workload("huge", cpus=999))
    found = planned(w, recording="node.capture", journal=None)
    text = "\n".join(shown(found))
    assert "the recorded machine node.capture" in text
    assert "no such process in the recording" in text and "without a recorded process" in text
    assert "the recording holds no processes" in text
    for word in (" now", "this machine:", "Needs consent", "Nothing was changed"):
        assert word not in text, word


def test_refusals_of_one_kind_are_one_paragraph() -> None:
    refused = [
        Refused(
            workload=f"rank{i}",
            reason=f"GPU {i} (0000:{i:02x}:00.0) is on node {i // 4}, which has {i} PUs free",
            would_fit_if=f"cpus = {i}",
        )
        for i in range(64)
    ]
    assert [len(g) for g in alike(refused, unfold=False)] == [64]
    assert len(alike(refused, unfold=True)) == 64
    assert len(alike(refused[:5], unfold=False)) == 5
    other = Refused(workload="x", reason="it matches process 4", would_fit_if="its match differed")
    assert [len(g) for g in alike([*refused, other], unfold=False)] == [64, 1]


NAME = st.text(
    st.characters(
        codec="utf-8", categories=("L", "N", "P", "S", "Z", "C"), include_characters="\x1b"
    ),
    min_size=1,
    max_size=40,
)


@given(comm=NAME, width=st.integers(1, 140), threads=st.integers(0, 4), bound=st.booleans())
def test_any_name_on_any_width(comm: str, width: int, threads: int, bound: bool) -> None:
    w = (workload("w", cpus=2), workload("none"), workload("huge", cpus=999))
    cpus = CpuSet.parse("9") if bound else ALL_PUS
    now = (replace(process(50, "w", cpus, threads), comm=comm),)
    found = planned(w, now)
    for unfold in (False, True):
        text = shown(found, width, unfold=unfold)
        assert not any("\x1b" in line for line in text)
        if width >= 20 and comm.isascii() and comm.isprintable():
            assert max(map(len, text)) <= min(100, width)
    json.loads(msgspec.json.encode(placement_json(found)))


def report(found: Planned) -> Report:
    held_rows = held(found.placement, found.processes)
    by_pid = {p.pid: p for p in found.processes}
    return Report(
        planned=found,
        standings=tuple(
            Standing(held=h, comm=by_pid[h.pid].comm if h.pid in by_pid else "", local=0.99996)
            for h in held_rows
        ),
    )


def status(found: Planned, width: int = 100, *, unfold: bool = False) -> list[str]:
    out = Visible(file=io.StringIO(), width=width, highlight=False, markup=False)
    print_status(out, report(found), unfold=unfold)
    assert isinstance(out.file, io.StringIO)
    return [line.rstrip() for line in out.file.getvalue().splitlines()]


def test_what_holds_in_one_sentence() -> None:
    w = (workload("w", cpus=2), workload("x"))
    nothing = replace(planned((), ()), file="")
    assert status(nothing) == [
        "Nothing is pinned by nodeagent, and no workload file says what is wanted."
    ]
    unread = planned((), (), journal=None, file="")
    assert "could not be read" in headline(report(unread))
    idle = planned(w)
    assert headline(report(idle)) == (
        "Nothing to hold: none of 2 workloads has a process on this machine; nothing is pinned by "
        "nodeagent."
    )
    loose = planned(w, running(w))
    assert status(loose)[0] == "Not held: 2 of 2 workloads (w, x); nothing is pinned by nodeagent."
    placed = {p.workload: p.cpus for p in loose.placement.placed}
    tight = tuple(process(1000 + 100 * i, n, c) for i, (n, c) in enumerate(placed.items()))
    assert status(planned(w, tight))[0] == "All are held: 2 workloads, 2 processes."
    assert "It is held: 1 workload, 1 process; 1 workload without a process." in status(
        planned(w, tight[:1])
    )
    # Of what is nearly all local, it is not said that all is.
    assert any("99.9 %" in line for line in status(planned(w, tight)))


@pytest.mark.parametrize("width", [20, 60, 80, 100])
def test_status_of_many_is_folded_and_fits(width: int) -> None:
    workloads = eight_by(16)
    first = planned(workloads, running(workloads))
    now = tuple(
        process(1000 + 100 * i, p.workload, p.cpus) for i, p in enumerate(first.placement.placed)
    )
    moved = (replace(now[0], threads=process(1000, "rank0", ALL_PUS).threads), *now[1:])
    text = status(planned(workloads, moved), width)
    assert max(map(len, text)) <= width
    assert "rank0" in " ".join(text) and len(text) < 200
    body = status_json(report(planned(workloads, moved)))
    rows_ = body["held"]
    assert isinstance(rows_, list) and len(rows_) == 128
    assert [r["held"] for r in rows_].count(False) == 1


def test_a_narrow_table_says_where_since_and_by_are() -> None:
    found = planned((workload("w"),), (process(50, "w", ALL_PUS),))
    shown = report(found)
    act = JournalEntry(
        id=1, act="set_affinity", state="done", workload="w", pid=50, start_time=7,
        before=ALL_PUS, cpus=CpuSet.of([8]), cpuset="", at_ns=1, by="root (pid 1)", why="",
    )  # fmt: skip
    shown = replace(shown, standings=tuple(replace(s, entry=act) for s in shown.standings))
    for width, note in ((80, True), (100, False)):
        out = Visible(file=io.StringIO(), width=width, highlight=False, markup=False)
        print_status(out, shown)
        assert isinstance(out.file, io.StringIO)
        assert ("note: SINCE and BY are shown" in out.file.getvalue()) is note


def test_what_is_said_of_many_is_said_once() -> None:
    found = planned(
        tuple(workload(f"w{i}", cpus=1) for i in range(6)),
        tuple(process(50 + 10 * i, f"w{i}", ALL_PUS) for i in range(6)),
    )
    shown = report(found)
    young = [
        replace(
            s, held=replace(s.held, compared="not comparable" if s.held.workload != "w5" else "")
        )
        for s in shown.standings
    ]
    out = Visible(file=io.StringIO(), width=100, highlight=False, markup=False)
    print_status(out, replace(shown, standings=tuple(young)))
    assert isinstance(out.file, io.StringIO)
    said = [line for line in out.file.getvalue().splitlines() if "not comparable" in line]
    whom = "w0 (50), w1 (60), w2 (70), w3 (80) and 1 more"
    assert said == [f"{whom}: before and after the pin: not comparable"]


def test_the_shape_that_others_hold_on_to() -> None:
    w = (workload("w", cpus=2), workload("huge", cpus=999), workload("idle"))
    body = json.loads(msgspec.json.encode(placement_json(planned(w, (process(50, "w", ALL_PUS),)))))
    assert {"placements", "irqs", "refused", "actions"} <= body.keys()
    row, idle = body["placements"]
    keys = {"workload", "unit", "sharing", "pid", "threads", "cpus", "mems", "node", "gpu"}
    assert keys | {"reasons"} <= row.keys() == idle.keys()
    assert (row["pid"], idle["pid"], idle["threads"]) == (50, None, [])
    assert {"tid", "comm", "role", "cpus"} <= row["threads"][0].keys()
    assert row["threads"][0]["role"] == "main" and row["threads"][0]["cpus"] == "0-255"
    (refused,) = body["refused"]
    assert refused.keys() == {"workload", "reason", "would_fit_if"}
    (action,) = body["actions"]
    assert action["do"] == "set_affinity" and action["consent"] == "threads"
    assert body["consent"] == {"needed": ["threads"], "allowed": ["threads"], "source": "the actor"}
