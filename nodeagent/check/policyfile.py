"""Text of a policy file to a Policy; every error is one sentence with file, line and remedy."""

from __future__ import annotations

import datetime
import difflib
import math
import re

import msgspec

from nodeagent.check.judge import BY_ID
from nodeagent.check.policy import GRADES, MAX_WAIVE_DAYS, Policy, Rule, Waive
from nodeagent.errors import ConfigError
from nodeagent.model.configfile import key_lines
from nodeagent.model.finding import Verdict
from nodeagent.model.tomltext import document as document_of

MAX_BYTES = 1 << 20
_EXAMPLE = """\
# Bounds, grade and switch of a check; `nodeagentctl explain ID` shows the names of its bounds.
[checks."numa.uneven"]
bounds = { percent = 50 }

[checks."feed.socket-buffer"]
grade = "WARN"            # INFO, WARN or FAIL instead of its own

[checks."feed.rp-filter"]
enabled = false

# A finding somebody accepted: shown as waived, not counted. `until` at most 90 days ahead.
[[waive]]
id = "cpu.smt-split"
subject = "cpu 5,29"      # as the finding prints it; * and ? stand for anything
reason = "sibling runs the housekeeping of this thread"
until = {until}
"""


def example(today: datetime.date) -> str:
    """A complete policy file; its waiver holds for 30 days."""
    return _EXAMPLE.replace("{until}", (today + datetime.timedelta(days=30)).isoformat())


REMEDY = "mend that line; `nodeagentctl topology check --policy-example` prints a complete file"


class _RuleTable(msgspec.Struct, forbid_unknown_fields=True):
    enabled: bool = True
    grade: str | None = None
    bounds: dict[str, float] = {}


class _WaiveTable(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    subject: str
    reason: str
    until: datetime.date


def parse(text: str, path: str, today: datetime.date) -> Policy:
    """The policy in `text`; `path` names it in sentences, `today` bounds the waivers. Raises
    ConfigError."""
    document = document_of(text, path, REMEDY)
    lines = key_lines(text)

    def wrong(key: str, sentence: str, remedy: str = REMEDY) -> ConfigError:
        at = next((lines[k] for k in _upward(key) if k in lines), 1)
        return ConfigError(f"{path}:{at}: {sentence}", remedy)

    def convert(value: object, shape: type, key: str) -> object:
        try:
            return msgspec.convert(value, shape, strict=True)
        except msgspec.ValidationError as error:
            said, _, inner = str(error).partition(" - at `$")
            inner = inner.rstrip("`").replace("[...]", "")
            unknown = re.search(r"unknown field `(\w+)`", said)
            at = f"{key}{inner}.{unknown[1]}" if unknown else key + inner
            raise wrong(at, _plain(said, inner)) from error

    for name in document:
        if name not in ("checks", "waive"):
            raise wrong(
                name, f"unknown section [{name}], expected [checks.ID] or [[waive]]", REMEDY
            )
    rules: dict[str, Rule] = {}
    checks = document.get("checks", {})
    if not isinstance(checks, dict):
        raise wrong("checks", 'checks must be written [checks."ID"], one section for each check')
    for check_id, table in _by_id(checks).items():
        key = f"checks.{check_id}"
        check = BY_ID.get(check_id)
        if check is None:
            raise wrong(key, f"there is no check {check_id}", _nearest(check_id))
        rule = convert(table, _RuleTable, key)
        assert isinstance(rule, _RuleTable)
        if rule.grade is not None and rule.grade not in GRADES:
            raise wrong(f"{key}.grade", f"grade: saw {rule.grade!r}, expected INFO, WARN or FAIL")
        for bound, limit in rule.bounds.items():
            if not (math.isfinite(limit) and limit >= 0):
                raise wrong(
                    f"{key}.bounds.{bound}",
                    f"{bound}: saw {limit:g}, expected a number of at least 0",
                    f"`nodeagentctl explain {check_id}` shows its own",
                )
            if bound not in check.bounds:
                named = ", ".join(check.bounds) or "none at all"
                raise wrong(
                    f"{key}.bounds.{bound}",
                    f"{check_id} has no bound {bound}",
                    f"its bounds: {named}",
                )
        rules[check_id] = Rule(
            enabled=rule.enabled,
            grade=Verdict(rule.grade) if rule.grade else None,
            bounds=rule.bounds,
        )
    waives = document.get("waive", [])
    if not isinstance(waives, list):
        raise wrong("waive", "waive must be written [[waive]], once for each finding")
    return Policy(
        rules=rules,
        waives=tuple(_waive(i, table, today, convert, wrong) for i, table in enumerate(waives)),
    )


def _waive(index: int, table: object, today: datetime.date, convert, wrong) -> Waive:  # type: ignore[no-untyped-def]  # the two closures of parse()
    key = f"waive[{index}]"
    waive = convert(table, _WaiveTable, key)
    if waive.id not in BY_ID:
        raise wrong(f"{key}.id", f"there is no check {waive.id}", _nearest(waive.id))
    if not waive.reason.strip():
        raise wrong(f"{key}.reason", "reason is empty", "say who accepted it, and why")
    last = today + datetime.timedelta(days=MAX_WAIVE_DAYS)
    if waive.until > last:
        raise wrong(
            f"{key}.until",
            f"until: saw {waive.until}, expected at most {MAX_WAIVE_DAYS} days ahead",
            f"write {last} or earlier",
        )
    return Waive(id=waive.id, subject=waive.subject, reason=waive.reason, until=waive.until)


def _upward(key: str) -> list[str]:
    """The key and everything above it, nearest first."""
    parts = key.split(".")
    return [".".join(parts[:i]) for i in range(len(parts), 0, -1)]


def _by_id(checks: dict[str, object]) -> dict[str, object]:
    """Sections by check id, whether written [checks."a.b"] or [checks.a.b]."""
    found: dict[str, object] = {}
    for name, table in checks.items():
        if "." not in name and isinstance(table, dict) and name not in BY_ID:
            nested = {k: v for k, v in table.items() if isinstance(v, dict)}
            if nested and len(nested) == len(table):
                found |= {f"{name}.{k}": v for k, v in nested.items()}
                continue
        found[name] = table
    return found


def _nearest(check_id: str) -> str:
    close = difflib.get_close_matches(check_id, list(BY_ID), 1)
    if close:
        return f"did you mean {close[0]}?"
    return "`nodeagentctl explain` lists every check"


def _plain(said: str, inner: str) -> str:
    """msgspec's sentence in the words of a TOML file."""
    name = inner.rpartition(".")[2]
    said = said.replace("Object missing required field", "missing setting")
    said = said.replace("xpected `float`, got `str`", "xpected a number, saw text")
    said = said.replace("Object contains unknown field", "unknown setting").replace("`", "")
    return f"{name}: {said[:1].lower()}{said[1:]}" if name else said[:1].lower() + said[1:]
