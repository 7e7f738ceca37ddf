"""Reads an undo journal as it stands, and says what is wrong with it.

What stands behind the seal (records.py) is a write that was under way, before which nothing had
been changed; what is missing before it, or damaged, is told, and the lines around it stand. Files
of before there was a seal, and of a newer version, are read all the same.
"""

from __future__ import annotations

import zlib

import msgspec

from nodeagent.errors import ParseError
from nodeagent.pin.records import DECODER, Loaded, apply, keep, sealed_to


class _Id(msgspec.Struct):
    """What every record has, of whatever version."""

    id: int = 0


def load(data: bytes, name: str, boot: str = "") -> Loaded:
    """The state that the lines tell. Never raises for what stands in them. `boot`: this one."""
    found = Loaded()
    # Allocated ahead and not yet written: zeros.
    text = data.rstrip(b"\0")
    offset = 0
    damaged: list[int] = []
    tail: list[int] = []
    newer: list[int] = []
    for number, raw in enumerate(text.splitlines(keepends=True), 1):
        start, offset = offset, offset + len(raw)
        body = _body(raw)
        if body is None:
            tail.append(number)
            if not found.cut:
                found.cut = text[start:]
            continue
        damaged += tail
        tail.clear()
        found.cut = b""
        found.end = offset
        try:
            apply(found, DECODER.decode(body), raw)
        except (msgspec.MsgspecError, ParseError, RecursionError):
            newer.append(number)
            keep(found, _id_of(body), raw)
        if number == 1 and found.header is not None:
            found.header_bytes = offset
    found.damaged = bool(damaged)
    _drop_unfinished(found, text)
    found.crc = zlib.crc32(text[found.header_bytes : found.end])
    if newer:
        are = "a record of another version is left as it is"
        if len(newer) > 1:
            are = f"{len(newer)} records of another version are left as they are"
        found.notes.append(f"{name}:{_numbers(newer)}: {are}")
    lost = _lost(found, text, name, boot)
    if tail and not lost:
        found.notes.append(
            f"{name}:{tail[0]}: the last write was cut or damaged ({len(found.cut)} bytes); what "
            "stands before it is whole"
        )
    if damaged:
        found.notes.append(
            f"{name}:{_numbers(damaged)}: {len(damaged)} damaged lines are left out; what they "
            "recorded cannot be undone from here"
        )
    found.notes += lost
    return found


def _numbers(lines: list[int]) -> str:
    return ", ".join(map(str, lines[:8]))


def _drop_unfinished(found: Loaded, text: bytes) -> None:
    """An entry behind the seal without the masks that were written with it: it had not begun."""
    sealed = sealed_to(found.header)
    last = found.entries.get(found.next_id - 1)
    if sealed is None or last is None or not last.lost or len(last.lines) != 1:
        return
    start = found.end - len(last.lines[0][1])
    if start >= sealed[0] and text[start : found.end] == last.lines[0][1]:
        found.cut = text[start:]
        found.end = start
        found.next_id = last.id
        del found.entries[last.id]


def _lost(found: Loaded, text: bytes, name: str, boot: str) -> list[str]:
    """What had been written, and synced, and is not there any more."""
    sealed, header = sealed_to(found.header), found.header
    if sealed is None or header is None:
        if header is not None or not found.end or found.damaged:
            return []
        return [f"{name}:1: the first line is none of an undo journal; lines may be missing"]
    end, crc = sealed
    if found.end >= end and zlib.crc32(text[found.header_bytes : end]) == crc:
        return []
    if found.end >= end and found.damaged:
        return []
    what = "are not those that were written"
    if found.end < end:
        what = f"end at byte {found.end}, and were written up to byte {end}"
    else:
        found.damaged = True
    if boot and header.boot and header.boot.strip() != boot:
        then = "that was before the machine was restarted, and nothing of it is in force"
    else:
        then = (
            "what the lost ones recorded may be in force and cannot be undone from here: the last "
            "lines of audit.jsonl say what was changed, from what to what"
        )
    return [f"{name}: its lines {what}; {then}"]


def _id_of(body: bytes) -> int:
    try:
        return msgspec.json.decode(body, type=_Id).id
    except (msgspec.MsgspecError, RecursionError):
        return 0


def _body(raw: bytes) -> bytes | None:
    if len(raw) < 11 or raw[-1:] != b"\n" or raw[8:9] != b" ":
        return None
    try:
        crc = int(raw[:8], 16)
    except ValueError:
        return None
    body = raw[9:-1]
    return body if zlib.crc32(body) == crc else None
