"""NodeService on a Unix socket: what the daemon knows, asked by people and by programs.

The file's mode decides who may ask (0660, group `nodeagent` where it exists, and by an ACL group
`nodeagent-admin`: who may act may look): gRPC shows a service no peer credentials. Nothing here
changes the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import grp
import os
import pathlib
import socket
import stat

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from nodeagent.api.v1 import node_pb2, node_pb2_grpc
from nodeagent.errors import NodeagentError, UnavailableError
from nodeagent.model.event import Event
from nodeagent.rpc import options, wire
from nodeagent.rpc.access import let_group
from nodeagent.rpc.source import StatusSource
from nodeagent.rpc.wire import Message

GROUP = "nodeagent"
ADMIN_GROUP = "nodeagent-admin"
MODE = 0o660
MIN_INTERVAL_S = 0.1
"""Least time between two messages of a Watch."""
MAX_WATCHERS = 16
SERVICE = "nodeagent.api.v1.NodeService"
SOCKET_PATH_MAX = 107
"""Bytes. Source: unix(7), sun_path."""


class NodeService(node_pb2_grpc.NodeServiceServicer):  # type: ignore[misc]  # generated, untyped
    """Answers from a StatusSource; a status is translated once per version."""

    def __init__(self, source: StatusSource) -> None:
        self._source = source
        self._seen: int | None = None
        self._message: Message = None
        self._watchers = 0

    def _status(self) -> Message:
        version = self._source.version
        if self._message is None or version != self._seen:
            self._message = wire.to_wire(self._source.status())
            self._seen = version
        return self._message

    async def GetStatus(self, request: Message, context: Message) -> Message:  # noqa: N802
        """The whole status."""
        return node_pb2.GetStatusResponse(status=self._status())

    async def GetTopology(self, request: Message, context: Message) -> Message:  # noqa: N802
        """The machine's shape."""
        topology = self._source.topology()
        if topology is None:
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, "the first reading of this machine is not done yet"
            )
        return node_pb2.GetTopologyResponse(topology=wire.to_wire(topology))

    async def ListFindings(self, request: Message, context: Message) -> Message:  # noqa: N802
        """The judgement of the last turn."""
        status = self._status()
        return node_pb2.ListFindingsResponse(verdict=status.verdict, findings=status.findings)

    async def ListPlacements(self, request: Message, context: Message) -> Message:  # noqa: N802
        """Where workloads belong and where they are."""
        status = self._status()
        return node_pb2.ListPlacementsResponse(placement=status.placement, held=status.held)

    async def ListRings(self, request: Message, context: Message) -> Message:  # noqa: N802
        """Rings and feeders."""
        status = self._status()
        return node_pb2.ListRingsResponse(rings=status.rings, feeds=status.feeds)

    async def ListEvents(self, request: Message, context: Message) -> Message:  # noqa: N802
        """Events in order."""
        limit = min(request.limit or options.MAX_EVENTS, options.MAX_EVENTS)
        since = request.since_seq
        if request.newest:
            since = max(since, self._source.last_seq - limit)
        events = self._source.events(since, limit) if limit > 0 else ()
        return node_pb2.ListEventsResponse(
            events=[wire.to_wire(e) for e in events], epoch=self._status().epoch
        )

    async def Watch(self, request: Message, context: Message) -> None:  # noqa: N802
        """The status after each change; a slow reader skips statuses, never events."""
        if self._watchers >= MAX_WATCHERS:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{MAX_WATCHERS} programs watch this node already, no more are served",
            )
        self._watchers += 1
        try:
            interval_s = max(request.interval_ms / 1000, MIN_INTERVAL_S)
            newest = self._source.last_seq
            since = request.since_seq if request.HasField("since_seq") else newest
            while True:
                version = self._source.version
                events: tuple[Event, ...] = self._source.events(since, options.MAX_EVENTS)
                if events:
                    since = events[-1].seq
                # write() waits for the reader: a slow one gets the newest when it is ready.
                await context.write(
                    node_pb2.WatchResponse(
                        status=self._status(), events=[wire.to_wire(e) for e in events]
                    )
                )
                if len(events) == options.MAX_EVENTS:
                    continue
                await asyncio.sleep(interval_s)
                await self._source.changed(version)
        finally:
            self._watchers -= 1


class LocalServer:
    """The running server; `serve_local` makes it."""

    def __init__(self, server: Message, path: pathlib.Path, checks: Message) -> None:
        self._server = server
        self._path = path
        self._inode = path.stat().st_ino
        self._health = checks

    async def stop(self, grace_s: float = 0.5) -> None:
        """Lets calls end within the grace, closes the socket and removes its file."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)
        with contextlib.suppress(FileNotFoundError):
            # Another daemon's socket may stand there by now.
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()


async def serve_local(
    path: str | os.PathLike[str], source: StatusSource, *, group: str = GROUP
) -> LocalServer:
    """Serves NodeService, health and reflection at `path`, for root and `group` where it exists.

    Raises UnavailableError when somebody listens there already or the socket cannot be made. A
    socket file that nobody listens at is replaced.
    """
    path = pathlib.Path(path)
    # Bound under another name and renamed when its mode is right: at no moment may anybody else
    # connect, and a stale file is replaced in one step.
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    if len(os.fsencode(fresh)) > SOCKET_PATH_MAX:
        raise UnavailableError(
            f"{path}: saw a socket path of {len(os.fsencode(path))} bytes, expected at most "
            f"{SOCKET_PATH_MAX - len(os.fsencode(fresh.name)) + len(os.fsencode(path.name))}",
            "set [daemon] run_dir to a shorter path",
        )
    if listens(path):
        raise UnavailableError(
            f"{path}: another daemon listens there",
            "stop it first (systemctl stop nodeagentd), or set another [daemon] run_dir",
        )
    server = grpc.aio.server(
        options=options.LOCAL_SERVER, maximum_concurrent_rpcs=options.MAX_LOCAL_CALLS
    )
    node_pb2_grpc.add_NodeServiceServicer_to_server(NodeService(source), server)
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    for name in ("", SERVICE):
        await checks.set(name, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection(
        (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server
    )
    try:
        server.add_insecure_port(f"unix:{fresh}")
        await server.start()
        with contextlib.suppress(KeyError, PermissionError):
            os.chown(fresh, -1, grp.getgrnam(group).gr_gid)
        fresh.chmod(MODE)
        # A file system without ACLs: root and `group` it is.
        with contextlib.suppress(KeyError, OSError):
            let_group(fresh, grp.getgrnam(ADMIN_GROUP).gr_gid)
        fresh.rename(path)
    except (RuntimeError, OSError) as error:
        await server.stop(None)
        raise UnavailableError(
            f"{path}: the socket could not be made: {error}",
            f"is {path.parent} there, and may this user write to it?",
        ) from error
    return LocalServer(server, path, checks)


def listens(path: pathlib.Path) -> bool:
    """Whether somebody accepts connections at that socket file."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise NodeagentError(
                f"{path}: saw a file that is no socket, expected a socket or nothing",
                "move it away: it is not ours",
            )
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as s:
        try:
            s.connect(os.fspath(path))
        except BlockingIOError:
            return True  # its backlog is full: somebody is there
        except OSError:
            return False
    return True
