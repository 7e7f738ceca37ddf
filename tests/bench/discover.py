"""Reading and judging a machine: a two-socket 8-GPU server from its capture, in process."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent))

from row import Row, alternating, cpu_ns, median_of

from nodeagent.check.judge import judge
from nodeagent.check.policy import Policy
from nodeagent.discover.capture import render
from nodeagent.discover.procs import Processes
from nodeagent.discover.root import Root
from nodeagent.discover.snapshot import read_snapshot
from tests.hosts.generate import two_socket_8gpu, write_tree


def rows(quick: bool) -> Iterable[Row]:
    """Discover (and check) in process; lstopo on the same tree; the live machine; processes."""
    runs = 5 if quick else 15
    table = two_socket_8gpu(cores=56, irqs=64, uncore=80)
    with tempfile.TemporaryDirectory(prefix="nodeagent-bench-discover-") as folder:
        capture = pathlib.Path(folder) / "machine.capture"
        capture.write_text(render(table))
        tree = write_tree(table, pathlib.Path(folder) / "root")

        def whole() -> float:
            start = time.perf_counter_ns()
            with Root.open(str(capture)) as root:
                judge(read_snapshot(root), Policy(), now_ns=0)
            return (time.perf_counter_ns() - start) / 1e6

        yield Row(
            name="discover.capture_and_check",
            value=median_of(whole, runs),
            unit="ms",
            target="<= 150",
            note="224 PUs, 8 GPUs, 227 PCI functions, 1033 IRQs; in process",
        )

        def directory() -> float:
            start = time.perf_counter_ns()
            with Root.open(str(tree)) as root:
                read_snapshot(root)
            return (time.perf_counter_ns() - start) / 1e6

        lstopo = shutil.which("lstopo-no-graphics")
        if lstopo is None:
            yield Row(
                name="discover.directory",
                value=median_of(directory, runs),
                unit="ms",
                note="no peer: lstopo (hwloc-nox) is not installed",
            )
        else:
            env = {**os.environ, "HWLOC_FSROOT": str(tree), "HWLOC_THISSYSTEM": "0"}

            def peer() -> float:
                start = time.perf_counter_ns()
                subprocess.run(
                    [lstopo, "--of", "xml", "-"], env=env, check=True, capture_output=True
                )
                return (time.perf_counter_ns() - start) / 1e6

            ours, theirs = alternating(directory, peer, runs)
            yield Row(
                name="discover.directory",
                value=ours,
                unit="ms",
                peer="lstopo --of xml (a process of C)",
                peer_value=theirs,
                note="the same tree as files; we also read IRQs, queues, settings and links",
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
