"""Workload files: every mistake is one sentence with file, line and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.errors import ConfigError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import Match, Sharing
from nodeagent.place.workloads import MAX_WORKLOADS, MatchTable, WorkloadTable, parse

GOOD = """\
[[workload]]
name = "rank0"
kind = "vllm"
cpus = 8
near = "gpu:0"
unit = "reasoning-0"
smt = "whole-core"
memory = "64GiB"
match = { title = "VLLM::EngineCore*", comm = "VLLM*" }

[[workload]]
name = "index0"
kind = "vector-index"
cpu_list = "4-5"
sharing = "exclusive"
isolated = true
near = "0000:3B:00.0"
[workload.match]
unit = "index@0.service"
"""


def test_a_file_becomes_typed_workloads() -> None:
    first, second = parse(GOOD, "w.toml")
    assert (first.name, first.cpus, first.memory_bytes) == ("rank0", 8, 64 << 30)
    assert first.match == Match(title="VLLM::EngineCore*", comm="VLLM*")
    assert (second.cpus, second.cpu_list) == (2, CpuSet.of([4, 5]))
    assert (second.near, second.sharing) == ("0000:3b:00.0", Sharing.EXCLUSIVE)
    assert second.source == "w.toml:11"
    assert parse("", "w.toml") == ()


W = '[[workload]]\nname = "a"\n'

CASES = {
    "not TOML": ("[[workload]]\nname = \n", 2, "not TOML"),
    "cut": ('[[workload]]\nname = "a', 2, "not TOML"),
    "unknown table": ("[[workloads]]\n", 1, "unknown key 'workloads', expected one of: workload"),
    "unknown key": (W + "cpu = 1\nmatch = {comm = 'a'}\n", 3, "unknown key 'cpu', expected"),
    "unknown match": (W + "cpus = 1\nmatch = {name = 'a'}\n", 4, "unknown key 'name'"),
    "no name": ("[[workload]]\ncpus = 1\nmatch = {comm = 'a'}\n", 1, "without 'name'"),
    "no match": (W + "cpus = 1\n", 1, "without 'match'"),
    "empty match": (W + "cpus = 1\nmatch = {}\n", 4, "matches nothing"),
    "empty criterion": (W + "cpus = 1\nmatch = {cmdline = ''}\n", 4, "match everything"),
    "wrong type": (W + "cpus = 'two'\nmatch = {comm = 'a'}\n", 3, "cpus: expected `int"),
    "no cpus": (W + "match = {comm = 'a'}\n", 1, "no number of CPUs"),
    "zero": (W + "cpus = 0\nmatch = {comm = 'a'}\n", 3, "saw 0, expected a number of CPUs"),
    "negative": (W + "cpus = -3\nmatch = {comm = 'a'}\n", 3, "saw -3"),
    "huge": (W + "cpus = 10000000\nmatch = {comm = 'a'}\n", 3, "saw 10000000"),
    "kind": (W + "kind = 'x'\ncpus = 1\nmatch = {comm = 'a'}\n", 3, "kind: invalid enum value"),
    "near": (W + "cpus = 1\nnear = 'gpu0'\nmatch = {comm = 'a'}\n", 4, "near: saw 'gpu0'"),
    "memory": (W + "cpus = 1\nmemory = '3 GB'\nmatch = {comm = 'a'}\n", 4, "memory: saw '3 GB'"),
    "regex": (W + "cpus = 1\nmatch = {cmdline = '('}\n", 4, "expected a regular expression"),
    "list": (W + "cpu_list = '3-1'\nmatch = {comm = 'a'}\n", 3, "cpu_list: saw '3-1'"),
    "both": (W + "cpus = 1\ncpu_list = '1-2'\nmatch = {comm = 'a'}\n", 3, "has 2 CPUs"),
    "path": ('[[workload]]\nname = "../a"\ncpus = 1\nmatch = {comm = "a"}\n', 2, "name: saw"),
    "shared and isolated": (
        W + "cpus = 1\nsharing = 'shared'\nisolated = true\nmatch = {comm = 'a'}\n",
        5,
        "a pool is neither",
    ),
    "name twice": (
        W + "cpus = 1\nmatch = {comm = 'a'}\n" + W + "cpus = 1\nmatch = {comm = 'b'}\n",
        6,
        "a second workload 'a'; the first is on line 1",
    ),
    "same match": (
        W + "cpus = 1\nmatch = {comm = 'a'}\n[[workload]]\nname='b'\ncpus = 1\n"
        "match = {comm = 'a'}\n",
        8,
        "matches the same processes as a (line 1)",
    ),
    "overlap": (
        W + "cpu_list = '1-3'\nmatch = {comm = 'a'}\n[[workload]]\nname='b'\ncpu_list = '3-4'\n"
        "match = {comm = 'b'}\n",
        7,
        "overlaps that of a in CPU 3",
    ),
    "unit on two nodes": (
        W + "cpus = 1\nunit = 'u'\nnear = 'node:0'\nmatch = {comm = 'a'}\n[[workload]]\nname='b'\n"
        "cpus = 1\nunit = 'u'\nnear = 'node:1'\nmatch = {comm = 'b'}\n",
        11,
        "unit u shares one NUMA node, but b wants node:1 and a wants node:0",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_mistakes(case: str) -> None:
    text, line, words = CASES[case]
    with pytest.raises(ConfigError) as caught:
        parse(text, "w.toml")
    assert str(caught.value).startswith(f"w.toml:{line}: "), caught.value
    assert words in str(caught.value)
    assert caught.value.remedy and caught.value.exit_code == 64


def test_the_document_tells_every_key_and_its_example_is_right() -> None:
    text = (Path(__file__).parents[2] / "docs/workloads.md").read_text()
    for struct in (WorkloadTable, MatchTable):
        for key in struct.__struct_fields__:
            assert f"\n| `{key}` |" in text, key
    example = text.split("```toml\n")[1].split("```")[0]
    assert [w.name for w in parse(example, "docs")] == ["rank0", "index0", "feeder", "api"]


def test_the_example_file_is_right() -> None:
    path = Path(__file__).parents[2] / "examples/workloads.toml"
    assert [(w.name, w.cpus) for w in parse(path.read_text(), str(path))] == [
        ("vwap", 1),
        ("vector", 1),
    ]


def test_too_many() -> None:
    many = "".join(
        f"[[workload]]\nname='w{i}'\ncpus=1\nmatch={{comm='c{i}'}}\n"
        for i in range(MAX_WORKLOADS + 1)
    )
    with pytest.raises(ConfigError, match="expected at most 512"):
        parse(many, "w.toml")


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda b: b.decode("latin-1")))
def test_any_text_is_workloads_or_a_sentence(text: str) -> None:
    try:
        parse(text, "w.toml")
    except ConfigError as error:
        assert str(error).startswith("w.toml:") and error.remedy
