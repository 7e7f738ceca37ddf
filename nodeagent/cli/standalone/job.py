"""The main job, step by step: start, run, stop in order, undo, sum up.

controller -> actor -> daemon -> feeder -> workloads -> replayer; stopped the other way round, but
for the pins: they are undone while their workloads still live, so that the undo can be read back.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass

from nodeagent.cli.standalone import start, stop
from nodeagent.cli.standalone.children import end_leftovers
from nodeagent.cli.standalone.cost import CostMeter
from nodeagent.cli.standalone.summary import summary
from nodeagent.cli.standalone.watch import RunError, Stopped, Watch
from nodeagent.cli.standalone.workplace import LOCK, RUN_DIR, STATE_DIR
from nodeagent.errors import NodeagentError
from nodeagent.pin.client import ActorClient

UNDO_S = 10.0
"""How long the actor may take to undo everything when the run fails."""


@dataclass(slots=True)
class Job:
    """One run."""

    watch: Watch
    _undone: bool = False
    """The orderly stop has been through the undo."""

    def run(self) -> Mapping[str, object]:
        """Runs the main job; returns the summary. Raises NodeagentError; leaves nothing behind."""
        watch = self.watch
        watch.catch_signals()
        watch.work.lock()
        watch.began = time.monotonic()
        try:
            self._clear_up()
            return self._run()
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise RunError(
                f"{error.filename or watch.work.run_dir}: {error.strerror}, expected "
                + ("room for the run's files" if full else "a file that can be read and written"),
                f"make room there, or set {RUN_DIR} and {STATE_DIR} to other folders"
                if full
                else f"set {RUN_DIR} and {STATE_DIR} to folders of yours",
            ) from error
        finally:
            watch.step = "stopping"
            if not self._undone:
                self._undo_rest()
            watch.children.stop_all()
            self._keep_logs()
            watch.work.leave()

    def _clear_up(self) -> None:
        """Ends what a run that was killed has left, and says so."""
        watch = self.watch
        ended = end_leftovers(watch.children.record)
        for sentence in ended:
            watch.say(sentence)
        if watch.work.earlier_pid is not None:
            what = "" if ended else "; its processes have ended"
            watch.say(
                f"an earlier run (pid {watch.work.earlier_pid}) was killed before it could stop in "
                f"order{what}; its folder {watch.work.run_dir} is used anew"
            )
        for entry in watch.work.run_dir.iterdir():
            if entry.name != LOCK and not entry.is_dir():
                entry.unlink()

    def _undo_rest(self) -> None:
        """After a failure: undoes what is still in force, while its processes live."""
        watch = self.watch
        actor = next((c for c in watch.children.running if c.name == "actor" and c.alive), None)
        if actor is None:
            if self._pinned():
                watch.say("the actor is gone: the pinned processes are stopped instead of unpinned")
            return

        async def ask() -> tuple[int, int]:
            async with asyncio.timeout(UNDO_S):
                client = ActorClient(watch.work.run_dir / "actor.sock")
                before = len(await client.journal())
                if before:
                    await client.undo(why="the run failed")
                left = len(await client.journal())
                await client.close()
                return before, left

        try:
            before, left = asyncio.run(ask())
        except (NodeagentError, TimeoutError) as error:
            watch.say(f"the changes could not be undone, so their processes are stopped: {error}")
            return
        if before:
            watch.say(f"{before - left} of {before} changes to the host were undone")

    def _pinned(self) -> bool:
        watch = self.watch
        return watch.status is not None and any(h.pid and h.held for h in watch.status.held)

    def _keep_logs(self) -> None:
        watch = self.watch
        folder = os.environ.get("NODEAGENT_KEEP_LOGS")
        if not folder:
            return
        target = watch.work.state_dir / "log"
        shutil.rmtree(target, ignore_errors=True)
        try:
            shutil.copytree(watch.work.run_dir / "log", target, dirs_exist_ok=True)
        except OSError as error:
            watch.say(f"the children's output could not be kept in {target}: {error}")
            return
        watch.say(f"the children's output is in {target}")

    def _run(self) -> Mapping[str, object]:
        watch = self.watch
        address = start.controller(watch)
        config = start.configure(watch, address)
        capture = start.capture(watch)
        actor = start.actor(watch, config)
        daemon = start.daemon(watch, config)
        port = start.feeder(watch)
        agent, index, load = start.workloads(watch)
        start.settle(watch, daemon)
        watch.meter = CostMeter(pids=tuple(c.pid for c in (actor, daemon) if c is not None))
        replayer = start.replayer(watch, capture, port)
        watch.meter.start()
        watch.running_since = time.monotonic()
        watch.step = "running"
        try:
            while True:
                watch.tick()
        except Stopped:
            watch.step = "stopping"
        seconds = time.monotonic() - watch.running_since
        cost = watch.meter.read(fresh=True)
        sent, feed_seconds = stop.replayer(watch, replayer)
        stop.drain(watch, sent)
        watch.read_vector(load)
        watch.children.stop(load)
        watch.read_vector(load)
        final = watch.refresh(force=True)
        assert final is not None
        if not final.controller.connected:
            watch.say(
                f"the controller did not take all reports ({final.controller.unacknowledged} "
                f"left, kept on disk): {final.controller.reason or 'not connected'}"
            )
        undone = stop.undo(watch, daemon, actor, (agent, index))
        self._undone = True
        reader = stop.agent(watch, agent, capture, sent)
        watch.children.stop(index)
        return summary(
            seconds=seconds,
            feed_seconds=feed_seconds,
            status=final,
            sent=sent,
            readers=(reader,),
            vector=watch.vector,
            cost=cost,
            undone=undone,
        )
