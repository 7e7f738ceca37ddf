"""paste: how pasted input was read. Nothing is invented: damage is repaired, left open "
"or refused."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.check.record import (
    Judged,
    NotApplicable,
    Seen,
    check,
    info,
    ok,
    some,
    unknown,
    warn,
)
from nodeagent.model.finding import Evidence, Verdict
from nodeagent.model.pasted import Pasted

PASTE_AGAIN = "paste the tool's whole output again as plain text (nvidia-smi topo -m > topo.txt)"


def _pasted(s: Seen) -> Pasted:
    if s.snapshot.pasted is None:
        raise NotApplicable("nothing was pasted")
    return s.snapshot.pasted


def _said(sentences: tuple[str, ...]) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(path=x.partition(": ")[0], text=x.partition(": ")[2]) for x in sentences[:5]
    )


@check(
    "paste.damaged",
    "the pasted text is whole",
    means="REFUSE when a text is too damaged to be judged; UNKNOWN for cells with "
    "several readings, "
    "which stay open; WARN when damage with exactly one reading was repaired: each "
    "repair is listed.",
    why="A matrix shifted by one column puts every GPU on the wrong NIC, and looks fine.",
    prove="Compare the listed lines with the tool's own output.",
    mend="Paste again as plain text; chat programs and trackers glue and wrap columns.",
    source="nodeagent contract, diagnose: a damaged cell is repaired only when there is "
    "one reading",
)
def damaged(s: Seen) -> Iterator[Judged]:
    """Refusals, open cells, repairs."""
    p = _pasted(s)
    for sentence in p.refused:
        yield Judged(
            verdict=Verdict.REFUSE,
            subject=sentence.partition(": ")[0],
            message=sentence.partition(": ")[2],
            evidence=_said((sentence,)),
            remedy=PASTE_AGAIN,
        )
    if p.unclear:
        yield unknown(
            "input",
            f"{len(p.unclear)} places have several readings and stay open: {some(p.unclear, 2)}",
            *_said(p.unclear),
            remedy=PASTE_AGAIN,
        )
    if p.repairs:
        yield warn(
            "input",
            f"the text was damaged: {len(p.repairs)} places were repaired, each has one reading",
            *_said(p.repairs),
            remedy=PASTE_AGAIN,
        )
    if not (p.refused or p.unclear or p.repairs):
        yield ok("input", f"read as {some(p.kinds) or 'nothing'}")


@check(
    "paste.recognised",
    "every pasted file is of a kind that is understood",
    means="UNKNOWN for files that are empty or not understood, and when no check applies to what "
    "is there. INFO for single blocks of a report that are not.",
    why="Silence about a file must not read as approval of what it holds.",
    prove="nodeagentctl diagnose --help lists the kinds.",
    mend="Paste the output of the named tools, or kernel files as `path: value` lines.",
    source="nodeagent contract, diagnose",
)
def recognised(s: Seen) -> Iterator[Judged]:
    """Files nobody knows."""
    p = _pasted(s)
    if p.empty:
        yield unknown(
            "input",
            f"empty: {some(p.empty)}",
            *(Evidence(path=name, text="0 characters") for name in p.empty[:5]),
            remedy="paste what it should hold; a command that printed nothing told why on stderr",
        )
    if p.unrecognised:
        yield unknown(
            "input",
            f"not understood and not judged: {some(p.unrecognised)}",
            *(Evidence(path=name, text="no known kind") for name in p.unrecognised[:5]),
            remedy="nodeagentctl diagnose --help lists what is understood; leave the others out",
        )
    elif p.kinds or not p.empty:
        yield ok("input", f"understood: {some(p.kinds)}")
    if p.skipped:
        yield info(
            "input",
            f"{len(p.skipped)} blocks of the report were not understood and not judged: "
            f"{some(p.skipped, 3)}",
            *_said(p.skipped),
        )


@check(
    "paste.agrees",
    "the pasted texts agree with one another",
    means="WARN when two texts say different things of the same kernel file or node.",
    why="They may come from two machines or two times; a judgement over both is worth nothing.",
    prove="Compare the named files.",
    mend="Paste texts of one machine, taken together.",
    source="nodeagent contract, diagnose: it never invents a value",
)
def agrees(s: Seen) -> Iterator[Judged]:
    """Conflicts found while merging."""
    p = _pasted(s)
    if p.conflicts:
        yield warn(
            "input",
            f"{len(p.conflicts)} statements contradict each other: {some(p.conflicts, 2)}",
            *_said(p.conflicts),
            remedy="paste texts of one machine, taken at one time",
        )
    else:
        yield ok("input", "no two texts contradict each other")
