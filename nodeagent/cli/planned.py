"""A plan with what it was made from: the workload file, the machine, the actor and its journal."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path

from nodeagent.cli.main import Invocation
from nodeagent.cli.memory import moves
from nodeagent.cli.workloads import (
    NoWorkloadFileError,
    Wanted,
    actor_socket,
    configuration,
    plan_here,
    wanted,
)
from nodeagent.errors import NodeagentError, RightsError
from nodeagent.model.actions import JournalEntry
from nodeagent.model.hostplan import HostPlan
from nodeagent.model.placement import (
    Action,
    Consent,
    Placement,
    ProcessState,
    Sharing,
    Workload,
)
from nodeagent.model.topology import Topology
from nodeagent.place.changes import UNKNOWN_STANDING, Change, Standing, changes
from nodeagent.place.diff import THREADS_ONLY, actions, holds, told
from nodeagent.place.host import for_people, host_actions, host_plan
from nodeagent.place.match import doubtful
from nodeagent.place.moves import Move
from nodeagent.place.roles import role_notes
from nodeagent.place.taken import without_taken

ACTORS_STATE = "/var/lib/nodeagent-actor"
"""Under systemd the actor has a folder of its own (docs/adr/0006)."""
HOLDING = frozenset({Consent.THREADS, Consent.CGROUP})
"""The classes that place a process."""
HOST_TOO = frozenset({Consent.HOST})


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan and what it was made from. `journal` None: it could not be read, `journal_reason`
    says why. `file` "": none is named. `recording` None: this machine, else its path."""

    topology: Topology
    placement: Placement
    processes: tuple[ProcessState, ...]
    actions: tuple[Action, ...]
    changes: tuple[Change, ...]
    workloads: tuple[Workload, ...]
    file: str
    recording: str | None
    standing: Standing
    journal: tuple[JournalEntry, ...] | None = None
    journal_reason: str = ""
    config: str = ""
    """The daemon's configuration that `[pin]` stands in."""
    configured: frozenset[Consent] = frozenset()
    """What `[pin] allow` says there now; an actor that runs may have read something else."""
    host: HostPlan = field(default_factory=HostPlan)
    """What the placement asks of the host, consented to or not; `actions` has what is."""

    moves: tuple[Move, ...] = ()
    """Memory that lies on other nodes than planned, of workloads that want it moved."""

    @property
    def allow(self) -> frozenset[Consent]:
        """The classes that are acted in; where nobody could tell, all."""
        known = self.standing.allow
        return frozenset(Consent) if known is None else known


@dataclass(frozen=True, slots=True, kw_only=True)
class _Actor:
    standing: Standing
    journal: tuple[JournalEntry, ...] | None
    reason: str = ""
    remedy: str = ""
    """What would let it be asked."""


def planned(
    invocation: Invocation,
    file: str | None,
    housekeeping: str | None,
    by: str | None = None,
    *,
    needed: bool = True,
    must_answer: bool = False,
    memory: bool = True,
) -> Planned:
    """The plan for that machine. `needed` False: without any workload file nothing is wanted,
    rather than an error. `must_answer`: without an actor it is an error; else the journal's file
    and the configuration are asked instead. `memory` False: where the memory lies of workloads
    that want it moved is not looked up, which takes a while. Raises NodeagentError."""
    try:
        want = wanted(file, housekeeping, live=invocation.host is None, config=invocation.config)
    except NoWorkloadFileError:
        if needed:
            raise
        want = Wanted(path="", workloads=(), housekeeping=None)
    # A wrong file is told before anybody is asked.
    actor = ask_actor(invocation, must_answer=must_answer)
    here = plan_here(want, invocation.host, actor.journal or ())
    topology, processes, placement = here.snapshot.topology, here.processes, here.placement
    if actor.journal:
        placement = without_taken(placement, here.workloads, processes, actor.journal)
    host = host_plan(here.snapshot, here.workloads, placement)
    host = for_people(host, actor.standing.lacks)
    allow = actor.standing.allow
    classes = holding(by, allow)
    alone = {p.workload for p in placement.placed if p.sharing is Sharing.EXCLUSIVE}
    doubts = doubtful(w for w in here.workloads if w.name in alone)
    notes = (*placement.notes, *role_notes(placement, classes), *doubts)
    placement = replace(placement, notes=notes)
    facts = here.facts
    if facts is not None and invocation.host is None:
        called = configuration(invocation.config).config.pin.runtimes
        facts = replace(facts, runtimes=frozenset(called))
    # Turning a controller on for a unit is of class host, which holds nothing by itself.
    acting = classes | (HOST_TOO & (allow or frozenset()))
    placement = told(placement, holds(placement, processes, acting, facts))
    pins = actions(placement, processes, acting, facts)
    # A process is out of the way before what it leaves is taken by interrupts.
    looked = memory and invocation.host is None
    moving = moves(placement, processes, topology) if looked else ()
    to_move = tuple(m.action for m in moving if m.action is not None)
    found: tuple[Action, ...] = (
        *pins,
        *(to_move if allow is None or Consent.MEMORY in allow else ()),
        *host_actions(host, frozenset(Consent) if allow is None else allow),
    )
    loaded = configuration(invocation.config) if invocation.host is None else None
    # Of an actor that was named by its socket nobody knows the configuration.
    by_file = invocation.config is not None or invocation.socket is None
    return Planned(
        topology=topology,
        placement=placement,
        processes=processes,
        actions=found,
        changes=changes(found, placement, processes, topology.online, actor.journal),
        host=host,
        moves=moving,
        workloads=want.workloads,
        file=want.path,
        recording=invocation.host,
        standing=actor.standing,
        journal=actor.journal,
        journal_reason=actor.reason,
        config=loaded.path if loaded is not None else "",
        configured=frozenset(loaded.config.pin.allow) if loaded and by_file else frozenset(),
    )


def holding(by: str | None, allow: AbstractSet[Consent] | None) -> frozenset[Consent]:
    """The classes to plan with: what was asked for, else what the actor may do, else threads."""
    if by is not None:
        return frozenset({Consent(by)})
    return HOLDING & (allow or frozenset()) or THREADS_ONLY


def ask_actor(invocation: Invocation, *, must_answer: bool = False) -> _Actor:
    """What the actor may do, and its journal. Raises NodeagentError if it must answer and does
    not."""
    if invocation.host is not None:
        return _Actor(
            standing=UNKNOWN_STANDING,
            journal=None,
            reason="a recording holds no journal of what nodeagent changed there",
        )
    try:
        return asyncio.run(_ask(actor_socket(invocation.socket)))
    except NodeagentError as error:
        if must_answer:
            raise
        reason, remedy = str(error), error.remedy
        barred = isinstance(error, RightsError)
    standing = replace(_configured(invocation, reason), barred=barred)
    journal, why = journal_file(invocation, reason)
    return _Actor(standing=standing, journal=journal, reason=why, remedy=remedy)


async def _ask(socket: Path) -> _Actor:
    from nodeagent.pin.client import ActorClient

    client = ActorClient(socket)
    try:
        facts = (await client.status()).facts
        journal = await client.journal()
    finally:
        await client.close()
    allow, frozen, lacks = facts.get("allow"), facts.get("frozen"), facts.get("lacks")
    known = {str(c) for c in Consent}
    return _Actor(
        standing=Standing(
            allow=frozenset(Consent(c) for c in allow if c in known)
            if isinstance(allow, list)
            else None,
            source="the actor",
            frozen=frozen if isinstance(frozen, str) else None,
            lacks={str(k): str(v) for k, v in lacks.items()} if isinstance(lacks, dict) else {},
        ),
        journal=journal,
    )


def _configured(invocation: Invocation, reason: str) -> Standing:
    """What the configuration says where no actor does."""
    if invocation.socket is not None and invocation.config is None:
        return Standing(allow=None, source=reason)
    loaded = configuration(invocation.config)
    if not Path(loaded.path).exists():
        return Standing(allow=None, source=reason)
    return Standing(allow=frozenset(loaded.config.pin.allow), source=loaded.path)


def journal_file(
    invocation: Invocation, reason: str
) -> tuple[tuple[JournalEntry, ...] | None, str]:
    """What can be undone, off the actor's disk; None and why it is not known. `reason`: why the
    actor itself could not be asked."""
    from nodeagent.pin import undo as journal

    if invocation.socket is not None and invocation.config is None:
        return None, reason
    folders = [configuration(invocation.config).config.daemon.state_dir]
    if invocation.config is None:
        folders.insert(0, ACTORS_STATE)
    for state in folders:
        try:
            if (Path(state) / "journal").is_dir():
                loaded = journal.read(Path(state) / "journal")
                return tuple(loaded.entries[i].public() for i in sorted(loaded.entries)), ""
        except OSError as error:
            reason = f"{reason}; and {error.filename}: {error.strerror}"
    return None, reason


def same(first: Sequence[Action], second: Sequence[Action]) -> bool:
    """Whether two plans would do the same to the same."""
    return tuple(first) == tuple(second)
