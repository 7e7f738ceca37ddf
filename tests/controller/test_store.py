"""The store's writer: what one sender may do to the others."""

from __future__ import annotations

import asyncio
import pathlib

import pytest

from nodeagent.controller.store import MAX_NODES, Caller, NewEvent, Store, StoreError
from nodeagent.errors import NodeagentError


def caller(number: int) -> Caller:
    return Caller(
        uuid=f"00000000-0000-0000-0000-{number:012}",
        epoch=1,
        hostname=f"n{number}",
        version="0",
        instance="i",
        boot_id="b",
        address="a",
    )


def test_a_job_that_does_not_fit_harms_no_other_of_its_transaction(tmp_path: pathlib.Path) -> None:
    async def run() -> None:
        store = Store.open(tmp_path)
        for number in (1, 2):
            await (await store.greet(caller(number)))
        giant = NewEvent(1, 1 << 70, b"x")
        for _ in range(20):
            bad = await store.add_events(caller(1), [giant], [])
            good = await store.add_events(caller(2), [NewEvent(1, 1, b"x")], [])
            with pytest.raises(StoreError, match="does not fit"):
                await bad
            assert await good == 1
        assert store.trouble == ""
        assert [e.hostname for e in await store.events(uuid=None, after_id=0, limit=9)] == ["n2"]
        store.close()

    asyncio.run(run())


def test_so_many_nodes_are_kept_and_a_further_one_is_told(tmp_path: pathlib.Path) -> None:
    async def run() -> None:
        store = Store.open(tmp_path)
        waiting = [await store.greet(caller(i)) for i in range(MAX_NODES)]
        await asyncio.gather(*waiting)
        with pytest.raises(NodeagentError, match=f"keeps {MAX_NODES} nodes"):
            await (await store.greet(caller(MAX_NODES)))
        # One that is known comes back as it likes.
        assert (await (await store.greet(caller(7)))).committed_seq == 0
        assert len(await store.nodes()) == MAX_NODES
        store.close()

    asyncio.run(run())
