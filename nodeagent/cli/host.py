"""The machine that a command is about: this one, or a recorded one (`--host`)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodeagent.cli.main import Invocation
    from nodeagent.discover.root import Root
    from nodeagent.model.snapshot import Snapshot


def open_root(host: str | None, *, keep: bool = False) -> Root:
    """The door to that machine's files. Raises UsageError, ReadError."""
    from nodeagent.discover.root import Root

    return Root.guarded(keep=keep) if host is None else Root.open(host, keep=keep)


def read_host(invocation: Invocation, *, nvml: bool = True) -> Snapshot:
    """One reading of that machine. `nvml=False`: no child process asks NVML."""
    with open_root(invocation.host) as root:
        return read_root(root, nvml=nvml)


def read_root(root: Root, *, nvml: bool = True) -> Snapshot:
    """One reading by that door."""
    from nodeagent.discover.snapshot import read_snapshot

    if not (root.is_live and nvml):
        now_ns = time.time_ns() if root.is_live else 0
        return read_snapshot(root, None, now_ns, asked_by_person=True)
    from nodeagent.discover.gpu import Gpus

    gpus = Gpus()
    try:
        return read_snapshot(root, gpus, time.time_ns(), asked_by_person=True)
    finally:
        gpus.close()
