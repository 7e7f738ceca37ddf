"""Memory policy of the calling thread, set just before exec: it survives exec and is inherited.

It cannot be set on another process. Source: set_mempolicy(2).
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from nodeagent.errors import ActError, RightsError, UnavailableError
from nodeagent.model.cpuset import CpuSet

MODES = {"preferred": 1, "bind": 2, "interleave": 3, "weighted-interleave": 6}
"""MPOL_ numbers. Source: include/uapi/linux/mempolicy.h."""
PREFERRED_MANY = 5
"""Linux b27abaccf8e8 (v5.15)."""
CAP_SYS_PTRACE = 19
"""Source: include/uapi/linux/capability.h."""
_BITS = 64


def set_launch_policy(policy: str, nodes: CpuSet) -> None:
    """The memory policy of this thread and what it executes. The caller has looked whether the
    nodes are there: the kernel drops absent ones from a mask that names a present one too.

    Raises ActError, RightsError, UnavailableError; reads back.
    """
    mode = MODES[policy]
    if policy == "preferred" and len(nodes) > 1:
        mode = PREFERRED_MANY
    try:
        from nodeagent.native._core import ffi, lib
    except ImportError as error:
        raise UnavailableError(
            f"this build cannot set a memory policy: {error}",
            "build with -Dnative=enabled, or use numactl",
        ) from error
    words = [0] * (lib.NA_MAX_NODES // _BITS)
    for node in nodes:
        words[node // _BITS] |= 1 << node % _BITS
    mask = ffi.new("uint64_t[]", words)
    rc = lib.na_set_mempolicy(mode, mask, len(words))
    if rc < 0:
        if -rc == errno.EINVAL and mode in (PREFERRED_MANY, MODES["weighted-interleave"]):
            raise UnavailableError(
                f"this kernel does not know the memory policy {policy} on node {nodes}",
                "several preferred nodes need Linux 5.15, weighted-interleave Linux 6.9",
            )
        raise (RightsError if -rc == errno.EPERM else ActError)(
            f"the memory policy {policy} on node {nodes} was refused: {os.strerror(-rc)}",
            "see which nodes this process may use: grep Mems_allowed_list /proc/self/status",
        )
    got_mode, got = ffi.new("int *"), ffi.new("uint64_t[]", len(words))
    rc = lib.na_get_mempolicy(got_mode, got, len(words))
    seen = CpuSet.of(w * _BITS + b for w, v in enumerate(got) for b in range(_BITS) if v >> b & 1)
    if rc < 0 or got_mode[0] != mode or seen != nodes:
        raise ActError(
            f"the memory policy reads back as mode {got_mode[0]} on node {seen}, expected {policy} "
            f"(mode {mode}) on node {nodes}",
            "the program was not started; report this with the output of uname -r",
        )


def give_up_ptrace() -> None:
    """Lets CAP_SYS_PTRACE go, which only moving other users' memory needs. Without native code
    there is nothing that could use it: it stays. Raises RightsError."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapPrm:") and not int(line.split()[1], 16) >> CAP_SYS_PTRACE & 1:
            return
    try:
        from nodeagent.native._core import lib
    except ImportError:
        return
    rc = lib.na_give_up(CAP_SYS_PTRACE)
    if rc < 0:
        raise RightsError(
            f"CAP_SYS_PTRACE could not be given up: {os.strerror(-rc)}", "see man 2 capset"
        )
