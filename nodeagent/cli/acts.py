"""Acts one after the other through the actor: units whole, a stop between two, a lost actor."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from nodeagent.cli.main import Invocation
from nodeagent.cli.memory import progress_words
from nodeagent.cli.place import EXIT_DONE, EXIT_NEITHER, EXIT_NOTHING, EXIT_PARTLY
from nodeagent.cli.planned import Planned
from nodeagent.cli.workloads import actor_socket
from nodeagent.errors import NodeagentError, UnavailableError
from nodeagent.model.actions import JournalEntry, Result
from nodeagent.model.deadlines import ANSWER_S
from nodeagent.model.placement import (
    Action,
    ActionResult,
    MigrateMemory,
    Outcome,
    SetValue,
    places,
)
from nodeagent.pin.client import ActorClient, LateError

RETURN_S = 10.0
"""How long an actor that went away in the middle is waited for; systemd restarts it in 1 s."""
LOOK_S = 0.2

WHY = "place apply"

Said = Callable[[Action, ActionResult], None]


@dataclass(slots=True, kw_only=True)
class Acted:
    """What came of a plan's actions, as it comes. `stopped`: why some were not tried."""

    results: list[tuple[Action, ActionResult]] = field(default_factory=list)
    not_tried: tuple[Action, ...] = ()
    stopped: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Actions that are made all or put back all: a unit's; or a lone workload's, the host's."""

    name: str
    whole: bool
    actions: tuple[Action, ...]


def groups(found: Planned) -> tuple[Group, ...]:
    """In the order of the actions; a unit's stand together."""
    unit_of = {p.workload: p.unit for p in found.placement.placed}
    made: dict[tuple[bool, str], list[Action]] = {}
    for action in found.actions:
        unit = unit_of.get(action.workload)
        made.setdefault((unit is not None, unit or action.workload), []).append(action)
    return tuple(
        Group(name=name, whole=whole, actions=tuple(acts)) for (whole, name), acts in made.items()
    )


async def perform(
    invocation: Invocation,
    found: Planned,
    *,
    override_freeze: str,
    said: Said,
    moving: Callable[[str], None],
) -> Acted:
    """Makes the changes. `said` is told of each act as it is done, `moving` of memory that
    moves. Raises NodeagentError when not even the first could be asked for."""
    acted = Acted()
    client = ActorClient(actor_socket(invocation.socket))
    run = _Run(
        client=client, acted=acted, override_freeze=override_freeze, said=said, moving=moving
    )
    try:
        # Who is not there now has not been asked for anything yet.
        journal = await client.journal()
        run.newest = journal[-1].id if journal else 0
        with _until_told() as told:
            for group in groups(found):
                await run.group(group, told)
                if acted.stopped:
                    break
    finally:
        await client.close()
    tried = {id(a) for a, _ in acted.results}
    acted.not_tried = tuple(a for a in found.actions if id(a) not in tried)
    return acted


class _StoppedError(Exception):
    """Somebody asked for a stop while memory was moving."""


class _Told:
    """Whether somebody asked for a stop."""

    def __init__(self) -> None:
        self.by = ""


@contextlib.contextmanager
def _until_told() -> Iterator[_Told]:
    """Ctrl-C, SIGTERM or a lost terminal end the work after the act in hand. A second Ctrl-C does
    not wait; the actor ends the act all the same."""
    told, loop, task = _Told(), asyncio.get_running_loop(), asyncio.current_task()

    def ask(number: signal.Signals) -> None:
        if told.by and number is signal.SIGINT and task is not None:
            task.cancel()
        told.by = "Ctrl-C" if number is signal.SIGINT else number.name

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, ask, number)
    try:
        yield told
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@dataclass(slots=True, kw_only=True)
class _Run:
    client: ActorClient
    acted: Acted
    override_freeze: str
    said: Said
    moving: Callable[[str], None]
    newest: int = 0
    """The newest act in the journal that is known of."""

    def note(self, action: Action, result: ActionResult) -> None:
        self.acted.results.append((action, result))
        self.said(action, result)

    async def group(self, group: Group, told: _Told) -> None:
        start = len(self.acted.results)
        for action in group.actions:
            if told.by:
                self.acted.stopped = f"stopped by {told.by}"
                break
            result = await self._one(action, told)
            self.note(action, result)
            if self.acted.stopped:
                break
            if result.outcome in _BAD:
                await self._look_frozen()
                if self.acted.stopped or (group.whole and places(action)):
                    break
        if group.whole and self._broken(group, start):
            await self._put_back(group, start)

    def _broken(self, group: Group, start: int) -> bool:
        """Whether a unit is not where it should be, in part."""
        results = self.acted.results[start:]
        placing = [(a, r) for a, r in results if places(a)]
        wanted = sum(places(a) for a in group.actions)
        return len(placing) < wanted or any(r.outcome in _BAD for _, r in placing)

    async def _one(self, action: Action, told: _Told) -> ActionResult:
        try:
            if isinstance(action, MigrateMemory):
                result = await self._migrate(action, told)
            else:
                result = await self.client.perform(
                    action, why=WHY, override_freeze=self.override_freeze
                )
        except UnavailableError as error:
            result = await self._settled(action, error)
        except NodeagentError as error:
            if not self.acted.results:
                raise
            result = ActionResult(outcome=Outcome.REFUSED, message=_words(error))
        self.newest = max(self.newest, result.journal_id or 0)
        return result

    async def _migrate(self, action: MigrateMemory, told: _Told) -> ActionResult:
        """Memory goes in steps, between which it can be stopped."""
        moved = ""

        def step(_: Result, facts: Mapping[str, object]) -> None:
            nonlocal moved
            moved = progress_words(facts)
            self.moving(moved)
            if told.by:
                raise _StoppedError

        try:
            return await self.client.migrate(
                action, why=WHY, override_freeze=self.override_freeze, progress=step
            )
        except _StoppedError:
            return ActionResult(
                outcome=Outcome.FAILED,
                message=f"stopped by {told.by}, {moved}: the process runs on with its memory in "
                "two places; place apply --yes goes on",
            )

    async def _settled(self, action: Action, error: UnavailableError) -> ActionResult:
        """What became of an act in which the actor went away, or took too long: its next start
        completes or reverts the act, so its journal tells."""
        what = "the actor went away in the middle and is back"
        if isinstance(error, LateError):
            what = f"the actor did not answer within {ANSWER_S:g} s"
        loop = asyncio.get_running_loop()
        end = loop.time() + RETURN_S
        while loop.time() < end:
            await asyncio.sleep(LOOK_S)
            try:
                journal = await self.client.journal()
            except NodeagentError:
                continue
            made = next((e for e in reversed(journal) if self._is(e, action)), None)
            if made is None:
                return ActionResult(
                    outcome=Outcome.REVERTED,
                    message=f"{what}; nothing of this act is left: journalctl -u nodeagent-actor",
                )
            if made.state == "done":
                return ActionResult(
                    outcome=Outcome.DONE,
                    message=f"{what}; its journal says that this act was made",
                    journal_id=made.id,
                )
        self.acted.stopped = "no actor answers any more"
        return ActionResult(
            outcome=Outcome.FAILED,
            message=f"{_words(error)}; whether this act was made is not known: the actor's next "
            "start completes or reverts it",
        )

    def _is(self, entry: JournalEntry, action: Action) -> bool:
        """Whether an entry is that action's, begun since the last one that was done."""
        if entry.id <= self.newest:
            return False
        if isinstance(action, SetValue):
            return (entry.knob, entry.subject) == (action.knob, action.subject)
        if isinstance(action, MigrateMemory) == bool(entry.cpus):
            return False
        return (entry.pid, entry.start_time) == (action.target.pid, action.target.start_time)

    async def _look_frozen(self) -> None:
        """Nothing else will be done either, once everything is frozen."""
        if self.override_freeze:
            return
        try:
            facts = (await self.client.status()).facts
        except NodeagentError:
            return
        if isinstance(facts.get("frozen"), str):
            self.acted.stopped = str(facts["frozen"])

    async def _put_back(self, group: Group, start: int) -> None:
        """Undoes what was done of a unit of which the rest could not be."""
        done = [
            (i, a, r)
            for i, (a, r) in enumerate(self.acted.results[start:], start)
            if r.outcome is Outcome.DONE and r.journal_id is not None
        ]
        for index, action, result in reversed(done):
            back = await self._undo(group, result.journal_id or 0)
            self.acted.results[index] = (action, back)
            self.said(action, back)

    async def _undo(self, group: Group, entry: int) -> ActionResult:
        why = f"unit {group.name} is placed whole or not at all"
        try:
            undone = await self.client.undo(
                entry=entry, why=f"place apply: {why}", override_freeze=self.override_freeze
            )
        except NodeagentError as error:
            return ActionResult(
                outcome=Outcome.FAILED,
                message=f"{why}, and it was not put back: {_words(error)}",
                journal_id=entry,
            )
        bad = next((u for u in undone if u.outcome not in _PUT_BACK), None)
        if bad is not None or not undone:
            said = bad.message if bad is not None else "the actor knows no such act"
            return ActionResult(
                outcome=Outcome.FAILED,
                message=f"{why}, and it was not put back: {said}",
                journal_id=entry,
            )
        return ActionResult(
            outcome=Outcome.REVERTED,
            message=f"put back, for {why}: {undone[0].message}",
            read_back=undone[0].read_back,
            journal_id=entry,
        )


_BAD = frozenset({Outcome.REFUSED, Outcome.REVERTED, Outcome.FAILED})
_PUT_BACK = frozenset({Outcome.DONE, Outcome.GONE})


def _words(error: NodeagentError) -> str:
    return f"{error}; {error.remedy}" if error.remedy else str(error)


def exit_code(outcomes: Sequence[Outcome], *, refused: bool = False) -> int:
    """The contract's codes for what acts."""
    if Outcome.FAILED in outcomes:
        return EXIT_NEITHER
    good = [o for o in outcomes if o in (Outcome.DONE, Outcome.GONE)]
    if outcomes and not good and all(o is Outcome.REFUSED for o in outcomes):
        return EXIT_NOTHING
    return EXIT_PARTLY if refused or len(good) < len(outcomes) else EXIT_DONE
