"""The main job in words: a line of progress, and the summary from the same values as the JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from nodeagent.check.summary import summary as plugin_line
from nodeagent.cli.output import VERDICT_STYLE
from nodeagent.cli.standalone.view import View
from nodeagent.model.feed import FeedLoss
from nodeagent.model.status import NodeStatus


def progress(view: View) -> str:
    """One line of how it goes, for where there is no screen."""
    parts = [f"{view.elapsed_s:.0f} s", view.step]
    status = view.status
    if status is not None and status.findings:
        parts.append(f"machine {status.verdict}")
        if status.held:
            parts.append(f"{sum(h.held for h in status.held)} of {len(status.held)} workloads held")
        parts += [f"feed {view.rate_per_s:,.0f} messages/s" for _ in status.feeds]
        lost = sum(_lost(f.loss) for f in status.feeds)
        lost += sum(r.lost for ring in status.rings for r in ring.readers)
        if status.feeds:
            parts.append(f"{lost:,} lost")
    if view.vector is not None:
        parts.append(f"vector p99 {view.vector.p99_us:,.0f} µs")
    return ", ".join(parts)


def report(result: Mapping[str, Any], status: NodeStatus | None = None) -> Text:
    """A dozen lines: what ran, what was lost, whether it was right, whether all is undone. With
    the last `status` the monitoring-plugin line stands first."""
    text = Text()

    def line(label: str, words: str, style: str = "") -> None:
        text.append(f"{label:<10}", style="bold")
        text.append(words + "\n", style=style)

    if status is not None:
        text.append(plugin_line(status.findings) + "\n", style=VERDICT_STYLE[result["verdict"]])
    feed = result["feed"]
    lost = ", ".join(
        f"{stage} {'unknown' if n is None else n}" for stage, n in feed["lost"].items()
    )
    line(
        "feed",
        f"{feed['messages']:,} of {feed['sent']:,} messages, {feed['rate_per_s']:,.0f}/s; "
        f"lost: {lost}",
    )
    for r in result["readers"]:
        same = {True: "VWAP equals the reference", False: "VWAP DIFFERS", None: "not checked"}
        age = r["data_age_us"]
        line(
            "reader",
            f"{r['name']}: {r['records']:,} records, {r['lost']:,} lost, data age p50 "
            f"{age['p50']} µs, p99 {age['p99']} µs; {same[r['checked']]}",
            "" if r["checked"] else "red",
        )
    for w in result["workloads"]:
        if w["pid"] is None:
            node = "" if w["node_planned"] is None else f" of node {w['node_planned']}"
            line(
                "workload",
                f"{w['name']}: planned for CPUs {w['cpus_planned']}{node} "
                f"({w['sharing']}); not pinned",
            )
            continue
        inside = "-" if w["ran_inside"] is None else f"{w['ran_inside']:.2%}"
        cpus = f"{w['cpus_before']} -> {w['cpus_actual']}"
        if w["cpus_before"] is None:
            # We moved nothing: there is no before.
            cpus = f"{w['cpus_actual']}, planned {w['cpus_planned']}"
        line(
            "workload",
            f"{w['name']}: CPUs {cpus} ({w['sharing']}), "
            f"{inside} of run time inside; {'held' if w['held'] else 'NOT held'}",
        )
    v = result["vector"]
    if v is not None:
        line(
            "vector",
            f"{v['queries']:,} queries, p50 {v['p50_us']} µs, p99 {v['p99_us']} µs, "
            f"recall {v['recall']}",
        )
    p = result["probe"]
    q = p["runq_us"]
    line(
        "jitter",
        f"{p['samples']:,} samples, run-queue latency p50 {q['p50']} µs, p99 {q['p99']} µs, "
        f"max {q['max']} µs"
        if p["available"]
        else str(p["reason"]),
    )
    c = result["controller"]
    link = "connected" if c["connected"] else "not connected"
    line("control", f"{link}, {c['reports']} reports, {c['unacknowledged']} unacknowledged")
    s = result["self"]
    line("ourself", f"{s['cpu_percent']} % of a CPU, {s['pss_bytes'] / 2**20:.0f} MiB PSS")
    u = result["undo"]
    line(
        "undo",
        "nothing was changed"
        if u["verified"] and not u["actions"]
        else f"{u['undone']} of {u['actions']} changes undone, "
        f"{'read back and verified' if u['verified'] else 'NOT verified'}",
        "" if u["verified"] else "red",
    )
    text.rstrip()
    return text


def _lost(loss: FeedLoss) -> int:
    return sum(n or 0 for n in (loss.nic, loss.kernel, loss.backend, loss.decoder, loss.wire_gap))
