"""Reading and judging a machine: a two-socket 8-GPU server and one of 1,024 PUs, as recorded."""

from __future__ import annotations

import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent.parent))

from row import Row, alternating, cpu_ns, median_of

from nodeagent.check.judge import judge
from nodeagent.check.policy import Policy
from nodeagent.discover.capture import render
from nodeagent.discover.procs import Processes
from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot
from tests.hosts.generate import write_tree
from tests.hosts.servers import giant, two_socket_8gpu
from tests.hosts.tree import Table

LSTOPO = "lstopo-no-graphics"
CLI = pathlib.Path(sys.executable).with_name("nodeagentctl")


def whole(machine: pathlib.Path) -> float:
    """Milliseconds to read and judge a recorded machine."""
    start = time.perf_counter_ns()
    with Root.open(str(machine)) as root:
        judge(read_snapshot(root), Policy(), now_ns=0)
    return (time.perf_counter_ns() - start) / 1e6


def directory(tree: pathlib.Path) -> float:
    """Milliseconds to read a machine that lies there as files."""
    start = time.perf_counter_ns()
    with Root.open(str(tree)) as root:
        read_snapshot(root)
    return (time.perf_counter_ns() - start) / 1e6


def lstopo(tree: pathlib.Path) -> float:
    """Milliseconds of hwloc's reader, which writes XML."""
    env = {**os.environ, "HWLOC_FSROOT": str(tree), "HWLOC_THISSYSTEM": "0"}
    start = time.perf_counter_ns()
    subprocess.run([LSTOPO, "--of", "xml", "-"], env=env, check=True, capture_output=True)
    return (time.perf_counter_ns() - start) / 1e6


# A process begins with the peak of the one that started it (fs/exec.c, setmax_mm_hiwater_rss):
# the benchmark's own would count, so a small one starts the command.
RUN = """
import os, sys, time
quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
start = time.perf_counter_ns()
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
_, status, used = os.wait4(pid, 0)
print((time.perf_counter_ns() - start) / 1e6, used.ru_maxrss / 1024)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def command(machine: pathlib.Path) -> tuple[float, float]:
    """(milliseconds, peak MB) of `topology check` as a person runs it."""
    argv = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        RUN,
        str(CLI),
        "--host",
        str(machine),
        "topology",
        "check",
    ]
    done = subprocess.run(argv, capture_output=True, text=True)
    # 0 to 3 are verdicts; more, or a complaint, is a fault, and its time is worth nothing.
    assert done.returncode <= 3 and not done.stderr, done.stderr
    took, peak = map(float, done.stdout.split())
    return took, peak


def files_row(name: str, tree: pathlib.Path, runs: int) -> Row:
    """The same tree of files, read by us and by lstopo in turn."""
    if shutil.which(LSTOPO) is None:
        return Row(
            name=name,
            value=median_of(lambda: directory(tree), runs),
            unit="ms",
            note="no peer: lstopo (hwloc-nox) is not installed",
        )
    ours, theirs = alternating(lambda: directory(tree), lambda: lstopo(tree), runs)
    return Row(
        name=name,
        value=ours,
        unit="ms",
        peer="lstopo --of xml (a process of C)",
        peer_value=theirs,
        note="the same tree as files; we also read IRQs, queues, settings and links",
    )


def recorded_rows(
    name: str, table: Table, folder: pathlib.Path, runs: int, *, limit_ms: int, note: str
) -> Iterable[Row]:
    """A recorded machine: in process, as a command, its memory, and as files beside lstopo."""
    capture = folder / f"{name}machine.capture"
    capture.write_text(render(table))
    tree = write_tree(table, folder / f"{name}tree")
    yield Row(
        name=f"discover.{name}capture_and_check",
        value=median_of(lambda: whole(capture), runs),
        unit="ms",
        target=f"<= {limit_ms}",
        note=f"{note}; in process",
    )
    ran = [command(capture) for _ in range(runs + 1)][1:]
    yield Row(
        name=f"discover.{name}command",
        value=statistics.median(ms for ms, _ in ran),
        unit="ms",
        target="<= 400" if not name else "<= 1500",
        note="nodeagentctl --host CAPTURE topology check",
    )
    yield Row(
        name=f"discover.{name}command_memory",
        value=max(mb for _, mb in ran),
        unit="MB",
        target="<= 80",
        note="the same command's peak resident set",
    )
    yield files_row(f"discover.{name}directory", tree, runs)


def rows(quick: bool) -> Iterable[Row]:
    """Recorded machines, two sizes, beside lstopo; the live machine; processes."""
    runs = 5 if quick else 15
    with tempfile.TemporaryDirectory(prefix="nodeagent-bench-discover-") as name:
        folder = pathlib.Path(name)
        yield from recorded_rows(
            "",
            two_socket_8gpu(cores=56, irqs=64, uncore=80),
            folder,
            runs,
            limit_ms=150,
            note="224 PUs, 8 GPUs, 227 PCI functions, 1033 IRQs",
        )
        yield from recorded_rows(
            "large_",
            giant(),
            folder,
            runs,
            limit_ms=1500,
            note="1,024 PUs, 64 NUMA nodes, 16 GPUs, 128 PCI functions, 528 IRQs",
        )

    def live() -> float:
        start = time.perf_counter_ns()
        with Root.live() as root:
            read_snapshot(root)
        return (time.perf_counter_ns() - start) / 1e6

    yield Row(name="discover.live", value=median_of(live, runs), unit="ms", note="this machine")
    with Root.live() as root:
        processes = Processes(root)
        children = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
        pids = [c.pid for c in children]
        try:
            processes.scan()
            turns = 200
            yield Row(
                name="discover.processes_reread",
                value=median_of(
                    lambda: (
                        cpu_ns(lambda: [processes.read(pids) for _ in range(turns)]) / turns / 1e6
                    ),
                    runs,
                ),
                unit="ms",
                target="<= 1",
                note="CPU of re-reading three watched processes",
            )
        finally:
            processes.close()
            for child in children:
                child.kill()
                child.wait()
