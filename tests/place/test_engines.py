"""Known engines: the titles and thread names that they are seen with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nodeagent.model.cpuset import CpuSet
from nodeagent.model.placement import ProcessState, ThreadState
from nodeagent.place.engines import (
    ENGINES,
    WORKLOAD_ENGINES,
    Engine,
    engine_named,
    engine_of,
    part_of,
    usual_roles,
)
from nodeagent.place.match import matches
from nodeagent.place.workloads import parse


def process(comm: str, title: str, *threads: str) -> ProcessState:
    """Its main thread has its name, the others those given."""
    names = (comm, *threads)
    return ProcessState(
        pid=100,
        start_time=1,
        comm=comm,
        title=title,
        cgroup="/",
        threads=tuple(
            ThreadState(tid=100 + i, comm=c[:15], cpus=CpuSet()) for i, c in enumerate(names)
        ),
    )


SEEN = [
    # (comm, title, engine, does the work)
    ("VLLM::EngineCor", "VLLM::EngineCore", "vllm", True),
    ("VLLM::EngineCor", "VLLM::EngineCore_DP1", "vllm", True),
    ("VLLM::Worker", "VLLM::Worker", "vllm", True),
    ("VLLM::Worker_TP", "VLLM::Worker_TP0", "vllm", True),
    ("VLLM::Worker_DP", "VLLM::Worker_DP1_PP0_TP3_EP7", "vllm", True),
    ("VLLM::APIServer", "VLLM::APIServer_2", "vllm", False),
    ("VLLM::DPCoordin", "VLLM::DPCoordinator", "vllm", False),
    ("vllm", "/opt/venv/bin/python3 /opt/venv/bin/vllm serve m -tp 4", "vllm", False),
    ("sglang::schedul", "sglang::scheduler_TP0", "sglang", True),
    ("sglang::schedul", "sglang::scheduler_DP1_TP3", "sglang", True),
    ("sglang::detoken", "sglang::detokenizer", "sglang", False),
    ("python3", "python3 -m sglang.launch_server --tp 8", "sglang", False),
    ("tritonserver", "tritonserver --model-repository=/models", "triton", True),
    ("tritonserver", "/opt/tritonserver/bin/tritonserver --model-store=/m", "triton", True),
    (
        "triton_python_b",
        "/opt/tritonserver/backends/python/triton_python_backend_stub /models/a/1/model.py x",
        "triton",
        True,
    ),
    ("ollama", "/usr/local/bin/ollama serve", "ollama", False),
    ("ollama", "/usr/local/bin/ollama runner --model /b/sha256-a --port 41", "ollama", True),
    ("ollama_llama_se", "/tmp/o/ollama_llama_server --model x", "ollama", True),
    ("llama-server", "./build/bin/llama-server -m model.gguf -ngl 99", "llama.cpp", True),
    ("trtllm-serve", "/usr/bin/python3 /usr/local/bin/trtllm-serve m", "tensorrt-llm", True),
    ("text-generation", "/usr/bin/python3 /opt/text-generation-server serve m", "tgi", True),
    ("milvus", "milvus run standalone", "milvus", True),
    ("milvus", "/milvus/bin/milvus run querynode", "milvus", True),
    ("qdrant", "./qdrant", "qdrant", True),
    ("nodeagent-feede", "/usr/bin/python3 /usr/bin/nodeagent-feeder itch", "feeder", True),
    ("nodeagent-feede", "/opt/v/bin/python3 -I /opt/v/bin/nodeagent-feeder x", "feeder", True),
    ("bash", "bash -c while ! pgrep tritonserver; do sleep 1; done", None, False),
    ("vim", "vim qdrant.yaml", None, False),
]


@pytest.mark.parametrize(("comm", "title", "name", "works"), SEEN)
def test_titles(comm: str, title: str, name: str | None, works: bool) -> None:
    one = process(comm, title)
    found = engine_of(comm, title)
    assert (found.name if found is not None else None) == name
    claiming = [n for n in WORKLOAD_ENGINES if n != "faiss" and _claims(n, one)]
    assert claiming == ([name] if works else [])


def _claims(name: str, one: ProcessState) -> bool:
    (work,) = parse(f'[[workload]]\nname = "a"\ncpus = 1\nengine = "{name}"\n', "w")
    return matches(work.match, one)


@pytest.mark.parametrize(
    ("comm", "title", "threads"),
    [
        (
            "VLLM::EngineCor",
            "VLLM::EngineCore",
            {
                "VLLM::EngineCor": "pool",
                "cuda-EvtHandlr": "helpers",
                "cuda00001400006": "helpers",
                "pt_nccl_watchdg": "helpers",
                "pt_nccl_heartbt": "helpers",
                "pt_tcpstore_uv": "helpers",
                "NCCL Progress 0": "nccl",
                "python3": "pool",
            },
        ),
        (
            "qdrant",
            "./qdrant",
            {"search-0": "search", "update-1": "update", "general-2": "general"},
        ),
        ("milvus", "milvus run standalone", {"MILVUS_FUTURE_C": "search", "milvus": "rest"}),
        ("python3", "python3 index.py", {"cuda-EvtHandlr": "helpers", "pt_autograd_0": "torch"}),
        ("agent", "./agent", {"tokio-rt-worker": "tokio", "agent": None}),
        ("nodeagent-feede", "python3 /usr/bin/nodeagent-feeder x", {"nodeagent-feede": "poll"}),
    ],
)
def test_thread_names(comm: str, title: str, threads: dict[str, str | None]) -> None:
    one = process(comm, title, *threads)
    assert {t.comm: part_of(one, t) for t in one.threads[1:]} == threads


@pytest.mark.parametrize(
    ("title", "part"),
    [
        ("VLLM::EngineCore_DP0", "engine"),
        ("VLLM::Worker_TP1", "worker"),
        ("VLLM::APIServer_0", "api"),
        ("/opt/v/bin/python3 /opt/v/bin/vllm serve m", "api"),
        ("sglang::scheduler_TP0", "scheduler"),
        ("sglang::detokenizer", "tokens"),
    ],
)
def test_main_threads(title: str, part: str) -> None:
    one = process(title[:15], title)
    assert part_of(one, one.threads[0]) == part


@pytest.mark.parametrize("engine", [e for e in ENGINES if e.kind is not None], ids=lambda e: e.name)
def test_the_table_is_whole(engine: Engine) -> None:
    assert engine_named(engine.name) is engine and engine.source and engine.who
    assert engine.parts and len({p.name for p in engine.parts}) == len(engine.parts)
    if engine.cmdline is not None:
        re.compile(engine.cmdline)
    for part in engine.parts:
        assert part.what and part.from_cpus >= 2 * part.cpus
    for cpus in range(1, 64):
        roles = usual_roles(engine, cpus)
        assert sum(r.cpus for r in roles) < cpus or not roles, "the rest has a PU"


def test_who_moves_others_is_no_workloads_engine() -> None:
    assert engine_named("irqbalance") is None and engine_of("irqbalance", "irqbalance") is not None
    assert "irqbalance" not in WORKLOAD_ENGINES


def test_our_feeder_is_called_as_the_table_says() -> None:
    scripts = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '\nnodeagent-feeder = "nodeagent.feed.feeder:main"' in scripts
