"""One program run to its end: a fixed command line, no shell, a deadline, and little of its output.

Where systemd is process 1 it starts the program, in a unit of its own: a container runtime needs
rights and folders that the actor's own unit does not have. Elsewhere it is a child.
Source: org.freedesktop.systemd1(5), StartTransientUnit; systemd.service(5), Type=oneshot.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.errors import ActError, UnavailableError, visible
from nodeagent.model.deadlines import RUNTIME_CALL_S
from nodeagent.pin.affinity import GoneError
from nodeagent.pin.proc import PROC

if TYPE_CHECKING:
    from nodeagent.pin.bus import Bus

FOLDERS = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/bin", "/sbin")
PATH = ":".join(FOLDERS)
SLICE_S = 0.1
CLEAN_LOOKS = 3
"""Looks, 20 ms apart, that must find no call: within execve(2) a program has no arguments yet."""
KILL_S = 1.0
"""How long a program that was killed is waited for."""
MAX_OUTPUT = 4096
"""Bytes of its standard error that are kept, the last ones."""
MAX_ANSWER = 1 << 18
"""Bytes of its standard output: a container's state with its annotations."""
MAX_SHOWN = 300
MANAGER, SYSTEMD = "/org/freedesktop/systemd1", "org.freedesktop.systemd1"
UNIT = "nodeagent-call-"
_number = itertools.count(1)


class LateCallError(ActError):
    """A program did not end in time."""


def find(name: str, folders: Sequence[str] = FOLDERS) -> str:
    """Its path. Raises UnavailableError: it is not there, or others than root may change it."""
    for folder in folders:
        path = Path(folder) / name
        try:
            seen = path.stat()
        except OSError:
            continue
        if not stat.S_ISREG(seen.st_mode) or not seen.st_mode & 0o111:
            continue
        if seen.st_uid != 0 or seen.st_mode & 0o022:
            raise UnavailableError(
                f"{path} may be changed by others than root, and is not run", "mend its mode"
            )
        return str(path)
    raise UnavailableError(
        f"{name} is in none of {':'.join(folders)}", f"install it, or leave {name} out"
    )


def run(argv: Sequence[str], connect: Callable[[], Bus], deadline_s: float) -> bytes:
    """To its end; what it wrote to its standard output, at most MAX_ANSWER bytes.

    Raises ActError when that is not a good end, UnavailableError, LateCallError.
    """
    if _systemd():
        return _by_systemd(argv, connect(), deadline_s)
    return _as_child(argv, deadline_s)


def await_others(
    *words: str, connect: Callable[[], Bus] | None = None, deadline_s: float = RUNTIME_CALL_S
) -> None:
    """Until no call of ours is under way: no program of root's runs with all these words among its
    arguments, and, where systemd starts them (`connect`), no unit of ours runs or is to. A call
    outlives an actor that was killed, or that waited no longer for systemd's answer, and does
    afterwards what it was told. Raises ActError."""
    end, clean = time.monotonic() + deadline_s, 0
    while True:
        pid = _running(words)
        unit = _starting(connect()) if connect is not None and _systemd() else ""
        clean = 0 if pid is not None or unit else clean + 1
        if clean == CLEAN_LOOKS:
            return
        if not clean and time.monotonic() >= end:
            who, look = f"unit {unit[:80]}", f"systemctl status {unit[:80]}"
            if pid is not None:
                who, look = f"process {pid} ({' '.join(words)[:MAX_SHOWN]})", f"ps -fp {pid}"
            raise ActError(
                f"{who} has not ended in {deadline_s:.3g} s, and what it leaves is not known "
                "before",
                f"look at it: {look}; once it has ended: nodeagentctl undo",
            )
        time.sleep(0.1 if unit else 0.02)


def _systemd() -> bool:
    """Whether systemd starts the calls."""
    first = (PROC / "1/comm").read_text(errors="replace").strip()
    return first == "systemd" and os.geteuid() == 0


def _starting(bus: Bus) -> str:
    """A unit of ours that runs or is to; "": none. systemd takes what it is asked in turn, so what
    was asked before is seen."""
    (units,) = bus.call(
        *(MANAGER, f"{SYSTEMD}.Manager", "ListUnitsByPatterns", "asas"),
        ([], [f"{UNIT}*.service"]),
        returns="a(ssssssouso)",
    )
    assert isinstance(units, list)  # the signature says so
    return next((str(u[0]) for u in units if u[7] or u[3] not in ("inactive", "failed")), "")


def _running(words: Sequence[str]) -> int | None:
    """Only of the same user: what others are called is their own word."""
    wanted = {word.encode() for word in words}
    for entry in PROC.iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            if entry.stat().st_uid == os.geteuid() and wanted <= {
                *(entry / "cmdline").read_bytes().split(b"\0")
            }:
                return int(entry.name)
        except OSError:
            continue
    return None


def _as_child(argv: Sequence[str], deadline_s: float) -> bytes:
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": PATH, "LANG": "C.UTF-8"},
        start_new_session=True,
    )
    assert process.stdout is not None and process.stderr is not None
    out, err = process.stdout.fileno(), process.stderr.fileno()
    said, answer, left_open = b"", b"", {out, err}
    end = time.monotonic() + deadline_s
    with process.stdout, process.stderr:
        while left_open and (left := end - time.monotonic()) > 0:
            ready = select.select(left_open, [], [], min(left, SLICE_S))[0]
            for fd in ready:
                data = os.read(fd, 1 << 16)
                if not data:
                    left_open.discard(fd)
                elif fd == err:
                    said = (said + data)[-MAX_OUTPUT:]
                else:
                    answer = (answer + data)[:MAX_ANSWER]
            if not ready and process.poll() is not None:
                # What it left running may hold the pipes for ever.
                break
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, end - time.monotonic()))
        if process.returncode is None:
            # Its group: what it started holds the same pipes.
            os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(KILL_S)
            raise _late(argv, deadline_s, ended=process.returncode is not None)
    if process.returncode != 0:
        raise ActError(
            f"{Path(argv[0]).name} {argv[1]} ended with status {process.returncode}: {_last(said)}"
        )
    return answer


def _by_systemd(argv: Sequence[str], bus: Bus, deadline_s: float) -> bytes:
    from dbus_fast import Variant

    name = f"{UNIT}{os.getpid()}-{next(_number)}.service"
    read, write = os.pipe2(os.O_CLOEXEC)
    properties = [
        ["Description", Variant("s", f"nodeagent: {Path(argv[0]).name} {argv[1]}")],
        ["Type", Variant("s", "oneshot")],
        ["ExecStart", Variant("a(sasb)", [[argv[0], list(argv), False]])],
        ["Environment", Variant("as", [f"PATH={PATH}", "LANG=C.UTF-8"])],
        ["StandardOutputFileDescriptor", Variant("h", 0)],
        ["TimeoutStartUSec", Variant("t", int(deadline_s * 1e6))],
        # Else it has a minute and a half more to end, and may do by then what it was told.
        ["KillSignal", Variant("i", int(signal.SIGKILL))],
    ]
    manager = f"{SYSTEMD}.Manager"
    try:
        os.set_blocking(read, False)
        try:
            bus.call(
                *(MANAGER, manager, "StartTransientUnit", "ssa(sv)a(sa(sv))"),
                (name, "fail", properties, []),
                returns="o",
                fds=(write,),
            )
        finally:
            os.close(write)
        return _ended(argv, name, bus, deadline_s, read)
    finally:
        os.close(read)


def _ended(argv: Sequence[str], name: str, bus: Bus, deadline_s: float, read: int) -> bytes:
    """What the unit's program wrote, once it has ended well."""
    path = f"{MANAGER}/unit/{''.join(c if c.isalnum() else f'_{ord(c):02x}' for c in name)}"
    answer, state = b"", ""
    end = time.monotonic() + deadline_s + KILL_S
    while time.monotonic() < end:
        try:
            # Before its job has run it is inactive, too, as it is once it has ended well.
            job = bus.get(path, f"{SYSTEMD}.Unit", "Job")
            waits = isinstance(job, (list, tuple)) and bool(job) and job[0] != 0
            state = "" if waits else str(bus.get(path, f"{SYSTEMD}.Unit", "ActiveState"))
        except GoneError:
            state = "inactive"  # ended well, and forgotten
        with contextlib.suppress(BlockingIOError):
            while data := os.read(read, 1 << 16):
                answer = (answer + data)[:MAX_ANSWER]
        if state == "inactive":
            return answer
        if state == "failed":
            break
        time.sleep(0.02)
    else:
        raise _late(argv, deadline_s, ended=False)
    result = str(bus.get(path, f"{SYSTEMD}.Service", "Result"))
    status = bus.get(path, f"{SYSTEMD}.Service", "ExecMainStatus")
    with contextlib.suppress(ActError):
        bus.call(MANAGER, f"{SYSTEMD}.Manager", "ResetFailedUnit", "s", (name,))
    if result == "timeout":
        raise _late(argv, deadline_s, ended=True)
    raise ActError(
        f"{Path(argv[0]).name} {argv[1]} ended with status {status} ({result[:40]})",
        f"journalctl -u {name} has what it said",
    )


def _late(argv: Sequence[str], deadline_s: float, *, ended: bool) -> LateCallError:
    then = "was stopped" if ended else "is still there after SIGKILL"
    return LateCallError(
        f"{Path(argv[0]).name} {argv[1]} had not ended after {deadline_s:.3g} s and {then}",
        "try it by hand: the runtime may hang",
    )


def _last(said: bytes) -> str:
    lines = said.decode("utf-8", "replace").strip().splitlines()
    shown = visible(lines[-1]) if lines else "it said nothing"
    return shown if len(shown) <= MAX_SHOWN else shown[: MAX_SHOWN - 3] + "..."
