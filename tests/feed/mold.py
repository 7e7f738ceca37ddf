"""Builders for the feed's tests: packets, lines, captures."""

from __future__ import annotations

import pathlib
import struct
from collections.abc import Iterable, Sequence

from nodeagent.feed import synth
from nodeagent.native.feed import (
    CaptureError,
    Counts,
    Format,
    Memory,
    Options,
    decode_capture,
)

SESSION = b"TESTSESS01"
END = 0xFFFF


def delete(ref: int) -> bytes:
    """The shortest message with a number of its own: Order Delete."""
    return struct.pack(">cHHHIQ", b"D", 1, 0, 0, ref & 0xFFFFFFFF, ref)


def packet(
    seq: int, messages: Sequence[bytes], session: bytes = SESSION, count: int | None = None
) -> bytes:
    """A downstream packet; `count` may lie."""
    blocks = b"".join(struct.pack(">H", len(m)) + m for m in messages)
    return session + struct.pack(">QH", seq, len(messages) if count is None else count) + blocks


def numbered(seq: int, n: int = 1, session: bytes = SESSION) -> bytes:
    """A packet of n deletes whose references are their sequence numbers."""
    return packet(seq, [delete(i) for i in range(seq, seq + n)], session)


def heartbeat(seq: int, session: bytes = SESSION) -> bytes:
    """Count 0: `seq` is the next number."""
    return packet(seq, [], session)


def end(seq: int, session: bytes = SESSION) -> bytes:
    """End of Session."""
    return packet(seq, [], session, END)


def capture(path: pathlib.Path, packets: Iterable[tuple[int, bytes]]) -> pathlib.Path:
    """A pcap of (line, payload)."""
    frames = (synth.frame(payload, group=synth.GROUPS[line]) for line, payload in packets)
    path.write_bytes(b"".join(synth.pcap(frames)))
    return path


def decode(
    path: pathlib.Path, packets: Iterable[tuple[int, bytes]], *, first_seq: int = 0
) -> tuple[Memory, Counts]:
    """What a feed makes of packets of lines 0 and 1; the identity is checked here, always."""
    memory, counts, error = decode_capture(
        capture(path, packets), options=Options(first_seq=first_seq)
    )
    assert error is None
    assert counts.adds_up, counts
    return memory, counts


def decode_file(
    path: pathlib.Path, data: bytes, format: Format = Format.AUTO
) -> tuple[Memory, Counts, CaptureError | None]:
    """What a feed makes of a file's bytes."""
    path.write_bytes(data)
    memory, counts, error = decode_capture(path, format=format)
    assert counts.adds_up, counts
    return memory, counts, error
