"""Daemon and actor as root on a real process: pinned, drifted, frozen, adopted, released."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.daemon.conftest import Node, Workers

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("as_root", "two_cpus")]

CONSENT = "pin.allow = ['threads']\npin.auto = ['threads']\n"


def test_pinned_drifted_corrected_once_then_reported(node: Node, workers: Workers) -> None:
    before = workers.masks()
    node.place(workers, CONSENT)
    node.start_actor()
    node.start()
    (held,) = node.status_when(lambda s: bool(s.held) and s.held[0].held).held
    assert held.cpus_before is not None
    assert held.pid == workers.pid and held.cpus_planned.ids < held.cpus_before.ids
    assert held.cpus_before.ids == frozenset().union(*before.values())
    assert set(workers.masks().values()) == {held.cpus_planned.ids}
    assert len(held.threads) == workers.count
    elsewhere = min(held.cpus_before.ids - held.cpus_planned.ids)

    subprocess.run(["taskset", "-acp", str(elsewhere), str(workers.pid)], check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    drift = node.event("pin.drift")
    assert (
        f"(pid {workers.pid}) were moved from {held.cpus_planned} to {elsewhere}" in drift.message
    )
    assert drift.message.endswith("it is put right once")
    workers.until(held.cpus_planned.ids)
    node.status_when(lambda s: s.held[0].held)
    put = node.event("pin.corrected")
    assert put.message.endswith("put right once after an unknown author"), put
    assert [e.kind for e in node.events()].count("pin.done") == 1

    subprocess.run(["taskset", "-acp", str(elsewhere), str(workers.pid)], check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    manual = node.event("pin.manual")
    assert "second change" in manual.message
    turns = node.status().turns
    node.status_when(lambda s: s.turns > turns + 4)
    assert set(workers.masks().values()) == {frozenset({elsewhere})}

    # Neither does the next daemon.
    node.kill()
    node.start()
    turns = node.status_when(lambda s: bool(s.held)).turns
    node.status_when(lambda s: s.turns > turns + 4)
    assert set(workers.masks().values()) == {frozenset({elsewhere})}


def test_frozen_it_changes_nothing(node: Node, workers: Workers) -> None:
    before = workers.masks()
    node.place(workers, CONSENT)
    node.start_actor()
    (node.run_dir / "freeze").touch()
    node.start()
    frozen = node.status_when(lambda s: bool(s.held) and s.frozen is not None)
    assert "freeze" in str(frozen.frozen) and "frozen" in frozen.sentence
    node.status_when(lambda s: s.turns > frozen.turns + 4)
    assert workers.masks() == before
    (node.run_dir / "freeze").unlink()
    held = node.status_when(lambda s: s.held[0].held).held[0]
    (node.run_dir / "freeze").touch()
    node.status_when(lambda s: s.frozen is not None)
    elsewhere = min(os.sched_getaffinity(0) - held.cpus_planned.ids)
    os.sched_setaffinity(workers.pid, {elsewhere})
    assert "not corrected: frozen" in node.event("pin.drift").message
    assert workers.masks()[workers.pid] == {elsewhere}
    (node.run_dir / "freeze").unlink()
    workers.until(held.cpus_planned.ids)


def test_without_consent_it_says_what_it_would_do(node: Node, workers: Workers) -> None:
    before = workers.masks()
    node.place(workers, "")
    node.start_actor()
    node.start()
    waiting = node.event("pin.waiting")
    assert "[pin] allow does not name threads" in waiting.message
    turns = node.status().turns
    node.status_when(lambda s: s.turns > turns + 4)
    assert workers.masks() == before


@pytest.mark.parametrize("on_stop", ["keep", "release"])
def test_a_stop_keeps_or_releases_as_configured(node: Node, workers: Workers, on_stop: str) -> None:
    before = workers.masks()
    node.place(workers, f"{CONSENT}pin.on_stop = '{on_stop}'\n")
    node.start_actor()
    node.start()
    node.status_when(lambda s: bool(s.held) and s.held[0].held)
    pinned = workers.masks()
    assert pinned != before
    assert node.stop() == 0
    assert workers.masks() == (before if on_stop == "release" else pinned)
    assert ("were undone" if on_stop == "release" else "pins stay") in node.log


def test_new_threads_and_new_processes_are_placed(node: Node, workers: Workers) -> None:
    node.place(workers, CONSENT)
    node.start_actor()
    node.start()
    held = node.status_when(lambda s: bool(s.held) and s.held[0].held).held[0]
    os.kill(workers.pid, signal.SIGUSR1)
    node.status_when(lambda s: len(s.held[0].threads) == workers.count + 1)
    workers.until(held.cpus_planned.ids)
    assert not [e for e in node.events() if e.kind == "pin.drift"]
    workers.again()
    node.status_when(lambda s: bool(s.held) and s.held[0].pid == workers.pid and s.held[0].held)
    assert set(workers.masks().values()) == {held.cpus_planned.ids}


def test_an_actor_that_dies_is_missed_and_found_again(node: Node, workers: Workers) -> None:
    node.place(workers, CONSENT)
    node.start_actor()
    node.start()
    node.status_when(lambda s: bool(s.held) and s.held[0].held)
    pinned = workers.masks()
    node.kill_actor()
    node.event("actor.down")
    assert workers.masks() == pinned
    node.start_actor()
    node.event("actor.up")
    turns = node.status().turns
    node.status_when(lambda s: s.turns > turns + 2)
    assert workers.masks() == pinned
    assert not [e for e in node.events() if e.kind in ("pin.drift", "pin.undone")]


def test_undone_by_a_person_it_stays_undone(node: Node, workers: Workers) -> None:
    before = workers.masks()
    node.place(workers, CONSENT)
    node.start_actor()
    node.start()
    node.status_when(lambda s: bool(s.held) and s.held[0].held)
    node.undo()
    assert workers.masks() == before
    node.event("pin.undone")
    turns = node.status().turns
    node.status_when(lambda s: s.turns > turns + 4)
    assert workers.masks() == before


def test_as_nobody_it_observes_and_pins_nothing(node: Node, workers: Workers) -> None:
    before = workers.masks()
    node.place(workers, CONSENT)
    node.give_to_nobody()
    node.start_actor()
    node.start(as_nobody=True)
    assert "may not speak to the actor" in node.event("actor.down").message
    status = node.status_when(lambda s: bool(s.held))
    assert "no actor" in status.sentence and workers.masks() == before
