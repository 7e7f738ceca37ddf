"""In a machine: asks the actor for one value of the host, as the daemon would.

/opt/nodeagent/bin/python ask.py KNOB SUBJECT VALUE
"""

import asyncio
import sys
from pathlib import Path

from nodeagent.model.placement import Knob, SetValue
from nodeagent.pin.client import ActorClient


async def main(knob: str, subject: str, value: str) -> None:
    client = ActorClient(Path("/run/nodeagent/actor.sock"))
    asked = SetValue(workload="", knob=Knob(knob), subject=subject, value=value, before="")
    done = await client.perform(asked, why="tests/vm")
    print(done.outcome, done.message)
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
