"""Workload files: every mistake is one sentence with file, line and remedy."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.errors import ConfigError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import (
    Match,
    Placed,
    Placement,
    Role,
    Sharing,
    Unit,
    Workload,
)
from nodeagent.model.snapshot import (
    GpuFacts,
    Host,
    MigInstance,
    NicFacts,
    NvmeFacts,
    Nvml,
    Snapshot,
)
from nodeagent.model.topology import Isolation, Topology
from nodeagent.place.engines import table
from nodeagent.place.tables import KINDS, MatchTable, RoleTable, UnitTable, WorkloadTable
from nodeagent.place.units import UNIT_KINDS, ring_notes
from nodeagent.place.workloads import MAX_WORKLOADS, parse, parse_file, resolve

NOTHING = Topology(
    online=CpuSet(),
    possible=CpuSet(),
    present=CpuSet(),
    smt_siblings=(),
    packages=(),
    nodes=(),
    caches=(),
    pci=(),
    relations=(),
    isolation=Isolation(),
)

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


FULL = """\
[[unit]]
name = "reasoning-0"
kind = "reasoning"
near = "gpu:0"
ring = "itch"

[[workload]]
name = "rank0"
engine = "vllm"
cpus = 8
unit = "reasoning-0"
l3 = "one"
memory = { size = "1.5GiB", move = "migrate" }
hugepages = { "1GiB" = "2GiB", "2MiB" = "4MiB" }
rollback = true
match = {container="vllm-*", image="vllm-openai", label="tier=gold", parent="tini *", user="llm"}
[[workload.role]]
name = "engine"
cpus = 1
[[workload.role]]
name = "io"
cpus = 2
comm = "uv*|ZMQbg*"
main = false

[[workload]]
name = "index0"
kind = "vector-index"
cpus = 2
unit = "reasoning-0"
near = "nvme:nvme0n1"
memory = "migrate"
match.unit = "index@0.service"
match.user = 1001
"""


def test_units_roles_memory_and_containers() -> None:
    file = parse_file(FULL, "w.toml")
    rank, index = file.workloads
    assert file.unit("reasoning-0") == Unit(
        name="reasoning-0", kind="reasoning", near="gpu:0", ring="itch", source="w.toml:1"
    )
    assert (rank.near, rank.kind, rank.engine, rank.l3) == ("gpu:0", "llm", "vllm", "one")
    assert rank.match == Match(
        cmdline="^VLLM::(EngineCore|Worker)",
        container="vllm-*",
        image="vllm-openai",
        label="tier=gold",
        parent="tini *",
        user="llm",
    )
    assert (rank.memory_bytes, rank.memory_move, rank.rollback) == (3 << 29, "migrate", True)
    assert rank.hugepages == ((2 << 20, 4 << 20), (1 << 30, 2 << 30))
    assert rank.roles == (
        Role(name="engine", cpus=1, title="VLLM::EngineCore*", main=True),
        Role(name="io", cpus=2, comm="uv*|ZMQbg*", main=False),
    )
    assert (index.near, index.memory_bytes, index.memory_move) == ("nvme:nvme0n1", 0, "migrate")


def test_an_engine_gives_match_kind_and_roles_that_may_be_overridden() -> None:
    def one(more: str) -> Workload:
        return parse(f'[[workload]]\nname = "a"\nengine = "vllm"\n{more}', "w")[0]

    usual = one("cpus = 4")
    assert usual.kind == "llm" and usual.match == Match(cmdline="^VLLM::(EngineCore|Worker)")
    assert [(r.name, r.cpus) for r in usual.roles] == [("helpers", 1)]
    assert one("cpus = 3").roles == (), "too few to part them"
    assert one("cpus = 8\nsharing = 'shared'").roles == ()
    assert one("cpus = 8\nkind = 'custom'").kind == "custom"
    narrow = one("cpus = 4\nmatch.unit = 'vllm@0.service'").match
    assert narrow == Match(cmdline="^VLLM::(EngineCore|Worker)", unit="vllm@0.service")
    other = one("cpus = 4\nmatch.title = 'VLLM::Worker_TP0'").match
    assert other == Match(title="VLLM::Worker_TP0"), "its own word replaces the engine's"
    own = one("cpus = 8\n[[workload.role]]\nname = 'worker'\ncpus = 2\nmain = true")
    assert own.roles == (Role(name="worker", cpus=2, main=True),)


def test_a_unit_that_only_its_members_name_needs_no_table() -> None:
    text = "".join(
        f"[[workload]]\nname='{n}'\ncpus=1\nunit='u'\nmatch={{comm='{n}'}}\n" for n in "ab"
    )
    assert parse_file(text, "w").units == (Unit(name="u"),)
    assert parse_file(GOOD, "w").units == (Unit(name="reasoning-0"),)


W = '[[workload]]\nname = "a"\n'

CASES = {
    "not TOML": ("[[workload]]\nname = \n", 2, "not TOML"),
    "cut": ('[[workload]]\nname = "a', 2, "not TOML"),
    "unknown table": (
        "[[workloads]]\n",
        1,
        "unknown key 'workloads', expected one of: workload, unit",
    ),
    "unknown key": (W + "cpu = 1\nmatch = {comm = 'a'}\n", 3, "unknown key 'cpu', expected"),
    "unknown match": (W + "cpus = 1\nmatch = {name = 'a'}\n", 4, "unknown key 'name'"),
    "no name": ("[[workload]]\ncpus = 1\nmatch = {comm = 'a'}\n", 1, "without 'name'"),
    "no match": (W + "cpus = 1\n", 1, "without 'match'"),
    "empty match": (W + "cpus = 1\nmatch = {}\n", 4, "matches nothing"),
    "empty criterion": (W + "cpus = 1\nmatch = {cmdline = ''}\n", 4, "match everything"),
    "wrong type": (
        W + "cpus = 'two'\nmatch = {comm = 'a'}\n",
        3,
        "cpus: saw 'two', expected a whole",
    ),
    "no cpus": (W + "match = {comm = 'a'}\n", 1, "no number of CPUs"),
    "zero": (W + "cpus = 0\nmatch = {comm = 'a'}\n", 3, "saw 0, expected a number of CPUs"),
    "negative": (W + "cpus = -3\nmatch = {comm = 'a'}\n", 3, "saw -3"),
    "huge": (W + "cpus = 10000000\nmatch = {comm = 'a'}\n", 3, "saw 10000000"),
    "kind": (
        W + "kind = 'x'\ncpus = 1\nmatch = {comm = 'a'}\n",
        3,
        "kind: saw 'x', expected one of: llm",
    ),
    "near": (W + "cpus = 1\nnear = 'gpu0'\nmatch = {comm = 'a'}\n", 4, "near: saw 'gpu0'"),
    "memory": (W + "cpus = 1\nmemory = '3 GB'\nmatch = {comm = 'a'}\n", 4, "memory: saw '3 GB'"),
    "regex": (W + "cpus = 1\nmatch = {cmdline = '('}\n", 4, "expected a regular expression"),
    "list": (W + "cpu_list = '3-1'\nmatch = {comm = 'a'}\n", 3, "cpu_list: saw '3-1'"),
    "both": (W + "cpus = 1\ncpu_list = '1-2'\nmatch = {comm = 'a'}\n", 3, "has 2 CPUs"),
    "path": ('[[workload]]\nname = "../a"\ncpus = 1\nmatch = {comm = "a"}\n', 2, "name: saw"),
    "shared and isolated": (
        W + "cpus = 1\nsharing = 'shared'\nisolated = true\nmatch = {comm = 'a'}\n",
        5,
        "pool is neither",
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
    "no engine": (
        W + "cpus = 1\nengine = 'vlm'\n",
        4,
        "engine: saw 'vlm', expected one of: feeder, vllm, sglang",
    ),
    "library": (W + "cpus = 1\nengine = 'faiss'\n", 4, "faiss is a library"),
    "engine twice": (
        W + "cpus = 1\nengine = 'vllm'\n[[workload]]\nname='b'\ncpus=1\nengine='vllm'\n",
        5,
        "matches the same processes as a (line 1)",
    ),
    "l3": (W + "cpus = 1\nl3 = 'two'\nmatch = {comm = 'a'}\n", 4, "l3: saw 'two', expected any or"),
    "smt": (W + "cpus = 1\nsmt = 2\nmatch = {comm = 'a'}\n", 4, "smt: saw 2, expected any, whole"),
    "match is text": (W + "cpus = 1\nmatch = 'vllm'\n", 4, "match: saw 'vllm', expected a table"),
    "label": (W + "cpus = 1\nmatch = {label = 'x'}\n", 4, "label: saw 'x', expected KEY=VALUE"),
    "comm too long": (
        W + "cpus = 1\nmatch = {comm = 'nodeagent-feeder'}\n",
        4,
        "'nodeagent-feeder' begins with 16 bytes, and the kernel keeps 15",
    ),
    "role comm too long": (
        W + "cpus = 2\nmatch = {comm = 'a'}\n[[workload.role]]\nname='r'\ncpus=1\n"
        "comm='cuda*|tokio-runtime-worker*'\n",
        8,
        "'tokio-runtime-worker*' begins with 20 bytes",
    ),
    "no label": (
        W + "cpus = 1\nmatch = {label = '=x'}\n",
        4,
        "label: saw '=x', expected KEY=VALUE",
    ),
    "user pattern": (
        W + "cpus = 1\nmatch = {user = 'vllm*'}\n",
        4,
        "user: saw 'vllm*', expected a user's name or number; it is no pattern",
    ),
    "user number": (W + "cpus = 1\nmatch = {user = -1}\n", 4, "user: saw '-1', expected a user's"),
    "user of nobody": (
        W + "cpus = 1\nmatch = {user = 4294967295}\n",
        4,
        "user: saw '4294967295', expected a user's number up to 4294967294",
    ),
    "user is empty": (W + "cpus = 1\nmatch = {user = ''}\n", 4, "user is empty"),
    "pid": (W + "cpus = 1\nmatch = {pid = 0}\n", 4, "pid: saw 0, expected a process number"),
    "memory number": (
        W + "cpus = 1\nmemory = 7\nmatch = {comm = 'a'}\n",
        4,
        'memory: saw 7, expected "64',
    ),
    "memory table": (
        W + "cpus = 1\nmemory = {size = 'x'}\nmatch = {comm = 'a'}\n",
        4,
        "size: saw 'x', expected a size such as 64GiB",
    ),
    "memory move": (
        W + "cpus = 1\nmemory = {move = 'now'}\nmatch = {comm = 'a'}\n",
        4,
        "move: saw 'now', expected launch or migrate",
    ),
    "memory key": (
        W + "cpus = 1\nmemory = {bytes = 7}\nmatch = {comm = 'a'}\n",
        4,
        "unknown key 'bytes', expected one of: size, move",
    ),
    "too much memory": (
        W + "cpus = 1\nmemory = '99999999999999TiB'\nmatch = {comm = 'a'}\n",
        4,
        "memory: saw",
    ),
    "hugepages": (
        W + "cpus = 1\nhugepages = '4GiB'\nmatch = {comm = 'a'}\n",
        4,
        'expected { "2MiB"',
    ),
    "page": (
        W + "cpus = 1\nhugepages = {\"3MiB\" = '3MiB'}\nmatch = {comm = 'a'}\n",
        4,
        "hugepages: saw '3MiB', expected the size of a huge page",
    ),
    "pages cut": (
        W + "cpus = 1\nhugepages = {\"2MiB\" = '3MiB'}\nmatch = {comm = 'a'}\n",
        4,
        "hugepages: saw '3MiB', expected a multiple of 2MiB",
    ),
    "pages twice": (
        W + "cpus = 1\nhugepages = {\"1GiB\"='1GiB', \"1024MiB\"='1GiB'}\nmatch = {comm = 'a'}\n",
        4,
        "pages of 1024MiB are told twice",
    ),
    "shared role": (
        W + "cpus = 2\nsharing = 'shared'\nmatch = {comm = 'a'}\n"
        "[[workload.role]]\nname='r'\ncpus=1\nmain=true\n",
        1,
        "role on a shared workload",
    ),
    "role without cpus": (
        W + "cpus = 2\nmatch = {comm = 'a'}\n[[workload.role]]\nname='r'\nmain=true\n",
        5,
        "a role without 'cpus'",
    ),
    "role says nothing": (
        W + "cpus = 2\nmatch = {comm = 'a'}\n[[workload.role]]\nname='r'\ncpus=1\n",
        6,
        "role r says of no thread that it is one",
    ),
    "role of no engine": (
        W + "cpus = 2\nengine = 'qdrant'\n[[workload.role]]\nname='pool'\ncpus=1\n",
        6,
        "qdrant knows no such part",
    ),
    "role key": (
        W + "cpus = 2\nmatch = {comm = 'a'}\n[[workload.role]]\nname='r'\ncpus=1\npid=3\n",
        8,
        "unknown key 'pid', expected one of: name, cpus, title",
    ),
    "role main": (
        W + "cpus = 2\nmatch = {comm = 'a'}\n[[workload.role]]\nname='r'\ncpus=1\nmain='yes'\n",
        8,
        "main: saw 'yes', expected true or false",
    ),
    "roles want more": (
        W + "cpus = 2\nmatch = {comm = 'a'}\n[[workload.role]]\nname='r'\ncpus=3\nmain=true\n",
        7,
        "the roles of workload a want 3 PUs, and it has 2",
    ),
    "role twice": (
        W
        + "cpus = 2\nmatch = {comm = 'a'}\n"
        + "[[workload.role]]\nname='r'\ncpus=1\nmain=true\n" * 2,
        10,
        "a second role 'r' of workload a",
    ),
    "same role": (
        W + "cpus = 2\nmatch = {comm = 'a'}\n[[workload.role]]\nname='r'\ncpus=1\nmain=true\n"
        "[[workload.role]]\nname='s'\ncpus=1\nmain=true\n",
        9,
        "role s fits the same threads as role r",
    ),
    "unit key": (
        "[[unit]]\nname = 'u'\ngpu = 0\n",
        3,
        "unknown key 'gpu', expected one of: name, kind",
    ),
    "unit kind": (
        "[[unit]]\nname = 'u'\nkind = 'llm'\n",
        3,
        "kind: saw 'llm', expected reasoning, vision",
    ),
    "unit without name": ("[[unit]]\nkind = 'custom'\n", 1, "a unit without 'name'"),
    "unit ring": (
        "[[unit]]\nname = 'u'\nring = '../x'\n",
        3,
        "ring: saw '../x', expected the name of a",
    ),
    "empty unit": ("[[unit]]\nname = 'u'\n", 1, "unit u: no workload is in it"),
    "unit twice": (
        "[[unit]]\nname = 'u'\n[[unit]]\nname = 'u'\n",
        4,
        "a second unit 'u'; the first is on line 1",
    ),
    "reasoning without index": (
        "[[unit]]\nname = 'u'\nkind = 'reasoning'\nnear = 'gpu:0'\nring = 'itch'\n"
        + W
        + "cpus = 1\nengine = 'vllm'\nunit = 'u'\n",
        1,
        "unit u is of kind reasoning (an LLM rank, a vector index and a ring, on the node of one "
        "GPU), and no workload of kind vector-index is in it",
    ),
    "queues of no NIC": (
        W + "cpus = 1\nnear = 'gpu:0'\nqueues = '0'\nmatch = {comm = 'a'}\n",
        5,
        "queues of workload a are of no NIC",
    ),
    "no queue": (
        W + "cpus = 1\nnear = 'nic:e'\nqueues = '0,4096'\nmatch = {comm = 'a'}\n",
        5,
        "expected queue numbers below 4096",
    ),
    "a wait before now": (
        W + "cpus = 1\nwake_latency_us = -1\nmatch = {comm = 'a'}\n",
        4,
        "expected microseconds from 0 to 1000000",
    ),
    "a pool's queue": (
        W + "cpus = 1\nnear = 'nic:e'\nqueues = '0'\nsharing = 'shared'\nmatch = {comm = 'a'}\n",
        5,
        "queues on a shared workload, which has no CPU of its own",
    ),
    "stream without nic": (
        "[[unit]]\nname = 'u'\nkind = 'stream'\nnear = 'gpu:0'\n"
        + W
        + "cpus = 1\nengine = 'feeder'\nunit = 'u'\n",
        1,
        "and it is near no nic",
    ),
    "reasoning without ring": (
        FULL.replace('ring = "itch"\n', ""),
        1,
        "and it names no ring and has no feeder that fills one",
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
    for struct in (WorkloadTable, MatchTable, RoleTable, UnitTable):
        for key in struct.__struct_fields__:
            assert f"\n| `{key}` |" in text, key
    examples = [part.split("```")[0] for part in text.split("```toml\n")[1:]]
    assert [w.name for w in parse(examples[0], "docs")] == ["rank0", "index0", "feeder", "api"]
    for example in examples:
        assert parse(example, "docs"), example
    assert table() in text
    for kind in UNIT_KINDS:
        assert f"\n| `{kind.name}` |" in text, kind


def test_a_plan_says_where_a_units_ring_belongs() -> None:
    file = parse_file(FULL, "w")
    placed = Placed(
        workload="rank0",
        unit="reasoning-0",
        sharing=Sharing.EXCLUSIVE,
        cpus=CpuSet.of([8]),
        mems=CpuSet.of([1]),
        node=1,
        gpu=None,
        reasons=(),
    )
    plan = Placement(placed=(placed,), refused=(), housekeeping=CpuSet.of([0]))
    assert ring_notes(file.units, plan) == (
        "unit reasoning-0: the ring of feed itch belongs on node 1, where its feeder puts it when "
        "it is started with --node 1",
    )
    assert ring_notes(file.units, dataclasses.replace(plan, placed=())) == ()


def test_what_near_may_name() -> None:
    def near(text: str) -> str | None:
        return parse(W + f"cpus = 1\nnear = '{text}'\nmatch = {{comm = 'a'}}\n", "w")[0].near

    told = {
        "gpu:00": "gpu:0",
        "gpu:GPU-5a1c": "gpu:GPU-5a1c",
        "gpu:MIG-0aef-1b": "gpu:MIG-0aef-1b",
        "gpu:0000:3B:00.0": "0000:3b:00.0",
        "00000000:3B:00.0": "0000:3b:00.0",
        "nic:mlx5_0": "nic:mlx5_0",
        "nvme:nvme0n1": "nvme:nvme0n1",
        "node:03": "node:3",
    }
    assert {text: near(text) for text in told} == told


def test_names_that_only_the_machine_knows() -> None:
    snapshot = Snapshot(
        topology=NOTHING,
        host=Host(hostname=None, boot_id=None, kernel=None, virtual=None),
        boot_args=(),
        irqs=(),
        nics=(
            NicFacts(
                name="eth2",
                bdf="0000:01:00.0",
                operstate=None,
                speed_mbps=None,
                rx_queues=1,
                tx_queues=1,
                mtu=None,
                rdma="mlx5_0",
            ),
        ),
        gpus=(
            GpuFacts(
                bdf="0000:3b:00.0",
                index=1,
                uuid="GPU-5a1c",
                mig_instances=(MigInstance(index=0, uuid="MIG-0aef"),),
            ),
        ),
        nvml=Nvml(available=True, reason=None),
        unread=(),
        nvmes=(NvmeFacts(name="nvme0", bdf="0000:02:00.0", model=None, namespaces=("nvme0n1",)),),
    )

    def bdf(near: str) -> str | None:
        work = Workload(name="a", kind="custom", match=Match(comm="a"), cpus=1, near=near)
        return resolve([work], snapshot)[0].near

    assert bdf("gpu:1") == bdf("gpu:GPU-5a1c") == bdf("gpu:MIG-0aef") == "0000:3b:00.0"
    assert bdf("nic:eth2") == bdf("nic:mlx5_0") == "0000:01:00.0"
    assert bdf("nvme:nvme0") == bdf("nvme:nvme0n1") == "0000:02:00.0"
    assert bdf("gpu:7") == "gpu:7" and bdf("node:0") == "node:0"


def test_the_example_of_units_is_right() -> None:
    root = Path(__file__).parents[2]
    path = root / "examples/units.toml"
    file = parse_file(path.read_text(), str(path))
    assert [(u.name, u.kind) for u in file.units] == [
        ("reasoning-0", "reasoning"),
        ("vision-1", "vision"),
        ("stream", "stream"),
    ]
    assert {w.name: [r.name for r in w.roles] for w in file.workloads} == {
        "rank0": ["helpers"],
        "index0": ["front"],
        "detector": ["helpers"],
        "itch": ["poll"],
        "api": [],
    }


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


WORDS = st.from_regex(r"[a-z][a-z0-9._-]{0,8}", fullmatch=True)
PATTERNS = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=12).filter(
    lambda t: bool(t.strip())
)
COMMS = st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=12).filter(
    lambda t: bool(t.strip())
)
CRITERIA = st.builds(
    Match,
    title=st.none() | PATTERNS,
    comm=st.none() | COMMS,
    cmdline=st.none() | PATTERNS.map(re.escape),
    cgroup=st.none() | PATTERNS,
    unit=st.none() | PATTERNS,
    pid=st.none() | st.integers(1, 4_000_000),
    container=st.none() | PATTERNS,
    image=st.none() | PATTERNS,
    label=st.none() | st.tuples(WORDS, PATTERNS).map("=".join),
    parent=st.none() | PATTERNS,
    user=st.none() | st.sampled_from(["vllm", "svc-llm_1", "host$"]),
).filter(lambda match: match != Match())


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    cpus = draw(st.integers(1, 64))
    shared = draw(st.booleans())
    roles: list[Role] = []
    while not shared and len(roles) < 3 and draw(st.booleans()):
        left = cpus - sum(r.cpus for r in roles)
        if not left:
            break
        comm = f"{len(roles)}{draw(COMMS)}"
        role = Role(
            name=f"r{len(roles)}",
            cpus=draw(st.integers(1, left)),
            title=draw(st.none() | PATTERNS),
            comm=comm,
            main=draw(st.none() | st.booleans()),
            parent=draw(st.none() | PATTERNS),
        )
        roles.append(role)
    near = st.sampled_from(["gpu:0", "gpu:GPU-1a", "nic:eth2", "nvme:0", "node:1", "0000:3b:00.0"])
    where = draw(st.none() | near)
    pages = draw(st.dictionaries(st.sampled_from([2 << 20, 1 << 30]), st.integers(1, 99)))
    return Workload(
        name=draw(WORDS),
        kind=draw(st.sampled_from(KINDS)),
        match=draw(CRITERIA),
        cpus=cpus,
        sharing=Sharing.SHARED if shared else Sharing.EXCLUSIVE,
        near=where,
        unit=draw(st.none() | WORDS),
        smt="any" if shared else draw(st.sampled_from(["any", "whole-core", "one-per-core"])),
        l3="any" if shared else draw(st.sampled_from(["any", "one"])),
        memory_bytes=draw(st.integers(0, 1 << 44)),
        memory_move=draw(st.sampled_from(["launch", "migrate"])),
        hugepages=tuple(sorted((page, n * page) for page, n in pages.items())),
        isolated=not shared and draw(st.booleans()),
        roles=tuple(roles),
        rollback=draw(st.booleans()),
        source="w.toml:1",
        queues=CpuSet(draw(st.frozensets(st.integers(0, 63), min_size=1)))
        if (where or "").startswith(("nic:", "0000:")) and not shared and draw(st.booleans())
        else None,
        wake_latency_us=None if shared else draw(st.none() | st.integers(0, 1000)),
    )


def toml(w: Workload) -> str:
    """The workload as a person would write it."""

    def text(value: object) -> str:
        if isinstance(value, bool | int):
            return json.dumps(value)
        return json.dumps(str(value), ensure_ascii=False)

    lines = ["[[workload]]"]
    for key in ("name", "kind", "cpus", "sharing", "near", "unit", "smt", "l3", "isolated",
                "queues", "wake_latency_us"):  # fmt: skip
        value = getattr(w, key)
        if value is not None:
            lines.append(f"{key} = {text(value)}")
    lines.append(f"rollback = {text(w.rollback)}")
    lines.append(f'memory = {{ size = "{w.memory_bytes}B", move = "{w.memory_move}" }}')
    pages = ", ".join(f'"{page}B" = "{much}B"' for page, much in w.hugepages)
    lines.append(f"hugepages = {{ {pages} }}")
    for key, value in dataclasses.asdict(w.match).items():
        if value is not None:
            lines.append(f"match.{key} = {text(value)}")
    for role in w.roles:
        lines.append("[[workload.role]]")
        for key, value in dataclasses.asdict(role).items():
            if value is not None:
                lines.append(f"{key} = {text(value)}")
    return "\n".join(lines) + "\n"


@given(workloads())
def test_what_is_written_down_is_read_again(workload: Workload) -> None:
    assert parse(toml(workload), "w.toml") == (workload,)


HOSTILE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 80), 1 << 80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(
        ["vllm", "gpu:0", "migrate", "64GiB", "9" * 30 + "TiB", "(" * 40, "a" * 5000]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=6) | st.sampled_from(["name", "cpus", "2MiB"]), inner)
    ),
    max_leaves=8,
)


def inline(value: object) -> str:
    """Any value as TOML has it in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    return '""' if value is None else json.dumps(value)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["[[workload]]", "[[unit]]", "[[workload.role]]", "[workload.match]", ""]
            ),
            st.lists(
                st.tuples(
                    st.sampled_from(
                        (
                            *WorkloadTable.__struct_fields__,
                            *MatchTable.__struct_fields__,
                            "main",
                            "ring",
                        )
                    ),
                    HOSTILE,
                ),
                max_size=5,
                unique_by=lambda pair: pair[0],
            ),
        ),
        max_size=4,
    )
)
def test_hostile_values_are_a_sentence_with_a_line(
    tables: list[tuple[str, list[tuple[str, object]]]],
) -> None:
    text = "".join(
        head + "\n" + "".join(f"{key} = {inline(value)}\n" for key, value in keys)
        for head, keys in tables
    )
    try:
        parse(text, "w.toml")
    except ConfigError as error:
        assert re.match(r"w\.toml(:\d+)?: ", str(error)) and error.remedy
        assert len(str(error)) < 4000, "a value is shown cut"


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda b: b.decode("latin-1")))
def test_any_text_is_workloads_or_a_sentence(text: str) -> None:
    try:
        parse(text, "w.toml")
    except ConfigError as error:
        assert str(error).startswith("w.toml:") and error.remedy
