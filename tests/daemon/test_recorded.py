"""A recorded machine (`--host`): judged and planned for by the real daemon, never acted upon."""

from __future__ import annotations

import pathlib
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.daemon.conftest import Node, Workers

MACHINE = pathlib.Path(__file__).resolve().parent.parent / "hosts" / "two-socket-8gpu.capture"


def test_it_plans_for_the_recorded_machine_and_pins_nothing(
    node: Node, workers: Workers, as_root: None
) -> None:
    node.start_actor()
    before = workers.masks()
    node.place(workers, 'pin.allow = ["threads"]\npin.auto = ["threads"]')
    node.host = str(MACHINE)
    node.start()
    status = node.status_when(lambda s: bool(s.placement.placed) and bool(s.held))
    assert len(node.topology().online) == 32
    (placed,) = status.placement.placed
    assert placed.cpus and not status.held[0].held
    turns = status.turns
    node.status_when(lambda s: s.turns > turns + 3)
    assert workers.masks() == before
    assert node.stop() == 0


def test_a_path_that_is_no_machine_is_wrong_usage(node: Node) -> None:
    node.configure("")
    node.host = str(node.folder / "nothing")
    done = subprocess.run(node.command, capture_output=True, text=True)
    assert done.returncode == 64
    assert "nothing" in done.stderr and "remedy: " in done.stderr
