"""numa: allocations that the kernel could not serve from the node that was asked for."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check.record import (
    Judged,
    NotApplicable,
    Seen,
    check,
    ok,
    saw,
    share,
    warn,
)


@check(
    "numa.misses",
    "memory comes from the node it was asked of",
    means="WARN when more than `percent` % of a node's allocations were meant for another node "
    "(numa_miss), or as many of its own went elsewhere (numa_foreign). Judged in pasted numastat "
    "output only: the counters run since boot.",
    why="A node whose memory is used up serves its CPUs from the other socket, without a word.",
    prove="numastat; numastat -m | grep -E 'MemFree|FilePages'",
    mend="Free page cache of that node (echo 1 > /proc/sys/vm/drop_caches), spread or shrink what "
    "fills it, reserve huge pages at boot.",
    source="Linux Documentation/admin-guide/numastat.rst",
    bounds={"percent": 5},
)
def misses(s: Seen) -> Iterator[Judged]:
    """Counters of each node."""
    files = s.matching("sys/devices/system/node/", "/numastat")
    if not files or s.snapshot.pasted is None:
        raise NotApplicable("no numastat was pasted")
    bad = judged = 0
    for path, text in files:
        rows = {w[0]: int(w[1]) for line in text.splitlines()
                if len(w := line.split()) == 2 and w[1].isdigit() and len(w[1]) < 20}  # fmt: skip
        hit, miss, foreign = (rows.get(k) for k in ("numa_hit", "numa_miss", "numa_foreign"))
        if hit is None or miss is None:
            continue
        judged += 1
        node = path.split("/")[-2]
        for count, sentence in (
            (miss, f"of the allocations on {node} were meant for another node"),
            (foreign or 0, f"of the allocations meant for {node} went to another node"),
        ):
            part = share(count, hit + count)
            if part > s.bounds["percent"]:
                bad += 1
                yield warn(
                    node,
                    f"{part:.0f} % {sentence}",
                    saw(path, f"numa_hit {hit}, numa_miss {miss}, numa_foreign {foreign}"),
                    remedy="numastat -m | grep -E 'MemFree|FilePages|AnonPages'  # shows what "
                    "fills the node; echo 1 > /proc/sys/vm/drop_caches frees page cache (of all "
                    "nodes: files are then read from disk again)",
                )
    if not judged:
        raise NotApplicable("numastat tells no hits and misses")
    if not bad:
        yield ok("numa", f"{judged} nodes: memory comes from where it was asked for")
