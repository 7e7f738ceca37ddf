"""Policy: which checks run, how their verdicts are graded, which bounds hold, what is waived.

A value; reading it from a file is the command line's and the daemon's edge.
"""

from __future__ import annotations

import datetime
import fnmatch
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from nodeagent.model.finding import Finding, Verdict

MAX_WAIVE_DAYS = 90
"""No waiver lasts longer: what is still wrong then deserves a second look."""
GRADES = (Verdict.INFO, Verdict.WARN, Verdict.FAIL)
"""What a rule may grade a finding as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a policy says of one check. `grade` replaces INFO, WARN and FAIL; OK, UNKNOWN and NA
    stay what they are."""

    enabled: bool = True
    grade: Verdict | None = None
    bounds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waive:
    """A finding that somebody accepted until the end of a day. `subject` may hold * and ?."""

    id: str
    subject: str
    reason: str
    until: datetime.date


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The whole policy; the default one runs every check with its own bounds."""

    rules: Mapping[str, Rule] = field(default_factory=dict)
    waives: tuple[Waive, ...] = ()

    def rule(self, check_id: str) -> Rule:
        """The rule for a check."""
        return self.rules.get(check_id, _PLAIN)

    def waived(self, finding: Finding, today: datetime.date) -> Waive | None:
        """The waiver in force that covers a finding, or None. Only WARN and FAIL can be waived."""
        return next((w for w in self._covering(finding) if today <= w.until), None)

    def lapsed(self, finding: Finding, today: datetime.date) -> Waive | None:
        """The waiver that covered a finding until it ran out, or None."""
        return next((w for w in self._covering(finding) if today > w.until), None)

    def _covering(self, finding: Finding) -> Iterator[Waive]:
        if finding.verdict in (Verdict.WARN, Verdict.FAIL):
            for waive in self.waives:
                same = waive.id == finding.id
                if same and fnmatch.fnmatchcase(finding.subject, waive.subject):
                    yield waive


_PLAIN = Rule()
