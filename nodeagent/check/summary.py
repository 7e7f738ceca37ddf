"""What findings come to: the monitoring-plugin line, and the list as a person wants to read it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from nodeagent.check.record import AS_ROOT, PASTE_MORE, RECORD_AS_ROOT, RECORD_MORE, some
from nodeagent.model.finding import Finding, Verdict, worst

_SEVERITY = (
    Verdict.REFUSE,
    Verdict.FAIL,
    Verdict.WARN,
    Verdict.UNKNOWN,
    Verdict.INFO,
    Verdict.OK,
    Verdict.NA,
)


_NEED = {
    AS_ROOT: "need root",
    RECORD_AS_ROOT: "need a recording made as root",
    RECORD_MORE: "need files that the recording lacks",
    PASTE_MORE: "need to know how many CPUs there are",
}


def summary(findings: Sequence[Finding]) -> str:
    """`WARN - 3 findings, worst isolation.irqaffinity-overlap | findings=3 fail=0 warn=3 ...`

    Source: Monitoring Plugins Development Guidelines, sections 2.1 and 2.6.
    """
    counted = Counter(f.verdict for f in findings if f.counts)
    bad = [f for f in findings if f.counts and f.verdict in (Verdict.WARN, Verdict.FAIL)]
    verdict = worst(findings)
    waived = sum(f.waived_until is not None for f in findings)
    figures = (
        f"findings={len(bad)} fail={counted[Verdict.FAIL]} warn={counted[Verdict.WARN]} "
        f"unknown={counted[Verdict.UNKNOWN]} ok={counted[Verdict.OK]} waived={waived}"
    )
    noun = "finding" if len(bad) == 1 else "findings"
    match verdict:
        case Verdict.WARN | Verdict.FAIL:
            first = next(f for f in findings if f.counts and f.verdict is verdict)
            said = f"{len(bad)} {noun}, worst {first.id}"
        case Verdict.UNKNOWN:
            count = counted[Verdict.UNKNOWN]
            said = f"no findings, {count} question{'s' if count > 1 else ''} without an answer"
        case Verdict.REFUSE:
            said = next(f.message for f in findings if f.verdict is verdict)
        case _:
            said = f"no findings in {counted[Verdict.OK]} answers"
    return f"{verdict} - {said} | {figures}"


def sentence(finding: Finding) -> str:
    """`subject: message`, or the message alone where it names the subject itself."""
    name = finding.subject.rpartition(" ")[2]
    name = name if len(name) > 2 else finding.subject
    if re.search(rf"(?<![\w.:,-]){re.escape(name)}(?![\w:-]|[.,]\w)", finding.message):
        return finding.message
    return f"{finding.subject}: {finding.message}"


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Most severe first, waived ones after all that count, otherwise in the order they came."""
    return sorted(findings, key=lambda f: (f.waived_until is not None, _SEVERITY.index(f.verdict)))


def folded(findings: Iterable[Finding]) -> list[Finding]:
    """The list for a person: all UNKNOWNs that need root become one line, and so do all that need
    a fuller recording, and all that miss the same file."""
    kept: list[Finding] = []
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.verdict is not Verdict.UNKNOWN:
            kept.append(finding)
            continue
        same = finding.remedy if finding.remedy in _NEED else ""
        path = finding.evidence[0].path if finding.evidence else finding.id
        groups.setdefault(same or path, []).append(finding)
    for key, group in groups.items():
        ids = list(dict.fromkeys(f.id for f in group))
        if len(ids) == 1:
            kept.extend(group)
            continue
        kept.append(
            Finding(
                id="reading.folded",
                verdict=Verdict.UNKNOWN,
                subject=f"{len(ids)} checks",
                message=f"{len(ids)} checks {_NEED.get(key, f'need {key}')}: {some(ids, 6)}",
                evidence=tuple(dict.fromkeys(e for f in group for e in f.evidence))[:5],
                remedy=group[0].remedy,
            )
        )
    return worst_first(kept)
