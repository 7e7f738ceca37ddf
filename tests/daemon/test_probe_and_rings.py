"""The daemon with a feeder and with eBPF: what it shows of them, and that both outlive it."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from nodeagent.client import reader as client

if TYPE_CHECKING:
    from tests.daemon.conftest import Node, Workers


def test_the_probe_measures_the_placed_process(
    node: Node, workers: Workers, as_root: None, two_cpus: None
) -> None:
    node.place(workers, "pin.allow=['threads']\npin.auto=['threads']\nprobe.enabled=true\n")
    node.start_actor()
    node.start()
    status = node.status_when(lambda s: bool(s.held) and s.held[0].held)
    if not status.probe.available:
        assert status.probe.reason
        pytest.skip(f"no eBPF here: {status.probe.reason}")
    measured = node.status_when(lambda s: s.probe.samples > 20)
    (delay,) = measured.probe.delays
    assert delay.pid == workers.pid and delay.runq.samples > 20
    inside = node.status_when(lambda s: s.held[0].ran_inside is not None).held[0].ran_inside
    assert inside is not None and inside >= 0.99
    node.kill_actor()
    node.status_when(lambda s: "actor" in s.sentence)
    node.start_actor()
    node.event("actor.up")
    before = node.status().probe.samples
    assert node.status_when(lambda s: s.probe.available and s.probe.samples != before)


def test_a_feed_is_shown_and_goes_on_without_the_daemon(node: Node) -> None:
    node.configure("")
    node.start()
    feeder = subprocess.Popen(
        [node.bin_dir / "nodeagent-feeder", "--name", "nd", "--source", "socket",
         "--group", "127.0.0.1", "--port", "0", "--socket", node.run_dir / "ring.sock",
         "--ring-capacity", "4096", "--frames-bytes", "0"],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    node.running.insert(0, feeder)
    shown = node.status_when(lambda s: bool(s.rings) and bool(s.feeds))
    assert shown.rings[0].feed == "nd" and shown.rings[0].producer_pid == feeder.pid
    assert shown.rings[0].producer_alive and shown.feeds[0].pid == feeder.pid
    with client.Reader.attach("nd", "t", socket=str(node.run_dir / "ring.sock")):
        seen = node.status_when(lambda s: bool(s.rings and s.rings[0].readers))
        assert seen.rings[0].readers[0].name == "t"
    node.kill()
    assert feeder.poll() is None
    node.start()
    again = node.status_when(lambda s: bool(s.rings))
    assert again.rings[0].producer_pid == feeder.pid
    feeder.kill()
    feeder.wait()
    assert node.event("feed.died").subject == "nd"
