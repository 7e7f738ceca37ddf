"""The agent's side as a process: a spool, a session, a storm of numbered events.

agent.py ADDRESS STATE_DIR FIRST TICKS NAME: records events "n FIRST" and up, prints the number of
the last stored one after each record, and ends when the controller has committed all.
"""

from __future__ import annotations

import asyncio
import pathlib
import sys

from nodeagent.rpc.session import Session
from nodeagent.rpc.spool import Spool

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests.rpc.world import Source, event, status, topology


async def main(address: str, state_dir: str, first: int, ticks: int, name: str) -> None:
    spool = Spool.open(state_dir)
    source = Source(status(name, spool.identity.agent_uuid), topology())
    session = Session(
        spool,
        source,
        address=address,
        hostname=name,
        version="0.1.0",
        state_interval_s=0.05,
        heartbeat_s=0.5,
        backoff_s=(0.05, 0.5),
    )
    running = asyncio.create_task(session.run())
    tick = first
    while tick < first + ticks:
        size = min(1 + tick % 7, first + ticks - tick)
        stored = await session.record([event(tick + i) for i in range(size)])
        assert len(stored) == size
        tick += size
        print(tick - 1, flush=True)
        source.move()
    if not await session.drained(100):
        print(session.link(), file=sys.stderr)
        raise SystemExit(1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await session.close()


if __name__ == "__main__":
    _, where, state, begin, count, called = sys.argv
    asyncio.run(main(where, state, int(begin), int(count), called))
