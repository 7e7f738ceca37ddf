"""`nodeagentctl place prove`: what really happens on CPUs that should be a workload's alone."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import click

from nodeagent.cli.check import FAIL_ON, exit_code
from nodeagent.cli.main import Invocation
from nodeagent.errors import UsageError, visible

if TYPE_CHECKING:
    from rich.console import Console

    from nodeagent.model.cpuset import CpuSet
    from nodeagent.model.proof import CpuProof, Owned, Proof

LOOK_S = 0.2
"""Pause between two looks at where the workloads' threads run."""
MAX_LOOKED = 4096
"""Processes looked at in between."""


@click.command(
    epilog="\b\nExamples:  nodeagentctl place prove\n"
    "           nodeagentctl place prove --for 60 --cpus 4-7\n"
    "\b\nExit codes: 0 OK, 1 WARN, 2 FAIL, 3 UNKNOWN",
    short_help="What disturbs the CPUs of workloads, by effect.",
)
@click.option(
    "--for", "seconds", type=click.FloatRange(0.1, 3600), default=10.0, show_default=True,
    metavar="SECONDS", help="How long to watch.",
)  # fmt: skip
@click.option(
    "--cpus", "named", metavar="LIST",
    help="CPUs to judge [default: isolated ones, and those of exclusive workloads].",
)  # fmt: skip
@click.option(
    "--workloads", "file", metavar="FILE", help="Workload file [default: the configured one]."
)
@FAIL_ON
@click.pass_obj
def prove(
    invocation: Invocation, seconds: float, named: str | None, file: str | None, fail_on: str
) -> int:
    """Read the kernel's counters twice and judge what came between them: ticks, interrupts,
    softirqs and strangers on each CPU, and where the workloads' threads ran.

    Changes nothing. As another user than root some threads may not be seen.
    """
    from nodeagent.cli.output import console, emit_json, even_unheard
    from nodeagent.cli.workloads import cpu_list

    if invocation.host is not None:
        raise UsageError(
            "place prove watches a running kernel, and --host names a recorded machine",
            "leave --host out",
        )
    asked = cpu_list("--cpus", named) if named is not None else None
    cpus, owned, tickless = _subjects(invocation, file, asked)
    if not cpus:
        none = "has a process here" if owned else "has a place"
        raise UsageError(
            f"no CPU is isolated, and no exclusive workload {none}: there is nothing to prove",
            "name CPUs with --cpus (place status shows those of workloads), or a workload file "
            "with --workloads",
        )
    proof = _watch(seconds, cpus, owned, tickless)
    with even_unheard():
        if invocation.output != "table":
            emit_json("proof", proof_json(proof))
        else:
            print_proof(console(), proof)
    return exit_code(proof.verdict.value, fail_on)


def _subjects(
    invocation: Invocation, file: str | None, asked: CpuSet | None
) -> tuple[CpuSet, list[Owned], CpuSet]:
    """The CPUs to judge, whose they are, and which of them are tickless."""
    from nodeagent.cli.workloads import NoWorkloadFileError, Wanted, plan_here, wanted
    from nodeagent.model.cpuset import CpuSet
    from nodeagent.model.placement import Sharing
    from nodeagent.model.proof import Owned
    from nodeagent.place.match import matching
    from nodeagent.place.roles import seats

    try:
        want = wanted(file, None, live=True, config=invocation.config)
    except NoWorkloadFileError:
        want = Wanted(path="", workloads=(), housekeeping=None)
    here = plan_here(want, None)
    topology = here.snapshot.topology
    owned: list[Owned] = []
    for placed in here.placement.placed:
        if placed.sharing is not Sharing.EXCLUSIVE:
            continue
        mine = matching(placed.match, here.processes)
        places = [seats(placed, process) for process in mine]
        owned.append(
            Owned(
                workload=placed.workload,
                cpus=placed.cpus,
                pids=frozenset(p.pid for p in mine),
                seats={tid: seat.cpus for place in places for tid, seat in place.items()},
            )
        )
    isolation = topology.isolation
    cpus = CpuSet()
    for one in (isolation.isolated, isolation.nohz_full, *(o.cpus for o in owned if o.pids)):
        cpus |= one or CpuSet()
    return asked if asked is not None else cpus, owned, isolation.nohz_full or CpuSet()


def _watch(seconds: float, cpus: CpuSet, owned: list[Owned], tickless: CpuSet) -> Proof:
    """Two readings, and looks at the workloads' threads in between; from other CPUs, if we may."""
    from nodeagent.discover.effects import Effects
    from nodeagent.discover.root import Root
    from nodeagent.place.proof import prove as judge

    here = os.sched_getaffinity(0)
    if here - cpus.ids:
        os.sched_setaffinity(0, here - cpus.ids)
    effects = Effects(Root.live())
    pids = sorted(pid for one in owned for pid in one.pids)[:MAX_LOOKED]
    before = effects.read(cpus)
    end = time.monotonic() + seconds
    last = effects.look(pids)
    met: dict[int, list[int]] = {}
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(LOOK_S, left))
        now = effects.look(pids)
        for tid, (cpu, ran) in now.items():
            # Where it ran since the look before; one that slept is where it was left.
            if tid in last and ran > last[tid][1]:
                met.setdefault(tid, []).append(cpu)
        last = now
    after = effects.read(cpus)
    return judge(before, after, cpus, owned, tickless, met)


def proof_json(proof: Proof) -> dict[str, object]:
    """The body of proof/v1."""
    from nodeagent.place.proof import words_of

    return {
        "verdict": proof.verdict,
        "seconds": round(proof.seconds, 3),
        "cpus": [
            {
                "cpu": p.cpu,
                "workload": p.owner or None,
                "verdict": p.verdict,
                "reason": p.reason,
                "nohz_full": p.tickless,
                "ticks": p.ticks,
                "own_run_ns": p.own_ns,
                "culprits": [
                    {
                        "what": c.what,
                        "kind": c.kind,
                        "verdict": c.verdict,
                        "count": c.count,
                        "run_ns": c.run_ns,
                        "exact": c.exact,
                        "text": words_of(c),
                    }
                    for c in p.culprits
                ],
                "more": p.more,
            }
            for p in proof.cpus
        ],
        "threads": [
            {
                "workload": t.workload,
                "pid": t.pid,
                "tid": t.tid,
                "comm": t.comm,
                "cpus": str(t.planned),
                "seen": [{"cpu": cpu, "times": times} for cpu, times in t.seen],
                "run_ns": t.run_ns,
                "verdict": t.verdict,
            }
            for t in proof.threads
        ],
        "unread": list(proof.unread),
    }


def print_proof(out: Console, proof: Proof) -> None:
    """A row for each CPU, its culprits below, then threads that were met elsewhere."""
    from rich.table import Table
    from rich.text import Text

    from nodeagent.cli.output import VERDICT_STYLE

    view = Table(box=None, pad_edge=False)
    for column in ("CPU", "VERDICT", "WORKLOAD", "TICKS", "OWN TIME", "DISTURBED BY"):
        view.add_column(column, overflow="fold")
    for p in proof.cpus:
        view.add_row(
            str(p.cpu),
            Text(p.verdict, style=VERDICT_STYLE[p.verdict]),
            p.owner or "-",
            "?" if p.ticks is None else str(p.ticks),
            f"{p.own_ns / 1e6:.0f} ms",
            _disturbed(p),
        )
    out.print(view)
    for t in proof.threads:
        if t.verdict == "FAIL":
            seen = ", ".join(f"CPU {cpu} ({times} times)" for cpu, times in t.seen)
            out.print(
                f"{t.workload}: {visible(t.comm)} (thread {t.tid} of {t.pid}) belongs on "
                f"{t.planned} and was met on {seen}"
            )
    for text in proof.unread:
        out.print(f"note: {text}")
    out.print(
        Text.assemble(
            f"Over {proof.seconds:.1f} s: ",
            (proof.verdict, VERDICT_STYLE[proof.verdict]),
        )
    )


def _disturbed(p: CpuProof) -> str:
    from nodeagent.place.proof import words_of

    if not p.culprits:
        return p.reason or "nothing"
    shown = [words_of(c) for c in p.culprits if c.kind != "tick" or c.verdict != "INFO"]
    more = f" and {p.more} more" if p.more else ""
    return (visible("; ".join(shown)) + more) or "nothing but the tick"
