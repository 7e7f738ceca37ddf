"""What agents and people ask the controller: ControllerService and FleetService."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
import urllib.parse
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field

import grpc

from nodeagent.api.v1 import controller_pb2, controller_pb2_grpc, types_pb2
from nodeagent.controller.store import Store, StoreError
from nodeagent.controller.tables import Caller, EventRow, Gap, NewEvent, NodeRow, OrderError
from nodeagent.errors import NodeagentError
from nodeagent.rpc import options, sections
from nodeagent.rpc.wire import Message

PROTOCOL = 1
HELLO_S = 10.0
"""How long a new stream may take for its Hello."""
SILENT_S = 45.0
"""A stream without a message for three heartbeats is ended."""
ALIVE_S = 3.0
"""How long an agent may take to answer when somebody else claims its UUID."""
QUEUE = 16
"""Messages of one stream that wait for their commit; then it is read no further."""
COALESCE = 8
"""Messages that one Ack answers at most."""
MAX_BATCH = 5_000
"""Events in one message."""
MAX_TEXT = 256
"""Bytes of a name or version in a Hello."""
MAX_SECTION = 99
"""Sections of newer agents are stored too, up to this number."""
MAX_WATCHERS = 64
MAX_CONFLICTS = 256

_log = logging.getLogger(__name__)

_INVALID = grpc.StatusCode.INVALID_ARGUMENT


@dataclass(slots=True)
class _Live:
    """A stream that is open now."""

    caller: Caller
    context: Message
    alive: asyncio.Event = field(default_factory=asyncio.Event)
    ending: asyncio.Event = field(default_factory=asyncio.Event)


_Waiting = tuple[int, Awaitable[int | None] | None] | None
"""A message's number and the commit it waits for; None at the end of the stream."""


class _RefusedError(Exception):
    """Ends a stream with a status."""

    def __init__(self, code: Message, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Fleet:
    """Which streams are open, whose identities clash, and who waits for events."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.live: dict[str, _Live] = {}
        self.conflicts: dict[str, str] = {}
        """By UUID: who else claimed it, and when."""
        self._committed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def committed() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended before the last commit
                loop.call_soon_threadsafe(self._tell)

        store.on_commit(committed)

    def _tell(self) -> None:
        self._committed.set()
        self._committed = asyncio.Event()

    def committed(self) -> asyncio.Event:
        """An event that is set at the next commit; take it before you look."""
        return self._committed

    def claim(self, caller: Caller, refused_by: Caller) -> str:
        """Notes that one UUID is used twice; the sentence for both."""
        if len(self.conflicts) >= MAX_CONFLICTS:
            self.conflicts.pop(next(iter(self.conflicts)))
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        self.conflicts[caller.uuid] = (
            f"its UUID is also claimed by {caller.hostname} at {caller.address}, last at {when}"
        )
        return (
            f"UUID {caller.uuid} is in use by {refused_by.hostname} at {refused_by.address}; this "
            "node is a copy of it: remove agent.json and spool.db from its state folder and "
            "restart nodeagentd"
        )


class ControllerService(controller_pb2_grpc.ControllerServiceServicer):  # type: ignore[misc]
    """Takes reports. Its base class is generated and untyped."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._nonces = itertools.count(1)

    async def Report(self, requests: AsyncIterator[Message], context: Message) -> None:  # noqa: N802
        """One agent's stream."""
        live: _Live | None = None
        try:
            caller = await _hello(context)
            live = await self._admit(caller, context)
            greeting = await (await self._fleet.store.greet(caller))
            await context.write(
                controller_pb2.ReportResponse(
                    hello=controller_pb2.HelloAck(
                        committed_seq=greeting.committed_seq,
                        committed_at_ns=greeting.committed_at_ns,
                        want_full_state=greeting.want_full_state,
                        protocol=PROTOCOL,
                    )
                )
            )
            _log.info(
                "node connected name=%r uuid=%s address=%s epoch=%d committed_seq=%d",
                caller.hostname,
                caller.uuid,
                caller.address,
                caller.epoch,
                greeting.committed_seq,
            )
            await self._serve(live, greeting.committed_seq)
        except _RefusedError as refused:
            _log.warning("stream refused address=%s reason=%s", context.peer(), refused.message)
            await context.abort(refused.code, refused.message)
        except OrderError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except StoreError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"not stored: {error}")
        except NodeagentError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        finally:
            if live is not None and self._fleet.live.get(live.caller.uuid) is live:
                del self._fleet.live[live.caller.uuid]
                _log.info(
                    "node disconnected name=%r uuid=%s", live.caller.hostname, live.caller.uuid
                )

    async def _admit(self, caller: Caller, context: Message) -> _Live:
        """Makes this the open stream of its UUID, unless another agent lives under it."""
        old = self._fleet.live.get(caller.uuid)
        if old is not None and old.caller.instance != caller.instance:
            # A restarted agent's former stream may hang half open; a twin's answers.
            old.alive.clear()
            question = controller_pb2.AliveQuestion(nonce=next(self._nonces))
            try:
                async with asyncio.timeout(ALIVE_S):
                    await old.context.write(controller_pb2.ReportResponse(alive=question))
                    await old.alive.wait()
            except (TimeoutError, asyncio.InvalidStateError, grpc.RpcError):
                pass
            else:
                why = self._fleet.claim(caller, old.caller)
                raise _RefusedError(grpc.StatusCode.ALREADY_EXISTS, why)
        current = self._fleet.live.get(caller.uuid)
        if current is not None:
            current.ending.set()
        live = _Live(caller=caller, context=context)
        self._fleet.live[caller.uuid] = live
        return live

    async def _serve(self, live: _Live, committed: int) -> None:
        """Reads and commits side by side until the stream ends or is superseded."""
        waiting: asyncio.Queue[_Waiting] = asyncio.Queue(QUEUE)
        tasks = [
            asyncio.create_task(self._read(live, waiting)),
            asyncio.create_task(_acknowledge(live, waiting, committed)),
            asyncio.create_task(live.ending.wait()),
        ]
        reader, acknowledger, _ = tasks
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if reader in done and reader.exception() is None:
                # What was read before the end is committed; the acknowledgement may not arrive.
                await acknowledger
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    async def _read(self, live: _Live, waiting: asyncio.Queue[_Waiting]) -> None:
        store, caller = self._fleet.store, live.caller
        number = 1
        while True:
            message = await _next(live.context, SILENT_S)
            if message is None:
                await waiting.put(None)
                return
            number += 1
            if message.number != number:
                raise _RefusedError(_INVALID, f"saw message {message.number}, expected {number}")
            body = message.WhichOneof("body")
            commit: Awaitable[int | None] | None = None
            if body == "events":
                events, gaps = _batch(message.events)
                commit = await store.add_events(caller, events, gaps)
            elif body == "state":
                parts = [_section(s) for s in message.state.sections]
                commit = await store.put_sections(caller, parts, full=message.state.full)
            elif body == "alive":
                live.alive.set()
            elif body == "hello":
                raise _RefusedError(_INVALID, "saw a second hello on one stream")
            # What a newer agent may say beyond this is acknowledged and passed over.
            await waiting.put((number, commit))


async def _acknowledge(
    live: _Live,
    waiting: asyncio.Queue[_Waiting],
    committed: int,
) -> None:
    """Answers messages in order, each after its commit; several with one Ack where they wait."""
    number = acknowledged = 1
    while True:
        item = await waiting.get()
        if item is not None:
            number, commit = item
            result = None if commit is None else await commit
            committed = committed if result is None else result
        late = item is None or waiting.empty() or number - acknowledged >= COALESCE
        if late and number > acknowledged:
            ack = controller_pb2.Ack(committed_seq=committed, committed_number=number)
            await live.context.write(controller_pb2.ReportResponse(ack=ack))
            acknowledged = number
        if item is None:
            return


async def _next(context: Message, timeout_s: float) -> Message:
    """The next message; None at the end of the stream."""
    try:
        async with asyncio.timeout(timeout_s):
            message = await context.read()
    except TimeoutError:
        raise _RefusedError(
            grpc.StatusCode.DEADLINE_EXCEEDED, f"nothing was heard for {timeout_s:g} s"
        ) from None
    return None if message is grpc.aio.EOF else message


async def _hello(context: Message) -> Caller:
    message = await _next(context, HELLO_S)
    if message is None or message.WhichOneof("body") != "hello" or message.number != 1:
        raise _RefusedError(_INVALID, "a stream must begin with a hello, numbered 1")
    hello = message.hello
    try:
        agent = str(uuid.UUID(hello.agent_uuid))
    except ValueError:
        raise _RefusedError(
            _INVALID, f"saw agent UUID {hello.agent_uuid[:80]!r}, expected a UUID"
        ) from None
    for name in ("hostname", "version", "instance", "boot_id"):
        if len(getattr(hello, name)) > MAX_TEXT:
            raise _RefusedError(_INVALID, f"{name} is longer than {MAX_TEXT} characters")
    if hello.epoch < 1 or hello.next_seq < 1:
        raise _RefusedError(_INVALID, "epoch and next_seq count from 1")
    return Caller(
        uuid=agent,
        epoch=hello.epoch,
        hostname=hello.hostname or agent,
        version=hello.version,
        instance=hello.instance,
        boot_id=hello.boot_id,
        address=urllib.parse.unquote(context.peer().partition(":")[2]),
    )


def _batch(batch: Message) -> tuple[list[NewEvent], list[Gap]]:
    if len(batch.events) > MAX_BATCH:
        raise _RefusedError(_INVALID, f"more than {MAX_BATCH} events in one message")
    events = [NewEvent(e.seq, e.at_ns, e.SerializeToString()) for e in batch.events]
    gaps = [Gap(first_seq=g.first_seq, last_seq=g.last_seq, reason=g.reason) for g in batch.gaps]
    if any(g.first_seq < 1 or g.last_seq < g.first_seq for g in gaps):
        raise _RefusedError(_INVALID, "a gap must go from a lower to a higher seq, from 1")
    return events, gaps


def _section(state: Message) -> tuple[int, bytes]:
    if not 1 <= state.section <= MAX_SECTION:
        raise _RefusedError(_INVALID, f"saw section {state.section}, expected 1 to {MAX_SECTION}")
    part = state.topology if state.HasField("topology") else state.part
    return state.section, part.SerializeToString()


class FleetService(controller_pb2_grpc.FleetServiceServicer):  # type: ignore[misc]
    """Answers people. Its base class is generated and untyped."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._watchers = 0

    async def ListNodes(self, request: Message, context: Message) -> Message:  # noqa: N802
        """All nodes by name."""
        store = self._fleet.store
        try:
            rows = await store.nodes()
            parts: dict[str, list[bytes]] = {}
            for section in _ROW_SECTIONS:
                for agent, body in (await store.section_of_all(section)).items():
                    parts.setdefault(agent, []).append(body)
        except StoreError as error:
            await context.abort(grpc.StatusCode.INTERNAL, str(error))
            raise
        names = Counter(r.hostname for r in rows)
        nodes = [self._node(r, sections.join(parts.get(r.uuid, [])), names) for r in rows]
        notes = [store.trouble] if store.trouble else []
        return controller_pb2.ListNodesResponse(nodes=nodes, notes=notes)

    async def GetNode(self, request: Message, context: Message) -> Message:  # noqa: N802
        """One node by name or UUID."""
        store = self._fleet.store
        try:
            rows = await store.nodes()
            row = await _find(rows, request.name, context)
            stored = await store.sections(row.uuid)
        except StoreError as error:
            await context.abort(grpc.StatusCode.INTERNAL, str(error))
            raise
        shape = stored.pop(controller_pb2.SECTION_TOPOLOGY, None)
        status = sections.join(list(stored.values()))
        answer = controller_pb2.GetNodeResponse(
            node=self._node(row, status, Counter(r.hostname for r in rows))
        )
        if stored:
            answer.status.CopyFrom(status)
        if shape is not None:
            answer.topology.ParseFromString(shape)
        return answer

    async def ListFleetEvents(self, request: Message, context: Message) -> Message:  # noqa: N802
        """Stored events."""
        limit = min(request.limit or options.MAX_EVENTS, options.MAX_EVENTS)
        try:
            rows = await self._fleet.store.events(
                uuid=await self._uuid(request.node, context),
                after_id=request.after_id,
                limit=max(limit, 0),
                newest=request.newest,
            )
        except StoreError as error:
            await context.abort(grpc.StatusCode.INTERNAL, str(error))
            raise
        return controller_pb2.ListFleetEventsResponse(events=[_event(r) for r in rows])

    async def WatchEvents(self, request: Message, context: Message) -> None:  # noqa: N802
        """Events as they are committed."""
        if self._watchers >= MAX_WATCHERS:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{MAX_WATCHERS} programs watch this fleet already, no more are served",
            )
        self._watchers += 1
        store = self._fleet.store
        try:
            agent = await self._uuid(request.node, context)
            after = request.after_id if request.HasField("after_id") else await store.last_id()
            while True:
                news = self._fleet.committed()
                rows = await store.events(uuid=agent, after_id=after, limit=options.MAX_EVENTS)
                for row in rows:
                    await context.write(_event(row))
                    after = row.id
                if len(rows) < options.MAX_EVENTS:
                    await news.wait()
        except StoreError as error:
            await context.abort(grpc.StatusCode.INTERNAL, str(error))
        finally:
            self._watchers -= 1

    async def _uuid(self, name: str, context: Message) -> str | None:
        if not name:
            return None
        return (await _find(await self._fleet.store.nodes(), name, context)).uuid

    def _node(self, row: NodeRow, status: Message, names: Counter[str]) -> Message:
        counted = Counter(f.verdict for f in status.findings if not f.HasField("waived_until"))
        trouble = []
        if names[row.hostname] > 1:
            trouble.append(f"{names[row.hostname]} nodes are called {row.hostname}")
        if row.uuid in self._fleet.conflicts:
            trouble.append(self._fleet.conflicts[row.uuid])
        return controller_pb2.FleetNode(
            agent_uuid=row.uuid,
            hostname=row.hostname,
            version=row.version,
            connected=row.uuid in self._fleet.live,
            first_seen_ns=row.first_seen_ns,
            last_seen_ns=row.last_seen_ns,
            address=row.address,
            epoch=row.epoch,
            committed_seq=row.committed_seq,
            lost_events=row.lost_events,
            verdict=status.verdict or types_pb2.VERDICT_UNKNOWN,
            fail=counted[types_pb2.VERDICT_FAIL],
            warn=counted[types_pb2.VERDICT_WARN],
            unknown=counted[types_pb2.VERDICT_UNKNOWN],
            placed=len(status.held),
            held=sum(1 for h in status.held if h.held),
            sentence=status.sentence,
            conflict="; ".join(trouble),
        )


_ROW_SECTIONS = (
    controller_pb2.SECTION_SUMMARY,
    controller_pb2.SECTION_FINDINGS,
    controller_pb2.SECTION_HELD,
)


async def _find(rows: list[NodeRow], name: str, context: Message) -> NodeRow:
    """The node of a name, a UUID, or a UUID's beginning of at least four characters."""
    found = [r for r in rows if name in (r.uuid, r.hostname)]
    if not found and len(name) >= 4:
        found = [r for r in rows if r.uuid.startswith(name.lower())]
    if len(found) == 1:
        return found[0]
    if not found:
        await context.abort(
            grpc.StatusCode.NOT_FOUND,
            f"no node {name!r} among the {len(rows)} that have reported here",
        )
    await context.abort(
        grpc.StatusCode.FAILED_PRECONDITION,
        f"{len(found)} nodes are called {name!r}: name one by its UUID: "
        + ", ".join(r.uuid for r in found[:8]),
    )
    raise AssertionError("abort raises")


def _event(row: EventRow) -> Message:
    return controller_pb2.FleetEvent(
        id=row.id,
        agent_uuid=row.uuid,
        hostname=row.hostname,
        epoch=row.epoch,
        event=types_pb2.Event.FromString(row.body),
        received_ns=row.received_ns,
    )
