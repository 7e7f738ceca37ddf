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
from nodeagent.pin.affinity import GoneError
from nodeagent.pin.proc import PROC

if TYPE_CHECKING:
    from nodeagent.pin.bus import Bus

FOLDERS = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/bin", "/sbin")
PATH = ":".join(FOLDERS)
DEADLINE_S = 6.0
SLICE_S = 0.1
MAX_OUTPUT = 4096
MAX_SHOWN = 300
MANAGER, SYSTEMD = "/org/freedesktop/systemd1", "org.freedesktop.systemd1"
_number = itertools.count(1)


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


def run(argv: Sequence[str], connect: Callable[[], Bus], deadline_s: float = DEADLINE_S) -> None:
    """To its end. Raises ActError when that is not a good one, UnavailableError."""
    first = (PROC / "1/comm").read_text(errors="replace").strip()
    if first == "systemd" and os.geteuid() == 0:
        _by_systemd(argv, connect(), deadline_s)
    else:
        _as_child(argv, deadline_s)


def await_others(*words: str, deadline_s: float = DEADLINE_S) -> None:
    """Until no program of root's runs with all these words among its arguments: a call outlives an
    actor that was killed meanwhile, and does what it was told afterwards. Raises ActError."""
    end = time.monotonic() + deadline_s
    while (pid := _running(words)) is not None:
        if time.monotonic() >= end:
            raise ActError(
                f"process {pid} ({' '.join(words)[:MAX_SHOWN]}) has not ended in {deadline_s:g} s, "
                "and what it leaves is not known before",
                f"look at it: ps -fp {pid}; once it has ended: nodeagentctl undo",
            )
        time.sleep(0.02)


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


def _as_child(argv: Sequence[str], deadline_s: float) -> None:
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={"PATH": PATH, "LANG": "C.UTF-8"},
        start_new_session=True,
    )
    assert process.stderr is not None
    fd, said, end = process.stderr.fileno(), b"", time.monotonic() + deadline_s
    with process.stderr:
        while (left := end - time.monotonic()) > 0:
            if select.select([fd], [], [], min(left, SLICE_S))[0]:
                data = os.read(fd, 1 << 16)
                if not data:
                    break
                said = (said + data)[-MAX_OUTPUT:]
            elif process.poll() is not None:
                # What it left running may hold the pipe for ever.
                break
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, end - time.monotonic()))
        late = process.returncode is None
        if late:
            # Its group: what it started holds the same pipe.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if late:
        raise _late(argv, deadline_s)
    if process.returncode != 0:
        raise ActError(
            f"{Path(argv[0]).name} {argv[1]} ended with status {process.returncode}: {_last(said)}"
        )


def _by_systemd(argv: Sequence[str], bus: Bus, deadline_s: float) -> None:
    from dbus_fast import Variant

    name = f"nodeagent-call-{os.getpid()}-{next(_number)}.service"
    properties = [
        ["Description", Variant("s", f"nodeagent: {Path(argv[0]).name} {argv[1]}")],
        ["Type", Variant("s", "oneshot")],
        ["ExecStart", Variant("a(sasb)", [[argv[0], list(argv), False]])],
        ["Environment", Variant("as", [f"PATH={PATH}", "LANG=C.UTF-8"])],
        ["TimeoutStartUSec", Variant("t", int(deadline_s * 1e6))],
    ]
    manager = f"{SYSTEMD}.Manager"
    bus.call(
        *(MANAGER, manager, "StartTransientUnit", "ssa(sv)a(sa(sv))"),
        (name, "fail", properties, []),
        returns="o",
    )
    path = f"{MANAGER}/unit/{''.join(c if c.isalnum() else f'_{ord(c):02x}' for c in name)}"
    end, state = time.monotonic() + deadline_s + 1.0, ""
    while time.monotonic() < end:
        try:
            state = str(bus.get(path, f"{SYSTEMD}.Unit", "ActiveState"))
        except GoneError:
            return  # ended well, and forgotten
        if state == "inactive":
            return
        if state == "failed":
            break
        time.sleep(0.02)
    else:
        raise _late(argv, deadline_s)
    result = str(bus.get(path, f"{SYSTEMD}.Service", "Result"))
    status = bus.get(path, f"{SYSTEMD}.Service", "ExecMainStatus")
    with contextlib.suppress(ActError):
        bus.call(MANAGER, manager, "ResetFailedUnit", "s", (name,))
    if result == "timeout":
        raise _late(argv, deadline_s)
    raise ActError(
        f"{Path(argv[0]).name} {argv[1]} ended with status {status} ({result[:40]})",
        f"journalctl -u {name} has what it said",
    )


def _late(argv: Sequence[str], deadline_s: float) -> ActError:
    return ActError(
        f"{Path(argv[0]).name} {argv[1]} had not ended after {deadline_s:g} s and was stopped",
        "try it by hand: the runtime may hang",
    )


def _last(said: bytes) -> str:
    lines = said.decode("utf-8", "replace").strip().splitlines()
    shown = visible(lines[-1]) if lines else "it said nothing"
    return shown if len(shown) <= MAX_SHOWN else shown[: MAX_SHOWN - 3] + "..."
