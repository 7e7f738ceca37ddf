"""Environment variables as people paste them: `env`, `export`, docker's -e, Kubernetes' name and
value, the last part of vLLM's collect_env.

Source: CUDA C++ programming guide, CUDA environment variables; NCCL user guide, environment
variables; vllm/envs.py.
"""

from __future__ import annotations

import re

from nodeagent.discover.paste.part import Part
from nodeagent.model.gpu_report import Environ

_FAMILY = re.compile(
    r"(?:CUDA|NVIDIA|NCCL|RCCL|HIP|ROCR|HSA|GPU|VLLM|SGLANG|OMP|KMP|GOMP|MKL|OPENBLAS|TORCH|PYTORCH"
    r"|UCX|GLOO|NVSHMEM|TP|RAY|FI|MPI|OMPI|PMI|SLURM|HF|LD|TOKENIZERS)_[A-Z0-9_]+"
    r"|LOCAL_RANK|RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|LD_LIBRARY_PATH"
)
_ASKED = re.compile(
    r"(?:CUDA|NVIDIA|NCCL|RCCL|HIP|ROCR|HSA|GPU_DEVICE|VLLM|SGLANG|OMP|KMP|GOMP|TORCH|PYTORCH|UCX"
    r"|GLOO|NVSHMEM)_[A-Z0-9_]+"
)
"""Names that make a text an environment: the others are read beside them only."""
_LINE = re.compile(
    r"^\s*(?:export\s+|(?:-e|--env)[ =]|-\s+|ENV\s+|Environment=|set\s+)?"
    r"[\"']?([A-Z][A-Z0-9_]{1,60})\s?=\s?(.{0,4000}?)\s*\\?\s*$"
)
_NAME = re.compile(r"^\s*-?\s*name:\s*[\"']?([A-Z][A-Z0-9_]{1,60})[\"']?\s*$")
_VALUE = re.compile(r"^\s*value:\s*(.{0,4000}?)\s*$")
_COLON = re.compile(r"^\s*([A-Z][A-Z0-9_]{1,60}):\s(.{0,4000}?)\s*$")
_NCCL_LOG = re.compile(r"\bNCCL (?:INFO|WARN)\b")
_INLINE = re.compile(r"(?<![\w.])([A-Z][A-Z0-9]{1,20}_[A-Z0-9_]{1,40})=(\"[^\"]*\"|'[^']*'|\S*)")


def read_environ(text: str, name: str) -> Part | None:
    """The variables of a text; None when it has none of the families that are judged."""
    values: dict[str, str] = {}
    lines: dict[str, int] = {}
    named: str | None = None
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw[:5000]
        found: list[tuple[str, str]] = []
        if (m := _LINE.match(line)) and _FAMILY.fullmatch(m[1]) and not _words(m[2]):
            found = [(m[1], m[2])]
        elif m := _NAME.match(line):
            named = m[1]
            continue
        elif named and (m := _VALUE.match(line)):
            found = [(named, m[1])]
        elif (m := _COLON.match(line)) and _ASKED.fullmatch(m[1]):
            found = [(m[1], m[2])]
        elif not _NCCL_LOG.search(line):
            # NCCL's own sentences name variables that somebody could set.
            found = [(k, x) for k, x in _INLINE.findall(line) if _ASKED.fullmatch(k)]
        named = None
        for key, value in found:
            # As in a shell, the last one counts.
            values[key] = value.strip().strip("\"'")
            lines[key] = number
    if not any(_ASKED.fullmatch(key) for key in values):
        return None
    shown = {k: values[k] for k in values if _FAMILY.fullmatch(k)}
    return Part(
        kind="environment",
        facts={"environ": shown},
        reports=(Environ(source=name, values=shown, lines=lines),),
    )


def _words(value: str) -> bool:
    """Whether several variables, or a command, stand behind the first."""
    return value[:1] not in "\"'" and re.search(r"\s\S*\w=|\s[a-z]", value) is not None
