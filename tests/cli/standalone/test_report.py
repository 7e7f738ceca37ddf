"""The summary in words, from a result as summary.py makes it."""

from __future__ import annotations

from typing import Any

from nodeagent.cli.standalone.report import report

RESULT: dict[str, Any] = {
    "verdict": "OK",
    "feed": {
        "sent": 5,
        "messages": 5,
        "rate_per_s": 1.0,
        "lost": {"nic": None, "kernel": 0},
    },
    "readers": [],
    "workloads": [
        {
            "name": "vwap",
            "pid": 7,
            "sharing": "shared",
            "cpus_before": None,
            "cpus_planned": "1",
            "cpus_actual": "0-1",
            "node_planned": 0,
            "ran_inside": None,
            "held": False,
        }
    ],
    "vector": None,
    "probe": {
        "available": False,
        "reason": "no rights",
        "samples": 0,
        "runq_us": dict.fromkeys(("p50", "p99", "max")),
    },
    "controller": {"connected": True, "reports": 1, "unacknowledged": 0},
    "self": {"cpu_percent": 1.0, "pss_bytes": 1 << 20},
    "undo": {"actions": 0, "undone": 0, "verified": True},
}


def test_a_run_that_only_observed_says_so() -> None:
    text = report(RESULT).plain
    assert "vwap: CPUs 0-1, planned 1 (shared)" in text
    assert "undo      nothing was changed" in text
    assert "None" not in text


def test_a_run_that_pinned_says_from_where() -> None:
    workload = {**RESULT["workloads"][0], "cpus_before": "0-1", "cpus_actual": "1"}
    undo = {"actions": 1, "undone": 1, "verified": True}
    text = report({**RESULT, "workloads": [workload], "undo": undo}).plain
    assert "vwap: CPUs 0-1 -> 1 (shared)" in text
    assert "1 of 1 changes undone, read back and verified" in text
