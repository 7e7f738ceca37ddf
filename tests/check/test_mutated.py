"""Texts of these tests, damaged at random: whatever is left of them, nothing raises, and what is
found rests on something that was there."""

from __future__ import annotations

import ast
import pathlib
import random
import re

import pytest

from nodeagent.check.judge import judge
from nodeagent.check.policy import Policy
from nodeagent.discover.paste.part import Text
from nodeagent.discover.paste.read import read_paste
from nodeagent.model.finding import Finding, Verdict

TESTS = pathlib.Path(__file__).parents[1]
TELLING = (Verdict.WARN, Verdict.FAIL, Verdict.UNKNOWN)
STRANGE = ("", "-1", "..", "\u00b2", "\u0663", "9" * 5000, "1e400", "nan", "0-4294967295",
           "\udc80", "\x00", "18446744073709551616", "N/A", "[Not Supported]")  # fmt: skip
HOLLOW = re.compile(r"\(\)|: :|\bNone\b|\bnan\b|frozenset|CpuSet\(")


def _texts() -> list[str]:
    found: dict[str, None] = {}
    for file in [*TESTS.glob("check/*.py"), *TESTS.glob("discover/paste/*.py")]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
                if len(text) >= 30 and "\n" in text:
                    found[text] = None
    return list(found)


TEXTS = _texts()


def damaged(text: str, chance: random.Random) -> str:
    """The text with a few words replaced, and sometimes without its end."""
    for _ in range(chance.randint(0, 4)):
        words = list(re.finditer(r"\d+(?:\.\d+)?|[^\s\d]+", text))
        if words:
            m = chance.choice(words)
            text = text[: m.start()] + chance.choice(STRANGE) + text[m.end() :]
    return text[: chance.randrange(len(text) + 1)] if chance.random() < 0.2 else text


def findings(text: str) -> tuple[Finding, ...]:
    return judge(read_paste([Text(name="stdin", text=text)]).snapshot, Policy(), 0)


@pytest.mark.parametrize("part", range(4))
def test_damage_raises_nothing_and_invents_nothing(part: int) -> None:
    chance = random.Random(part)
    assert len(TEXTS) > 150
    for text in chance.choices(TEXTS, k=120):
        given = damaged(text, chance)
        for f in findings(given):
            assert f.subject.strip() and f.message.strip(), f
            if f.verdict not in TELLING:
                continue
            assert f.evidence and f.remedy.strip(), f
            assert all(e.path.strip() and e.text.strip() for e in f.evidence), f
            for said in (f.message, *(e.text for e in f.evidence)):
                hollow = HOLLOW.search(said)
                assert hollow is None or hollow[0] in given + "int()", f
