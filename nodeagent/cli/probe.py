"""nodeagentctl probe: what eBPF can do here, and live run-queue latency."""

from __future__ import annotations

import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from nodeagent.cli.main import Invocation
from nodeagent.cli.output import console, emit_json, note
from nodeagent.errors import UnavailableError, UsageError, visible
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.histogram import Histogram
from nodeagent.model.probe import CpuDelay, ProbeStatus
from nodeagent.probe import bcc as bcc_tool
from nodeagent.probe import serve
from nodeagent.probe.capability import matrix
from nodeagent.probe.runq import ProbeReader

if TYPE_CHECKING:
    from rich.table import Table

EXIT_NOTHING = 3
MIN_INTERVAL_S = 0.1


@click.group(epilog="\b\nExample:  nodeagentctl probe jitter live --comm vllm --for 30")
def probe() -> None:
    """Latency jitter, measured with eBPF."""


def live_only(invocation: Invocation) -> None:
    """A recorded machine has no kernel to ask."""
    if invocation.host is not None:
        raise UsageError(
            f"--host {invocation.host}: probes measure a running kernel, a recorded one has none",
            "leave out --host",
        )


@probe.command(
    epilog="\b\nExample:  nodeagentctl probe capabilities\n"
    "\b\nExit codes: 0 some work, 3 nothing works"
)
@click.pass_obj
def capabilities(invocation: Invocation) -> int:
    """Try each kind of eBPF program once and show which work.

    By trial, never by configuration or version. Attaching interrupts every CPU for a moment, so it
    is left out while CPUs are isolated.
    """
    live_only(invocation)
    isolated = serve.isolated_cpus()
    kinds = matrix(attach=not isolated)
    if isolated:
        note(f"CPU {isolated} is isolated: programs are loaded but not attached")
    if invocation.output != "table":
        emit_json(
            "capabilities",
            {
                "capabilities": [
                    {"kind": k.kind, "works": k.works, "reason": k.reason} for k in kinds
                ]
            },
        )
    else:
        from rich.table import Table
        from rich.text import Text

        view = Table(box=None, pad_edge=False)
        for column in ("KIND", "WORKS", "WHAT WAS SEEN"):
            view.add_column(column, overflow="fold")
        for kind in kinds:
            word, style = ("yes", "green") if kind.works else ("no", "yellow")
            view.add_row(kind.kind, Text(word, style), kind.reason)
        console().print(view)
    return 0 if any(kind.works for kind in kinds) else EXIT_NOTHING


@probe.group(
    epilog="\b\nExample:  nodeagentctl probe jitter live --comm vllm --for 30",
    short_help="Run-queue latency: how long threads wait for a CPU.",
)
def jitter() -> None:
    """Run-queue latency: how long threads that could run had to wait for a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What to watch; `pids` looks again, so that processes of a name may come and go."""

    explicit: tuple[int, ...]
    names: tuple[str, ...]
    workloads: tuple[str, ...]
    socket: str | None

    def pids(self) -> Mapping[int, str]:
        """Each process and what it is called."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit() or not (self.names or int(entry.name) in self.explicit):
                continue
            try:
                name = (entry / "comm").read_text(errors="replace").strip()
            except OSError:
                continue
            if int(entry.name) in self.explicit or name in self.names:
                found[int(entry.name)] = name
        if self.workloads:
            found |= self._placed()
        return found

    def _placed(self) -> Mapping[int, str]:
        from nodeagent.rpc.client import NodeClient

        with NodeClient(self.socket) as client:
            _, held = client.placements()
        known = sorted({h.workload for h in held})
        for wanted in self.workloads:
            if wanted not in known:
                raise UsageError(
                    f"--workload {wanted}: the daemon places no such workload",
                    f"one of {', '.join(known)}" if known else "nodeagentctl place status",
                )
        return {h.pid: h.workload for h in held if h.pid and h.workload in self.workloads}


@jitter.command(
    epilog="\b\nExample:  nodeagentctl probe jitter live --comm vllm --for 30\n"
    "          nodeagentctl -o jsonl probe jitter live --pid 4711 --cpus 4-7",
    short_help="p50, p99 and longest wait, as they come.",
)
@click.option(
    "--pid", "pids", type=int, multiple=True, metavar="PID", help="A process, all its threads."
)
@click.option(
    "--comm", "names", multiple=True, metavar="NAME", help="Processes of this name, now and later."
)
@click.option(
    "--workload", "workloads", multiple=True, metavar="NAME", help="A workload the daemon placed."
)
@click.option("--cpus", default="", metavar="LIST", help="Every task on these CPUs.")
@click.option(
    "--for",
    "seconds",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="End by itself; without: Ctrl-C.",
)
@click.option(
    "--every",
    type=click.FloatRange(min=MIN_INTERVAL_S),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two readings.",
)
@click.option(
    "--isolated",
    type=click.Choice(serve.MODES),
    default="off",
    show_default=True,
    help="While CPUs are isolated: attach nothing; attach, but leave them out; or measure them "
    "too.",
)
@click.pass_obj
def live(
    invocation: Invocation,
    pids: tuple[int, ...],
    names: tuple[str, ...],
    workloads: tuple[str, ...],
    cpus: str,
    seconds: float | None,
    every: float,
    isolated: str,
) -> int:
    """Show p50, p99 and the longest wait of watched processes, counted since the start.

    Needs root (CAP_BPF and CAP_PERFMON). At most 64 processes. -o jsonl: one object a reading.
    """
    from nodeagent.cli.workloads import api_socket

    live_only(invocation)
    watched_cpus = CpuSet.parse(cpus)
    target = Target(explicit=pids, names=names, workloads=workloads, socket=api_socket(invocation))
    if not (pids or names or workloads or watched_cpus):
        raise UsageError("nothing to watch", "give --pid, --comm, --workload or --cpus")
    called = target.pids()
    for pid in pids:
        if pid not in called:
            raise UnavailableError(f"there is no process {pid}", "pgrep -a NAME finds it")
    with attached(isolated) as reader:
        reader.watch_cpus(watched_cpus)
        with shown(invocation) as show:
            started = time.monotonic()
            reader.watch(called)
            if names and not called:
                note(f"no process is called {' or '.join(names)} yet")
            last = False
            while not last:
                passed = time.monotonic() - started
                left = every if seconds is None else seconds - passed
                try:
                    time.sleep(max(0.0, min(every, left)))
                except KeyboardInterrupt:
                    last = True
                called = {**called, **target.pids()}
                reader.watch(called)
                passed = time.monotonic() - started
                last = last or (seconds is not None and passed >= seconds)
                view = Reading(
                    status=reader.read(), called=called, cpus=reader.read_cpus(), seconds=passed
                )
                show(view, last)
    return 0


@contextmanager
def attached(isolated: str) -> Iterator[ProbeReader]:
    """A reader over programs of this process, detached at the end. Raises UnavailableError."""
    description, fds = serve.load({"isolated": isolated})
    if not description["available"]:
        raise UnavailableError(description["sentence"], description["remedy"])
    reader = ProbeReader.from_fds(description, [os.dup(fd) for fd in fds])
    try:
        yield reader
    finally:
        reader.close()
        serve.unload()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reading, with the names of what was watched."""

    status: ProbeStatus
    called: Mapping[int, str]
    cpus: tuple[CpuDelay, ...]
    seconds: float

    def json(self) -> dict[str, object]:
        """nodeagent.jitter/v1; waits in microseconds, run time in nanoseconds."""
        return {
            "seconds": round(self.seconds, 3),
            "samples": self.status.samples,
            "dropped": self.status.dropped,
            "note": self.status.reason,
            "processes": [
                {
                    "pid": delay.pid,
                    "comm": self.called.get(delay.pid, ""),
                    "samples": delay.runq.samples,
                    "runq_us": quantiles(delay.runq),
                    "run_ns_by_cpu": {str(cpu): ns for cpu, ns in delay.run_ns_by_cpu},
                }
                for delay in self.status.delays
            ],
            "cpus": [
                {"cpu": c.cpu, "samples": c.runq.samples, "runq_us": quantiles(c.runq)}
                for c in self.cpus
            ],
        }

    def table(self) -> Table:
        """The same for a person, worst first."""
        from rich.table import Table

        view = Table(box=None, pad_edge=False, title_justify="left", title_style="")
        view.title = (
            f"run-queue latency in µs, {self.seconds:.0f} s"
            + (f", {self.status.dropped} waits not seen" if self.status.dropped else "")
            + (f"; {self.status.reason}" if self.status.reason else "")
        )
        view.add_column("WHO")
        for column in ("SAMPLES", "P50", "P99", "MAX", "RAN s"):
            view.add_column(column, justify="right")
        view.add_column("ON CPU")
        for delay in sorted(self.status.delays, key=lambda d: -d.runq.maximum):
            ran = sum(ns for _, ns in delay.run_ns_by_cpu) / 1e9
            on = CpuSet.of(cpu for cpu, _ in delay.run_ns_by_cpu)
            who = f"{visible(self.called.get(delay.pid, ''))} ({delay.pid})"
            view.add_row(who, *cells(delay.runq), f"{ran:.3f}", str(on))
        for cpu in self.cpus:
            view.add_row(f"cpu {cpu.cpu}, every task", *cells(cpu.runq), "", str(cpu.cpu))
        return view


Show = Callable[[Reading, bool], None]
"""Shows one reading; the flag says that it is the last."""


def quantiles(runq: Histogram) -> dict[str, float | None]:
    """p50, p99 and max in microseconds; null without samples."""
    if not runq.samples:
        return {"p50": None, "p99": None, "max": None}
    return {
        "p50": round((runq.quantile(0.5) or 0) / 1000, 3),
        "p99": round((runq.quantile(0.99) or 0) / 1000, 3),
        "max": round(runq.maximum / 1000, 3),
    }


def cells(runq: Histogram) -> list[str]:
    """Samples and quantiles of one row."""
    values = quantiles(runq).values()
    return [f"{runq.samples:,}", *("-" if v is None else f"{v:,.1f}" for v in values)]


@contextmanager
def shown(invocation: Invocation) -> Iterator[Show]:
    """How a reading is shown: a table that stays in place on a terminal, else as -o says."""
    if invocation.output == "jsonl":
        yield lambda reading, last: emit_json("jitter", reading.json())
    elif invocation.output == "json":
        yield lambda reading, last: emit_json("jitter", reading.json()) if last else None
    elif not sys.stdout.isatty():
        yield lambda reading, last: console().print(reading.table()) if last else None
    else:
        from rich.live import Live

        with Live(console=console(), auto_refresh=False) as screen:
            yield lambda reading, last: screen.update(reading.table(), refresh=True)


@probe.command(
    epilog="\b\nExample:  nodeagentctl probe bcc ./my_probe.py --for 10\n"
    "\b\nExit codes: those of the script; 0 when it was stopped at the time limit"
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1)
@click.option(
    "--for",
    "seconds",
    type=click.FloatRange(min=0.1, max=bcc_tool.MAX_SECONDS),
    default=bcc_tool.DEFAULT_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Stop it then.",
)
@click.pass_obj
def bcc(invocation: Invocation, file: str, arguments: tuple[str, ...], seconds: float) -> int:
    """Run your own BCC script in a child with a time limit.

    FILE is a Python program that imports bcc, the distribution's (python3-bpfcc). Exits with the
    child's code; 0 when it was stopped at the time limit.
    """
    live_only(invocation)
    done = bcc_tool.run(pathlib.Path(file), arguments, seconds)
    if done.stopped:
        note(f"{file}: stopped after {seconds:g} s")
        return 0
    return done.code
