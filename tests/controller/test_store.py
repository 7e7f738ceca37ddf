"""The store's writer: what one sender may do to the others."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import pathlib
import sqlite3

import pytest

from nodeagent.controller.store import Store, StoreError
from nodeagent.controller.tables import (
    MAX_EPOCHS,
    MAX_GAPS,
    MAX_NODES,
    Caller,
    Gap,
    NewEvent,
)
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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_the_writer_is_told_to_all_who_wait(tmp_path: pathlib.Path) -> None:
    told: list[str] = []

    async def run() -> None:
        store = Store.open(tmp_path)
        store.on_trouble(told.append)
        await (await store.greet(caller(1)))
        fault = NewEvent(None, 1, b"x")  # type: ignore[arg-type]
        waiting = [
            await store.add_events(caller(1), [fault], []),
            await store.add_events(caller(1), [NewEvent(1, 1, b"x")], []),
        ]
        for one in waiting:
            with pytest.raises(StoreError, match="own fault"):
                await one
        with pytest.raises(StoreError, match="own fault"):
            await (await store.greet(caller(2)))
        # Those who wait are told first.
        while not told:
            await asyncio.sleep(0.005)
        assert store.failed and len(told) == 1
        # Reads stay, and nothing of the failed transaction is there.
        assert [n.hostname for n in await store.nodes()] == ["n1"]
        assert await store.last_id() == 0
        store.close()

    asyncio.run(run())


def test_gaps_and_epochs_are_bounded_and_stay_counted(tmp_path: pathlib.Path) -> None:
    async def run() -> None:
        store = Store.open(tmp_path)
        one = caller(1)
        await (await store.greet(one))
        events, gaps = [], []
        for i in range(MAX_GAPS + 20):
            gaps.append(Gap(first_seq=3 * i + 1, last_seq=3 * i + 2, reason=1))
            events.append(NewEvent(3 * i + 3, i, b"x"))
        await (await store.add_events(one, events, gaps))
        assert [n.lost_events for n in await store.nodes()] == [2 * (MAX_GAPS + 20)]
        for epoch in range(2, MAX_EPOCHS + 10):
            later = dataclasses.replace(one, epoch=epoch)
            await (await store.greet(later))
            await (await store.add_events(later, [NewEvent(1, 1, b"x")], []))
        store.close()

    asyncio.run(run())
    with contextlib.closing(sqlite3.connect(tmp_path / "fleet.db")) as db:
        assert db.execute("SELECT count(*), min(first_seq) FROM gap").fetchone() == (MAX_GAPS, 61)
        assert db.execute("SELECT gaps, events FROM forgotten").fetchall() == [(20, 40)]
        found = db.execute("SELECT count(*), max(epoch) FROM journal").fetchone()
        assert found == (MAX_EPOCHS, MAX_EPOCHS + 9)
