"""A status in sections, and which of them are worth a message now.

Counters change every turn; judgements and places seldom. So each section has two faces: what
matters in it (a change goes out at once) and all of it (a change goes out with the next heartbeat).
What matters is compared as model values: a turn in which nothing happened translates nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nodeagent.api.v1 import controller_pb2, types_pb2
from nodeagent.model.status import NodeStatus
from nodeagent.model.topology import Topology
from nodeagent.rpc import wire
from nodeagent.rpc.wire import Message

FIELDS: dict[int, tuple[str, ...]] = {
    controller_pb2.SECTION_SUMMARY: (
        "agent_uuid", "epoch", "hostname", "version", "started_ns", "at_ns", "turns", "sentence",
        "verdict", "frozen",
    ),
    controller_pb2.SECTION_FINDINGS: ("findings",),
    controller_pb2.SECTION_PLACEMENT: ("placement",),
    controller_pb2.SECTION_HELD: ("held",),
    controller_pb2.SECTION_RINGS: ("rings",),
    controller_pb2.SECTION_FEEDS: ("feeds",),
    controller_pb2.SECTION_PROBE: ("probe",),
    controller_pb2.SECTION_LINK: ("controller",),
    controller_pb2.SECTION_COST: ("cost",),
}  # fmt: skip
"""Fields of NodeStatus in each section; the topology is a section of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What the other side was told of a section."""

    matters: object
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One section to send: a SectionState message, and what to remember once it is sent."""

    section: int
    message: Message
    size_bytes: int
    sent: Sent


def due(
    status: NodeStatus, topology: Topology | None, sent: Mapping[int, Sent], *, heartbeat: bool
) -> list[Part]:
    """The sections to send now, given what was sent before."""
    parts = []
    for section in FIELDS:
        before = sent.get(section)
        matters = _MATTERS[section](status)
        if before is not None and before.matters == matters and not heartbeat:
            continue
        part = _part(section, _cut(status, section), matters)
        if before is None or before.matters != matters or before.digest != part.sent.digest:
            parts.append(part)
    if topology is not None:
        before = sent.get(controller_pb2.SECTION_TOPOLOGY)
        if before is None or before.matters != topology:
            message = controller_pb2.SectionState(section=controller_pb2.SECTION_TOPOLOGY)
            wire.fill(topology, message.topology)
            parts.append(_part(controller_pb2.SECTION_TOPOLOGY, message, topology))
    return parts


def join(parts: list[bytes]) -> Message:
    """The NodeStatus message of the `part` bytes of its sections: concatenated messages merge.

    Source: protobuf encoding, "Last One Wins".
    """
    return types_pb2.NodeStatus.FromString(b"".join(parts))


def _cut(status: NodeStatus, section: int) -> Message:
    message = controller_pb2.SectionState(section=section)
    message.part.SetInParent()
    wire.fill(status, message.part, only=FIELDS[section])
    return message


def _part(section: int, message: Message, matters: object) -> Part:
    data: bytes = message.SerializeToString(deterministic=True)
    digest = hashlib.blake2b(data, digest_size=16).digest()
    sent = Sent(matters=matters, digest=digest)
    return Part(section=section, message=message, size_bytes=len(data), sent=sent)


def _held(status: NodeStatus) -> object:
    return tuple(
        (h.workload, h.kind, h.pid, h.sharing, h.cpus_planned, h.cpus_actual, h.held)
        for h in status.held
    )


def _rings(status: NodeStatus) -> object:
    return tuple(
        (
            (r.feed, r.incarnation, r.producer_alive, r.draining),
            tuple((x.name, x.pid, x.alive) for x in r.readers),
        )
        for r in status.rings
    )


def _probe(status: NodeStatus) -> object:
    return status.probe.available, status.probe.reason, status.probe.capabilities


_MATTERS: dict[int, Callable[[NodeStatus], object]] = {
    controller_pb2.SECTION_SUMMARY: lambda s: (s.verdict, s.frozen, s.version, s.hostname),
    controller_pb2.SECTION_FINDINGS: lambda s: s.findings,
    controller_pb2.SECTION_PLACEMENT: lambda s: s.placement,
    controller_pb2.SECTION_HELD: _held,
    controller_pb2.SECTION_RINGS: _rings,
    controller_pb2.SECTION_FEEDS: lambda s: tuple((f.feed, f.source, f.pid) for f in s.feeds),
    controller_pb2.SECTION_PROBE: _probe,
    controller_pb2.SECTION_LINK: lambda s: (s.controller.address, s.controller.dropped),
    controller_pb2.SECTION_COST: lambda s: tuple((c.part, c.pid) for c in s.cost),
}
"""What of a section is a change of state rather than a counter that moved."""
