"""The real doors: each edge opened as the loop wants it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import grp
import pwd
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

import nodeagent
from nodeagent.check.judge import judge
from nodeagent.check.policy import Policy
from nodeagent.check.policyfile import parse as parse_policy
from nodeagent.daemon.acting import Actor
from nodeagent.daemon.hoststate import JournalValue
from nodeagent.daemon.setup import Doors, Link, Notices, Probe
from nodeagent.daemon.source import Source
from nodeagent.daemon.state import Journal, JournalHold, JournalPin, Judge
from nodeagent.daemon.watching import Watching
from nodeagent.discover.holding import facts
from nodeagent.discover.locality import Locality
from nodeagent.discover.procs import Processes
from nodeagent.discover.root import Root
from nodeagent.discover.users import users
from nodeagent.errors import UnavailableError
from nodeagent.feed.registry import Registry
from nodeagent.model.actions import MAX_REASON, JournalEntry, Result
from nodeagent.model.cgroup import Container
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.event import Event
from nodeagent.model.feed import FeedStatus, RingStatus
from nodeagent.model.placement import HOLDING, Action, ActionResult, Outcome
from nodeagent.model.settings import RingSettings
from nodeagent.pin.client import ActorClient
from nodeagent.place.match import with_users
from nodeagent.place.workloads import parse as parse_workloads
from nodeagent.probe.notices import Notices as GuardNotices
from nodeagent.probe.runq import ProbeReader
from nodeagent.rpc.local import serve_local
from nodeagent.rpc.session import Session
from nodeagent.rpc.spool import Spool


def real_doors() -> Doors:
    """Those of this machine."""
    root = Root.live()
    return Doors(
        processes=Watching(Processes(root), Locality(root)),
        rings=_rings,
        connect=_connect,
        probe=_probe,
        notices=_notices,
        serve=_serve,
        session=_session,
        judge=_judge,
        workloads=lambda text, path: with_users(parse_workloads(text, path), users()),
        facts=partial(facts, root),
    )


def _judge(text: str | None, path: str) -> Judge:
    today = datetime.datetime.now(datetime.UTC).date()
    policy = Policy() if text is None else parse_policy(text, path, today)
    return lambda snapshot, now_ns: judge(snapshot, policy, now_ns)


class _RingDoor:
    """The registry, driven by the loop's own descriptor."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        registry.open()
        asyncio.get_running_loop().add_reader(registry.fileno(), registry.poll)

    def rings(self) -> tuple[RingStatus, ...]:
        return self._registry.rings()

    def feeds(self) -> tuple[FeedStatus, ...]:
        return self._registry.feeds()

    def take_events(self) -> tuple[Event, ...]:
        # A dead feed's time runs out without anything to read.
        self._registry.poll()
        return self._registry.take_events()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._registry.fileno())
        self._registry.close()


def _rings(path: Path, settings: RingSettings) -> _RingDoor:
    gids, uids = [], []
    for name in settings.reader_groups:
        with contextlib.suppress(KeyError):
            gids.append(grp.getgrnam(name).gr_gid)
    for name in settings.feeder_users:
        with contextlib.suppress(KeyError):
            uids.append(pwd.getpwnam(name).pw_uid)
    return _RingDoor(Registry(path, reader_gids=gids, feeder_uids=uids))


class _ActorDoor:
    """The actor's client as the loop wants it."""

    def __init__(self, client: ActorClient, pid: int | None) -> None:
        self.client = client
        self.pid = pid

    async def perform(self, action: Action, why: str) -> ActionResult:
        return await self.client.perform(action, why=why)

    async def undo(self, workload: str, why: str) -> str:
        return _said(await self.client.undo(workload, why=why[:MAX_REASON]))

    async def release(self) -> str:
        return _said(await self.client.undo(None, why="[pin] on_stop = release"))

    async def journal(self) -> Journal:
        # An entry that is added while it is read counts for the next time.
        at_ns = time.time_ns()
        pins: dict[tuple[int, int], JournalPin] = {}
        values: dict[tuple[str, str], JournalValue] = {}
        holds: list[JournalHold] = []
        giving: list[JournalEntry] = []
        newest = 0
        for entry in await self.client.journal():
            newest = max(newest, entry.id)
            if entry.state != "undoing" and (entry.cpus or entry.knob in HOLDING):
                giving.append(entry)
            if entry.knob in HOLDING and entry.state != "undoing":
                holds.append(
                    JournalHold(
                        workload=entry.workload,
                        cpus=CpuSet.parse(entry.value),
                        before=entry.before,
                        at_ns=entry.at_ns,
                        id=entry.id,
                    )
                )
            elif entry.knob and entry.state != "undoing":
                values[entry.knob, entry.subject] = JournalValue(
                    knob=entry.knob,
                    subject=entry.subject,
                    value=entry.value,
                    at_ns=entry.at_ns,
                    id=entry.id,
                )
            if entry.state == "undoing" or entry.knob or not entry.cpus:
                # No process to guard: a value of the host, or memory that was moved.
                continue
            key = entry.pid, entry.start_time
            first = pins.get(key)
            pins[key] = JournalPin(
                workload=entry.workload,
                pid=entry.pid,
                start_time=entry.start_time,
                after=entry.cpus,
                before=entry.before if first is None else first.before,
                at_ns=entry.at_ns,
                id=entry.id,
            )
        return Journal(
            at_ns=at_ns,
            pins=tuple(pins.values()),
            values=tuple(values.values()),
            holds=tuple(holds),
            entries=tuple(giving),
            newest=newest,
        )

    async def containers(self, cgroups: tuple[str, ...]) -> tuple[tuple[Container, ...], str]:
        return await self.client.containers(cgroups)

    async def close(self) -> None:
        await self.client.close()


def _said(results: Sequence[Result]) -> str:
    bad = [r for r in results if r.outcome not in (Outcome.DONE, Outcome.GONE)]
    if bad:
        return f"{len(bad)} of {len(results)} pins could not be undone: {bad[0].message}"
    return f"{len(results)} actions were undone"


async def _connect(path: Path) -> Actor:
    client = ActorClient(path)
    pid = (await client.status()).facts.get("pid")
    return _ActorDoor(client, pid if isinstance(pid, int) else None)


async def _probe(actor: Actor, isolated: str) -> Probe:
    assert isinstance(actor, _ActorDoor)
    fds, answer = await actor.client.load_probe("sched", {"isolated": isolated})
    description = msgspec.json.decode(str(answer.facts["description"]))
    try:
        return ProbeReader.from_fds(description, list(fds.values()))
    except OSError as error:
        raise UnavailableError(f"the probe's memory cannot be mapped: {error.strerror}") from error


async def _notices(actor: Actor, isolated: str) -> Notices:
    assert isinstance(actor, _ActorDoor)
    fds, answer = await actor.client.load_probe("guard", {"isolated": isolated})
    description = msgspec.json.decode(str(answer.facts["description"]))
    try:
        return GuardNotices.from_fds(description, list(fds.values()))
    except OSError as error:
        raise UnavailableError(f"the guard's memory cannot be mapped: {error.strerror}") from error


async def _serve(path: Path, source: Source, group: str) -> Callable[[], Awaitable[None]]:
    server = await serve_local(path, source)
    return partial(server.stop, 0.5)


def _session(spool: Spool, source: Source, address: str, hostname: str) -> Link:
    return Session(
        spool,
        source,
        address=address,
        hostname=hostname,
        version=nodeagent.__version__,
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
    )
