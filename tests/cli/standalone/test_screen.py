"""The screen: one picture from one View, within 100 columns, with and without every part."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from nodeagent.cli.standalone.screen import bar, powers_of_two, render, window
from nodeagent.cli.standalone.view import OwnCost, VectorLoad, View
from nodeagent.model.cpuset import CpuSet
from nodeagent.model.feed import FeedLoss, FeedStatus, ReaderMode, ReaderStatus, RingStatus
from nodeagent.model.finding import Finding, Verdict
from nodeagent.model.histogram import BUCKETS, Histogram, bucket_of
from nodeagent.model.placement import Held, Placement, Refused, Sharing
from nodeagent.model.probe import ProbeStatus, ThreadDelay
from nodeagent.model.status import ControllerLink, NodeStatus


def histogram(values: list[int]) -> Histogram:
    counts = [0] * BUCKETS
    for v in values:
        counts[bucket_of(v)] += 1
    return Histogram(counts=tuple(counts), total=sum(values), maximum=max(values))


def status(*, probe: ProbeStatus | None = None) -> NodeStatus:
    """A node with something in every part."""
    delays = histogram([700] * 50 + [3_000] * 400 + [40_000] * 30 + [900_000])
    return NodeStatus(
        agent_uuid="6f1c",
        epoch=1,
        hostname="gpu-17",
        version="0.1.0",
        started_ns=0,
        at_ns=0,
        turns=3,
        sentence="",
        verdict=Verdict.WARN,
        findings=(
            Finding(
                id="isolation.irqaffinity-overlap",
                verdict=Verdict.WARN,
                subject="cpu 4-15",
                message="interrupts may land on isolated CPUs 4-15",
                remedy="boot with irqaffinity=0-3",
            ),
        ),
        placement=Placement(
            placed=(),
            refused=(
                Refused(workload="llm", reason="node 1 has 2 PUs free, 8 wanted", would_fit_if=""),
            ),
            housekeeping=CpuSet.of([0]),
            notes=("this machine has 2 PUs: vwap and vector share pool 'shared' (1)",),
        ),
        held=(
            Held(
                workload="vwap",
                kind="agent",
                pid=4711,
                sharing=Sharing.SHARED,
                cpus_before=CpuSet.parse("0-1"),
                cpus_planned=CpuSet.parse("1"),
                cpus_actual=CpuSet.parse("1"),
                node_planned=0,
                ran_inside=0.9991,
                held=True,
            ),
        ),
        rings=(
            RingStatus(
                feed="itch",
                incarnation=1,
                capacity=1 << 16,
                slot_bytes=64,
                head=1_000_000,
                heartbeat_age_ns=10,
                producer_pid=1,
                producer_alive=True,
                size_bytes=1 << 22,
                node=0,
                readers=(
                    ReaderStatus(
                        name="vwap",
                        pid=4711,
                        uid=0,
                        mode=ReaderMode.LOSSY,
                        records=999_990,
                        lost=0,
                        lag_records=10,
                        data_age_ns=4_100,
                        alive=True,
                    ),
                ),
            ),
        ),
        feeds=(
            FeedStatus(
                feed="itch",
                source="socket",
                pid=1,
                packets=10,
                bytes=10,
                messages=1_000_000,
                duplicates=0,
                rejected=0,
                loss=FeedLoss(nic=None, kernel=3, backend=0, decoder=0, wire_gap=0),
                last_message_age_ns=1,
            ),
        ),
        probe=probe
        or ProbeStatus(
            available=True,
            reason=None,
            capabilities=(),
            delays=(ThreadDelay(pid=4711, runq=delays, run_ns_by_cpu=()),),
        ),
        controller=ControllerLink(
            configured=True,
            connected=True,
            address="127.0.0.1:7440",
            reports=41,
            unacknowledged=0,
            dropped=0,
        ),
        cost=(),
    )


def shown(view: View, *, colour: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=colour, color_system=None)
    console.print(render(view))
    return out.getvalue()


def view(now: NodeStatus | None) -> View:
    return View(
        elapsed_s=12,
        planned_s=20,
        step="running",
        status=now,
        rate_per_s=501_234,
        vector=VectorLoad(queries=500, rate_per_s=250, p50_us=310, p99_us=900, recall=0.97),
        cost=OwnCost(cpu_percent=0.31, pss_bytes=71 << 20),
    )


def test_every_part_is_on_the_screen() -> None:
    text = shown(view(status()))
    for words in (
        "WARN - 1 finding, worst isolation.irqaffinity-overlap",
        "irqaffinity=0-3",
        "vwap",
        "99.9%",
        "501,234",
        "unknown",
        "4.1",
        "512-1024 µs",
        "connected",
        "recall 0.970",
        "0.31 % of a CPU   71 MiB",
        "node 1 has 2 PUs free, 8 wanted",
        "this machine has 2 PUs: vwap and vector share pool 'shared' (1)",
    ):
        assert words in text, words
    assert max(map(len, text.splitlines())) <= 100


def test_without_a_probe_the_sentence_stands_there() -> None:
    reason = "nodeagent may not load eBPF programs: CAP_BPF is missing"
    text = shown(view(status(probe=ProbeStatus(available=False, reason=reason, capabilities=()))))
    assert reason in text
    assert "samples" not in text


def test_before_the_daemon_answers_the_step_stands_there() -> None:
    assert "running" in shown(view(None))


def test_histogram_rows_keep_every_sample() -> None:
    values = [1, 999, 1000, 1999, 2000, 5_000_000]
    rows = powers_of_two(histogram(values))
    assert sum(n for _, n in rows) == len(values)
    assert rows[0][0] == "< 1"
    assert rows[-1][0] == "4096-8192"


def test_the_smallest_share_is_still_seen() -> None:
    assert bar(1e-9) == "▏"
    assert bar(1.0, 4) == "████"
    assert bar(0.0) == ""


@pytest.mark.parametrize("size", [(80, 24), (100, 50), (80, 20), (200, 60)])
@pytest.mark.parametrize("many", [1, 40])
def test_what_matters_stays_on_a_small_terminal(size: tuple[int, int], many: int) -> None:
    base = status()
    more = tuple(dataclasses.replace(base.findings[0], id=f"check.number-{n}") for n in range(many))
    out = io.StringIO()
    console = Console(file=out, width=size[0], height=size[1], color_system=None)
    console.print(render(view(dataclasses.replace(base, findings=more)), size))
    lines = out.getvalue().rstrip("\n").splitlines()
    assert len(lines) <= size[1]
    assert max(map(len, lines)) <= size[0]
    text = "\n".join(lines)
    for words in (
        "WARN - ",
        "check.number-0",
        "held",
        "501,234",
        "samples",
        "connected",
        "% of a CPU",
        "Ctrl-C",
    ):
        assert words in text, words


def test_the_fullest_rows_are_shown() -> None:
    rows = [("a", 1), ("b", 50), ("c", 60), ("d", 2)]
    assert window(rows, 2) == [("b", 50), ("c", 60)]
    assert window(rows, 9) == rows
    assert window(rows, 0) == []
