"""Verdicts and findings (contract: findings/v1)."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class Verdict(enum.StrEnum):
    """A judgement. FAIL over WARN over UNKNOWN over OK; NA and INFO never count."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"
    NA = "NA"
    INFO = "INFO"
    REFUSE = "REFUSE"


_ORDER = (Verdict.OK, Verdict.UNKNOWN, Verdict.WARN, Verdict.FAIL, Verdict.REFUSE)

EXIT_CODE = {Verdict.OK: 0, Verdict.WARN: 1, Verdict.FAIL: 2, Verdict.UNKNOWN: 3, Verdict.REFUSE: 3}
"""Monitoring-plugin convention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A file (or command, or call) and the text seen there."""

    path: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One sentence about one subject, with what it rests on and what to do."""

    id: str
    verdict: Verdict
    subject: str
    message: str
    evidence: tuple[Evidence, ...] = ()
    remedy: str = ""
    waived_until: str | None = None

    @property
    def doc(self) -> str:
        """Where the check is explained."""
        return f"docs/checks.md#{self.id.replace('.', '')}"

    @property
    def counts(self) -> bool:
        """Whether it goes into the overall verdict."""
        return self.waived_until is None and self.verdict in _ORDER


def worst(findings: Iterable[Finding]) -> Verdict:
    """The overall verdict of those findings that count; OK for none."""
    return max((f.verdict for f in findings if f.counts), key=_ORDER.index, default=Verdict.OK)
