"""Findings as a list on a terminal and as JSON (contract: findings/v1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nodeagent.check.record import some
from nodeagent.check.summary import folded, summary, worst_first
from nodeagent.cli.output import VERDICT_STYLE, console
from nodeagent.model.finding import Finding, Verdict, worst


def as_json(
    findings: Sequence[Finding],
    *,
    everything: bool,
    facts: Mapping[str, object] | None = None,
    repairs: Sequence[str] = (),
) -> dict[str, object]:
    """The body of findings/v1; NA lines only when `everything`."""
    return {
        "verdict": worst(findings).value,
        "findings": [_one(f) for f in findings if everything or f.verdict is not Verdict.NA],
        "facts": dict(facts or {}),
        "repairs": list(repairs),
    }


def _one(f: Finding) -> dict[str, object]:
    return {
        "id": f.id,
        "verdict": f.verdict.value,
        "subject": f.subject,
        "message": f.message,
        "evidence": [{"path": e.path, "text": e.text} for e in f.evidence],
        "remedy": f.remedy,
        "doc": f.doc,
        "waived_until": f.waived_until,
    }


def print_findings(
    findings: Sequence[Finding],
    *,
    everything: bool,
    repairs: Iterable[str] = (),
    kinds: Sequence[str] = (),
) -> None:
    """The monitoring-plugin line, then the findings, worst first; OK and NA when `everything`.
    `kinds`: what pasted texts were read as."""
    from rich.text import Text

    out = console()
    line = summary(findings)
    verdict = worst(findings).value
    first = Text.assemble((verdict, VERDICT_STYLE[verdict]), line[len(verdict) :])
    out.print(first, soft_wrap=True)
    quiet = () if everything else (Verdict.OK, Verdict.NA)
    for f in folded(worst_first(f for f in findings if f.verdict not in quiet)):
        word = "WAIVED" if f.waived_until else f.verdict.value
        style = "dim" if f.waived_until else VERDICT_STYLE[f.verdict.value]
        head = Text.assemble((f"{word:8}", style), (f.id, "bold"), f"  {f.subject}")
        out.print(head, soft_wrap=True)
        tail = f" (waived until {f.waived_until})" if f.waived_until else ""
        out.print(Text(f"{'':8}{f.message}{tail}"), soft_wrap=True)
        if f.verdict in (Verdict.OK, Verdict.NA):
            continue
        for e in f.evidence:
            for i, text in enumerate(e.text.splitlines() or [""]):
                name = f"{e.path}: " if i == 0 else "  "
                out.print(Text(f"{'':8}seen    {name}{text}", "dim"), soft_wrap=True)
        if f.remedy:
            out.print(Text.assemble((f"{'':8}remedy  ", "dim"), (f.remedy, "cyan")), soft_wrap=True)
    for repair in repairs:
        out.print(Text(f"REPAIRED {repair}", "yellow"), soft_wrap=True)
    hidden = sum(f.verdict in quiet for f in findings)
    if hidden:
        read = f"read as {some(kinds, 8)}; " if kinds else ""
        out.print(
            Text(
                f"{read}{hidden} answers OK or not applicable are not shown (--all); "
                "nodeagentctl explain ID tells more",
                "dim",
            ),
            soft_wrap=True,
        )
