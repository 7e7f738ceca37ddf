"""Known engines: how their processes and threads are called, and which of them do the work.

One table for discovery (which processes matter on a node), for workload files (`engine = "vllm"`
stands for a match and names of roles) and for people (what a thread is). A title is what
setproctitle(3) wrote over the command line; a thread's name has at most 15 bytes, and a thread
that was given none has its creator's: an OpenMP pool is called like its process's main thread.

Source of each: named beside it, as project and file. Names that a library gives its threads:
libcuda (`cuda-EvtHandlr`, `cuda` and 11 digits; as ps shows them), PyTorch c10::setThreadName
(`pt_nccl_watchdg`, `pt_nccl_heartbt`, `pt_tcpstore_uv`, `pt_autograd_0`, ...; torch/csrc), NCCL
src/misc/debug (`NCCL Progress 0`, ...; only with NCCL_SET_THREAD_NAME=1), tokio
runtime/builder.rs (`tokio-rt-worker`; earlier `tokio-runtime-w`, cut to 15 bytes).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nodeagent.model.placement import ProcessState, Role, ThreadState
from nodeagent.place.match import fits, like

HELPERS = "cuda-EvtHandlr|cuda[0-9]*|pt_nccl_*|pt_tcpstore*|pt_gloo*"
"""Threads that wait: event handler and poll thread of CUDA, watchdogs and stores of PyTorch."""
TOKIO = "tokio-rt-worker|tokio-runtime-w"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some threads of an engine, as a role that a workload may give PUs to."""

    name: str
    what: str
    title: str | None = None
    comm: str | None = None
    main: bool | None = None
    cpus: int = 0
    """PUs it has unless the workload says otherwise; 0: it shares the rest's."""
    from_cpus: int = 0
    """It has them only in a workload of so many PUs or more."""

    def role(self, cpus: int) -> Role:
        """The same as a role with so many PUs."""
        return Role(name=self.name, cpus=cpus, title=self.title, comm=self.comm, main=self.main)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A program that this node is for, or that moves such programs."""

    name: str
    found: re.Pattern[str]
    """Searched in "comm title": any process of it. The first engine that fits a process counts."""
    kind: str | None = None
    """Kind of a workload that names it; None: it cannot be a workload's engine."""
    cmdline: str | None = None
    """Regular expression for the processes that do the work: a workload's default match. None: a
    library, whose processes are called as their program likes."""
    who: str = ""
    """The same for people."""
    parts: tuple[Part, ...] = ()
    """In order of choice."""
    source: str = ""


_HELPERS = Part(
    name="helpers",
    what="CUDA's event threads, PyTorch's watchdogs and stores: they wait",
    comm=HELPERS,
    cpus=1,
    from_cpus=4,
)
_NCCL = Part(name="nccl", what="NCCL's proxy threads: they poll", comm="NCCL *")
_POOL = Part(name="pool", what="OpenMP and other worker threads", main=False)
_MAIN = Part(name="main", what="the main thread", main=True)


def _program(names: str) -> str:
    """A command line that runs one of these programs, also through a Python interpreter."""
    return rf"^(\S*python[\d.]*( -\S+)* )?(\S*/)?({names})( |$)"


def _engine(name: str, found: str, **more: object) -> Engine:
    return Engine(name=name, found=re.compile(found), **more)  # type: ignore[arg-type]


ENGINES: tuple[Engine, ...] = (
    _engine(
        "feeder",
        r"^nodeagent-feed|nodeagent-feeder(\s|$)",
        kind="feeder",
        cmdline=_program("nodeagent-feeder"),
        who="program `nodeagent-feeder`",
        parts=(
            Part(
                name="poll",
                what="the thread that polls the feed and writes the ring",
                main=False,
                cpus=1,
                from_cpus=2,
            ),
            Part(name="control", what="the main thread: door, statistics, signals", main=True),
        ),
        source="nodeagent/feed/process.py",
    ),
    _engine(
        "vllm",
        r"(?i)^vllm|[/ ]vllm( |$)|vllm\.entrypoints|VLLM::",
        kind="llm",
        cmdline=r"^VLLM::(EngineCore|Worker)",
        who="titles `VLLM::EngineCore*`, `VLLM::Worker*`",
        parts=(
            _HELPERS,
            _NCCL,
            Part(
                name="engine",
                what="EngineCore's main thread: scheduler, and kernel launches without workers",
                title="VLLM::EngineCore*",
                main=True,
            ),
            Part(
                name="worker",
                what="a worker's main thread: launches kernels",
                title="VLLM::Worker*",
                main=True,
            ),
            Part(
                name="api",
                what="API servers and the coordinator of data parallelism",
                title="VLLM::APIServer*|VLLM::DPCoordinator*|*vllm serve *|*vllm.entrypoints.*",
            ),
            _POOL,
        ),
        source="vllm-project/vllm vllm/utils/system_utils.py set_process_title, "
        "v1/engine/core.py, v1/executor/multiproc_executor.py (Worker_DPn_PPn_TPn_EPn), "
        "entrypoints/cli/serve.py (APIServer_n); the prefix is VLLM_PROCESS_NAME_PREFIX",
    ),
    _engine(
        "sglang",
        r"sglang::|sglang\.launch_server|sglang\.srt",
        kind="llm",
        cmdline=r"^sglang::scheduler",
        who="titles `sglang::scheduler*`",
        parts=(
            _HELPERS,
            _NCCL,
            Part(
                name="scheduler",
                what="a scheduler's main thread: batches and launches kernels",
                title="sglang::scheduler*",
                main=True,
            ),
            Part(
                name="tokens",
                what="detokenizer, tokenizer workers, controller and launcher",
                title="sglang::detokenizer*|sglang::tokenizer_worker*|"
                "sglang::data_parallel_controller*|*sglang.launch_server*",
            ),
            _POOL,
        ),
        source="sgl-project/sglang python/sglang/srt/managers: scheduler.py (scheduler_DPn_TPn), "
        "detokenizer_manager.py, multi_tokenizer_mixin.py, data_parallel_controller.py",
    ),
    _engine(
        "tensorrt-llm",
        r"trtllm-(serve|llmapi)|tensorrt_llm",
        kind="llm",
        cmdline=_program("trtllm-(serve|llmapi-launch)"),
        who="programs `trtllm-serve`, `trtllm-llmapi-launch`",
        parts=(_HELPERS, _NCCL, _MAIN, _POOL),
        source="NVIDIA/TensorRT-LLM pyproject: console scripts",
    ),
    _engine(
        "triton",
        r"^tritonserver|[/ ]tritonserver( |$)|triton_python_backend_stub",
        kind="vision",
        cmdline=_program("tritonserver|triton_python_backend_stub"),
        who="programs `tritonserver`, `triton_python_backend_stub`",
        parts=(
            _HELPERS,
            Part(
                name="stub",
                what="Python back-end processes, children of the server",
                title="*triton_python_backend_stub *",
            ),
            _MAIN,
            _POOL,
        ),
        source="triton-inference-server/server; python_backend src/stub_launcher.cc",
    ),
    _engine(
        "tgi",
        r"text-generation-(launcher|router|server)",
        kind="llm",
        cmdline=_program("text-generation-server"),
        who="program `text-generation-server`",
        parts=(_HELPERS, _NCCL, _MAIN, _POOL),
        source="huggingface/text-generation-inference launcher/src/main.rs",
    ),
    _engine(
        "llama.cpp",
        r"^llama-server|[/ ]llama-server( |$)",
        kind="llm",
        cmdline=_program("llama-server"),
        who="program `llama-server`",
        parts=(_HELPERS, _MAIN, _POOL),
        source="ggml-org/llama.cpp tools/server; ggml names none of its threads",
    ),
    _engine(
        "ollama",
        r"^ollama",
        kind="llm",
        cmdline=_program("ollama runner|ollama_llama_server"),
        who="programs `ollama runner`, `ollama_llama_server`",
        parts=(_HELPERS, _MAIN, _POOL),
        source="ollama/ollama llm/server.go: `ollama runner --model`, a child of `ollama serve`; "
        "ollama_llama_server before 0.5.8",
    ),
    _engine(
        "lmdeploy",
        r"[/ ]lmdeploy( |$)|lmdeploy\.serve",
        kind="llm",
        cmdline=_program("lmdeploy"),
        who="program `lmdeploy`",
        parts=(_HELPERS, _NCCL, _MAIN, _POOL),
        source="InternLM/lmdeploy lmdeploy/cli",
    ),
    _engine("torchrun", r"[/ ]torchrun( |$)|torch\.distributed\.(run|launch)"),
    _engine("nccl-tests", r"(all_reduce|all_gather|alltoall|reduce_scatter|sendrecv)_perf"),
    _engine("ray", r"^ray::|^raylet|^gcs_server"),
    _engine(
        "milvus",
        r"^milvus",
        kind="vector-index",
        cmdline=_program("milvus run"),
        who="program `milvus run`",
        parts=(
            Part(
                name="search",
                what="the executor that searches segments",
                comm="MILVUS_FUTURE_C*",
            ),
            Part(name="rest", what="Go's threads and the index library's"),
        ),
        source="milvus-io/milvus internal/core/src/futures/Executor.cpp",
    ),
    _engine(
        "qdrant",
        r"^qdrant",
        kind="vector-index",
        cmdline=_program("qdrant"),
        who="program `qdrant`",
        parts=(
            Part(name="search", what="searches", comm="search-*"),
            Part(name="update", what="writes and optimizes segments", comm="update-*|optimize-*"),
            Part(name="general", what="requests of the API", comm="general-*|actix-*|" + TOKIO),
            _MAIN,
        ),
        source="qdrant/qdrant src/common/helpers.rs",
    ),
    _engine(
        "faiss",
        r"^faiss-",
        kind="vector-index",
        who="a library: `match` is required",
        parts=(_MAIN, _POOL),
        source="facebookresearch/faiss: OpenMP, whose threads have their creator's name",
    ),
    _engine("vector-index", r"^(weaviate|vald)"),
    _engine("irqbalance", r"^irqbalance( |$)"),
    _engine("tuned", r"^tuned( |$)|[/ ]tuned( |$)"),
    _engine("numad", r"^numad( |$)"),
    _engine(
        "nvidia", r"^nvidia-(persist|fabric|imex)|^nv-(fabricmanager|hostengine)|^nv-hostengine"
    ),
    _engine("dcgm", r"^dcgm-exporter"),
)

WORKLOAD_ENGINES = tuple(e.name for e in ENGINES if e.kind is not None)
"""Names that `engine` of a workload takes."""

_THREADS = (
    (HELPERS, "helpers"),
    ("pt_*", "torch"),
    ("NCCL *", "nccl"),
    (TOKIO, "tokio"),
)


def table() -> str:
    """The engines that a workload may name, as docs/workloads.md shows them."""
    rows = ["| engine | its processes | kind | roles |", "|---|---|---|---|"]
    for e in ENGINES:
        if e.kind is not None:
            roles = (
                f"`{p.name}`" + (f" ({p.cpus} from {p.from_cpus})" if p.cpus else "")
                for p in e.parts
            )
            rows.append(f"| `{e.name}` | {e.who} | {e.kind} | {', '.join(roles)} |")
    return "\n".join(rows) + "\n"


def engine_of(comm: str, title: str) -> Engine | None:
    """The engine that a process belongs to, by its name and command line; None: none known."""
    text = f"{comm} {title}"
    return next((e for e in ENGINES if e.found.search(text)), None)


def engine_named(name: str) -> Engine | None:
    """The engine that a workload may name so."""
    return next((e for e in ENGINES if e.name == name and e.kind is not None), None)


def usual_roles(engine: Engine, cpus: int) -> tuple[Role, ...]:
    """The roles with PUs of their own that an engine has in a workload of so many PUs."""
    return tuple(p.role(p.cpus) for p in engine.parts if p.cpus and cpus >= p.from_cpus)


def part_of(process: ProcessState, thread: ThreadState) -> str | None:
    """What a thread is within its engine, for people; None: nothing tells."""
    engine = engine_of(process.comm, process.title)
    for part in engine.parts if engine is not None else ():
        if fits(part.role(1), process, thread):
            return part.name
    return next((name for names, name in _THREADS if like(thread.comm, names)), None)
