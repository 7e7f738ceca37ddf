"""Memory policy of the calling thread, set just before exec: it survives exec and is inherited.

It cannot be set on another process. Source: set_mempolicy(2).
"""

from __future__ import annotations

import os

from nodeagent.errors import ActError, RightsError, UnavailableError
from nodeagent.model.cpuset import CpuSet

MODES = {"preferred": 1, "bind": 2}
_BITS = 64


def set_launch_policy(mode: str, nodes: CpuSet, with_memory: CpuSet) -> None:
    """MPOL_BIND or MPOL_PREFERRED (one node) for this thread and what it executes.

    The kernel quietly drops absent nodes from a mask that names a present one too; here they are
    an error. `with_memory`: nodes that have memory. Raises ActError, UnavailableError; reads back.
    """
    absent = nodes - with_memory
    if absent or not nodes:
        raise ActError(
            f"NUMA node {absent or '(none)'} has no memory here, expected nodes of {with_memory}",
            "nodeagentctl topology show lists the nodes",
        )
    if mode == "preferred" and len(nodes) != 1:
        raise ActError(f"a preferred policy takes one node, not {nodes}", "give one, or use bind")
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
    rc = lib.na_set_mempolicy(MODES[mode], mask, len(words))
    if rc < 0:
        raise (RightsError if -rc == 1 else ActError)(
            f"the memory policy {mode} on node {nodes} was refused: {os.strerror(-rc)}",
            "see which nodes this process may use: grep Mems_allowed_list /proc/self/status",
        )
    got_mode, got = ffi.new("int *"), ffi.new("uint64_t[]", len(words))
    rc = lib.na_get_mempolicy(got_mode, got, len(words))
    seen = CpuSet.of(w * _BITS + b for w, v in enumerate(got) for b in range(_BITS) if v >> b & 1)
    if rc < 0 or got_mode[0] != MODES[mode] or seen != nodes:
        raise ActError(
            f"the memory policy reads back as mode {got_mode[0]} on node {seen}, "
            f"expected {mode} on node {nodes}"
        )
