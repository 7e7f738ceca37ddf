"""na_walk_pages on our own memory and on others': where pages are, and every refusal.

One node is enough for that; pages that really move are in tests/vm/test_memory.py.
"""

from __future__ import annotations

import errno
import mmap
import os
from typing import Any

import pytest

core = pytest.importorskip("nodeagent.native._core", reason="this build has no native code")
PAGE = mmap.PAGESIZE
PAGES = 64


class Memory:
    """Anonymous pages of this process."""

    def __init__(self, pages: int = PAGES) -> None:
        self.map = mmap.mmap(-1, pages * PAGE)
        self.map.madvise(mmap.MADV_NOHUGEPAGE)
        self.view = core.ffi.from_buffer(self.map)
        self.start = int(core.ffi.cast("uintptr_t", self.view))
        self.end = self.start + pages * PAGE

    def touch(self, *pages: int) -> None:
        for page in pages:
            self.map[page * PAGE] = 1


def walk(
    start: int,
    end: int,
    *,
    pid: int = 0,
    target: int = -1,
    nodes: tuple[int, ...] = (),
    look: int = 1 << 20,
    move: int = 1 << 20,
    page: int = PAGE,
) -> tuple[int, Any, dict[int, int]]:
    words = [0] * 16
    for node in nodes:
        words[node // 64] |= 1 << node % 64
    wanted = core.ffi.new(
        "struct na_walk *",
        {
            "start": start,
            "end": end,
            "page_bytes": page,
            "look_pages": look,
            "move_pages": move,
            "target": target,
        },
    )
    out = core.ffi.new("struct na_walked *")
    counts = core.ffi.new("uint64_t[]", core.lib.NA_MAX_NODES)
    mask = core.ffi.new("uint64_t[]", words)
    rc = core.lib.na_walk_pages(pid, wanted, mask, 16, out, counts)
    return rc, out, {node: n for node, n in enumerate(counts) if n}


@pytest.fixture(scope="module", autouse=True)
def _allowed() -> None:
    memory = Memory()
    if walk(memory.start, memory.end)[0] == -errno.EPERM:
        pytest.skip("move_pages is forbidden here (a container's seccomp profile)")


def home() -> int:
    """The node that new pages of this process come from now."""
    memory = Memory(1)
    memory.touch(0)
    (node,) = walk(memory.start, memory.end)[2]
    return node


def test_only_touched_pages_are_counted() -> None:
    memory = Memory()
    memory.touch(0, 7, PAGES - 1)
    rc, out, counts = walk(memory.start, memory.end)
    assert (rc, sum(counts.values()), out.looked) == (0, 3, PAGES)
    assert (out.next, out.calls, out.moved) == (memory.end, 0, 0)


def test_it_stops_at_the_pages_it_may_look_at_and_goes_on() -> None:
    memory = Memory()
    memory.touch(*range(PAGES))
    at, seen = memory.start, 0
    while at < memory.end:
        rc, out, counts = walk(at, memory.end, look=10)
        assert rc == 0 and out.looked <= 10 and out.next > at
        seen += sum(counts.values())
        at = out.next
    assert seen == PAGES


def test_pages_on_a_wanted_node_stay_without_a_call() -> None:
    memory = Memory()
    memory.touch(*range(PAGES))
    node = home()
    rc, out, counts = walk(memory.start, memory.end, target=node, nodes=(node,))
    assert rc == 0 and out.calls == 0 and sum(counts.values()) == PAGES


def test_no_more_is_moved_than_asked_for_and_each_is_read_back() -> None:
    """To the node where they are, which is not among the wanted ones: the kernel has nothing to
    do, and the read-back says that they are elsewhere still."""
    memory = Memory()
    memory.touch(*range(PAGES))
    rc, out, counts = walk(memory.start, memory.end, target=home(), move=20)
    assert rc == 0 and out.calls == 1
    assert (out.moved, out.busy, sum(counts.values())) == (0, 20, 20)
    assert out.next == memory.start + 20 * PAGE


def test_a_node_that_is_not_there_is_an_error() -> None:
    memory = Memory()
    memory.touch(0)
    assert walk(memory.start, memory.end, target=1000)[0] in (-errno.ENODEV, -errno.EACCES)
    assert walk(memory.start, memory.end, target=1024)[0] == -errno.EINVAL


def test_what_makes_no_sense_is_refused() -> None:
    assert walk(PAGE, PAGE * 2, page=0)[0] == -errno.EINVAL
    assert walk(PAGE * 2, PAGE)[0] == -errno.EINVAL
    # Nothing is mapped there: absent, and no error.
    rc, out, counts = walk(PAGE, PAGE * 8)
    assert rc == 0 and out.next == PAGE * 8 and not counts


def test_a_process_that_is_not_there() -> None:
    assert walk(PAGE, PAGE * 2, pid=2**22 - 1)[0] == -errno.ESRCH


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_another_users_process_needs_rights() -> None:
    pid, (read, write) = os.getpid(), os.pipe()
    child = os.fork()
    if child == 0:
        os.setgid(65534)
        os.setuid(65534)
        os.write(write, str(walk(PAGE, PAGE * 2, pid=pid)[0]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 16) == str(-errno.EPERM).encode()


def test_mbind_reads_its_errors() -> None:
    memory = Memory()
    mask = core.ffi.new("uint64_t[]", [1 << home()] + [0] * 15)
    at = core.ffi.cast("void *", memory.start)
    assert core.lib.na_mbind(at, PAGE * PAGES, core.lib.NA_MPOL_BIND, mask, 16, 0) == 0
    odd = core.ffi.cast("void *", memory.start + 1)
    assert core.lib.na_mbind(odd, PAGE, core.lib.NA_MPOL_BIND, mask, 16, 0) == -errno.EINVAL
    free = core.ffi.cast("void *", PAGE)
    assert core.lib.na_mbind(free, PAGE, core.lib.NA_MPOL_BIND, mask, 16, 0) == -errno.EFAULT
