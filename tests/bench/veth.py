"""A veth pair between two network namespaces, for benchmarks of what comes over a wire.

The namespaces have no name: they and the pair go with the last descriptor that holds them, so
nothing is left behind, whichever way the benchmark ends. Making them takes root.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator

CLONE_NEWNET = 0x40000000
INTERFACE = "wire0"
"""Both ends have this name, each in its own namespace: a feed's line is the same on both."""


class NoWireError(Exception):
    """Why there is no such pair here, in one sentence."""


_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *args: int) -> None:
    if getattr(_libc, name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}(CLONE_NEWNET): {os.strerror(number)}")


@contextlib.contextmanager
def inside(namespace: int) -> Iterator[None]:
    """This thread, and what it starts, in that namespace; sockets stay where they were made."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("setns", namespace, CLONE_NEWNET)
        try:
            yield
        finally:
            _call("setns", before, CLONE_NEWNET)
    finally:
        os.close(before)


def _namespace() -> int:
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("unshare", CLONE_NEWNET)
        try:
            return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            _call("setns", before, CLONE_NEWNET)
    finally:
        os.close(before)


def _ip(*words: str, keep: tuple[int, ...] = ()) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, pass_fds=keep, timeout=20)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise NoWireError(f"ip {' '.join(words[:2])}: {last}")


@contextlib.contextmanager
def veth() -> Iterator[tuple[int, int]]:
    """(namespace of the sender, namespace of the receiver), INTERFACE up in both.

    Raises NoWireError: no root, no iproute2, no veth in this kernel.
    """
    if os.geteuid() != 0:
        raise NoWireError("a veth pair in network namespaces takes root")
    if shutil.which("ip") is None:
        raise NoWireError("a veth pair takes ip (iproute2), which is not installed")
    with contextlib.ExitStack() as stack:
        try:
            ends = (_namespace(), _namespace())
        except OSError as error:
            raise NoWireError(f"no network namespace here: {error.strerror}") from None
        for end in ends:
            stack.callback(os.close, end)
        sender, receiver = ends
        with inside(sender):
            _ip(
                *("link", "add", "name", INTERFACE, "type", "veth", "peer", "name", INTERFACE),
                *("netns", f"/proc/self/fd/{receiver}"),
                keep=(receiver,),
            )
        for number, end in enumerate(ends, 1):
            with inside(end):
                # TEST-NET-1; without an address the sender's packets have no source.
                _ip("address", "add", f"192.0.2.{number}/30", "dev", INTERFACE)
                _ip("link", "set", "lo", "up")
                _ip("link", "set", INTERFACE, "up")
        yield sender, receiver
