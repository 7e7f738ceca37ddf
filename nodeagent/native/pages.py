"""The pages of a process, by move_pages(2): where they are, and moving them in bounded steps.

Each look takes the other process's mmap_lock for moments: who calls this is a child with a
deadline (docs/adr/0013). Only /proc/PID/maps is read beside it: numa_maps would hold that lock for
as long as a mapping is large.

Source: move_pages(2), Documentation/filesystems/proc.rst (maps),
Documentation/admin-guide/mm/hugetlbpage.rst.
"""

from __future__ import annotations

import mmap
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOOK_S = 0.3
"""Time after which a walk without anything to move answers."""
LOOK_PAGES = 1 << 16
"""Pages of one call: the lock is let go between two of the kernel's batches, the call is not."""
RESERVED_BYTES = 1 << 30
"""A mapping without any right, and larger, is address space only (CUDA, Go, the JVM)."""
STEP_BYTES = 64 << 20
SPEED_BYTES = 16 << 20
MPOL_BIND = 2
NODES = Path("/sys/devices/system/node")
_DEVICE = re.compile(r"/dev/(?!shm/|zero\b|hugepages)")


@dataclass(slots=True)
class Range:
    """Addresses of one mapping. `pool_bytes`: page size of its hugetlb pool; 0: none; -1: one
    that is not told."""

    start: int
    end: int
    page_bytes: int
    pool_bytes: int = 0


class Walk:
    """One pass over the process `pid`."""

    def __init__(self, ffi: Any, lib: Any, pid: int) -> None:
        self._ffi, self._lib, self._pid = ffi, lib, pid
        self.ranges = list(ranges(pid))
        self._out = ffi.new("struct na_walked *")
        self._by_node = ffi.new("uint64_t[]", lib.NA_MAX_NODES)

    def go(self, target: int, nodes: frozenset[int], budget: int) -> dict[str, int]:
        """Until the budget of bytes to move is spent, LOOK_S is over, or the end. Raises OSError.

        Keys: nN (bytes on node N), moved, shared, busy, pool, untried, vanished (bytes),
        longest_ns, moving_ns, calls, full, done.
        """
        words = [0] * (self._lib.NA_MAX_NODES // 64)
        for node in nodes:
            words[node // 64] |= 1 << node % 64
        mask = self._ffi.new("uint64_t[]", words)
        said: dict[str, int] = {}
        end = time.monotonic() + LOOK_S
        budget = min(budget, STEP_BYTES)
        while self.ranges:
            at = self.ranges[0]
            pages = min(budget // at.page_bytes, self._lib.NA_MOVE_PAGES)
            if at.pool_bytes and target >= 0:
                pages = min(pages, _free(target, at))
            # What may not be moved at all is looked at; when the budget is spent, nothing more is.
            fixed = bool(at.pool_bytes) and target >= 0 and pages == 0 and budget >= at.page_bytes
            fixed = fixed or at.page_bytes > STEP_BYTES
            if target >= 0 and pages == 0 and not fixed:
                break
            self._step(at, -1 if fixed else target, pages, mask, len(words), said, nodes, fixed)
            budget -= said.pop("spent", 0)
            if at.start >= at.end:
                self.ranges.pop(0)
            if said.get("full") or time.monotonic() > end:
                break
        said["done"] = int(not self.ranges)
        return said

    def _step(
        self,
        at: Range,
        target: int,
        pages: int,
        mask: Any,
        words: int,
        said: dict[str, int],
        nodes: frozenset[int],
        fixed: bool,
    ) -> None:
        walk = self._ffi.new(
            "struct na_walk *",
            {
                "start": at.start,
                "end": at.end,
                "page_bytes": at.page_bytes,
                "look_pages": LOOK_PAGES,
                "move_pages": pages,
                "target": target,
            },
        )
        self._ffi.buffer(self._by_node)[:] = bytes(self._ffi.sizeof(self._by_node))
        rc = self._lib.na_walk_pages(self._pid, walk, mask, words, self._out, self._by_node)
        if rc < 0:
            raise OSError(-rc, os.strerror(-rc))
        out, size = self._out, at.page_bytes
        for key in ("moved", "shared", "busy", "untried", "vanished"):
            said[key] = said.get(key, 0) + getattr(out, key) * size
        for key in ("moving_ns", "calls", "full"):
            said[key] = said.get(key, 0) + getattr(out, key)
        said["longest_ns"] = max(said.get("longest_ns", 0), out.longest_ns)
        said["spent"] = (out.moved + out.shared + out.busy + out.untried + out.vanished) * size
        for node, count in enumerate(self._by_node):
            if count:
                said[f"n{node}"] = said.get(f"n{node}", 0) + count * size
                if fixed and node not in nodes:
                    said["pool"] = said.get("pool", 0) + count * size
        at.start = out.next


def _free(node: int, at: Range) -> int:
    """Free pages of that size on a node; 0 where the size is not told."""
    if at.pool_bytes < 0:
        return 0
    pool = NODES / f"node{node}/hugepages/hugepages-{at.pool_bytes >> 10}kB/free_hugepages"
    try:
        return int(pool.read_text())
    except (OSError, ValueError):
        return 0


def ranges(pid: int) -> Iterator[Range]:
    """The mappings that may hold pages of memory. Raises OSError."""
    page = mmap.PAGESIZE
    huge = _hugetlb_bytes(pid)
    mounts = _hugetlb_mounts() if huge else {}
    pools = _pool_sizes() if huge else []
    for line in Path(f"/proc/{pid}/maps").read_bytes().decode("utf-8", "replace").splitlines():
        words = line.split(None, 5)
        start, _, end = words[0].partition("-")
        first, last, rights = int(start, 16), int(end, 16), words[1]
        path = words[5] if len(words) > 5 else ""
        if path in ("[vsyscall]", "[vvar]", "[vvar_vclock]", "[vdso]") or _DEVICE.match(path):
            continue
        if rights.startswith("---") and last - first > RESERVED_BYTES:
            continue
        mount = next((m for m in mounts if path.startswith(m + "/")), None)
        if huge and (path.startswith("/anon_hugepage") or mount is not None):
            told = mounts.get(mount or "", 0) or (pools[0] if len(pools) == 1 else -1)
            step = told if told > 0 else min(pools, default=2 << 20)
            yield Range(start=first, end=last, page_bytes=step, pool_bytes=told)
        else:
            yield Range(start=first, end=last, page_bytes=page)


def _hugetlb_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_bytes().splitlines():
        if line.startswith(b"HugetlbPages:"):
            return int(line.split()[1]) << 10
    return 0


def _hugetlb_mounts() -> dict[str, int]:
    """Where hugetlbfs is mounted -> page size in bytes."""
    found = {}
    units = {"K": 10, "M": 20, "G": 30}
    for line in Path("/proc/self/mountinfo").read_bytes().decode("utf-8", "replace").splitlines():
        left, _, right = line.partition(" - ")
        words = right.split()
        if words[0] != "hugetlbfs":
            continue
        told = re.search(r"pagesize=(\d+)([KMG])", right)
        found[left.split()[4]] = int(told[1]) << units[told[2]] if told else 0
    return found


def _pool_sizes() -> list[int]:
    """Sizes of which there is a page on this machine."""
    found = []
    for pool in Path("/sys/kernel/mm/hugepages").glob("hugepages-*kB"):
        if int((pool / "nr_hugepages").read_text()) > 0:
            found.append(int(pool.name[10:-2]) << 10)
    return sorted(found)


def speed(ffi: Any, lib: Any, source: int, target: int) -> tuple[int, int]:
    """(bytes, ns): moves memory of our own between two nodes, once. Raises OSError."""
    words = [0] * (lib.NA_MAX_NODES // 64)
    words[source // 64] = 1 << source % 64
    own = mmap.mmap(-1, SPEED_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    own.madvise(mmap.MADV_NOHUGEPAGE)
    view = ffi.from_buffer(own)
    start = int(ffi.cast("uintptr_t", view))
    try:
        rc = lib.na_mbind(
            ffi.cast("void *", start), SPEED_BYTES, MPOL_BIND, ffi.new("uint64_t[]", words),
            len(words), 0,
        )  # fmt: skip
        if rc < 0:
            raise OSError(-rc, os.strerror(-rc))
        own[:] = b"1" * SPEED_BYTES
        walk = ffi.new(
            "struct na_walk *",
            {
                "start": start,
                "end": start + SPEED_BYTES,
                "page_bytes": mmap.PAGESIZE,
                "look_pages": LOOK_PAGES,
                "move_pages": lib.NA_MOVE_PAGES,
                "target": target,
            },
        )
        wanted = [0] * len(words)
        wanted[target // 64] = 1 << target % 64
        out = ffi.new("struct na_walked *")
        by_node = ffi.new("uint64_t[]", lib.NA_MAX_NODES)
        rc = lib.na_walk_pages(0, walk, ffi.new("uint64_t[]", wanted), len(words), out, by_node)
        if rc < 0:
            raise OSError(-rc, os.strerror(-rc))
        return out.moved * mmap.PAGESIZE, out.moving_ns
    finally:
        # A mapping cannot be closed while its address is held.
        ffi.release(view)
        own.close()


def sample(ffi: Any, lib: Any, pid: int, pages: int) -> tuple[int, dict[int, int]]:
    """(pages asked about, those in memory by node): at most that many, evenly spread over the
    process's addresses, so that what is in memory is met in its own proportions. Raises OSError."""
    # Huge pages by their small ones, or they would weigh too little.
    spans = [(r.start, (r.end - r.start) // mmap.PAGESIZE) for r in ranges(pid)]
    total = sum(count for _, count in spans)
    step = max(1, -(-total // pages))
    addresses: list[int] = []
    skip = step // 2
    for start, count in spans:
        addresses += range(
            start + skip * mmap.PAGESIZE, start + count * mmap.PAGESIZE, step * mmap.PAGESIZE
        )
        skip = (skip - count) % step
    addresses = addresses[:pages]
    asked = ffi.new("void *[]", [ffi.cast("void *", a) for a in addresses])
    nodes = ffi.new("int[]", len(addresses))
    rc = lib.na_page_nodes(pid, len(addresses), asked, nodes)
    if rc < 0:
        raise OSError(-rc, os.strerror(-rc))
    found: dict[int, int] = {}
    for node in nodes:
        if node >= 0:
            found[node] = found.get(node, 0) + 1
    return len(addresses), found
