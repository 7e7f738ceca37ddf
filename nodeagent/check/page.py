"""A check's page, for `nodeagentctl explain` and for docs/checks.md: both from the check itself."""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.check.record import Check

SECTIONS = (
    ("What it means", "means"),
    ("Why it matters", "why"),
    ("Prove it by hand", "prove"),
    ("Mend it", "mend"),
    ("Source", "source"),
)


def sections(check: Check) -> list[tuple[str, str]]:
    """(heading, text) pairs in reading order; bounds, where the check has some, come second."""
    texts = {
        "means": check.means,
        "why": check.why,
        "prove": check.prove,
        "mend": check.mend,
        "source": check.source,
    }
    found = [(heading, texts[key]) for heading, key in SECTIONS]
    if check.bounds:
        limits = ", ".join(f"{name} = {number(value)}" for name, value in check.bounds.items())
        found.insert(1, ("Bounds", f"{limits} (a policy file may change them)"))
    return found


def number(value: float) -> str:
    """A bound as a person would write it: never with an exponent where it is whole."""
    return str(int(value)) if value == int(value) else f"{value:g}"


def anchor(check_id: str) -> str:
    """The heading's anchor as Markdown renderers make it: lower case, punctuation but - dropped."""
    return check_id.replace(".", "")


def markdown(checks: Iterable[Check]) -> str:
    """docs/checks.md."""
    checks = list(checks)
    lines = [
        "# Checks",
        "",
        "Written by `nodeagentctl explain --markdown` from the checks themselves; do not edit.",
        "Verdicts: OK, WARN (costs something), FAIL (does not do what was asked, or will break),",
        "UNKNOWN (could not be seen: names the file or the right), NA (nothing to judge here),",
        "INFO (worth knowing, never counts).",
        "",
    ]
    lines += [f"- [{c.id}](#{anchor(c.id)}): {c.title}" for c in checks]
    for c in checks:
        lines += ["", f"## {c.id}", "", f"{c.title[0].upper()}{c.title[1:]}.", ""]
        for heading, text in sections(c):
            body = f"\n\n    {text}" if heading == "Prove it by hand" else f" {text}"
            lines += [f"**{heading}.**{body}", ""]
        lines.pop()
    return "\n".join(lines) + "\n"
