"""ITCH 5.0 against an independent decoder (itchfeed), for every type of message."""

from __future__ import annotations

import pathlib
import struct
from collections import Counter

import itch.messages
import numpy as np
import pytest
from itch.parser import MessageParser

from nodeagent.feed import synth
from nodeagent.native.feed import Format, Kind, Memory, decode_blocks
from tests.feed.mold import decode_file

TYPES = b"SRHYLVWKJhAFECXDUPQBINO"


def number(text: bytes) -> int:
    return int.from_bytes(text, "big")


def side(code: bytes) -> int:
    return code[0] if code in (b"B", b"S") else 0


def expected(m: object) -> dict[str, int]:
    """What the tick of a message must hold, from the other decoder's fields."""
    a = vars(m)
    kind = type(m).message_type  # type: ignore[attr-defined]
    tick = {"instrument": a["stock_locate"], "ts_exch_ns": a["timestamp"]}
    ref = a.get("order_reference_number", 0)
    match kind:
        case b"A" | b"F":
            mpid = number(a["attribution"]) if kind == b"F" else 0
            more = {
                "kind": Kind.ADD,
                "ref": ref,
                "side": side(a["buy_sell_indicator"]),
                "size": a["shares"],
                "price": a["price"],
                "aux": mpid,
            }
        case b"E":
            more = {
                "kind": Kind.EXECUTE,
                "ref": ref,
                "size": a["executed_shares"],
                "aux": a["match_number"],
            }
        case b"C":
            more = {
                "kind": Kind.EXECUTE_PRICE,
                "ref": ref,
                "size": a["executed_shares"],
                "aux": a["match_number"],
                "price": a["execution_price"],
                "flags": 2 * (a["printable"] == b"N"),
            }
        case b"X":
            more = {"kind": Kind.REDUCE, "ref": ref, "size": a["cancelled_shares"]}
        case b"D":
            more = {"kind": Kind.DELETE, "ref": ref}
        case b"U":
            more = {
                "kind": Kind.REPLACE,
                "ref": ref,
                "aux": a["new_order_reference_number"],
                "size": a["shares"],
                "price": a["price"],
            }
        case b"P":
            more = {
                "kind": Kind.TRADE,
                "ref": ref,
                "side": side(a["buy_sell_indicator"]),
                "size": a["shares"],
                "price": a["price"],
                "aux": a["match_number"],
            }
        case b"Q":
            more = {
                "kind": Kind.CROSS,
                "size": a["shares"],
                "price": a["cross_price"],
                "aux": a["match_number"],
                "ref": number(a["cross_type"]),
            }
        case b"B":
            more = {"kind": Kind.BREAK, "aux": a["match_number"]}
        case b"S":
            more = {"kind": Kind.SYSTEM, "ref": number(a["event_code"])}
        case b"R":
            more = {"kind": Kind.DIRECTORY, "size": a["round_lot_size"]}
        case b"H":
            more = {
                "kind": Kind.STATUS,
                "ref": number(a["trading_state"]),
                "aux": number(a["reason"]),
            }
        case b"I":
            more = {
                "kind": Kind.IMBALANCE,
                "ref": a["paired_shares"],
                "size": a["imbalance_shares"],
                "price": a["current_reference_price"],
                "side": side(a["imbalance_direction"]),
            }
        case b"K":
            more = {"kind": Kind.OTHER, "ref": kind[0], "price": a["ipo_price"]}
        case b"J":
            more = {
                "kind": Kind.OTHER,
                "ref": kind[0],
                "price": a["auction_collar_reference_price"],
            }
        case b"O":
            more = {"kind": Kind.OTHER, "ref": kind[0], "price": a["near_execution_price"]}
        case _:
            more = {"kind": Kind.OTHER, "ref": kind[0]}
    return {**tick, **more}


def compare(messages: list[bytes], memory: Memory) -> Counter[bytes]:
    """Each tick equals what the other decoder says; returns how many of each type."""
    parser, seen = MessageParser(), Counter[bytes]()
    ticks = memory.ticks
    assert len(ticks) == len(messages)
    frames = {f.position: f for f in memory.frames()}
    for message, tick in zip(messages, ticks, strict=True):
        want = expected(parser.get_message_type(message))
        seen[message[:1]] += 1
        if tick["flags"] & 1:
            # The message is in the frame that aux points to.
            assert frames[int(tick["aux"])].payload == message
            want.pop("aux", None)
        elif "aux" not in want:
            assert tick["aux"] == 0
        got = {name: int(tick[name]) for name in want if name != "flags"}
        assert got == {k: int(v) for k, v in want.items() if k != "flags"}, message
        assert int(tick["flags"]) & 2 == want.get("flags", 0)
        for name in ("price", "size", "ref", "side"):
            assert name in want or tick[name] == 0, (message, name)
    return seen


def blocks(messages: list[bytes]) -> bytes:
    return b"".join(struct.pack(">H", len(m)) + m for m in messages)


def test_every_type_of_a_synthetic_day(tmp_path: pathlib.Path) -> None:
    messages = list(synth.Day(20_000, 50, seed=3).messages())
    memory, counts, error = decode_file(
        tmp_path / "day", b"".join(synth.binaryfile(messages)), Format.BINARYFILE
    )
    assert error is None and not memory.overflowed
    assert counts.published == counts.span == 20_000
    seen = compare(messages, memory)
    assert set(b"".join(seen)) == set(TYPES)
    day = synth.Day(20_000, 50)
    assert memory.symbols() == {i: day.name(i).decode().rstrip() for i in range(1, 51)}


def test_all_bits_of_every_field_arrive(tmp_path: pathlib.Path) -> None:
    """Random bytes in every field of every type: no field is cut or taken from its neighbour."""
    dice = np.random.default_rng(5)
    messages = []
    for _ in range(40):
        for kind in TYPES:
            length = itch.messages.messages[bytes([kind])].message_size
            messages.append(bytes([kind]) + dice.bytes(length - 1))
    memory, counts, _ = decode_file(
        tmp_path / "day", b"".join(synth.binaryfile(messages)), Format.BINARYFILE
    )
    assert counts.published == len(messages)
    compare(messages, memory)


def test_real_messages(shared: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path = shared / "data" / "itch" / "itch50-real-1000-messages.bin"
    if not path.exists():
        pytest.skip("the real ITCH messages are not in the shared corpus")
    data, messages, at = path.read_bytes(), [], 0
    while at < len(data):
        size = number(data[at : at + 2])
        messages.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    memory, counts, error = decode_file(tmp_path / "day", data)
    assert error is None
    assert counts.published == len(messages) == 1000
    seen = compare(messages, memory)
    assert seen[b"A"] == 367 and seen[b"U"] == 225


def test_symbols_are_first_seen_and_corrected_by_the_directory(tmp_path: pathlib.Path) -> None:
    head = struct.pack(">HHHI", 7, 0, 0, 0)
    add = b"A" + head + struct.pack(">QcI8sI", 1, b"B", 100, b"WRONG   ", 10_000)
    directory = b"R" + head + b"RIGHT   " + bytes(20)
    again = b"A" + head + struct.pack(">QcI8sI", 2, b"B", 100, b"OTHER   ", 10_000)
    for messages, want in (
        ([add], "WRONG"),
        ([add, directory], "RIGHT"),
        ([directory, again], "RIGHT"),
    ):
        data = b"".join(synth.binaryfile(messages))
        memory, counts, _ = decode_file(tmp_path / "day", data, Format.BINARYFILE)
        assert memory.symbols() == {7: want}
        assert counts.symbols == 1


@pytest.mark.parametrize("kind", list(TYPES))
def test_each_wrong_length_is_rejected(kind: int) -> None:
    length = itch.messages.messages[bytes([kind])].message_size
    for wrong in (length - 1, length + 1, 1):
        memory = Memory(16)
        counts = decode_blocks(blocks([bytes([kind]) + bytes(wrong - 1)]), memory=memory)
        assert (counts.published, counts.rejected) == (0, 1)
        assert dict(counts.bad) == {"wrong-length": 1}


def test_every_other_type_is_unknown() -> None:
    for kind in set(range(256)) - set(TYPES):
        counts = decode_blocks(blocks([bytes([kind]) + bytes(18)]), memory=Memory(16))
        assert dict(counts.bad) == {"unknown-type": 1}
