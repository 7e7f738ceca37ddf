"""The ring: what publishing costs, how fast and how far records travel, and what a reader that has
stopped costs the producer; beside rte_ring, iceoryx2, pipes, sockets and queues of the same run.

Two processes on two cores are measured in windows of some hundred microseconds to a millisecond;
a window in which either lost its core is told apart (c/pair.h). A hypervisor may move two virtual
CPUs under one last-level cache and apart again: then the hop falls to a third and rates rise
fourfold, ours and the peers' alike. So runs alternate, and ratios are taken within a pair of runs.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.queues import Queue

from row import Row, quantile

from nodeagent.client.reader import Reader
from nodeagent.model.feed import ReaderMode

HERE = pathlib.Path(__file__).resolve().parent
CORE = HERE.parent.parent / "nodeagent" / "native" / "core"
PEERS = HERE / "ring_peers"
PACED = 10_000_000
"""Records a second at which the age of the oldest record is taken."""
WHERE = "a long hop: the cores share no L3, 72 ns a line: docs/ring.md, Speed"
NOISE = "shared cores are noisy: trust ratios of one run"


class Programs:
    """The C programs, built into a folder."""

    def __init__(self, folder: pathlib.Path, compiler: str) -> None:
        self.folder = folder
        self._compiler = compiler
        self.ring = self._build("ring_speed", core=True)
        self.ipc = self._build("ipc_speed")
        self.flood = self._build("flood", "-shared", "-fPIC", core=True)
        self.rte_missing = ""
        self.rte = self._rte()

    def _build(self, name: str, *more: str, core: bool = False) -> pathlib.Path:
        out = self.folder / name
        sources = [str(HERE / "c" / f"{name}.c")]
        if core:
            sources += [str(CORE / "ring.c"), str(CORE / "numa.c")]
        subprocess.run(
            [self._compiler, "-std=gnu11", "-O2", "-D_GNU_SOURCE", f"-I{CORE}", f"-I{HERE / 'c'}",
             "-o", str(out), *sources, *more, "-pthread"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        return out

    def _rte(self) -> pathlib.Path | None:
        config = shutil.which("pkg-config")
        asked = config and subprocess.run(
            [config, "--cflags", "libdpdk"], capture_output=True, text=True
        )
        if not asked or asked.returncode:
            self.rte_missing = "rte_ring is not here: libdpdk-dev is not installed"
            return None
        flags = [*asked.stdout.split(), "-DALLOW_EXPERIMENTAL_API", "-lrte_ring", "-lrte_eal"]
        try:
            return self._build("rte_ring_speed", *flags)
        except subprocess.CalledProcessError as failed:
            self.rte_missing = f"rte_ring does not build: {failed.stderr.splitlines()[:1]}"
            return None


def words(program: pathlib.Path, *args: object) -> list[float]:
    """The figures of the line that a program prints last."""
    done = subprocess.run(
        [str(program), *map(str, args)], capture_output=True, text=True, timeout=120
    )
    if done.returncode:
        raise RuntimeError(f"{program.name} {args}: {done.stderr.strip() or done.returncode}")
    return [float(word) for word in done.stdout.split("\n")[-2].split()[1:]]


def middle(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The pair whose ratio is the median: both figures are of one moment."""
    return sorted(pairs, key=lambda p: p[0] / p[1])[len(pairs) // 2]


def load() -> str:
    """How busy the machine was."""
    return f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} CPUs"


# ---- publish ----


def publish_rows(quick: bool, programs: Programs) -> Iterator[Row]:
    """CPU time a tick without a reader."""
    runs, count = (7, 1_000_000) if quick else (15, 4_000_000)
    taken: dict[int, list[float]] = {1: [], 32: []}
    for _ in range(runs):
        for burst, values in taken.items():
            values.append(words(programs.ring, "publish", count, burst)[0])
    yield Row(
        name="ring.publish", value=statistics.median(taken[1]), unit="ns/tick", target="<= 8",
        note=f"CPU time, no reader, each tick committed; best {min(taken[1]):.2f}",
    )  # fmt: skip
    yield Row(
        name="ring.publish_bursts_of_32", value=statistics.median(taken[32]), unit="ns/tick",
        note="commit and flush once a burst",
    )  # fmt: skip


# ---- lossless ----


def lossless_rows(quick: bool, programs: Programs) -> Iterator[Row]:
    """One producer to one busy reader in another process that holds it (gating): none is lost."""
    runs, windows, size = (7, 120, 8192) if quick else (15, 250, 8192)
    arms: dict[str, Callable[[], list[float]]] = {
        "ring": lambda: words(programs.ring, "lossless", windows, size, 1),
        "ring32": lambda: words(programs.ring, "lossless", windows, size, 32),
    }
    if rte := programs.rte:
        for name, send, receive in (("one", 1, 1), ("drain", 1, 32), ("burst", 32, 32)):

            def measure(send: int = send, receive: int = receive) -> list[float]:
                return words(rte, "lossless", windows, size, send, receive)

            arms[f"rte_{name}"] = measure
    taken: dict[str, list[list[float]]] = {name: [] for name in arms}
    hops = []
    for _ in range(runs):
        for name, values in taken.items():
            values.append(arms[name]())
        hops.append(words(programs.ring, "hop", 2000)[0])
    rates = {name: [run[0] for run in values] for name, values in taken.items()}
    whole = sum(run[1] for run in taken["ring"])
    note = (
        f"one tick at a time, checked, {size} a window, {whole:.0f} of {windows * runs} windows "
        f"undisturbed; runs {min(rates['ring']):.1f} to {max(rates['ring']):.1f}, hop meanwhile "
        f"{min(hops):.0f} to {max(hops):.0f} ns; {load()}; {NOISE}; {WHERE}"
    )
    yield Row(
        name="ring.lossless", value=statistics.median(rates["ring"]), unit="Mmsg/s",
        target=">= 15", higher_is_better=True, note=note,
    )  # fmt: skip
    for name, ours, peer, target, what in (
        ("vs_rte_ring", "ring", "rte_one", ">= 2.5x", "rte_ring, 64 bytes, one at a time"),
        ("vs_rte_ring_drained", "ring", "rte_drain", None, "rte_ring, taken out by up to 32"),
        ("bursts_of_32", "ring32", "rte_burst", None, "rte_ring, bursts of 32"),
    ):
        pair: tuple[float, float | None] = (statistics.median(rates[ours]), None)
        if peer in rates:
            pair = middle(list(zip(rates[ours], rates[peer], strict=True)))
        yield Row(
            name=f"ring.lossless_{name}", value=pair[0], unit="Mmsg/s", target=target, peer=what,
            peer_value=pair[1], higher_is_better=True,
            note="the pair of runs with the median ratio" if pair[1] else programs.rte_missing,
        )  # fmt: skip


# ---- hop ----


def echo(there: Queue[bytes], back: Queue[bytes], count: int) -> None:
    """The other side of the queue."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for _ in range(count):
        back.put(there.get())


def queue_hop(count: int) -> float:
    """multiprocessing.Queue: 64 bytes there and back, halved; median ns."""
    context = multiprocessing.get_context("fork")
    there, back = context.Queue(), context.Queue()
    child = context.Process(target=echo, args=(there, back, count), daemon=True)
    child.start()
    taken = []
    for _ in range(count):
        began = time.perf_counter_ns()
        there.put(bytes(64))
        back.get()
        taken.append((time.perf_counter_ns() - began) / 2)
    child.join()
    for queue in (there, back):
        queue.close()
        queue.join_thread()
    return statistics.median(taken)


def leftovers() -> set[pathlib.Path]:
    """What iceoryx2 keeps outside its processes."""
    return {*pathlib.Path("/dev/shm").glob("iox2_*"), *pathlib.Path("/tmp").glob("iceoryx2")}


class Iceoryx:
    """iceoryx2 and its Python binding, installed into a folder for this run."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder / "iceoryx2"
        self._count = 0
        self._before = leftovers()
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check",
             "--target", str(self._folder), "iceoryx2"],
            capture_output=True, text=True,
        )  # fmt: skip
        said = (done.stderr.strip().splitlines() or ["?"])[-1][:80]
        self.missing = f"iceoryx2 is not to be had here: {said}" if done.returncode else ""

    def clean(self) -> None:
        """Removes what it leaves in /dev/shm and /tmp."""
        for path in leftovers() - self._before:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def figure(self, what: str, *numbers: int) -> float | None:
        """One run; None: not to be had, or it failed (then `missing` says why)."""
        if self.missing:
            return None
        self._count += 1
        name = f"nodeagent-bench/{os.getpid()}/{self._count}"
        with subprocess.Popen(
            [sys.executable, "-P", str(PEERS / "iceoryx.py"), what, name, *map(str, numbers)],
            env={**os.environ, "PYTHONPATH": str(self._folder)}, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            try:
                out, err = process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                # Both of its processes.
                os.killpg(process.pid, signal.SIGKILL)
                out, err = "", "no answer within 60 s"
        if not out:
            self.missing = f"iceoryx2 failed: {(err.strip().splitlines() or ['?'])[-1]}"
            return None
        return float(out.split()[1])


def hop_rows(quick: bool, programs: Programs, iceoryx: Iceoryx) -> Iterator[Row]:
    """One way between two processes, both looking all the time (the kernel's peers block)."""
    runs, count = (5, 10_000) if quick else (11, 50_000)
    arms: dict[str, Callable[[], float | None]] = {
        "ring": lambda: words(programs.ring, "hop", count)[0],
        "multiprocessing.Queue": lambda: queue_hop(count // 20),
        "iceoryx2 (Python)": lambda: iceoryx.figure("hop", count // 10),
        "pipe (C)": lambda: words(programs.ipc, "pipe", count // 20)[0],
        "UNIX datagrams (C)": lambda: words(programs.ipc, "unix", count // 20)[0],
    }
    if rte := programs.rte:
        arms["rte_ring"] = lambda: words(rte, "hop", count)[0]
    taken: dict[str, list[float | None]] = {name: [] for name in arms}
    for _ in range(runs):
        for name, values in taken.items():
            values.append(arms[name]())
    ours = [value for value in taken.pop("ring") if value is not None]
    yield Row(
        name="ring.hop_p50", value=statistics.median(ours), unit="ns", target="<= 300",
        note=f"push to seen, C to C; runs {min(ours):.0f} to {max(ours):.0f}; {load()}",
    )  # fmt: skip
    targets = {"multiprocessing.Queue": ">= 200x", "iceoryx2 (Python)": ">= 30x"}
    for name, values in taken.items():
        pairs = [(a, b) for a, b in zip(ours, values, strict=True) if b]
        a, b = middle(pairs) if pairs else (statistics.median(ours), None)
        yield Row(
            name=f"ring.hop_vs_{re.sub('[^a-z0-9]+', '_', name.lower()).strip('_')}",
            value=a, unit="ns", target=targets.get(name), peer=name, peer_value=b,
            note="the pair of runs with the median ratio" if b else iceoryx.missing,
        )  # fmt: skip


# ---- Python reader ----


@contextlib.contextmanager
def flooding(programs: Programs, rate: int, burst: int) -> Iterator[tuple[pathlib.Path, list[int]]]:
    """A process that publishes; when it is over, how many ticks it published is in the list."""
    path = programs.folder / "ring.sock"
    process = subprocess.Popen(
        [sys.executable, "-P", str(PEERS / "flood.py"), str(path), str(programs.flood),
         str(rate), str(burst), str(min(os.sched_getaffinity(0)))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    published: list[int] = []
    try:
        assert process.stdout.readline() == "ready\n"
        yield path, published
    finally:
        out, _ = process.communicate("\n", timeout=60)
        published += [int(word) for word in out.split()]


def python_reader(
    programs: Programs, rate: int, seconds: float
) -> tuple[float, float, int, float, int]:
    """Reads batches in this process, sums two columns of each, validates.

    Returns median records a second over windows of 20 ms, median age in ns of the oldest record at
    each batch, records lost, records a batch, records read."""
    mode = ReaderMode.LOSSY if rate else ReaderMode.GATING
    before = os.sched_getaffinity(0)
    with flooding(programs, rate, 32) as (path, _):
        with Reader.attach("bench", "python", socket=path, mode=mode, busy=True) as reader:
            os.sched_setaffinity(0, {max(before)})
            try:
                windows, ages, notional, batches = [], [], 0, 0
                now = time.perf_counter()
                end, window_end, window_from = now + seconds, now + 0.02, reader.records
                window_began = now
                while now < end:
                    batch = reader.batch()
                    if not len(batch):
                        now = time.perf_counter()
                        continue
                    ages.append(reader.data_age_ns)
                    ticks = batch.ticks
                    notional += int(ticks["price"].sum()) + int(ticks["size"].sum())
                    batch.validate()
                    batch.advance()
                    batches += 1
                    now = time.perf_counter()
                    if now >= window_end:
                        windows.append((reader.records - window_from) / (now - window_began))
                        window_from, window_began, window_end = reader.records, now, now + 0.02
                assert notional
                assert rate or (reader.lost == 0 and not reader.dropped)
                return (
                    statistics.median(windows), float(quantile(ages, 0.5)), reader.lost,
                    reader.records / batches, reader.records,
                )  # fmt: skip
            finally:
                os.sched_setaffinity(0, before)


def python_rows(quick: bool, programs: Programs, iceoryx: Iceoryx) -> Iterator[Row]:
    """A Python process that reads what a C loop of another process publishes."""
    runs, seconds = (3, 0.4) if quick else (7, 1.0)
    flat, paced, peers, peers32 = [], [], [], []
    for _ in range(runs):
        flat.append(python_reader(programs, 0, seconds))
        peers.append(iceoryx.figure("rate", int(seconds * 1000), 1))
        peers32.append(iceoryx.figure("rate", int(seconds * 1000), 32))
        paced.append(python_reader(programs, PACED, seconds))
    rates = [run[0] / 1e6 for run in flat]
    yield Row(
        name="ring.python_batches", value=statistics.median(rates), unit="M records/s",
        target=">= 10", higher_is_better=True,
        note=f"sums of two columns, lossless (gating), {statistics.median(r[3] for r in flat):.0f} "
        f"records a batch; runs {min(rates):.1f} to {max(rates):.1f}; {load()}; {NOISE}",
    )  # fmt: skip
    for name, values, target in (
        ("iceoryx2 (Python)", peers, ">= 80x"),
        ("iceoryx2 (Python), 32 records a sample", peers32, None),
    ):
        pairs = [(a, b / 1e6) for a, b in zip(rates, values, strict=True) if b]
        a, b = middle(pairs) if pairs else (statistics.median(rates), None)
        yield Row(
            name=f"ring.python_batches_vs_iceoryx2{'' if target else '_32'}", value=a,
            unit="M records/s", target=target, peer=name, peer_value=b, higher_is_better=True,
            note="ours loses none; the peer may" if b else iceoryx.missing,
        )  # fmt: skip
    ages = [run[1] / 1e3 for run in paced]
    read, lost = sum(run[4] for run in paced), sum(run[2] for run in paced)
    yield Row(
        name="ring.python_oldest_p50", value=statistics.median(ages), unit="us", target="<= 10",
        note=f"age of the oldest record at each batch; published at {PACED / 1e6:.0f} M/s in "
        f"bursts of 32, {statistics.median(r[3] for r in paced):.0f} records a batch, read {read:,}"
        f", lost {lost:,}; runs {min(ages):.1f} to {max(ages):.1f}",
    )  # fmt: skip


# ---- a stopped reader ----


def instructions(programs: Programs, arm: int, size: int) -> float | None:
    """Instructions a burst under callgrind; None: no valgrind."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        return None
    counted = []
    for count in (2000, 12_000):
        done = subprocess.run(
            [valgrind, "--tool=callgrind", "--callgrind-out-file=/dev/null", str(programs.ring),
             "bursts", str(arm), str(count), str(size)],
            capture_output=True, text=True,
        )  # fmt: skip
        found = re.search(r"Collected : (\d+)", done.stderr)
        if found is None:
            return None
        counted.append(int(found[1]))
    return (counted[1] - counted[0]) / 10_000


def stopped_rows(quick: bool, programs: Programs) -> Iterator[Row]:
    """What a burst costs the producer while a reader, stopped in its wait, is attached."""
    for size in (32, 4, 1):
        done = subprocess.run(
            [str(programs.ring), "stopped", "11", "20000" if quick else "100000", str(size)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        pairs = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("pair")]
        none, stopped = (statistics.median(float(p[arm]) for p in pairs) for arm in (0, 1))
        yield Row(
            name=f"ring.stopped_reader_p99_bursts_of_{size}", value=stopped, unit="ns/burst",
            target="<= 1.1x" if size == 32 else None, peer="no reader", peer_value=none,
            note="medians of p99 over 11 alternated pairs; its flag stays up; the clock's step is "
            "10 ns; with any reader a burst has one fence and one look at its flag more",
        )  # fmt: skip
    counted = [instructions(programs, arm, 32) for arm in (0, 1)]
    yield Row(
        name="ring.stopped_reader_instructions", value=counted[1], unit="instructions/burst",
        target="<= 1.1x", peer="no reader", peer_value=counted[0],
        note="bursts of 32, counted by callgrind" if counted[1] else "valgrind is not installed",
    )  # fmt: skip


def rows(quick: bool) -> Iterator[Row]:
    """All rows of the ring that need no DPDK to build."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        yield Row(name="ring.publish", value=None, unit="ns/tick", note="no C compiler")
        return
    with tempfile.TemporaryDirectory(prefix="nodeagent-bench-ring-") as folder:
        programs = Programs(pathlib.Path(folder), compiler)
        iceoryx = Iceoryx(pathlib.Path(folder))
        try:
            yield from publish_rows(quick, programs)
            yield from lossless_rows(quick, programs)
            yield from hop_rows(quick, programs, iceoryx)
            yield from python_rows(quick, programs, iceoryx)
            yield from stopped_rows(quick, programs)
        finally:
            iceoryx.clean()
