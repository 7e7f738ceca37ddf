"""Questions to the daemon and to the controller, for the command line: plain calls with a deadline,
errors as sentences with a remedy."""

from __future__ import annotations

import abc
import os
import pathlib
from collections.abc import Callable, Iterator

import grpc

from nodeagent.api.v1 import controller_pb2, controller_pb2_grpc, node_pb2, node_pb2_grpc
from nodeagent.errors import NodeagentError, RightsError, UnavailableError, UsageError
from nodeagent.model.configfile import is_address
from nodeagent.model.event import Event
from nodeagent.model.finding import Finding
from nodeagent.model.placement import Held, Placement
from nodeagent.model.status import NodeStatus
from nodeagent.model.topology import Topology
from nodeagent.rpc import options, wire
from nodeagent.rpc.wire import Message

DEADLINE_S = 5.0

NO_RIGHT = "run it as root, or join the group: usermod -aG nodeagent USER"


class _Client(abc.ABC):
    """One channel: plain calls with a deadline, streams that are reached within it."""

    def __init__(self, target: str, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._channel = grpc.insecure_channel(target, options=options.CLIENT)

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def _ask(self, call: Callable[..., Message], request: Message) -> Message:
        try:
            return call(request, timeout=self._deadline_s)
        except grpc.RpcError as error:
            raise self._sentence(error) from error

    def _follow(self, call: Callable[..., Message], request: Message) -> Iterator[Message]:
        # A stream has no deadline of its own: one that accepts and says nothing would hold it.
        try:
            grpc.channel_ready_future(self._channel).result(timeout=self._deadline_s)
        except grpc.FutureTimeoutError:
            raise self._silent() from None
        try:
            yield from call(request)
        except grpc.RpcError as error:
            raise self._sentence(error) from error

    @abc.abstractmethod
    def _silent(self) -> UnavailableError:
        """What to say when nothing came within the deadline."""

    @abc.abstractmethod
    def _sentence(self, error: Message) -> NodeagentError:
        """What to say of an error of gRPC's."""


class NodeClient(_Client):
    """NodeService at `api.sock`. Every call may raise UnavailableError or RightsError."""

    def __init__(self, path: str | None = None, *, deadline_s: float = DEADLINE_S) -> None:
        self.path = path or options.DEFAULT_SOCKET
        self._check_file()
        # A socket's path is not resolved.
        super().__init__(f"unix:{os.path.abspath(self.path)}", deadline_s)  # noqa: PTH100
        self._stub = node_pb2_grpc.NodeServiceStub(self._channel)

    def __enter__(self) -> NodeClient:
        return self

    def status(self) -> NodeStatus:
        """The whole status."""
        answer = self._ask(self._stub.GetStatus, node_pb2.GetStatusRequest())
        return wire.from_wire(NodeStatus, answer.status)

    def topology(self) -> Topology:
        """The machine's shape."""
        answer = self._ask(self._stub.GetTopology, node_pb2.GetTopologyRequest())
        return wire.from_wire(Topology, answer.topology)

    def findings(self) -> tuple[Finding, ...]:
        """The judgement of the daemon's last turn."""
        answer = self._ask(self._stub.ListFindings, node_pb2.ListFindingsRequest())
        return tuple(wire.from_wire(Finding, f) for f in answer.findings)

    def placements(self) -> tuple[Placement, tuple[Held, ...]]:
        """Where workloads belong, and where they are."""
        answer = self._ask(self._stub.ListPlacements, node_pb2.ListPlacementsRequest())
        placement = wire.from_wire(Placement, answer.placement)
        return placement, tuple(wire.from_wire(Held, h) for h in answer.held)

    def events(self, *, since: int = 0, limit: int = 0, newest: bool = False) -> tuple[Event, ...]:
        """Events after a seq, ascending; the newest of them where wanted."""
        request = node_pb2.ListEventsRequest(since_seq=since, limit=limit, newest=newest)
        answer = self._ask(self._stub.ListEvents, request)
        return tuple(wire.from_wire(Event, e) for e in answer.events)

    def watch(
        self, *, since: int | None = None, interval_s: float = 1.0
    ) -> Iterator[tuple[NodeStatus, tuple[Event, ...]]]:
        """The status now and after each change, with the events in between; ends when the daemon
        does (UnavailableError)."""
        request = node_pb2.WatchRequest(since_seq=since, interval_ms=round(interval_s * 1000))
        for answer in self._follow(self._stub.Watch, request):
            events = tuple(wire.from_wire(Event, e) for e in answer.events)
            yield wire.from_wire(NodeStatus, answer.status), events

    def _check_file(self) -> None:
        # gRPC says "failed to connect" for all of these; the file says which it is.
        path = pathlib.Path(self.path)
        try:
            path.stat()
        except FileNotFoundError:
            raise UnavailableError(
                f"{self.path}: no such socket; no daemon serves here",
                "systemctl start nodeagentd, or point --socket to its api.sock",
            ) from None
        except PermissionError:
            raise RightsError(f"{self.path}: no right to look there", NO_RIGHT) from None
        except (OSError, ValueError) as error:
            said = error.strerror if isinstance(error, OSError) else str(error)
            raise UsageError(f"{self.path}: {said}", "give --socket a path") from None
        if not os.access(path, os.W_OK):
            raise RightsError(f"{self.path}: no right to connect", NO_RIGHT)

    def _silent(self) -> UnavailableError:
        return UnavailableError(
            f"{self.path}: the daemon did not answer within {self._deadline_s:g} s",
            "look at it: systemctl status nodeagentd; journalctl -u nodeagentd",
        )

    def _sentence(self, error: Message) -> NodeagentError:
        code, details = error.code(), error.details()
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return self._silent()
        if code is grpc.StatusCode.UNAVAILABLE and "connect" in (details or ""):
            return UnavailableError(
                f"{self.path}: nobody listens at this socket; no daemon serves here",
                "systemctl start nodeagentd, or point --socket to its api.sock",
            )
        if code is grpc.StatusCode.UNAVAILABLE:
            return UnavailableError(f"{self.path}: {details}", "try again in a moment")
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return UnavailableError(
                f"{self.path}: the daemon does not know this question; it is older than this "
                "command",
                "systemctl restart nodeagentd",
            )
        return UnavailableError(f"{self.path}: {code.name}: {details}", "try again in a moment")


class FleetClient(_Client):
    """FleetService of a controller. Every call may raise UnavailableError or UsageError."""

    def __init__(self, address: str | None = None, *, deadline_s: float = DEADLINE_S) -> None:
        self.address = address or options.DEFAULT_CONTROLLER
        # gRPC takes port 99999 for 34463.
        if not is_address(self.address):
            raise UsageError(
                f"controller {self.address}: saw no HOST:PORT", "such as 10.0.0.5:7440"
            )
        super().__init__(self.address, deadline_s)
        self._stub = controller_pb2_grpc.FleetServiceStub(self._channel)

    def __enter__(self) -> FleetClient:
        return self

    def nodes(self) -> tuple[tuple[Message, ...], tuple[str, ...]]:
        """(FleetNode messages by name, the controller's own notes)."""
        answer = self._ask(self._stub.ListNodes, controller_pb2.ListNodesRequest())
        return tuple(answer.nodes), tuple(answer.notes)

    def node(self, name: str) -> tuple[Message, NodeStatus | None, Topology | None]:
        """(FleetNode message, last status, last topology); None: not reported yet."""
        answer = self._ask(self._stub.GetNode, controller_pb2.GetNodeRequest(name=name))
        status = wire.from_wire(NodeStatus, answer.status) if answer.HasField("status") else None
        topology = None
        if answer.HasField("topology"):
            topology = wire.from_wire(Topology, answer.topology)
        return answer.node, status, topology

    def events(
        self, *, node: str = "", after_id: int = 0, limit: int = 0, newest: bool = False
    ) -> tuple[Message, ...]:
        """FleetEvent messages, ascending ids."""
        request = controller_pb2.ListFleetEventsRequest(
            node=node, after_id=after_id, limit=limit, newest=newest
        )
        return tuple(self._ask(self._stub.ListFleetEvents, request).events)

    def watch(self, *, node: str = "", after_id: int | None = None) -> Iterator[Message]:
        """FleetEvent messages as they are committed; ends with UnavailableError."""
        request = controller_pb2.WatchEventsRequest(node=node, after_id=after_id)
        return self._follow(self._stub.WatchEvents, request)

    def _silent(self) -> UnavailableError:
        return UnavailableError(
            f"controller {self.address}: no answer within {self._deadline_s:g} s",
            "is it running there (nodeagent-controller), and is the way to it open?",
        )

    def _sentence(self, error: Message) -> NodeagentError:
        code, details = error.code(), error.details()
        if code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION):
            return NodeagentError(details, "nodeagentctl fleet nodes")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return self._silent()
        if code is grpc.StatusCode.UNAVAILABLE:
            return UnavailableError(
                f"controller {self.address}: cannot be reached: {details}",
                "start nodeagent-controller, or name another one with --controller or "
                "NODEAGENT_CONTROLLER",
            )
        return UnavailableError(
            f"controller {self.address}: {code.name}: {details}", "look at the controller's log"
        )
