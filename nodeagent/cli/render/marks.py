"""Findings where they belong on a tree or a picture: which item each one is about."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nodeagent.check.summary import worst_first
from nodeagent.cli.render.devices import gpu_names
from nodeagent.cli.render.item import Item
from nodeagent.errors import ParseError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.finding import Finding, Verdict
from nodeagent.model.snapshot import Snapshot

SHOWN = (Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN, Verdict.INFO)
MACHINE = "machine"
_BDF = re.compile(r"\b(?:[0-9a-f]{4,8}:)[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b")
_LIST = re.compile(r"\b(node|package|cpu|irq)s? ([0-9][0-9,\- ]*)", re.IGNORECASE)
_CUT = re.compile(r" and \d+ more$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A finding with its number on the picture and the keys of the items it is about."""

    number: int
    finding: Finding
    keys: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """All marks, worst first. `questions`: how many UNKNOWNs are about no item in particular."""

    marks: tuple[Mark, ...] = ()
    questions: int = 0
    answers: int = 0
    """Findings that say OK."""

    def of(self, item: Item) -> tuple[Mark, ...]:
        """The marks that an item bears."""
        return tuple(m for m in self.marks if m.keys & item.keys)


def place(snapshot: Snapshot, top: Item, findings: Sequence[Finding]) -> Marks:
    """Numbers the findings that count or tell, and says which items bear them.

    What is about no item that is drawn, a sysctl or the boot arguments, is about the machine.
    UNKNOWNs of that kind are only counted: they would hide the rest.
    """
    drawn = frozenset(key for item in top.walk() for key in item.keys)
    found: list[Mark] = []
    questions = 0
    for finding in worst_first(f for f in findings if f.verdict in SHOWN and not f.waived_until):
        keys = _meant(snapshot, drawn, finding) or frozenset((MACHINE,))
        if finding.verdict is Verdict.UNKNOWN and keys == {MACHINE}:
            questions += 1
            continue
        found.append(Mark(number=len(found) + 1, finding=finding, keys=keys))
    answers = sum(f.verdict is Verdict.OK for f in findings)
    return Marks(marks=tuple(found), questions=questions, answers=answers)


def _meant(snapshot: Snapshot, drawn: frozenset[str], finding: Finding) -> frozenset[str]:
    texts = [finding.subject]
    if _CUT.search(finding.subject):
        texts += [e.path for e in finding.evidence]
    keys: set[str] = set()
    for text in texts:
        for bdf in _BDF.findall(text):
            keys |= _function(snapshot, drawn, bdf)
        for word, numbers in _LIST.findall(text):
            keys |= _numbered(snapshot, drawn, word.lower(), _numbers(numbers))
    if not keys:
        keys |= _named(snapshot, finding.subject)
    return frozenset(keys) & drawn


def _numbers(text: str) -> CpuSet:
    try:
        return CpuSet.parse(text.strip(" ,-"))
    except ParseError:
        return CpuSet()


def _function(snapshot: Snapshot, drawn: frozenset[str], bdf: str) -> set[str]:
    """A function that is drawn (a folded bridge counts as what it leads to), or the physical one
    of a virtual one."""
    if bdf in drawn:
        return {bdf}
    at = snapshot.topology.function(bdf)
    return {at.physfn} if at is not None and at.physfn else set()


def _numbered(snapshot: Snapshot, drawn: frozenset[str], word: str, numbers: CpuSet) -> set[str]:
    if word in ("node", "package"):
        return {f"{word} {i}" for i in numbers}
    if word == "cpu":
        nodes = {f"node {n.id}" for n in snapshot.topology.nodes if n.cpus & numbers}
        # What concerns CPUs everywhere is about the machine.
        return nodes if len(nodes) < len(snapshot.topology.nodes) else set()
    bdfs = {i.bdf for i in snapshot.irqs if i.number in numbers and i.bdf}
    return set().union(*(_function(snapshot, drawn, b) for b in bdfs))


def _named(snapshot: Snapshot, subject: str) -> set[str]:
    """Devices by the names people give them: GPU3, eth0, mlx5_0, nvme0."""
    names = {name: bdf for bdf, name in gpu_names(snapshot).items()}
    for nic in snapshot.nics:
        if nic.bdf is not None:
            names |= dict.fromkeys(filter(None, (nic.name, nic.rdma)), nic.bdf)
    names |= {d.name: d.bdf for d in snapshot.nvmes if d.bdf is not None}
    words: Iterable[str] = re.split(r"[\s,/]+", subject)
    return {names[w] for w in words if w in names}
