"""What is in a NUMA node: its memory as a bar, its L3 groups with their cores."""

from __future__ import annotations

from nodeagent.cli.render.svg import FAINT, Group, Shape, Text, text_width
from nodeagent.cli.render.words import short, size
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.topology import NodeKind, NumaNode
from nodeagent.model.words import many

PLAIN = ("#c9d9ec", "#5c7fa8")
ISOLATED = ("#6d4aa0", "#46297a")
"""(fill, border) of a core."""
BAR_WIDTH = 90.0
ROW_WIDTH = 400.0
"""Width at which L3 groups begin a new row."""
MAX_GROUPS = 24
"""L3 groups drawn one by one in a node; more are told in words."""


def memory_bar(node: NumaNode) -> Group | None:
    """How much memory, and how much of it is in use; None where the node has none."""
    if not node.memory_bytes:
        return None
    free = node.memory_free_bytes
    words = size(node.memory_bytes)
    if node.kind is NodeKind.GPU_MEMORY:
        words += " of a GPU"
    elif node.kind is NodeKind.MEMORY:
        words += ", memory only"
    if free is not None:
        words += f", {size(free)} free"
    group = Group(BAR_WIDTH + 8 + text_width(words, 11), 16, f"memory {words}")
    fill = "#dff3e1" if node.kind is NodeKind.GPU_MEMORY else "#f6dfc4"
    used = "#7fbf86" if node.kind is NodeKind.GPU_MEMORY else "#d99a4e"
    group.shapes.append(Shape(0, 3, BAR_WIDTH, 10, fill, "#8c6a3f", 2))
    if free is not None and node.memory_bytes > free >= 0:
        share = (node.memory_bytes - free) / node.memory_bytes
        group.shapes.append(Shape(0, 3, max(1.0, BAR_WIDTH * share), 10, used, "none", 2))
    group.texts.append(Text(BAR_WIDTH + 8, 12, words, 11))
    return group


def core_groups(snapshot: Snapshot, cpus: CpuSet) -> Group:
    """A box for each L3 cache with a square for each core; one box where no L3 is told."""
    topology = snapshot.topology
    quiet = topology.isolation.isolated | topology.isolation.nohz_full
    caches = [c for c in topology.caches if c.level == 3 and c.cpus & cpus]
    cores = [core for core in topology.cores if core & cpus]
    sets: list[tuple[str, CpuSet]] = [
        ("L3" if c.size_bytes is None else f"L3 {size(c.size_bytes)}", c.cpus & cpus)
        for c in caches
    ]
    rest = cpus - CpuSet.of(i for _, s in sets for i in s)
    if rest:
        sets.append(("no L3 told" if sets else "cores", rest))
    if len(sets) > MAX_GROUPS:
        each = many(len(cores) // max(1, len(caches)), "core")
        title = f"{len(caches)} L3 groups of about {each}"
        sets = [(title, cpus)]
    boxes = [_cores(title, s, [c & s for c in cores if c & s], quiet) for title, s in sets]
    group = Group(0, 0)
    x = y = tallest = 0.0
    for box in boxes:
        if x and x + box.width > ROW_WIDTH:
            x, y, tallest = 0.0, y + tallest + 5, 0.0
        group.put(box, x, y)
        x += box.width + 5
        tallest = max(tallest, box.height)
        group.width = max(group.width, x - 5)
    group.height = y + tallest
    return group


def _cores(title: str, cpus: CpuSet, cores: list[CpuSet], quiet: CpuSet) -> Group:
    count = len(cores)
    side = 11.0 if count <= 64 else 8.0 if count <= 128 else 5.0
    per_row = max(1, min(count, 8 if count <= 8 else 16 if count <= 32 else 32))
    rows = -(-count // per_row)
    label = f"CPUs {short(cpus, 30)}"
    width = max(per_row * (side + 2) - 2, text_width(title, 10), text_width(label, 9)) + 10
    box = Group(width, 34 + rows * (side + 2), "", "#f3f7fb", "#9fb4cc", radius=3)
    box.title = f"{title}, {many(count, 'core')}, {label}"
    box.texts.append(Text(5, 12, title, 10))
    for i, core in enumerate(cores):
        fill, border = ISOLATED if core & quiet else PLAIN
        x, y = 5 + i % per_row * (side + 2), 17 + i // per_row * (side + 2)
        box.shapes.append(Shape(x, y, side, side, fill, border, 2))
    box.texts.append(Text(5, box.height - 6, label, 9, colour=FAINT))
    return box
