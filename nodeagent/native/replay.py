"""Replays in Python: a thin layer over native/core/replay.c (docs/feeds.md)."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass

from nodeagent.errors import UnavailableError
from nodeagent.native.feed import (
    WHY_BYTES,
    CaptureError,
    Format,
    Line,
    capture_error,
    ffi,
    lib,
    line_into,
    line_remedy,
    open_capture,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What a replay sent. `withheld`: messages that went out on no line, on purpose."""

    messages: int
    packets: int
    loops: int
    withheld: int
    first_seq: int
    last_seq: int
    heartbeats: int
    elapsed_ns: int
    slipped: int


class Replay:
    """A capture in memory, to be sent as MoldUDP64."""

    def __init__(self, file: str, format: Format = Format.AUTO) -> None:
        """Reads it whole ("-": stdin). Raises CaptureError."""
        fd = open_capture(file)
        out, error = ffi.new("struct na_replay **"), ffi.new("struct na_capture_error *")
        try:
            rc = lib.na_replay_new(fd, format.value, out, error)
        finally:
            if fd != 0:
                os.close(fd)
        self._replay = ffi.gc(out[0], lib.na_replay_free)
        if rc < 0:
            size = lib.NA_REPLAY_MAX_BYTES
            reasons = {
                errno.EFBIG: f"{file}: more than {size} bytes of messages, expected less",
                errno.ENODATA: f"{file}: no message in it, expected MoldUDP64 or framed ITCH 5.0",
            }
            raise capture_error(file, error) or CaptureError(
                reasons.get(-rc, f"{file}: {os.strerror(-rc)}"), "replay a part of it, or another"
            )
        self._fds: list[int] = []

    def size(self, per_packet: int = 0) -> tuple[int, int]:
        """Messages and packets of one time through."""
        messages, packets = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        lib.na_replay_size(self._replay, per_packet, messages, packets)
        return int(messages[0]), int(packets[0])

    def run(
        self,
        lines: Sequence[Line],
        *,
        rate: int = 0,
        count: int = 0,
        loops: int = 1,
        per_packet: int = 0,
        session: bytes = b"NODEAGENT0",
        first_seq: int = 1,
        drop_every: Sequence[int] = (),
        end_packets: int = 3,
        ttl: int = 1,
    ) -> Sent:
        """Sends until done or `stop()`; blocks without the GIL. Raises UnavailableError.

        rate: messages a second, 0: as fast as it goes. count: messages in all, else `loops` times
        through (0: until stopped). drop_every: for each line, the n'th packets that are withheld.
        """
        config = ffi.new("struct na_replay_config *")
        config.lines = len(lines)
        config.per_packet, config.rate, config.count = per_packet, rate, count
        config.loops, config.first_seq, config.end_packets = loops, first_seq, end_packets
        ffi.memmove(config.session, session.ljust(10)[:10], 10)
        for i, every in enumerate(drop_every):
            config.drop_every[i] = every
        fds = []
        try:
            for i, line in enumerate(lines):
                where, fd = ffi.new("struct na_feed_line *"), ffi.new("int *")
                why = ffi.new("char[]", WHY_BYTES)
                line_into(where, line)
                rc = lib.na_replay_open(where, ttl, fd, why, WHY_BYTES)
                if rc < 0:
                    raise UnavailableError(
                        f"line {line}: {bytes(ffi.string(why)).decode()}", line_remedy(-rc, line)
                    )
                fds.append(int(fd[0]))
                config.fds[i] = fd[0]
            counts = ffi.new("struct na_replay_counts *")
            rc = lib.na_replay_run(self._replay, config, counts)
        finally:
            for fd in fds:
                os.close(fd)
        if rc < 0:
            raise UnavailableError(
                f"sending to {lines[0]}: {os.strerror(-rc)}",
                "name the interface with --interface, and see ip route get " + lines[0].group,
            )
        return Sent(**{name: int(getattr(counts, name)) for name in Sent.__dataclass_fields__})

    def stop(self) -> None:
        """From any thread or a signal handler: `run` returns soon."""
        lib.na_replay_stop(self._replay)
