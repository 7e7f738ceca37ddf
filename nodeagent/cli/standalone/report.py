"""The summary of the main job as a person reads it, from the same values as the JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from nodeagent.cli.output import VERDICT_STYLE


def report(result: Mapping[str, Any]) -> Text:
    """A dozen lines: what ran, what was lost, whether it was right, whether all is undone."""
    text = Text()

    def line(label: str, words: str, style: str = "") -> None:
        text.append(f"{label:<10}", style="bold")
        text.append(words + "\n", style=style)

    verdict = result["verdict"]
    line(
        "machine",
        f"{verdict} - {result['findings']} findings (nodeagentctl topology check)",
        VERDICT_STYLE[verdict],
    )
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
        inside = "-" if w["ran_inside"] is None else f"{w['ran_inside']:.2%}"
        line(
            "workload",
            f"{w['name']}: CPUs {w['cpus_before']} -> {w['cpus_actual']} ({w['sharing']}), "
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
    line("control", f"{c['reports']} reports, {c['unacknowledged']} unacknowledged")
    s = result["self"]
    line("ourself", f"{s['cpu_percent']} % of a CPU, {s['pss_bytes'] / 2**20:.0f} MiB PSS")
    u = result["undo"]
    line(
        "undo",
        f"{u['undone']} of {u['actions']} changes undone, "
        f"{'read back and verified' if u['verified'] else 'NOT verified'}",
        "" if u["verified"] else "red",
    )
    text.rstrip()
    return text
