"""The main job, step by step: start, run, stop in order, undo, sum up.

controller -> actor -> daemon -> feeder -> workloads -> replayer; stopped the other way round, but
for the pins: they are undone while their workloads still live, so that the undo can be read back.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import pathlib
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nodeagent.cli.output import note
from nodeagent.cli.standalone.children import Child, Children, end_leftovers
from nodeagent.cli.standalone.cost import CostMeter
from nodeagent.cli.standalone.reference import vwap_sums
from nodeagent.cli.standalone.summary import ReaderResult, Undone, summary
from nodeagent.cli.standalone.view import OwnCost, VectorLoad, View
from nodeagent.cli.standalone.workplace import LOCK, RUN_DIR, STATE_DIR, Workplace
from nodeagent.errors import NodeagentError
from nodeagent.model.configfile import parse, shown
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.settings import Config
from nodeagent.model.status import NodeStatus
from nodeagent.pin.client import ActorClient
from nodeagent.rpc.client import NodeClient

FEED = "itch"
GROUP = "239.192.77.1"
READY_S = 30.0
"""How long a child may take to get ready on a loaded machine."""
SETTLE_S = 10.0
"""How long the daemon may take to place and pin the workloads."""
TICK_S = 10.0
"""No pause is longer, whatever happens."""
DRAIN_S = 5.0
DRAIN_POLL_S = 0.1
CAPTURE_MESSAGES = 50_000
MARK = "nodeagent-example-"
"""What the example workloads match; each run puts a mark of its own in its place."""


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


UNDO_S = 10.0
"""How long the actor may take to undo everything when the run fails."""


class RunError(NodeagentError):
    """The job ended before it was told to; the host is as it was before (contract: acts)."""

    exit_code = 1


class Stopped(Exception):  # noqa: N818  # not an error: the way out of the loop
    """Raised inside the job when the person, or the clock, says stop."""


@dataclass(slots=True)
class Job:
    """One run. `show` is called with each View; it may draw a screen or do nothing."""

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
    _undone: bool = False
    """The orderly stop has been through the undo."""
    _wake: int = -1
    _load: Child | None = None
    _client: NodeClient | None = None
    _meter: CostMeter | None = None
    _cost: OwnCost | None = None
    _last: tuple[int, int] = (0, 0)
    _rate: float = 0.0
    _next_status: float = 0.0

    def __post_init__(self) -> None:
        self.children = Children(self.work.run_dir)

    # ---- the whole ----------------------------------------------------------------------------

    def run(self) -> Mapping[str, object]:
        """Runs the main job; returns the summary. Raises NodeagentError; leaves nothing behind."""
        self._catch_signals()
        self.work.lock()
        self.began = time.monotonic()
        try:
            self._clear_up()
            return self._run()
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise RunError(
                f"{error.filename or self.work.run_dir}: {error.strerror}, expected "
                + ("room for the run's files" if full else "a file that can be read and written"),
                f"make room there, or set {RUN_DIR} and {STATE_DIR} to other folders"
                if full
                else f"set {RUN_DIR} and {STATE_DIR} to folders of yours",
            ) from error
        finally:
            self.step = "stopping"
            if not self._undone:
                self._undo_rest()
            self.children.stop_all()
            self._keep_logs()
            self.work.leave()

    def _clear_up(self) -> None:
        """Ends what a run that was killed has left, and says so."""
        ended = end_leftovers(self.children.record)
        for sentence in ended:
            self.say(sentence)
        if self.work.earlier_pid is not None:
            what = "" if ended else "; its processes have ended"
            self.say(
                f"an earlier run (pid {self.work.earlier_pid}) was killed before it could stop in "
                f"order{what}; its folder {self.work.run_dir} is used anew"
            )
        for entry in self.work.run_dir.iterdir():
            if entry.name != LOCK and not entry.is_dir():
                entry.unlink()

    def _undo_rest(self) -> None:
        """After a failure: undoes what is still in force, while its processes live."""
        actor = next((c for c in self.children.running if c.name == "actor" and c.alive), None)
        if actor is None:
            if self._pinned():
                self.say("the actor is gone: the pinned processes are stopped instead of unpinned")
            return

        async def ask() -> tuple[int, int]:
            async with asyncio.timeout(UNDO_S):
                client = ActorClient(self.work.run_dir / "actor.sock")
                before = len(await client.journal())
                if before:
                    await client.undo(why="the run failed")
                left = len(await client.journal())
                await client.close()
                return before, left

        try:
            before, left = asyncio.run(ask())
        except (NodeagentError, TimeoutError) as error:
            self.say(f"the changes could not be undone, so their processes are stopped: {error}")
            return
        if before:
            self.say(f"{before - left} of {before} changes to the host were undone")

    def _pinned(self) -> bool:
        return self.status is not None and any(h.pid and h.held for h in self.status.held)

    def _keep_logs(self) -> None:
        folder = os.environ.get("NODEAGENT_KEEP_LOGS")
        if not folder:
            return
        target = self.work.state_dir / "log"
        shutil.rmtree(target, ignore_errors=True)
        try:
            shutil.copytree(self.work.run_dir / "log", target, dirs_exist_ok=True)
        except OSError as error:
            self.say(f"the children's output could not be kept in {target}: {error}")
            return
        self.say(f"the children's output is in {target}")

    def _run(self) -> Mapping[str, object]:
        address = self._start_controller()
        config = self._configure(address)
        capture = self._make_capture()
        actor = self._start_actor(config)
        daemon = self._start_daemon(config)
        port = self._start_feeder()
        agent, index, load = self._start_workloads()
        self._settle(daemon)
        self._meter = CostMeter(pids=tuple(c.pid for c in (actor, daemon) if c is not None))
        replayer = self._start_replayer(capture, port)
        self._meter.start()
        self.running_since = time.monotonic()
        self.step = "running"
        try:
            while True:
                self._tick()
        except Stopped:
            self.step = "stopping"
        seconds = time.monotonic() - self.running_since
        cost = self._meter.read(fresh=True)
        sent, feed_seconds = self._stop_replayer(replayer)
        self._drain(sent)
        self._read_vector(load)
        self.children.stop(load)
        self._read_vector(load)
        final = self._refresh(force=True)
        assert final is not None
        if not final.controller.connected:
            self.say(
                f"the controller did not take all reports ({final.controller.unacknowledged} "
                f"left, kept on disk): {final.controller.reason or 'not connected'}"
            )
        undone = self._undo(daemon, actor, (agent, index))
        self._undone = True
        reader = self._finish_agent(agent, capture, sent)
        self.children.stop(index)
        return summary(
            seconds=seconds,
            feed_seconds=feed_seconds,
            status=final,
            sent=sent,
            readers=(reader,),
            vector=self.vector,
            cost=cost,
            undone=undone,
        )

    # ---- waiting ------------------------------------------------------------------------------

    def _catch_signals(self) -> None:
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._wake = reader

        def stop(*_: object) -> None:
            self.stopping = True

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, stop)
        # Only a signal with a handler ends a pause: a child's end is noticed at once, unpolled.
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def _pause(self, seconds: float) -> None:
        """Sleeps, but not past a signal."""
        if self.stopping:
            return
        ready, _, _ = select.select([self._wake], [], [], seconds)
        if ready:
            os.read(self._wake, 64)

    def _await(
        self, what: str, condition: Callable[[], bool], child: Child, limit_s: float = READY_S
    ) -> None:
        """Waits for a child to get ready. NodeagentError when it ends or takes too long."""
        self.step = what
        self.show(self.view())
        deadline = time.monotonic() + limit_s
        while not condition():
            if self.stopping:
                raise self._stopped_early()
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
            self._pause(0.05)

    def _stopped_early(self) -> NodeagentError:
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

    # ---- one moment ---------------------------------------------------------------------------

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

    def _tick(self) -> None:
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
        self._refresh()
        rest = TICK_S if self.options.seconds is None else self.options.seconds - elapsed
        self._pause(max(0.0, min(rest, TICK_S, self._next_status - time.monotonic())))

    def _refresh(self, *, force: bool = False) -> NodeStatus | None:
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
        if self._load is not None:
            self._read_vector(self._load)
        if self._meter is not None and self.running_since and self.options.live:
            self._cost = self._meter.read()
        self.show(self.view())
        return self.status

    # ---- starting -----------------------------------------------------------------------------

    def _tool(self, name: str) -> str:
        return str(pathlib.Path(sys.executable).with_name(name))

    def _start_controller(self) -> str:
        """Starts it on the configured port, or on a free one where that is taken."""
        wanted = parse(self.options.config.read_text(), str(self.options.config))
        address = wanted.config.controller.address
        host, _, port = address.rpartition(":")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, int(port)))
            except OSError as error:
                self.say(f"{address}: {error.strerror}; the controller takes a free port instead")
                port = "0"
        port_file = self.work.run_dir / "controller.port"
        child = self.children.start(
            "controller",
            [
                self._tool("nodeagent-controller"),
                *("--listen", f"{host}:{port}"),
                *("--state-dir", str(self.work.state_dir / "controller")),
                *("--port-file", str(port_file)),
            ],
        )
        self._await("starting the controller", port_file.exists, child)
        return f"{host}:{port_file.read_text().strip().rpartition(':')[2]}"

    def _configure(self, address: str) -> pathlib.Path:
        """Writes the daemon's configuration of this run from the example's."""
        loaded = parse(self.options.config.read_text(), str(self.options.config))
        config = loaded.config
        root = os.geteuid() == 0
        host = self.options.host
        state_dir = self.work.state_dir
        if host is not None:
            self.say(
                f"recorded machine {host}: verdict and plan are that machine's; here nothing is "
                "pinned and no eBPF program is loaded"
            )
            # Another node than this one: events and identity of its own.
            state_dir = state_dir / "recorded"
            state_dir.mkdir(mode=0o700, exist_ok=True)
        elif not root:
            self.say(
                "not root: this run observes; threads are not pinned, eBPF programs are not "
                "loaded (run it with sudo for both)"
            )
        config = dataclasses.replace(
            config,
            daemon=dataclasses.replace(
                config.daemon,
                run_dir=str(self.work.run_dir),
                state_dir=str(state_dir),
            ),
            pin=config.pin
            if root and host is None
            else dataclasses.replace(config.pin, allow=(), auto=()),
            place=dataclasses.replace(config.place, workloads=str(self._own_workloads())),
            controller=dataclasses.replace(config.controller, address=address),
        )
        path = self.work.run_dir / "nodeagent.toml"
        path.write_text(as_toml(config))
        return path

    def _own_workloads(self) -> pathlib.Path:
        """The example's workload file, matching the processes of this run and of no other."""
        text = (self.options.examples / "workloads.toml").read_text()
        path = self.work.run_dir / "workloads.toml"
        path.write_text(text.replace(MARK, self._mark))
        return path

    @property
    def _mark(self) -> str:
        return f"nodeagent-run-{os.getpid()}-"

    def _make_capture(self) -> pathlib.Path:
        path = self.work.run_dir / "itch.pcap"
        child = self.children.start(
            "synth",
            [
                self._tool("nodeagentctl"),
                *("feed", "synth", str(path)),
                *("--messages", str(CAPTURE_MESSAGES), "--symbols", "32", "--seed", "1"),
            ],
        )
        self.step = "making a capture"
        while child.alive and not self.stopping:
            self.show(self.view())
            self._pause(0.05)
        if self.stopping:
            raise self._stopped_early()
        if self.children.stop(child) != 0:
            raise NodeagentError(
                f"the capture could not be made: {child.complaint()}",
                f"make room there, or set {RUN_DIR} to a folder with some",
            )
        return path

    def _start_actor(self, config: pathlib.Path) -> Child | None:
        """The actor, for root only: others have nothing it could do for them; nor has --host."""
        if os.geteuid() != 0 or self.options.host is not None:
            return None
        child = self.children.start(
            "actor",
            [
                self._tool("nodeagent-actor"),
                *("--config", str(config)),
                *("--run-dir", str(self.work.run_dir), "--state-dir", str(self.work.state_dir)),
                *("--allow", "threads"),
            ],
        )
        self._await("starting the actor", (self.work.run_dir / "actor.sock").exists, child)
        for line in child.log.read_text(errors="replace").splitlines():
            # What it found in the journal of a run that was killed.
            said = line.removeprefix("nodeagent-actor: ")
            if not said.startswith("ready on "):
                self.say(said)
        return child

    def _start_daemon(self, config: pathlib.Path) -> Child:
        argv = [self._tool("nodeagentd"), "--config", str(config)]
        if self.options.host is not None:
            argv += ["--host", self.options.host]
        child = self.children.start("daemon", argv)
        self._await("reading the machine", self._answers, child)
        return child

    def _answers(self) -> bool:
        if not (self.work.run_dir / "api.sock").exists():
            return False
        try:
            self._refresh(force=True)
        except NodeagentError:
            return False
        return self.status is not None and bool(self.status.findings)

    def _start_feeder(self) -> int:
        """The feeder, listening; returns its port."""
        child = self.children.start(
            "feeder",
            [
                self._tool("nodeagent-feeder"),
                *("--name", FEED, "--source", "socket", "--first-seq", "1"),
                *("--group", GROUP, "--port", "0", "--interface", "lo"),
                *("--socket", str(self.work.run_dir / "ring.sock"), "-o", "json"),
            ],
        )
        self._await("starting the feeder", lambda: _has(child, "event", "offered"), child)
        ready = next(line for line in child.lines() if line.get("event") == "ready")
        lines = ready["lines"]
        assert isinstance(lines, list)
        return _number(lines[0]["port"])

    def _start_workloads(self) -> tuple[Child, Child, Child]:
        folder, run_dir = self.options.examples, self.work.run_dir
        agent = self.children.start(
            "vwap",
            [
                *self._memory_of("vwap"),
                *(sys.executable, str(folder / "vwap_agent.py"), "--feed", FEED, "--name", "vwap"),
                *("--socket", str(run_dir / "ring.sock"), "--mark", self._mark + "vwap"),
            ],
        )
        vector_socket = str(run_dir / "vector.sock")
        index = self.children.start(
            "vector",
            [
                *self._memory_of("vector"),
                *(sys.executable, str(folder / "vector_index.py"), "--socket", vector_socket),
                *("--name", self._mark + "vector"),
            ],
        )
        self._await("attaching the agent", lambda: _has(agent, "attached", True), agent)
        self._await("building the vector index", lambda: _has(index, "ready", True), index)
        load = self.children.start(
            "query-load", [sys.executable, str(folder / "query_load.py"), "--socket", vector_socket]
        )
        self._await("asking the vector index", lambda: bool(load.lines()), load)
        self._load = load
        return agent, index, load

    def _memory_of(self, workload: str) -> list[str]:
        """The wrapper that binds a workload's memory to its planned node: at launch or never.

        CPUs are the daemon's to set, so that the main job shows it.
        """
        placed = self.status.placement.of(workload) if self.status is not None else None
        if placed is None or not placed.mems or self.options.host is not None:
            return []
        return [self._tool("nodeagentctl"), "exec", "--mems", str(placed.mems), "--"]

    def _settle(self, daemon: Child) -> None:
        """Until the daemon holds both workloads, or has said why it does not."""
        if os.geteuid() != 0 or self.options.host is not None:
            return
        deadline = time.monotonic() + SETTLE_S

        def held() -> bool:
            now = self._refresh(force=True)
            both = now is not None and len(now.held) == 2 and all(h.held for h in now.held)
            return both or time.monotonic() > deadline

        self._await("placing the workloads", held, daemon, limit_s=2 * SETTLE_S)
        if self.status is None or not all(h.held for h in self.status.held):
            self.say(f"not every workload is pinned: {self.status and self.status.sentence}")

    def _start_replayer(self, capture: pathlib.Path, port: int) -> Child:
        child = self.children.start(
            "replayer",
            [
                self._tool("nodeagentctl"),
                *("-o", "json", "feed", "replay", str(capture)),
                *("--group", GROUP, "--port", str(port), "--interface", "lo"),
                *("--rate", str(self.options.rate), "--loop"),
            ],
        )

        def flows() -> bool:
            now = self._refresh(force=True)
            return now is not None and any(f.messages for f in now.feeds)

        self._await("starting the feed", flows, child)
        return child

    # ---- stopping -----------------------------------------------------------------------------

    def _stop_replayer(self, replayer: Child) -> tuple[int, float]:
        """Ends the feed; returns how many messages were sent, and in how many seconds."""
        self.children.stop(replayer)
        said = next((line for line in replayer.lines() if "sent_messages" in line), None)
        if said is None:
            raise NodeagentError(
                f"the replayer did not say what it sent: {replayer.complaint()}",
                "run it again with NODEAGENT_KEEP_LOGS=1 and read its log",
            )
        return _number(said["sent_messages"]), float(str(said["seconds"]))

    def _drain(self, sent: int) -> None:
        """Until every message that was sent is in the ring or in a loss counter."""
        deadline = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline:
            now = self._refresh(force=True)
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

    def _read_vector(self, load: Child) -> None:
        lines = load.lines()
        if lines:
            self.vector = VectorLoad(
                **{
                    f.name: lines[-1][f.name]  # type: ignore[arg-type]  # our own program's line
                    for f in dataclasses.fields(VectorLoad)
                }
            )

    def _undo(self, daemon: Child, actor: Child | None, workloads: tuple[Child, ...]) -> Undone:
        """Stops the daemon, which releases its pins, and reads every mask back."""
        before = CpuSet.of(os.sched_getaffinity(0))
        if actor is None:
            self.children.stop(daemon)
            return Undone(actions=0, undone=0, verified=_masks_are(workloads, before))

        async def ask(undo: bool) -> int:
            client = ActorClient(self.work.run_dir / "actor.sock")
            if undo and await client.journal():
                await client.undo(why="end of the run")
            left = len(await client.journal())
            await client.close()
            return left

        actions = asyncio.run(ask(undo=False))
        self.children.stop(daemon)
        left = asyncio.run(ask(undo=True))
        verified = left == 0 and _masks_are(workloads, before)
        self.children.stop(actor)
        return Undone(actions=actions, undone=actions - left, verified=verified)

    def _finish_agent(self, agent: Child, capture: pathlib.Path, sent: int) -> ReaderResult:
        """The agent's own last words, held against the reference."""
        self.children.stop(agent)
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
            self.say(f"VWAP differs from the reference for {len(wrong)} symbols, first {wrong[0]}")
        return ReaderResult(
            name="vwap",
            records=_number(said["messages"]),
            lost=_number(said["lost"]),
            age_p50_us=float(str(said["age_p50_us"])),
            age_p99_us=float(str(said["age_p99_us"])),
            checked=equal,
        )


def as_toml(config: Config) -> str:
    """A configuration as a file; `[[feed]]` tables are left out: feeders are started by us."""
    loaded = parse("", "defaults")
    lines: list[str] = ["# Written by the main job; it goes when the job ends."]
    section = ""
    for key, value, _ in shown(dataclasses.replace(loaded, config=config)):
        name, _, setting = key.partition(".")
        if "[" in name:
            continue
        if name != section:
            lines += ["", f"[{name}]"]
            section = name
        lines.append(f"{setting} = {value}")
    return "\n".join(lines) + "\n"


def _ended(child: Child) -> str:
    """How a child ended, and what it said last."""
    status = child.process.returncode
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended by itself (status {status}): {child.complaint()}"


def _has(child: Child, key: str, value: object) -> bool:
    return any(line.get(key) == value for line in child.lines())


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value


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
