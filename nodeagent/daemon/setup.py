"""What the loop works with: the doors to the edges, and the configuration with all it names."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from nodeagent.check.baseline import ACCEPT, decode
from nodeagent.daemon.acting import Actor
from nodeagent.daemon.config import load, read_text, resolve
from nodeagent.daemon.source import Source
from nodeagent.daemon.state import Consents, Judge
from nodeagent.errors import ConfigError
from nodeagent.model.baseline import Baseline, unusable
from nodeagent.model.cgroup import Container
from nodeagent.model.configfile import Loaded
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.event import Event
from nodeagent.model.feed import FeedStatus, RingStatus
from nodeagent.model.memory import MemorySeen
from nodeagent.model.notice import Noticed
from nodeagent.model.placement import ProcessState, Workload
from nodeagent.model.probe import ProbeStatus
from nodeagent.model.settings import PinSettings, RingSettings
from nodeagent.model.status import ControllerLink
from nodeagent.place.holders import Facts
from nodeagent.rpc.spool import Spool


class ProcessSource(Protocol):
    """Processes as they are now."""

    @property
    def pid(self) -> int | None:
        """Its child, while there is one."""

    @property
    def trouble(self) -> str | None:
        """What cannot be read, and why; None: everything can."""

    def memory(self, watched: frozenset[int], now_s: float) -> MemorySeen | None:
        """Where the memory of those processes lies; None: it is not the time to look."""

    def scan(self, watched: frozenset[int], now_s: float) -> tuple[ProcessState, ...]:
        """All of them; threads of those that are watched."""

    def unnamed(self) -> tuple[str, ...]:
        """cgroups of containers whose name is not known, and was not asked for too often."""

    def tell(self, containers: Iterable[Container], reason: str) -> None:
        """What was asked about them, and why not all is known."""

    @property
    def container_trouble(self) -> str | None:
        """Why names of containers are missing; None: none is."""

    def close(self) -> None:
        """Ends its child."""


class Rings(Protocol):
    """The registry behind ring.sock."""

    def rings(self) -> tuple[RingStatus, ...]:
        """The rings it knows."""

    def feeds(self) -> tuple[FeedStatus, ...]:
        """The feeders' counters."""

    def take_events(self) -> tuple[Event, ...]:
        """What happened since last asked."""

    def close(self) -> None:
        """Stops serving; segments live on with those who hold them."""


class Probe(Protocol):
    """Run-queue latency, read from shared memory."""

    def watch(self, pids: frozenset[int]) -> None:
        """Exactly these processes."""

    def read(self) -> ProbeStatus:
        """What was counted."""


class Notices(Protocol):
    """What happens to guarded processes, told by the kernel as it happens."""

    @property
    def available(self) -> bool:
        """Whether anything is told at all; else the poll is all there is."""

    @property
    def reason(self) -> str:
        """Why not."""

    @property
    def authors(self) -> str:
        """How the author of a changed mask is known; "": it is not."""

    @property
    def left_out(self) -> int:
        """Processes of the last `watch` that there was no room for."""

    @property
    def refused(self) -> Sequence[str]:
        """Why not, by each way that was tried."""

    def fileno(self) -> int | None:
        """Readable when something came."""

    def watch(self, masks: Mapping[int, CpuSet | None], *, awaiting: bool) -> bool:
        """Exactly these processes: pid -> where its threads belong; None: anywhere. `awaiting`:
        programs that begin are told while there are none, too. True: one is new or belongs
        elsewhere now, and what happened to it since `take` is not told."""

    def take(self) -> Noticed:
        """What came since last asked; to be called before the processes are looked at."""

    def close(self) -> None:
        """Guards nothing any more."""


class Link(Protocol):
    """The session: stores events, and streams to the controller where one is configured."""

    def link(self) -> ControllerLink:
        """Connected or not, and why."""

    @property
    def trouble(self) -> str | None:
        """Why events are only in memory just now; None: they are on disk."""

    async def record(self, events: Sequence[Event]) -> tuple[Event, ...]:
        """Stores events, synced, and returns them numbered."""

    async def run(self) -> None:
        """Streams until cancelled."""

    async def close(self) -> None:
        """Closes the spool; `run` must have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """The edges the loop works with; daemon/main.py opens the real ones."""

    processes: ProcessSource
    rings: Callable[[Path, RingSettings], Rings]
    connect: Callable[[Path], Awaitable[Actor]]
    probe: Callable[[Actor, str], Awaitable[Probe]]
    """(actor, [probe] isolated) -> what reads the maps that the actor loaded."""
    notices: Callable[[Actor, str], Awaitable[Notices]]
    """(actor, [probe] isolated) -> what the actor's programs tell of guarded processes."""
    serve: Callable[[Path, Source, str], Awaitable[Callable[[], Awaitable[None]]]]
    session: Callable[[Spool, Source, str, str], Link]
    """(spool, source, controller's address or "", hostname) -> session."""
    judge: Callable[[str | None, str], Judge]
    """(policy text or None, its path) -> judge. Raises ConfigError."""
    workloads: Callable[[str, str], tuple[Workload, ...]]
    """(text, path) -> workloads. Raises ConfigError."""
    facts: Callable[[Sequence[str], Sequence[str]], Facts | None] = lambda runtimes, isolating: None
    """(runtimes that may be called) -> what the host offers to hold processes with."""
    host: str | None = None
    """Path of a recorded machine that is judged and planned for; None: this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The configuration with the files it names, read and parsed together."""

    loaded: Loaded
    workloads: tuple[Workload, ...]
    judge: Judge
    consents: Consents

    @property
    def run_dir(self) -> Path:
        """Folder of sockets and locks."""
        return Path(self.loaded.config.daemon.run_dir)


BASELINE = "baseline.json"
"""In the state folder: what `nodeagentctl baseline accept` wrote."""


def _accepted(path: Path) -> Baseline:
    """The baseline there; a damaged one is a finding, and no reason to leave a node unwatched."""
    try:
        return decode(read_text(path).encode(), str(path))
    except ConfigError as error:
        return unusable(str(path), str(error), f"write it anew: {ACCEPT}")


def _against(baseline: Baseline, judge: Judge) -> Judge:
    """Judges by that baseline too."""
    return lambda snapshot, now_ns: judge(replace(snapshot, baseline=baseline), now_ns)


def set_up(path: Path | None, doors: Doors) -> Setup:
    """Reads everything the configuration names. Raises ConfigError."""
    loaded = load(path)
    config = loaded.config
    file = resolve(loaded, config.place.workloads)
    workloads = doors.workloads(read_text(file), str(file)) if file is not None else ()
    policy = resolve(loaded, config.check.policy)
    # What is planned for another machine is never done to this one.
    pin = config.pin if doors.host is None else PinSettings()
    judge = doors.judge(None if policy is None else read_text(policy), str(policy or ""))
    accepted = Path(config.daemon.state_dir) / BASELINE
    if doors.host is None and os.path.lexists(accepted):
        judge = _against(_accepted(accepted), judge)
    return Setup(
        loaded=loaded,
        workloads=workloads,
        judge=judge,
        consents=Consents(
            allow=frozenset(pin.allow),
            auto=frozenset(pin.auto),
            freeze=loaded.windows,
        ),
    )
