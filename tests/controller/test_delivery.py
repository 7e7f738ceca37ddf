"""Every event once and in order, whoever is killed, whatever is lost. Real processes."""

from __future__ import annotations

import os
import pathlib
import random
import signal
import subprocess
import time

import pytest

from nodeagent.rpc.client import FleetClient
from nodeagent.rpc.spool import Limits, Spool
from tests.controller.fleet import agent, controller, until
from tests.rpc.world import event

KILLS = int(os.environ.get("NODEAGENT_KILLS", "4"))
"""How often each side is killed; docs/protocol.md has the result of a long run."""


def finish(child: subprocess.Popen[str]) -> None:
    out, err = child.communicate(timeout=120)
    assert child.returncode == 0, err + out[-200:]


def test_events_arrive_once_and_in_order(bin_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with controller(bin_dir, tmp_path) as fleet:
        finish(agent(fleet.address, tmp_path / "a", ticks=500))
        assert fleet.stop() == 0
        rows = fleet.stored()
        assert [(epoch, seq, tick) for _, epoch, seq, tick in rows] == [
            (1, n + 1, n) for n in range(500)
        ]


def test_the_controller_killed_at_random_moments(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    moments = random.Random(3)
    with controller(bin_dir, tmp_path) as fleet:
        ticks = 2000 * KILLS
        child = agent(fleet.address, tmp_path / "a", ticks=ticks)
        kills = 0
        while child.poll() is None and kills < KILLS:
            time.sleep(moments.random() * 0.5)
            fleet.kill()
            kills += 1
            fleet.start()
        finish(child)
        assert kills >= 1
        assert [(s, t) for _, _, s, t in fleet.stored()] == [(n + 1, n) for n in range(ticks)]
        # Only what changed was sent after each reconnect, and it adds up to the whole state.
        with FleetClient(fleet.address) as client:
            _, status, shape = client.node("gpu-1")
        assert status is not None
        assert status.held[0].workload == "vwap"
        assert status.findings[0].id == "isolation.irqaffinity-overlap"
        assert shape is not None


def test_the_agent_killed_at_random_moments(bin_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    moments = random.Random(5)
    state = tmp_path / "a"
    with controller(bin_dir, tmp_path) as fleet:
        first = 0
        promised: list[int] = []
        for _ in range(KILLS):
            child = agent(fleet.address, state, ticks=1_000_000, first=first)
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(moments.random() * 0.4)
            child.send_signal(signal.SIGKILL)
            lines = child.stdout.read().split("\n")[:-1]
            child.wait()
            last = int(lines[-1]) if lines else first
            promised += range(first, last + 1)
            first = last + 1000
        finish(agent(fleet.address, state, ticks=10, first=first))
        promised += range(first, first + 10)
        rows = fleet.stored()
        assert [s for _, _, s, _ in rows] == list(range(1, len(rows) + 1))
        ticks = [t for *_, t in rows]
        # What was stored but killed before it was said may be there too; nothing twice.
        assert ticks == sorted(set(ticks))
        assert set(promised) <= set(ticks)


def test_both_killed_in_turn(bin_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    moments = random.Random(11)
    with controller(bin_dir, tmp_path) as fleet:
        first = 0
        promised: list[int] = []
        for _ in range(KILLS):
            child = agent(fleet.address, tmp_path / "a", ticks=1_000_000, first=first)
            assert child.stdout is not None
            child.stdout.readline()
            for victim in moments.sample([fleet.kill, child.kill], 2):
                time.sleep(moments.random() * 0.2)
                victim()
            lines = child.stdout.read().split("\n")[:-1]
            child.wait()
            fleet.start()
            promised += range(first, (int(lines[-1]) if lines else first) + 1)
            first += 1_000_000
        finish(agent(fleet.address, tmp_path / "a", ticks=5, first=first))
        rows = fleet.stored()
        assert [s for _, _, s, _ in rows] == list(range(1, len(rows) + 1))
        ticks = [t for *_, t in rows]
        assert ticks == sorted(set(ticks))
        assert set(promised) <= set(ticks)


def test_a_long_backlog_is_resumed(bin_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    state = tmp_path / "a"
    spool = Spool.open(state)
    for n in range(0, 20_000, 100):
        spool.append([event(n + i) for i in range(100)])
    spool.close()
    with controller(bin_dir, tmp_path) as fleet:
        finish(agent(fleet.address, state, ticks=3, first=20_000))
        assert [(s, t) for _, _, s, t in fleet.stored()] == [(n + 1, n) for n in range(20_003)]


def test_what_the_spool_could_not_keep_is_counted(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    state = tmp_path / "a"
    spool = Spool.open(state, Limits(max_events=100))
    for n in range(250):
        spool.append([event(n)])
    spool.close()
    with controller(bin_dir, tmp_path) as fleet:
        finish(agent(fleet.address, state, ticks=1, first=250))
        assert fleet.gaps() == [(1, 150, 1)]
        rows = fleet.stored()
        assert [s for _, _, s, _ in rows] == list(range(151, len(rows) + 151))
        assert [t for *_, t in rows if t >= 0] == list(range(150, 251))
        assert [t for *_, t in rows].count(-1) == 1  # report.overflow


def test_a_lost_spool_begins_a_new_epoch(bin_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    state = tmp_path / "a"
    with controller(bin_dir, tmp_path) as fleet:
        finish(agent(fleet.address, state, ticks=20))
        for path in state.glob("spool.db*"):
            path.unlink()
        finish(agent(fleet.address, state, ticks=20, first=100))
        rows = fleet.stored()
        assert [(e, s) for _, e, s, _ in rows] == [(1, n) for n in range(1, 21)] + [
            (2, n) for n in range(1, 22)
        ]
        assert [t for *_, t in rows if t >= 100] == list(range(100, 120))


def test_a_spool_older_than_the_controller_knows_begins_a_new_epoch(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    state = tmp_path / "a"
    with controller(bin_dir, tmp_path) as fleet:
        finish(agent(fleet.address, state, ticks=5))
        old = {p.name: p.read_bytes() for p in state.iterdir()}
        finish(agent(fleet.address, state, ticks=20, first=5))
        for path in state.iterdir():
            path.unlink()
        for name, body in old.items():
            (state / name).write_bytes(body)
        child = agent(fleet.address, state, ticks=3, first=200)
        finish(child)
        ticks = [t for *_, t in fleet.stored()]
        assert [t for t in ticks if t >= 200] == [200, 201, 202]
        keys = [row[:3] for row in fleet.stored()]
        assert len(keys) == len(set(keys))
        assert {e for _, e, _ in keys} == {1, 2}


def test_a_restored_spool_that_has_overtaken_the_controller_loses_nothing(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    state = tmp_path / "a"
    with controller(bin_dir, tmp_path) as fleet:
        finish(agent(fleet.address, state, ticks=5))
        old = {p.name: p.read_bytes() for p in state.iterdir()}
        finish(agent(fleet.address, state, ticks=20, first=5))
        for path in state.iterdir():
            path.unlink()
        for name, body in old.items():
            (state / name).write_bytes(body)
        # Away from the controller it gives seqs that the controller knows from its former life.
        spool = Spool.open(state)
        spool.append([event(1000 + n) for n in range(100)])
        spool.close()
        finish(agent(fleet.address, state, ticks=1, first=2000))
        ticks = [t for *_, t in fleet.stored()]
        assert [t for t in ticks if t >= 1000] == [*range(1000, 1100), 2000]
        assert {e for _, e, _, _ in fleet.stored()} == {1, 2}


def test_a_new_controller_gets_what_is_still_held(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    state = tmp_path / "a"
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with controller(bin_dir, tmp_path / "one") as fleet:
        finish(agent(fleet.address, state, ticks=1500))
    with controller(bin_dir, tmp_path / "two") as fleet:
        finish(agent(fleet.address, state, ticks=1, first=1500))
        rows = fleet.stored()
        assert len(rows) > 900
        assert [s for _, _, s, _ in rows] == list(range(rows[0][2], 1502))
        assert fleet.gaps() == [(1, rows[0][2] - 1, 2)]  # acknowledged elsewhere: not lost


@pytest.mark.root
def test_a_full_disk_acknowledges_nothing_and_loses_nothing(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path, as_root: None
) -> None:
    disk = tmp_path / "fleet"
    disk.mkdir()
    size = ["-o", "size=1m"]
    if subprocess.run(["mount", "-t", "tmpfs", *size, "nodeagent-fleet", disk]).returncode:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        with controller(bin_dir, tmp_path) as fleet:
            child = agent(fleet.address, tmp_path / "a", ticks=6_000)
            until(lambda: "acknowledged reason" in fleet.log, lambda: fleet.log)
            assert "disk is full" in fleet.log
            assert "make room" not in fleet.log  # the remedy is for whoever starts it
            subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
            finish(child)
            assert "the store works again" in fleet.log
            assert [(s, t) for _, _, s, t in fleet.stored()] == [(n + 1, n) for n in range(6_000)]
            assert fleet.stop() == 0
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
