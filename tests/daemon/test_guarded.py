"""The guard with the kernel's own word: what happens is met between two polls, a minute apart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.daemon.conftest import wait_for

if TYPE_CHECKING:
    from tests.daemon.conftest import Node, Workers

pytestmark = [
    pytest.mark.root,
    pytest.mark.bpf,
    pytest.mark.usefixtures("as_root", "rights", "two_cpus"),
]


def guarded(node: Node, workers: Workers) -> frozenset[int]:
    """Pinned, and told by the kernel; its CPUs. The poll comes once a minute."""
    node.start_guarding(workers)
    return node.status_when(lambda s: bool(s.held) and s.held[0].held).held[0].cpus_planned.ids


def test_a_new_thread_is_pinned_without_waiting_for_the_poll(node: Node, workers: Workers) -> None:
    cpus = guarded(node, workers)
    os.kill(workers.pid, signal.SIGUSR1)
    wait_for(lambda: len(workers.masks()) == workers.count + 1)
    # A thread inherits the pin; it is met all the same, for its role may be another.
    node.status_when(lambda s: len(s.held[0].threads) == workers.count + 1)
    assert set(workers.masks().values()) == {cpus}
    assert "pin.drift" not in {e.kind for e in node.events()}


def test_a_move_is_corrected_without_waiting_for_the_poll(node: Node, workers: Workers) -> None:
    cpus = guarded(node, workers)
    elsewhere = min(os.sched_getaffinity(0) - cpus)
    code = (
        "import os, sys\n"
        "for tid in os.listdir(f'/proc/{sys.argv[1]}/task'):\n"
        "    os.sched_setaffinity(int(tid), {int(sys.argv[2])})"
    )
    mover = [sys.executable, "-c", code, str(workers.pid), str(elsewhere)]
    subprocess.run(mover, check=True)
    drift = node.event("pin.drift")
    workers.until(cpus)
    ready = node.event("guard.ready").message
    named = "stays unknown" not in ready
    who = "by an unknown author;" if not named else "by python3"
    assert who in drift.message and drift.message.endswith("it is put right once"), ready
    subprocess.run(mover, check=True)
    assert "second change" in node.event("pin.manual").message
    assert set(workers.masks().values()) == {frozenset({elsewhere})}


def test_a_freeze_holds_against_events(node: Node, workers: Workers) -> None:
    cpus = guarded(node, workers)
    elsewhere = min(os.sched_getaffinity(0) - cpus)
    (node.run_dir / "freeze").touch()
    for tid in workers.masks():
        os.sched_setaffinity(tid, {elsewhere})
    drift = node.event("pin.drift")
    assert "not corrected: frozen" in drift.message
    turns = node.status().turns
    os.kill(workers.pid, signal.SIGUSR1)
    node.status_when(lambda s: s.turns > turns)
    assert set(workers.masks().values()) == {frozenset({elsewhere})}
    (node.run_dir / "freeze").unlink()
    # Whatever asks for a turn now lifts it; here a thread.
    os.kill(workers.pid, signal.SIGUSR1)
    workers.until(cpus)


def test_a_new_process_is_met_when_it_begins(node: Node, workers: Workers) -> None:
    cpus = guarded(node, workers)
    workers.again()
    node.status_when(lambda s: bool(s.held) and s.held[0].pid == workers.pid and s.held[0].held)
    workers.until(cpus)


def test_the_first_process_of_a_workload_is_met_when_it_begins(
    node: Node, workers: Workers
) -> None:
    """No process of any workload runs when the daemon starts."""
    workers.close()
    node.start_guarding(workers)
    turns = node.status().turns
    node.status_when(lambda s: s.turns >= turns)
    workers.again()
    node.status_when(lambda s: bool(s.held) and s.held[0].pid == workers.pid and s.held[0].held)


def test_a_guard_without_its_actor_is_loaded_again(node: Node, workers: Workers) -> None:
    cpus = guarded(node, workers)
    node.kill_actor()
    node.event("actor.down")
    node.start_actor()
    node.event("actor.up")
    wait_for(lambda: [e.kind for e in node.events()].count("guard.ready") == 2)
    for tid in workers.masks():
        os.sched_setaffinity(tid, set(os.sched_getaffinity(0)) - cpus)
    workers.until(cpus)


STORM = """
import os, sys, threading, time
pid, cpus, seconds = int(sys.argv[1]), [int(c) for c in sys.argv[2].split(",")], float(sys.argv[3])
tids = [int(t) for t in os.listdir(f"/proc/{pid}/task")]
end, count = time.monotonic() + seconds, 0
while time.monotonic() < end:
    for tid in tids:
        os.sched_setaffinity(tid, {cpus[count % len(cpus)]})
        count += 1
print(count)
"""


def test_a_storm_of_changes_costs_few_turns_and_two_events(node: Node, workers: Workers) -> None:
    cpus = guarded(node, workers)
    here = sorted(os.sched_getaffinity(0))
    before, began = node.status().turns, time.monotonic()
    stormed = subprocess.run(
        [sys.executable, "-c", STORM, str(workers.pid), ",".join(map(str, here)), "4"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    node.event("pin.manual")
    turns, took_s = node.status().turns - before, time.monotonic() - began
    changes = int(stormed.stdout)
    assert changes > 2000
    # One more for each answer of the journal to what an author's change asks.
    assert turns <= 20 * took_s + 4 < changes
    kinds = [e.kind for e in node.events()]
    assert kinds.count("pin.drift") == 1 and kinds.count("pin.manual") == 1
    assert cpus
