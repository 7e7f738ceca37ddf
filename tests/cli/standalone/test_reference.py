"""The reference VWAP: exact sums over loops and cut loops of a capture made here by hand."""

from __future__ import annotations

import struct

import pytest

from nodeagent.cli.standalone.reference import vwap_sums
from nodeagent.errors import ParseError


def head(kind: bytes, locate: int) -> bytes:
    return kind + struct.pack(">HH", locate, 0) + b"\0" * 6


def directory(locate: int, symbol: bytes) -> bytes:
    return (head(b"R", locate) + symbol.ljust(8)).ljust(39, b"\0")


def trade(locate: int, symbol: bytes, shares: int, price: int) -> bytes:
    body = struct.pack(">Q", 1) + b"B" + struct.pack(">I", shares) + symbol.ljust(8)
    return head(b"P", locate) + body + struct.pack(">IQ", price, 9)


def executed(locate: int, shares: int, printable: bytes, price: int) -> bytes:
    return (
        head(b"C", locate)
        + struct.pack(">QIQ", 1, shares, 2)
        + printable
        + struct.pack(">I", price)
    )


def cross(locate: int, symbol: bytes, shares: int, price: int) -> bytes:
    return (
        head(b"Q", locate)
        + struct.pack(">Q", shares)
        + symbol.ljust(8)
        + struct.pack(">IQ", price, 3)
        + b"O"
    )


def pcap(messages: list[bytes]) -> bytes:
    body = b"".join(struct.pack(">H", len(m)) + m for m in messages)
    payload = b"SESSION001" + struct.pack(">QH", 1, len(messages)) + body
    ip = b"\x45" + b"\0" * 19 + b"\0" * 8 + payload
    frame = b"\0" * 12 + b"\x08\x00" + ip
    header = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
    return header + struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame


MESSAGES = [
    directory(7, b"ABC"),
    trade(7, b"ABC", 100, 12_0000),
    executed(7, 50, b"Y", 11_0000),
    executed(7, 50, b"N", 1),
    cross(8, b"XYZ", 1000, 5_0000),
]


def test_message_sizes_are_the_specification_s() -> None:
    assert [len(m) for m in MESSAGES] == [39, 44, 36, 36, 40]


def test_once_through() -> None:
    assert vwap_sums(pcap(MESSAGES)).by_symbol == {
        "ABC": (100 * 120_000 + 50 * 110_000, 150),
        "XYZ": (1000 * 50_000, 1000),
    }


def test_two_loops_and_a_part() -> None:
    sums = vwap_sums(pcap(MESSAGES), sent=2 * len(MESSAGES) + 2)
    assert sums.by_symbol["ABC"] == (3 * 100 * 120_000 + 2 * 50 * 110_000, 3 * 100 + 2 * 50)
    assert sums.by_symbol["XYZ"] == (2 * 1000 * 50_000, 2000)


def test_not_a_capture() -> None:
    with pytest.raises(ParseError):
        vwap_sums(b"hello")
