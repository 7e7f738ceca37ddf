"""The summary of the main job: schema nodeagent.run/v1, built from plain values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nodeagent.cli.standalone.view import OwnCost, VectorLoad
from nodeagent.model.finding import Verdict
from nodeagent.model.histogram import Histogram
from nodeagent.model.status import NodeStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderResult:
    """What an agent said when it ended. Ages in microseconds."""

    name: str
    records: int
    lost: int
    age_p50_us: float | None
    age_p99_us: float | None
    checked: bool | None
    """Whether its VWAPs equal the reference; None: there was nothing to compare with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """How the roll-back went. `verified`: every mask was read back and is what it was before."""

    actions: int
    undone: int
    verified: bool


def feed_row(status: NodeStatus, sent: int | None, seconds: float) -> dict[str, object]:
    """The feed's figures: `sent` = messages + all losses (contract)."""
    if not status.feeds:
        return {
            "source": None,
            "sent": sent,
            "messages": 0,
            "rate_per_s": 0.0,
            "lost": dict.fromkeys(("nic", "kernel", "backend", "decoder", "wire_gap")),
        }
    f = status.feeds[0]
    return {
        "source": f.source,
        "sent": sent,
        "messages": f.messages,
        "rate_per_s": round(f.messages / seconds, 1) if seconds > 0 else 0.0,
        "lost": {
            "nic": f.loss.nic,
            "kernel": f.loss.kernel,
            "backend": f.loss.backend,
            "decoder": f.loss.decoder,
            "wire_gap": f.loss.wire_gap,
        },
    }


def in_us(value_ns: float | None) -> float | None:
    """Nanoseconds to microseconds, two decimals."""
    return None if value_ns is None else round(value_ns / 1000, 2)


def probe_row(status: NodeStatus) -> dict[str, object]:
    """Run-queue latency over all watched threads."""
    p = status.probe
    total = sum((d.runq for d in p.delays), Histogram(counts=()))
    return {
        "available": p.available,
        "reason": p.reason,
        "samples": total.samples,
        "runq_us": {
            "p50": in_us(total.quantile(0.5)),
            "p99": in_us(total.quantile(0.99)),
            "max": in_us(total.maximum) if total.samples else None,
        },
    }


def summary(
    *,
    seconds: float,
    feed_seconds: float,
    status: NodeStatus,
    sent: int | None,
    readers: tuple[ReaderResult, ...],
    vector: VectorLoad | None,
    cost: OwnCost,
    undone: Undone,
) -> Mapping[str, object]:
    """The object of the contract, without its `schema`."""
    # As the monitoring-plugin line counts them: what is not known is no finding.
    bad = (Verdict.WARN, Verdict.FAIL)
    counted = [f for f in status.findings if f.counts and f.verdict in bad]
    return {
        "seconds": round(seconds, 3),
        "verdict": str(status.verdict),
        "findings": len(counted),
        "feed": feed_row(status, sent, feed_seconds),
        "readers": [
            {
                "name": r.name,
                "records": r.records,
                "lost": r.lost,
                "data_age_us": {"p50": r.age_p50_us, "p99": r.age_p99_us},
                "checked": r.checked,
            }
            for r in readers
        ],
        "workloads": [
            {
                "name": h.workload,
                "kind": h.kind,
                "pid": h.pid,
                "sharing": str(h.sharing),
                "cpus_before": None if h.cpus_before is None else str(h.cpus_before),
                "cpus_planned": str(h.cpus_planned),
                "cpus_actual": None if h.cpus_actual is None else str(h.cpus_actual),
                "node_planned": h.node_planned,
                "ran_inside": None if h.ran_inside is None else round(h.ran_inside, 5),
                "held": h.held,
            }
            for h in status.held
        ],
        "vector": None
        if vector is None
        else {
            "queries": vector.queries,
            "p50_us": round(vector.p50_us, 1),
            "p99_us": round(vector.p99_us, 1),
            "recall": vector.recall,
        },
        "probe": probe_row(status),
        "controller": {
            "connected": status.controller.connected,
            "reports": status.controller.reports,
            "unacknowledged": status.controller.unacknowledged,
        },
        "self": {"cpu_percent": round(cost.cpu_percent, 3), "pss_bytes": cost.pss_bytes},
        "undo": {"actions": undone.actions, "undone": undone.undone, "verified": undone.verified},
    }
