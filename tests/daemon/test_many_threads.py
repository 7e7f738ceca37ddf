"""A workload with thousands of threads, and one that makes thousands a second."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from nodeagent.model.placement import MAX_HELD_THREADS
from tests.daemon.conftest import affinity, wait_for

if TYPE_CHECKING:
    from tests.daemon.conftest import Node

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("as_root", "two_cpus")]

MANY = 2000
CROWD = f"""
import threading, time
threading.stack_size(65536)
stop = threading.Event()
for _ in range({MANY}):
    threading.Thread(target=stop.wait, daemon=True).start()
print("ready", flush=True)
stop.wait()
"""
STORM = """
import threading, time
threading.stack_size(65536)
print("ready", flush=True)
while True:
    threading.Thread(target=time.sleep, args=(0.05,), daemon=True).start()
    time.sleep(0.0005)
"""


@pytest.fixture
def crowd(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    code = request.param
    made = subprocess.Popen([sys.executable, "-c", code, "ndcrowd"], stdout=subprocess.PIPE)
    assert made.stdout is not None and made.stdout.readline() == b"ready\n"
    yield made
    made.kill()
    made.wait()
    made.stdout.close()


def configure(node: Node) -> None:
    (node.folder / "w.toml").write_text(
        '[[workload]]\nname = "w"\nkind = "custom"\ncpus = 1\nsharing = "shared"\n'
        'match = { cmdline = "ndcrowd$" }\n'
    )
    node.configure('place.workloads = "w.toml"\npin.allow = ["threads"]\npin.auto = ["threads"]\n')


@pytest.mark.parametrize("crowd", [CROWD], indirect=True)
def test_each_of_thousands_is_held_and_some_are_shown(
    node: Node, crowd: subprocess.Popen[bytes]
) -> None:
    before = affinity(crowd.pid)
    assert len(before) > MANY
    configure(node)
    node.start_actor()
    node.start()
    held = node.status_when(lambda s: bool(s.held) and s.held[0].held).held[0]
    masks = affinity(crowd.pid)
    assert set(masks.values()) == {frozenset(held.cpus_planned)} and len(masks) == len(before)
    assert held.thread_count == len(before) and len(held.threads) == MAX_HELD_THREADS
    assert node.stop() == 0
    node.undo()
    assert affinity(crowd.pid) == before


@pytest.mark.parametrize("crowd", [STORM], indirect=True)
def test_a_storm_is_answered_and_ends_as_it_began(
    node: Node, crowd: subprocess.Popen[bytes]
) -> None:
    configure(node)
    before = affinity(crowd.pid)[crowd.pid]
    node.start_actor()
    node.start()
    tried = ("pin.done", "pin.reverted", "pin.refused", "pin.failed")
    event = wait_for(lambda: [e for e in node.events() if e.kind in tried])[0]
    turns = node.status().turns
    status = node.status_when(lambda s: s.turns > turns)
    if event.kind == "pin.done":
        assert set(affinity(crowd.pid).values()) == {frozenset(status.held[0].cpus_planned)}
    else:
        assert "threads faster" in event.message, event
    assert node.stop() == 0
    if event.kind == "pin.done":
        node.undo()
    assert set(affinity(crowd.pid).values()) == {before}
