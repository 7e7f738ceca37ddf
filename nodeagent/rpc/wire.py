"""Model <-> protobuf, total both ways, by name.

A message has the name of its model class and its fields have the names of that class's fields, so
one translator per class is derived from the type hints once. Towards the wire nothing raises:
numbers are held to the range of the field, text that is no Unicode (a thread's name may hold any
byte) is escaped. From the wire, an enum value of a newer peer becomes the careful member named in
`FALLBACK`, a missing message the empty value; only a malformed CPU list raises ParseError.

`Any` stands here for generated message classes, which carry no types.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Container
from typing import Any

from nodeagent.api.v1 import types_pb2
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.event import Event, Severity
from nodeagent.model.feed import FeedLoss, FeedStatus, ReaderMode, ReaderStatus, RingStatus
from nodeagent.model.finding import Evidence, Finding, Verdict
from nodeagent.model.histogram import Histogram
from nodeagent.model.pci import (
    Acs,
    Aer,
    DeviceControl,
    ErrorBits,
    Link,
    PciFunction,
    ResizableBar,
)
from nodeagent.model.placement import (
    Held,
    Match,
    Placed,
    Placement,
    Refused,
    Role,
    RolePlaced,
    Sharing,
    ThreadState,
)
from nodeagent.model.probe import Capability, ProbeStatus, ThreadDelay
from nodeagent.model.snapshot import Host
from nodeagent.model.status import ControllerLink, NodeStatus, SelfCost
from nodeagent.model.topology import (
    Cache,
    Hugepages,
    Isolation,
    NodeKind,
    NumaNode,
    Package,
    Path,
    PeerLink,
    Relation,
    Topology,
)

T = typing.TypeVar("T")

Message = Any
"""A generated protobuf message."""

TRAVELS: tuple[type, ...] = (
    Evidence, Finding, Event, Histogram, Link, Aer, Acs, DeviceControl, ResizableBar,
    ErrorBits, PciFunction, Hugepages, NumaNode, Package,
    Cache, PeerLink, Relation, Isolation, Topology, Host, ThreadState, Match, Role, RolePlaced,
    Placed, Refused,
    Placement,
    Held, Capability, ThreadDelay, ProbeStatus, ReaderStatus, RingStatus, FeedLoss, FeedStatus,
    ControllerLink, SelfCost, NodeStatus,
)  # fmt: skip
"""Every model class that has a message."""

FALLBACK: dict[type[enum.Enum], enum.Enum] = {
    Verdict: Verdict.UNKNOWN,
    Severity: Severity.WARNING,
    Sharing: Sharing.SHARED,
    ReaderMode: ReaderMode.LOSSY,
    NodeKind: NodeKind.EMPTY,
    Path: Path.UNKNOWN,
}
"""What a value that this version does not know is taken for: never the healthy one."""


def to_wire(value: Any) -> Message:
    """The protobuf message of a model value whose class is in `TRAVELS`."""
    message = getattr(types_pb2, type(value).__name__)()
    fill(value, message)
    return message


def fill(value: Any, message: Message, *, only: Container[str] | None = None) -> None:
    """Writes a model value, or only the fields named, into an empty message of its kind."""
    for name, put, _ in _fields(type(value)):
        if only is None or name in only:
            put(message, getattr(value, name))


def from_wire(kind: type[T], message: Message) -> T:
    """The model value of a message. Raises ParseError for a malformed CPU list."""
    return kind(**{name: get(message) for name, _, get in _fields(kind)})


def verdict_of(number: int) -> Verdict:
    """The verdict of an enum number; UNKNOWN for one of a newer peer."""
    _, back = _enum(Verdict, types_pb2.Verdict.DESCRIPTOR)
    return typing.cast("Verdict", back(number))


def text(value: str) -> str:
    """The text itself, or with what is no Unicode (lone surrogates) written as escapes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "backslashreplace").decode()
    return value


_Put = Callable[[Message, Any], None]
_Get = Callable[[Message], Any]
_plans: dict[type, tuple[tuple[str, _Put, _Get], ...]] = {}


def _fields(kind: type) -> tuple[tuple[str, _Put, _Get], ...]:
    plan = _plans.get(kind)
    if plan is None:
        hints = typing.get_type_hints(kind)
        descriptors = getattr(types_pb2, kind.__name__).DESCRIPTOR.fields_by_name
        # A field that the protocol does not have yet stays at home (a test tells); its default
        # stands on the other side.
        plan = tuple(
            (f.name, *_accessors(hints[f.name], descriptors[f.name]))
            for f in dataclasses.fields(kind)
            if f.name in descriptors
        )
        _plans[kind] = plan
    return plan


def _accessors(hint: Any, field: Any) -> tuple[_Put, _Get]:
    """How a field is written and read, from the model's type hint and the message's descriptor."""
    name = field.name
    if typing.get_origin(hint) is tuple:
        return _repeated(typing.get_args(hint)[0], field)
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        (inner,) = (a for a in typing.get_args(hint) if a is not type(None))
        put, get = _accessors(inner, field)

        def put_optional(message: Message, value: Any) -> None:
            if value is not None:
                put(message, value)

        return put_optional, lambda m: get(m) if m.HasField(name) else None
    if dataclasses.is_dataclass(hint) and hint is not CpuSet:
        kind = typing.cast("type[Any]", hint)

        def put_message(message: Message, value: Any) -> None:
            sub = getattr(message, name)
            sub.SetInParent()
            fill(value, sub)

        return put_message, lambda m: from_wire(kind, getattr(m, name))
    out, back = _scalar(hint, field)

    def put_scalar(message: Message, value: Any) -> None:
        setattr(message, name, out(value))

    return put_scalar, lambda m: back(getattr(m, name))


def _repeated(item: Any, field: Any) -> tuple[_Put, _Get]:
    name = field.name
    if typing.get_origin(item) is tuple:
        # A pair travels as a message whose fields, by number, are the members of the pair.
        parts = sorted(field.message_type.fields, key=lambda f: f.number)
        pair = [
            (p.name, *_scalar(hint, p))
            for hint, p in zip(typing.get_args(item), parts, strict=True)
        ]

        def put_pairs(message: Message, values: Any) -> None:
            out = getattr(message, name)
            for value in values:
                sub = out.add()
                for (part, to, _), member in zip(pair, value, strict=True):
                    setattr(sub, part, to(member))

        return put_pairs, lambda m: tuple(
            tuple(back(getattr(sub, part)) for part, _, back in pair) for sub in getattr(m, name)
        )
    if dataclasses.is_dataclass(item) and item is not CpuSet:
        kind = typing.cast("type[Any]", item)

        def put_messages(message: Message, values: Any) -> None:
            out = getattr(message, name)
            for value in values:
                fill(value, out.add())

        return put_messages, lambda m: tuple(from_wire(kind, sub) for sub in getattr(m, name))
    to, back = _scalar(item, field)

    def put_scalars(message: Message, values: Any) -> None:
        getattr(message, name).extend([to(v) for v in values])

    return put_scalars, lambda m: tuple(back(v) for v in getattr(m, name))


_RANGE = {
    "int32": (-(1 << 31), (1 << 31) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
    "uint32": (0, (1 << 32) - 1),
    "uint64": (0, (1 << 64) - 1),
}


def _scalar(hint: Any, field: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    if hint is CpuSet:
        return str, CpuSet.parse
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enum(hint, field.enum_type)
    if hint is int:
        low, high = _RANGE[_type_name(field)]
        return lambda v: min(max(v, low), high), int
    if hint is float:
        return float, float
    if hint is str:
        return text, str
    assert hint is bool, f"{field.full_name}: no translation for {hint}"
    return bool, bool


def _enum(
    kind: type[enum.Enum], descriptor: Any
) -> tuple[Callable[[Any], int], Callable[[int], Any]]:
    zero = descriptor.values_by_number[0].name
    prefix = zero.removesuffix("UNSPECIFIED")
    numbers = {
        member: descriptor.values_by_name[prefix + member.name].number
        for member in kind
        if prefix + member.name in descriptor.values_by_name
    }
    members = {number: member for member, number in numbers.items()}
    fallback = FALLBACK[kind]
    return lambda v: numbers.get(v, 0), lambda n: members.get(n, fallback)


def _type_name(field: Any) -> str:
    return {
        field.TYPE_INT32: "int32",
        field.TYPE_INT64: "int64",
        field.TYPE_UINT32: "uint32",
        field.TYPE_UINT64: "uint64",
    }[field.type]
