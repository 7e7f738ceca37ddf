#!/usr/bin/env python3
"""Similarity queries at a steady rate against examples/vector_index.py, with latency and recall.

Open loop: a query is due every 1/RATE seconds whether or not the last one is answered; its latency
counts from when it was due, so a stall of the index is seen by all queries it delays. Recall is
measured first, off the clock, against brute force over the same vectors.

Prints one JSON line a second, and a last one with the totals on SIGTERM or after --for seconds.

usage: query_load.py --socket PATH [--rate Q] [--for SECONDS]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import signal
import socket
import sys
import time

import numpy as np
import numpy.typing as npt
from vector_index import K, make_vectors

CHECKED = 200
REPORT_S = 1.0
WINDOW = 4096


def main() -> None:
    """Asks until told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", required=True, type=pathlib.Path)
    parser.add_argument("--rate", type=float, default=250.0, help="queries a second")
    parser.add_argument("--for", dest="seconds", type=float, default=None)
    parser.add_argument("--vectors", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()

    stop = False

    def on_signal(*_: object) -> None:
        nonlocal stop
        stop = True

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)

    vectors = make_vectors(args.vectors, args.dim, args.seed)
    squares = (vectors**2).sum(axis=1)
    rng = np.random.default_rng(args.seed + 1)
    base = rng.integers(0, len(vectors), 1024)
    queries = (vectors[base] + rng.normal(scale=0.1, size=(1024, args.dim))).astype(np.float32)

    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(args.socket))
    connection.settimeout(10.0)

    def ask(query: npt.NDArray[np.float32]) -> npt.NDArray[np.int64] | None:
        connection.send(query.tobytes())
        answer = connection.recv(K * 8 + 1)
        return np.frombuffer(answer, np.int64) if len(answer) == K * 8 else None

    found = checked = 0
    for query in queries[:CHECKED]:
        got = ask(query)
        if stop or got is None:
            break
        exact = np.argpartition(squares - 2.0 * (vectors @ query), K)[:K]
        found += len(set(exact.tolist()) & set(got.tolist()))
        checked += 1

    latencies: list[float] = []
    asked = 0
    start = time.monotonic()
    report = start + REPORT_S

    def line(final: bool) -> None:
        recent = sorted(latencies[-WINDOW:]) or [0.0]
        body = {
            "final": final,
            "queries": asked,
            "rate_per_s": asked / max(1e-9, time.monotonic() - start),
            "p50_us": recent[len(recent) // 2],
            "p99_us": recent[min(len(recent) - 1, int(len(recent) * 0.99))],
            "recall": found / (checked * K) if checked else None,
        }
        print(json.dumps(body), flush=True)

    while not stop and (args.seconds is None or time.monotonic() - start < args.seconds):
        due = start + asked / args.rate
        wait = due - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        if ask(queries[asked % len(queries)]) is None:
            break
        latencies.append((time.monotonic() - due) * 1e6)
        if len(latencies) > 2 * WINDOW:
            del latencies[:WINDOW]
        asked += 1
        if time.monotonic() >= report:
            line(final=False)
            report += REPORT_S
    line(final=True)


if __name__ == "__main__":
    sys.exit(main())
