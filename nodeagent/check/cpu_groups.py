"""cpu: L3 groups inside a NUMA node, as pasted tables show them."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check.record import Judged, NotApplicable, Seen, check, info, ok, saw, some, warn
from nodeagent.model.host_report import Measured


@check(
    "cpu.l3-groups",
    "each NUMA node is one L3 group",
    means="WARN when a pasted CPU table shows a NUMA node with several L3 groups (CCDs) and a "
    "measurement beside it shows the loss; INFO without one: every EPYC is built so. "
    "OK when node and L3 group are one. Live machines: see cpu.l3-split.",
    why="Threads of one group that sit on two L3 caches pay a cross-die transfer for each shared "
    "line: 16 to 25 % was measured. NUMA tools do not show it.",
    prove="lscpu -e=CPU,NODE,CACHE; grep . /sys/devices/system/cpu/cpu*/cache/index3/"
    "shared_cpu_list",
    mend="Keep a latency-critical group of threads inside one L3 group (taskset -c, AllowedCPUs=), "
    "or tell the BIOS to show L3 groups as NUMA nodes (L3 as NUMA, NPS4).",
    source="AMD 58649, 'Overview of AMD EPYC 9004 series processors microarchitecture'; lscpu(1)",
)
def l3_groups(s: Seen) -> Iterator[Judged]:
    """L3 groups of each node."""
    pasted = s.snapshot.pasted
    if pasted is None:
        raise NotApplicable("nothing was pasted")
    topology = s.snapshot.topology
    groups = [c.cpus for c in topology.caches if c.level == 3 and c.cpus]
    if not groups:
        raise NotApplicable("no L3 groups are told")
    nodes = s.cpu_nodes or ()
    inside = {n.id: [g for g in groups if g & n.cpus] for n in nodes} or {0: groups}
    split = {n: g for n, g in inside.items() if len(g) > 1}
    if not split:
        yield ok("cpu", f"{len(groups)} L3 groups, one in each NUMA node")
        return
    measured = [m for m in pasted.of(Measured) if _loss(m) >= 5]
    node, found = next(iter(split.items()))
    sentence = f"NUMA node {node} holds {len(found)} L3 groups: {some(found, 8)}"
    evidence = saw("L3", some((f"{i}: {g}" for i, g in enumerate(found)), 8))
    remedy = (
        f"keep a latency-critical group of threads inside one L3 group: taskset -c {found[0]} "
        "COMMAND (or AllowedCPUs= of its unit)"
    )
    subject = f"node {some(split)}"
    if measured:
        m = measured[0]
        yield warn(
            subject,
            f"{sentence}; the worst placement ran {_loss(m):.0f} % slower than the best",
            evidence,
            saw(m.source, some(f"{k}: {v:g} {m.metric}" for k, v in m.means.items())),
            remedy=remedy,
        )
    else:
        yield info(subject, sentence, evidence, remedy=remedy)


def _loss(m: Measured) -> float:
    """How much worse the worst placement is than the best, in percent of the best."""
    best, worst = max(m.means.values()), min(m.means.values())
    if best <= 0 or worst <= 0:
        return 0.0
    return 100 * (1 - worst / best)
