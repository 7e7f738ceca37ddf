"""What the tree on a terminal and the picture both draw: things inside things."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.topology import NumaNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A thing with what to say of it and what is inside."""

    kind: str
    """machine, package, node, l3, unplaced, root, switch, gpu, nic, nvme, or other."""
    title: str
    at: str = ""
    """PCI address."""
    facts: tuple[str, ...] = ()
    odd: tuple[str, ...] = ()
    """Facts that need attention."""
    link: str = ""
    """PCIe generation and lanes, and of how many where that is more."""
    slow: bool = False
    """Whether that link runs below what this end can do."""
    keys: frozenset[str] = frozenset()
    """What a finding may call it: PCI addresses, folded bridges among them; `node 3`."""
    node: NumaNode | None = None
    cpus: CpuSet = field(default_factory=CpuSet)
    """PUs of a package."""
    inside: tuple[Item, ...] = ()

    def walk(self) -> Iterator[Item]:
        """This and everything inside."""
        yield self
        for child in self.inside:
            yield from child.walk()
