"""Stand-ins of engines: real processes with their titles and thread names, from the workload file
to the masks and back."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeagent.discover.procs import Processes
from nodeagent.discover.root import Root
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import (
    Match,
    Outcome,
    Placed,
    Placement,
    ProcessState,
    RolePlaced,
    SetAffinity,
    Sharing,
    Workload,
)
from nodeagent.pin.actor import Actor
from nodeagent.pin.asked import Asked
from nodeagent.place.diff import actions
from nodeagent.place.held import held
from nodeagent.place.match import matching
from nodeagent.place.roles import seats
from nodeagent.place.workloads import parse

Opener = Callable[..., contextlib.AbstractContextManager[Actor]]
Two = tuple[CpuSet, CpuSet]
ME = Asked(by="test", why="a test of engines")
VLLM = ("", "", "cuda-EvtHandlr", "cuda00001400006", "pt_nccl_watchdg", "NCCL Progress 0")


class StandIn:
    """tests/pin/stand_in.py as a process."""

    def __init__(self, title: str, *threads: str) -> None:
        script = str(Path(__file__).with_name("stand_in.py"))
        self._process = subprocess.Popen(
            [sys.executable, script, title, *threads],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.pid = self._process.pid
        self.tids = [int(tid) for tid in self._said().split()]

    def _said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def ask(self, text: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        return self._said()

    def end(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture
def stand_in() -> Iterator[Callable[..., StandIn]]:
    made: list[StandIn] = []

    def make(title: str, *threads: str) -> StandIn:
        made.append(StandIn(title, *threads))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture
def look() -> Iterator[Callable[[], tuple[ProcessState, ...]]]:
    """This test's own stand-ins, as discovery reads them."""
    root = Root.live()
    processes = Processes(root)
    try:
        yield lambda: tuple(
            p for p in processes.scan() if p.ppid == os.getpid() and p.pid != processes.child_pid
        )
    finally:
        processes.close()
        root.close()


Look = Callable[[], tuple[ProcessState, ...]]
Make = Callable[..., StandIn]


def workload(text: str) -> Workload:
    return parse(f'[[workload]]\nname = "w"\ncpus = 4\n{text}\n', "w.toml")[0]


def placement(work: Workload, everywhere: CpuSet, one: CpuSet) -> Placement:
    """Two PUs are no machine for a plan: the first role has the last of them, the rest the
    other."""
    assert len(work.roles) == 1
    placed = Placed(
        workload=work.name,
        unit=None,
        sharing=Sharing.EXCLUSIVE,
        cpus=everywhere,
        mems=CpuSet.of([0]),
        node=0,
        gpu=None,
        reasons=(),
        kind=work.kind,
        match=work.match,
        roles=(RolePlaced(role=work.roles[0], cpus=one),),
    )
    return Placement(placed=(placed,), refused=(), housekeeping=CpuSet())


def masks(one: ProcessState) -> dict[int, str]:
    return {t.tid: str(t.cpus) for t in one.threads}


def test_a_stand_in_is_seen_as_the_engine_is(stand_in: Make, look: Look) -> None:
    core = stand_in("VLLM::EngineCore_DP0", *VLLM)
    api = stand_in("VLLM::APIServer_0", "")
    by_pid = {p.pid: p for p in look()}
    one = by_pid[core.pid]
    assert (one.title, one.comm) == ("VLLM::EngineCore_DP0", "VLLM::EngineCor")
    assert [t.comm for t in one.threads] == [
        "VLLM::EngineCor",
        "VLLM::EngineCor",
        "VLLM::EngineCor",
        *VLLM[2:],
    ]
    assert one.parent_title and "pytest" in one.parent_title
    work = workload('engine = "vllm"')
    assert [p.pid for p in matching(work.match, by_pid.values())] == [core.pid]
    narrow = workload('engine = "vllm"\nmatch.parent = "no such parent"').match
    assert matching(narrow, by_pid.values()) == ()
    assert matching(Match(title="VLLM::API*"), by_pid.values()) == (by_pid[api.pid],)


def test_helpers_apart_from_the_rest_and_all_back_again(
    tmp_path: Path, open_actor: Opener, stand_in: Make, look: Look, two_cpus: Two
) -> None:
    everywhere, one = two_cpus
    rest = everywhere - one
    core = stand_in("VLLM::EngineCore", *VLLM)
    worker = stand_in("VLLM::Worker_TP1", *VLLM)
    plan = placement(workload('engine = "vllm"'), everywhere, one)
    # Its program bound one thread of the pool to a part: here, to all that the rest has.
    core.ask(f"bind {core.tids[0]} {min(rest.ids)}")
    before = {p.pid: masks(p) for p in look()}
    helpers = {"cuda-EvtHandlr", "cuda00001400006", "pt_nccl_watchdg"}
    with open_actor(tmp_path) as actor:
        acts = actions(plan, look())
        assert len(acts) == 4, "one for each role and process"
        assert core.tids[0] not in [
            tid for a in acts if isinstance(a, SetAffinity) for tid in a.tids
        ]
        for act in acts:
            assert actor.perform(act, ME).outcome is Outcome.DONE
        seen = look()
        for process in seen:
            for thread in process.threads:
                want = one if thread.comm in helpers else rest
                assert str(thread.cpus) == str(want), thread
        assert actions(plan, seen) == ()
        assert all(row.held for row in held(plan, seen))
        (placed,) = plan.placed
        names = {t.comm: seats(placed, seen[0])[t.tid].role for t in seen[0].threads[1:]}
        assert names == {
            "VLLM::EngineCor": "pool",
            "cuda-EvtHandlr": "helpers",
            "cuda00001400006": "helpers",
            "pt_nccl_watchdg": "helpers",
            "NCCL Progress 0": "nccl",
        }

        # Born later, and named later still: each is the next turn's.
        born = int(worker.ask("thread "))
        assert actions(plan, look()) == (), "it was born where it belongs"
        worker.ask(f"name {born} pt_tcpstore_uv")
        (act,) = actions(plan, look())
        assert isinstance(act, SetAffinity) and act.tids == (born,) and act.cpus == one
        assert actor.perform(act, ME).outcome is Outcome.DONE
        assert actions(plan, look()) == ()

        for undone in actor.undo(None, ME):
            assert undone.result.outcome is Outcome.DONE, undone
        after = {p.pid: masks(p) for p in look()}
        assert after[worker.pid].pop(born) == str(everywhere)
        assert after == before, "and what the program had bound is bound as it was"


def test_a_pool_that_comes_and_goes_fills_no_journal(
    tmp_path: Path, open_actor: Opener, stand_in: Make, look: Look, two_cpus: Two
) -> None:
    everywhere, one = two_cpus
    plan = placement(workload('engine = "vllm"'), everywhere, one)
    core = stand_in("VLLM::EngineCore", *VLLM)
    before = {p.pid: masks(p) for p in look()}
    with open_actor(tmp_path) as actor:
        for act in actions(plan, look()):
            assert actor.perform(act, ME).outcome is Outcome.DONE
        first = [e.id for e in actor.entries]
        for _ in range(3):
            # A helper of the rest's creator: born beside its role, moved, and gone.
            tid = int(core.ask("thread pt_nccl_heartbt"))
            (act,) = actions(plan, look())
            assert isinstance(act, SetAffinity) and act.tids == (tid,)
            assert actor.perform(act, ME).outcome is Outcome.DONE
            heir = int(core.ask("thread pt_nccl_heartbt"))
            (act,) = actions(plan, look())
            assert actor.perform(act, ME).outcome is Outcome.DONE
            core.ask(f"end {tid}")
        assert len(list(actor.entries)) == len(first) + 6
        said = actor.recover()
        assert len([text for text in said if "threads of VLLM::EngineCor" in text]) == 3
        left = [e.id for e in actor.entries]
        assert len(left) == len(first) + 3 and set(first) <= set(left)
        for undone in actor.undo(None, ME):
            assert undone.result.outcome is Outcome.DONE, undone
        after = {p.pid: masks(p) for p in look()}
        assert set(after[core.pid].values()) == {str(everywhere)} and heir in after[core.pid]
        assert before[core.pid].items() <= after[core.pid].items()


@pytest.mark.parametrize(
    ("title", "engine", "threads", "role"),
    [
        ("sglang::scheduler_TP0", "sglang", ("", "cuda-EvtHandlr", "pt_gloo_runloop"), "scheduler"),
        ("/usr/bin/tritonserver --model-repository=/m", "triton", ("", "cuda-EvtHandlr"), "main"),
        ("/usr/local/bin/ollama runner --model /m --port 4", "ollama", ("",), "main"),
        ("./qdrant", "qdrant", ("search-0", "update-1", "general-2"), "main"),
        ("milvus run standalone", "milvus", ("MILVUS_FUTURE_CPU_0",), "rest"),
        ("/usr/bin/python3 /usr/bin/nodeagent-feeder itch", "feeder", ("",), "control"),
    ],
)
def test_other_engines_by_title(
    title: str, engine: str, threads: tuple[str, ...], role: str, stand_in: Make, look: Look
) -> None:
    one = stand_in(title, *threads)
    work = workload(f'engine = "{engine}"')
    (found,) = matching(work.match, look())
    assert found.pid == one.pid
    placed = Placed(
        workload="w",
        unit=None,
        sharing=Sharing.EXCLUSIVE,
        cpus=CpuSet.of([0]),
        mems=CpuSet(),
        node=None,
        gpu=None,
        reasons=(),
        match=work.match,
    )
    assert seats(placed, found)[one.pid].role == role
    assert len(seats(placed, found)) == 1 + len(threads)
