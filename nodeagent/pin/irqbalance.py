"""irqbalance told to leave an interrupt alone, through its own socket; its files are not touched.

It serves one command a connection: `setup` answers with what is banned, `settings ban irqs N N`
replaces that list, `NONE` empties it. The list lives in its memory: a restart forgets it.
Versions before 1.9.5 read 500 bytes of a command, so a number must not stand across that border.
Source: irqbalance irqbalance.c sock_handle(), init_socket(); ui/irqbalance-ui.c send_settings().
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct

from nodeagent.errors import ActError
from nodeagent.pin import sysfile
from nodeagent.pin.affinity import GoneError
from nodeagent.pin.proc import PROC

BANNED, BALANCED = "banned", "balanced"
RUN = "/run/irqbalance"
TIMEOUT_S = 3.0
"""It answers between two scans, each of which takes milliseconds."""
OLD_BUFFER = 500
"""Bytes of a command that versions before 1.9.5 read."""
MAX_BYTES = 1 << 20
_REMEDY = (
    "add --banirq=N for each of them to its arguments (/etc/default/irqbalance or "
    "/etc/sysconfig/irqbalance) and restart it"
)
_SETUP = re.compile(r"SLEEP \d+ ((?:IRQ \d+ LOAD \d+ DIFF -?\d+ CLASS -?\d+ )*)BANNED [0-9a-f,]*")


class Irqbalance:
    """The door to its list of banned interrupts, one number at a time: what others banned stays."""

    def check(self, subject: str, value: str) -> None:
        """A number, and banned or balanced."""
        # It takes a 0 for the end of the list.
        if not sysfile.number(subject) or int(subject) == 0:
            raise ActError(f"{subject!r} is no interrupt number that irqbalance takes")
        if value not in (BANNED, BALANCED):
            raise ActError(f"IRQ {subject}: {value!r}, expected {BANNED} or {BALANCED}")

    def read(self, subject: str) -> str:
        """banned or balanced."""
        return BANNED if int(subject) in _banned(_pid()) else BALANCED

    def write(self, subject: str, value: str) -> None:
        """At once for the list; what it had in mind for the interrupt it may still do first."""
        pid = _pid()
        before = _banned(pid)
        number = int(subject)
        wanted = [n for n in before if n != number] + ([number] if value == BANNED else [])
        _ask(pid, _command(wanted))
        if set(_banned(pid)) == set(wanted):
            return
        with contextlib.suppress(OSError):
            _ask(pid, _command(before))
        raise ActError(
            f"irqbalance (pid {pid}) did not take a list of {len(wanted)} banned interrupts, and "
            "has its former one; versions before 1.9.5 read 500 bytes",
            _REMEDY,
        )

    def same(self, one: str, other: str) -> bool:
        """To the letter."""
        return one == other


def _command(numbers: list[int]) -> bytes:
    """No number stands across the border that old versions cut at."""
    if not numbers:
        return b"settings ban irqs NONE"
    text = "settings ban irqs"
    for number in numbers:
        word = f" {number}"
        if len(text) < OLD_BUFFER < len(text) + len(word):
            text = text.ljust(OLD_BUFFER)
        text += word
    return text.encode()


def _pid() -> int:
    """Of the one that runs as root. Raises GoneError."""
    for entry in sorted(PROC.iterdir()):
        if not entry.name.isdecimal():
            continue
        try:
            if (entry / "comm").read_text() == "irqbalance\n" and entry.stat().st_uid == 0:
                return int(entry.name)
        except OSError:
            continue
    raise GoneError("irqbalance does not run")


def _connect(pid: int) -> socket.socket:
    """Its socket: a file, or (1.6 and older) a name in this network namespace."""
    tried: list[str] = []
    for address in (f"{RUN}/irqbalance{pid}.sock", f"\0irqbalance{pid}.sock", "\0" * 108):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.settimeout(TIMEOUT_S)
            sock.connect(address)
            # Anybody may bind a name: only the process itself is spoken to.
            raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            if struct.unpack("iII", raw)[0] == pid:
                return sock
        except OSError as error:
            if address[0] != "\0":
                tried.append(f"{address}: {error.strerror}")
        sock.close()
    raise ActError(
        f"irqbalance (pid {pid}) runs and serves no socket that the actor can reach "
        f"({'; '.join(tried) or 'another program has its name'})",
        _REMEDY,
    )


def _ask(pid: int, command: bytes) -> str:
    """Its answer; empty for a setting. Raises ActError, OSError."""
    who = struct.pack("iII", os.getpid(), os.getuid(), os.getgid())
    parts: list[bytes] = []
    with _connect(pid) as sock:
        try:
            sock.sendmsg([command], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, who)])
            while len(parts) * 65536 < MAX_BYTES and (data := sock.recv(65536)):
                parts.append(data)
        except ConnectionResetError:
            # It closed with a part of the command unread: what it took, `setup` tells.
            pass
        except TimeoutError as error:
            raise ActError(
                f"irqbalance (pid {pid}) did not answer within {TIMEOUT_S:g} s", "restart it"
            ) from error
    return b"".join(parts).decode("ascii", "replace")


def _banned(pid: int) -> list[int]:
    """The interrupts it was told to leave alone, in its order."""
    answer = _ask(pid, b"setup")
    found = _SETUP.fullmatch(answer.strip("\0 \n"))
    if found is None:
        shown = answer[:60] or "nothing: only root is answered"
        raise ActError(f"irqbalance (pid {pid}) answers {shown!r}, expected SLEEP ... BANNED ...")
    return [int(n) for n in re.findall(r"IRQ (\d+)", found[1])]
