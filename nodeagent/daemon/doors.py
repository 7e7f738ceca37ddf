"""The real doors: each edge opened as the loop wants it."""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import nodeagent
from nodeagent.check.judge import judge
from nodeagent.check.policy import Policy
from nodeagent.check.policyfile import parse as parse_policy
from nodeagent.daemon.acting import Actor
from nodeagent.daemon.loop import Doors, Link, Probe
from nodeagent.daemon.source import Source
from nodeagent.daemon.turn import Judge
from nodeagent.daemon.watching import Watching
from nodeagent.discover.procs import Processes
from nodeagent.discover.root import Root
from nodeagent.errors import UnavailableError
from nodeagent.model.configfile import Loaded
from nodeagent.model.feed import FeedStatus, RingStatus
from nodeagent.model.snapshot import Snapshot
from nodeagent.place.workloads import parse as parse_workloads
from nodeagent.rpc.local import serve_local
from nodeagent.rpc.session import Session
from nodeagent.rpc.spool import Spool


def real_doors() -> Doors:
    """Those of this machine."""
    return Doors(
        processes=Watching(Processes(Root.live())),
        rings=_rings,
        connect=_connect,
        probe=_probe,
        serve=_serve,
        session=_session,
        judge=_judge,
        workloads=parse_workloads,
    )


def _judge(text: str | None, path: str) -> Judge:
    today = datetime.datetime.now(datetime.UTC).date()
    policy = Policy() if text is None else parse_policy(text, path, today)
    return lambda snapshot, now_ns: judge(snapshot, policy, now_ns)


class _NoRings:
    def rings(self) -> tuple[RingStatus, ...]:
        return ()

    def feeds(self) -> tuple[FeedStatus, ...]:
        return ()

    def close(self) -> None:
        pass


def _rings(path: Path) -> _NoRings:
    return _NoRings()


async def _connect(path: Path) -> Actor:
    raise UnavailableError(f"{path}: nobody listens there", "systemctl start nodeagent-actor")


async def _probe(actor: Actor, loaded: Loaded, snapshot: Snapshot | None) -> Probe:
    raise UnavailableError("the actor cannot load it")


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
