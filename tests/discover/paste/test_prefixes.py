"""Tables with what collectors put before each line."""

from __future__ import annotations

import pytest

from nodeagent.discover.paste.part import Text
from nodeagent.discover.paste.plain import bare
from nodeagent.discover.paste.read import read_paste

MATRIX = """\
\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tSYS\tNODE\t0-31\t0
GPU1\tSYS\t X \tSYS\t32-63\t1
mlx5_0\tNODE\tSYS\t X \t\t
"""


@pytest.mark.parametrize(
    "prefix",
    [
        "node17: ",
        "gpu-03.cluster.local: ",
        "logs/run.out:",
        "logs/run.out:{number}:",
        "{number:6d}\t",
        "2026-05-01T10:00:0{number}Z n1 run[33]: ",
        "2026-05-01 10:00:0{number},123 - topo - INFO - ",
        "[2026-05-01 10:00:0{number}] ",
        "I0501 10:00:0{number}.123456    33 topo.cc:33] ",
        "jobs/a.sh:# ",
    ],
)
def test_a_matrix_under_each_prefix(prefix: str) -> None:
    lines = [prefix.format(number=i) + x for i, x in enumerate(MATRIX.splitlines(), 1)]
    facts = read_paste([Text(name="a.txt", text="\n".join(lines) + "\n")]).facts
    assert facts["gpus"] == ["GPU0", "GPU1"]
    assert facts["cpu_affinity"] == {"GPU0": "0-31", "GPU1": "32-63"}
    assert facts["links"] == {
        "GPU0-GPU1": "SYS", "GPU0-mlx5_0": "NODE", "GPU1-GPU0": "SYS", "GPU1-mlx5_0": "SYS",
        "mlx5_0-GPU0": "NODE", "mlx5_0-GPU1": "SYS",
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "a.service: one\na.service: two\na.service: three",
        "n1: GPU0 \nn2: GPU0 \nn1: GPU0 ",
        "/proc/irq/1/x:1\n/proc/irq/1/x:2\n/proc/irq/1/x:3",
        "1\t5\n2\t6\n3\t7",
    ],
)
def test_what_a_line_is_about_stays(text: str) -> None:
    assert bare(text) == text
