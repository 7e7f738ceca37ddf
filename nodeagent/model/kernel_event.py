"""One line of a kernel or driver log that means something (contract: facts, Kernel and driver
log)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEvent:
    """`fault`: True something went wrong, False information, None not to be said from this line.

    `bdf` is the reporting device as far as it is printed (function may be missing). `details` has
    the kind's own keys: xid, pid, process, sxid, correctable, device, cpu, seconds, ...
    """

    line: int
    """Counts from 1 within its file."""
    kind: str
    fault: bool | None
    text: str
    bdf: str | None = None
    details: Mapping[str, str | int | bool | None] = field(default_factory=dict)
    file: str | None = None
