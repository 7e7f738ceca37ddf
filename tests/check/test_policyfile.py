"""Policy files: what a good one says, and for each wrong one the line, the key and what helps."""

from __future__ import annotations

import datetime

import pytest

from nodeagent.check.judge import BY_ID, judge
from nodeagent.check.policyfile import example, parse
from nodeagent.errors import ConfigError
from nodeagent.model.finding import Verdict
from tests.check.machines import healthy, with_texts

TODAY = datetime.date(2026, 1, 10)
WAIVE = '[[waive]]\nid = "memory.thp"\nsubject = "*"\nreason = "measured"\n'
WRONG: dict[str, tuple[str, int, str, str]] = {
    # name: (text, line, words of the sentence, words of the remedy)
    "grade in lower case": ('[checks."memory.thp"]\ngrade = "warn"\n', 2, "'warn'", "example"),
    "grade OK": ('[checks."memory.thp"]\ngrade = "OK"\n', 2, "INFO, WARN or FAIL", ""),
    "no such check": ('\n[checks."memory.th"]\nenabled = false\n', 2, "memory.th", "memory.thp"),
    "no such key": ('[checks."memory.thp"]\nenable = false\n', 2, "enable", ""),
    "not a switch": ('[checks."memory.thp"]\nenabled = "no"\n', 2, "enabled", ""),
    "no such bound": ('[checks."numa.uneven"]\nbounds = { x = 1 }\n', 2, "no bound x", "percent"),
    "bound of text": ('[checks."numa.uneven"]\nbounds = { percent = "a" }\n', 2, "a number", ""),
    "bound below zero": ('[checks."numa.uneven"]\nbounds.percent = -1\n', 2, "-1", "explain"),
    "bound of nothing": ('[checks."numa.uneven"]\nbounds.percent = nan\n', 2, "nan", "explain"),
    "no section": ("[cheks]\n", 1, "[cheks]", ""),
    "checks as text": ('checks = "all"\n', 1, "[checks", ""),
    "waive as text": ('waive = "all"\n', 1, "[[waive]]", ""),
    "waive without until": (WAIVE, 1, "missing setting until", "example"),
    "waive without reason": (WAIVE.replace("measured", "  ") + "until = 2026-02-01\n", 4,
                             "reason is empty", "who accepted it"),
    "waive of no check": (WAIVE.replace(".thp", ".tph") + "until = 2026-02-01\n", 2, "memory.tph",
                          "memory.thp"),
    "waive for too long": (WAIVE + "until = 2026-04-11\n", 5, "90 days", "2026-04-10"),
    "waive until a word": (WAIVE + 'until = "spring"\n', 5, "until", ""),
    "second waive is wrong": (WAIVE + "until = 2026-02-01\n" + WAIVE + "until = 2027-02-01\n", 10,
                              "2027-02-01", "2026-04-10"),
    "no TOML": ("[checks\n", 1, "not TOML", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_names_line_key_and_remedy(name: str) -> None:
    text, line, words, remedy = WRONG[name]
    with pytest.raises(ConfigError) as caught:
        parse(text, "p.toml", TODAY)
    assert str(caught.value).startswith(f"p.toml:{line}: "), caught.value
    assert words in str(caught.value), caught.value
    assert caught.value.remedy and remedy in caught.value.remedy, caught.value.remedy


def test_a_good_file_switches_grades_bounds_and_waives() -> None:
    text = (
        '[checks."memory.thp"]\ngrade = "FAIL"\n[checks.memory.swap]\nenabled = false\n'
        '[checks."numa.uneven"]\nbounds = { percent = 10 }\n'
        + WAIVE.replace("memory.thp", "numa.balancing")
        + "until = 2026-04-10\n"
    )
    policy = parse(text, "p.toml", TODAY)
    assert policy.rule("memory.thp").grade is Verdict.FAIL
    assert not policy.rule("memory.swap").enabled
    assert policy.rule("numa.uneven").bounds == {"percent": 10}
    assert [(w.id, w.until) for w in policy.waives] == [
        ("numa.balancing", datetime.date(2026, 4, 10))
    ]
    machine = with_texts(
        healthy(),
        {
            "sys/kernel/mm/transparent_hugepage/enabled": "[always] never",
            "proc/sys/kernel/numa_balancing": "1",
        },
    )
    now = int(datetime.datetime(2026, 1, 10, tzinfo=datetime.UTC).timestamp() * 1e9)
    loud = {
        f.id: f for f in judge(machine, policy, now) if f.verdict in (Verdict.WARN, Verdict.FAIL)
    }
    assert loud.keys() == {"memory.thp", "numa.balancing"}
    assert loud["memory.thp"].verdict is Verdict.FAIL
    assert loud["numa.balancing"].waived_until == "2026-04-10"


def test_the_example_is_one() -> None:
    for today in (TODAY, datetime.date(2031, 12, 31)):
        policy = parse(example(today), "example", today)
        assert policy.rules.keys() <= BY_ID.keys()
        assert [w.until > today for w in policy.waives] == [True]
