"""Where the memory of a process lies, and the arithmetic of moving it in steps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet

MAX_STEP_BYTES = 64 << 20
"""Of one step, after which the actor answers others (docs/adr/0019)."""
FIRST_STEP_BYTES = 4 << 20
MIN_STEP_BYTES = 2 << 20
"""One huge page; a step that is over the stall bound even so ends the moving."""
STALL_MS = 100
"""Default stall bound: the longest that one system call may keep pages from their process."""
MAX_STALL_MS = 10_000
MARGIN = 0.10
"""Of what is moved, to be free or reclaimable on the target beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staying:
    """Bytes that could not be moved, by reason."""

    shared: int = 0
    """Other processes map them too."""
    busy: int = 0
    """Pinned (DMA, RDMA, cudaHostRegister, io_uring), or held by the kernel just then."""
    pool: int = 0
    """Huge pages for which the target's pool has no free page, or of a size over one step."""
    untried: int = 0
    """A step had used up its calls."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.shared + self.busy + self.pool + self.untried

    def plus(self, other: Staying) -> Staying:
        """Both together."""
        return Staying(
            shared=self.shared + other.shared,
            busy=self.busy + other.busy,
            pool=self.pool + other.pool,
            untried=self.untried + other.untried,
        )

    def words(self) -> str:
        """`3.2 MiB shared with other processes, 16.0 MiB pinned or busy`; empty: nothing stays."""
        parts = (
            (self.shared, "shared with other processes"),
            (self.busy, "pinned (DMA) or busy"),
            (self.pool, "in huge pages that the target has no free page for"),
            (self.untried, "not tried in this pass"),
        )
        return ", ".join(f"{size(bytes_)} {what}" for bytes_, what in parts if bytes_)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySeen:
    """Where memory lay when it was last looked at. Pages or bytes by node: only shares count."""

    by_pid: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    """Sampled; those that could not be looked into are absent."""
    by_cgroup: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Of a cgroup and all below it."""


def size(size_bytes: int) -> str:
    """`256.0 MiB`; people compare figures, so one digit and binary units."""
    value, unit = float(size_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{size_bytes} B" if unit == "B" else f"{value:.1f} {unit}"


def by_node_words(by_node: Mapping[int, int]) -> str:
    """`node 0: 1.0 GiB, node 1: 256.0 MiB`."""
    found = [f"node {node}: {size(by_node[node])}" for node in sorted(by_node) if by_node[node]]
    return ", ".join(found) or "no page of it is in memory"


def by_node_text(by_node: Mapping[int, int]) -> str:
    """`0:1073741824 1:268435456`, as the journal keeps it."""
    return " ".join(f"{node}:{by_node[node]}" for node in sorted(by_node) if by_node[node])


def parse_by_node(text: str) -> dict[int, int]:
    """The other way. Raises ParseError."""
    found: dict[int, int] = {}
    for word in text.split():
        node, colon, number = word.partition(":")
        if not (colon and node.isdecimal() and number.isdecimal()):
            raise ParseError("memory by node", text, "NODE:BYTES words")
        found[int(node)] = int(number)
    return found


def outside(by_node: Mapping[int, int], nodes: CpuSet) -> int:
    """Bytes on other nodes."""
    return sum(bytes_ for node, bytes_ in by_node.items() if node not in nodes)


def local_share(by_node: Mapping[int, int], nodes: CpuSet) -> float | None:
    """Share of resident memory on those nodes, 0..1; None: nothing resident was seen, or no node
    is planned: there is nothing to be a share of."""
    total = sum(by_node.values())
    if total <= 0 or not nodes:
        return None
    return 1.0 - outside(by_node, nodes) / total


def known_local(nodes: CpuSet, with_memory: Iterable[int]) -> float | None:
    """1.0 where every node with memory is planned, whatever the process does; None: that has to
    be measured."""
    having = CpuSet.of(with_memory)
    return 1.0 if nodes and having and having <= nodes else None


def room_needed(bytes_: int) -> int:
    """Bytes that must be free or reclaimable on the target."""
    return bytes_ + int(bytes_ * MARGIN)


def next_step(step_bytes: int, took_ms: float, stall_ms: int) -> int | None:
    """Size of the next step after one that kept its pages for `took_ms`; None: the smallest step
    was over the bound, so there is to be none.

    Halves over the bound, doubles below a quarter of it.
    """
    if took_ms > stall_ms:
        return None if step_bytes <= MIN_STEP_BYTES else max(MIN_STEP_BYTES, step_bytes // 2)
    if took_ms * 4 < stall_ms:
        return min(MAX_STEP_BYTES, step_bytes * 2)
    return step_bytes
