"""The daemon's side of the actor: one action at a time, its result kept for the next turn.

The actor may be missing, die or hang; the daemon observes on, says so and tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from nodeagent.daemon.state import CONNECTING, Done, Journal, Wanted
from nodeagent.errors import NodeagentError, UnavailableError
from nodeagent.model.cgroup import Container
from nodeagent.model.deadlines import WATCH_S
from nodeagent.model.placement import Action, ActionResult, Outcome

RETRY_S = 2.0
"""Pause before another try to reach the actor, doubled up to RETRY_MAX_S."""

RETRY_MAX_S = 30.0


class Actor(Protocol):
    """A connection to the actor. Every call raises NodeagentError when the connection is lost."""

    pid: int | None
    """Its process, where the socket tells."""

    async def perform(self, action: Action, why: str) -> ActionResult:
        """Performs one action; `why` goes into its audit record."""

    async def undo(self, workload: str, why: str) -> str:
        """Undoes what is in force of one workload; says what was done."""

    async def release(self) -> str:
        """Undoes everything that is in force; says what was done."""

    async def journal(self) -> Journal:
        """What is in force."""

    async def containers(self, cgroups: tuple[str, ...]) -> tuple[tuple[Container, ...], str]:
        """(what root's files say of the containers of those cgroups, why some are missing)."""

    async def close(self) -> None:
        """Ends the connection."""


Errand = Callable[[Actor], Awaitable[None]]
"""Something else that is asked of the actor between two actions."""

MAX_ERRANDS = 8
"""More than these cannot wait; the oldest is dropped, and asked again at its own rate."""


class Acting:
    """Works through the queue that the turn sets."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Actor]],
        ask: Callable[[], None],
        clock_ns: Callable[[], int],
        up: Callable[[Actor], Awaitable[None]],
    ) -> None:
        self._connect = connect
        self._ask = ask
        self._clock_ns = clock_ns
        self._up = up
        self._queue: deque[Wanted] = deque()
        self._more = asyncio.Event()
        self._errands: deque[Errand] = deque()
        self._done: list[Done] = []
        self.actor: Actor | None = None
        self.reason: str | None = CONNECTING
        """Why there is no actor; None: there is."""
        self.busy: Action | None = None
        self._since_s = 0.0
        self._ended = False

    def replace(self, queue: tuple[Wanted, ...]) -> None:
        """The turn's newest decision; what waited from the one before is dropped."""
        self._queue = deque(queue)
        if queue:
            self._more.set()

    def errand(self, errand: Errand) -> None:
        """To be run before the next action, while there is an actor."""
        if self.actor is not None:
            self._errands.append(errand)
            if len(self._errands) > MAX_ERRANDS:
                self._errands.popleft()
            self._more.set()

    def take(self) -> tuple[Done, ...]:
        """Results since the last call."""
        done, self._done = tuple(self._done), []
        return done

    def within_deadline(self, now_s: float) -> bool:
        """Whether the oldest action is still within its deadline."""
        return self.busy is None or now_s - self._since_s < WATCH_S

    async def run(self) -> None:
        """Until cancelled: connects, works, and connects anew."""
        pause_s = RETRY_S
        while True:
            try:
                self.actor = await self._connect()
                await self._up(self.actor)
                self.reason = None
                pause_s = RETRY_S
                self._ask()
                with self._watched(self.actor.pid):
                    await self._work(self.actor)
            except NodeagentError as error:
                told, self.reason = self.reason, str(error)
                if told != self.reason:
                    self._ask()
            finally:
                self.busy = None
                self._errands.clear()
                actor, self.actor = self.actor, None
                if actor is not None:
                    await actor.close()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_MAX_S)

    @contextlib.contextmanager
    def _watched(self, pid: int | None) -> Iterator[None]:
        """Notices the actor's end at once, not at the next question."""
        loop = asyncio.get_running_loop()
        self._ended = False
        try:
            fd = None if pid is None else os.pidfd_open(pid)
        except OSError:
            fd, self._ended = None, True
        if fd is not None:
            loop.add_reader(fd, self._end)
        try:
            yield
        finally:
            if fd is not None:
                loop.remove_reader(fd)
                os.close(fd)

    def _end(self) -> None:
        self._ended = True
        self._more.set()

    async def _work(self, actor: Actor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._ended:
                await self._more.wait()
            if self._ended:
                raise UnavailableError(f"its process (pid {actor.pid}) has ended")
            if self._errands:
                await self._errands.popleft()(actor)
                continue
            if not self._queue:
                self._more.clear()
                continue
            wanted = self._queue.popleft()
            action = wanted.action
            self.busy, self._since_s = action, loop.time()
            try:
                result = await actor.perform(action, wanted.why)
            except NodeagentError as error:
                # Whether it was done is not known; the journal will tell after the reconnection.
                result = ActionResult(outcome=Outcome.FAILED, message=str(error))
                self._done.append(Done(action=action, result=result, at_ns=self._clock_ns()))
                raise
            finally:
                self.busy = None
            self._done.append(Done(action=action, result=result, at_ns=self._clock_ns()))
            # Processes that ended while they waited change nothing for those behind them.
            if not self._queue or result.outcome not in (Outcome.DONE, Outcome.GONE):
                self._ask()
