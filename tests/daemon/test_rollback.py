"""A pin that hurts, measured and put back for real: daemon, actor, eBPF and the clock as they are.

Takes twelve minutes: five are measured on each side. NODEAGENT_LONG=1 asks for it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.daemon.conftest import Node, Workers

pytestmark = [
    pytest.mark.root,
    pytest.mark.bpf,
    pytest.mark.usefixtures("as_root", "rights", "two_cpus"),
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not os.environ.get("NODEAGENT_LONG"), reason="takes twelve minutes: NODEAGENT_LONG=1"
    ),
]

BEFORE_S = 330.0
"""Five whole minutes, and the one in which the daemon began."""
AFTER_S = 420.0

STEADY = """
import sys, threading, time
def work(phase):
    due = time.monotonic() + phase
    while True:
        time.sleep(max(0.0, due - time.monotonic()))
        sum(range(12_000))
        due += 0.025
for n in range(1, int(sys.argv[1])):
    threading.Thread(target=work, args=(n / 200,), daemon=True).start()
print("ready", flush=True)
work(0)
"""
CROWD = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(20))
print("ready", flush=True)
while True:
    end = time.monotonic() + 0.015
    while time.monotonic() < end:
        pass
    time.sleep(0.015)
"""


class Steady(Workers):
    """Wakes 40 times a second, however long it waits for a CPU: the same load at any place. Of
    real time, so that what else this machine does is not measured with it."""

    count = 2
    source = STEADY


@pytest.fixture
def steady() -> Iterator[Workers]:
    workers = Steady()
    for tid in workers.masks():
        os.sched_setscheduler(tid, os.SCHED_RR, os.sched_param(10))
    yield workers
    workers.close()


@pytest.fixture
def crowd() -> Iterator[int]:
    """A CPU on which another runs half of the time, before everybody else: the highest, where one
    CPU's workload goes. As long as it may, the kernel runs the workload elsewhere."""
    cpu = max(os.sched_getaffinity(0))
    other = subprocess.Popen([sys.executable, "-c", CROWD, str(cpu)], stdout=subprocess.PIPE)
    assert other.stdout is not None
    ready = other.stdout.readline()
    try:
        if not ready:
            pytest.skip("SCHED_FIFO is refused here")
        yield cpu
    finally:
        other.kill()
        other.communicate()


def test_a_pin_that_hurts_is_reported_and_put_back_once(
    node: Node, crowd: int, steady: Workers
) -> None:
    """It may run anywhere, is measured, then pinned where others crowd it, and measured again."""
    masks = steady.masks()
    node.interval_s = 1.0
    common = "pin.allow = ['threads']\nprobe.enabled = true\n"
    node.place(steady, common)
    (node.folder / "w.toml").write_text((node.folder / "w.toml").read_text() + "rollback = true\n")
    node.start_actor()
    node.start()
    time.sleep(BEFORE_S)
    node.configure(f"place.workloads = 'w.toml'\n{common}pin.auto = ['threads']\n")
    node.process.send_signal(signal.SIGHUP)
    steady.until(frozenset({crowd}))
    end = time.monotonic() + AFTER_S
    while not (kinds := [e for e in node.events() if e.kind == "pin.compared"]):
        assert time.monotonic() < end, node.log[-2000:]
        time.sleep(1.0)
    assert "worse: run-queue delay p99 was" in kinds[0].message
    rolled = node.event("pin.rollback")
    assert "is to be put back where it was, as it asked for" in rolled.message
    node.event("pin.rolled-back")
    assert steady.masks() == masks
    time.sleep(5.0)
    assert steady.masks() == masks, "and it stays there"
    assert node.status().held[0].guard.startswith("manual: rolled back")
    assert [e.kind for e in node.events()].count("pin.rollback") == 1
