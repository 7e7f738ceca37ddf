"""The main job's eye on everything: signals, pauses, the children, what the daemon says."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from nodeagent.cli.output import note
from nodeagent.cli.standalone.children import Child, Children
from nodeagent.cli.standalone.cost import CostMeter
from nodeagent.cli.standalone.view import OwnCost, VectorLoad, View
from nodeagent.cli.standalone.workplace import Workplace
from nodeagent.errors import NodeagentError
from nodeagent.model.status import NodeStatus
from nodeagent.rpc.client import NodeClient

READY_S = 30.0
"""How long a child may take to get ready on a loaded machine."""
TICK_S = 10.0
"""No pause is longer, whatever happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the person asked for. `seconds` None: until stopped. `rate` in messages a second."""

    seconds: float | None
    """How long to run once everything is up."""
    rate: int
    host: str | None
    """Path of a recorded machine, judged and planned for instead of this one; nothing is pinned."""
    config: pathlib.Path
    examples: pathlib.Path
    live: bool
    """Whether there is a live screen: then our cost is read while it runs, and notes wait."""
    period_s: float
    """Pause between two questions to the daemon: asking and decoding is a cost of ours."""


class RunError(NodeagentError):
    """The job ended before it was told to; the host is as it was before (contract: acts)."""

    exit_code = 1


class Stopped(Exception):  # noqa: N818  # not an error: the way out of the loop
    """Raised inside the job when the person, or the clock, says stop."""


@dataclass(slots=True)
class Watch:
    """What one run knows. `show` is called with each View; it may draw a screen or do nothing."""

    options: Options
    work: Workplace
    show: Callable[[View], None]
    children: Children = field(init=False)
    status: NodeStatus | None = None
    vector: VectorLoad | None = None
    notes: list[str] = field(default_factory=list)
    step: str = "starting"
    began: float = 0.0
    running_since: float = 0.0
    """When everything was up; `--for` counts from here. 0.0: not yet."""
    stopping: bool = False
    load: Child | None = None
    """The query load, once it runs."""
    meter: CostMeter | None = None
    _wake: int = -1
    _client: NodeClient | None = None
    _cost: OwnCost | None = None
    _last: tuple[int, int] = (0, 0)
    _rate: float = 0.0
    _next_status: float = 0.0

    def __post_init__(self) -> None:
        self.children = Children(self.work.run_dir)

    def catch_signals(self) -> None:
        """From here on a signal stops the job in order, and a child's end ends a pause."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._wake = reader

        def stop(*_: object) -> None:
            self.stopping = True

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, stop)
        # Only a signal with a handler ends a pause: a child's end is noticed at once, unpolled.
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def pause(self, seconds: float) -> None:
        """Sleeps, but not past a signal."""
        if self.stopping:
            return
        ready, _, _ = select.select([self._wake], [], [], seconds)
        if ready:
            os.read(self._wake, 64)

    def wait_for(
        self, what: str, condition: Callable[[], bool], child: Child, limit_s: float = READY_S
    ) -> None:
        """Waits for a child to get ready. NodeagentError when it ends or takes too long."""
        self.step = what
        self.show(self.view())
        deadline = time.monotonic() + limit_s
        while not condition():
            if self.stopping:
                raise self.stopped_early()
            if not child.alive:
                raise NodeagentError(
                    f"{child.name} ended while {what}: {child.complaint()}",
                    "run it again with NODEAGENT_KEEP_LOGS=1 and read its log",
                )
            if time.monotonic() > deadline:
                raise NodeagentError(
                    f"{child.name} was not ready after {limit_s:.0f} s ({what}): "
                    f"{child.complaint()}",
                    "is the machine overloaded? see the load in /proc/loadavg",
                )
            self.show(self.view())
            self.pause(0.05)

    def stopped_early(self) -> NodeagentError:
        """The error of a job that was stopped before it ran."""
        return NodeagentError(
            f"stopped while {self.step}, before the job ran; what had been started was stopped, "
            "and nothing stays changed",
            "start it again: script/run",
        )

    def say(self, sentence: str) -> None:
        """A note, once: on the screen, or on stderr where there is no screen."""
        if sentence in self.notes:
            return
        self.notes.append(sentence)
        if not self.options.live:
            note(f"note: {sentence}")

    def view(self) -> View:
        """This moment."""
        return View(
            elapsed_s=time.monotonic() - (self.running_since or self.began),
            planned_s=self.options.seconds,
            step=self.step,
            status=self.status,
            rate_per_s=self._rate,
            vector=self.vector,
            cost=self._cost,
            notes=tuple(self.notes),
        )

    def tick(self) -> None:
        """One look at everything. Stopped when it is time."""
        elapsed = time.monotonic() - self.running_since
        if self.stopping or (self.options.seconds is not None and elapsed >= self.options.seconds):
            raise Stopped
        dead = self.children.dead()
        if dead is not None:
            raise RunError(
                f"{dead.name} (pid {dead.pid}) {_ended(dead)}; all others are stopped",
                "run it again with NODEAGENT_KEEP_LOGS=1 and read its log",
            )
        self.refresh()
        rest = TICK_S if self.options.seconds is None else self.options.seconds - elapsed
        self.pause(max(0.0, min(rest, TICK_S, self._next_status - time.monotonic())))

    def refresh(self, *, force: bool = False) -> NodeStatus | None:
        """Asks the daemon, at most once a period; shows the moment."""
        now = time.monotonic()
        if not force and now < self._next_status:
            return self.status
        self._next_status = now + self.options.period_s
        try:
            if self._client is None:
                self._client = NodeClient(str(self.work.run_dir / "api.sock"))
            self.status = self._client.status()
        except NodeagentError as error:
            if force:
                raise
            self.say(str(error))
            return self.status
        if self.status.feeds:
            # By the daemon's own clock: its figures are as of its last turn, not of our question.
            messages, at = self.status.feeds[0].messages, self.status.at_ns
            then, before = self._last
            if then and at > then:
                self._rate = max(0.0, (messages - before) * 1e9 / (at - then))
            self._last = (at, messages)
        if self.load is not None:
            self.read_vector(self.load)
        if self.meter is not None and self.running_since and self.options.live:
            self._cost = self.meter.read()
        self.show(self.view())
        return self.status

    def read_vector(self, load: Child) -> None:
        """The query load's last line, where it has said one."""
        lines = load.lines()
        if lines:
            self.vector = VectorLoad(
                **{
                    f.name: lines[-1][f.name]  # type: ignore[arg-type]  # our own program's line
                    for f in dataclasses.fields(VectorLoad)
                }
            )


def _ended(child: Child) -> str:
    """How a child ended, and what it said last."""
    status = child.process.returncode
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended by itself (status {status}): {child.complaint()}"


def number(value: object) -> int:
    """A whole number of a child's line."""
    assert isinstance(value, int)
    return value
