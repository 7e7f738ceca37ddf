"""The stream to the controller: events once each and in order, states when they change.

docs/protocol.md is the protocol as a table. The session dials out; the controller's messages
acknowledge and nothing else. While it is away events wait in the spool.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import grpc

from nodeagent.api.v1 import controller_pb2, controller_pb2_grpc
from nodeagent.model.event import Event
from nodeagent.model.status import ControllerLink
from nodeagent.model.topology import Topology
from nodeagent.rpc import options, sections, wire
from nodeagent.rpc.source import StatusSource
from nodeagent.rpc.spool import Spool, SpoolError
from nodeagent.rpc.wire import Message

T = TypeVar("T")

PROTOCOL = 1
HEARTBEAT_S = 15.0
STATE_INTERVAL_S = 1.0
"""Least time between two states that are no heartbeat."""
BATCH_EVENTS = 500
BATCH_BYTES = 256 << 10
WINDOW = 4
"""Messages with events on their way that are not acknowledged yet."""
STATE_BYTES = 1 << 20
"""A full state is cut between sections into messages of about this size."""
PENDING_EVENTS = 1_000
"""Events held in memory while the spool cannot be written."""
ANSWER_S = 10.0
"""How long a controller may take for its HelloAck."""
BACKOFF_S = (0.25, 30.0)
"""Bounds of the wait before a new attempt: doubled each time, and a random share of it waited."""
TRIM_S = 10.0
"""Least time between two trims of the spool."""


@dataclass(slots=True)
class _Stream:
    """One connection's state."""

    call: Message
    cursor: int
    """Greatest seq sent."""
    number: int = 1
    """Number of the last message sent; the Hello is 1."""
    committed: int = 1
    """Number of the last message the controller has committed."""
    events_flying: deque[int] = field(default_factory=deque)
    """Numbers of messages with events that are not committed."""
    states_flying: deque[tuple[int, list[sections.Part]]] = field(default_factory=deque)
    alive_nonces: deque[int] = field(default_factory=lambda: deque(maxlen=8))
    full: bool = False
    """The next state voids what the controller holds."""


class Session:
    """Stores events, and streams them and the node's state to one controller."""

    def __init__(
        self,
        spool: Spool,
        source: StatusSource,
        *,
        address: str,
        hostname: str,
        version: str,
        boot_id: str = "",
        heartbeat_s: float = HEARTBEAT_S,
        state_interval_s: float = STATE_INTERVAL_S,
        backoff_s: tuple[float, float] = BACKOFF_S,
    ) -> None:
        """`address` is host:port; "": no controller, events are only stored."""
        self._backoff_s = backoff_s
        self.spool = spool
        self._source = source
        self._address = address
        self._hostname = hostname
        self._version = version
        self._boot_id = boot_id
        self._heartbeat_s = heartbeat_s
        self._state_interval_s = state_interval_s
        self._instance = str(uuid.uuid4())
        self._disk = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spool")
        self._storing = asyncio.Lock()
        self._recording: set[asyncio.Task[tuple[Event, ...]]] = set()
        self._pending: deque[Event] = deque()
        self._overflown = 0
        self._wake = asyncio.Event()
        self._sent: dict[int, sections.Sent] = {}
        self._confirmed: dict[int, sections.Sent] = {}
        self._topology: Topology | None = None
        self._connected = False
        self._reports = 0
        self._reason = "" if address else "no controller is configured"
        self._spool_reason = ""
        self._trimmed_at = time.monotonic()

    def link(self) -> ControllerLink:
        """The stream as the status shows it."""
        return ControllerLink(
            configured=bool(self._address),
            connected=self._connected,
            address=self._address,
            reports=self._reports,
            unacknowledged=self.spool.unacknowledged + len(self._pending),
            dropped=self.spool.dropped + self._overflown,
            reason="; ".join(r for r in (self._reason, self._spool_reason) if r),
        )

    @property
    def trouble(self) -> str | None:
        """Why events are only in memory just now; None: they are on disk."""
        return self._spool_reason or None

    async def record(self, events: Sequence[Event]) -> tuple[Event, ...]:
        """Stores events, synced, and returns them numbered; they are sent when they can be.

        Raises nothing for a disk that refuses: they are kept in memory up to PENDING_EVENTS, the
        link says so, and a later call returns them too.
        """
        # Whoever waits may be cancelled; what is on its way to the disk must not be stored again.
        task = asyncio.create_task(self._record(events))
        self._recording.add(task)
        task.add_done_callback(self._recording.discard)
        return await asyncio.shield(task)

    async def _record(self, events: Sequence[Event]) -> tuple[Event, ...]:
        async with self._storing:
            self._pending.extend(events)
            while len(self._pending) > PENDING_EVENTS:
                self._pending.popleft()
                self._overflown += 1
            batch = tuple(self._pending)
            if not batch:
                return ()
            try:
                numbered = await self._on_disk(lambda: self.spool.append(batch))
            except SpoolError as error:
                self._spool_reason = str(error)
                return ()
            self._pending.clear()
            self._spool_reason = ""
        self._wake.set()
        return numbered

    async def drained(self, timeout_s: float) -> bool:
        """Waits until the controller has committed all events; False when it took too long."""
        end = time.monotonic() + timeout_s
        while self.link().unacknowledged and time.monotonic() < end:
            await asyncio.sleep(0.02)
        return not self.link().unacknowledged

    async def run(self) -> None:
        """Streams until cancelled; returns at once when no controller is configured."""
        low, high = self._backoff_s
        ceiling = low
        while self._address:
            try:
                self._reason = await self._stream()
            except grpc.aio.AioRpcError as error:
                self._reason = self._sentence(error.code(), error.details())
            except SpoolError as error:
                self._reason = str(error)
            finally:
                # Also when it is our own fault: no link is shown that is not there.
                was, self._connected = self._connected, False
            if was:
                ceiling = low
            # A random share of a growing ceiling: a fleet does not come back in step.
            await asyncio.sleep(random.uniform(low / 2, ceiling))
            ceiling = min(ceiling * 2, high)

    async def close(self) -> None:
        """Writes how far is acknowledged and closes the spool; `run` must have ended."""
        await asyncio.gather(*self._recording, return_exceptions=True)
        await self._on_disk(self.spool.close)
        self._disk.shutdown()

    async def _on_disk(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, work)

    async def _stream(self) -> str:
        """One connection from dial to end; returns why it ended."""
        async with grpc.aio.insecure_channel(
            self._address, options=options.AGENT_STREAM
        ) as channel:
            call = controller_pb2_grpc.ControllerServiceStub(channel).Report()
            ack = await self._hello(call)
            if ack is None:
                return await self._why_ended(call)
            if why := await self._on_disk(lambda: self._contradiction(ack)):
                await self._on_disk(lambda: self.spool.renew_epoch(why, time.time_ns()))
                return why
            stream = _Stream(call=call, cursor=ack.committed_seq, full=ack.want_full_state)
            self._sent = {} if ack.want_full_state else dict(self._confirmed)
            self._confirmed = dict(self._sent)
            self.spool.acknowledge(ack.committed_seq)
            await self._on_disk(lambda: self.spool.report_drops(time.time_ns()))
            self._connected = True
            self._reason = ""
            tasks = [
                asyncio.create_task(self._read(stream)),
                asyncio.create_task(self._write(stream, float(ack.heartbeat_s))),
                asyncio.create_task(self._notice()),
            ]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
                call.cancel()
            for result in ended:
                # A write on a stream that has ended says less than its status does.
                if isinstance(result, asyncio.InvalidStateError):
                    continue
                if isinstance(result, Exception):
                    raise result
            return await self._why_ended(call)

    async def _hello(self, call: Message) -> Message:
        """Says who we are; the HelloAck, or None when the stream ended or nothing came."""
        hello = controller_pb2.Hello(
            agent_uuid=self.spool.identity.agent_uuid,
            epoch=self.spool.identity.epoch,
            next_seq=self.spool.last_seq + 1,
            version=self._version,
            hostname=self._hostname,
            instance=self._instance,
            protocol=PROTOCOL,
            boot_id=self._boot_id,
        )
        await call.write(controller_pb2.ReportRequest(number=1, hello=hello))
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await call.read()
        except TimeoutError:
            call.cancel()
            return None
        if answer is grpc.aio.EOF or answer.WhichOneof("body") != "hello":
            return None
        return answer.hello

    def _contradiction(self, ack: Message) -> str:
        """Whether the controller has events of this epoch that are not this spool's: "" or why."""
        seq = ack.committed_seq
        if seq > self.spool.last_seq:
            return (
                f"the controller has seq {seq} of this epoch, the spool only "
                f"{self.spool.last_seq}: it was restored from an older copy"
            )
        own = self.spool.read(seq - 1, 1) if seq else ()
        if own and own[0].seq == seq and ack.committed_at_ns not in (0, own[0].at_ns):
            return (
                f"the controller has another event with seq {seq} of this epoch: the spool was "
                "restored from an older copy, or there are two of it"
            )
        return ""

    async def _read(self, stream: _Stream) -> None:
        while (answer := await stream.call.read()) is not grpc.aio.EOF:
            body = answer.WhichOneof("body")
            if body == "ack":
                self._committed(stream, answer.ack)
            elif body == "alive":
                stream.alive_nonces.append(answer.alive.nonce)
            # What a newer controller may say beyond this does not concern us.
            self._wake.set()

    def _committed(self, stream: _Stream, ack: Message) -> None:
        number = min(ack.committed_number, stream.number)
        self._reports += max(number - stream.committed, 0)
        stream.committed = max(stream.committed, number)
        self.spool.acknowledge(ack.committed_seq)
        while stream.events_flying and stream.events_flying[0] <= number:
            stream.events_flying.popleft()
        while stream.states_flying and stream.states_flying[0][0] <= number:
            _, parts = stream.states_flying.popleft()
            self._confirmed.update((p.section, p.sent) for p in parts)

    async def _notice(self) -> None:
        """Wakes the writer when the status changes."""
        version = self._source.version
        while True:
            version = await self._source.changed(version)
            self._wake.set()

    async def _write(self, stream: _Stream, wanted_s: float) -> None:
        beat_s = wanted_s or self._heartbeat_s
        beat_at = state_at = time.monotonic()  # both are due
        seen = None
        while True:
            self._wake.clear()
            while stream.alive_nonces:
                answer = controller_pb2.AliveAnswer(nonce=stream.alive_nonces.popleft())
                await self._send(stream, alive=answer)
            more = await self._send_events(stream)
            now = time.monotonic()
            version = self._source.version
            if now >= beat_at:
                await self.record(())  # what a full disk has kept waiting
                await self._send_state(stream, heartbeat=True)
                beat_at, state_at, seen = now + beat_s, now + self._state_interval_s, version
            elif version != seen and now >= state_at:
                await self._send_state(stream, heartbeat=False)
                state_at, seen = now + self._state_interval_s, version
            await self._trim()
            if more:
                continue
            until = min(beat_at, state_at) if self._source.version != seen else beat_at
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(until - time.monotonic(), 0)):
                    await self._wake.wait()
                    # Changes come in flocks: let the flock arrive before looking.
                    await asyncio.sleep(0.01)

    async def _send(self, stream: _Stream, **body: Message) -> int:
        stream.number += 1
        await stream.call.write(controller_pb2.ReportRequest(number=stream.number, **body))
        return stream.number

    async def _send_events(self, stream: _Stream) -> bool:
        """One batch, if there is one and room for it; whether there is more to send at once."""
        if stream.cursor >= self.spool.last_seq or len(stream.events_flying) >= WINDOW:
            return False
        after = stream.cursor
        batch = await self._on_disk(lambda: self.spool.read(after, BATCH_EVENTS, BATCH_BYTES))
        if not batch:
            return False
        body = controller_pb2.EventBatch(
            events=[wire.to_wire(e) for e in batch], gaps=self._gaps(after + 1, batch[0].seq - 1)
        )
        stream.events_flying.append(await self._send(stream, events=body))
        stream.cursor = batch[-1].seq
        return stream.cursor < self.spool.last_seq and len(stream.events_flying) < WINDOW

    def _gaps(self, first: int, last: int) -> list[Message]:
        """The seqs that the spool no longer holds, and why."""
        done = min(self.spool.acknowledged, last)
        gaps = []
        if first <= done:
            gaps.append((first, done, controller_pb2.GAP_REASON_ACKNOWLEDGED))
        if max(first, done + 1) <= last:
            gaps.append((max(first, done + 1), last, controller_pb2.GAP_REASON_OVERFLOW))
        return [controller_pb2.Gap(first_seq=a, last_seq=b, reason=r) for a, b, r in gaps]

    async def _send_state(self, stream: _Stream, *, heartbeat: bool) -> None:
        topology = self._source.topology()
        if topology is not None and topology == self._topology:
            topology = self._topology  # the same object: comparing it again costs nothing
        self._topology = topology
        parts = sections.due(self._source.status(), topology, self._sent, heartbeat=heartbeat)
        if not parts and not heartbeat:
            return
        for group in _groups(parts):
            state = controller_pb2.State(full=stream.full, sections=[p.message for p in group])
            stream.full = False
            self._sent.update((p.section, p.sent) for p in group)
            stream.states_flying.append((await self._send(stream, state=state), group))

    async def _trim(self) -> None:
        if time.monotonic() - self._trimmed_at < TRIM_S:
            return
        self._trimmed_at = time.monotonic()
        try:
            await self._on_disk(self.spool.trim)
        except SpoolError as error:
            self._spool_reason = str(error)

    async def _why_ended(self, call: Message) -> str:
        if not call.done():
            call.cancel()
            return f"{self._address}: no answer within {ANSWER_S:g} s"
        return self._sentence(await call.code(), await call.details())

    def _sentence(self, code: Message, details: str | None) -> str:
        details = details or ""
        if code is grpc.StatusCode.UNAVAILABLE and "onnect" in details:
            return f"{self._address}: cannot be reached: {details.rpartition(': ')[2]}"
        if code in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED):
            return f"{self._address}: the stream ended"
        return f"{self._address}: {details or code.name}"


def _groups(parts: list[sections.Part]) -> list[list[sections.Part]]:
    """Parts in messages of about STATE_BYTES; one empty message for none."""
    groups: list[list[sections.Part]] = [[]]
    size = 0
    for part in parts:
        if groups[-1] and size + part.size_bytes > STATE_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += part.size_bytes
    return groups
