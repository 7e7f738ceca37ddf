"""`nodeagentctl exec`: CPUs and memory policy of a program that is about to start, for real.

Nodes that are hidden, and pages on the other node, are in tests/vm/test_memory.py.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.cli.nodes import check_nodes, check_room
from nodeagent.errors import ActError
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.topology import Hugepages, NodeKind, NumaNode

Run = Callable[..., subprocess.CompletedProcess[str]]
GIB = 1 << 30


@pytest.fixture
def run(bin_dir: Path) -> Run:
    def call(*args: str) -> subprocess.CompletedProcess[str]:
        command = [str(bin_dir / "nodeagentctl"), *args]
        return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    return call


def workloads(folder: Path, *more: str) -> Path:
    """One shared workload, which fits on any machine."""
    path = folder / "w.toml"
    lines = ['name = "first"', "cpus = 1", 'sharing = "shared"', 'match = { comm = "none" }', *more]
    path.write_text("[[workload]]\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture
def last_cpu() -> str:
    return str(max(os.sched_getaffinity(0)))


def refused_here(done: subprocess.CompletedProcess[str]) -> bool:
    return "was refused" in done.stderr


SHOW = (
    "import mmap\nm=mmap.mmap(-1,8<<20,flags=mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS)\n"
    "for i in range(0,8<<20,4096): m[i]=1\n"
    "print(open('/proc/self/numa_maps').read())"
)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--mems", "0"), "bind:0"),
        (("--mems", "0", "--policy", "preferred"), "prefer:0"),
        (("--mems", "0", "--policy", "interleave"), "interleave:0"),
    ],
)
def test_cpus_and_policy_survive_exec_and_hold_for_its_pages(
    run: Run, last_cpu: str, options: tuple[str, ...], word: str, bin_dir: Path
) -> None:
    python = str(bin_dir / "python")
    script = f"import os\nprint(sorted(os.sched_getaffinity(0)))\n{SHOW}"
    done = run("exec", "--cpus", last_cpu, *options, "--", python, "-c", script)
    if refused_here(done):
        pytest.skip("set_mempolicy is not allowed here")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"[{last_cpu}]")
    pages = 0
    for line in done.stdout.splitlines()[1:]:
        words = line.split()
        if len(words) > 1 and "file=" not in line and "anon=" in line:
            assert word in words[1] or words[1] == "default", line
            if words[1].startswith(word.partition(":")[0]):
                pages += sum(int(w[3:]) for w in words if w.startswith("N0="))
    assert pages >= 2048


def test_weighted_interleave_is_had_or_said(run: Run) -> None:
    done = run("exec", "--mems", "0", "--policy", "weighted-interleave", "--", "true")
    assert done.returncode in (0, 3)
    if done.returncode == 3 and not refused_here(done):
        assert "this kernel does not know the memory policy weighted-interleave" in done.stderr


def test_a_workload_goes_where_the_plan_says(run: Run, tmp_path: Path) -> None:
    file = workloads(tmp_path)
    plan = json.loads(run("-o", "json", "place", "plan", "--workloads", str(file)).stdout)
    wanted = next(p["cpus"] for p in plan["placements"] if p["workload"] == "first")
    options = ("--workload", "first", "--workloads", str(file))
    done = run("exec", *options, "--", "grep", "Cpus_allowed_list", "/proc/self/status")
    if refused_here(done):
        pytest.skip("set_mempolicy is not allowed here")
    assert done.returncode == 0 and done.stdout.split()[-1] == wanted


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("--mems", "999", "--", "true"), 3, "NUMA node 999 is not there: this machine has node"),
        (("--mems", "0,999", "--", "true"), 3, "NUMA node 999 is not there"),
        (("--mems", "", "--", "true"), 3, "no NUMA node is named"),
        (("--cpus", "8000", "--", "true"), 3, "none of CPU 8000"),
        (("--cpus", "0,8000", "--", "true"), 3, "CPU 8000 is offline"),
        (("--cpus", "3-1", "--", "true"), 64, "--cpus: saw '3-1'"),
        (("--mems", "0", "--", "/no/such"), 127, "/no/such: not found"),
        (("--mems", "0", "--", "/etc"), 126, "/etc: Permission denied"),
        (("true",), 64, "changes nothing"),
        (("--mems", "0"), 64, "Missing argument"),
        (("--workload", "none", "--", "true"), 64, "has no workload 'none' (it has: first)"),
    ],
)
def test_it_is_never_started_elsewhere(
    run: Run, args: tuple[str, ...], code: int, words: str, tmp_path: Path
) -> None:
    if args[0] == "--workload":
        args = ("--workloads", str(workloads(tmp_path)), *args)
    done = run("exec", *args)
    assert done.returncode == code, done.stderr
    assert words in done.stderr and "remedy:" in done.stderr


def node(number: int, kind: NodeKind, *, available: int | None = GIB, pages: int = 0) -> NumaNode:
    pools = (Hugepages(size_bytes=2 << 20, total=pages, free=pages),) if pages else ()
    return NumaNode(
        id=number,
        cpus=CpuSet(),
        memory_bytes=4 * GIB,
        distances=(),
        kind=kind,
        hugepages=pools,
        memory_available_bytes=available,
    )


MACHINE = (
    node(0, NodeKind.CPU_MEMORY),
    node(1, NodeKind.CPU),
    node(2, NodeKind.MEMORY),
    node(3, NodeKind.GPU_MEMORY),
    node(4, NodeKind.EMPTY),
)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("1", "NUMA node 1 has no memory"),
        ("0,4", "NUMA node 4 has no memory"),
        ("3", "NUMA node 3 is a GPU's own memory"),
        ("5", "NUMA node 5 is not there: this machine has node 0-4"),
        ("2", "NUMA node 2 is hidden by the cpuset of this process, which may have memory of node"),
        ("", "no NUMA node is named"),
    ],
)
def test_a_node_that_gives_no_memory_is_an_error(wanted: str, words: str) -> None:
    with pytest.raises(ActError, match=words):
        check_nodes(CpuSet.parse(wanted), MACHINE, CpuSet.of([0]))


def test_a_node_of_memory_only_is_as_good_as_another() -> None:
    check_nodes(CpuSet.of([0, 2]), MACHINE, CpuSet.of([0, 2]))
    check_nodes(CpuSet.of([2]), MACHINE, None)
    # A kernel without NUMA has the one node.
    check_nodes(CpuSet.of([0]), (), None)
    with pytest.raises(ActError, match="node 1 is not there"):
        check_nodes(CpuSet.of([1]), (), None)


def test_memory_that_is_not_free_is_refused_with_figures() -> None:
    here = (node(0, NodeKind.CPU_MEMORY), node(1, NodeKind.CPU_MEMORY, available=3 * GIB))
    both = CpuSet.of([0, 1])
    check_room("big", 4 * GIB, (), both, here)
    with pytest.raises(ActError, match=r"node 1 has 3\.0 GiB free or reclaimable, and .* 4\.0 GiB"):
        check_room("big", 4 * GIB, (), CpuSet.of([1]), here)
    # What is not told is not held against it.
    check_room("big", 9 * GIB, (), CpuSet.of([0]), (node(0, NodeKind.CPU_MEMORY, available=None),))


def test_huge_pages_that_are_not_free_are_refused_with_figures() -> None:
    here = (node(0, NodeKind.CPU_MEMORY, pages=4),)
    check_room("big", 0, ((2 << 20, 8 << 20),), CpuSet.of([0]), here)
    with pytest.raises(ActError, match=r"has 4 free huge pages of 2\.0 MiB, .* wants 5"):
        check_room("big", 0, ((2 << 20, (8 << 20) + 1),), CpuSet.of([0]), here)


def test_numas_own_library_reads_the_same(run: Run, bin_dir: Path) -> None:
    """`numa` as a second opinion: what it calls bound is what exec was told."""
    pytest.importorskip("numa", reason="the optional package numa is not installed (extra 'numa')")
    script = "import numa; print(sorted(numa.get_membind()), numa.get_preferred())"
    python = str(bin_dir / "python")
    done = run("exec", "--mems", "0", "--", python, "-c", script)
    if refused_here(done):
        pytest.skip("set_mempolicy is not allowed here")
    assert done.returncode == 0 and done.stdout.startswith("[0]"), done.stderr
    turns = run(
        *("exec", "--mems", "0", "--policy", "interleave", "--", python, "-c"),
        "import numa; print(sorted(numa.get_interleave_mask()))",
    )
    assert turns.stdout.strip() == "[0]", turns.stderr
