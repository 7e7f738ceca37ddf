"""VWAP of a recorded ITCH day, computed another way: plain Python, one message at a time.

The agent of the main job computes the same from the ring with numpy; equal sums for every symbol
prove
that nothing was lost, doubled or mangled between the wire and the reader's view. This file shares
no
code with the decoder on purpose.

Source: Nasdaq TotalView-ITCH 5.0, sections "Stock Directory", "Order Executed With Price", "Trade
(Non-Cross)" and "Cross Trade"; MoldUDP64 1.0, "Downstream Packet".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from nodeagent.errors import ParseError

_PCAP_LITTLE = (0xA1B2C3D4, 0xA1B23C4D)
_ETHERNET, _RAW_IP = 1, 101


def moldudp64_payloads(pcap: bytes) -> Iterator[bytes]:
    """UDP payloads of a classic little-endian pcap of Ethernet or raw IPv4 frames. ParseError."""
    if len(pcap) < 24 or struct.unpack_from("<I", pcap)[0] not in _PCAP_LITTLE:
        raise ParseError("capture", pcap[:8].hex(), "a little-endian pcap file")
    link = struct.unpack_from("<I", pcap, 20)[0]
    skip = {_ETHERNET: 14, _RAW_IP: 0}.get(link)
    if skip is None:
        raise ParseError("capture", f"link type {link}", "Ethernet (1) or raw IP (101)")
    at = 24
    while at + 16 <= len(pcap):
        length = struct.unpack_from("<I", pcap, at + 8)[0]
        frame = pcap[at + 16 : at + 16 + length]
        at += 16 + length
        ip = skip + (4 if skip and frame[12:14] == b"\x81\x00" else 0)
        header = (frame[ip] & 15) * 4
        yield frame[ip + header + 8 :]


def itch_messages(payload: bytes) -> Iterator[bytes]:
    """The messages of one MoldUDP64 downstream packet: header 20 bytes, then 2-byte lengths."""
    count = struct.unpack_from(">H", payload, 18)[0]
    if count == 0xFFFF:
        return
    at = 20
    for _ in range(count):
        size = struct.unpack_from(">H", payload, at)[0]
        yield payload[at + 2 : at + 2 + size]
        at += 2 + size


@dataclass(slots=True)
class Sums:
    """Per symbol: sum of price x shares (price in 1/10000 dollar) and sum of shares. Exact
    integers."""

    by_symbol: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, symbol: str, price: int, shares: int) -> None:
        """One trade."""
        value, volume = self.by_symbol.get(symbol, (0, 0))
        self.by_symbol[symbol] = value + price * shares, volume + shares

    def plus(self, other: Sums, times: int) -> Sums:
        """These sums plus `times` times the other ones."""
        total = dict(self.by_symbol)
        for symbol, (value, volume) in other.by_symbol.items():
            mine = total.get(symbol, (0, 0))
            total[symbol] = mine[0] + times * value, mine[1] + times * volume
        return Sums({s: v for s, v in total.items() if v[1]})


def vwap_sums(pcap: bytes, sent: int | None = None) -> Sums:
    """Sums after `sent` messages of the capture, looped; None: once through.

    Trades are P (shares at offset 20, price at 32), Q (shares 8 bytes at 11, price at 27) and C
    where printable (shares at 19, printable at 31, price at 32); shares of 0 add nothing.
    """
    symbols: dict[int, str] = {}

    def book(sums: Sums, message: bytes) -> None:
        kind, locate = message[:1], struct.unpack_from(">H", message, 1)[0]
        if kind == b"R":
            symbols[locate] = message[11:19].decode("ascii").rstrip()
        elif kind == b"P":
            symbols.setdefault(locate, message[24:32].decode("ascii").rstrip())
            shares, price = struct.unpack_from(">I8xI", message, 20)
            sums.add(symbols[locate], price, shares)
        elif kind == b"Q":
            symbols.setdefault(locate, message[19:27].decode("ascii").rstrip())
            shares, price = struct.unpack_from(">Q8xI", message, 11)
            sums.add(symbols[locate], price, shares)
        elif kind == b"C" and message[31:32] == b"Y":
            shares, price = (
                struct.unpack_from(">I", message, 19)[0],
                struct.unpack_from(">I", message, 32)[0],
            )
            if locate in symbols:
                sums.add(symbols[locate], price, shares)

    messages = [m for p in moldudp64_payloads(pcap) for m in itch_messages(p)]
    if not messages:
        raise ParseError("capture", "no message", "at least one ITCH message")
    once = Sums()
    for message in messages:
        book(once, message)
    if sent is None:
        return once.plus(Sums(), 0)
    loops, rest = divmod(sent, len(messages))
    prefix = Sums()
    for message in messages[:rest]:
        book(prefix, message)
    return prefix.plus(once, loops)
