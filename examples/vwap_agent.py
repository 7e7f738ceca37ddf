#!/usr/bin/env python3
"""An agent process: reads the ring by batch views and keeps a VWAP for each symbol.

Trades are what was printed at a price: TRADE, CROSS, and EXECUTE_PRICE unless marked not printable.
Sums are integers, so that they can be compared exactly with a reference computed another way.

It prints one JSON line when it is attached. On SIGTERM it reads the ring to its end and prints
records, messages, lost, age_p50_us, age_p99_us and sums ({SYMBOL: [VALUE, SHARES]}) as JSON.

usage: vwap_agent.py --feed NAME [--socket PATH] [--name NAME]
"""

from __future__ import annotations

import argparse
import json
import signal
import sys

import numpy as np

from nodeagent.client.reader import Batch, Reader, Wait
from nodeagent.native.ring import lib

FEED_KINDS = 240
"""Kinds from here on are the feed's own remarks, not messages of the exchange."""
BATCH = 16384
INSTRUMENTS = 1 << 16
WAIT_S = 0.25


class Vwap:
    """Sum of price x shares, and of shares, by instrument: int64, exact below 2**63."""

    def __init__(self) -> None:
        self.value = np.zeros(INSTRUMENTS, np.int64)
        self.shares = np.zeros(INSTRUMENTS, np.int64)
        self.messages = 0

    def add(self, batch: Batch) -> None:
        """Takes a batch in; what was overwritten meanwhile is left out, counted by the reader."""
        ticks = batch.ticks
        kind = ticks["kind"]
        trade = (kind == lib.NA_KIND_TRADE) | (kind == lib.NA_KIND_CROSS)
        trade |= (kind == lib.NA_KIND_EXECUTE_PRICE) & (
            (ticks["flags"] & lib.NA_TICK_NOT_PRINTABLE) == 0
        )
        rows = np.flatnonzero(trade)
        chosen = ticks[rows]
        messages = kind < FEED_KINDS
        # Copies from here on: now the view may be judged.
        gone = batch.validate()
        if gone:
            chosen = chosen[rows >= gone]
            messages = messages[gone:]
        self.messages += int(np.count_nonzero(messages))
        size = chosen["size"].astype(np.int64)
        instrument = chosen["instrument"]
        np.add.at(self.value, instrument, chosen["price"] * size)
        np.add.at(self.shares, instrument, size)

    def sums(self, symbols: dict[int, str]) -> dict[str, list[int]]:
        """[value, shares] of every symbol that traded."""
        return {
            symbols.get(int(i), f"#{i}"): [int(self.value[i]), int(self.shares[i])]
            for i in np.flatnonzero(self.shares)
        }


def main() -> None:
    """Reads until told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--feed", required=True)
    parser.add_argument("--socket", default="/run/nodeagent/ring.sock")
    parser.add_argument("--name", default="vwap")
    parser.add_argument("--mark", default="nodeagent-example-vwap", help="a workload matches it")
    args = parser.parse_args()

    stop = False

    def on_signal(*_: object) -> None:
        nonlocal stop
        stop = True

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)

    vwap, ages = Vwap(), []
    with Reader.attach(args.feed, args.name, socket=args.socket, wait_s=30.0) as reader:
        print(json.dumps({"attached": True}), flush=True)
        while True:
            batch = reader.batch(BATCH)
            if not len(batch):
                if reader.wait(WAIT_S) is not Wait.READY and stop:
                    break
                continue
            ages.append(reader.data_age_ns)
            vwap.add(batch)
            batch.advance()
            if len(ages) > 1 << 20:
                del ages[: 1 << 19]
        age = np.array(ages or [0], np.float64) / 1000
        print(
            json.dumps(
                {
                    "final": True,
                    "records": reader.records,
                    "messages": vwap.messages,
                    "lost": reader.lost,
                    "age_p50_us": round(float(np.quantile(age, 0.5)), 2),
                    "age_p99_us": round(float(np.quantile(age, 0.99)), 2),
                    "sums": vwap.sums(reader.symbols()),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
