"""Who is at the other end of a Unix socket: pid, uid, groups, and a descriptor that tells its end.

Source: unix(7) SO_PEERCRED, SO_PEERGROUPS (Linux 28b5ba2aa0f5, v4.13), SO_PEERPIDFD
(Linux 7b26952a91cf, v6.5); pidfd_open(2).
"""

from __future__ import annotations

import os
import select
import socket
import struct
from dataclasses import dataclass

SO_PEERGROUPS = 59
SO_PEERPIDFD = 77
MAX_GROUPS_BYTES = 1024
"""256 groups: the most that Python's getsockopt takes. A user of more counts by its first group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A process, from the socket's credentials as they were when it connected."""

    pid: int
    uid: int
    gids: frozenset[int]
    """Primary and supplementary."""
    pidfd: int | None
    """Readable once the process is gone; the holder closes it. None: this kernel has none."""
    start_time: int | None
    """Clock ticks since boot (stat field 22), where it could be read."""

    @property
    def alive(self) -> bool:
        """Whether that very process (not a reused pid) still runs."""
        if self.pidfd is not None:
            # poll, not select: descriptor numbers may be above 1023.
            poller = select.poll()
            poller.register(self.pidfd, select.POLLIN)
            return not poller.poll(0)
        return self.start_time is not None and start_time(self.pid) == self.start_time

    def close(self) -> None:
        """Closes the pidfd."""
        if self.pidfd is not None:
            os.close(self.pidfd)


def start_time(pid: int) -> int | None:
    """Start of a process in clock ticks since boot; None: gone or hidden."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            return int(file.read(4096).rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def groups_of(sock: socket.socket) -> frozenset[int]:
    """Supplementary groups of the other end; empty where the kernel does not tell them."""
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, MAX_GROUPS_BYTES)
    except OSError:
        return frozenset()
    return frozenset(struct.unpack(f"{len(raw) // 4}I", raw))


def _pidfd(sock: socket.socket, pid: int) -> int | None:
    try:
        return sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError:
        pass
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def peer_of(sock: socket.socket) -> Peer:
    """The process that connected."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid, gid = struct.unpack("iII", raw)
    before = start_time(pid)
    return Peer(
        pid=pid,
        uid=uid,
        gids=groups_of(sock) | {gid},
        pidfd=_pidfd(sock, pid),
        start_time=before,
    )
