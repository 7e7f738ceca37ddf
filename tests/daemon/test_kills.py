"""kill -9 of the daemon at any moment under a pinned workload: no mask changes by one bit.

Where the kill falls into an action, the actor has it: it is completed (or, with the actor killed
too, reverted by its journal), and the next daemon goes on.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import TYPE_CHECKING

import pytest

from nodeagent.pin.client import ActorClient

if TYPE_CHECKING:
    from tests.daemon.conftest import Node, Workers

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("as_root", "two_cpus")]

CONSENT = "pin.allow = ['threads']\npin.auto = ['threads']\n"
KILLS = int(os.environ.get("NODEAGENT_KILLS", "6"))
"""100 with NODEAGENT_KILLS=100; the last result stands in docs/proofs.md."""


def in_force(node: Node) -> list[tuple[str, int, str]]:
    async def read() -> list[tuple[str, int, str]]:
        client = ActorClient(node.run_dir / "actor.sock")
        try:
            return [(e.state, e.pid, str(e.cpus)) for e in await client.journal()]
        finally:
            await client.close()

    return asyncio.run(read())


def test_kills_and_restarts_change_no_mask(node: Node, workers: Workers) -> None:
    seed = int(time.time())
    chance = random.Random(seed)
    node.place(workers, CONSENT)
    node.start_actor()
    node.start()
    node.status_when(lambda s: bool(s.held) and s.held[0].held)
    pinned, journal = workers.masks(), in_force(node)
    assert len(set(pinned.values())) == 1 and journal
    for i in range(KILLS):
        # From before its first instruction to some turns after it has adopted.
        time.sleep(chance.uniform(0, 1.5))
        node.kill()
        assert workers.masks() == pinned, (seed, i)
        node.start(wait=False)
    node.status_when(lambda s: bool(s.held) and s.held[0].held and s.turns > 3)
    assert workers.masks() == pinned, seed
    assert in_force(node) == journal
    assert not [e for e in node.events() if e.kind in ("pin.drift", "pin.done")][1:]
    seqs = [e.seq for e in node.events()]
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
    assert node.stop() == 0
    node.undo()
    assert set(workers.masks().values()) != set(pinned.values())


def test_killed_while_an_action_is_under_way(node: Node, workers: Workers) -> None:
    """Daemon and actor die while threads are being pinned: whole or as before, then whole."""
    seed = int(time.time())
    chance = random.Random(seed)
    before = set(workers.masks().values())
    node.place(workers, CONSENT)
    for i in range(3):
        node.start_actor()
        node.start(wait=False)
        time.sleep(chance.uniform(0.2, 0.9))
        node.kill()
        node.kill_actor()
        node.start_actor()
        masks = set(workers.masks().values())
        states = {state for state, _, _ in in_force(node)}
        assert states <= {"done"}, (seed, i)
        if states:
            assert all(len(mask) == 1 for mask in masks), (seed, i)
        else:
            assert masks == before, (seed, i)
        node.kill_actor()
    node.start_actor()
    node.start()
    node.status_when(lambda s: bool(s.held) and s.held[0].held)
    node.undo()
    assert set(workers.masks().values()) == before
