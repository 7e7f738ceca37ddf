"""What Python's TOML reader gives up on without saying it is no TOML."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import pytest

from nodeagent.check import policyfile
from nodeagent.errors import ConfigError
from nodeagent.model import configfile
from nodeagent.model.tomltext import document
from nodeagent.place import workloads

PARSERS: tuple[Callable[[str], object], ...] = (
    lambda text: configfile.parse(text, "f.toml"),
    lambda text: workloads.parse(text, "f.toml"),
    lambda text: policyfile.parse(text, "f.toml", datetime.date(2026, 1, 1)),
)


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("text", ["a=" + "[" * 20_000, "a=" + "9" * 5_000, "a = [", "a=1\na=2"])
def test_it_is_a_sentence(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(ConfigError, match=r"^f\.toml:") as caught:
        parse(text)
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


def test_lines_of_keys_behind_odd_strings() -> None:
    text = "\n".join(
        (
            "[a]",
            "x = ''''quoted''''",
            'y = """"two"""""',
            'z = ""',
            '"k\\"=" = 1',
            "last = [1, # ]",
            "]",
            "after = 1",
        )
    )
    lines = configfile.key_lines(text)
    assert (lines["a.x"], lines["a.y"], lines["a.z"]) == (2, 3, 4)
    assert (lines["a.last"], lines["a.after"]) == (6, 8)


def test_many_keys_and_long_keys_are_read_in_one_pass() -> None:
    assert configfile.key_lines("k = 1\n" * 100_000)["k"] == 1
    assert configfile.key_lines(".".join("a" * 100_000) + " = 1")["a.a"] == 1


@pytest.mark.parametrize("pattern", ["a{99999999999}", "(" * 3000, "[[a]"])
def test_odd_patterns_of_a_workload(pattern: str, recwarn: pytest.WarningsRecorder) -> None:
    text = f"[[workload]]\nname = 'w'\ncpus = 1\nmatch = {{cmdline = '{pattern}'}}\n"
    if pattern == "[[a]":
        assert workloads.parse(text, "f.toml")
    else:
        with pytest.raises(ConfigError, match=r"^f\.toml:4: cmdline"):
            workloads.parse(text, "f.toml")
    assert not recwarn.list


@pytest.mark.parametrize(
    "text",
    [
        "a" + ".a" * 100_000 + "=1\n",
        "x = 1\n[a" + ".a" * 100_000 + "]\n",
        "a = {b" + ".c" * 100_000 + " = 1}\n",
        "a" + '."b"' * 100_000 + "=1\n",
    ],
)
def test_a_key_without_an_end_is_refused_at_once(text: str) -> None:
    with pytest.raises(ConfigError, match="a key of more than 64 parts"):
        document(text, "p.toml", "mend it")
