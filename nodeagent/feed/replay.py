"""Replaying a recorded feed: in this process, or in a child that reports when it ends.

Sequence numbers are the replayer's own and go on across loops, so that going round again is no
duplicate; a session has a name of its own each time, so that a feeder takes it for a new one.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

from nodeagent.errors import NodeagentError, UnavailableError
from nodeagent.native.feed import Format, Line
from nodeagent.native.replay import Replay, Sent

_STOP_S = 15.0
_BASE36 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def session_name(now_ns: int) -> bytes:
    """A MoldUDP64 session name, ten characters, that differs from 100 ms to 100 ms."""
    n, text = now_ns // 100_000_000, ""
    for _ in range(9):
        n, digit = divmod(n, 36)
        text = _BASE36[digit] + text
    return ("R" + text).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be sent, and where."""

    file: str
    lines: tuple[Line, ...]
    """One, or A and B."""
    rate: int = 0
    """Messages a second; 0: as fast as it goes."""
    count: int = 0
    """Messages in all; 0: `loops` times through the capture."""
    loops: int = 1
    """0: until stopped."""
    per_packet: int = 0
    """Messages a packet; 0: as recorded (length-framed captures: 16)."""
    format: Format = Format.AUTO
    drop_every: tuple[int, ...] = ()
    """For each line: every n'th packet is withheld, to show what loss looks like; 0: none."""
    ttl: int = 1


@contextlib.contextmanager
def stopping(replay: Replay) -> Iterator[None]:
    """SIGTERM and SIGINT stop the replay while inside; main thread only."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        replay.stop()

    before = {s: signal.signal(s, stop) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def send(plan: Plan) -> Sent:
    """Sends in this process until done, SIGTERM or Ctrl-C; main thread only.

    Raises CaptureError, UsageError, UnavailableError.
    """
    replay = Replay(plan.file, plan.format)
    outcome: list[Sent | BaseException] = []

    def work() -> None:
        try:
            outcome.append(
                replay.run(
                    plan.lines,
                    rate=plan.rate,
                    count=plan.count,
                    loops=plan.loops,
                    per_packet=plan.per_packet,
                    session=session_name(time.time_ns()),
                    drop_every=plan.drop_every,
                    ttl=plan.ttl,
                )
            )
        except NodeagentError as error:
            outcome.append(error)

    # A signal handler runs between bytecodes of the main thread: it must not sit in the C call.
    with stopping(replay):
        thread = threading.Thread(target=work, name="replay")
        thread.start()
        while thread.is_alive():
            thread.join(0.1)
    result = outcome[0]
    if isinstance(result, BaseException):
        raise result
    return result


def report(sent: Sent) -> dict[str, int | float]:
    """What the child prints as JSON."""
    seconds = sent.elapsed_ns / 1e9
    return {
        "sent_messages": sent.messages,
        "sent_packets": sent.packets,
        "first_seq": sent.first_seq,
        "last_seq": sent.last_seq,
        "loops": sent.loops,
        "withheld_messages": sent.withheld,
        "seconds": round(seconds, 6),
        "rate_per_s": round(sent.messages / seconds, 1) if seconds else 0.0,
        "schedule_slips": sent.slipped,
    }


def argv(plan: Plan) -> list[str]:
    """The command line of a child that does this and prints its report as JSON."""
    a = plan.lines[0]
    words = [
        str(pathlib.Path(sys.executable).with_name("nodeagentctl")),
        *("-o", "json", "feed", "replay", plan.file),
        *("--group", a.group, "--port", str(a.port)),
        *("--rate", str(plan.rate), "--per-packet", str(plan.per_packet), "--ttl", str(plan.ttl)),
        *("--format", plan.format.name.lower()),
    ]
    if a.interface:
        words += ["--interface", a.interface]
    words += ["--count", str(plan.count)] if plan.count else ["--loops", str(plan.loops)]
    if len(plan.lines) > 1:
        b = plan.lines[1]
        words += ["--group-b", b.group, "--port-b", str(b.port)]
    for name, every in zip(("--drop-a", "--drop-b"), plan.drop_every, strict=False):
        words += [name, str(every)]
    return words


class Replayer:
    """A child process that replays; `stop()` or its own end gives the report."""

    def __init__(self, plan: Plan) -> None:
        """Starts it. Raises OSError when it cannot be started."""
        self._process = subprocess.Popen(
            argv(plan), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still sends."""
        return self._process.poll() is None

    def stop(self, timeout_s: float = _STOP_S) -> dict[str, int | float]:
        """SIGTERM, then its report. Raises UnavailableError when it failed or does not end."""
        if self.alive:
            self._process.send_signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float | None = None) -> dict[str, int | float]:
        """Its report once it has ended. Raises UnavailableError likewise."""
        try:
            out, log = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            self._process.kill()
            self._process.communicate()
            raise UnavailableError(
                f"the replayer (pid {self.pid}) did not end within {timeout_s:g} s; it was killed"
            ) from error
        if self._process.returncode != 0:
            last = log.decode(errors="replace").strip().splitlines()
            raise UnavailableError(
                f"the replayer ended with status {self._process.returncode}: "
                f"{last[0] if last else 'it said nothing'}"
            )
        found: dict[str, int | float] = json.loads(out)
        found.pop("schema", None)
        return found


def line_pair(
    group: str, port: int, interface: str | None, group_b: str | None, port_b: int | None
) -> Sequence[Line]:
    """Line A, and line B when a second group or port is given."""
    a = Line(group=group, port=port, interface=interface)
    if group_b is None and port_b is None:
        return (a,)
    return (a, Line(group=group_b or group, port=port_b or port, interface=interface))
