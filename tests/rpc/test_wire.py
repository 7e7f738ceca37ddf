"""Round trips of every type that travels, and what a newer or careless peer may send."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent.api.v1 import types_pb2
from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.event import Event, Severity
from nodeagent.model.feed import RingStatus
from nodeagent.model.finding import Finding, Verdict
from nodeagent.model.placement import Held, ThreadState
from nodeagent.model.status import NodeStatus
from nodeagent.model.topology import Topology
from nodeagent.rpc import sections, wire

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
UINT64 = st.integers(0, (1 << 64) - 1)
CPUS = st.frozensets(st.integers(0, 300), max_size=6).map(CpuSet)
TEXT = st.text(max_size=6)


def strategy(hint: Any, field: Any = None) -> st.SearchStrategy[Any]:
    """Values of a model type hint that the message's field can hold."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and args[-1] is Ellipsis:
        inner = args[0]
        if typing.get_origin(inner) is tuple:
            parts = sorted(field.message_type.fields, key=lambda f: f.number)
            members = zip(typing.get_args(inner), parts, strict=True)
            item = st.tuples(*(strategy(h, p) for h, p in members))
        else:
            item = strategy(inner, field)
        return st.lists(item, max_size=2).map(tuple)
    if origin in (types.UnionType, typing.Union):
        (inner,) = (a for a in args if a is not type(None))
        return st.none() | strategy(inner, field)
    if hint is CpuSet:
        return CPUS
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    if dataclasses.is_dataclass(hint):
        return values(typing.cast("type[Any]", hint))
    if hint is int:
        return {field.TYPE_INT32: INT32, field.TYPE_INT64: INT64, field.TYPE_UINT64: UINT64}[
            field.type
        ]
    simple = {float: st.floats(allow_nan=False), bool: st.booleans(), str: TEXT}
    return simple[hint]


def values(kind: type[Any]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    fields = getattr(types_pb2, kind.__name__).DESCRIPTOR.fields_by_name
    return st.builds(
        kind,
        **{
            f.name: strategy(hints[f.name], fields[f.name])
            for f in dataclasses.fields(kind)
            if f.name in fields
        },
    )


@pytest.mark.parametrize("kind", wire.TRAVELS, ids=lambda k: k.__name__)
def test_every_field_of_the_model_has_its_field_in_the_protocol(kind: type[Any]) -> None:
    ours = {f.name for f in dataclasses.fields(kind)}
    theirs = {f.name for f in getattr(types_pb2, kind.__name__).DESCRIPTOR.fields}
    assert ours == theirs, "add it to proto/nodeagent/api/v1/types.proto and run script/proto"


@pytest.mark.parametrize("kind", wire.TRAVELS, ids=lambda k: k.__name__)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_round_trip(kind: type[Any], data: st.DataObject) -> None:
    value = data.draw(values(kind))
    bytes_ = wire.to_wire(value).SerializeToString()
    message = getattr(types_pb2, kind.__name__).FromString(bytes_)
    assert wire.from_wire(kind, message) == value


@pytest.mark.parametrize("kind", wire.TRAVELS, ids=lambda k: k.__name__)
def test_an_empty_message_is_a_value(kind: type[Any]) -> None:
    assert isinstance(wire.from_wire(kind, getattr(types_pb2, kind.__name__)()), kind)


@pytest.mark.parametrize("kind", list(wire.FALLBACK), ids=lambda k: k.__name__)
def test_every_enum_member_has_its_number(kind: type[enum.Enum]) -> None:
    names = {d.name: d for d in types_pb2.DESCRIPTOR.enum_types_by_name.values()}
    descriptor = names[kind.__name__]
    prefix = descriptor.values_by_number[0].name.removesuffix("UNSPECIFIED")
    assert {v.name for v in descriptor.values if v.number} == {prefix + m.name for m in kind}


def test_an_enum_value_of_a_newer_peer_is_never_taken_for_healthy() -> None:
    finding = types_pb2.Finding(id="x", verdict=types_pb2.VERDICT_OK)
    raw = finding.SerializeToString().replace(b"\x10\x01", b"\x10\x63")
    newer = types_pb2.Finding.FromString(raw)
    assert newer.verdict == 99
    assert wire.from_wire(Finding, newer).verdict is Verdict.UNKNOWN
    assert wire.from_wire(Event, types_pb2.Event(severity=77)).severity is Severity.WARNING


def test_fields_of_a_newer_peer_are_passed_over() -> None:
    raw = types_pb2.Evidence(path="/proc/cmdline").SerializeToString() + b"\xfa\x3e\x03new"
    evidence = types_pb2.Evidence.FromString(raw)
    assert wire.to_wire(wire.from_wire(type_of("Evidence"), evidence)).path == "/proc/cmdline"


def type_of(name: str) -> type[Any]:
    return next(k for k in wire.TRAVELS if k.__name__ == name)


def test_a_malformed_cpu_list_is_a_sentence() -> None:
    with pytest.raises(ParseError, match="CPU list"):
        wire.from_wire(Topology, types_pb2.Topology(online="0-9-3"))


def test_bytes_that_are_no_unicode_do_not_stop_a_report() -> None:
    comm = b"worker\xff".decode("utf-8", "surrogateescape")
    message = wire.to_wire(ThreadState(tid=1, comm=comm, cpus=CpuSet()))
    assert message.comm == "worker\\udcff"


def test_numbers_beyond_the_field_are_held_to_its_range() -> None:
    ring = wire.from_wire(RingStatus, types_pb2.RingStatus())
    message = wire.to_wire(dataclasses.replace(ring, head=1 << 70, heartbeat_age_ns=-(1 << 70)))
    assert message.head == (1 << 64) - 1
    assert message.heartbeat_age_ns == -(1 << 63)


def test_every_field_of_the_status_is_in_one_section() -> None:
    names = [n for fields in sections.FIELDS.values() for n in fields]
    assert sorted(names) == sorted(f.name for f in dataclasses.fields(NodeStatus))


def told(parts: list[sections.Part]) -> dict[int, sections.Sent]:
    return {p.section: p.sent for p in parts}


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(status=values(NodeStatus))
def test_sections_join_to_the_status_they_were_split_from(status: NodeStatus) -> None:
    parts = sections.due(status, None, {}, heartbeat=True)
    stored = [p.message.part.SerializeToString() for p in parts]
    assert wire.from_wire(NodeStatus, sections.join(stored)) == status


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(status=values(NodeStatus), held=values(Held), shape=values(Topology))
def test_only_what_changed_is_sent(status: NodeStatus, held: Held, shape: Topology) -> None:
    sent = told(sections.due(status, shape, {}, heartbeat=False))
    assert len(sent) == len(sections.FIELDS) + 1
    assert sections.due(status, shape, sent, heartbeat=True) == []
    later = dataclasses.replace(status, turns=status.turns // 2 + 1, at_ns=status.at_ns // 2 + 1)
    assert sections.due(later, shape, sent, heartbeat=False) == []
    assert len(sections.due(later, shape, sent, heartbeat=True)) <= 1
    more = dataclasses.replace(status, held=(*status.held, held))
    (only,) = sections.due(more, shape, sent, heartbeat=False)
    assert tuple(only.message.part.held) == tuple(wire.to_wire(h) for h in more.held)
