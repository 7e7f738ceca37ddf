"""What the eBPF probe costs: for each context switch, for each reading, and at the start.

A pipe ping-pong of two processes on one CPU, CPU time (never wall time), all variants in turn
within each round, each round beginning with the next one. Of each the quietest round counts: what
else runs on the machine only ever adds.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from row import Row

from nodeagent.errors import NodeagentError
from nodeagent.model.cpuset import CpuSet
from nodeagent.probe import serve
from nodeagent.probe.loader import BpfObject
from nodeagent.probe.runq import ProbeReader

HERE = pathlib.Path(__file__).resolve().parent
PEERS = HERE / "probe_peers"
BPF = HERE.parent.parent / "bpf"
PROGRAMS = ("sched_wakeup", "sched_switch")


def rows(quick: bool) -> Iterator[Row]:
    """Cost of each variant."""
    try:
        with BpfObject("selftest") as programs:
            programs.load()
    except NodeagentError as error:
        yield Row(name="probe.added_watched", value=None, unit="ns/switch", note=str(error))
        return
    tools = {tool: shutil.which(tool) for tool in ("clang", "cc")}
    if missing := [tool for tool, path in tools.items() if path is None]:
        yield Row(
            name="probe.added_watched",
            value=None,
            unit="ns/switch",
            note=f"{' and '.join(missing)} missing",
        )
        return
    with tempfile.TemporaryDirectory(prefix="nodeagent-bench-") as folder:
        yield from switches(pathlib.Path(folder), quick)
    yield from readings(quick)


def switches(folder: pathlib.Path, quick: bool) -> Iterator[Row]:
    """Nanoseconds a switch."""
    pingpong = folder / "pingpong"
    subprocess.run(["cc", "-O2", PEERS / "pingpong.c", "-o", pingpong], check=True)
    images = {name: compiled(folder, name) for name in ("empty", "hash")}
    cpu = max(os.sched_getaffinity(0))
    rounds, repeats = (20_000, 10) if quick else (20_000, 40)

    def measure(around: Callable[[list[int]], None]) -> float:
        child = subprocess.Popen(
            [pingpong, str(cpu), str(rounds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        around([int(word) for word in child.stdout.readline().split()])
        out, _ = child.communicate("\n")
        return float(out)

    def nothing(pids: list[int]) -> None:
        return

    def bare() -> float:
        return measure(nothing)

    def peer(name: str) -> float:
        with other(images[name], name):
            return measure(nothing)

    def ours(pids_too: bool, armed: bool = True) -> float:
        with our_own() as reader:
            if not armed:
                reader.arm(CpuSet.of(os.sched_getaffinity(0)) - CpuSet.of([cpu]))
            return measure(reader.watch if pids_too else nothing)

    def whole_cpu() -> float:
        with our_own() as reader:
            reader.watch_cpus(CpuSet.of([cpu]))
            return measure(nothing)

    variants: dict[str, Callable[[], float]] = {
        "bare": bare,
        "empty": lambda: peer("empty"),
        "gated": lambda: ours(False, armed=False),
        "unwatched": lambda: ours(False),
        "watched": lambda: ours(True),
        "cpu": whole_cpu,
        "hash": lambda: peer("hash"),
    }
    taken: dict[str, list[float]] = {name: [] for name in variants}
    bare()
    order = list(variants)
    for _ in range(repeats):
        order.append(order.pop(0))
        for name in order:
            taken[name].append(variants[name]())
    base = min(taken["bare"])
    added = {name: min(values) - base for name, values in taken.items()}
    yield Row(
        name="probe.switch_bare", value=base, unit="ns/switch", note="pipe ping-pong, CPU time"
    )
    for name, what, peer_name, target in (
        ("watched", "both processes watched", "hash", "<= 0.7x"),
        ("cpu", "their CPU watched", "hash", "<= 0.8x"),
        ("unwatched", "gate open, neither watched", "empty", None),
        ("gated", "CPU not armed", "empty", None),
    ):
        yield Row(
            name=f"probe.added_{name}",
            value=added[name],
            unit="ns/switch",
            target=target,
            peer={"hash": "CO-RE, hash map by tid", "empty": "two empty programs"}[peer_name],
            peer_value=added[peer_name],
            note=f"{what}; x{1 + added[name] / base:.3f} of bare",
        )


def readings(quick: bool) -> Iterator[Row]:
    """What we ourselves spend."""
    start = time.process_time()
    with our_own() as reader:
        loaded = time.process_time() - start
        pids = [int(p.name) for p in pathlib.Path("/proc").iterdir() if p.name.isdigit()][:16]
        reader.watch(pids)
        turns = 200 if quick else 1000
        start = time.process_time()
        for _ in range(turns):
            reader.watch(pids)
            reader.read()
        spent = (time.process_time() - start) / turns
    yield Row(
        name="probe.load",
        value=loaded * 1e3,
        unit="ms CPU",
        target="<= 150",
        note="trial loads, load, attach; once",
    )
    yield Row(
        name="probe.turn",
        value=spent * 1e6,
        unit="us CPU",
        target="<= 500",
        note=f"watch and read, {len(pids)} processes; 500 us a second is 0.05 % of a CPU",
    )


def compiled(folder: pathlib.Path, name: str) -> bytes:
    """A peer's object."""
    target = folder / f"{name}.o"
    subprocess.run(
        [
            *("clang", "-target", "bpf", "-mcpu=v3", "-g", "-O2", "-Wno-unused-parameter"),
            *(f"-I{BPF}", "-c", str(PEERS / f"{name}.bpf.c"), "-o", str(target)),
        ],
        check=True,
    )
    return target.read_bytes()


@contextmanager
def other(image: bytes, name: str) -> Iterator[None]:
    """A peer, attached."""
    with BpfObject(name, image) as programs:
        programs.load()
        for program in PROGRAMS:
            programs.attach(program)
        yield


@contextmanager
def our_own() -> Iterator[ProbeReader]:
    """Ours, attached."""
    description, fds = serve.load({"isolated": "full"})
    assert description["available"], description["reason"]
    reader = ProbeReader.from_fds(description, [os.dup(fd) for fd in fds])
    try:
        yield reader
    finally:
        reader.close()
        serve.unload()
