"""Whole reports: several tools' output in one text, in the wrapping of trackers and collectors."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.check.judge import judge
from nodeagent.check.policy import Policy
from nodeagent.discover.paste.environ import read_environ
from nodeagent.discover.paste.part import Text
from nodeagent.discover.paste.plain import bare, blocks, tidy
from nodeagent.discover.paste.read import Paste, read_paste
from nodeagent.model.finding import Verdict, worst
from nodeagent.model.gpu_report import Environ, GpuState
from tests.check.cases_gpu_tools import AMD, IBSTAT, LIST, MATRIX, ROCM, TABLE, q
from tests.check.cases_layout import CELLS, FOUR, NODE, STAT, lscpu_e

REPORT = f"""\
### Your current environment

<details>
<summary>The output of <code>python collect_env.py</code></summary>

```text
Collecting environment information...
==============================
       CUDA / GPU Info
==============================
GPU models and configuration :
GPU 0: NVIDIA A100-SXM4-80GB
GPU 1: NVIDIA A100-SXM4-80GB

Nvidia driver version        : 550.54.15
==============================
          CPU Info
==============================
Architecture:           x86_64
CPU(s):                 32
On-line CPU(s) list:    0-31
Socket(s):              2
NUMA node(s):           2
NUMA node0 CPU(s):      0-15
NUMA node1 CPU(s):      16-31
==============================
GPU Topology:
{MATRIX}
==============================
     Environment Variables
==============================
CUDA_VISIBLE_DEVICES=0,1,2
VLLM_USE_V1=1
```
</details>

It hangs. I ran:

```python
llm = LLM("model")
```
"""


def read(text: str, name: str = "report.md") -> Paste:
    return read_paste([Text(name=name, text=text)])


def test_a_report_of_a_tracker() -> None:
    paste = read(REPORT)
    assert paste.facts["gpus"] == ["GPU0", "GPU1"]
    assert paste.facts["numa_nodes"] == [{"id": 0, "cpus": "0-15"}, {"id": 1, "cpus": "16-31"}]
    found = judge(paste.snapshot, Policy(), 0)
    wrong = next(f for f in found if f.id == "gpu.visible-devices")
    assert wrong.verdict is Verdict.FAIL
    line = REPORT.split("\n").index("CUDA_VISIBLE_DEVICES=0,1,2") + 1
    assert f"line {line}: " in wrong.evidence[0].text
    skipped = [f for f in found if f.id == "paste.recognised" and f.verdict is Verdict.INFO]
    assert len(skipped) == 1 and "1 blocks" in skipped[0].message


def test_prose_around_known_parts_asks_nothing_but_a_file_of_prose_does() -> None:
    text = REPORT.replace("CUDA_VISIBLE_DEVICES=0,1,2", "CUDA_VISIBLE_DEVICES=0,1")
    assert worst(judge(read(text).snapshot, Policy(), 0)) is Verdict.OK
    both = read_paste([Text(name="report.md", text=text), Text(name="notes.md", text="Words.\n")])
    assert worst(judge(both.snapshot, Policy(), 0)) is Verdict.UNKNOWN
    assert both.snapshot.pasted is not None
    assert both.snapshot.pasted.unrecognised == ("notes.md",)


@pytest.mark.parametrize(
    "prefix",
    ["2026-01-02T03:04:05.6Z stdout F ", "[rank0]: ", "(Worker_TP0 pid=77) ", "vllm-1  | ", "> ",
     "Jan  2 03:04:05 host vllm[77]: ", "2026-01-02 03:04:05,678 "],
)  # fmt: skip
def test_prefixes_of_collectors(prefix: str) -> None:
    text = "".join(f"{prefix}{line}\n" for line in (TABLE + LIST).split("\n"))
    plain, prefixed = read(TABLE + LIST), read(text)
    assert plain.snapshot.pasted is not None and prefixed.snapshot.pasted is not None
    assert prefixed.snapshot.pasted.reports == plain.snapshot.pasted.reports


def test_lines_keep_their_numbers() -> None:
    text = tidy("> a\n```\n&lt;x&gt;\n```\n<details>\nc")
    assert text.split("\n") == ["a", "", "<x>", "", "", "c"]
    assert bare("0: a\n0: b\n1: c") == "a\nb\nc"
    # The rows of a distance matrix look like labels: not every line is one.
    assert bare("node 0 1\n 0: 10 21\n 1: 21 10") == "node 0 1\n 0: 10 21\n 1: 21 10"
    assert list(blocks("### `x -y`\n```sh\nout\n```\n")) == [(3, "x -y", "out")]


def test_a_gpu_says_the_same_by_its_log_its_table_and_a_query() -> None:
    csv = "gpu_uuid, pci.bus_id, name, memory.used [MiB], utilization.gpu [%], pstate\n"
    csv += "GPU-aaaa, 00000000:3B:00.0, NVIDIA A100-SXM4-80GB, 40000 MiB, 97 %, P0\n"
    table = TABLE.replace("      4MiB", "  40000MiB").replace("     0%  ", "    97%  ")
    said = []
    for text in (q(), table, csv):
        pasted = read(text).snapshot.pasted
        assert pasted is not None
        (g,) = pasted.of(GpuState)
        said.append((g.bdf, g.name, g.used_mib, g.util_percent, g.pstate))
    assert set(said) == {("0000:3b:00.0", "NVIDIA A100-SXM4-80GB", 40000.0, 97, 0)}


def test_an_indented_log_may_lose_its_indentation() -> None:
    flat = "\n".join(line.strip() for line in q().split("\n"))
    one, other = read(q()).snapshot.pasted, read(flat).snapshot.pasted
    assert one is not None and other is not None
    assert one.reports == other.reports


def test_lscpu_as_json_says_what_its_text_says() -> None:
    rows = [
        {"field": "Architecture:", "data": "x86_64"},
        {"field": "CPU(s):", "data": "4",
         "children": [{"field": "On-line CPU(s) list:", "data": "0-3"}]},
        {"field": "NUMA:", "data": None,
         "children": [{"field": "NUMA node0 CPU(s):", "data": "0-3"}]},
    ]  # fmt: skip
    facts = read(json.dumps({"lscpu": rows}, indent=3), "lscpu.json").facts
    assert facts["cpu"] == {"architecture": "x86_64", "cpus": 4, "online": "0-3"}
    assert facts["numa_nodes"] == [{"id": 0, "cpus": "0-3"}]


def test_rows_of_cpus_that_are_off_line() -> None:
    text = "CPU NODE SOCKET CORE L1d:L1i:L2:L3 ONLINE\n0 0 0 0 0:0:0:0 yes\n1 - - - - no\n"
    assert read(text).facts["cpu"] == {"online": "0", "offline": "1", "cpus": 2}
    broken = read(text + "2 0 0\n")
    assert broken.snapshot.pasted is not None
    assert "3 cells under 6 headings" in broken.snapshot.pasted.unclear[0]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("export NCCL_DEBUG=INFO", {"NCCL_DEBUG": "INFO"}),
        ("docker run -e NCCL_DEBUG=INFO -e CUDA_VISIBLE_DEVICES=0,1 image",
         {"NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "0,1"}),
        ("- name: NCCL_DEBUG\n  value: \"INFO\"", {"NCCL_DEBUG": "INFO"}),
        ("CUDA_VISIBLE_DEVICES=0 NCCL_DEBUG=INFO python x.py",
         {"CUDA_VISIBLE_DEVICES": "0", "NCCL_DEBUG": "INFO"}),
        ("NCCL_DEBUG=WARN\nNCCL_DEBUG='INFO'", {"NCCL_DEBUG": "INFO"}),
    ],
)  # fmt: skip
def test_environments(line: str, expected: dict[str, str]) -> None:
    pasted = read(line).snapshot.pasted
    assert pasted is not None
    assert pasted.of(Environ)[0].values == expected


KNOWN = [
    AMD, IBSTAT, LIST, MATRIX, ROCM, TABLE, q(), CELLS, FOUR, NODE, STAT, lscpu_e(0, 1), REPORT,
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(KNOWN), st.data())
def test_no_cut_or_change_of_known_text_breaks_a_reader_or_a_check(
    text: str, data: st.DataObject
) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        gone = data.draw(st.integers(0, 40))
        text = text[:at] + data.draw(st.text(max_size=4)) + text[at + gone :]
    judge(read(text, "x.txt").snapshot, Policy(), 0)


def test_nccls_own_sentences_set_no_variable() -> None:
    said = "n1:7:9 [0] NCCL INFO P2P is off. Repress this with NCCL_IGNORE_DISABLED_P2P=1.\n"
    assert read_environ(said, "x") is None
    found = read_environ("NCCL_IB_HCA=mlx5_0 python3 train.py\n" + said, "x")
    assert found is not None
    assert found.facts["environ"] == {"NCCL_IB_HCA": "mlx5_0"}
