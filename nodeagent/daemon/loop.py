"""The loop: readings at their own rates, the turn, its decisions carried out.

Events set flags and fill bounded buffers; the turn looks. The loop never waits for a device, the
actor or the controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import nodeagent
from nodeagent.daemon.acting import Acting, Actor
from nodeagent.daemon.cgroups import spread
from nodeagent.daemon.cost import Costs
from nodeagent.daemon.cpusets import CpusetWatch
from nodeagent.daemon.links import event
from nodeagent.daemon.machine import MachineReader
from nodeagent.daemon.memory import Memories
from nodeagent.daemon.notify import Notifier
from nodeagent.daemon.setup import Doors, Link, Notices, Probe, Rings, Setup, set_up
from nodeagent.daemon.source import Log, Source
from nodeagent.daemon.state import (
    Decisions,
    Journal,
    Reading,
    Seen,
    State,
    Undo,
    Wanted,
    due_ns,
    to_keep,
)
from nodeagent.daemon.turn import turn
from nodeagent.errors import ActError, NodeagentError
from nodeagent.model.event import Event, Severity
from nodeagent.model.notice import Noticed
from nodeagent.model.placement import ProcessState
from nodeagent.model.probe import ProbeStatus
from nodeagent.model.settings import OnStop
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.status import ControllerLink, NodeStatus
from nodeagent.place.isolate import isolating

JOURNAL_S = 10.0
"""Pause between two looks into the undo journal, for what a person did with nodeagentctl."""

MAX_FAILED_TURNS = 10
"""So many turns in a row that met our own fault end the process; systemd starts it anew."""

STOP_S = 10.0
"""What a stop waits for: the action under way, the release, the last calls."""

log = logging.getLogger("nodeagentd")


class Loop:
    """The running daemon. `run` returns when it was told to stop."""

    def __init__(self, path: Path | None, setup: Setup, doors: Doors, notifier: Notifier) -> None:
        self._path = path
        self._setup = setup
        self._doors = doors
        self._notifier = notifier
        self._memory = Memories(Path(setup.loaded.config.daemon.state_dir))
        self._state = State(remembered=self._memory.read())
        self._notices: list[Event] = []
        self._wake = asyncio.Event()
        self._asked = False
        self._answered = False
        """What the last turn's decision hangs on is there."""
        self._follows = False
        """The last turn was started by such an answer; the next is not: it might ask for ever."""
        self._stopping = False
        self._last_ns = 0
        self._failed_turns = 0
        self._watched: frozenset[int] = frozenset()
        self._sentence = ""
        self._costs = Costs()
        self._probe: Probe | None = None
        self._no_probe = "no actor that could load it"
        if doors.host is not None:
            self._no_probe = "a recorded machine does not run"
        self._guard: Notices | None = None
        self._no_guard: str | None = None
        """Why the kernel tells nothing; None: it does, or nobody asked it to."""
        self._cpusets = CpusetWatch(self._ask, time.monotonic)
        self._waited: int | None = None
        """The guard's descriptor, while the loop waits for it."""
        self._took_ns = 0
        self._usual_ns = 0
        self._link: Link | None = None
        self._journal: Journal | None = None
        self._journal_s = 0.0
        self._snapshot: Snapshot | None = None
        self._snapshot_s = float("-inf")
        self._started_ns = time.time_ns()
        self._hostname = socket.gethostname()
        if doors.host is not None:
            self._hostname = f"{Path(doors.host).name} (recorded)"
        self._machine = MachineReader(self._ask, host=doors.host)
        run_dir = setup.run_dir
        self._freeze = run_dir / "freeze"
        self._acting = Acting(
            partial(doors.connect, run_dir / "actor.sock"), self._ask, time.time_ns, self._actor_up
        )
        self._log = Log.open(Path(setup.loaded.config.daemon.state_dir))
        self._rings: Rings | None = None
        self._source = Source(self._log, self._status(None))
        self._session: asyncio.Task[None] | None = None
        self._storing: set[asyncio.Task[None]] = set()
        self._ended: list[asyncio.Task[None]] = []
        """Of `_storing`, those that a fault of ours ended."""

    async def run(self) -> None:
        """Serves and turns until SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        config = self._setup.loaded.config
        self._rings = self._doors.rings(self._setup.run_dir / "ring.sock", config.ring)
        stop_serving = await self._doors.serve(
            self._setup.run_dir / "api.sock", self._source, config.daemon.group
        )
        self._dial(config.controller.address)
        acting = asyncio.create_task(self._acting.run())
        self._notice("daemon.started", Severity.INFO, f"nodeagentd {nodeagent.__version__} started")
        self._machine.start()
        self._snapshot_s = loop.time()
        self._notifier.ready()
        # What was made so far lives as long as the process; the collector need not look at it.
        gc.collect()
        gc.freeze()
        try:
            while not self._stopping:
                self._turn()
                self._watch_tasks(acting)
                await self._pause()
        finally:
            self._notifier.stopping()
            await self._end(acting, stop_serving)

    def _watch_tasks(self, acting: asyncio.Task[None]) -> None:
        """Raises what ended a task that runs as long as we do: a fault of ours that nobody waits
        for would leave the daemon without its actor, its controller or its events, and silent."""
        ended, self._ended = self._ended, []
        for task in (acting, self._session, *ended):
            if task is not None and task.done() and not task.cancelled():
                task.result()

    def _stored(self, task: asyncio.Task[None]) -> None:
        self._storing.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._ended.append(task)
            self._wake.set()

    def _stop(self) -> None:
        self._stopping = True
        self._wake.set()

    def _ask(self) -> None:
        """Something happened: the next turn comes early."""
        self._asked = True
        self._wake.set()

    def _notice(self, kind: str, severity: Severity, message: str, remedy: str = "") -> None:
        self._notices.append(event(kind, "daemon", severity, message, time.time_ns(), remedy))

    def _gap_ns(self, asked: bool) -> int:
        interval_ns = int(self._setup.loaded.config.daemon.interval_s * 1e9)
        return due_ns(0, interval_ns, asked, self._took_ns, self._usual_ns)

    async def _pause(self) -> None:
        # The answer to a turn's own question starts the next at once, whose cost counts to both.
        while not self._stopping and not self._answered:
            due = self._last_ns + self._gap_ns(self._asked)
            wait_s = (due - time.monotonic_ns()) / 1e9
            if wait_s <= 0:
                return
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()

    def _turn(self) -> None:
        self._last_ns, self._asked = time.monotonic_ns(), False
        self._follows, self._answered = self._answered, False
        asked_ns = self._took_ns if self._follows else 0
        began_ns = time.thread_time_ns()
        try:
            decisions = self._look_and_decide()
        except Exception as error:
            # The one place: a fault of ours in one turn must not end the watch over the node.
            self._failed_turns += 1
            log.exception("turn failed")
            if self._failed_turns >= MAX_FAILED_TURNS:
                raise
            self._notice(
                "turn.failed",
                Severity.ERROR,
                f"a turn met our own fault: {type(error).__name__}: {error}",
                "report it with the journal of nodeagentd",
            )
            return
        self._failed_turns = 0
        before_ns, took_ns = self._took_ns, time.thread_time_ns() - began_ns
        self._took_ns, self._usual_ns = asked_ns + took_ns, min(before_ns, took_ns)
        if self._acting.within_deadline(asyncio.get_running_loop().time()):
            self._notifier.alive()
        self._notifier.status(decisions.sentence)
        if decisions.sentence != self._sentence:
            self._sentence = decisions.sentence
            log.info("%s", decisions.sentence)

    def _look_and_decide(self) -> Decisions:
        now_s = asyncio.get_running_loop().time()
        fresh = self._machine.take()
        if fresh is not None:
            self._snapshot = fresh
        if now_s - self._snapshot_s >= self._setup.loaded.config.daemon.snapshot_s:
            self._machine.start()
            self._snapshot_s = now_s
        # First: what happens from here on is told anew.
        noticed = self._guard.take() if self._guard is not None else Noticed()
        self._wait_for_guard()
        self._cpusets.take()
        at_ns = time.time_ns()
        processes: tuple[ProcessState, ...] = ()
        if self._setup.workloads and self._doors.host is None:
            # Without workloads nothing is asked of other people's processes; a recorded machine's
            # are not here.
            processes = self._doors.processes.scan(self._watched, now_s)
            self._ask_for_containers()
        memory = self._doors.processes.memory(self._watched, now_s) if processes else None
        reading = Reading(at_ns=at_ns, processes=processes, memory=memory)
        rings = self._rings
        happened = rings.take_events() if rings is not None else ()
        notices, self._notices = (*self._notices, *happened), []
        journal, self._journal = self._journal, None
        seen = Seen(
            judge=self._setup.judge,
            consents=self._setup.consents,
            workloads=self._setup.workloads,
            housekeeping=self._setup.loaded.housekeeping,
            snapshot=self._snapshot,
            reading=reading,
            journal=journal,
            done=self._acting.take(),
            busy=self._acting.busy,
            freeze_file=str(self._freeze) if self._freeze.exists() else None,
            actor=self._acting.reason,
            feeds=rings.feeds() if rings is not None else (),
            rings=rings.rings() if rings is not None else (),
            probe=self._read_probe(),
            controller=self._controller(),
            changes=tuple(spread(noticed.changes, self._guarded())),
            lost_changes=noticed.lost,
            troubles={
                "machine": self._machine.trouble(now_s),
                "spool": self._log.trouble if self._link is None else self._link.trouble,
                "memory": self._memory.trouble,
                "titles": self._doors.processes.trouble,
                "container-facts": self._doors.processes.container_trouble
                if self._by_container()
                else None,
                "guard": self._unguarded() if self._setup.workloads else None,
                "cpusets": self._cpusets.trouble,
            },
            notices=notices,
            facts=self._doors.facts(
                self._setup.loaded.config.pin.runtimes,
                isolating(self._setup.workloads, self._setup.loaded.config.pin.isolation),
            ),
        )
        self._state, decisions = turn(self._state, seen, at_ns)
        if self._doors.host is not None:
            said = f"recorded machine {self._doors.host}: {decisions.sentence}"
            decisions = replace(decisions, sentence=said)
        # Synced before it is acted upon: a daemon killed meanwhile must not correct a second time.
        if not self._memory.write(to_keep(self._state), partial(self._act, decisions.queue)):
            self._acting.replace(())
        for undo in decisions.undo:
            self._acting.errand(partial(self._roll_back, undo))
        if decisions.watch != self._watched:
            # Their threads are read in the next turn: soon.
            self._watched = decisions.watch
            self._ask()
        if self._probe is not None:
            self._probe.watch(decisions.watch)
        if self._guard is not None:
            awaiting = bool(self._setup.workloads)
            if self._guard.watch(decisions.masks, awaiting=awaiting):
                # A thread that was moved since this turn looked is met by the next one.
                self._ask()
        self._cpusets.watch(frozenset(p.cgroup for p in self._guarded() if p.cgroup))
        self._record(decisions.events)
        self._publish(seen, decisions)
        if decisions.ask_journal or now_s - self._journal_s >= JOURNAL_S:
            self._journal_s = now_s
            self._acting.errand(self._look_up if decisions.ask_journal else self._read_journal)
        return decisions

    def _guarded(self) -> list[ProcessState]:
        """As of the last turn."""
        return [p for p in self._state.processes if p.pid in self._watched]

    def _act(self, queue: tuple[Wanted, ...]) -> None:
        """What the newest turn wants, now that its memory is on disk."""
        if not self._stopping:
            self._acting.replace(queue)

    async def _roll_back(self, undo: Undo, actor: Actor) -> None:
        try:
            said = await actor.undo(undo.workload, undo.why)
        except ActError as error:
            said = str(error)
        self._notice("pin.rolled-back", Severity.WARNING, f"roll-back of {undo.workload}: {said}")
        self._ask()

    async def _read_journal(self, actor: Actor) -> None:
        self._journal = await actor.journal()

    def _by_container(self) -> bool:
        """Whether a workload is known by its container's name, image or label."""
        return any(w.match.by_container for w in self._setup.workloads)

    def _ask_for_containers(self) -> None:
        if self._acting.actor is None or not self._by_container():
            return
        unnamed = self._doors.processes.unnamed()
        if unnamed:
            self._acting.errand(partial(self._name_containers, unnamed))

    async def _name_containers(self, cgroups: tuple[str, ...], actor: Actor) -> None:
        found, reason = await actor.containers(cgroups)
        self._doors.processes.tell(found, reason)
        if found:
            self._ask()

    async def _look_up(self, actor: Actor) -> None:
        await self._read_journal(actor)
        self._answered = not self._follows
        self._ask()

    async def _actor_up(self, actor: Actor) -> None:
        """A new connection: what is in force, and the probe's maps, which an earlier actor held."""
        await self._read_journal(actor)
        await self._load_measures(actor)

    async def _load_measures(self, actor: Actor) -> None:
        await self._load_probe(actor)
        await self._load_guard(actor)

    async def _load_probe(self, actor: Actor) -> None:
        config = self._setup.loaded.config.probe
        if not config.enabled:
            self._probe = None
            return
        try:
            self._probe = await self._doors.probe(actor, config.isolated)
        except NodeagentError as error:
            self._probe, self._no_probe = None, str(error)

    async def _load_guard(self, actor: Actor) -> None:
        """The kernel's own word of what happens to guarded processes, beside the poll."""
        config = self._setup.loaded.config.probe
        self._drop_guard()
        self._no_guard = None
        if not config.enabled:
            return
        try:
            guard = await self._doors.notices(actor, config.isolated)
        except NodeagentError as error:
            self._no_guard = f"threads are looked at every turn only: {error}"
            return
        if not guard.available:
            self._no_guard = f"threads are looked at every turn only: {guard.reason}"
            return
        self._guard = guard
        self._wait_for_guard()
        said = f"the author of a changed affinity is known by {guard.authors}"
        if not guard.authors:
            said = f"the author of a changed affinity stays unknown ({'; '.join(guard.refused)})"
        self._notice("guard.ready", Severity.INFO, f"the kernel tells of moved threads; {said}")
        self._ask()

    def _unguarded(self) -> str | None:
        """Why the kernel does not tell everything; None: it does, or nobody asked it to."""
        left_out = 0 if self._guard is None else self._guard.left_out
        if left_out:
            return f"{left_out} processes are looked at every turn only: there is no room for more"
        return self._no_guard

    def _wait_for_guard(self) -> None:
        """Until something comes; it then asks for one turn, which takes it and waits anew."""
        fd = None if self._guard is None else self._guard.fileno()
        if fd is not None and self._waited is None:
            self._waited = fd
            asyncio.get_running_loop().add_reader(fd, self._happened)

    def _happened(self) -> None:
        if self._waited is not None:
            asyncio.get_running_loop().remove_reader(self._waited)
            self._waited = None
        self._ask()

    def _drop_guard(self) -> None:
        if self._waited is not None:
            asyncio.get_running_loop().remove_reader(self._waited)
            self._waited = None
        if self._guard is not None:
            self._guard.close()
            self._guard = None

    def _read_probe(self) -> ProbeStatus | None:
        if not self._setup.loaded.config.probe.enabled:
            return None
        if self._probe is not None:
            return self._probe.read()
        return ProbeStatus(available=False, reason=self._no_probe, capabilities=())

    def _controller(self) -> ControllerLink:
        if self._link is not None:
            return self._link.link()
        address = self._setup.loaded.config.controller.address
        return ControllerLink(
            configured=bool(address),
            connected=False,
            address=address,
            reports=0,
            unacknowledged=0,
            dropped=0,
            reason=self._log.trouble or "",
        )

    def _dial(self, address: str) -> None:
        if self._log.spool is None:
            return
        self._link = self._doors.session(self._log.spool, self._source, address, self._hostname)
        self._session = asyncio.create_task(self._link.run())

    def _record(self, events: tuple[Event, ...]) -> None:
        """Stores them beside the loop: a slow disk does not hold the turn."""
        # Those that a full disk kept waiting are tried again, one try at a time.
        waiting = self._link is not None and self._link.trouble is not None and not self._storing
        if events or waiting:
            task = asyncio.create_task(self._store(events))
            self._storing.add(task)
            task.add_done_callback(self._stored)

    async def _store(self, events: tuple[Event, ...]) -> None:
        levels = {Severity.ERROR: logging.ERROR, Severity.WARNING: logging.WARNING}
        numbered = await self._log.record(self._link, events)
        for said in numbered or events:
            level = levels.get(said.severity, logging.INFO)
            # What a full disk keeps waiting is said now: it may be lost, and is said again with
            # its number once it is stored.
            seq = str(said.seq) if numbered else "none (not stored yet)"
            log.log(level, "event seq=%s kind=%s: %s", seq, said.kind, said.message)
        self._source.wake()

    def _publish(self, seen: Seen, decisions: Decisions) -> None:
        status = self._status(seen, decisions)
        self._source.publish(status, None if self._snapshot is None else self._snapshot.topology)

    def _short_of(self) -> list[str]:
        """What is not done as it should be: what a disk refuses (the events that say so are
        themselves only in memory), and turns that come late."""
        spool = self._log.trouble if self._link is None else self._link.trouble
        kept = (
            ("events are kept in memory only", spool),
            ("what a restart would need is not on disk", self._memory.trouble),
        )
        found = [f"{what}: {why}" for what, why in kept if why is not None]
        gap_s, wanted_s = self._gap_ns(False) / 1e9, self._setup.loaded.config.daemon.interval_s
        if gap_s > max(1.5 * wanted_s, 1.0):
            found.append(
                f"looks every {gap_s:.1f} s, not every {wanted_s:g} s: with so many threads to "
                f"watch a look takes {self._usual_ns / 1e9:.2f} s of CPU"
            )
        return found

    def _status(self, seen: Seen | None, decisions: Decisions | None = None) -> NodeStatus:
        spool = self._log.spool
        state = self._state
        parts: Mapping[str, int | None] = {
            "daemon": os.getpid(),
            "actor": self._acting.actor.pid if self._acting.actor is not None else None,
            "processes": self._doors.processes.pid,
            "machine": self._machine.pid,
        }
        none = ProbeStatus(
            available=False,
            reason="not enabled in the configuration ([probe] enabled)",
            capabilities=(),
        )
        return NodeStatus(
            agent_uuid=spool.identity.agent_uuid if spool is not None else "",
            epoch=spool.identity.epoch if spool is not None else 0,
            hostname=self._hostname,
            version=nodeagent.__version__,
            started_ns=self._started_ns,
            at_ns=time.time_ns(),
            turns=state.turns,
            sentence="; ".join(
                (decisions.sentence if decisions is not None else "starting", *self._short_of())
            ),
            verdict=state.verdict,
            findings=state.findings,
            placement=state.placement,
            held=decisions.held if decisions is not None else (),
            rings=seen.rings if seen is not None else (),
            feeds=seen.feeds if seen is not None else (),
            probe=seen.probe or none if seen is not None else none,
            controller=self._controller(),
            cost=self._costs.read(parts, time.monotonic()),
            frozen=state.frozen,
        )

    # Reload and stop.

    def _reload(self) -> None:
        self._notifier.reloading()
        old = self._setup
        try:
            new = set_up(self._path, self._doors)
        except NodeagentError as error:
            self._notice(
                "config.refused",
                Severity.ERROR,
                f"{error}; the settings before stay in force",
                error.remedy,
            )
        else:
            self._setup = new
            self._notice("config.reloaded", Severity.INFO, f"{new.loaded.path} was read again")
            self._changed(old, new)
        self._machine.start()
        self._snapshot_s = asyncio.get_running_loop().time()
        self._notifier.ready()
        self._ask()

    def _changed(self, old: Setup, new: Setup) -> None:
        was, now = old.loaded.config, new.loaded.config
        for key in ("run_dir", "state_dir", "group"):
            if getattr(was.daemon, key) != getattr(now.daemon, key):
                self._notice(
                    "config.restart",
                    Severity.WARNING,
                    f"[daemon] {key} was changed; it is used from the next start on",
                    "systemctl restart nodeagentd (pins stay as they are)",
                )
        if was.probe != now.probe:
            self._acting.errand(self._load_measures)
        if was.controller != now.controller:
            # The spool stays open: the new session goes on where the old one was.
            if self._session is not None:
                self._session.cancel()
            self._dial(now.controller.address)

    async def _end(
        self, acting: asyncio.Task[None], stop_serving: Callable[[], Awaitable[None]]
    ) -> None:
        """In order: no new action, the one under way ends, release if asked, then the doors."""
        self._acting.replace(())
        config = self._setup.loaded.config
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                while self._acting.busy is not None:
                    await asyncio.sleep(0.05)
        actor = self._acting.actor
        said = "pins stay in force ([pin] on_stop = keep)"
        if config.pin.on_stop is OnStop.RELEASE:
            said = f"pins could not be released: no actor ({self._acting.reason})"
            if actor is not None:
                try:
                    async with asyncio.timeout(STOP_S):
                        said = await actor.release()
                except (NodeagentError, TimeoutError) as error:
                    said = f"pins could not be released: {error or 'the actor did not answer'}"
        acting.cancel()
        await asyncio.wait([acting])
        self._drop_guard()
        self._cpusets.close()
        stopped = event(
            "daemon.stopped",
            "daemon",
            Severity.INFO,
            f"nodeagentd stopped; {said}",
            time.time_ns(),
        )
        self._record((*self._notices, stopped))
        self._machine.close()
        self._doors.processes.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await asyncio.gather(*self._storing, return_exceptions=True)
                await stop_serving()
                if self._session is not None:
                    self._session.cancel()
                    await asyncio.wait([self._session])
                if self._link is not None:
                    await self._link.close()
                await self._memory.settled(STOP_S)
        if self._rings is not None:
            self._rings.close()
