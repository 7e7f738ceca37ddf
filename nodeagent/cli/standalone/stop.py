"""The main job's stopping: feed, drain, pins, agent; what each says is read back and checked."""

from __future__ import annotations

import asyncio
import os
import pathlib
import time

from nodeagent.cli.standalone.children import Child
from nodeagent.cli.standalone.reference import vwap_sums
from nodeagent.cli.standalone.summary import ReaderResult, Undone
from nodeagent.cli.standalone.watch import Watch, number
from nodeagent.errors import NodeagentError
from nodeagent.model.cpuset import CpuSet
from nodeagent.pin.client import ActorClient

DRAIN_S = 5.0
DRAIN_POLL_S = 0.1


def replayer(watch: Watch, replayer: Child) -> tuple[int, float]:
    """Ends the feed; returns how many messages were sent, and in how many seconds."""
    watch.children.stop(replayer)
    said = next((line for line in replayer.lines() if "sent_messages" in line), None)
    if said is None:
        raise NodeagentError(
            f"the replayer did not say what it sent: {replayer.complaint()}",
            "run it again with NODEAGENT_KEEP_LOGS=1 and read its log",
        )
    return number(said["sent_messages"]), float(str(said["seconds"]))


def drain(watch: Watch, sent: int) -> None:
    """Until every message that was sent is in the ring or in a loss counter."""
    deadline = time.monotonic() + DRAIN_S
    while time.monotonic() < deadline:
        now = watch.refresh(force=True)
        if now is not None and now.feeds:
            f = now.feeds[0]
            lost = (f.loss.kernel or 0) + f.loss.backend + f.loss.decoder + f.loss.wire_gap
            link = now.controller
            if (
                f.messages + lost >= sent
                and all(r.lag_records == 0 for ring in now.rings for r in ring.readers)
                and not (link.connected and link.unacknowledged)
            ):
                return
        time.sleep(DRAIN_POLL_S)


def undo(watch: Watch, daemon: Child, actor: Child | None, workloads: tuple[Child, ...]) -> Undone:
    """Stops the daemon, which releases its pins, and reads every mask back."""
    before = CpuSet.of(os.sched_getaffinity(0))
    if actor is None:
        watch.children.stop(daemon)
        return Undone(actions=0, undone=0, verified=_masks_are(workloads, before))

    async def ask(undo: bool) -> int:
        client = ActorClient(watch.work.run_dir / "actor.sock")
        if undo and await client.journal():
            await client.undo(why="end of the run")
        left = len(await client.journal())
        await client.close()
        return left

    actions = asyncio.run(ask(undo=False))
    watch.children.stop(daemon)
    left = asyncio.run(ask(undo=True))
    verified = left == 0 and _masks_are(workloads, before)
    watch.children.stop(actor)
    return Undone(actions=actions, undone=actions - left, verified=verified)


def agent(watch: Watch, agent: Child, capture: pathlib.Path, sent: int) -> ReaderResult:
    """The agent's own last words, held against the reference."""
    watch.children.stop(agent)
    said = next((line for line in agent.lines() if line.get("final")), None)
    if said is None:
        raise NodeagentError(
            f"the agent did not report: {agent.complaint()}",
            "run it again with NODEAGENT_KEEP_LOGS=1 and read its log",
        )
    reference = vwap_sums(capture.read_bytes(), sent).by_symbol
    sums = said["sums"]
    assert isinstance(sums, dict)
    equal = {s: tuple(v) for s, v in sums.items()} == reference
    if not equal:
        every = sorted({*sums, *reference})
        wrong = [s for s in every if tuple(sums.get(s, ())) != reference.get(s)]
        watch.say(f"VWAP differs from the reference for {len(wrong)} symbols, first {wrong[0]}")
    return ReaderResult(
        name="vwap",
        records=number(said["messages"]),
        lost=number(said["lost"]),
        age_p50_us=float(str(said["age_p50_us"])),
        age_p99_us=float(str(said["age_p99_us"])),
        checked=equal,
    )


def _masks_are(workloads: tuple[Child, ...], cpus: CpuSet) -> bool:
    """Whether every thread of the workloads may run on exactly these CPUs."""
    for child in workloads:
        for task in pathlib.Path(f"/proc/{child.pid}/task").iterdir():
            try:
                if CpuSet.of(os.sched_getaffinity(int(task.name))) != cpus:
                    return False
            except ProcessLookupError:
                continue
    return True
