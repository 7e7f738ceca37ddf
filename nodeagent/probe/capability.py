"""What eBPF can do here: one trial load (and attachment) of each kind, never the configuration."""

from __future__ import annotations

import errno
import os

from nodeagent.errors import NodeagentError
from nodeagent.model.probe import Capability
from nodeagent.probe import loader

KINDS = (
    "tp_btf",
    "raw_tp",
    "tp",
    "fentry",
    "fexit",
    "fmod_ret",
    "kprobe",
    "lsm",
    "uprobe",
    "perf",
    "iter",
    "ringbuf",
    "task_storage",
    "mmap_array",
    "xdp",
)
"""In the order shown."""

WITHOUT_ATTACHMENT = frozenset({"ringbuf", "task_storage", "mmap_array", "xdp"})
"""Judged by making or loading alone: maps; and XDP, whose attachment would touch a link."""


def matrix(*, attach: bool = True) -> tuple[Capability, ...]:
    """Tries each kind once.

    attach: also attach for an instant. That patches kernel text and interrupts every CPU once or
    twice a kind, so it is left out while CPUs are isolated; the reason then says so.
    """
    try:
        bpf = loader.native()
    except NodeagentError as error:
        return tuple(Capability(kind=k, works=False, reason=str(error)) for k in KINDS)
    step = bpf.ffi.new("char **")
    found = []
    for kind in KINDS:
        step[0] = bpf.ffi.NULL
        rc = bpf.lib.na_trial(kind.encode(), attach, step)
        where = bpf.ffi.string(step[0]).decode() if step[0] else ""
        found.append(Capability(kind=kind, works=rc == 0, reason=_reason(kind, -rc, where, attach)))
    bpf.lib.na_trial_end()
    return tuple(found)


def _reason(kind: str, error: int, step: str, attach: bool) -> str:
    if error == 0:
        if kind in WITHOUT_ATTACHMENT:
            return "made" if kind != "xdp" else "loaded (not attached to a link)"
        return "loaded and attached" if attach else "loaded; attaching was not tried"
    name = errno.errorcode.get(error, str(error))
    if error == errno.EPERM and (missing := loader.missing_rights()):
        return f"{step}: {name}: {' and '.join(missing)} missing"
    what = {
        "btf": "the kernel has no BTF, or its BTF has no such target",
        "map": "the map could not be made",
        "load": "the program was refused",
        "event": "loaded, but there is no such event source"
        + (" (is tracefs mounted at /sys/kernel/tracing?)" if kind == "tp" else ""),
        "attach": "loaded, but its hook refused it",
    }[step]
    return f"{step}: {name} ({os.strerror(error)}): {what}"
