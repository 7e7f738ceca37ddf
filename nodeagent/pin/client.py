"""`ActorClient`: how the daemon and the command line speak to the actor.

One call at a time, each with a deadline (model/deadlines.py). The actor begins no act that would
end after it. One that is not answered all the same hangs there: it may still be done, the actor's
journal tells, and its late answer is dropped.
"""

from __future__ import annotations

import array
import asyncio
import dataclasses
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from nodeagent.errors import (
    ActError,
    NodeagentError,
    RightsError,
    UnavailableError,
    UsageError,
)
from nodeagent.model.actions import (
    CHANGING,
    MAX_CONTAINERS,
    MAX_DATAGRAM,
    MAX_REASON,
    Answer,
    Call,
    ContainerLine,
    ContainersRequest,
    JournalEntry,
    JournalRequest,
    LoadProbeRequest,
    Request,
    Result,
    StatusRequest,
    UndoRequest,
    to_entry,
    to_request,
)
from nodeagent.model.cgroup import Container, container_of
from nodeagent.model.deadlines import ACT_S, ANSWER_S, QUEUE_S, READ_S
from nodeagent.model.placement import Action, ActionResult, MigrateMemory

MAX_FDS = 64
MAX_STEPS = 1 << 23
"""Steps of one moving of memory: 16 TiB in the smallest steps."""
MAX_PAGES = 1000
"""Answers that one `journal()` or `undo()` takes; each holds what fits a datagram."""


class LateError(UnavailableError):
    """The actor is there, and did not answer by the deadline: what was asked may still be done."""


class ActorClient:
    """A connection to the actor's socket, made at the first call and again after it broke.

    Every method raises UnavailableError (nobody serves the socket), LateError (no answer in time),
    RightsError (this user may not open it) and ActError (the call was refused as a whole, or
    the socket is not the actor's).
    """

    def __init__(self, path: str | os.PathLike[str], *, deadline_s: float | None = None) -> None:
        self._path = Path(path)
        self._deadline_s = deadline_s
        self._socket: socket.socket | None = None
        self._seq = 0
        self._turn = asyncio.Lock()

    async def perform(
        self, action: Action, *, why: str = "", override_freeze: str = ""
    ) -> ActionResult:
        """One action; its outcome is in the result, also when it was refused."""
        if isinstance(action, MigrateMemory):
            return await self.migrate(action, why=why, override_freeze=override_freeze)
        answer, _ = await self._call(to_request(action), why, override_freeze)
        return _one(answer).result()

    async def migrate(
        self,
        action: MigrateMemory,
        *,
        why: str = "",
        override_freeze: str = "",
        progress: Callable[[Result, Mapping[str, object]], None] | None = None,
    ) -> ActionResult:
        """Moves memory, step by step; `progress` is called after each that others follow. Left
        between two steps, the process runs on with its memory in two places."""
        request = to_request(action)
        for _step in range(MAX_STEPS):
            answer, _ = await self._call(request, why, override_freeze)
            if not answer.more:
                break
            if progress is not None:
                progress(_one(answer), answer.facts)
            request = msgspec.structs.replace(request, go_on=True)
        return _one(answer).result()

    async def undo(
        self,
        workload: str | None = None,
        *,
        entry: int = 0,
        why: str = "",
        override_freeze: str = "",
    ) -> tuple[Result, ...]:
        """Undoes all (or one workload's, or the one `entry` names) entries, newest first: one
        result each."""
        request = UndoRequest(workload=workload, entry=entry)
        answer, _ = await self._call(request, why, override_freeze)
        results = list(answer.results)
        for _page in range(MAX_PAGES):
            if not answer.more or not results or results[-1].journal_id is None:
                break
            # Below the last one: what could not be undone is not tried again and again.
            request = UndoRequest(workload=workload, below=results[-1].journal_id, entry=entry)
            answer, _ = await self._call(request, why, override_freeze)
            results += answer.results
        return tuple(results)

    async def journal(self) -> tuple[JournalEntry, ...]:
        """What can be undone, oldest first."""
        found: list[JournalEntry] = []
        for _page in range(MAX_PAGES):
            answer, _ = await self._call(JournalRequest(after=found[-1].id if found else 0))
            found += map(to_entry, answer.entries)
            if not answer.more:
                break
        return tuple(found)

    async def status(self) -> Answer:
        """`facts`: pid, allow, lacks, frozen, entries, recovered, probes."""
        answer, _ = await self._call(StatusRequest())
        return answer

    async def containers(self, cgroups: tuple[str, ...]) -> tuple[tuple[Container, ...], str]:
        """(what is known of the containers of those cgroups, why the rest is not)."""
        answer, _ = await self._call(ContainersRequest(cgroups=cgroups[:MAX_CONTAINERS]))
        try:
            lines = msgspec.convert(answer.facts.get("containers", []), list[ContainerLine])
        except msgspec.ValidationError as error:
            raise ActError(
                f"{self._path}: the answer about containers is none: {error}",
                "actor and daemon are of different versions: restart both",
            ) from error
        found = []
        for line in lines:
            bare = container_of(line.cgroup)
            if bare is not None:
                found.append(
                    dataclasses.replace(
                        bare,
                        runtime=line.runtime,
                        name=line.name,
                        image=line.image,
                        labels=tuple(sorted(line.labels.items())),
                    )
                )
        return tuple(found), str(answer.facts.get("reason", ""))

    async def load_probe(
        self, program: str, options: dict[str, str | int | bool] | None = None
    ) -> tuple[dict[str, int], Answer]:
        """Descriptors by name (the caller closes them), and the handler's facts."""
        answer, fds = await self._call(LoadProbeRequest(program=program, options=options or {}))
        return dict(zip(answer.fds, fds, strict=True)), answer

    async def close(self) -> None:
        """Lets the connection go."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def _call(
        self, request: Request, why: str = "", override_freeze: str = ""
    ) -> tuple[Answer, list[int]]:
        if max(len(why), len(override_freeze)) > MAX_REASON:
            raise UsageError(
                f"a reason of {max(len(why), len(override_freeze))} characters, expected at most "
                f"{MAX_REASON}",
                "say it shorter; it is kept in the audit record",
            )
        async with self._turn:
            self._seq += 1
            acts = isinstance(request, CHANGING)
            deadline_s = self._deadline_s or (ANSWER_S if acts else READ_S)
            begin_s = max(deadline_s - ACT_S, min(deadline_s, QUEUE_S))
            call = Call(
                seq=self._seq,
                request=request,
                why=why,
                override_freeze=override_freeze,
                begin_by_ns=time.monotonic_ns() + int(begin_s * 1e9) if acts else 0,
            )
            data = msgspec.json.encode(call)
            assert len(data) <= MAX_DATAGRAM
            try:
                async with asyncio.timeout(deadline_s):
                    answer, fds = await self._exchange(data)
            except TimeoutError as error:
                may = "; what was asked may still be done" if acts else ": it is busy, or hangs"
                raise LateError(
                    f"{self._path}: no answer within {deadline_s:g} s{may}",
                    "nodeagentctl place status shows what was done"
                    if acts
                    else "systemctl status nodeagent-actor; try again",
                ) from error
            except PermissionError as error:
                raise RightsError(
                    f"{self._path}: this user may not speak to the actor",
                    "be root, or in group nodeagent-admin",
                ) from error
            except OSError as error:
                await self.close()
                raise UnavailableError(
                    f"{self._path}: no actor answers there: {error.strerror or error}",
                    "systemctl start nodeagent-actor, or give --socket",
                ) from error
        if answer.error:
            for fd in fds:
                os.close(fd)
            raise ActError(answer.error, answer.remedy)
        if len(fds) != len(answer.fds):
            for fd in fds:
                os.close(fd)
            raise ActError(
                f"{self._path}: {len(fds)} descriptors came, {len(answer.fds)} were announced"
            )
        return answer, fds

    async def _exchange(self, data: bytes) -> tuple[Answer, list[int]]:
        loop = asyncio.get_running_loop()
        if self._socket is None:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
            made.setblocking(False)
            try:
                await loop.sock_connect(made, str(self._path))
                self._check_server(made)
            except BaseException:
                made.close()
                raise
            self._socket = made
        await loop.sock_sendall(self._socket, data)
        while True:
            await _readable(self._socket)
            try:
                text, fds, flags = _receive(self._socket)
            except BlockingIOError:
                continue
            if not text:
                raise ConnectionResetError("it closed the connection")
            try:
                answer = msgspec.json.decode(text, type=Answer)
            except (msgspec.MsgspecError, RecursionError) as error:
                for fd in fds:
                    os.close(fd)
                raise ActError(
                    f"{self._path}: the answer is not understood: {error}",
                    "actor and daemon are of different versions: restart both",
                ) from error
            if answer.seq == self._seq and not flags & socket.MSG_CTRUNC:
                return answer, fds
            # A late answer to a call that ran out of time.
            for fd in fds:
                os.close(fd)

    def _check_server(self, made: socket.socket) -> None:
        """The folder's owner or root serves it, or we ourselves: the daemon's user may put a
        socket of its own where the actor's was, and an administrator must not believe it."""
        raw = made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        _, uid, _ = struct.unpack("iII", raw)
        if uid not in (0, os.geteuid(), self._path.parent.stat().st_uid):
            raise ActError(
                f"{self._path}: user {uid} serves it, expected root's nodeagent-actor",
                "find out who put it there, then restart nodeagent-actor",
            )


def _receive(sock: socket.socket) -> tuple[bytes, list[int], int]:
    """Datagram, descriptors and flags. Not socket.recv_fds: it drops the flags it is given
    (Python 3.11 to 3.13), and the descriptors would pass on to every child process."""
    fds = array.array("i")
    text, ancillary, flags, _ = sock.recvmsg(
        MAX_DATAGRAM, socket.CMSG_SPACE(MAX_FDS * fds.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return text, list(fds), flags


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(sock, wake)
    try:
        await ready
    finally:
        loop.remove_reader(sock)


def _one(answer: Answer) -> Result:
    if len(answer.results) != 1:
        raise NodeagentError(f"the actor gave {len(answer.results)} results to one action")
    return answer.results[0]
