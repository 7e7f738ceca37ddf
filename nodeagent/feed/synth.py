"""Synthetic ITCH 5.0 days: deterministic, every message type, an order book that holds together.

Plausible, not real: prices walk, orders are added, executed, reduced, replaced and deleted, and no
message refers to an order that is not live. The same arguments give the same bytes on every machine
and every Python.

Source: Nasdaq TotalView-ITCH 5.0, chapter 1; MoldUDP64 1.00; SoupBinTCP 4.1; BinaryFILE 1.00;
draft-ietf-opsawg-pcap and -pcapng for the files.
"""

from __future__ import annotations

import pathlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from nodeagent.errors import UsageError
from nodeagent.native.feed import Format

OPEN_NS = int(9.5 * 3600 * 1e9)
MAX_PAYLOAD = 1400
GROUPS = ("239.192.0.1", "239.192.0.2")
"""Lines A and B of the captures made here."""
PORT = 26400
SOURCE = ("192.0.2.1", 30000)
_CLOSING = 5
_EPOCH_US = 1_700_000_000_000_000


class Dice:
    """xorshift64*: the same numbers everywhere, whatever the version of Python.

    Source: S. Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled".
    """

    def __init__(self, seed: int) -> None:
        self._state = (seed * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) & (2**64 - 1) or 1

    def below(self, bound: int) -> int:
        """A number from 0 to bound - 1 (not exactly even; nobody bets on it)."""
        x = self._state
        x ^= x >> 12
        x = (x ^ (x << 25)) & (2**64 - 1)
        x ^= x >> 27
        self._state = x
        return ((x * 0x2545F4914F6CDD1D & (2**64 - 1)) >> 11) % bound


@dataclass(slots=True)
class _Order:
    locate: int
    side: bytes
    shares: int
    price: int


@dataclass(slots=True)
class Day:
    """One trading day in the making: `messages()` once."""

    count: int
    """Messages in all; see `least`."""
    symbols: int = 16
    seed: int = 1
    _dice: Dice = field(init=False)
    _now_ns: int = field(init=False, default=OPEN_NS)
    _orders: dict[int, _Order] = field(init=False, default_factory=dict)
    _live: list[int] = field(init=False, default_factory=list)
    _prices: list[int] = field(init=False, default_factory=list)
    _next_ref: int = field(init=False, default=1)
    _match: int = field(init=False, default=1)

    def __post_init__(self) -> None:
        if not 1 <= self.symbols <= 10_000:
            raise UsageError(f"{self.symbols} symbols, expected 1 to 10000")
        if self.count < self.least:
            raise UsageError(
                f"{self.count} messages, expected at least {self.least} for {self.symbols} symbols",
                "ask for more messages or fewer symbols",
            )
        self._dice = Dice(self.seed)
        self._prices = [100_000 + 100 * self._dice.below(40_000) for _ in range(self.symbols)]

    @property
    def least(self) -> int:
        """Messages of the opening and the close, and some in between."""
        return 3 * self.symbols + 40

    def name(self, locate: int) -> bytes:
        """The symbol of a stock locate code (1 for the first), eight bytes."""
        letters, n = b"", locate - 1
        for _ in range(4):
            letters = bytes((65 + n % 26,)) + letters
            n //= 26
        return letters.ljust(8)

    def messages(self) -> Iterator[bytes]:
        """Every message of the day, in order."""
        made = 0
        for message in self._opening():
            yield message
            made += 1
        for _ in range(self.count - made - _CLOSING):
            yield self._flow()
        yield from self._closing()

    # Each message: type, locate, tracking number, six bytes of time, and what is its own.

    def _head(self, kind: bytes, locate: int, step: int = 400) -> bytes:
        self._now_ns += 100 + self._dice.below(step)
        return struct.pack(">cHHHI", kind, locate, 0, self._now_ns >> 32, self._now_ns & 0xFFFFFFFF)

    def _system(self, code: bytes) -> bytes:
        return self._head(b"S", 0) + code

    def _opening(self) -> Iterator[bytes]:
        yield self._system(b"O")
        for locate in range(1, self.symbols + 1):
            name = self.name(locate)
            yield (
                self._head(b"R", locate)
                + name
                + b"QN"
                + struct.pack(">I", 100)
                + (
                    b"N"
                    + b"C"
                    + b"Z "
                    + b"P"
                    + b"N"
                    + b"N"
                    + b"1"
                    + b"N"
                    + struct.pack(">I", 0)
                    + b"N"
                )
            )
            yield self._head(b"H", locate) + name + b"T" + b" " + b"    "
            yield self._head(b"Y", locate) + name + b"0"
        yield self._head(b"L", 1) + b"TEST" + self.name(1) + b"Y" + b"N" + b"A"
        levels = (450_000_000_000, 420_000_000_000, 390_000_000_000)
        yield self._head(b"V", 0) + struct.pack(">QQQ", *levels)
        yield self._head(b"h", 1) + self.name(1) + b"Q" + b"T"
        yield self._head(b"K", 1) + self.name(1) + struct.pack(">IcI", 34_500, b"A", 250_000)
        yield (
            self._head(b"O", 1)
            + self.name(1)
            + b"Y"
            + struct.pack(">IIIQII", 80_000, 180_000, 100_000, self._now_ns, 90_000, 110_000)
        )
        yield self._system(b"S")
        yield self._head(b"I", 1) + self._imbalance(1, b"O")
        yield self._head(b"Q", 1) + self._cross(1, b"O")
        yield self._system(b"Q")
        yield self._add()
        yield self._head(b"W", 0) + b"1"
        yield self._head(b"N", 1) + self.name(1) + b"A"
        yield self._collar(1)
        yield self._head(b"B", 1) + struct.pack(">Q", 1)
        # The rarer kinds of the flow, so that even the shortest day has every type.
        for kind in ("F", "E", "A", "C", "A", "X", "A", "U", "P", "A", "D"):
            yield self._one(kind)

    def _closing(self) -> Iterator[bytes]:
        yield self._system(b"M")
        yield self._head(b"I", 1) + self._imbalance(1, b"C")
        yield self._head(b"Q", 1) + self._cross(1, b"C")
        yield self._system(b"E")
        yield self._system(b"C")

    # The flow.

    def _pick(self) -> tuple[int, _Order] | None:
        if not self._live:
            return None
        ref = self._live[self._dice.below(len(self._live))]
        return ref, self._orders[ref]

    def _drop(self, ref: int) -> None:
        at = self._live.index(ref)
        self._live[at] = self._live[-1]
        self._live.pop()
        del self._orders[ref]

    def _enter(self, order: _Order) -> int:
        ref, self._next_ref = self._next_ref, self._next_ref + 1
        self._orders[ref] = order
        self._live.append(ref)
        return ref

    def _price(self, locate: int) -> int:
        """The next price of a symbol, in 1/10000 dollar, whole cents, above one dollar."""
        price = self._prices[locate - 1] + 100 * (self._dice.below(5) - 2)
        self._prices[locate - 1] = max(price, 10_000)
        return self._prices[locate - 1]

    def _flow(self) -> bytes:
        # Shares of the kinds as on a real day, roughly; the book holds at most 2,000 orders.
        d = self._dice.below(1000)
        if not self._live or (len(self._live) < 400 and d < 700):
            return self._one("F" if d % 8 == 0 else "A")
        if len(self._live) > 2000:
            return self._one("D")
        for bound, kind in _MIX:
            if d < bound:
                return self._one(kind)
        return self._one("A")

    def _one(self, kind: str) -> bytes:
        if kind in "AF":
            return self._add(attributed=kind == "F")
        locate = 1 + self._dice.below(self.symbols)
        match kind:
            case "P":
                self._match += 1
                shares = 1 + self._dice.below(500)
                return self._head(b"P", locate) + struct.pack(
                    ">QcI8sIQ", 0, b"B", shares, self.name(locate), self._price(locate), self._match
                )
            case "J":
                return self._collar(locate)
            case "N":
                flag = b"BSAN"[self._dice.below(4) :][:1]
                return self._head(b"N", locate) + self.name(locate) + flag
            case "I":
                return self._head(b"I", locate) + self._imbalance(locate, b"H")
            case "Q":
                return self._head(b"Q", locate) + self._cross(locate, b"H")
            case "B":
                return self._head(b"B", locate) + struct.pack(">Q", max(1, self._match))
            case "H":
                return self._head(b"H", locate) + self.name(locate) + b"T " + b"    "
        found = self._pick()
        if found is None:
            return self._add()
        ref, order = found
        return self._touch(kind, ref, order)

    def _touch(self, kind: str, ref: int, order: _Order) -> bytes:
        if kind == "D":
            self._drop(ref)
            return self._head(b"D", order.locate) + struct.pack(">Q", ref)
        if kind == "U":
            self._drop(ref)
            new = _Order(order.locate, order.side, 100 + self._dice.below(900), 0)
            new.price = self._price(order.locate)
            made = self._enter(new)
            return self._head(b"U", order.locate) + struct.pack(
                ">QQII", ref, made, new.shares, new.price
            )
        part = 1 + self._dice.below(order.shares)
        if kind == "X":
            part = max(1, part - 1)
        order.shares -= part
        if order.shares == 0:
            self._drop(ref)
        if kind == "X":
            return self._head(b"X", order.locate) + struct.pack(">QI", ref, part)
        self._match += 1
        if kind == "C":
            printable = b"N" if self._dice.below(5) == 0 else b"Y"
            price = self._price(order.locate)
            return self._head(b"C", order.locate) + struct.pack(
                ">QIQcI", ref, part, self._match, printable, price
            )
        return self._head(b"E", order.locate) + struct.pack(">QIQ", ref, part, self._match)

    def _add(self, attributed: bool = False) -> bytes:
        locate = 1 + self._dice.below(self.symbols)
        side = b"BS"[self._dice.below(2) :][:1]
        order = _Order(locate, side, 100 * (1 + self._dice.below(10)), self._price(locate))
        ref = self._enter(order)
        body = struct.pack(">QcI8sI", ref, side, order.shares, self.name(locate), order.price)
        if attributed:
            return self._head(b"F", locate) + body + b"TEST"
        return self._head(b"A", locate) + body

    def _collar(self, locate: int) -> bytes:
        price = self._prices[locate - 1]
        return (
            self._head(b"J", locate)
            + self.name(locate)
            + struct.pack(">IIII", price, price + price // 10, price - price // 10, 0)
        )

    def _cross(self, locate: int, kind: bytes) -> bytes:
        self._match += 1
        shares = 1000 + self._dice.below(9000)
        return struct.pack(
            ">Q8sIQc", shares, self.name(locate), self._price(locate), self._match, kind
        )

    def _imbalance(self, locate: int, kind: bytes) -> bytes:
        price = self._prices[locate - 1]
        side = b"BSNO"[self._dice.below(4) :][:1]
        return struct.pack(
            ">QQc8sIIIcc", 5000 + self._dice.below(5000), self._dice.below(5000), side,
            self.name(locate), price + 100, price, price, kind, b"L",
        )  # fmt: skip


_MIX = (
    (280, "A"), (310, "F"), (560, "D"), (660, "E"), (690, "X"), (850, "U"), (930, "P"), (970, "C"),
    (975, "J"), (980, "N"), (985, "I"), (988, "Q"), (990, "B"), (992, "H"),
)  # fmt: skip
"""Below this of a thousand: this kind; the rest are Add Order."""


# Framing.


def packets(
    messages: Iterable[bytes], *, session: bytes = b"NODEAGENT0", most: int = 12, seed: int = 1
) -> Iterator[bytes]:
    """MoldUDP64 downstream packets of 1 to `most` messages, at most MAX_PAYLOAD bytes each."""
    dice, seq, size, want = Dice(seed ^ 0x5EED), 1, 0, 1
    batch: list[bytes] = []
    for message in messages:
        if batch and (len(batch) >= want or 20 + size + 2 + len(message) > MAX_PAYLOAD):
            yield _packet(session, seq, batch)
            seq += len(batch)
            batch, size, want = [], 0, 1 + dice.below(most)
        batch.append(message)
        size += 2 + len(message)
    if batch:
        yield _packet(session, seq, batch)
        seq += len(batch)
    yield session.ljust(10)[:10] + struct.pack(">QH", seq, 0xFFFF)


def _packet(session: bytes, seq: int, batch: list[bytes]) -> bytes:
    blocks = b"".join(struct.pack(">H", len(m)) + m for m in batch)
    return session.ljust(10)[:10] + struct.pack(">QH", seq, len(batch)) + blocks


def _checksum(data: bytes) -> int:
    """RFC 1071: the ones' complement sum is the number modulo 65535."""
    if len(data) % 2:
        data += b"\0"
    rest = int.from_bytes(data, "big") % 0xFFFF
    return (~rest & 0xFFFF) or 0xFFFF


def frame(
    payload: bytes,
    *,
    group: str = GROUPS[0],
    port: int = PORT,
    source: tuple[str, int] = SOURCE,
) -> bytes:
    """An Ethernet frame with that UDP payload over IPv4, checksums filled in."""
    target, origin = (bytes(int(x) for x in a.split(".")) for a in (group, source[0]))
    length = 8 + len(payload)
    udp = struct.pack(">HHHH", source[1], port, length, 0) + payload
    pseudo = origin + target + struct.pack(">HH", 17, length)
    udp = udp[:6] + struct.pack(">H", _checksum(pseudo + udp)) + payload
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + length, 0, 0x4000, 1, 17, 0) + origin + target
    ip = ip[:10] + struct.pack(">H", _checksum(ip)) + ip[12:]
    mac = bytes((0x01, 0x00, 0x5E, target[1] & 0x7F, target[2], target[3]))
    return mac + b"\x02\0\0\0\0\x01" + b"\x08\0" + ip + udp


def pcap(frames: Iterable[bytes]) -> Iterator[bytes]:
    """A classic pcap file, microsecond stamps, 10 us apart."""
    yield struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1)
    for i, data in enumerate(frames):
        at = _EPOCH_US + 10 * i
        yield struct.pack("<IIII", at // 1_000_000, at % 1_000_000, len(data), len(data)) + data


def pcapng(frames: Iterable[bytes]) -> Iterator[bytes]:
    """A pcapng file: one section, one interface, enhanced packet blocks."""

    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        size = 12 + len(body)
        return struct.pack("<II", kind, size) + body + struct.pack("<I", size)

    yield block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    yield block(1, struct.pack("<HHI", 1, 0, 262144))
    for i, data in enumerate(frames):
        at = _EPOCH_US + 10 * i
        head = struct.pack("<IIIII", 0, at >> 32, at & 0xFFFFFFFF, len(data), len(data))
        yield block(6, head + data)


def binaryfile(messages: Iterable[bytes]) -> Iterator[bytes]:
    """BinaryFILE: two bytes of length and the message; a length of 0 at the end."""
    for message in messages:
        yield struct.pack(">H", len(message)) + message
    yield b"\0\0"


def soupbintcp(messages: Iterable[bytes], session: bytes = b"NODEAGENT0") -> Iterator[bytes]:
    """What a SoupBinTCP server sends: Login Accepted, sequenced data, End of Session."""

    def packet(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">H", 1 + len(body)) + kind + body

    yield packet(b"A", session.ljust(10)[:10] + b"1".rjust(20))
    for i, message in enumerate(messages):
        if i % 1000 == 999:
            yield packet(b"H", b"")
        yield packet(b"S", message)
    yield packet(b"Z", b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What was written."""

    path: pathlib.Path
    format: Format
    messages: int
    symbols: int
    bytes: int


def write(
    path: pathlib.Path | str,
    *,
    messages: int = 100_000,
    symbols: int = 16,
    seed: int = 1,
    format: Format = Format.PCAP,
    most: int = 12,
    lines: int = 1,
) -> Made:
    """A capture of a synthetic day. `most`: messages a packet; `lines` 2: each packet on both.

    Raises UsageError for arguments that cannot be met, OSError when the file cannot be written.
    """
    day = Day(messages, symbols, seed).messages()
    match format:
        case Format.BINARYFILE:
            parts = binaryfile(day)
        case Format.SOUPBINTCP:
            parts = soupbintcp(day)
        case Format.PCAPNG:
            parts = pcapng(_frames(packets(day, most=most, seed=seed), lines))
        case Format.PCAP | Format.AUTO:
            parts, format = pcap(_frames(packets(day, most=most, seed=seed), lines)), Format.PCAP
    path = pathlib.Path(path)
    with path.open("wb") as file:
        size = _write_all(file, parts)
    return Made(path=path, format=format, messages=messages, symbols=symbols, bytes=size)


def _frames(payloads: Iterable[bytes], lines: int) -> Iterator[bytes]:
    for payload in payloads:
        for group in GROUPS[:lines]:
            yield frame(payload, group=group)


def _write_all(file: BinaryIO, parts: Iterable[bytes]) -> int:
    return sum(file.write(part) for part in parts)
