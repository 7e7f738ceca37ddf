"""nodeagentctl ring: against a registry and a producer process."""

from __future__ import annotations

import json
import pathlib
import subprocess
from collections.abc import Iterator

import pytest

from nodeagent.client.reader import Reader
from tests.feed.ring_world import Daemon, feeder, until


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path / "ring.sock")
    yield made
    made.close()


@pytest.fixture
def ctl(bin_dir: pathlib.Path, daemon: Daemon) -> Ctl:
    return Ctl(bin_dir / "nodeagentctl", daemon.path.with_name("api.sock"))


class Ctl:
    """The installed command, told of the daemon's sockets."""

    def __init__(self, program: pathlib.Path, socket: pathlib.Path) -> None:
        self.run_args = [str(program), "--socket", str(socket)]

    def __call__(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self.run_args, *args], capture_output=True, text=True, check=False)


def test_stat_shows_rings_and_readers(daemon: Daemon, ctl: Ctl) -> None:
    empty = ctl("ring", "stat")
    assert (empty.returncode, empty.stdout) == (0, "")
    assert "no feeder" in empty.stderr
    with feeder(daemon.path, "itch", "--frames") as producer:
        with Reader.attach("itch", "vwap", socket=daemon.path) as reader:
            reader.wait(20.0)
            reader.batch().advance()
            shown = ctl("ring", "stat")
            assert shown.returncode == 0
            assert f"incarnation 1, pid {producer.pid}" in shown.stdout
            assert "vwap" in shown.stdout
            body = json.loads(ctl("-o", "json", "ring", "stat").stdout)
    assert body["schema"] == "nodeagent.ring/v1"
    assert [r["kind"] for r in body["rings"]] == ["ticks", "frames"]
    (row,) = body["rings"][0]["readers"]
    assert (row["name"], row["mode"], row["lost"]) == ("vwap", "lossy", 0)


def test_tail_follows_and_filters(daemon: Daemon, ctl: Ctl) -> None:
    with feeder(daemon.path, "itch"):
        done = ctl("ring", "tail", "itch", "--count", "20")
        assert done.returncode == 0
        assert len(done.stdout.splitlines()) == 20
        assert "20 records shown" in done.stderr
        done = ctl("-o", "jsonl", "ring", "tail", "itch", "--count", "300")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(lines) == 300
        assert {line["schema"] for line in lines} == {"nodeagent.ring/v1"}
        assert lines[0]["kind"] == "add"
        first = lines[0]["seq"]
        assert [line["seq"] for line in lines][:100] == list(range(first, first + 100))
        assert lines[0]["price"] == first - 1
        # One record in 65536 is AAPL's in the test's pattern.
        done = ctl("ring", "tail", "itch", "--symbol", "AAPL", "--count", "1")
        assert "AAPL" in done.stdout
        done = ctl("ring", "tail", "itch", "--symbol", "NONE", "--for", "0.3")
        assert done.returncode == 0 and "NONE is none of the 2 symbols" in done.stderr
        assert "AAPL, ZVZZT" in done.stderr
        until(lambda: not daemon.rings()[0].readers)


def test_errors_are_a_sentence_and_a_remedy(
    daemon: Daemon, ctl: Ctl, tmp_path: pathlib.Path
) -> None:
    gone = ctl("ring", "tail", "nope")
    assert gone.returncode == 3
    assert gone.stderr.startswith("error: feed nope: no feed nope")
    assert "remedy: feeds here: none" in gone.stderr
    usage = ctl("-o", "json", "ring", "tail", "nope")
    assert usage.returncode == 64
    assert "jsonl" in usage.stderr
    nobody = ctl("ring", "stat", "--ring-socket", str(tmp_path / "none.sock"))
    assert nobody.returncode == 3
    assert "remedy: is nodeagentd running" in nobody.stderr
