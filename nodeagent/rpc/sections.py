"""A status in sections, and which of them are worth a message now.

Counters change every turn; judgements and places seldom. So each section has two digests: one of
what matters (a change goes out at once) and one of everything (a change goes out with the next
heartbeat).
"""

from __future__ import annotations

import hashlib
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
class Part:
    """One section: its message, the digest of what matters in it and the digest of all of it."""

    section: int
    message: Message
    """A SectionState."""
    matters: bytes
    digest: bytes
    size_bytes: int


def split(status: NodeStatus, topology: Topology | None) -> dict[int, Part]:
    """All sections of a status, by number."""
    whole = wire.to_wire(status)
    parts = {}
    for section, names in FIELDS.items():
        message = controller_pb2.SectionState(section=section)
        part = message.part
        part.SetInParent()
        for name in names:
            _copy(whole, part, name)
        parts[section] = _part(section, message, _what_matters(section, status))
    if topology is not None:
        message = controller_pb2.SectionState(section=controller_pb2.SECTION_TOPOLOGY)
        wire.fill(topology, message.topology)
        parts[controller_pb2.SECTION_TOPOLOGY] = _part(
            controller_pb2.SECTION_TOPOLOGY, message, None
        )
    return parts


def changed(parts: dict[int, Part], sent: dict[int, Part], *, heartbeat: bool) -> list[Part]:
    """The sections to send: those where what matters changed; with a heartbeat, all that
    changed."""
    return [
        part
        for section, part in parts.items()
        if (before := sent.get(section)) is None
        or before.matters != part.matters
        or (heartbeat and before.digest != part.digest)
    ]


def join(parts: list[bytes]) -> Message:
    """The NodeStatus message of stored `part` bytes: concatenated messages merge.

    Source: protobuf encoding, "Last One Wins".
    """
    return types_pb2.NodeStatus.FromString(b"".join(parts))


def _copy(source: Message, target: Message, name: str) -> None:
    field = source.DESCRIPTOR.fields_by_name[name]
    if field.is_repeated:
        getattr(target, name).MergeFrom(getattr(source, name))
    elif field.message_type is not None:
        getattr(target, name).CopyFrom(getattr(source, name))
    elif not field.has_presence or source.HasField(name):
        setattr(target, name, getattr(source, name))


def _part(section: int, message: Message, matters: object) -> Part:
    data: bytes = message.SerializeToString(deterministic=True)
    digest = hashlib.blake2b(data, digest_size=16).digest()
    if matters is None:
        key = digest
    else:
        key = hashlib.blake2b(repr(matters).encode("utf-8", "replace"), digest_size=16).digest()
    return Part(section=section, message=message, matters=key, digest=digest, size_bytes=len(data))


def _what_matters(section: int, status: NodeStatus) -> object:
    """What of a section is a change of state rather than a counter that moved; None: all of it."""
    if section == controller_pb2.SECTION_SUMMARY:
        return (status.verdict, status.frozen, status.version, status.hostname, status.started_ns)
    if section == controller_pb2.SECTION_HELD:
        return [
            (h.workload, h.pid, h.sharing, str(h.cpus_planned), str(h.cpus_actual), h.held)
            for h in status.held
        ]
    if section == controller_pb2.SECTION_RINGS:
        return [
            (r.feed, r.incarnation, r.producer_alive, r.draining,
             [(x.name, x.pid, x.alive) for x in r.readers])
            for r in status.rings
        ]  # fmt: skip
    if section == controller_pb2.SECTION_FEEDS:
        return [(f.feed, f.source, f.pid, f.note) for f in status.feeds]
    if section == controller_pb2.SECTION_PROBE:
        p = status.probe
        return (p.available, p.reason, p.capabilities)
    if section == controller_pb2.SECTION_LINK:
        return (status.controller.address, status.controller.dropped)
    if section == controller_pb2.SECTION_COST:
        return [(c.part, c.pid) for c in status.cost]
    return None
