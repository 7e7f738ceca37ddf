"""Which NIC belongs to which GPU: the nearest, ties dealt out as evenly as can be. Pure.

Nearness is the path's class, PIX < PXB < PHB < NODE < SYS, as nvidia-smi topo -m has it. Every GPU
of the machine is dealt a NIC, wanted or not, so that the answer does not depend on what is wanted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nodeagent.model.pci import MELLANOX
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.topology import Path, Topology

RANK = {Path.PIX: 0, Path.PXB: 1, Path.PHB: 2, Path.NODE: 3, Path.SYS: 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """The NIC of one GPU."""

    nic: str
    path: Path
    ties: tuple[str, ...]
    """Other NICs that are as near."""
    with_gpus: tuple[str, ...]
    """Other GPUs that have the same NIC."""


def data_nics(topology: Topology, snapshot: Snapshot | None = None) -> tuple[str, ...]:
    """The NICs that carry data: those with RDMA, else those of a vendor of such cards, else all.
    Virtual functions are their physical function's."""
    nics = [p for p in topology.nics if p.physfn is None]
    rdma = {n.bdf for n in snapshot.nics if n.rdma} if snapshot is not None else set()
    return (
        tuple(p.bdf for p in nics if p.bdf in rdma)
        or tuple(p.bdf for p in nics if p.vendor == MELLANOX)
        or tuple(p.bdf for p in nics)
    )


def pairings(topology: Topology, nics: tuple[str, ...]) -> dict[str, Pairing]:
    """GPU -> its NIC. A GPU whose way to every NIC is unknown is left out."""
    gpus = [p.bdf for p in topology.gpus if p.computes and p.physfn is None]
    paths: dict[tuple[str, str], Path] = {}
    for r in topology.relations:
        paths[r.a, r.b] = paths[r.b, r.a] = r.path
    near: dict[str, tuple[str, ...]] = {}
    best: dict[str, Path] = {}
    for gpu in gpus:
        told = [(paths[gpu, n], n) for n in nics if paths.get((gpu, n), Path.UNKNOWN) in RANK]
        if told:
            best[gpu] = min((p for p, _ in told), key=lambda p: RANK[p])
            near[gpu] = tuple(n for p, n in told if p is best[gpu])
    dealt = deal(near)
    return {
        gpu: Pairing(
            nic=nic,
            path=best[gpu],
            ties=tuple(n for n in near[gpu] if n != nic),
            with_gpus=tuple(g for g, n in dealt.items() if n == nic and g != gpu),
        )
        for gpu, nic in dealt.items()
    }


def deal(choices: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """One choice for each, dealt out as evenly as can be: the least sum of squared loads.

    Each takes, in turn, the least chosen that it reaches, others giving way to another choice of
    theirs (the augmenting path of Harvey, Ladner, Lovasz and Tamir, "Semi-matchings for bipartite
    graphs and load balancing").
    """
    dealt: dict[str, str] = {}
    load: dict[str, int] = {c: 0 for cs in choices.values() for c in cs}
    for who in choices:
        came: dict[str, str] = {}
        seen = dict.fromkeys(choices[who], who)
        todo = list(choices[who])
        for choice in todo:
            for other, has in dealt.items():
                if has == choice:
                    for more in choices[other]:
                        if more not in seen:
                            seen[more] = other
                            came[more] = choice
                            todo.append(more)
        end = min(todo, key=lambda c: (load[c], todo.index(c)))
        load[end] += 1
        while end in came:
            dealt[seen[end]] = end
            end = came[end]
        dealt[who] = end
    return {who: dealt[who] for who in choices}
